"""Section 6.1 and Table 2: search, averaging, cost."""

import math

import torch

from specs import expect, reference
from specs.helpers import sharp_model, small_model, words
from specs.judge import spec


@spec("6.1-beam-4")
def test_beam(subject):
    expect.equal(subject.recipe("base").beam, 4, "the beam when the user says nothing")


@spec("6.1-alpha-0.6")
def test_alpha(subject):
    expect.equal(subject.recipe("base").alpha, 0.6, "the length penalty's alpha when the user says nothing")


@spec("6.1-length-limit-by-default")
def test_length_limit_by_default(subject):
    expect.equal(subject.recipe("base").extra_length, 50, "words that the output may be longer than the input by default")


@spec("6.1-length-penalty")
def test_length_penalty(subject):
    for length in (1, 5, 10, 20, 40):
        expected = -7.0 / reference.length_penalty(length, 0.6)
        expect.near(subject.score(-7.0, length, 0.6), expected, 1e-6, f"the score of log P = -7 with length {length}, alpha 0.6")


@spec("6.1-length-penalty-decides")
def test_length_penalty_decides(subject):
    a, b = subject.score(-5.0, 10, 0.6), subject.score(-7.5, 20, 0.6)
    a, b = expect.number(a, "a score"), expect.number(b, "a score")
    expect.true(a > b, "length 10 at log P -5 to beat length 20 at log P -7.5", f"{a:.4f} against {b:.4f}")


@spec("6.1-alpha-0-is-log-probability")
def test_alpha_0(subject):
    for length in (1, 7, 30):
        expect.near(subject.score(-4.2, length, 0.0), -4.2, 1e-6, f"the score with alpha 0 and length {length}")


@spec("6.1-input-length-plus-50")
def test_length_limit(subject):
    for length in (1, 10, 40):
        expect.equal(subject.length_limit(length), length + 50, f"the most words for a source of {length} words")


def hypotheses(subject, beam=4, alpha=0.6, count=1):
    """A small model, a source, and what the search finds for it."""
    source = words(subject, 1, 5)
    model = sharp_model(subject, source)
    found = subject.translate(model, source, beam=beam, alpha=alpha)
    expect.true(isinstance(found, list) and len(found) >= count, f"at least {count} finished hypotheses", expect.short(found))
    return model, source, found


def log_probability(subject, model, source, tokens):
    """log P of an output, by one parallel pass."""
    whole = [subject.start, *tokens, subject.end]
    logits = subject.logits(model, source, torch.tensor([whole[:-1]]))
    log_p = torch.log_softmax(logits.double()[0], dim=-1)
    return sum(log_p[i, token].item() for i, token in enumerate(whole[1:]))


@spec("6.1-search-scores-what-it-finds")
def test_search_scores(subject):
    # What the search says of a hypothesis agrees with one parallel pass over it, whatever penalty it uses.
    model, source, found = hypotheses(subject)
    for tokens, score in found:
        log_p = log_probability(subject, model, source, tokens)
        expected = subject.score(log_p, len(tokens) + 1, 0.6)
        expect.near(score, expect.number(expected, "a score"), 1e-4, "the score of a finished hypothesis (end symbol counted)")


@spec("6.1-search-returns-the-best-first")
def test_best_first(subject):
    _, _, found = hypotheses(subject)
    scores = [expect.number(score, "a score") for _, score in found]
    expect.true(scores == sorted(scores, reverse=True), "hypotheses sorted by score", scores)


@spec("6.1-search-is-a-beam")
def test_search_is_a_beam(subject):
    _, _, found = hypotheses(subject, beam=4)
    expect.true(len(found) <= 4, "at most as many hypotheses as the beam", len(found))
    expect.equal(len({tuple(tokens) for tokens, _ in found}), len(found), "hypotheses that differ from one another")


@spec("6.1-outputs-keep-the-limit")
def test_outputs_keep_the_limit(subject):
    model = small_model(subject)
    with torch.no_grad():
        for matrix in subject.embeddings(model):
            matrix[subject.end] = 0.0  # its logit is 0, that of some word always more: the model does not end by itself
    found = subject.translate(model, words(subject, 1, 3), beam=1, alpha=0.6)
    expect.true(bool(found), "an output, ended where the limit is reached", found)
    for tokens, _ in found:
        expect.true(len(tokens) <= 53, "outputs of at most 3 + 50 words", len(tokens))


@spec("6.1-averaging-is-the-mean")
def test_averaging(subject):
    states = [{"a": torch.randn(3, 4), "b": torch.randn(2)} for _ in range(5)]
    averaged = subject.average(states)
    for name in ("a", "b"):
        expected = torch.stack([state[name].double() for state in states]).mean(dim=0)
        expect.close(averaged[name], expected, 1e-6, f"the average of {name} over five checkpoints")


@spec("6.1-averaging-one-changes-nothing")
def test_averaging_one(subject):
    state = {"a": torch.randn(3, 4)}
    expect.close(subject.average([state])["a"], state["a"], 0.0, "the average of one checkpoint")


