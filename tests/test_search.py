"""Beam search: compared with exhaustive search, and with fairseq's own where the two must agree."""

import itertools
import math

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator

from vaswani_plugin import beam_search
from vaswani_plugin.beam_search import BeamSearch
from vaswani_plugin.config import VaswaniConfig
from vaswani_plugin.errors import UserError
from vaswani_plugin.inference import length_penalty
from vaswani_plugin.transformer import VaswaniModel


def dictionary(symbols):
    words = Dictionary()
    for number in range(symbols):
        words.add_symbol(f"w{number}")
    return words


class TableModel:
    """Log-probabilities of the next token drawn at random for each prefix of each source."""

    def __init__(self, entries, seed, eos_bonus=0.0, max_positions=100):
        self.entries, self.seed, self.eos_bonus, self.max_positions = entries, seed, eos_bonus, max_positions
        self.encoder = self.decoder = self
        self.calls = []

    def eval(self):
        return self

    def max_decoder_positions(self):
        return self.max_positions

    def forward_torchscript(self, net_input):
        return net_input["src_tokens"]

    def reorder_encoder_out(self, encoded, order):
        return encoded[order]

    def reorder_incremental_state_scripting(self, state, order):
        pass

    def __call__(self, tokens, encoder_out, incremental_state):
        self.calls.append(tokens.size(0))
        rows = [self.logits(source.tolist(), row.tolist()) for source, row in zip(encoder_out, tokens)]
        return torch.stack(rows).unsqueeze(1), None

    def logits(self, source, prefix):
        key = hash((self.seed, *(s for s in source if s != 1), -1, *prefix)) % 2**31
        logits = 2 * torch.randn(self.entries, generator=torch.Generator().manual_seed(key))
        logits[2] += self.eos_bonus
        return logits

    def get_normalized_probs(self, output, log_probs, sample):
        return output[0].log_softmax(dim=-1)


def sample_of(sources, words):
    """A batch, padded on the left as fairseq pads sources."""
    width = max(map(len, sources))
    rows = [[words.pad()] * (width - len(source)) + source for source in sources]
    tokens = torch.tensor(rows)
    return {"id": torch.arange(len(rows)),
            "net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([len(s) for s in sources])}}


def exhaustive(model, words, source, limit, penalty, min_len=1):
    """All outputs of up to ``limit`` tokens and their scores, best first, by the definition."""
    found = []
    inner = [token for token in range(len(words)) if token not in (words.pad(), words.eos())]
    for length in range(min_len, limit + 1):
        for body in itertools.product(inner, repeat=length):
            prefix, log_prob = [words.eos()], 0.0
            for token in (*body, words.eos()):
                log_prob += model.logits(source, prefix).log_softmax(dim=0)[token].item()
                prefix.append(token)
            found.append((log_prob / penalty(length + 1), (*body, words.eos())))
    return sorted(found, reverse=True)


PENALTIES = {
    "none": lambda n: 1.0,
    "gnmt 0.6": lambda n: length_penalty(n, 0.6),
    "gnmt 1": lambda n: length_penalty(n, 1.0),
    "gnmt 3": lambda n: length_penalty(n, 3.0),
    "gnmt -1": lambda n: length_penalty(n, -1.0),
    "fairseq 0.6": lambda n: n**0.6,
    "fairseq 2": lambda n: n**2.0,
}


@pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES.keys())
@pytest.mark.parametrize("nbest", [1, 3])
def test_a_wide_beam_is_exhaustive_search(penalty, nbest):
    """Four entries, at most four tokens: 3^1 + ... + 3^4 outputs without padding; the beam holds all prefixes."""
    words = dictionary(0)
    for seed in range(6):
        for eos_bonus in (-4.0, 0.0, 3.0):
            model = TableModel(len(words), seed, eos_bonus)
            source = [3, 0, words.eos()]
            search = BeamSearch([model], words, 81, penalty, max_len_a=1, max_len_b=2, nbest=nbest)
            found = search.generate([model], sample_of([source], words))[0]
            expected = exhaustive(model, words, source, 4, penalty)[:nbest]
            assert len(found) == nbest
            for hypothesis, (score, tokens) in zip(found, expected):
                assert tuple(hypothesis["tokens"].tolist()) == tokens
                assert hypothesis["score"].item() == pytest.approx(score, abs=1e-5)


