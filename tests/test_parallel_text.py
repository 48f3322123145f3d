"""Pairs of lines of every form of file, and the files that are refused."""

import bz2
import gzip
import hashlib
import lzma

import parallel_text
import pytest
from parallel_text import Corpus, Reader, find_corpus


def write(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("_", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def pairs(corpus):
    return list(Reader(corpus, "en", "de"))


@pytest.mark.parametrize("pack, ending", [(lambda data: data, ""), (gzip.compress, ".gz"), (lzma.compress, ".xz"), (bz2.compress, ".bz2")])
def test_files_of_lines(tmp_path, pack, ending):
    source, target = b"one\ntwo\r\n\x0c\xff\n\nlast", b"eins\nzwei\n\ndrei\nEnde\n"
    (tmp_path / f"c.en{ending}").write_bytes(pack(source))
    (tmp_path / f"c.de{ending}").write_bytes(pack(target))
    corpus = find_corpus(str(tmp_path / "c"), "en", "de")
    reader = Reader(corpus, "en", "de")
    assert list(reader) == [
        (1, b"one", b"eins"), (2, b"two\r", b"zwei"), (3, b"\x0c\xff", b""), (4, b"", b"drei"), (5, b"last", b"Ende"),
    ]
    assert [file["sha256"] for file in reader.files] == [hashlib.sha256(pack(text)).hexdigest() for text in (source, target)]
    assert [file["bytes"] for file in reader.files] == [path.stat().st_size for path in corpus.paths]


@pytest.mark.parametrize("packed", [b"\n", b"", b"word\n" * 9])
def test_text_that_begins_as_bzip2_does_is_text(tmp_path, packed):
    """With the three letters; a packed file, also one of nothing, has seven more bytes that no text has."""
    write(tmp_path, c_en=b"BZh\nBZh9 is a name\n", c_de="BZh\nBZh9 ist ein Name\n")
    assert pairs(find_corpus(str(tmp_path / "c"), "en", "de"))[1] == (2, b"BZh9 is a name", b"BZh9 ist ein Name")
    for language in ("en", "de"):
        (tmp_path / f"p.{language}.bz2").write_bytes(bz2.compress(packed))
    assert len(pairs(find_corpus(str(tmp_path / "p"), "en", "de"))) == packed.count(b"\n")


def test_a_line_of_absurd_length_is_set_aside_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel_text, "LONGEST_LINE", 10)
    write(tmp_path, c_en=b"a\n" + b"x" * 25 + b"\nb\n" + b"y" * 9 + b"\n" + b"z" * 10 + b"\n" + b"w" * 30, c_de="1\n2\n3\n4\n5\n6\n")
    found = pairs(find_corpus(str(tmp_path / "c"), "en", "de"))
    assert [source for _, source, _ in found] == [b"a", None, b"b", b"y" * 9, None, None]


def test_tsv(tmp_path):
    write(tmp_path, c_tsv="one\teins\r\nonly one\na\tb\tc\n\tempty\n")
    assert pairs(find_corpus(str(tmp_path / "c.tsv"), "en", "de")) == [
        (1, b"one", b"eins\r"), (2, None, None), (3, None, None), (4, b"", b"empty"),
    ]


TMX = """<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="EN-gb"><seg>Press <bpt i="1">[</bpt>F1<ept i="1">]</ept> &amp; wait</seg></tuv><tuv lang="de"><seg>F1
drücken</seg></tuv><tuv xml:lang="fr"><seg>x</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>alone</seg></tuv></tu>
<tu><tuv xml:lang="de"><seg>zwei</seg></tuv><tuv xml:lang="en"><seg/></tuv></tu></body></tmx>"""


def test_tmx(tmp_path):
    (tmp_path / "c.tmx.gz").write_bytes(gzip.compress(TMX.encode("utf-8")))
    assert pairs(find_corpus(str(tmp_path / "c.tmx.gz"), "en", "de")) == [
        (1, b"Press [F1] & wait", "F1 drücken".encode()), (2, b"alone", None), (3, b"", b"zwei"),
    ]


def test_segments_of_wmt_and_iwslt(tmp_path):
    source = '<srcset setid="n"><doc docid="1"><hl>\n<seg id="1">A &amp; b</seg></hl><p>\n<seg id="2"> two\nlines </seg></p></doc></srcset>'
    write(tmp_path, s_sgm=source, r_xml='<?xml version="1.0"?><seg id="1">A</seg>\n<seg id="2"></seg>')
    assert pairs(Corpus(tmp_path / "s.sgm", tmp_path / "r.xml")) == [(1, b"A &amp; b", b"A"), (2, b"two lines", b"")]


def test_talks(tmp_path):
    talk = "<url>http://x</url>\n<keywords>a, b</keywords>\n<speaker>N</speaker>\n<talkid>1</talkid>\n<title>{0}: T</title>\n<description>{0}: D.</description>\n{0} says <url> here.\n"
    write(tmp_path, train_tags_en=talk.format("en"), train_tags_de=talk.format("de"))
    assert pairs(Corpus(tmp_path / "train.tags.en", tmp_path / "train.tags.de")) == [
        (1, b"en: T", b"de: T"), (2, b"en: D.", b"de: D."), (3, b"en says <url> here.", b"de says <url> here."),
    ]


def cut_off(pack):
    packed = pack(b"some line\n" * 5000)
    return packed[: len(packed) // 2]


@pytest.mark.parametrize(
    "files, name, sentence",
    [
        ({"c_en": "1\n2\n3\n", "c_de": "1\n"}, "c", r"c\.en has 3 lines and .*c\.de has 1"),
        ({"c_en": "1\n", "c_de": "1\n2"}, "c", r"c\.en has 1 lines and .*c\.de has 2"),
        ({"c_en": "1\n"}, "c", r"there is no .*c\.de "),
        ({"c_en": "1\n", "c_en_gz": b"", "c_de": "1\n"}, "c", "both there"),
        ({"c_txt": "1\n"}, "c.txt", "is one file"),
        ({"c_en": "1\n".encode("utf-16"), "c_de": "1\n"}, "c", "UTF-16"),
        ({"c_en": "1\r2\r3\r", "c_de": "1\r2\r3\r"}, "c", "carriage returns only"),
        ({"c_en_gz": cut_off(gzip.compress), "c_de": "1\n" * 5000}, "c", r"c\.en\.gz cannot be read to its end"),
        ({"c_en_xz": cut_off(lzma.compress), "c_de": "1\n" * 5000}, "c", r"c\.en\.xz cannot be read to its end"),
        ({"c_en_gz": gzip.compress(b"x\n")[:-6] + b"abcdef", "c_de": "1\n"}, "c", "cannot be read to its end"),
        ({"c_tmx": "<tmx><body><tu>"}, "c.tmx", "not well-formed TMX"),
    ],
)
def test_what_is_refused(tmp_path, files, name, sentence):
    write(tmp_path, **files)
    with pytest.raises(ValueError, match=sentence):
        pairs(find_corpus(str(tmp_path / name), "en", "de"))


def test_a_large_tmx_is_not_kept_in_memory(tmp_path):
    import tracemalloc

    unit = '<tu><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="de"><seg>eins</seg></tuv></tu>'

    def peak(count):
        (tmp_path / "c.tmx").write_text(f"<tmx><body>{unit * count}</body></tmx>")
        tracemalloc.start()
        assert sum(1 for _ in Reader(Corpus(tmp_path / "c.tmx", tmp_path / "c.tmx"), "en", "de")) == count
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(8000) < 1.5 * peak(2000)
