"""Raw parallel text to a data directory of fairseq, with all that belongs to a model trained on it."""

import argparse
import json
import os
import platform
import re
import shutil
import sys
from collections import Counter
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from binarise import binarise, make_dictionary
from common import run_as_script
from corpus_recipes import read_recipe
from learn_subwords import characters, learn
from parallel import blocks_of, ordered_map
from parallel_text import Reader, find_corpus
from raw_text import SETTINGS, read_codes
from repeats import first_occurrences
from sentence_pairs import NOT_UTF8, PLACES, PairTokenizer, TextSettings, digest
from steps import Steps
from tqdm import tqdm

PARTS = ("train", "valid", "test")
REPEATED = "repeats an earlier pair"
# What surely fits the 1024 positions of a model.
MAX_SUBWORDS = 1000
TOO_MANY_SUBWORDS = f"longer than {MAX_SUBWORDS} subwords"
PAIRS_AT_ONCE = 1000
VOCABULARY = 37000  # Section 5.1
DEFAULTS = {
    "vocabulary": None, "merges": None, "threshold": 0, "max_words": 250, "max_ratio": 3.0, "normalize": "source",
    "escape": True, "keep_repeats": False, "remove_held_out": False,
}
PACKAGES = ("sacremoses", "subword-nmt", "numpy")
FAIRSEQS = ("fairseq", "ve-fairseq", "fairseq-fixed")


