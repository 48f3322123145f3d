"""Raw text to a data directory: nothing shifted, lost or invented, whatever the text and whenever it is stopped."""

import hashlib
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import prepare
import pytest
from common import run_as_script
from fairseq import options
from fairseq.data import Dictionary, indexed_dataset
from fairseq_cli import preprocess as fairseq_preprocess
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prepare import PARTS
from raw_text import SETTINGS, TextPipeline, join_subwords, read_settings
from sentence_pairs import PairTokenizer, TextSettings

from .helpers import REPOSITORY, succeed

WORDS = ["the", "house", "is", "small", "green", "Haus", "klein", "grün", "das", "ist", "z.B.", "it's", "5,3", "%", "(see", "p.)"]


def sentences(generator, count):
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, 12))).capitalize() + "." for _ in range(count)]


def write_raw(folder, seed=1, sizes=(400, 20, 10)):
    """Corpora train, valid and test in en and de; returns the arguments that prepare them."""
    generator = random.Random(seed)
    for part, size in zip(PARTS, sizes):
        for language in ("en", "de"):
            (folder / f"{part}.{language}").write_text("".join(line + "\n" for line in sentences(generator, size)), "utf-8")
    return ["--source", "en", "--target", "de", *[a for part in PARTS for a in (f"--{part}", folder / part)], "--merges", 60]


def run(*arguments):
    """prepare.py in this process."""
    before, sys.argv = sys.argv, ["prepare.py", *map(str, arguments)]
    try:
        prepare.main()
    finally:
        sys.argv = before


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read_binary(folder, name, language):
    """The sentences of a data directory, as fairseq reads them, as strings of subwords."""
    dictionary = Dictionary.load(str(folder / f"dict.{language}.txt"))
    data = indexed_dataset.make_dataset(str(folder / f"{name}.en-de.{language}"), "mmap", dictionary=dictionary)
    return [dictionary.string(data[n]) for n in range(len(data))]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """`(arguments, data directory)` of a run with one worker, its steps kept."""
    folder = tmp_path_factory.mktemp("prepared")
    arguments = write_raw(folder)
    run(*arguments, "--out", folder / "data", "--workers", 1, "--keep-steps")
    return arguments, folder / "data"


def test_any_number_of_workers_gives_the_same(prepared, tmp_path, monkeypatch):
    arguments, data = prepared
    monkeypatch.setattr(prepare, "PAIRS_AT_ONCE", 7)  # other blocks, in other processes
    monkeypatch.setattr("binarise.LINES", 11)
    run(*arguments, "--out", tmp_path / "data", "--workers", 3)
    assert files(tmp_path / "data") == files(data)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("threshold, workers", [(0, 1), (30, 3)])
def test_the_data_is_that_of_fairseq_preprocess(prepared, tmp_path, threshold, workers):
    """Byte for byte, from the same subwords."""
    arguments, data = prepared
    text = data.with_name("data.part") / "subwords"
    if threshold:
        data = tmp_path / "data"
        run(*arguments, "--out", data, "--workers", 1, "--threshold", threshold)
        manifest = json.loads((data / SETTINGS).read_text())
        assert sum(manifest["dictionary"]["unknown subwords"].values()) > 0
    fairseq_preprocess.main(options.get_preprocessing_parser().parse_args(list(map(str, [
        "-s", "en", "-t", "de", "--joined-dictionary", "--trainpref", text / "train", "--validpref", text / "valid",
        "--testpref", text / "test", "--destdir", tmp_path / "theirs", "--thresholdsrc", threshold, "--workers", workers,
    ]))))
    ours, theirs = files(data), files(tmp_path / "theirs")
    del theirs["preprocess.log"]
    assert len(theirs) == 14
    assert theirs == {name: ours[name] for name in theirs}
    assert ours.keys() - theirs.keys() == {"codes", SETTINGS}


