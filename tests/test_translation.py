"""The task: its defaults, which search serves which options, and whose scores."""

import argparse
import re

import pytest
import torch
from fairseq import options, search
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.sequence_generator import SequenceGenerator

from vaswani_plugin.beam_search import BeamSearch
from vaswani_plugin.inference import length_limit, length_penalty
from vaswani_plugin.translation import (
    Aligned,
    PenalisedGenerator,
    PenalisedGeneratorWithAlignment,
    ReferenceScorer,
    VaswaniTranslationConfig,
    VaswaniTranslationTask,
)

from .helpers import PLUGIN, dictionary, run, small_model, succeed
from .test_search import random_sources, sample_of, tiny_model


def parse(*flags):
    parser = options.get_generation_parser()
    arguments = ["data", "--user-dir", str(PLUGIN), "--task", "vaswani_translation", "--path", "x", *flags]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))


def test_the_papers_search_is_the_default():
    cfg = parse()
    assert (cfg.generation.beam, cfg.generation.lenpen) == (4, 0.6)
    assert (cfg.generation.max_len_a, cfg.generation.max_len_b) == (1, 50)
    assert str(cfg.task.length_penalty) == "gnmt"
    assert cfg.dataset.required_batch_size_multiple == 1  # fairseq's 8 leaves sentences out


@pytest.mark.parametrize(
    "flag, value", [("beam", 5), ("lenpen", 1.0), ("lenpen", 0.0), ("max_len_a", 0.0), ("max_len_b", 200), ("max_len_b", 3)]
)
def test_every_flag_overrides_also_with_fairseqs_default(flag, value):
    cfg = parse("--" + flag.replace("_", "-"), str(value))
    assert cfg.generation[flag] == value


def test_other_tasks_keep_fairseqs_defaults():
    parse()
    parser = options.get_generation_parser()
    args = options.parse_args_and_arch(parser, ["data", "--user-dir", str(PLUGIN), "--path", "x"])
    assert (args.beam, args.lenpen, args.max_len_a, args.max_len_b) == (5, 1, 0, 200)


def test_the_length_limit_counts_no_end_token():
    assert length_limit(10) == 60
    assert length_limit(7, 1.5, 2) == 12
    assert length_limit(7, 0, 200) == 200


def task_of(words, penalty="gnmt"):
    return VaswaniTranslationTask(VaswaniTranslationConfig(length_penalty=penalty), words, words)


def generator(words, model, penalty="gnmt", **given):
    return task_of(words, penalty).build_generator([model], argparse.Namespace(**given))


@pytest.fixture(scope="module")
def words():
    return dictionary(20)


@pytest.fixture(scope="module")
def model(words):
    return tiny_model(words)


def test_what_is_left_out_is_the_papers(words, model):
    found = generator(words, model)
    assert isinstance(found, BeamSearch)
    assert (found.beam, found.max_len_a, found.max_len_b, found.nbest) == (4, 1.0, 50, 1)
    assert found.penalty(10) == pytest.approx(2.5**0.6)


def test_the_pair_that_tells_the_two_penalties_apart(words, model):
    """10 tokens with log-probability -5.0 and 20 tokens with -7.5: Wu et al. prefer the first, n^0.6 the second."""
    gnmt, fairseq = (generator(words, model, kind).penalty for kind in ("gnmt", "fairseq"))
    assert -5.0 / gnmt(10) == pytest.approx(-2.885, abs=1e-3) and -7.5 / gnmt(20) == pytest.approx(-3.186, abs=1e-3)
    assert -5.0 / fairseq(10) == pytest.approx(-1.256, abs=1e-3) and -7.5 / fairseq(20) == pytest.approx(-1.243, abs=1e-3)
    assert generator(words, model, unnormalized=True).penalty(20) == 1.0
    assert generator(words, model, lenpen=0.0).penalty(20) == 1.0


