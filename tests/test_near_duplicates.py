"""The index finds exactly the sentences that comparing with every training sentence finds."""

import sys

import near_duplicates
import pytest
from hypothesis import given
from hypothesis import strategies as st
from near_duplicates import NearDuplicateIndex, overlap, words


def test_words():
    assert words("Press F1, then press OK; über-all.") == {"press", "f1", "then", "ok", "über", "all"}


def test_overlap_by_hand():
    # shared: b c; all: a b c d
    assert overlap(frozenset("abc"), frozenset("bcd")) == 0.5
    assert overlap(frozenset(), frozenset()) == 1


def test_exactly_at_the_threshold():
    index = NearDuplicateIndex(["a b c d e"])
    assert index.contains_near("a b c")  # 3 of 5
    assert not index.contains_near("a b c f")  # 3 of 6
    assert index.contains_near("E D C B A")


SENTENCE = st.lists(st.sampled_from("abcdefg"), max_size=8).map(" ".join)


@given(st.lists(SENTENCE, max_size=12), SENTENCE, st.sampled_from([0.3, 0.5, 0.6, 2 / 3, 0.8, 1.0]))
def test_index_equals_comparing_with_all(training, sentence, threshold):
    expected = any(overlap(words(sentence), words(other)) >= threshold for other in training)
    assert NearDuplicateIndex(training, threshold).contains_near(sentence) == expected


@pytest.mark.parametrize("threshold", [0, 1.1])
def test_threshold_out_of_range(threshold):
    with pytest.raises(ValueError, match="threshold"):
        NearDuplicateIndex([], threshold)


def test_command_writes_line_numbers(tmp_path, monkeypatch, capsys):
    (tmp_path / "train").write_text("open the file\n")
    (tmp_path / "test").write_text("open the file now\nclose all windows\nopen that file\n")
    arguments = [str(tmp_path / name) for name in ("train", "test")] + ["--out", str(tmp_path / "new")]
    monkeypatch.setattr(sys, "argv", ["near_duplicates.py", *arguments])
    near_duplicates.main()
    # 3 of 4 words shared; none; 2 of 4
    assert (tmp_path / "new").read_text() == "2\n3\n"
    assert "2 of 3 test lines" in capsys.readouterr().out