def test_an_empty_output_can_win_only_if_allowed():
    words = dictionary(0)
    model = TableModel(len(words), 0, eos_bonus=9.0)
    sample = sample_of([[3, words.eos()]], words)
    for min_len in (0, 1, 2):
        search = BeamSearch([model], words, 27, PENALTIES["none"], max_len_b=1, min_len=min_len)
        tokens = search.generate([model], sample)[0][0]["tokens"]
        assert tokens.numel() - 1 == min_len
        expected = exhaustive(model, words, [3, words.eos()], 2, PENALTIES["none"], min_len)[0]
        assert tuple(tokens.tolist()) == expected[1]


def test_search_ends_when_no_living_hypothesis_can_overtake():
    """By hand: output ``a`` has log-probability -0.2; all others -3 or less, so with beam 1 and a limit of 20
    the first step's losers cannot come back under no penalty, but could under a steep one."""
    words = dictionary(0)

    class Model(TableModel):
        def logits(self, source, prefix):
            probabilities = torch.full((4,), 0.05)
            probabilities[0 if len(prefix) == 1 else 2] = 0.85
            return probabilities.log()

    sample = sample_of([[3] * 10 + [words.eos()]], words)
    steps = {}
    for name in ("none", "gnmt 3"):
        model = Model(4, 0)
        search = BeamSearch([model], words, 2, PENALTIES[name], max_len_b=10)
        best = search.generate([model], sample)[0][0]
        steps[name] = len(model.calls)
        if name == "none":
            assert best["tokens"].tolist() == [0, 2]
            assert best["score"].item() == pytest.approx(2 * math.log(0.85), abs=1e-6)
    # ln 0.85 twice is -0.325; what lives on after two steps has a token of probability 0.05: -2.996 or less.
    assert steps["none"] == 2
    assert steps["gnmt 3"] > 2


def test_each_sentence_has_its_own_length_limit():
    """Sources of 2 and 7 tokens in one batch, and an end token that is never likely."""
    words = dictionary(3)
    model = TableModel(len(words), 1, eos_bonus=-50.0)
    short, long = [4, 5, 2], [4, 5, 6, 4, 5, 6, 4, 2]
    search = BeamSearch([model], words, 2, PENALTIES["gnmt 0.6"], max_len_a=1, max_len_b=3)
    both = search.generate([model], sample_of([short, long], words))
    assert [h[0]["tokens"].numel() - 1 for h in both] == [5, 10]
    alone = search.generate([model], sample_of([short], words))
    assert alone[0][0]["tokens"].tolist() == both[0][0]["tokens"].tolist()
    model.max_positions = 8  # the decoder reads the first token and seven more
    both = search.generate([model], sample_of([short, long], words))
    assert [h[0]["tokens"].numel() - 1 for h in both] == [5, 7]


def test_scores_are_those_of_the_tokens():
    words = dictionary(4)
    model = TableModel(len(words), 2)
    source = [4, 5, 6, 2]
    search = BeamSearch([model], words, 4, PENALTIES["gnmt 0.6"], nbest=4)
    for hypothesis in search.generate([model], sample_of([source], words))[0]:
        prefix, expected = [2], []
        for token in hypothesis["tokens"].tolist():
            expected.append(model.logits(source, prefix).log_softmax(dim=0)[token].item())
            prefix.append(token)
        assert hypothesis["positional_scores"].tolist() == pytest.approx(expected, abs=1e-5)
        assert hypothesis["score"].item() == pytest.approx(
            sum(expected) / length_penalty(len(expected), 0.6), abs=1e-5
        )


def test_prefix_tokens_are_kept_and_the_rest_is_searched():
    words = dictionary(4)
    model = TableModel(len(words), 5)
    sources = [[4, 5, 6, 2], [6, 2], [5, 2]]
    prefix = torch.tensor([[7, 4], [5, 1], [2, 1]])  # two tokens, one and padding, the end token at once
    search = BeamSearch([model], words, 3, PENALTIES["none"], max_len_b=3)
    found = search.generate([model], sample_of(sources, words), prefix_tokens=prefix)
    assert found[0][0]["tokens"][:2].tolist() == [7, 4]
    assert found[1][0]["tokens"][0].item() == 5
    assert found[2][0]["tokens"].tolist() == [2]
    for source, hypotheses in zip(sources, found):
        assert hypotheses[0]["positional_scores"][0].item() == pytest.approx(
            model.logits(source, [2]).log_softmax(dim=0)[hypotheses[0]["tokens"][0]].item(), abs=1e-5
        )


