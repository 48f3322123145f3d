"""The real fairseq commands, end to end on a small made-up corpus, as a user runs them."""

import json
import re
import shutil
import sys

import pytest
import torch

from .helpers import PLUGIN, REPOSITORY, run, succeed

pytestmark = pytest.mark.slow

TINY = [
    "--arch", "vaswani2017_tiny", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64",
    "--encoder-layers", "1", "--decoder-layers", "1", "--max-tokens", "300", "--cpu",
    "--log-format", "json", "--log-interval", "1",
]


def train(data, save_dir, *flags, user_dir=PLUGIN, **options):
    """Train, and return the log: one dictionary per update."""
    output = succeed("fairseq-train", data, "--user-dir", user_dir, *TINY, "--save-dir", save_dir, *flags, **options)
    lines = re.findall(r"train_inner \| (\{.*\})", output)
    return [json.loads(line) for line in lines]


NUMBERS = ("loss", "nll_loss", "ppl", "lr", "gnorm", "wpb", "bsz")


def numbers(log):
    return [{name: entry[name] for name in NUMBERS} for entry in log]


@pytest.fixture(scope="module")
def trained(data_bin, tmp_path_factory):
    """A model of 6 updates and its log."""
    save_dir = tmp_path_factory.mktemp("trained")
    return save_dir, train(data_bin, save_dir, "--max-update", "6")


@pytest.fixture(scope="module")
def learned(data_bin, tmp_path_factory):
    """A model that has learned to reverse its input."""
    save_dir = tmp_path_factory.mktemp("learned")
    log = train(
        data_bin, save_dir, "--max-update", "600", "--warmup-updates", "100", "--lr-factor", "0.3", "--dropout", "0",
        "--encoder-embed-dim", "64", "--encoder-layers", "2", "--decoder-layers", "2", "--no-epoch-checkpoints",
        "--disable-validation", "--max-tokens", "1000",
    )
    return save_dir, log


def test_training_in_two_parts_logs_the_same_digits(data_bin, trained, tmp_path):
    _, whole = trained
    assert len(whole) == 6
    # fairseq logs the rate of the next update: after update k that of k + 1 (32^-0.5 (k + 1) 4000^-1.5).
    for update, entry in enumerate(whole, start=1):
        assert float(entry["lr"]) == pytest.approx(32**-0.5 * (update + 1) * 4000**-1.5, rel=1e-4)
    first = train(data_bin, tmp_path, "--max-update", "3")
    second = train(data_bin, tmp_path, "--max-update", "6")
    assert numbers(first) + numbers(second) == numbers(whole)


def test_the_same_seed_gives_the_same_digits(data_bin, trained, tmp_path):
    assert numbers(train(data_bin, tmp_path, "--max-update", "6")) == numbers(trained[1])
    other = train(data_bin, tmp_path / "other", "--max-update", "1", "--seed", "2")
    assert numbers(other) != numbers(trained[1])[:1]


def test_the_optimizer_steps_with_the_papers_constants(data_bin, tmp_path):
    """Spied where it counts, at ``step`` of the optimizer that fairseq built."""
    program = (
        "from torch.optim.optimizer import register_optimizer_step_pre_hook; from fairseq_cli.train import cli_main\n"
        "def spy(optimizer, *_):\n"
        "    for g in optimizer.param_groups: print('STEP', repr(g['lr']), g['betas'], g['eps'], g['weight_decay'])\n"
        "register_optimizer_step_pre_hook(spy)\n"
        "cli_main()\n"
    )
    script = tmp_path / "spy.py"
    script.write_text(program)
    output = succeed(
        sys.executable, script, data_bin, "--user-dir", PLUGIN, *TINY, "--save-dir", tmp_path, "--max-update", "3",
        "--update-freq", "2",
    )
    steps = re.findall(r"STEP (\S+) \((.*?), (.*?)\) (\S+) (\S+)", output)
    assert len(steps) == 3
    for update, (rate, beta1, beta2, eps, decay) in enumerate(steps, start=1):
        assert float(rate) == pytest.approx(32**-0.5 * update * 4000**-1.5, rel=1e-9)
        assert (float(beta1), float(beta2), float(eps), float(decay)) == (0.9, 0.98, 1e-9, 0.0)


def test_no_sentence_is_left_out(data_bin, tmp_path):
    """An epoch sees all 2000, although its batches are no multiples of 8."""
    log = train(data_bin, tmp_path, "--max-epoch", "1", "--max-tokens", "3000")
    assert sum(float(entry["bsz"]) for entry in log) == 2000
    assert any(float(entry["bsz"]) % 8 for entry in log)


def test_two_half_batches_are_one_update(data_bin, tmp_path):
    log = train(data_bin, tmp_path, "--max-update", "2", "--update-freq", "2")
    assert [int(entry["num_updates"]) for entry in log] == [1, 2]
    assert all(float(entry["wpb"]) > 300 for entry in log)