@pytest.mark.parametrize(
    "given, strategy",
    [
        ({"sampling": True}, search.Sampling),
        ({"diverse_beam_groups": 2}, search.DiverseBeamSearch),
        ({"diversity_rate": 0.5}, search.DiverseSiblingsSearch),
        ({"match_source_len": True}, search.LengthConstrainedBeamSearch),
        ({"constraints": "ordered"}, search.LexicallyConstrainedBeamSearch),
        ({"prefix_allowed_tokens_fn": lambda batch, tokens: [4]}, search.PrefixConstrainedBeamSearch),
        ({"no_repeat_ngram_size": 2}, search.BeamSearch),
        ({"unkpen": -1.0}, search.BeamSearch),
    ],
)
def test_other_searches_are_fairseqs_with_this_tasks_scores(words, model, given, strategy):
    found = generator(words, model, **given)
    assert type(found) is PenalisedGenerator
    assert isinstance(found.search, strategy)
    assert found.penalty(10) == pytest.approx(2.5**0.6)
    # 5 tokens and the end token of the longest source: fairseq computes 1 * 6 + 49.
    assert found.max_len_a * 6 + found.max_len_b == 55
    if given.keys() & {"no_repeat_ngram_size", "unkpen"}:
        sample = sample_of(random_sources(words, 3, 5), words)
        for hypotheses in found.generate([model], sample):
            for hypothesis in hypotheses:
                total, length = hypothesis["positional_scores"].sum().item(), hypothesis["tokens"].numel()
                assert hypothesis["score"].item() == pytest.approx(total / length_penalty(length, 0.6), rel=1e-5)


def test_a_language_model_is_left_to_fairseq(words, model):
    found = task_of(words).build_generator(
        [model], argparse.Namespace(), extra_gen_cls_kwargs={"lm_model": model, "lm_weight": 0.1}
    )
    assert type(found) is PenalisedGenerator and found.lm_weight == 0.1
    found = task_of(words).build_generator(
        [model], argparse.Namespace(), extra_gen_cls_kwargs={"lm_model": None, "lm_weight": 0.0}
    )
    assert isinstance(found, BeamSearch)


def test_blocked_ngrams_do_not_repeat(words, model):
    sample = sample_of(random_sources(words, 4, 5), words)

    def repeated(size, **given):
        found = generator(words, model, max_len_b=9, **given).generate([model], sample)
        outputs = [hypotheses[0]["tokens"].tolist() for hypotheses in found]
        grams = [list(zip(*(tokens[n:] for n in range(size)))) for tokens in outputs]
        return sum(len(of_one) - len(set(of_one)) for of_one in grams)

    for size in (1, 2, 3):
        assert repeated(size) > 0
        assert repeated(size, no_repeat_ngram_size=size) == 0


def test_alignments_are_those_of_the_last_attention(words, model):
    sample = sample_of(random_sources(words, 3, 8), words)
    plain = generator(words, model).generate([model], sample)
    hard = generator(words, model, print_alignment="hard")
    assert type(hard) is Aligned
    for source, one, other in zip(sample["net_input"]["src_tokens"], plain, hard.generate([model], sample)):
        assert one[0]["tokens"].tolist() == other[0]["tokens"].tolist()
        source, target = source[source.ne(1)], other[0]["tokens"]
        model.decoder.need_attn = True
        weights = model(source[None], None, target.roll(1)[None])[1]["attn"][0][0]
        model.decoder.need_attn = False
        assert torch.allclose(weights.sum(dim=1), torch.ones(len(target)), atol=1e-5)
        expected = [(weights[i, :-1].argmax().item(), i) for i in range(len(target) - 1)]
        assert [(int(s), int(t)) for s, t in other[0]["alignment"]] == expected
    soft = generator(words, model, print_alignment="soft").generate([model], sample)
    assert len(soft[0][0]["alignment"]) == soft[0][0]["tokens"].numel()
    assert type(generator(words, model, print_alignment="hard", sampling=True)) is PenalisedGeneratorWithAlignment


def test_references_are_scored_like_outputs(words, model):
    sample = sample_of(random_sources(words, 2, 9), words)
    outputs = generator(words, model).generate([model], sample)
    targets = [hypotheses[0]["tokens"] for hypotheses in outputs]
    width = max(map(len, targets))
    pad = lambda rows: torch.stack([torch.nn.functional.pad(row, (0, width - len(row)), value=1) for row in rows])  # noqa: E731
    sample["target"] = pad(targets)
    sample["net_input"]["prev_output_tokens"] = pad([target.roll(1) for target in targets])
    sample["ntokens"] = sum(map(len, targets))
    scorer = generator(words, model, score_reference=True)
    assert isinstance(scorer, ReferenceScorer)
    for scored, found in zip(scorer.generate([model], sample), outputs):
        assert scored[0]["score"].item() == pytest.approx(found[0]["score"].item(), rel=1e-4)


