"""A parallel corpus of real text for the quick start: the help of LibreOffice in two languages.

Debian and Ubuntu publish the help as one package a language (MPL-2.0, a few MB each). A help page has the same file
name in every language, and a paragraph of a page the same id, so the translations are aligned without guessing.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from common import run_as_script

LICENCE = "MPL-2.0 (LibreOffice help, copyright the LibreOffice contributors; see /usr/share/doc of the packages)"
MAX_WORDS = 100
MAX_RATIO = 2.0
# Of every 1000 help pages, about so many are held out.
VALID_PAGES = 20
TEST_PAGES = 50
UPDATE_SECONDS = 180
ATTEMPTS = 3

PARAGRAPHS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
CODE_CLASSES = {"code", "codeintable", "smathcode"}


class Pair(NamedTuple):
    page: str
    source: str
    target: str


class HelpPage(HTMLParser):
    """Collects the paragraphs of one help page: `paragraphs` maps id to text, `code` has the ids of program text.

    A page holds variants for operating systems and programs side by side, all hidden, and shows one by script; of these
    the one for everybody, whose id begins with "default", is taken.
    """

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.paragraphs = {}
        self.code = set()
        self._id = None
        self._text = []
        self._spans = []  # for each open span: does it hide its text?
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag in PARAGRAPHS:
            self._id = attributes.get("id") or ""
            self._text = []
            self._spans = []
            if attributes.get("class") in CODE_CLASSES:
                self.code.add(self._id)
        elif tag == "span":
            self._spans.append("hidden" in attributes and not (attributes.get("id") or "").startswith("default"))
        elif tag == "br":
            self._text.append(" ")

    def handle_endtag(self, tag):
        if tag in PARAGRAPHS and self._id is not None:
            if self._id.startswith(("par_", "hd_")):
                # an embedded page may repeat an id; the page's own paragraph comes first
                self.paragraphs.setdefault(self._id, " ".join("".join(self._text).split()))
            self._id = None
        elif tag == "span" and self._spans:
            self._spans.pop()

    def handle_data(self, data):
        if not any(self._spans):
            self._text.append(data)


def letters(sentence):
    """The letters of a sentence in lower case, nothing else: equal for sentences that differ in figures and marks."""
    return "".join(filter(str.isalpha, sentence.lower()))


def reason_to_drop(source, target):
    """Why a pair is of no use for learning to translate, or None."""
    if not source or not target:
        return "empty"
    if source == target:
        return "identical on both sides"
    if not letters(source) or not letters(target):
        return "without letters"
    if any(mark in sentence for sentence in (source, target) for mark in ("<", ">", "@@", "\ufffd")):
        return "markup"
    if not (source + target).isprintable():
        return "control characters"
    if max(len(source.split()), len(target.split())) > MAX_WORDS:
        return f"longer than {MAX_WORDS} words"
    # ten characters of grace: "File" and "Datei oeffnen" may well be translations
    sizes = sorted((len(source) + 10, len(target) + 10))
    if sizes[1] > MAX_RATIO * sizes[0]:
        return f"one side more than {MAX_RATIO:g} times as long as the other"
    return None


def align(source_pages, target_pages, dropped):
    """Pairs of paragraphs with the same page and id, filtered and each kept once; `dropped` counts the others.

    `source_pages` and `target_pages` map a page's name to its HTML.
    """
    pairs, seen = [], set()
    for name in sorted(source_pages):
        source = HelpPage(source_pages[name])
        target = HelpPage(target_pages.get(name, ""))
        for paragraph, text in source.paragraphs.items():
            if paragraph not in target.paragraphs:
                dropped["paragraph not in both languages"] += 1
                continue
            pair = Pair(name, text, target.paragraphs[paragraph])
            reason = "program text" if paragraph in source.code else reason_to_drop(pair.source, pair.target)
            if reason is None and pair[1:] in seen:
                reason = "repeats an earlier pair"
            if reason is not None:
                dropped[reason] += 1
                continue
            seen.add(pair[1:])
            pairs.append(pair)
    return pairs


def held_out(page):
    """The part of the corpus that a page belongs to: a fixed function of its name, the same on every machine."""
    number = int.from_bytes(hashlib.sha256(page.encode()).digest()[:8], "big") % 1000
    if number < TEST_PAGES:
        return "test"
    if number < TEST_PAGES + VALID_PAGES:
        return "valid"
    return "train"


def split(pairs, dropped):
    """`{"train": pairs, "valid": ..., "test": ...}`, whole pages each; held-out sentences known from training go.

    A held-out pair is known if either side has, letter for letter, the letters of a training sentence.
    """
    parts = {"train": [], "valid": [], "test": []}
    for pair in pairs:
        parts[held_out(pair.page)].append(pair)
    known_sources = {letters(pair.source) for pair in parts["train"]}
    known_targets = {letters(pair.target) for pair in parts["train"]}
    for part in ("valid", "test"):
        new = [p for p in parts[part] if letters(p.source) not in known_sources and letters(p.target) not in known_targets]
        dropped[f"{part} sentence that occurs in training"] += len(parts[part]) - len(new)
        parts[part] = new
    return parts


def write_corpus(directory, parts, source, target, manifest):
    """Write train, valid and test in both languages and `manifest.json`; the folder appears complete or not at all."""
    directory = Path(directory)
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        for part, pairs in parts.items():
            for language, side in ((source, 1), (target, 2)):
                text = "".join(pair[side] + "\n" for pair in pairs)
                (temporary / f"{part}.{language}").write_text(text, encoding="utf-8", newline="\n")
        manifest = {**manifest, "languages": [source, target], "pairs": {part: len(p) for part, p in parts.items()}}
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", "utf-8")
        if directory.exists():
            shutil.rmtree(directory)
        temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def package_name(language):
    return "libreoffice-help-" + {"en": "en-us", "pt-BR": "pt-br"}.get(language, language)


def run_with_limit(command, seconds, cwd):
    """Run a command, showing it and its output; True if it ended well within the time, else nothing of it is left."""
    print("+ " + " ".join(command), file=sys.stderr, flush=True)
    process = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    try:
        return process.wait(timeout=seconds) == 0
    except subprocess.TimeoutExpired:
        print(f"  not finished after {seconds} s", file=sys.stderr)
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def fetch(packages, directory):
    """Download Debian packages into `directory` without root and without touching the system; return their paths.

    apt-get is given lists and a cache of its own. What was downloaded before is used as it is. Raises ValueError when
    the packages cannot be had.
    """
    directory = Path(directory).resolve()
    directory.mkdir(parents=True, exist_ok=True)

    def present():
        return [next(iter(sorted(directory.glob(f"{package}_*.deb"))), None) for package in packages]

    if all(present()):
        return present()
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ValueError("apt-get and dpkg-deb are needed to fetch the LibreOffice help, and are not on this machine.")
    apt, incoming = directory / "apt", directory / "incoming"
    for folder in (apt / "lists/partial", apt / "cache/archives/partial", apt / "log", incoming):
        folder.mkdir(parents=True, exist_ok=True)
    # Given with -c, so that it is read after the system's own settings. Those may run commands after an update (clean
    # the system's cache, tell the desktop), switch package descriptions on, or name a user who cannot write here.
    configuration = apt / "apt.conf"
    configuration.write_text(
        "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n"
        '#clear Acquire::Languages;\nAcquire::Languages { "none"; };\n'
        f'Dir::State::Lists "{apt}/lists";\nDir::Cache "{apt}/cache";\nDir::Log "{apt}/log";\n'
        'APT::Sandbox::User "root";\nAcquire::Retries "2";\nAcquire::http::Timeout "30";\nAcquire::https::Timeout "30";\n'
    )
    for _ in range(ATTEMPTS):
        # An update that fails for one of several sources may still have brought the list that matters.
        run_with_limit(["apt-get", "-c", str(configuration), "update"], UPDATE_SECONDS, incoming)
        if run_with_limit(["apt-get", "-c", str(configuration), "download", *packages], UPDATE_SECONDS, incoming):
            for package in incoming.glob("*.deb"):
                package.replace(directory / package.name)
            break
    if not all(present()):
        raise ValueError(
            f"apt-get could not download {' and '.join(packages)}: see its messages above; is there a network, and do "
            "the package sources of this machine have them?"
        )
    shutil.rmtree(apt)
    shutil.rmtree(incoming)
    return present()


def read_pages(package, directory):
    """Unpack one help package below `directory` and return its pages, `{name: HTML}`, and the package's version."""
    shutil.rmtree(directory, ignore_errors=True)
    Path(directory).mkdir(parents=True)
    if subprocess.run(["dpkg-deb", "-x", str(package), str(directory)], stdin=subprocess.DEVNULL).returncode != 0:
        Path(package).unlink()
        raise ValueError(f"{package} is damaged and was removed; run again to download it anew.")
    pages = {}
    for path in Path(directory).glob("usr/share/libreoffice/help/*/text/**/*.html"):
        # the name without the language's folder: text/swriter/guide/...
        pages["/".join(path.relative_to(directory).parts[5:])] = path.read_text(encoding="utf-8", errors="replace")
    shutil.rmtree(directory)
    if not pages:
        raise ValueError(f"{package} holds no help pages in the form known here (usr/share/libreoffice/help/*/text).")
    version = unquote(re.sub(r".*?_(.*)_[^_]*\.deb", r"\1", Path(package).name))
    return pages, version