@pytest.mark.parametrize(
    "flags",
    [["--bf16"], ["--memory-efficient-bf16"], ["--amp"], ["--checkpoint-activations"], ["--learned-positions"],
     ["--attention-bias"], ["--no-share-all-embeddings"], ["--optimizer", "sgd", "--lr", "0.1"],
     ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"], ["--left-pad-target"],
     ["--store-ema"]],
    ids=" ".join,
)
def test_training_and_resuming_with_other_flags(data_bin, tmp_path, flags):
    log = train(data_bin, tmp_path, "--max-update", "2", *flags)
    log += train(data_bin, tmp_path, "--max-update", "3", *flags)
    assert [int(entry["num_updates"]) for entry in log] == [1, 2, 3]
    assert all(0 < float(entry["loss"]) < 10 for entry in log)


def test_bf16_follows_the_curve_of_single_precision(data_bin, trained, tmp_path):
    rough = train(data_bin, tmp_path, "--max-update", "6", "--bf16")
    for a, b in zip(rough, trained[1]):
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=0.01)


def test_the_model_learns_and_every_command_can_use_it(data_bin, corpus, learned, tmp_path):
    save_dir, log = learned
    assert float(log[-1]["ppl"]) < 1.5 < 8 < float(log[0]["ppl"])
    model = save_dir / "checkpoint_last.pt"
    plugin = ["--user-dir", PLUGIN]

    output = generate(data_bin, model, "--beam", "4")
    score = float(re.search(r"BLEU4 = ([\d.]+)", output).group(1))
    assert score > 70  # untrained: below 1

    for batch in ("1", "7"):  # the same hypotheses whatever the batch
        assert hypotheses(generate(data_bin, model, "--beam", "4", "--batch-size", batch)) == hypotheses(output)

    output = succeed(
        "fairseq-validate", data_bin, *plugin, "--task", "translation", "--path", model, "--cpu", "--max-tokens", "500"
    )
    assert float(re.search(r"\| ppl ([\d.]+)", output).group(1)) < 2

    lines = (corpus / "test.a").read_text().splitlines()[:3] + [""]
    output = succeed(
        "fairseq-interactive", data_bin, *plugin, "--path", model, "--cpu", "--beam", "4",
        stdin="\n".join(lines) + "\n",
    )
    found = hypotheses(output)
    assert sorted(found) == [0, 1, 2, 3]
    assert sum(found[n].split() == lines[n].split()[::-1] for n in range(3)) >= 2

    program = (
        "import sys; from vaswani_plugin.transformer import VaswaniModel as M\n"
        f"m = M.from_pretrained({str(save_dir)!r}, 'checkpoint_last.pt', {str(data_bin)!r},"
        f" user_dir={str(PLUGIN)!r})\n"
        f"print('TRANSLATION', m.translate({lines[0]!r}, beam=4))"
    )
    output = succeed(sys.executable, "-c", program)
    assert f"TRANSLATION {found[0]}" in output


def generate(data, model, *flags):
    """What ``fairseq-generate`` prints; every sentence, which its default multiple of 8 does not give."""
    return succeed(
        "fairseq-generate", data, "--user-dir", PLUGIN, "--path", model, "--cpu",
        "--required-batch-size-multiple", "1", *flags,
    )


def hypotheses(output):
    return {int(n): text for n, text in re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, flags=re.M)}


@pytest.mark.parametrize(
    "flags",
    [["--print-alignment", "soft"], ["--nbest", "2"], ["--score-reference"], ["--sampling", "--nbest", "4"], ["--prefix-size", "1"],
     ["--diverse-beam-groups", "2"], ["--no-repeat-ngram-size", "2"], ["--fp16"], ["--lenpen", "0.6"]],
    ids=" ".join,
)
def test_generation_with_other_flags(data_bin, trained, flags):
    output = generate(data_bin, trained[0] / "checkpoint_last.pt", "--beam", "4", "--max-len-b", "10", *flags)
    assert len(hypotheses(output)) == 20


def test_two_checkpoints_make_an_ensemble(data_bin, trained):
    model = trained[0] / "checkpoint_last.pt"
    alone, twice = (
        generate(data_bin, path, "--max-len-b", "10")
        for path in (model, f"{model}:{model}")
    )
    assert hypotheses(alone) == hypotheses(twice)


@pytest.mark.parametrize("spelling", ["vaswani_plugin", "./vaswani_plugin/", str(PLUGIN) + "/"])
def test_the_plugin_is_found_however_it_is_spelled(data_bin, tmp_path, spelling):
    assert len(train(data_bin, tmp_path, "--max-update", "1", user_dir=spelling, cwd=REPOSITORY)) == 1