class Preparation:
    """One run: the corpora, the settings, and the steps that lead to the data directory."""

    def __init__(self, corpora, settings, out, workers):
        self.corpora = corpora
        self.settings = settings
        self.out = Path(out)
        self.workers = workers
        self.languages = settings["source"], settings["target"]
        self.text = TextSettings(**{name: settings[name] for name in TextSettings.__dataclass_fields__})
        self.steps = Steps(part_folder(self.out), self.identity())

    def identity(self):
        """All that the outcome depends on."""
        files = {}
        for part, corpora in self.corpora.items():
            files[part] = [
                [str(path), path.stat().st_size, path.stat().st_mtime_ns] for corpus in corpora for path in corpus.paths
            ]
        return {"settings": self.settings, "files": files, "versions": versions()}

    def run(self):
        """Do all steps that are not done; the data directory appears with the last."""
        tokenised = {}
        for part in ("valid", "test", "train"):  # those held out are known before training pairs are chosen
            tokenised[part] = [
                self.steps.run(f"{part}-{number}-tokenised", self.tokenise, part, corpus, tokenised)
                for number, corpus in enumerate(self.corpora[part], start=1)
            ]
        first = None
        if not self.settings["keep_repeats"]:
            first = self.steps.run("repeats", self.find_repeats, tokenised["train"]) / "first.npy"
        codes = self.steps.run("codes", self.learn_codes, tokenised["train"], first) / "codes"
        subwords = self.steps.run("subwords", self.cut, tokenised, first, codes)
        data = self.steps.run("data", self.write_data, tokenised, codes, subwords)
        return data

    def tokenise(self, folder, part, corpus, tokenised):
        """The pairs of one corpus that are kept, as words, and a report on the others."""
        held_out = (frozenset(), frozenset())
        if part == "train" and self.settings["remove_held_out"]:
            held_out = self.held_out(tokenised["valid"] + tokenised["test"])
        reader = Reader(corpus, *self.languages)
        arguments = (self.text, part == "train", reader.reason_if_missing, held_out)
        read, dropped, found, places = 0, Counter(), Counter(), {}
        size = sum(path.stat().st_size for path in corpus.paths)
        paths = [folder / language for language in self.languages]
        with open(paths[0], "wb") as source, open(paths[1], "wb") as target, open(folder / "digests", "wb") as digests, \
                tqdm(total=size, unit="B", unit_scale=True, mininterval=1, desc=corpus.source.name) as bar:
            for block in ordered_map(PairTokenizer, arguments, blocks_of(reader, PAIRS_AT_ONCE), self.workers):
                source.write(block.source)
                target.write(block.target)
                digests.write(block.digests)
                read += block.read
                dropped += block.dropped
                found += block.found
                for what, side, number in block.places:
                    place = f"{corpus.target if side == 1 else corpus.source}:{number}"
                    if what == NOT_UTF8 and part != "train":
                        raise ValueError(f"{place} is not UTF-8; mend it, since lines of valid and test are not dropped for that.")
                    noted = places.setdefault(what, [])
                    if len(noted) < PLACES:
                        noted.append(place)
                bar.update(reader.read_bytes - bar.n)
        if not read:
            raise ValueError(f"{' and '.join(map(str, corpus.paths))} hold no sentence pairs.")
        write_json(folder / "report.json", {
            "files": reader.files, "read": read, "dropped": ordered(dropped), "found": ordered(found), "places": places,
        })

    def held_out(self, folders):
        """Digests of the sentences of valid and test, of each side."""
        sides = []
        for language in self.languages:
            sides.append(frozenset(
                digest(line.decode("utf-8").removesuffix("\n")) for folder in folders for line in open(folder / language, "rb")
            ))
        return tuple(sides)

    def find_repeats(self, folder, tokenised):
        """For each training pair, whether it is the first of its kind."""
        digests = folder / "digests"
        with open(digests, "wb") as all_digests:
            for step in tokenised:
                with open(step / "digests", "rb") as some:
                    shutil.copyfileobj(some, all_digests)
        np.save(folder / "first.npy", first_occurrences(digests))
        digests.unlink()

    def lines(self, tokenised, language, first=None):
        """The tokenised lines of a language, as bytes, in order; with `first`, without those pairs that repeat others."""
        wanted = None if first is None else iter(np.load(first, mmap_mode="r"))
        for step in tokenised:
            with open(step / language, "rb") as lines:
                for line in lines:
                    if wanted is None or next(wanted):
                        yield line

    def learn_codes(self, folder, tokenised, first):
        """Byte pair encoding of both languages together."""
        words = Counter()
        for language in self.languages:
            for line in tqdm(self.lines(tokenised, language, first), unit=" lines", mininterval=1, desc="counting words"):
                words.update(line.decode("utf-8").split())
        if not words:
            raise ValueError("no training pairs are left after the filters.")
        merges = self.settings["merges"]
        if merges is None:
            vocabulary, single = self.settings["vocabulary"], characters(words)
            merges = vocabulary - single
            if merges < 1:
                raise ValueError(f"--vocabulary {vocabulary} is too small: single characters alone are {single}.")
        lines = learn(words, merges)
        if len(lines) == 1:
            raise ValueError("there is nothing to learn subwords from: no two characters stand together twice in training.")
        codes = "".join(line + "\n" for line in lines)
        (folder / "codes").write_bytes(codes.encode("utf-8"))

    def cut(self, folder, tokenised, first, codes):
        """Each part as subwords, and their counts in training."""
        report, counts = {}, Counter()
        for part in PARTS:
            if not self.corpora[part]:
                continue
            repeated = first if part == "train" else None
            pairs = zip(*(self.lines(tokenised[part], language, repeated) for language in self.languages))
            dropped = Counter()
            paths = [folder / f"{part}.{language}" for language in self.languages]
            with open(paths[0], "wb") as source, open(paths[1], "wb") as target, \
                    tqdm(unit=" pairs", mininterval=1, desc=f"{part} to subwords") as bar:
                blocks = blocks_of(pairs, PAIRS_AT_ONCE)
                kept = 0
                for text, read, some_counts in ordered_map(Cutter, (codes, part == "train"), blocks, self.workers):
                    source.write(text[0])
                    target.write(text[1])
                    of_block = text[0].count(b"\n")
                    kept += of_block
                    if read > of_block:
                        dropped[TOO_MANY_SUBWORDS] += read - of_block
                    counts.update(some_counts)
                    bar.update(read)
            if not kept:
                raise ValueError(f"no sentence pairs are left for {part}.")
            if repeated is not None:
                if repeats := int((~np.load(repeated)).sum()):
                    dropped[REPEATED] += repeats
            report[part] = {"kept": kept, "dropped": ordered(dropped)}
        write_json(folder / "report.json", report)
        write_json(folder / "counts.json", dict(sorted(counts.items())))

    def write_data(self, folder, tokenised, codes, subwords):
        """Dictionary and binary files, the codes and the manifest."""
        source, target = self.languages
        dictionary = make_dictionary(json.loads((subwords / "counts.json").read_text("utf-8")), self.settings["threshold"])
        kept = json.loads((subwords / "report.json").read_text("utf-8"))
        unknown = {}
        for language in self.languages:
            dictionary.save(str(folder / f"dict.{language}.txt"))
        for part in PARTS:
            for language in self.languages if self.corpora[part] else ():
                name = f"{part}.{language}"
                with tqdm(total=kept[part]["kept"], unit=" lines", mininterval=1, desc=f"{name} to numbers") as bar:
                    lines, unknown[name] = binarise(
                        subwords / name, dictionary, folder / f"{part}.{source}-{target}.{language}", self.workers, bar.update
                    )
                assert lines == kept[part]["kept"], f"{name} has {lines} lines instead of {kept[part]['kept']}"
        shutil.copyfile(codes, folder / "codes")
        write_json(folder / SETTINGS, self.manifest(tokenised, subwords, len(dictionary), unknown, folder))

    def manifest(self, tokenised, subwords, entries, unknown, folder):
        normalize_source, normalize_target = self.text.normalized_sides
        cut = json.loads((subwords / "report.json").read_text("utf-8"))
        pairs = {}
        for part in PARTS:
            if not self.corpora[part]:
                continue
            reports = [json.loads((step / "report.json").read_text("utf-8")) for step in tokenised[part]]
            dropped, found = Counter(), Counter()
            for report in (*reports, cut[part]):
                dropped += Counter(report["dropped"])
                found += Counter(report.get("found", {}))
            read, kept = sum(report["read"] for report in reports), cut[part]["kept"]
            assert read == kept + dropped.total(), f"{part}: {read} pairs read, {kept} kept, {dropped.total()} dropped"
            pairs[part] = {
                "read": read, "kept": kept, "dropped": ordered(dropped), "found": ordered(found), "corpora": reports,
            }
        return {
            "languages": dict(zip(("source", "target"), self.languages)),
            "tokenizer": {
                "normalize_source": normalize_source, "normalize_target": normalize_target, "escape": self.text.escape,
            },
            "codes": "codes",
            "settings": self.settings,
            "pairs": pairs,
            "dictionary": {"entries": entries, "unknown subwords": unknown},
            "versions": versions(),
            "files": {path.name: file_hash(path) for path in sorted(folder.iterdir())},
        }


