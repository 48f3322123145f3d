"""Raw text to raw text: one line out for each line in."""

import io
import sys

import pytest
import torch
import translate
from common import run_as_script
from raw_text import Settings, TextPipeline, join_subwords, read_settings

from .saved_model import TEXT, save_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


def translated(monkeypatch, capfdbinary, data, *arguments):
    """Standard output as lines of bytes, and standard error as text."""
    monkeypatch.setattr(sys, "argv", ["translate.py", *map(str, arguments), "--cpu"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    translate.main()
    out, err = capfdbinary.readouterr()
    lines = out.split(b"\n")
    assert lines.pop() == b""
    return lines, err.decode()


def hostile_lines():
    """1000 lines of bytes that break what is not careful."""
    kinds = [
        b"", b" ", b"\t \t", b"\r", b"plain words and more", b"\x00\x01\x02 control \x07\x1b[31m", b"\x7f\x0b\x0c",
        b"\xed\xa0\x80 lone \xed\xb3\xbf surrogates", b"\xff\xfe\xc3\x28 invalid", b"\xf0\x9f\x98",
        "\u2028 line \u2029 separators \u0085".encode(), "\ufeffmark".encode(), "שלום עולם مرحبا".encode(),
        "\u202eoverride\u202c".encode(), "😀👩‍👩‍👧‍👦🏳️‍🌈".encode(), b"<unk> <s> </s> <pad> <mask>", b"@@ @@@ foo@@ @@bar a@@",
        b"&lt; &amp;amp; &#124; | [ ]", "e\u0301\u0301\u0301\u0301 Z\u0321\u0325a\u030b\u0352lgo".encode(), b"x" * 3000,
        b"- " * 50, "\u00a0nbsp\u3000wide\u200bzero".encode(), b"\\n \\r %s {} $(rm) `ls`", b"madeupword0000 S-1\tH-2\t",
        "ⅷ ½ ﬁ ß İ".encode(),
    ]
    lines = [kind + (b" %d" % n if n >= len(kinds) and kind.strip() else b"") for n, kind in zip(range(997), kinds * 40)]
    return lines + [b"word " * 10_000, b"long-hyphen-" * 200, b"last line without an end"]


def test_1000_hostile_lines_give_1000_lines(checkpoint, monkeypatch, capfdbinary):
    lines = hostile_lines()
    assert len(lines) == 1000
    out, err = translated(monkeypatch, capfdbinary, b"\n".join(lines), checkpoint, "--beam", 1, "--max-len-a", 0, "--max-len-b", 3)
    assert len(out) == 1000
    for line, output in zip(lines, out):
        output.decode("utf-8")
        assert len(output.decode().splitlines()) <= 1
        if not line.decode("utf-8", errors="replace").strip():
            assert output == b""
    assert f"line {lines.index(kind_of_invalid(lines)) + 1}:" in err


def kind_of_invalid(lines):
    return next(line for line in lines if b"\xed\xa0\x80" in line)


def test_lines_come_out_in_order_whatever_stands_beside_them(checkpoint, monkeypatch, capfdbinary):
    lines = [text.encode() for text in TEXT] + [b"", b"dog", b"over the lazy dog . " * 8]
    together, _ = translated(monkeypatch, capfdbinary, b"\n".join(lines) + b"\n", checkpoint)
    backwards, _ = translated(monkeypatch, capfdbinary, b"\n".join(lines[::-1]) + b"\n", checkpoint)
    alone = [translated(monkeypatch, capfdbinary, line + b"\n", checkpoint)[0][0] for line in lines]
    few, _ = translated(monkeypatch, capfdbinary, b"\n".join(lines) + b"\n", checkpoint, "--max-tokens", 1)
    assert together == backwards[::-1] == alone == few
    assert together[4] == b"" and all(together[n] for n in (0, 1, 2, 3, 5, 6))
    assert len(set(together)) > 4


def test_nothing_in_nothing_out(checkpoint, monkeypatch, capfdbinary):
    assert translated(monkeypatch, capfdbinary, b"", checkpoint)[0] == []
    assert translated(monkeypatch, capfdbinary, b"\n\n", checkpoint)[0] == [b"", b""]


def test_a_long_line_is_translated_in_pieces(checkpoint, monkeypatch, capfdbinary):
    monkeypatch.setattr(translate, "PIECE", 5)
    pipeline = TextPipeline(read_settings(checkpoint.parent))
    line = "the quick brown fox"
    subwords = pipeline.subwords(line)
    assert len(subwords) > 5
    out, _ = translated(monkeypatch, capfdbinary, line.encode() + b"\n", checkpoint)
    from argparse import Namespace

    options = Namespace(beam=4, lenpen=0.6, max_len_a=1.0, max_len_b=50, length_penalty="gnmt")
    translator = translate.Translator([checkpoint], checkpoint.parent, "en", "de", options, cpu=True)
    pieces = [subwords[n : n + 5] for n in range(0, len(subwords), 5)]
    parts = translator.translate(pieces, lambda count: None)
    assert out == [pipeline.raw(" ".join(parts)).encode()]


def test_an_ensemble(checkpoint, monkeypatch, capfdbinary):
    other = save_model(checkpoint.parent, seed=2, name="other.pt")
    line = TEXT[0].encode() + b"\n"
    one, _ = translated(monkeypatch, capfdbinary, line, f"{checkpoint}:{checkpoint}")
    assert one == translated(monkeypatch, capfdbinary, line, checkpoint)[0]
    two, _ = translated(monkeypatch, capfdbinary, line, f"{checkpoint}:{other}")
    assert len(two) == 1


def test_the_end_mark_of_a_cut_off_subword_goes_too():
    assert join_subwords("fo@@ o bar@@") == "foo bar"


def test_text_goes_there_and_back(checkpoint):
    pipeline = TextPipeline(Settings("en", "en", checkpoint.parent / "codes"))
    for text in (*TEXT, "Tom & Jerry <b> | [x] 'quoted'"):
        assert pipeline.raw(" ".join(pipeline.subwords(text))).replace(" ", "") == text.replace(" ", "")


def test_languages_from_the_names_of_the_data(tmp_path, monkeypatch, capfdbinary):
    """Training without --source-lang leaves none in the checkpoint; then the data directory names them."""
    path = save_model(tmp_path, settings=False)
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["cfg"]["task"].update(source_lang=None, target_lang=None)
    torch.save(checkpoint, path)
    with pytest.raises(ValueError, match="--source-lang"):
        translated(monkeypatch, capfdbinary, b"a dog\n", path)
    (tmp_path / "train.en-de.en.idx").touch()
    assert len(translated(monkeypatch, capfdbinary, b"a dog\n", path)[0]) == 1


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda folder: (folder / "codes").unlink(), "BPE codes .*cannot be read"),
        (lambda folder: (folder / "prepare.json").write_text("{}"), "prepare.json"),
        (lambda folder: (folder / "prepare.json").write_text("no json"), "prepare.json"),
        (lambda folder: (folder / "dict.de.txt").unlink(), "dict.de.txt"),
        (lambda folder: [(folder / f"dict.{x}.txt").write_text("a 1\n") for x in ("en", "de")], "another model"),
        (lambda folder: (folder / "model.pt").write_bytes(b"PK"), "damaged"),
        (lambda folder: (folder / "model.pt").unlink(), "cannot be read"),
        (lambda folder: torch.save({"weights": 1}, folder / "model.pt"), "holds no model"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, monkeypatch, capsys, change, sentence):
    path = save_model(tmp_path)
    change(tmp_path)
    monkeypatch.setattr(sys, "argv", ["translate.py", str(path), "--cpu"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    with pytest.raises(SystemExit) as end:
        run_as_script(translate.main)
    import re

    assert re.search(sentence, str(end.value.code)) and "\n" not in str(end.value.code).strip()
    assert capsys.readouterr().out == ""