@spec("6.1-averaging-keeps-tying")
def test_averaging_keeps_tying(subject):
    model = small_model(subject)
    states = []
    for _ in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        states.append({name: value.clone() for name, value in model.state_dict().items()})
    averaged = subject.average(states)
    # Names of one tensor in the model are names of equal tensors in the average, and the average can be loaded.
    first = {}
    for name, value in model.state_dict().items():
        other = first.setdefault(value.data_ptr(), name)
        expect.close(averaged[name], averaged[other], 0.0, f"the averaged {name} (which is {other})")
    model.load_state_dict(averaged)
    matrix, *others = subject.embeddings(model)
    for other in others:
        expect.close(other, matrix, 0.0, "each use of the shared matrix in the averaged model")


@spec("6.1-averaging-five-and-twenty")
def test_averaged_counts(paper):
    hardware = paper.reported["hardware"]
    expect.equal(hardware["averaged"], {"base": 5, "big": 20}, "checkpoints averaged")
    interval = hardware["checkpoint_minutes"] * 60 / hardware["base"]["seconds_per_step"]
    expect.near(interval, 1500, 1e-9, "updates of the base model in ten minutes")
    expect.near(hardware["checkpoint_minutes"] * 60 / hardware["big"]["seconds_per_step"], 600, 1e-9, "updates of the big model")


# ---- Table 2 --------------------------------------------------------------------------------------------------------
def _flops(paper, seconds):
    hardware = paper.reported["hardware"]
    return seconds * hardware["gpus"] * hardware["teraflops"]["P100"] * 1e12


def _two_digits(x):
    return float(f"{x:.1e}")


@spec("table2-base-flops")
def test_base_flops(paper):
    flops = _flops(paper, paper.reported["hardware"]["base"]["hours"] * 3600)
    expect.equal(_two_digits(flops), paper.reported["bleu"]["base"]["flops"], "12 hours of 8 P100, in two digits")


@spec("contradiction-base-flops-from-steps")
def test_base_flops_from_steps(paper):
    base = paper.reported["hardware"]["base"]
    flops = _flops(paper, base["steps"] * base["seconds_per_step"])
    expect.equal(_two_digits(flops), 3.0e18, "100 000 steps of 0.4 s on 8 P100, in two digits")
    expect.true(_two_digits(flops) != paper.reported["bleu"]["base"]["flops"], "not the printed figure", flops)


@spec("table2-big-flops")
def test_big_flops(paper):
    hardware = paper.reported["hardware"]["big"]
    printed = paper.reported["bleu"]["big"]["flops"]
    expect.equal(_two_digits(_flops(paper, hardware["days"] * 86400)), printed, "3.5 days of 8 P100, in two digits")
    expect.equal(_two_digits(_flops(paper, hardware["steps"] * hardware["seconds_per_step"])), printed, "the same from steps")


@spec("table2-capacity-not-work")
def test_capacity_not_work(paper):
    # Two operations forward and four backward for each parameter and token: what training needs at least.
    tokens = paper.reported["sizes"]["training_tokens_per_side"] * paper.reported["hardware"]["base"]["steps"]
    needed = 6 * 63_045_632 * tokens
    share = needed / paper.reported["bleu"]["base"]["flops"]
    expect.true(0.2 < share < 0.4, "the operations that training needs to be a fraction of the printed capacity", share)


@spec("table2-two-bleu-better")
def test_two_bleu_better(paper):
    bleu = paper.reported["bleu"]
    best = max(entry["en_de"] for name, entry in bleu.items() if "en_de" in entry and name not in ("base", "big"))
    expect.true(bleu["big"]["en_de"] - best > 2.0, "more than 2 BLEU over the best before, ensembles included", best)


@spec("table2-base-beats-all-before")
def test_base_beats_all(paper):
    bleu = paper.reported["bleu"]
    for name, entry in bleu.items():
        if name in ("base", "big"):
            continue
        if "en_de" in entry:
            expect.true(bleu["base"]["en_de"] > entry["en_de"], f"the base model to beat {name} on English-German", entry)
        if "en_de_flops" in entry:
            expect.true(bleu["base"]["flops"] < entry["en_de_flops"], f"the base model to cost less than {name}", entry)


@spec("table2-quarter-of-the-cost")
def test_quarter_of_the_cost(paper):
    bleu = paper.reported["bleu"]
    singles = [e for n, e in bleu.items() if "en_fr_flops" in e and not n.endswith("ensemble")]
    best = max(singles, key=lambda entry: entry["en_fr"])
    expect.true(bleu["big"]["flops"] < best["en_fr_flops"] / 4, "less than a quarter of the best single model's cost", best)
    expect.true(bleu["big"]["en_fr"] > best["en_fr"], "a better BLEU than the best single model", best)


@spec("contradiction-41.8-and-41.0")
def test_two_english_french_scores(paper):
    bleu = paper.reported["bleu"]
    best = max(entry["en_fr"] for name, entry in bleu.items() if "en_fr" in entry and not name.startswith(("base", "big")))
    expect.equal((bleu["big"]["en_fr"], bleu["big_in_text"]["en_fr"]), (41.8, 41.0), "the two printed English-French scores")
    expect.true(bleu["big"]["en_fr"] > best > bleu["big_in_text"]["en_fr"], "only 41.8 to beat the ensembles", best)