def test_unknown_word_penalty_and_temperature():
    words = dictionary(2)
    model = TableModel(len(words), 3)
    source, limit = [4, 2], 3

    class Changed(TableModel):
        def logits(self, source, prefix):
            log_probs = (super().logits(source, prefix) / 2.0).log_softmax(dim=0)
            log_probs[3] -= 0.7
            return log_probs

        def get_normalized_probs(self, output, log_probs, sample):
            return output[0]

    search = BeamSearch([model], words, 200, PENALTIES["none"], max_len_b=2, unk_penalty=0.7, temperature=2.0)
    best = search.generate([model], sample_of([source], words))[0][0]
    changed = Changed(len(words), 3)
    scores = {}
    inner = [0, 3, 4, 5]
    for length in range(1, limit + 1):
        for body in itertools.product(inner, repeat=length):
            prefix, total = [2], 0.0
            for token in (*body, 2):
                total += changed.logits(source, prefix)[token].item()
                prefix.append(token)
            scores[(*body, 2)] = total
    tokens = max(scores, key=scores.get)
    assert tuple(best["tokens"].tolist()) == tokens
    assert best["score"].item() == pytest.approx(scores[tokens], abs=1e-5)


def test_bad_values_are_named():
    words = dictionary(0)
    model = TableModel(4, 0)
    for options, text in (
        ({"beam": 0}, "--beam"),
        ({"nbest": 0}, "--nbest"),
        ({"temperature": 0.0}, "--temperature"),
    ):
        with pytest.raises(UserError, match=text):
            BeamSearch([model], words, **{"beam": 2, "penalty": PENALTIES["none"], **options})
    search = BeamSearch([model], words, 2, PENALTIES["none"], max_len_b=1, min_len=5)
    with pytest.raises(UserError, match="--min-len"):
        search.generate([model], sample_of([[3, 2]], words))


def test_weights_that_are_not_numbers_are_named():
    words = dictionary(0)

    class Broken(TableModel):
        def logits(self, source, prefix):
            return torch.full((4,), float("nan"))

    model = Broken(4, 0)
    with pytest.raises(UserError, match="no finite probability"):
        BeamSearch([model], words, 2, PENALTIES["none"]).generate([model], sample_of([[3, 2]], words))


# --- the real model ---------------------------------------------------------------------------


def tiny_model(words, seed=0, **options):
    torch.manual_seed(seed)
    config = VaswaniConfig(
        **{"encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64, "encoder_layers": 2, "decoder_layers": 2,
           "encoder_attention_heads": 4, "max_source_positions": 64, "max_target_positions": 64, **options}
    )
    model = VaswaniModel.from_config(config, words).eval()
    # Sharper than at the start of training, so that float32 decides as float64 does.
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    return model


def random_sources(words, count, seed):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 12, (count,), generator=random).tolist()
    return [torch.randint(4, len(words), (n,), generator=random).tolist() + [words.eos()] for n in lengths]


@pytest.mark.parametrize("entries", [17, 131, 1003])
@pytest.mark.parametrize("few", [0, 1 << 17], ids=["columns", "all at once"])
def test_search_equals_a_literal_search(entries, few, monkeypatch):
    """The lean search against one written as the docstring says it: full sort, full recomputation, no cache."""
    monkeypatch.setattr(beam_search, "FEW_ENTRIES", few)
    words = dictionary(entries)
    model = tiny_model(words).double()
    sources = random_sources(words, 5, 1)
    beam, limit_b = 3, 4
    search = BeamSearch([model], words, beam, PENALTIES["gnmt 0.6"], max_len_b=limit_b, nbest=2)
    found = search.generate([model], sample_of(sources, words))
    for source, hypotheses in zip(sources, found):
        expected = literal_search(model, words, source, beam, len(source) - 1 + limit_b, PENALTIES["gnmt 0.6"], 2)
        assert len(hypotheses) == len(expected)
        for hypothesis, (score, tokens) in zip(hypotheses, expected):
            assert hypothesis["tokens"].tolist() == tokens
            assert hypothesis["score"].item() == pytest.approx(score, abs=1e-5)


