"""The merges are those of subword-nmt."""

import io
from collections import Counter
from random import Random

import learn_subwords
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_subwords import characters, learn
from subword_nmt import learn_bpe

from .helpers import succeed
from .saved_model import TEXT

learn_bpe.tqdm = lambda iterable: iterable
# Few letters, so that pairs overlap, repeat and tie; and characters that regular expressions and files take to heart.
WORDS = st.dictionaries(st.text("aab\\.+é</w>", min_size=1, max_size=12), st.integers(1, 40), max_size=30)


def of_subword_nmt(words, merges, min_frequency=2):
    out = io.StringIO()
    learn_bpe.learn_bpe([f"{word} {count}" for word, count in words.items()], out, merges, min_frequency, is_dict=True)
    return out.getvalue().splitlines()


@settings(deadline=None)  # a busy machine is no fault
@given(WORDS, st.integers(0, 60))
def test_any_words(words, merges):
    if all(len(word) == 1 for word in words):
        assert learn(words, merges, progress=False) == ["#version: 0.2"]  # where subword-nmt fails
    else:
        assert learn(words, merges, progress=False) == of_subword_nmt(words, merges)


@pytest.mark.parametrize("reach", [0.3, 0.9, 1.0])
def test_many_words_and_all_that_was_set_aside(monkeypatch, reach):
    random = Random(int(reach * 10))
    words = {"".join(random.choices("abcdefgh", k=random.randint(2, 9))): random.randint(1, 300) for _ in range(300)}
    monkeypatch.setattr(learn_subwords, "REACH", reach)
    assert learn(words, 700, progress=False) == of_subword_nmt(words, 700)


def test_characters_are_counted_as_by_the_option_total_symbols():
    words = {"ab": 1, "ba": 1, "c": 1}
    assert characters(words) == 2 + 3  # a and b within; b, a and c at the end


def test_the_command(tmp_path):
    text = [line.split() for line in TEXT * 3]
    (tmp_path / "text").write_text("".join(" ".join(line) + "\n" for line in text))
    succeed("subword-nmt", "learn-joint-bpe-and-vocab", "--symbols", 50, "--input", tmp_path / "text", tmp_path / "text",
            "--output", tmp_path / "codes", "--write-vocabulary", tmp_path / "v1", tmp_path / "v2")
    words = Counter(word for line in text for word in line)
    words.update(words)
    assert learn(words, 50, progress=False) == (tmp_path / "codes").read_text("utf-8").splitlines()


@pytest.mark.parametrize("words", [{}, {"a": 5}])
def test_nothing_to_merge(words):
    assert learn(words, 10, progress=False) == ["#version: 0.2"]
