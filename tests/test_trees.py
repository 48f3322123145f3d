"""Trees as text, and labelled bracketing against an example worked out by hand."""

import random

import commands
import pytest
import toy_trees
import trees
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import Leaf, Tree

from .helpers import PLUGIN, REPOSITORY, run

GOLD = """(S (NP (DT the) (NN dog)) (VP (VBD saw) (NP (DT a) (NN man)) (PP (IN with) (NP (DT a) (NN hat)))) (. .))"""
# The hat goes with the man instead.
PARSED = """(S (NP (XX the) (XX dog)) (VP (XX saw) (NP (NP (XX a) (XX man)) (PP (XX with) (NP (XX a) (XX hat))))) (XX .))"""


def one(text):
    return trees.normalise(trees.read(text)[0])


def test_brackets_of_the_gold_tree():
    tree = one(GOLD)
    counted = [True] * 8 + [False]
    assert trees.brackets(tree, counted) == {
        ("S", 0, 8): 1, ("NP", 0, 2): 1, ("VP", 2, 8): 1, ("NP", 3, 5): 1, ("PP", 5, 8): 1, ("NP", 6, 8): 1,
    }


def test_score_of_the_worked_example():
    result = trees.score([one(GOLD)], [one(PARSED)])
    # All six gold brackets are found; the parse adds (NP, 3, 8).
    assert (result.matched, result.gold, result.parsed) == (6, 6, 7)
    assert result.precision == pytest.approx(6 / 7)
    assert result.recall == 1
    assert result.f1 == pytest.approx(12 / 13)
    assert (result.exact, result.sentences) == (0, 1)


def test_score_sums_brackets_over_the_corpus():
    result = trees.score([one(GOLD), one("(S (NP (NN dogs)) (VP (VBP bark)))")],
                         [one(PARSED), one("(S (VP (XX dogs)) (VP (XX bark)))")])
    # Second tree: S and VP found, VP (0, 1) in place of NP (0, 1).
    assert (result.matched, result.gold, result.parsed) == (6 + 2, 6 + 3, 7 + 3)
    assert result.f1 == pytest.approx(2 * 8 / 19)


def test_punctuation_does_not_move_a_bracket():
    gold = one("(S (NP (NN dogs)) (, ,) (VP (VBP bark)) (. .))")
    inside = one("(S (NP (XX dogs) (XX ,)) (VP (XX bark) (XX .)))")
    assert trees.score([gold], [inside]).f1 == 1


def test_a_constituent_of_punctuation_alone_does_not_count():
    gold = one("(S (NP (NN dogs)) (X (, ,)))")
    assert trees.score([gold], [gold]).gold == 2


def test_equal_brackets_match_once_each():
    gold = one("(S (NP (NN dogs)))")
    twice = one("(S (NP (NP (XX dogs))))")
    result = trees.score([gold], [twice])
    assert (result.matched, result.gold, result.parsed) == (2, 2, 3)


def test_root_labels_do_not_count_and_prt_is_advp():
    assert trees.score([one("(TOP (S (RP up)) (S (RP up)))")], [one("(TOP (S (XX up)) (S (XX up)))")]).gold == 2
    assert trees.score([one("(S (PRT (RP up)))")], [one("(S (ADVP (XX up)))")]).f1 == 1


def test_other_words_are_refused():
    with pytest.raises(ValueError, match="words of gold tree 1"):
        trees.score([one("(S (NN dogs))")], [one("(S (NN cats))")])
    with pytest.raises(ValueError, match="2 gold trees but 1"):
        trees.score([one(GOLD)] * 2, [one(GOLD)])


def test_normalising_a_treebank_s_tree():
    tree = one("""( (S (NP-SBJ-1 (NNP Ada)) (VP (VBZ wants) (S (NP-SBJ (-NONE- *-1)) (VP (TO to) (VP (VB sing)))))
                   (. .)) )""")
    assert str(tree) == "(S (NP (NNP Ada)) (VP (VBZ wants) (S (VP (TO to) (VP (VB sing))))) (. .))"
    assert str(one("(NP=2 (-LRB- -LRB-) (NN x))")) == "(NP (-LRB- -LRB-) (NN x))"
    assert trees.normalise(trees.read("(S (NP (-NONE- *)))")[0]) is None


def test_reading_many_trees_over_lines():
    found = trees.read("(S (A a)\n   (B b))\n\n(S\n(C c))")
    assert [str(tree) for tree in found] == ["(S (A a) (B b))", "(S (C c))"]


@pytest.mark.parametrize("text, says", [
    ("(S (A a)", "1 brackets are not closed"),
    ("(S (A a)))", "file, line 1: ) stands outside"),
    ("(S\n(A a) b)", "file, line 2: a bracket holds words"),
    ("(S (A))", "line 1: a bracket holds"),
    ("(A a)", "is a word, not a tree"),
    ("word", "word stands outside"),
])
def test_what_is_no_tree_is_named_with_its_line(text, says):
    with pytest.raises(ValueError) as caught:
        trees.read(text, "file")
    assert says in str(caught.value)


