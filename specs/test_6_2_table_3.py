"""Section 6.2, Table 3: the variations, their sizes and their parameter counts."""

import dataclasses

from specs import expect, reference, rows
from specs.helpers import small_model
from specs.judge import spec

VOCABULARY = 37000


def _count(subject, sizes):
    return int(expect.number(subject.parameter_count(sizes), "a parameter count"))


def _counts(name):
    def check(subject):
        sizes = rows.sizes(name, VOCABULARY)
        allowed = [reference.parameter_count(sizes, attention_bias=bias) for bias in (False, True)]
        found = _count(subject, sizes)
        if not sizes.learned_positions:
            expect.true(found in allowed, f"{allowed[0]:,} trained parameters ({allowed[1]:,} with attention biases)", f"{found:,}")
            return
        # A learned table for each stack, of as many rows as the implementation likes.
        tables = [found - count for count in allowed]
        expect.true(
            any(extra > 0 and extra % (2 * sizes.d_model) == 0 for extra in tables),
            f"{allowed[0]:,} trained parameters and two tables of positions", f"{found:,}",
        )  # fmt: skip

    return check


for _name in rows.ROWS:
    _check = _counts(_name)
    _check.__name__ = _check.__qualname__ = f"test_parameters_of_{_name.replace('-', '_')}"
    globals()[_check.__name__] = spec(f"table3-{_name}-parameters")(_check)


def _named(name, **expected):
    """The implementation's own model of that name has the paper's sizes and recipe."""

    def check(subject):
        recipe = subject.recipe(name)
        sizes = dataclasses.replace(rows.sizes(name), vocabulary=recipe.sizes.vocabulary) if recipe.sizes else None
        expect.equal(recipe.sizes, sizes, f"the sizes of the model called {name}")
        for field, value in expected.items():
            expect.equal(getattr(recipe, field), value, f"{field} of the model called {name}")

    check.__name__ = check.__qualname__ = f"test_named_{name.replace('-', '_')}"
    globals()[check.__name__] = spec(f"table3-{name}-named" if name in rows.ROWS else f"{name}-named")(check)


for _name in rows.ROWS:
    _named(_name, **{"d-ls0": {"smoothing": 0.0}, "d-ls2": {"smoothing": 0.2}}.get(_name, {}))


@spec("3.2.2-base-heads")
def test_base_heads(subject):
    sizes = subject.recipe("base").sizes
    expect.equal((sizes.heads, sizes.d_k, sizes.d_v) if sizes else None, (8, 64, 64), "h, d_k, d_v of the base model")


@spec("3.2.2-big-heads")
def test_big_heads(subject):
    sizes = subject.recipe("big").sizes
    expect.equal((sizes.heads, sizes.d_k, sizes.d_v) if sizes else None, (16, 64, 64), "h, d_k, d_v of the big model")


@spec("3.3-base-widths")
def test_base_widths(subject):
    sizes = subject.recipe("base").sizes
    expect.equal((sizes.d_model, sizes.d_ff) if sizes else None, (512, 2048), "d_model and d_ff of the base model")


@spec("3.3-big-widths")
def test_big_widths(subject):
    sizes = subject.recipe("big").sizes
    expect.equal((sizes.d_model, sizes.d_ff) if sizes else None, (1024, 4096), "d_model and d_ff of the big model")


@spec("table3-each-parameter-once")
def test_each_parameter_once(subject):
    sizes = rows.SMALL
    model = small_model(subject)
    by_identity = sum({id(p): p.numel() for p in model.parameters() if p.requires_grad}.values())
    expect.equal(_count(subject, sizes), by_identity, "trained parameters of a small model, each counted once")


@spec("table3-a-rows-same-count")
def test_a_rows_same_count(subject):
    counts = {_count(subject, rows.sizes(name)) for name in ("base", "a-h1", "a-h4", "a-h16", "a-h32")}
    expect.true(len(counts) == 1, "the rows (A) to have as many parameters as the base model", sorted(counts))


# ---- the printed numbers --------------------------------------------------------------------------------------------
def _millions(name, vocabulary, bias):
    return reference.parameter_count(rows.sizes(name, vocabulary), bias) / 1e6


def _rounds(name, vocabulary, bias, printed):
    return round(_millions(name, vocabulary, bias)) == printed[name]["millions"]


@spec("table3-printed-counts-from-40960")
def test_printed_counts_from_40960(paper):
    printed = paper.reported["table_3"]
    for name in rows.PRINTED:
        if name != "big":
            expect.true(_rounds(name, 40960, True, printed), f"{name} with 40 960 tokens and biases to print {printed[name]['millions']}", _millions(name, 40960, True))


@spec("table3-printed-counts-without-biases")
def test_printed_counts_without_biases(paper):
    printed = paper.reported["table_3"]
    missed = [name for name in rows.PRINTED if name != "big" and not _rounds(name, 40960, False, printed)]
    expect.equal(missed, ["c-ff1024"], "rows that 40 960 tokens without biases do not print")


@spec("contradiction-65m-at-37000")
def test_65m_at_37000(paper):
    vocabulary = paper.reported["vocabulary"]["en_de"]
    expect.equal(reference.parameter_count(rows.sizes("base", vocabulary), False), 63_045_632, "the base model with 37 000 tokens")
    expect.equal(reference.parameter_count(rows.sizes("base", vocabulary), True), 63_082_496, "the same with biases")
    expect.true(not _rounds("base", vocabulary, True, paper.reported["table_3"]), "not the printed 65 million", "65")