@pytest.mark.slow
def test_the_subwords_are_those_of_the_commands(tmp_path):
    """sacremoses, subword-nmt and fairseq-preprocess on the same text, as a shell pipeline runs them."""
    arguments = write_raw(tmp_path)
    run(*arguments, "--out", tmp_path / "data", "--max-words", 0, "--max-ratio", 0, "--keep-repeats", "--workers", 2)
    text = {}
    for language, commands in (("en", ["normalize", "tokenize"]), ("de", ["tokenize"])):
        for part in PARTS:
            raw = (tmp_path / f"{part}.{language}").read_text("utf-8")
            text[part, language] = tmp_path / f"{part}.tokenised.{language}"
            text[part, language].write_text(succeed("sacremoses", "-q", "-l", language, *commands, stdin=raw), "utf-8")
    succeed("subword-nmt", "learn-joint-bpe-and-vocab", "--symbols", 60, "--input", text["train", "en"], text["train", "de"],
            "--output", tmp_path / "codes", "--write-vocabulary", tmp_path / "v1", tmp_path / "v2")
    assert (tmp_path / "codes").read_bytes() == (tmp_path / "data" / "codes").read_bytes()
    for (part, language), path in text.items():
        subwords = succeed("subword-nmt", "apply-bpe", "--codes", tmp_path / "codes", "--input", path)
        (tmp_path / f"{part}.subwords.{language}").write_text(subwords, "utf-8")
    succeed("fairseq-preprocess", "-s", "en", "-t", "de", "--joined-dictionary", *[
        argument for part in PARTS for argument in (f"--{part}pref", tmp_path / f"{part}.subwords")], "--destdir", tmp_path / "theirs")
    ours, theirs = files(tmp_path / "data"), files(tmp_path / "theirs")
    del theirs["preprocess.log"]
    assert theirs == {name: ours[name] for name in theirs}


def test_the_manifest(prepared):
    _, data = prepared
    manifest = json.loads((data / SETTINGS).read_text("utf-8"))
    train = manifest["pairs"]["train"]
    assert train["read"] == 400 and train["kept"] == 400 - sum(train["dropped"].values()) < 400
    assert manifest["languages"] == {"source": "en", "target": "de"}
    assert manifest["tokenizer"] == {"normalize_source": True, "normalize_target": False, "escape": True}
    assert manifest["settings"]["merges"] == 60
    assert {"python", "sacremoses", "subword-nmt", "numpy"} < manifest["versions"].keys()
    for name, found in manifest["files"].items():
        assert hashlib.sha256((data / name).read_bytes()).hexdigest() == found
    assert manifest["files"].keys() == files(data).keys() - {SETTINGS}
    raw = train["corpora"][0]["files"][0]
    assert raw["sha256"] == hashlib.sha256(Path(raw["path"]).read_bytes()).hexdigest()
    (reason, places), = train["corpora"][0]["places"].items()
    line = int(places[0].rsplit(":", 1)[1])
    lengths = [len(TextPipeline(read_settings(data))._source(
        Path(raw["path"]).with_suffix(f".{language}").read_text("utf-8").splitlines()[line - 1])) for language in ("en", "de")]
    assert max(lengths) > 3 * min(lengths)


def test_what_was_prepared_is_what_translate_makes_of_a_line(prepared):
    _, data = prepared
    pipeline = TextPipeline(read_settings(data))
    raw = (data.parent / "test.en").read_text("utf-8").splitlines()
    assert [" ".join(pipeline.subwords(line)) for line in raw] == read_binary(data, "test", "en")


# One side of a hostile corpus, line by line.
LINE = st.one_of(
    st.sampled_from([b"", b" ", b"\t", b"\xff", b"\xed\xa0\x80", b"a\rb", b"a\r", b"\xe2\x80\xa8", b"\xc2\x85x", b"\x00", b"\xef\xbb\xbfone",
                     b"a@@ b", b"@@", b"<unk> </s>", b"x" * 500, b"w " * 400, b"\x1c\x1d\x1e\x0b\x0c", b"\xc2\xa0", b"one two", b"eins"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=20).map(str.encode),
    st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"")),
)