def literal_search(model, words, source, beam, limit, penalty, nbest):
    living, finished = [(0.0, [words.eos()])], []
    for step in range(limit + 1):
        candidates = []
        for score, tokens in living:
            with torch.no_grad():
                logits, _ = model(torch.tensor([source]), None, torch.tensor([tokens]))
            log_probs = logits[0, -1].log_softmax(dim=0)
            for token in range(len(words)):
                if token == words.pad() or (step == 0 and token == words.eos()):
                    continue
                if step == limit and token != words.eos():
                    continue
                candidates.append((score + log_probs[token].item(), tokens + [token]))
        candidates = sorted(candidates, reverse=True)[: 2 * beam]
        finished += [(s / penalty(len(t) - 1), t[1:]) for s, t in candidates if t[-1] == words.eos()]
        living = [(s, t) for s, t in candidates if t[-1] != words.eos()][:beam]
    return sorted(finished, reverse=True)[:nbest]


@pytest.mark.parametrize("entries", [40, 1000])
def test_hypotheses_do_not_depend_on_the_batch(entries):
    words = dictionary(entries)
    model = tiny_model(words)
    sources = random_sources(words, 32, 7)
    search = BeamSearch([model], words, 4, PENALTIES["gnmt 0.6"], max_len_b=10)

    def translate(numbers, size):
        found = {}
        for first in range(0, len(numbers), size):
            batch = numbers[first : first + size]
            for number, hypotheses in zip(batch, search.generate([model], sample_of([sources[n] for n in batch], words))):
                found[number] = hypotheses[0]
        return [found[number] for number in range(len(sources))]

    alone = translate(list(range(32)), 1)
    for numbers, size in ((list(range(32)), 8), (list(range(32)), 32), (list(range(31, -1, -1)), 8)):
        for one, other in zip(alone, translate(numbers, size)):
            assert one["tokens"].tolist() == other["tokens"].tolist()
            assert one["score"].item() == pytest.approx(other["score"].item(), rel=1e-5)


def test_an_ensemble_averages_probabilities():
    words = dictionary(30)
    models = [tiny_model(words, seed).double() for seed in (0, 1)]
    source = random_sources(words, 1, 3)[0]
    search = BeamSearch(models, words, 4, PENALTIES["none"], max_len_b=5)
    best = search.generate(models, sample_of([source], words))[0][0]
    target = best["tokens"]
    with torch.no_grad():
        each = [m(torch.tensor([source]), None, target.roll(1)[None])[0][0].softmax(dim=-1) for m in models]
    expected = torch.stack(each).mean(dim=0).log().gather(1, target[:, None])[:, 0]
    assert torch.allclose(best["positional_scores"].double(), expected, atol=1e-5)
    twice = BeamSearch([models[0]] * 2, words, 4, PENALTIES["none"], max_len_b=5)
    once = BeamSearch(models[:1], words, 4, PENALTIES["none"], max_len_b=5)
    sample = sample_of([source], words)
    assert twice.generate(None, sample)[0][0]["tokens"].tolist() == once.generate(None, sample)[0][0]["tokens"].tolist()


def test_same_best_hypothesis_as_fairseq_where_the_settings_mean_the_same():
    """No penalty and one sentence: fairseq's search, if it finds the same finished outputs, ranks them alike."""
    words = dictionary(60)
    model = tiny_model(words)
    for source in random_sources(words, 10, 11):
        sample = sample_of([source], words)
        ours = BeamSearch([model], words, 5, lambda n: float(n), max_len_b=6, nbest=5).generate([model], sample)[0]
        theirs = SequenceGenerator([model], words, beam_size=5, max_len_a=1, max_len_b=5).generate([model], sample)[0]
        assert ours[0]["score"].item() >= theirs[0]["score"].item() - 1e-5
        scores = {tuple(h["tokens"].tolist()): h["score"].item() for h in ours}
        for hypothesis in theirs:
            tokens = tuple(hypothesis["tokens"].tolist())
            if tokens in scores:
                assert scores[tokens] == pytest.approx(hypothesis["score"].item(), abs=1e-5)