def test_the_plugin_is_found_from_another_directory(data_bin, tmp_path):
    shutil.copytree(PLUGIN, tmp_path / "elsewhere" / "vaswani_plugin")
    work = tmp_path / "elsewhere" / "work"
    work.mkdir()
    log = train(data_bin, tmp_path / "save", "--max-update", "1", user_dir="../vaswani_plugin", cwd=work)
    assert len(log) == 1


def test_fairseq_hydra_train_trains_and_resumes_with_the_shipped_configuration(data_bin, tmp_path):
    command = [
        "fairseq-hydra-train", "--config-dir", PLUGIN / "config", "--config-name", "vaswani2017",
        f"common.user_dir={PLUGIN}", f"task.data={data_bin}", "common.cpu=true", "model.encoder_embed_dim=32",
        "model.encoder_layers=1", "model.decoder_layers=1", "model.encoder_ffn_embed_dim=64",
        "dataset.max_tokens=300", "common.log_interval=1", "checkpoint.save_interval_updates=1",
    ]
    output = succeed(*command, "optimization.max_update=2", cwd=tmp_path)
    assert "num_updates 2 " in output or '"num_updates": "2"' in output or "num_updates=2" in output
    output = succeed(*command, "optimization.max_update=3", cwd=tmp_path)
    assert "Loaded checkpoint" in output and "@ 2 updates" in output
    last = tmp_path / "checkpoints" / "checkpoint_last.pt"
    state = torch.load(last, weights_only=True)
    assert state["cfg"]["lr_scheduler"]["encoder_embed_dim"] == 32

    last.write_bytes(last.read_bytes()[:1000])  # as a full disk leaves it
    output = succeed(*command, "optimization.max_update=4", cwd=tmp_path)
    assert "checkpoint_last.pt is damaged" in output
    assert re.search(r"Loaded checkpoint \S*checkpoint_(best|1_3)\.pt \(epoch 1 @ 3 updates\)", output)


def test_checkpoints_hold_plain_values_and_one_matrix(trained):
    """Safe unpickling reads them in a process that has never seen fairseq or the plugin."""
    program = (
        "import sys, torch; state = torch.load(sys.argv[1], weights_only=True); model = state['model'];"
        "names = ['encoder.embedding.weight', 'decoder.embedding.weight', 'decoder.output_projection.weight'];"
        "print(len({model[name].data_ptr() for name in names}), 'fairseq' in sys.modules)"
    )
    output = succeed(sys.executable, "-c", program, trained[0] / "checkpoint_last.pt")
    assert output == "1 False\n"


BAD_TRAINING = {
    "absent data": (["/nowhere"], [], "DATA /nowhere is not a directory"),
    "heads": ([], ["--encoder-attention-heads", "3"], "not divisible by --encoder-attention-heads 3"),
    "odd width": ([], ["--encoder-embed-dim", "33"], "--encoder-embed-dim must be even, not 33"),
    "no warm-up": ([], ["--warmup-updates", "0"], "--warmup-updates must be at least 1, not 0"),
    "negative warm-up": ([], ["--warmup-updates", "-4"], "--warmup-updates must be at least 1, not -4"),
    "smoothing": ([], ["--label-smoothing", "1.5"], "--label-smoothing must lie in [0, 1), and is 1.5"),
    "dropout": ([], ["--dropout", "1"], "--dropout must lie in [0, 1), and is 1.0"),
    "restore file": ([], ["--restore-file", "none.pt"], "--restore-file none.pt does not exist"),
    "valid split": ([], ["--valid-subset", "absent"], "Dataset not found: absent"),
    "limit": ([], ["--max-source-positions", "4"], "--skip-invalid-size-inputs-valid-test"),
}


@pytest.mark.parametrize("data, flags, sentence", BAD_TRAINING.values(), ids=BAD_TRAINING)
def test_bad_input_of_a_training_is_answered_in_one_sentence(data_bin, tmp_path, data, flags, sentence):
    done = run(
        "fairseq-train", *(data or [data_bin]), "--user-dir", PLUGIN, *TINY, "--save-dir", tmp_path / "save",
        "--max-update", "1", *flags,
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and sentence in last
    assert "Traceback" not in done.stdout + done.stderr
    assert not list((tmp_path / "save").glob("*")) if (tmp_path / "save").exists() else True


def test_separate_dictionaries_are_answered_in_one_sentence(separate_data_bin, tmp_path):
    done = run("fairseq-train", separate_data_bin, "--user-dir", PLUGIN, *TINY, "--save-dir", tmp_path)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "--joined-dictionary" in done.stderr.strip().splitlines()[-1]


def test_a_checkpoint_of_another_model_is_answered_in_one_sentence(data_bin, trained, tmp_path):
    shutil.copy(trained[0] / "checkpoint_last.pt", tmp_path)
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    done = run(
        "fairseq-train", data_bin, "--user-dir", PLUGIN, *TINY, "--save-dir", tmp_path, "--max-update", "9",
        "--encoder-layers", "2",
    )
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "the checkpoint is of another model" in done.stderr.strip().splitlines()[-1]
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
