"""The parallel corpus of the quick start: filtered, split into train, valid and test, with a record of what was dropped.

Three corpora are offered: the help of LibreOffice (real text), generated sentences (for machines without apt-get), and
a folder of one's own.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import generated_sentences
import libreoffice_help
from common import read_lines, run_as_script

PARTS = ("train", "valid", "test")
MAX_WORDS = 100
MAX_RATIO = 2.0
# Each page of the help falls into one of a thousand classes; of these so many are held out.
TEST_CLASSES = 50
VALID_CLASSES = 20
GENERATED_PAIRS = 22_000
# For one's own text: what surely fits the model's 1024 positions.
MAX_CHARACTERS = 1000


class Pair(NamedTuple):
    """A sentence and its translation; `group` names the text that they come from, which is held out as a whole."""

    group: str
    source: str
    target: str


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
    # ten characters of grace: short headings differ more in length than sentences do
    shorter, longer = sorted((len(source) + 10, len(target) + 10))
    if longer > MAX_RATIO * shorter:
        return f"one side more than {MAX_RATIO:g} times as long as the other"
    return None


def clean(pairs, dropped):
    """The pairs worth learning from, each once; `dropped` counts the others by reason."""
    kept, seen = [], set()
    for pair in pairs:
        reason = reason_to_drop(pair.source, pair.target)
        if reason is None and (pair.source, pair.target) in seen:
            reason = "repeats an earlier pair"
        if reason is None:
            seen.add((pair.source, pair.target))
            kept.append(pair)
        else:
            dropped[reason] += 1
    return kept


def part_of(group):
    """The part of the corpus that a group belongs to: a fixed function of its name, the same on every machine."""
    number = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "big") % 1000
    if number < TEST_CLASSES:
        return "test"
    if number < TEST_CLASSES + VALID_CLASSES:
        return "valid"
    return "train"


def split(pairs, dropped):
    """`{"train": pairs, "valid": ..., "test": ...}`, whole groups each; held-out sentences known from training go.

    A held-out pair is known if one of its sides has, letter for letter, the letters of a training sentence.
    """
    parts = {part: [] for part in PARTS}
    for pair in pairs:
        parts[part_of(pair.group)].append(pair)
    known_sources = {letters(pair.source) for pair in parts["train"]}
    known_targets = {letters(pair.target) for pair in parts["train"]}
    for part in ("valid", "test"):
        new = [p for p in parts[part] if letters(p.source) not in known_sources and letters(p.target) not in known_targets]
        dropped[f"{part} sentence that occurs in training"] += len(parts[part]) - len(new)
        parts[part] = new
    return parts


def own_languages(directory, source, target):
    """Source and target language of a folder with train.SOURCE and train.TARGET: what is not given is found there.

    Of two languages neither of which was named, English is the source.
    """
    if source and target:
        return source, target
    found = sorted(path.suffix[1:] for path in Path(directory).glob("train.*"))
    given = source or target or "en"
    if len(found) != 2 or given not in found:
        raise ValueError(
            f"the languages of {directory} are not plain from its files train.* (suffixes: {', '.join(found) or 'none'}); "
            "name them with --source and --target."
        )
    other = found[1 - found.index(given)]
    return (other, given) if target else (given, other)


def own_parts(directory, source, target, dropped):
    """The files train, valid and test of one's own folder as `{part: pairs}`, white space tidied.

    Raises ValueError if a file is missing, not UTF-8 or empty, or if the two sides differ in their number of lines.
    """
    parts = {}
    for part in PARTS:
        sides = []
        for language in (source, target):
            path = Path(directory) / f"{part}.{language}"
            # Line ends of other systems and odd spaces are white space to the tools that follow.
            sides.append([" ".join(line.split()) for line in read_lines(path)])
        if len(sides[0]) != len(sides[1]):
            raise ValueError(
                f"{directory}: {part}.{source} has {len(sides[0])} lines and {part}.{target} has {len(sides[1])}; line "
                "by line they must be translations of each other."
            )
        parts[part] = []
        for pair in zip(*sides):
            if not all(pair):
                dropped[f"{part}: empty"] += 1
            elif max(map(len, pair)) > MAX_CHARACTERS:
                dropped[f"{part}: longer than {MAX_CHARACTERS} characters"] += 1
            else:
                parts[part].append(Pair(str(directory), *pair))
    return parts


def write_corpus(directory, parts, source, target, manifest):
    """Write the parts in both languages and `manifest.json`; the folder appears complete or not at all."""
    directory = Path(directory)
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        for part, pairs in parts.items():
            for language, sentences in ((source, [p.source for p in pairs]), (target, [p.target for p in pairs])):
                text = "".join(sentence + "\n" for sentence in sentences)
                (temporary / f"{part}.{language}").write_bytes(text.encode("utf-8"))
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", "utf-8")
        shutil.rmtree(directory, ignore_errors=True)
        temporary.rename(directory)
    except OSError as error:
        raise ValueError(f"{directory} cannot be written: {error.strerror}.") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def make_corpus(corpus, source, target, packages, dropped):
    """`(parts, source, target, about)` of the corpus that was asked for. Raises ValueError."""
    if corpus == "auto":
        corpus = "libreoffice" if shutil.which("apt-get") else "generated"
    if corpus not in ("libreoffice", "generated"):
        if not Path(corpus).is_dir():
            raise ValueError(f"there is no folder '{corpus}'.")
        source, target = own_languages(corpus, source, target)
        return own_parts(corpus, source, target, dropped), source, target, {"corpus": str(Path(corpus).resolve())}
    source, target = source or "en", target or "de"
    if source == target:
        raise ValueError(f"source and target language are the same, '{source}'.")
    if corpus == "libreoffice":
        pairs, about = libreoffice_help.read(source, target, packages, dropped)
    else:
        print("NOT REAL TEXT: a corpus of generated sentences about numbers is used.", file=sys.stderr)
        pairs, about = generated_sentences.read(source, target, GENERATED_PAIRS)
    parts = split(clean((Pair(*pair) for pair in pairs), dropped), dropped)
    return parts, source, target, about


def main():
    parser = argparse.ArgumentParser(
        description="Make a parallel corpus: train, valid and test files in two languages, and a manifest.json that says "
        "where they come from and how many pairs were dropped for which reason.",
        epilog="example: python scripts/demo_corpus.py --packages runs/packages --out runs/corpus",
    )
    parser.add_argument(
        "--from",
        dest="corpus",
        default="auto",
        metavar="CORPUS",
        help="libreoffice: the help of LibreOffice, fetched with apt-get; generated: sentences about numbers, English to "
        "German; or a folder with train, valid and test files, their suffixes the languages (default: libreoffice, or "
        "generated where there is no apt-get)",
    )
    parser.add_argument("--source", help="source language (default: en, or what a folder's files say)")
    parser.add_argument("--target", help="target language (default: de, or what a folder's files say)")
    parser.add_argument("--packages", default="packages", help="folder to keep downloaded packages in")
    parser.add_argument("--out", required=True, help="folder of the corpus, replaced if it exists")
    args = parser.parse_args()
    for language in (args.source, args.target):
        if language is not None and not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z]+)?", language):
            raise ValueError(f"'{language}' is not a language code such as en, de or pt-BR.")

    dropped = Counter()
    parts, source, target, about = make_corpus(args.corpus, args.source, args.target, args.packages, dropped)
    for part, pairs in parts.items():
        if not pairs:
            raise ValueError(f"no sentence pairs are left for {part}.")
    manifest = {
        **about,
        "languages": {"source": source, "target": target},
        "pairs": {part: len(pairs) for part, pairs in parts.items()},
        "dropped": dict(dropped.most_common()),
    }
    write_corpus(args.out, parts, source, target, manifest)
    for part, pairs in parts.items():
        print(f"{part}: {len(pairs)} pairs")
    for reason, count in dropped.most_common():
        print(f"dropped {count}: {reason}")


if __name__ == "__main__":
    run_as_script(main)