def is_utf8(line):
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def expected_pairs(sides, training):
    """What should be kept, worked out pair by pair: `(tokenised pairs, counts of those dropped)`."""
    tokenizer = PairTokenizer(TextSettings("en", "de", max_words=30, max_ratio=4), training, "")
    kept, dropped, seen = [], Counter(), set()
    for number, pair in enumerate(zip(*sides), start=1):
        block = tokenizer([(number, *pair)])
        found = (block.source.decode(), block.target.decode())
        if block.dropped:
            dropped += block.dropped
        elif training and found in seen:
            dropped["repeats an earlier pair"] += 1
        else:
            seen.add(found)
            kept.append(found)
    return kept, dropped


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(LINE, LINE), max_size=25), st.lists(st.tuples(*[LINE.filter(is_utf8)] * 2), max_size=5))
def test_pairs_out_are_pairs_in_minus_those_counted_in_order(tmp_path_factory, train, valid):
    folder = tmp_path_factory.mktemp("hostile")
    extra = [(b"the house is small", b"das Haus ist klein"), (b"green", b"das ist z.B. gr\xc3\xbcn")]
    corpora = {"train": extra + train + extra, "valid": valid + extra}
    for part, pairs in corpora.items():
        for side, language in enumerate(("en", "de")):
            (folder / f"{part}.{language}").write_bytes(b"".join(pair[side] + b"\n" for pair in pairs))
    run("--source", "en", "--target", "de", "--train", folder / "train", "--valid", folder / "valid", "--merges", 20,
        "--max-words", 30, "--max-ratio", 4, "--out", folder / "data", "--workers", 1)
    manifest = json.loads((folder / "data" / SETTINGS).read_text("utf-8"))
    for part, pairs in corpora.items():
        kept, dropped = expected_pairs(list(zip(*pairs)), part == "train")
        told = manifest["pairs"][part]
        assert told["dropped"] == dropped
        assert told["read"] == len(pairs) == told["kept"] + sum(told["dropped"].values())
        for side, language in enumerate(("en", "de")):
            read = [join_subwords(line) + "\n" for line in read_binary(folder / "data", part, language)]
            known = [pair[side] for pair in kept]
            if part == "train":  # in valid there may be characters that training has not
                assert read == known
            else:
                assert len(read) == len(known)


def test_held_out_sentences_leave_training(tmp_path):
    write = {"train.en": "aa b\naa d\naa f\naa h\n", "train.de": "A B\nC D\nE F\nG H\n", "valid.en": "aa  b\n", "valid.de": "X\n",
             "test.en": "y\n", "test.de": "E F\n"}
    for name, text in write.items():
        (tmp_path / name).write_text(text)
    arguments = ["--source", "en", "--target", "de", *[a for part in PARTS for a in (f"--{part}", tmp_path / part)], "--merges", 3]
    run(*arguments, "--out", tmp_path / "data", "--remove-held-out", "--workers", 1)
    assert json.loads((tmp_path / "data" / SETTINGS).read_text())["pairs"]["train"]["dropped"] == {
        "has a sentence of valid or test": 2
    }
    assert [join_subwords(line) for line in read_binary(tmp_path / "data", "train", "en")] == ["aa d", "aa h"]


def test_several_corpora_and_repeats_between_them(tmp_path):
    for name, lines in (("one", "aa a\naa b\n"), ("two", "aa c\naa a\n")):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text(lines)
    (tmp_path / "three.tsv").write_text("aa d\taa d\naa b\taa b\n")
    train = [tmp_path / "one", tmp_path / "two", tmp_path / "three.tsv"]
    languages = ["--source", "en", "--target", "de", "--merges", 3, "--workers", 1]
    run(*languages, "--train", *train, "--out", tmp_path / "data")
    assert [join_subwords(line) for line in read_binary(tmp_path / "data", "train", "de")] == ["aa a", "aa b", "aa c", "aa d"]
    run(*languages, "--train", *train, "--out", tmp_path / "all", "--keep-repeats")
    assert len(read_binary(tmp_path / "all", "train", "de")) == 6