@spec("contradiction-213m-big")
def test_213m_big(paper):
    printed = paper.reported["table_3"]["big"]["millions"]
    fitting = [v for v in range(30_000, 45_000) if round(_millions("big", v, True)) == printed]
    expect.equal((min(fitting), max(fitting)), (35_296, 36_272), "the vocabularies with which the big model prints 213")
    expect.near(_millions("big", 37_000, False), printed, 0.006, "the big model with 37 000 tokens, in millions")


@spec("contradiction-no-single-vocabulary")
def test_no_single_vocabulary(paper):
    printed = paper.reported["table_3"]
    for bias in (False, True):
        others = [name for name in rows.PRINTED if name != "big"]
        fitting = [v for v in range(39_000, 43_600, 1) if all(_rounds(name, v, bias, printed) for name in others)]
        expected = (40_932, 41_160) if bias else (41_004, 41_208)
        expect.equal((min(fitting, default=0), max(fitting, default=0)), expected, "the vocabularies that print every row but big")
        expect.true(not _rounds("big", fitting[0], bias, printed), "none of them to print 213 for big", "213")


@spec("slow-read-most-parameters-in-feed-forward")
def test_share_of_feed_forward(paper):
    base = rows.sizes("base")
    total, table = reference.parameter_count(base, False), base.vocabulary * base.d_model
    ffn = 2 * base.layers * (2 * base.d_model * base.d_ff + base.d_ff + base.d_model)
    expect.near(ffn / (total - table), 0.571, 0.002, "the feed-forward networks' share without the embeddings")
    expect.near(ffn / total, 0.400, 0.002, "their share of all parameters")
    ratio = paper.reported["sizes"]["base"]["d_ff"] / paper.reported["sizes"]["base"]["d_model"]
    expect.equal(ratio, 4.0, "d_ff over d_model")


@spec("table3-head-size-keeps-computation")
def test_head_size_keeps_computation(paper):
    widths = {name: rows.sizes(name) for name in ("base", "a-h1", "a-h4", "a-h16", "a-h32")}
    for name, sizes in widths.items():
        expect.equal(sizes.heads * sizes.d_k, paper.reported["sizes"]["base"]["d_model"], f"h d_k of {name}")


def _table(paper, field):
    return {name: entry[field] for name, entry in paper.reported["table_3"].items()}


@spec("table3-single-head-worse")
def test_single_head_worse(paper):
    bleu = _table(paper, "bleu")
    best = max(bleu[name] for name in ("base", "a-h4", "a-h16", "a-h32"))
    expect.near(best - bleu["a-h1"], 0.9, 1e-9, "BLEU that a single head loses to the best setting")


@spec("table3-too-many-heads-worse")
def test_too_many_heads_worse(paper):
    bleu = _table(paper, "bleu")
    expect.true(bleu["a-h32"] < bleu["a-h16"] == bleu["base"], "32 heads to be worse than 16 and 8", bleu)


@spec("table3-smaller-keys-hurt")
def test_smaller_keys_hurt(paper):
    bleu = _table(paper, "bleu")
    expect.true(bleu["b-dk16"] < bleu["b-dk32"] < bleu["base"], "smaller keys to be worse", bleu)


@spec("table3-bigger-is-better")
def test_bigger_is_better(paper):
    bleu, ppl = _table(paper, "bleu"), _table(paper, "ppl")
    for order in (("c-n2", "c-n4", "base"), ("c-d256", "base", "c-d1024"), ("c-ff1024", "base", "c-ff4096")):
        for small, large in zip(order, order[1:]):
            expect.true(bleu[small] < bleu[large] and ppl[small] > ppl[large], f"{large} to be better than {small}", order)


@spec("contradiction-n8-perplexity-and-bleu")
def test_n8(paper):
    bleu, ppl = _table(paper, "bleu"), _table(paper, "ppl")
    expect.true(ppl["c-n8"] < ppl["base"] and bleu["c-n8"] < bleu["base"], "eight layers: better perplexity, worse BLEU", (ppl, bleu))


@spec("table3-dropout-helps")
def test_dropout_helps(paper):
    bleu, ppl = _table(paper, "bleu"), _table(paper, "ppl")
    expect.true(bleu["d-drop0"] < bleu["base"] and ppl["d-drop0"] > ppl["base"], "no dropout to be worse", bleu)


@spec("5.4-smoothing-hurts-perplexity-helps-bleu")
def test_smoothing_hurts_perplexity(paper):
    bleu, ppl = _table(paper, "bleu"), _table(paper, "ppl")
    expect.true(ppl["d-ls0"] < ppl["base"] < ppl["d-ls2"], "more smoothing to raise perplexity", ppl)
    expect.true(bleu["d-ls0"] < bleu["base"], "smoothing to raise BLEU", bleu)


@spec("table3-learned-positions-nearly-identical")
def test_learned_positions(paper):
    bleu, ppl = _table(paper, "bleu"), _table(paper, "ppl")
    expect.near(bleu["base"] - bleu["e-learned"], 0.1, 1e-9, "BLEU that learned positions lose")
    expect.equal(ppl["base"], ppl["e-learned"], "perplexity with learned positions")


@spec("contradiction-rows-without-counts")
def test_rows_without_counts(paper):
    silent = [name for name, entry in paper.reported["table_3"].items() if "millions" not in entry]
    expect.equal(silent, [name for name in rows.ROWS if name[0] in "ade"], "rows that print no parameter count")
