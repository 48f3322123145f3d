"""One sentence stays one line, and its words the same words, for Python, fairseq and subword-nmt."""

import io
from collections import Counter

import pytest
from fairseq.file_chunker_utils import Chunker
from fairseq.tokenizer import tokenize_line
from hypothesis import example, given, settings
from hypothesis import strategies as st
from line_discipline import (
    AT_SIGNS, CONTROLLED, CONTROLS, MARKED, SEPARATED, SEPARATORS, WINDOWS, tidy,
)
from raw_text import Words

HOSTILE = st.text(
    st.one_of(
        st.sampled_from(SEPARATORS + CONTROLS + "\t\ufeff@ .'&<>|[]\u00a0\u200b\u202e\u0301"),
        st.characters(exclude_categories=["Cs"], exclude_characters="\n"),
    ),
    max_size=30,
)


@pytest.mark.parametrize(
    "line, expected, found",
    [
        ("A plain line\twith é and \u00a0.", "A plain line\twith é and \u00a0.", {}),
        ("one\r", "one", {WINDOWS: 1}),
        ("one\rtwo\r", "one two", {WINDOWS: 1, SEPARATED: 1}),
        ("a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i", "a b c d e f g h i", {SEPARATED: 1}),
        ("\ufeffone\ufeff", "one", {MARKED: 1}),
        ("o\x00n\x1be\x7f\x9f", "one", {CONTROLLED: 1}),
        ("a@@b @@@@", "a@ @b @ @ @ @", {AT_SIGNS: 1}),
        ("@\x00@", "@ @", {CONTROLLED: 1, AT_SIGNS: 1}),
    ],
)
def test_what_is_mended(line, expected, found):
    counts = Counter()
    assert tidy(line, counts) == expected
    assert counts == found


@settings(deadline=None)
@given(HOSTILE)
@example("@@\r@@")
def test_a_tidy_line_is_one_line_to_all_and_needs_no_second_tidying(line):
    line = tidy(line)
    assert len(line.splitlines()) == (1 if line else 0)
    assert list(io.StringIO(line + "\n", newline=None)) == [line + "\n"]
    assert "@@" not in line
    assert tidy(line, found := {}) == line and not found


@settings(deadline=None)
@given(st.lists(HOSTILE, max_size=8), st.booleans())
def test_fairseq_reads_the_lines_and_words_that_were_written(tmp_path_factory, lines, normalized):
    words = Words("en", normalized, escape=True)
    written = [words(line) for line in lines]
    path = tmp_path_factory.mktemp("lines") / "text"
    path.write_bytes("".join(" ".join(line) + "\n" for line in written).encode("utf-8"))
    with Chunker(str(path), 0, path.stat().st_size) as chunk:
        read = list(chunk) if written else []
    assert [tokenize_line(line) for line in read] == written
    for line, sentence in zip(read, written):
        assert line.strip("\r\n ").split(" ") == (sentence or [""])  # subword-nmt's idea of words
        assert not any("@@" in word for word in sentence)
        assert not set(sentence) & {"<s>", "</s>", "<pad>", "<unk>"}