def test_the_vocabulary_has_the_size_that_was_asked_for(tmp_path):
    generator = random.Random(1)
    for language in ("en", "de"):
        words = ["".join(generator.choices("abcdef", k=generator.randint(2, 8))) for _ in range(2000)]
        (tmp_path / f"train.{language}").write_text("".join(" ".join(words[n : n + 4]) + "\n" for n in range(0, 2000, 4)))
    run("--source", "en", "--target", "de", "--train", tmp_path / "train", "--vocabulary", 100, "--out", tmp_path / "data",
        "--workers", 1)
    manifest = json.loads((tmp_path / "data" / SETTINGS).read_text())
    merges = (tmp_path / "data" / "codes").read_text().count("\n") - 1
    assert merges == 100 - 2 * len("abcdef")
    # what is always merged further never stands in the text; 4 special entries, and filled up to a multiple of 8
    assert 90 <= manifest["dictionary"]["entries"] <= 104


CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.copyfile", "shutil.rmtree"}


def run_until(number, delay, arguments, out, told):
    """prepare.py, killed `delay` seconds after it begins its `number`-th change to files; `told` learns of how many."""
    main, count = os.getpid(), 0

    def hook(event, details):
        nonlocal count
        if event in CHANGES and str(details[0]).startswith(str(out)) and os.getpid() == main:
            count += 1
            if count == number:
                threading.Timer(delay, os.kill, (main, signal.SIGKILL)).start() if delay else os.kill(main, signal.SIGKILL)

    sys.addaudithook(hook)  # for the life of a process, hence each in one of its own
    run(*arguments, "--out", out)
    told.write_text(str(count))


# So many moments in each run of the tests; VASWANI_KILLS=20 for more.
KILLS = int(os.environ.get("VASWANI_KILLS", "4"))


@pytest.mark.slow
def test_killed_at_any_moment_and_started_again_it_gives_the_same(tmp_path):
    """At a file's creation, renaming or removal, or while one is written."""
    arguments = [*write_raw(tmp_path, sizes=(3000, 100, 50)), "--workers", 2]
    told = tmp_path / "count"

    def process(number, delay, out):
        # a fork, so as not to import everything anew
        process = multiprocessing.get_context("fork").Process(target=run_until, args=[number, delay, arguments, out, told])
        process.start()
        process.join()
        return process.exitcode

    assert process(0, 0, tmp_path / "whole") == 0
    whole, changes = files(tmp_path / "whole"), int(told.read_text())
    generator = random.Random(1)
    killed = []
    for number in range(KILLS):
        out = tmp_path / f"killed-{number}"
        change = 1 + int((number + generator.random()) / KILLS * changes)
        if process(change, generator.choice([0, generator.uniform(0, 0.05)]), out) != 0:
            killed.append([change, *sorted(path.name for path in out.with_name(f"{out.name}.part").glob("*") if path.is_dir())])
        assert process(0, 0, out) == 0
        assert files(out) == whole, f"killed at change {change} of {changes}"
        assert not out.with_name(f"{out.name}.part").exists()
    print(f"{changes} changes; killed at these, with these steps there:", *killed, sep="\n")
    assert len(killed) >= KILLS / 2, "most runs ended before they were killed"


