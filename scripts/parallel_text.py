"""Reading parallel corpora: pairs of lines as bytes, from plain or compressed text, TSV, TMX and the files of WMT and IWSLT.

Only "\\n" ends a line here. Nothing is skipped or joined: the n-th line of one side belongs to the n-th of the other,
and files of unequal length are refused.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import re
import xml.etree.ElementTree as ElementTree
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

# How packed files begin, in bytes that no text begins with: bzip2's first three are letters, its next seven tell.
PACKED = {
    re.compile(rb"\x1f\x8b"): gzip.open,
    re.compile(rb"\xfd7zXZ\x00"): lzma.open,
    re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"): bz2.open,
}
ENDINGS = ("", ".gz", ".xz", ".bz2")
LONGEST_LINE = 1_000_000
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, OSError)
# What train.tags files of IWSLT say about a talk, beside its sentences, title and description.
ABOUT_TALK = (b"<url>", b"<talkid>", b"<keywords>", b"<speaker>", b"<reviewer", b"<translator", b"<doc ", b"</doc>")


@dataclass(frozen=True)
class Corpus:
    """Where the two sides of a corpus are; for TSV and TMX both are the same file."""

    source: Path
    target: Path

    @property
    def kind(self):
        """How to read it: `lines`, `tsv`, `tmx`, `seg` (WMT's .sgm, IWSLT's .xml) or `talks` (IWSLT's train.tags)."""
        name = self.source.name
        for ending in ENDINGS[1:]:
            name = name.removesuffix(ending)
        if self.source == self.target:
            return "tmx" if name.endswith(".tmx") else "tsv"
        if name.endswith((".sgm", ".xml")):
            return "seg"
        return "talks" if name.startswith("train.tags.") else "lines"

    @property
    def paths(self):
        return list(dict.fromkeys((self.source, self.target)))


def find_corpus(name, source, target):
    """The corpus that a user calls `name`: a .tsv or .tmx file, or the beginning of two files `name.LANGUAGE`.

    Each may be compressed (.gz, .xz, .bz2). Raises ValueError: there is none, or more than one.
    """
    path = Path(name)
    if path.is_file():
        if re.search(r"\.(tsv|tmx)(\.gz|\.xz|\.bz2)?$", path.name):
            return Corpus(path, path)
        raise ValueError(
            f"{name} is one file; give a .tsv or .tmx file, or the common beginning of two files, so that {name}.{source}"
            f" and {name}.{target} are there."
        )
    sides = []
    for language in (source, target):
        found = [side for side in (Path(f"{name}.{language}{ending}") for ending in ENDINGS) if side.is_file()]
        if not found:
            raise ValueError(f"there is no {name}.{language} (nor with .gz, .xz or .bz2), and no file {name}.")
        if len(found) > 1:
            raise ValueError(f"{' and '.join(map(str, found))} are both there; remove or rename one.")
        sides += found
    return Corpus(*sides)


class _Hashed(io.RawIOBase):
    """A file that is hashed as it is read, from its beginning to its end."""

    def __init__(self, path):
        super().__init__()
        self._file = open(path, "rb", buffering=0)
        self.hash = hashlib.sha256()
        self.size = 0

    def readable(self):
        return True

    def readinto(self, buffer):
        count = self._file.readinto(buffer)
        self.hash.update(memoryview(buffer)[:count])
        self.size += count
        return count

    def close(self):
        self._file.close()
        super().close()


class Reader:
    """The pairs of a corpus, once.

    Iterating gives `(number, source, target)`: the number of the pair, from 1, which for files of lines is that of the
    line; and bytes without the end of the line. A side is None where there is nothing to take: `missing` is the reason.
    After the last pair, `files` tells size and SHA-256 of what was read. Raises ValueError: a file that cannot be read,
    is damaged, or does not fit the other.
    """

    missing = {
        "lines": f"longer than {LONGEST_LINE} bytes",
        "seg": f"longer than {LONGEST_LINE} bytes",
        "talks": f"longer than {LONGEST_LINE} bytes",
        "tsv": "not two columns",
        "tmx": "not in both languages",
    }

    def __init__(self, corpus, source, target):
        self.corpus = corpus
        self.languages = source, target
        self.files = []
        self._raw = {}

    @property
    def reason_if_missing(self):
        return self.missing[self.corpus.kind]

    @property
    def read_bytes(self):
        """How much of the files was read, as they lie on the disk."""
        return sum(raw.size for raw in self._raw.values())

    def __iter__(self):
        with ExitStack() as stack:
            streams = [self._open(path, stack) for path in self.corpus.paths]
            yield from getattr(self, f"_{self.corpus.kind}")(*streams)
            for path, raw in self._raw.items():
                while self._guarded(path, raw.read, 1 << 20):
                    pass
                self.files.append({"path": str(path), "bytes": raw.size, "sha256": raw.hash.hexdigest()})

    def _open(self, path, stack):
        try:
            raw = self._raw[path] = stack.enter_context(_Hashed(path))
            with open(path, "rb") as file:
                first = file.read(10)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
        if first.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise ValueError(f"{path} is UTF-16 text; convert it first, for example with iconv -f UTF-16 -t UTF-8.")
        stream = io.BufferedReader(raw, 1 << 16)
        for beginning, opened in PACKED.items():
            if beginning.match(first):
                stream = opened(stream, "rb")
        return stack.enter_context(stream)

    def _guarded(self, path, function, *arguments):
        try:
            return function(*arguments)
        except DAMAGED as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise ValueError(f"{path} cannot be read to its end ({reason}): it is damaged or was cut off.") from None

    def _lines_of(self, path, stream):
        """Lines without their end, or None for one of absurd length."""
        first = ended = True
        while line := self._guarded(path, stream.readline, LONGEST_LINE):
            whole = line.endswith(b"\n")
            if first and not whole and b"\r" in line[:-1]:
                raise ValueError(f"{path} ends its lines with carriage returns only; convert it, for example with mac2unix.")
            first = False
            if not whole and len(line) == LONGEST_LINE:
                ended = False
                continue
            yield line.removesuffix(b"\n") if ended else None
            ended = True
        if not ended:
            yield None

    def _zipped(self, sources, targets):
        number = 0
        while True:
            pair = next(sources, _END), next(targets, _END)
            if _END in pair:
                break
            number += 1
            yield number, *pair
        if pair != (_END, _END):
            counts = [number + (side is not _END) + sum(1 for _ in rest) for side, rest in zip(pair, (sources, targets))]
            raise ValueError(
                f"{self.corpus.source} has {counts[0]} lines and {self.corpus.target} has {counts[1]}; line by line they"
                " must be translations of each other."
            )

    def _lines(self, source, target):
        yield from self._zipped(self._lines_of(self.corpus.source, source), self._lines_of(self.corpus.target, target))

    def _talks(self, source, target):
        def sentences(path, stream):
            for line in self._lines_of(path, stream):
                if line is None or not line.lstrip().startswith(ABOUT_TALK):
                    yield line and re.sub(rb"</?(title|description)>", b"", line)

        yield from self._zipped(sentences(self.corpus.source, source), sentences(self.corpus.target, target))

    def _seg(self, source, target):
        def segments(path, stream):
            # Entities stay as they are written, as in sacreBLEU and fairseq's own scripts.
            text = self._guarded(path, stream.read)
            for found in re.finditer(rb"<seg\b[^>]*>(.*?)</seg>", text, re.DOTALL | re.IGNORECASE):
                segment = b" ".join(found.group(1).split())
                yield segment if len(segment) < LONGEST_LINE else None

        yield from self._zipped(segments(self.corpus.source, source), segments(self.corpus.target, target))

    def _tsv(self, stream):
        for number, line in enumerate(self._lines_of(self.corpus.source, stream), start=1):
            columns = line.split(b"\t") if line is not None else ()
            yield (number, *columns) if len(columns) == 2 else (number, None, None)

    def _tmx(self, stream):
        path = self.corpus.source
        number = 0
        events = ElementTree.iterparse(stream, events=("start", "end"))
        opened = []
        while True:
            try:
                event, element = next(events)
            except StopIteration:
                return
            except ElementTree.ParseError as error:
                raise ValueError(f"{path} is not well-formed TMX: {error}.") from None
            except DAMAGED as error:
                raise ValueError(f"{path} cannot be read to its end ({error}): it is damaged or was cut off.") from None
            if event == "start":
                opened.append(element)
                continue
            opened.pop()
            if element.tag == "tu":
                number += 1
                yield number, *_variants(element, self.languages)
                if opened:
                    opened[-1].clear()  # else the whole file would stay in memory


_END = object()
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def _variants(unit, languages):
    """The text of a TMX translation unit in two languages, each bytes or None; "en" takes "en-GB" too."""
    texts = {}
    for variant in unit.iter("tuv"):
        code = (variant.get(_LANGUAGE) or variant.get("lang") or "").lower().replace("_", "-")
        segment = variant.find("seg")
        if segment is not None:
            text = " ".join("".join(segment.itertext()).split("\n"))
            texts.setdefault(code, text)
            texts.setdefault(code.split("-")[0], text)
    found = [texts.get(language.lower().replace("_", "-")) for language in languages]
    return [None if text is None else text.encode("utf-8", errors="surrogatepass") for text in found]
