"""Filters, the split, one's own files, and that a corpus appears whole or not at all."""

import json
import sys
from collections import Counter

import demo_corpus
import pytest
from demo_corpus import Pair, clean, letters, own_languages, own_parts, part_of, reason_to_drop, split, write_corpus
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    "source, target, reason",
    [
        ("Open the file.", "Die Datei oeffnen.", None),
        ("File", "Datei oeffnen", None),
        ("", "Datei", "empty"),
        ("Datei", "", "empty"),
        ("LibreOffice", "LibreOffice", "identical on both sides"),
        ("12:30", "12.30", "without letters"),
        ("a <b> c", "a b c", "markup"),
        ("x@@ y", "x y", "markup"),
        ("one\ufffd", "eins", "markup"),
        ("one\u200btwo", "eins zwei", "control characters"),
        ("a " * 101, "b " * 100, "longer than 100 words"),
        ("a " * 100, "b " * 100, None),
        # 10 and 30 characters, with ten of grace each: 40 is twice 20
        ("a" * 10, "b" * 30, None),
        ("a" * 10, "b" * 31, "one side more than 2 times as long as the other"),
    ],
)
def test_reasons(source, target, reason):
    assert reason_to_drop(source.strip(), target.strip()) == reason


def test_letters():
    assert letters("Öffnen Sie: A1, B2 (ß)!") == "öffnensieabß"


def test_clean_keeps_each_pair_once_and_counts_the_rest():
    pairs = [Pair("p", "One", "Eins"), Pair("q", "One", "Eins"), Pair("q", "One", "Ein"), Pair("q", "", "Nichts")]
    dropped = Counter()
    assert clean(pairs, dropped) == [pairs[0], pairs[2]]
    assert dropped == {"repeats an earlier pair": 1, "empty": 1}


def groups_of(part, count):
    found = (f"page {number}" for number in range(100_000) if part_of(f"page {number}") == part)
    return [next(found) for _ in range(count)]


def test_pages_are_held_out_in_the_stated_shares():
    shares = Counter(part_of(f"page {number}") for number in range(20_000))
    # 5 % and 2 % of 20 000; five standard deviations are about 154 and 99
    assert abs(shares["test"] - 1000) < 154
    assert abs(shares["valid"] - 400) < 99


def test_held_out_sentences_whose_letters_are_known_go():
    (train, *_), (valid, *_), (test, *_) = (groups_of(part, 1) for part in ("train", "valid", "test"))
    pairs = [
        Pair(train, "Press F1.", "F1 druecken."),
        Pair(test, "Press F 2!", "F 2 betaetigen."),  # source known but for the figure
        Pair(test, "Hit F3.", "F3 druecken."),  # target known but for the figure
        Pair(test, "Close it.", "Schliessen."),
        Pair(valid, "press f1", "Noch einmal."),
    ]
    dropped = Counter()
    assert split(pairs, dropped) == {"train": [pairs[0]], "valid": [], "test": [pairs[3]]}
    assert dropped == {"test sentence that occurs in training": 2, "valid sentence that occurs in training": 1}


@given(st.lists(st.builds(Pair, st.sampled_from("abcdefgh"), st.text(max_size=9), st.text(max_size=9))))
def test_every_pair_is_kept_or_counted(pairs):
    dropped = Counter()
    parts = split(clean(pairs, dropped), dropped)
    assert sum(map(len, parts.values())) + sum(dropped.values()) == len(pairs)
    for part, kept in parts.items():
        assert all(part_of(pair.group) == part for pair in kept)


def own_folder(tmp_path, **files):
    folder = tmp_path / "own"
    folder.mkdir()
    texts = {f"{part}.{language}": f"{part} {language}\n" for part in demo_corpus.PARTS for language in ("en", "fr")}
    for name, text in {**texts, **files}.items():
        if text is not None:
            (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


@pytest.mark.parametrize(
    "source, target, expected",
    [(None, None, ("en", "fr")), ("fr", None, ("fr", "en")), (None, "en", ("fr", "en")), ("de", "nl", ("de", "nl"))],
)
def test_languages_from_the_file_names(tmp_path, source, target, expected):
    assert own_languages(own_folder(tmp_path), source, target) == expected


def test_languages_that_are_not_plain(tmp_path):
    with pytest.raises(ValueError, match="suffixes: cs, en, fr"):
        own_languages(own_folder(tmp_path, **{"train.cs": "x\n"}), None, None)


def test_own_files_are_tidied_and_empty_pairs_counted(tmp_path):
    train = {"train.en": "\ufeff a  b\u2028c\r\n\nd\n" + "e" * 1001, "train.fr": "A\nB\n\x0c\nE\n"}
    dropped = Counter()
    parts = own_parts(own_folder(tmp_path, **train), "en", "fr", dropped)
    assert [pair[1:] for pair in parts["train"]] == [("a b c", "A")]
    assert dropped == {"train: empty": 2, "train: longer than 1000 characters": 1}


@pytest.mark.parametrize(
    "files, sentence",
    [
        ({"valid.fr": "a\nb\n"}, "valid.en has 1 lines and valid.fr has 2"),
        ({"test.fr": None}, "test.fr cannot be read: No such file"),
        ({"test.en": b"caf\xe9\n"}, "test.en is not UTF-8"),
        ({"test.en": "", "test.fr": ""}, "no sentence pairs are left for test"),
    ],
)
def test_bad_own_files_end_in_one_sentence_and_leave_nothing(tmp_path, monkeypatch, files, sentence):
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["demo_corpus.py", "--from", str(own_folder(tmp_path, **files)), "--out", str(out)])
    with pytest.raises(ValueError, match=sentence):
        demo_corpus.main()
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_own_corpus_end_to_end(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    folder = own_folder(tmp_path, **{"train.en": "one\n\n", "train.fr": "un\ndeux\n"})
    monkeypatch.setattr(sys, "argv", ["demo_corpus.py", "--from", str(folder), "--out", str(out)])
    demo_corpus.main()
    assert (out / "train.en").read_text() == "one\n"
    assert (out / "train.fr").read_text() == "un\n"
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["pairs"] == {"train": 1, "valid": 1, "test": 1}
    assert manifest["dropped"] == {"train: empty": 1}
    assert manifest["languages"] == {"source": "en", "target": "fr"}


def test_a_failed_write_keeps_the_corpus_that_was_there(tmp_path):
    old = {"train": [Pair("g", "a", "b")]}
    write_corpus(tmp_path / "corpus", old, "en", "de", {})
    with pytest.raises(UnicodeEncodeError):  # a lone surrogate, half of a character, cannot be written
        write_corpus(tmp_path / "corpus", {"train": [Pair("g", "new", "\ud800")]}, "en", "de", {})
    assert (tmp_path / "corpus" / "train.en").read_text() == "a\n"
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