def test_a_step_that_was_done_is_not_done_again(tmp_path, monkeypatch, capsys):
    arguments = write_raw(tmp_path)

    def broken(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as change:
        change.setattr(prepare, "make_dictionary", broken)
        with pytest.raises(KeyboardInterrupt):
            run(*arguments, "--out", tmp_path / "data", "--workers", 1)
    assert not (tmp_path / "data").exists()
    with monkeypatch.context() as change:
        change.setattr(prepare, "Reader", broken)
        change.setattr(prepare, "learn", broken)
        run(*arguments, "--out", tmp_path / "data", "--workers", 1)
    assert capsys.readouterr().err.count("done before") == 6
    run(*arguments, "--out", tmp_path / "again", "--workers", 1)
    assert files(tmp_path / "data") == files(tmp_path / "again")
    run(*arguments, "--out", tmp_path / "data")
    assert "was made before" in capsys.readouterr().out


def test_unfinished_work_on_other_text_is_not_gone_on_with(tmp_path, monkeypatch):
    arguments = write_raw(tmp_path)
    with monkeypatch.context() as change:
        change.setattr(prepare, "make_dictionary", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(*arguments, "--out", tmp_path / "data", "--workers", 1)
    with open(tmp_path / "train.en", "a") as more:
        more.write("One more.\n")
    with pytest.raises(ValueError, match="unfinished work with other settings or input files"):
        run(*arguments, "--out", tmp_path / "data", "--workers", 1)


def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path, prepared):
    _, data = prepared
    base = write_raw(tmp_path)
    (tmp_path / "short.en").write_text("one\ntwo\n")
    (tmp_path / "short.de").write_text("eins\n")
    (tmp_path / "bad.en").write_bytes(b"good\nb\xe4d\n")
    (tmp_path / "bad.de").write_text("gut\nschlecht\n")
    (tmp_path / "none.en").write_text("\n")
    (tmp_path / "none.de").write_text("x\n")
    for language in ("en", "de"):
        (tmp_path / f"letters.{language}").write_text("a b c\n")
    languages = ["--source", "en", "--target", "de"]
    train = [*languages, "--train", tmp_path / "train"]
    before = sorted(tmp_path.iterdir())
    for arguments, sentence in (
        ([*languages, "--train", tmp_path / "short"], r"short.en has 2 lines and .*short.de has 1"),
        ([*languages, "--train", tmp_path / "other"], r"there is no .*other.en"),
        ([*languages], "give --source, --target and --train"),
        ([*train, "--valid", tmp_path / "bad"], r"bad.en:2 is not UTF-8"),
        ([*languages, "--train", tmp_path / "none"], "no training pairs are left"),
        ([*languages, "--train", tmp_path / "letters"], "nothing to learn subwords from"),
        ([*train, "--valid", tmp_path / "none"], "no sentence pairs are left for valid"),
        ([*train, "--vocabulary", 5], "too small: single characters alone are"),
        ([*train, "--workers", 0], "--workers must be at least 1"),
        ([*train, "--max-ratio", 0.5], "--max-ratio cannot be 0.5"),
        (["--source", "en", "--target", "en", "--train", tmp_path / "train"], "are the same"),
        (["--source", "../x", "--target", "en", "--train", tmp_path / "train"], "not a language code"),
        (["--recipe", "none"], "there is no recipe 'none'"),
        (["--recipe", "multi30k.en-de", "--raw", tmp_path], "download.py multi30k.en-de --to"),
        (["--recipe", "multi30k.en-de", "--source", "en"], "names the corpora and languages itself"),
    ):
        out = tmp_path / "out"
        with pytest.raises(SystemExit) as end:
            run_as_script(lambda: run("--workers", 1, *arguments, "--out", out))
        assert re.search(sentence, str(end.value.code)) and "\n" not in str(end.value.code)
        assert not out.exists()
        subprocess.run(["rm", "-rf", str(out.with_name("out.part"))])
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(ValueError, match="made of other text or with other settings"):
        run(*base, "--out", data)
    with pytest.raises(ValueError, match="was not made by this script"):
        run(*base, "--out", tmp_path)