def stock_model(words):
    torch.manual_seed(3)
    args = argparse.Namespace(
        encoder_embed_dim=32, encoder_ffn_embed_dim=64, encoder_layers=2, encoder_attention_heads=4, decoder_layers=2,
        decoder_attention_heads=4, share_all_embeddings=True, max_source_positions=64, max_target_positions=64,
    )
    base_architecture(args)
    model = TransformerModel.build_model(args, argparse.Namespace(source_dictionary=words, target_dictionary=words))
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    return model.eval()


@pytest.mark.parametrize("told_a_beam", [False, True])
def test_fairseqs_own_model_in_this_task(words, told_a_beam):
    model = stock_model(words)
    if told_a_beam:  # as another generator of the same model leaves it behind
        SequenceGenerator([model], words, beam_size=4)
    sources = random_sources(words, 9, 4)
    search = generator(words, model, nbest=2)
    together = search.generate([model], sample_of(sources, words))
    for source, hypotheses in zip(sources, together):
        alone = search.generate([model], sample_of([source], words))[0]
        for one, other in zip(alone, hypotheses):
            assert one["tokens"].tolist() == other["tokens"].tolist()
            target = one["tokens"]
            logits = model(torch.tensor([source]), torch.tensor([len(source)]), target.roll(1)[None])[0][0]
            expected = logits.log_softmax(dim=-1).gather(1, target[:, None])[:, 0]
            assert torch.allclose(one["positional_scores"], expected, atol=1e-4)


def test_packed_weights_give_the_same_search(words):
    from omegaconf import OmegaConf

    model, prepared = tiny_model(words), tiny_model(words)
    prepared.prepare_for_inference_(OmegaConf.create({"generation": {"beam": 4}}))
    sample = sample_of(random_sources(words, 8, 2), words)
    for one, other in zip(generator(words, model).generate(None, sample), generator(words, prepared).generate(None, sample)):
        assert one[0]["tokens"].tolist() == other[0]["tokens"].tolist()
        assert one[0]["score"].item() == pytest.approx(other[0]["score"].item(), rel=1e-5)
    # Other devices and types go the ordinary way.
    assert small_model().decoder.output_projection(torch.ones(1, 16, dtype=torch.float64)).dtype == torch.float64
    prepared.double()
    assert generator(words, prepared).generate(None, sample)[0][0]["tokens"].tolist() == one_tokens(words, sample)


def one_tokens(words, sample):
    return generator(words, tiny_model(words)).generate(None, sample)[0][0]["tokens"].tolist()


def test_batches_of_an_epoch_are_made_anew():
    assert VaswaniTranslationTask.can_reuse_epoch_itr(None, None) is False


# --- the real commands ------------------------------------------------------------------------

SMALL = [
    "--arch", "vaswani2017_tiny", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--encoder-layers", "2",
    "--decoder-layers", "2", "--cpu", "--log-format", "json", "--log-interval", "1", "--dropout", "0.1",
]


def train(data, save_dir, *flags):
    return succeed(
        "fairseq-train", data, "--user-dir", PLUGIN, "--task", "vaswani_translation", *SMALL, "--save-dir", save_dir, *flags
    )