def main():
    parser = argparse.ArgumentParser(
        description="Make a parallel corpus out of the LibreOffice help: train, valid and test files in two languages, "
        "aligned by paragraph, test and valid held out by page, and a manifest.json that counts what was dropped.",
        epilog="example: python scripts/demo_corpus.py --source en --target de --packages runs/packages --out runs/corpus",
    )
    parser.add_argument("--source", default="en", help="source language (default: %(default)s)")
    parser.add_argument("--target", default="de", help="target language (default: %(default)s)")
    parser.add_argument("--packages", required=True, help="folder to keep the downloaded packages in")
    parser.add_argument("--out", required=True, help="folder of the corpus, replaced if it exists")
    args = parser.parse_args()
    for language in (args.source, args.target):
        if not re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z]+)?", language):
            raise ValueError(f"'{language}' is not a language code such as en, de or pt-BR.")
    if args.source == args.target:
        raise ValueError(f"source and target language are the same, '{args.source}'.")

    names = [package_name(language) for language in (args.source, args.target)]
    packages = fetch(names, args.packages)
    unpacked = Path(args.packages) / "unpacked"
    source_pages, source_version = read_pages(packages[0], unpacked)
    target_pages, target_version = read_pages(packages[1], unpacked)
    print(f"{len(source_pages)} help pages read; aligning them by paragraph ...", file=sys.stderr)
    dropped = Counter()
    parts = split(align(source_pages, target_pages, dropped), dropped)
    for part, pairs in parts.items():
        if not pairs:
            raise ValueError(f"no pairs are left for {part} out of {names[0]} and {names[1]}.")
    manifest = {
        "source": "LibreOffice help from the Debian packages named here, aligned by paragraph id",
        "licence": LICENCE,
        "packages": {names[0]: source_version, names[1]: target_version},
        "dropped": dict(dropped.most_common()),
    }
    write_corpus(args.out, parts, args.source, args.target, manifest)
    for part, pairs in parts.items():
        print(f"{part}: {len(pairs)} pairs")
    for reason, count in dropped.most_common():
        print(f"dropped {count}: {reason}")


if __name__ == "__main__":
    run_as_script(main)
