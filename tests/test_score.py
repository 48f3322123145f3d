"""Both kinds of BLEU, by hand."""

import math
import sys
from collections import Counter

import pytest
import score


@pytest.mark.parametrize(
    "text, split",
    [
        ("a-b", "a ##AT##-##AT## b"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # matches do not overlap
        ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
        ("a - b", "a - b"),
        ("-a b-", "-a b-"),
        ("x--y", "x ##AT##-##AT## -y"),
        ("", ""),
    ],
)
def test_compounds_are_split_as_the_authors_script_does(text, split):
    assert score.split_compounds(text) == split


def multi_bleu(outputs, references):
    """multi-bleu.perl: clipped n-gram counts over the corpus, brevity penalty, geometric mean; 0 if one count is 0."""
    correct, total, output_length, reference_length = [0] * 5, [0] * 5, 0, 0
    for output, reference in zip(outputs, references):
        output, reference = output.split(), reference.split()
        output_length += len(output)
        reference_length += len(reference)
        for n in range(1, 5):
            found = Counter(tuple(output[i : i + n]) for i in range(len(output) - n + 1))
            known = Counter(tuple(reference[i : i + n]) for i in range(len(reference) - n + 1))
            correct[n] += sum(min(count, known[gram]) for gram, count in found.items())
            total[n] += sum(found.values())
    if 0 in correct[1:]:
        return 0.0
    brevity = min(1.0, math.exp(1 - reference_length / output_length))
    return 100 * brevity * math.exp(sum(math.log(correct[n] / total[n]) for n in range(1, 5)) / 4)


def test_one_sentence_by_hand():
    # output: the cat sat on the mat (6 tokens); reference: the cat sat on a mat today (7 tokens)
    # 1-grams 5/6 ("the" counts once), 2-grams 3/5, 3-grams 2/4, 4-grams 1/3; brevity e^(1 - 7/6)
    expected = 100 * math.exp(1 - 7 / 6) * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    outputs, references = ["the cat sat on the mat"], ["the cat sat on a mat today"]
    assert score.tokenised_bleu(outputs, references) == pytest.approx(expected, abs=1e-9)
    assert multi_bleu(outputs, references) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    "outputs, references",
    [
        (["a b c d e", "f g h"], ["a b c d x", "f g h i j"]),
        (["a b c d e f g"], ["a b c d"]),  # longer than the reference: no brevity penalty
        (["a b"], ["a b"]),  # no 4-gram at all
        (["a x c y e z"], ["a b c d e f"]),  # no 2-gram in common
        (["", "a b c d"], ["x y", "a b c d"]),
        (["w , w . w ' w", "q ##AT##-##AT## r s t"], ["w , w . w w", "q ##AT##-##AT## r s t u"]),
        (["a a a a a a"], ["a a b a a"]),
    ],
)
def test_counting_is_that_of_multi_bleu(outputs, references):
    assert score.tokenised_bleu(outputs, references) == pytest.approx(multi_bleu(outputs, references), abs=1e-9)


def test_one_hyphen_moves_the_papers_measure_and_not_sacrebleu():
    """A compound counts as one token without splitting and as three with it."""
    outputs, references = ["Das ist ein Test-Satz hier ."], ["Das ist ein Test-Fall hier ."]
    whole = multi_bleu(outputs, references)
    split = multi_bleu(["Das ist ein Test ##AT##-##AT## Satz hier ."], ["Das ist ein Test ##AT##-##AT## Fall hier ."])
    assert whole == 0.0 < split  # without splitting no 4-gram survives
    assert score.paper_bleu(["Das ist ein Test-Satz hier."], ["Das ist ein Test-Fall hier."], "de") == pytest.approx(split)


def scored(monkeypatch, capsys, tmp_path, outputs, references, *arguments):
    for name, lines in (("out", outputs), ("ref", references)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    monkeypatch.setattr(
        sys, "argv", ["score.py", str(tmp_path / "out"), "--reference", str(tmp_path / "ref"), "--lang", "de", *arguments]
    )
    score.main()
    return capsys.readouterr()


SENTENCES = [f"Dies ist der Satz Nummer {n}, und er ist nicht lang." for n in range(30)]


def test_three_named_numbers_and_signatures(monkeypatch, capsys, tmp_path):
    outputs = [line.replace("nicht", "gar nicht") for line in SENTENCES]
    shown = scored(monkeypatch, capsys, tmp_path, outputs, SENTENCES, "--samples", "100")
    assert shown.err == ""
    assert "nrefs:1|bs:100|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp" in shown.out
    for name in ("sacreBLEU", "chrF", "paper BLEU", "bootstrap", "compounds split"):
        assert name in shown.out
    from sacrebleu.metrics import BLEU

    assert f"{BLEU().corpus_score(outputs, [SENTENCES]).score:.2f}" in shown.out


def test_equal_texts_score_100(monkeypatch, capsys, tmp_path):
    assert scored(monkeypatch, capsys, tmp_path, SENTENCES, SENTENCES, "--samples", "0").out.count("100.00") == 3


@pytest.mark.parametrize(
    "change, warning",
    [
        (lambda line: line.replace("Nummer", "Num@@ mer"), "BPE marks"),
        (lambda line: line + " hier@@", "BPE marks"),
        (lambda line: line.replace(",", " ,").replace(".", " ."), "look tokenised"),
        (lambda line: line.replace("er", "&quot;er&quot;"), "entities"),
    ],
)
def test_warns_of_text_that_is_not_ready(monkeypatch, capsys, tmp_path, change, warning):
    outputs = [change(line) for line in SENTENCES]
    assert warning in scored(monkeypatch, capsys, tmp_path, outputs, SENTENCES, "--samples", "0").err
    assert warning in scored(monkeypatch, capsys, tmp_path, SENTENCES, outputs, "--samples", "0").err


def test_bad_input_is_named(monkeypatch, capsys, tmp_path):
    with pytest.raises(ValueError, match="30 lines and .* has 29"):
        scored(monkeypatch, capsys, tmp_path, SENTENCES, SENTENCES[1:])
    with pytest.raises(ValueError, match="is empty"):
        scored(monkeypatch, capsys, tmp_path, [], [])
    with pytest.raises(ValueError, match="--samples"):
        scored(monkeypatch, capsys, tmp_path, SENTENCES, SENTENCES, "--samples", "-1")
    (tmp_path / "ref").unlink()
    monkeypatch.setattr(sys, "argv", ["score.py", str(tmp_path / "out"), "--reference", str(tmp_path / "ref"), "--lang", "de"])
    with pytest.raises(ValueError, match="cannot be read"):
        score.main()