@pytest.fixture(scope="module")
def trained(data_bin, tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("task")
    train(data_bin, save_dir, "--max-update", "300", "--warmup-updates", "80", "--max-tokens", "600", "--dropout", "0",
          "--no-epoch-checkpoints", "--save-interval", "1000", "--disable-validation", "--lr-factor", "1")
    return save_dir / "checkpoint_last.pt"


def generate(data, *flags):
    """fairseq-generate: output lines by their letter and sentence, such as ``H-3``."""
    output = succeed("fairseq-generate", data, "--user-dir", PLUGIN, "--task", "vaswani_translation", "--cpu", *flags)
    return {line.split("\t")[0]: line for line in output.splitlines() if re.match(r"[SHTDPA]-\d+\t", line)}


@pytest.mark.slow
def test_generate_by_default_and_by_batch_size(data_bin, trained):
    found = {size: generate(data_bin, "--path", trained, "--batch-size", size) for size in (1, 8, 32)}
    names = [name for name in found[1] if name.startswith("H")]
    assert len(names) == 20
    for name in names:
        texts = {found[size][name].split("\t")[2] for size in found}
        assert len(texts) == 1
        score, positional = (found[1][letter + name[1:]] for letter in "HP")
        log_probs = [float(x) for x in positional.split("\t")[1].split()]
        expected = sum(log_probs) / length_penalty(len(log_probs), 0.6)
        assert float(score.split("\t")[1]) == pytest.approx(expected, abs=1e-3)
    # the same without the task, by fairseq's own search: it is this task that gives the defaults
    stock = succeed("fairseq-generate", data_bin, "--user-dir", PLUGIN, "--path", trained, "--cpu", "--task", "translation")
    assert "beam=5" in stock


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [["--print-alignment"], ["--nbest", "4"], ["--prefix-size", "2"], ["--sampling", "--nbest", "4"], ["--score-reference"],
     ["--no-repeat-ngram-size", "2"], ["--unkpen", "2"], ["--min-len", "9"], ["--temperature", "0.7"], ["--fp16"],
     ["--length-penalty", "fairseq"]],
    ids=lambda flags: flags[0],
)
def test_generate_with_other_options(data_bin, trained, flags):
    plain = generate(data_bin, "--path", trained)
    found = generate(data_bin, "--path", f"{trained}:{trained}", *flags)
    assert sum(name.startswith("H") for name in found) == 20
    for name, line in found.items():
        words = line.split("\t")[-1].split()
        if name.startswith("H"):
            target = plain["T" + name[1:]].split("\t")[1].split()
            if flags[0] == "--prefix-size":
                assert words[:2] == target[:2]
            if flags[0] == "--min-len":
                # By its scores, end token included: special entries are not printed.
                assert len(found["P" + name[1:]].split("\t")[1].split()) >= 9 + 1
            if flags[0] == "--no-repeat-ngram-size":
                assert len(set(zip(words, words[1:]))) == len(words) - 1
            if flags[0] == "--score-reference":
                assert words == target
            if flags[0] in ("--print-alignment", "--unkpen"):  # half precision may decide a near tie otherwise
                assert words == plain[name].split("\t")[-1].split()


@pytest.mark.slow
def test_interactive_and_from_pretrained(data_bin, corpus, trained):
    lines = (corpus / "test.a").read_text().splitlines()[:3]
    done = run("fairseq-interactive", data_bin, "--user-dir", PLUGIN, "--task", "vaswani_translation", "--path", trained,
               "--cpu", stdin="\n".join(lines[:1] + [""] + lines[1:]) + "\n")
    assert done.returncode == 0, done.stderr[-2000:]
    hypotheses = [line.split("\t")[2] for line in done.stdout.splitlines() if line.startswith("H-")]
    assert len(hypotheses) == 4
    from vaswani_plugin.transformer import VaswaniModel

    hub = VaswaniModel.from_pretrained(str(trained.parent), trained.name, data_name_or_path=str(data_bin))
    assert isinstance(hub.task, VaswaniTranslationTask)
    assert hub.translate(lines, beam=4) == [hypotheses[0], hypotheses[2], hypotheses[3]]


@pytest.mark.slow
def test_a_resumed_training_sees_the_batches_of_an_undisturbed_one(data_bin, tmp_path):
    """Also beyond the first epoch: with the task ``translation`` it does not."""
    def losses(output):
        return re.findall(r'"loss": "([\d.]+)".*?"num_updates": "(\d+)"', output)

    flags = ["--max-tokens", "400", "--save-interval-updates", "1000"]
    whole = losses(train(data_bin, tmp_path / "whole", *flags, "--max-update", "20"))
    first = losses(train(data_bin, tmp_path / "parts", *flags, "--max-update", "13"))
    second = losses(train(data_bin, tmp_path / "parts", *flags, "--max-update", "20"))
    assert len({number for _, number in whole}) == 20
    steps = lambda found: {number: loss for loss, number in found}  # noqa: E731
    assert {**steps(first), **steps(second)} == steps(whole)


@pytest.mark.slow
def test_bleu_during_training(data_bin, tmp_path):
    output = train(data_bin, tmp_path, "--max-update", "4", "--max-tokens", "400", "--eval-bleu",
                   "--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric")
    assert '"valid_bleu"' in output