class Cutter:
    """Called with tokenised pairs as bytes, gives `((source, target) as subwords, pairs read, counts of subwords)`."""

    def __init__(self, codes, count):
        self._bpe = read_codes(codes)
        self._count = count
        self._known = {}

    def __call__(self, pairs):
        kept = [], []
        for pair in pairs:
            cut = [[self.cut(word) for word in side.decode("utf-8").split()] for side in pair]
            sides = [" ".join(words) for words in cut]
            if max(side.count(" ") for side in sides) < MAX_SUBWORDS:
                for lines, side in zip(kept, sides):
                    lines.append(side)
        counts = Counter(word for lines in kept for line in lines for word in line.split()) if self._count else {}
        return ["".join(line + "\n" for line in lines).encode("utf-8") for lines in kept], len(pairs), counts

    def cut(self, word):
        """A word as subwords with spaces between."""
        known = self._known.get(word)
        if known is None:
            if len(self._known) > 500_000:  # a language has no end of words, memory has
                self._known.clear()
                self._bpe.cache.clear()
            known = self._known[word] = " ".join(self._bpe.segment_tokens([word]))
        return known


def part_folder(out):
    """Where the steps towards a data directory are."""
    return out.with_name(f"{out.name}.part")


def is_of(manifest, corpora, settings):
    """Whether a manifest tells of these corpora and settings; files are known by their names and sizes."""
    def files(part):
        return [[str(path), path.stat().st_size] for corpus in corpora[part] for path in corpus.paths]

    def told(part):
        reports = manifest["pairs"].get(part, {}).get("corpora", [])
        return [[file["path"], file["bytes"]] for report in reports for file in report["files"]]

    return manifest.get("settings") == settings and all(files(part) == told(part) for part in PARTS)


def ordered(counter):
    """Counts, the greatest first; those that are equal by name."""
    return dict(sorted(counter.items(), key=lambda item: (-item[1], item[0])))


def write_json(path, content):
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


def file_hash(path):
    with open(path, "rb") as file:
        hashed = sha256()
        while block := file.read(1 << 20):
            hashed.update(block)
    return hashed.hexdigest()


def versions():
    """Versions of what the text went through."""
    found = {"python": platform.python_version()}
    for package in (*PACKAGES, *FAIRSEQS):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            if package not in FAIRSEQS:
                raise
    return found


def cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def parse():
    parser = argparse.ArgumentParser(
        description="Make a data directory for fairseq-train of raw parallel text: mend and check lines, tokenise, filter,"
        " learn and apply joint subwords (BPE), number them. Started again after an interruption, it goes on with the step"
        " that was not finished. The directory's prepare.json counts what was dropped and mended, and why.",
        epilog="example: python scripts/prepare.py --source en --target de --train corpus --valid dev --test test"
        " --out data-bin/mine",
    )
    parser.add_argument("--source", help="source language, such as en")
    parser.add_argument("--target", help="target language, such as de")
    for part in PARTS:
        parser.add_argument(f"--{part}", nargs="+", default=[], metavar="CORPUS",
                            help="corpora: CORPUS.SOURCE and CORPUS.TARGET, or one .tsv or .tmx file; each may be"
                            " compressed (.gz, .xz, .bz2)")
    parser.add_argument("--recipe", help="a corpus that has a name, instead of the above: see scripts/download.py --list")
    parser.add_argument("--raw", type=Path, help="where download.py put the recipe's files (default: data/RECIPE)")
    parser.add_argument("--out", type=Path, required=True, help="data directory to make")
    parser.add_argument("--workers", type=int, default=cores(), help="processes (default: one per core, %(default)s)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--vocabulary", type=int, help=f"entries of the joint vocabulary, about (default: {VOCABULARY})")
    size.add_argument("--merges", type=int, help="number of BPE merges, instead")
    parser.add_argument("--threshold", type=int, help="subwords rarer than this in training become unknown (default: 0)")
    parser.add_argument("--max-words", type=int, help="longest sentence of training (default: 250; 0 for no limit)")
    parser.add_argument("--max-ratio", type=float, help="how many times as many words one side of a training pair may have"
                        " as the other (default: 3; 0 for no limit)")
    parser.add_argument("--normalize", choices=["source", "both", "none"], help="sides whose punctuation is normalised"
                        " (default: source)")
    parser.add_argument("--no-escape", dest="escape", action="store_const", const=False,
                        help="do not write & < > | [ ] and quotes as Moses does (&amp; and so on)")
    parser.add_argument("--keep-repeats", action="store_const", const=True, help="keep training pairs that repeat others")
    parser.add_argument("--remove-held-out", action="store_const", const=True,
                        help="drop training pairs of which one sentence occurs in valid or test")
    parser.add_argument("--keep-steps", action="store_true", help="keep the files of the steps, in the folder OUT.part")
    return parser.parse_args()


def arrange(args):
    """`(corpora by part, settings)` of the command line and the recipe. Raises ValueError."""
    recipe = {}
    if args.recipe:
        if args.train or args.valid or args.test or args.source or args.target:
            raise ValueError("--recipe names the corpora and languages itself; leave out --source, --target, --train, ...")
        source, target, corpora, recipe = read_recipe(args.recipe, args.raw or Path("data") / args.recipe)
    else:
        source, target = args.source, args.target
        if not source or not target or not args.train:
            raise ValueError("give --source, --target and --train, or --recipe; see --help.")
        for language in (source, target):
            if not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z]+)?", language):
                raise ValueError(f"'{language}' is not a language code such as en, de or pt-BR.")
        if source == target:
            raise ValueError(f"source and target language are the same, '{source}'.")
        corpora = {part: [find_corpus(name, source, target) for name in getattr(args, part)] for part in PARTS}
    given = {name: getattr(args, name) for name in DEFAULTS if getattr(args, name) is not None}
    if "merges" in given or "vocabulary" in given:
        recipe = {name: value for name, value in recipe.items() if name not in ("merges", "vocabulary")}
    settings = {"source": source, "target": target, **DEFAULTS, **recipe, **given}
    if settings["merges"] is None and settings["vocabulary"] is None:
        settings["vocabulary"] = VOCABULARY
    for name, least in (("merges", 1), ("vocabulary", 1), ("threshold", 0), ("max_words", 0), ("max_ratio", 0)):
        value = settings[name]
        if value is not None and (value < least or name == "max_ratio" and 0 < value < 1):
            raise ValueError(f"--{name.replace('_', '-')} cannot be {value}.")
    if args.workers < 1:
        raise ValueError(f"--workers must be at least 1, not {args.workers}.")
    return corpora, settings


def summary(manifest):
    """What was read, kept, dropped and mended, for people."""
    lines = []
    for part, pairs in manifest["pairs"].items():
        lines.append(f"{part}: {pairs['kept']} of {pairs['read']} pairs")
        lines += [f"  dropped {count}: {reason}" for reason, count in pairs["dropped"].items()]
        lines += [f"  mended {count} lines: {what}" for what, count in pairs["found"].items()]
    lines.append(f"dictionary: {manifest['dictionary']['entries']} entries")
    return "\n".join(lines)


def main():
    args = parse()
    corpora, settings = arrange(args)
    manifest = args.out / SETTINGS
    if manifest.is_file():
        if not is_of(json.loads(manifest.read_text("utf-8")), corpora, settings):
            raise ValueError(
                f"{args.out} is a data directory made of other text or with other settings (see {manifest}); remove it or"
                " choose another --out."
            )
        if not args.keep_steps:  # left if the last run was stopped at its very end
            shutil.rmtree(part_folder(args.out), ignore_errors=True)
        print(f"{args.out} was made before, of the same text with the same settings.")
        return
    if args.out.exists():
        raise ValueError(f"{args.out} exists and was not made by this script; choose another --out.")
    preparation = Preparation(corpora, settings, args.out, args.workers)
    data = preparation.run()
    data.rename(args.out)
    if not args.keep_steps:
        preparation.steps.remove()
    print(summary(json.loads(manifest.read_text("utf-8"))))
    print(f"Train with: fairseq-train {args.out} --user-dir vaswani_plugin --task vaswani_translation --arch vaswani2017")


if __name__ == "__main__":
    run_as_script(main)