def test_linearised():
    assert " ".join(trees.linearise(one("(S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .))"))) == (
        "(S (NP XX XX )NP (VP XX )VP XX )S"
    )


@pytest.mark.parametrize("text, tree, repaired", [
    ("(S (NP XX )NP XX )S", "(S (NP (T a)) (T b))", False),
    ("(S (NP XX )NP XX", "(S (NP (T a)) (T b))", True),  # never closed
    ("(S (NP XX XX )S", "(S (NP (T a) (T b)))", True),  # closed by an outer bracket
    ("(S (NP XX )VP XX )NP )S", "(S (NP (T a) (T b)))", True),  # a closing bracket of nothing
    ("(S XX )S", "(S (T a) (T b))", True),  # a word short
    ("(S XX XX XX )S", "(S (T a) (T b))", True),  # a word too many
    ("(S (NP )NP XX XX )S", "(S (T a) (T b))", True),  # nothing inside
    ("(S XX )S (S XX )S", "(TOP (S (T a)) (S (T b)))", True),  # two roots
    ("(S XX dog XX )S", "(S (T a) (T b))", True),  # no token of trees
    ("", "(TOP (T a) (T b))", True),
])
def test_every_repair(text, tree, repaired):
    found, changed = trees.restore(text.split(), [Leaf("T", "a"), Leaf("T", "b")])
    assert (str(found), changed) == (tree, repaired)


@given(st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_restoring_undoes_linearising(seed):
    tree = toy_trees.Grammar(random.Random(seed)).sentence()
    found, repaired = trees.restore(trees.linearise(tree), tree.leaves())
    assert found == tree and not repaired


@given(st.lists(st.sampled_from(["XX", "(S", ")S", "(NP", ")NP", "dog", "(", ")"]), max_size=20), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_whatever_the_output_the_words_stay(tokens, count):
    leaves = [Leaf("T", str(number)) for number in range(count)]
    tree, _ = trees.restore(tokens, leaves)
    assert isinstance(tree, Tree) and tree.leaves() == leaves
    again, repaired = trees.restore(trees.linearise(tree), leaves)
    assert again == tree and not repaired


def script(name, *arguments):
    return run("python", REPOSITORY / "scripts" / name, *arguments, timeout=1800)


def test_the_same_seed_writes_the_same_treebank(tmp_path):
    for folder in ("one", "two"):
        toy_trees.write(tmp_path / folder, 20, 5, seed=3)
    for split in ("train", "valid", "test"):
        text = (tmp_path / "one" / f"{split}.mrg").read_text()
        assert text == (tmp_path / "two" / f"{split}.mrg").read_text()
        assert len(trees.read(text)) == (20 if split == "train" else 5)


def test_scoring_two_files(tmp_path):
    (tmp_path / "gold").write_text(GOLD)
    (tmp_path / "parsed").write_text(PARSED)
    result = script("parse_trees.py", "score", tmp_path / "gold", tmp_path / "parsed")
    assert result.stdout.splitlines() == [
        "labelled brackets: 6 matched, 6 gold, 7 parsed",
        "precision 85.71  recall 100.00  F1 92.31  exact 0.00",
    ]


def test_a_broken_treebank_is_one_sentence(tmp_path):
    (tmp_path / "gold").write_text("(S (A a)")
    result = script("parse_trees.py", "score", tmp_path / "gold", tmp_path / "gold")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "1 brackets are not closed" in result.stderr


@pytest.mark.slow
def test_a_small_parser_from_trees_to_f1(tmp_path):
    """prepare, fairseq-train, parse: the whole of Section 6.3 at a small size."""
    banks = tmp_path / "banks"
    assert script("toy_trees.py", banks, "--train", 3000, "--valid", 40).returncode == 0
    folder = tmp_path / "data"
    result = script("parse_trees.py", "prepare", folder, *(
        word for split in ("train", "valid", "test") for word in (f"--{split}", banks / f"{split}.mrg")))
    assert result.returncode == 0, result.stderr
    commands.run("fairseq-train", [
        folder / "bin", "--user-dir", PLUGIN, "--task", "vaswani_translation",
        "--arch", "vaswani2017_parsing", "--encoder-layers", 2, "--decoder-layers", 2, "--encoder-embed-dim", 64,
        "--encoder-ffn-embed-dim", 128, "--max-tokens", 800, "--warmup-updates", 100, "--lr-factor", 0.3,
        "--max-update", 1500, "--save-dir", tmp_path / "checkpoints", "--no-epoch-checkpoints",
        "--save-interval-updates", 0, "--validate-interval", 100, "--cpu",
    ], tmp_path / "train.log", environment={"OMP_NUM_THREADS": "1"})
    result = script("parse_trees.py", "parse", folder, "--path", tmp_path / "checkpoints" / "checkpoint_last.pt")
    assert result.returncode == 0, result.stderr
    gold, parsed = ((folder / f"test.{suffix}").read_text() for suffix in ("gold", "parsed"))
    assert len(trees.read(parsed)) == 40
    assert trees.score(trees.read(gold), trees.read(parsed)).f1 > 0.6
