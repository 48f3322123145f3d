"""Constituency parsing as translation, Section 6.3: from bracketed trees to labelled F1.

    python scripts/parse_trees.py prepare runs/wsj --train train.mrg --valid valid.mrg --test test.mrg
    fairseq-train runs/wsj/bin --user-dir vaswani_plugin --task vaswani_translation --arch vaswani2017_parsing \\
        --save-dir runs/wsj/checkpoints
    python scripts/parse_trees.py parse runs/wsj --path runs/wsj/checkpoints/checkpoint_last.pt
    python scripts/parse_trees.py score gold.mrg parsed.mrg

Trees are read in Penn Treebank's brackets, over any number of lines; traces and function tags are left out. `parse`
searches as the paper does (beam 21, length penalty 0.3, at most 300 tokens more than the sentence has), restores a
tree from every output, writes them, and scores them like EVALB with COLLINS.prm: labelled brackets without TOP and
punctuation. A treebank is yours to give; scripts/toy_trees.py makes a tiny one.
"""

import argparse
import re
from pathlib import Path

import commands
import trees
from common import atomic_path, read_lines, run_as_script

SOURCE, TARGET = "words", "tree"
SPLITS = ("train", "valid", "test")


def load(path):
    """The normalised trees of a file. Raises ValueError."""
    found = [trees.normalise(tree) for tree in trees.read("\n".join(read_lines(path)), path)]
    if not found or None in found:
        raise ValueError(f"{path} holds no trees, or one without words")
    return found


def prepare(arguments):
    """Write words, linearised trees and gold trees of each split, and the data directory."""
    splits = {split: load(getattr(arguments, split)) for split in SPLITS}
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for split, gold in splits.items():
        texts = {
            SOURCE: [" ".join(leaf.word for leaf in tree.leaves()) for tree in gold],
            TARGET: [" ".join(trees.linearise(tree)) for tree in gold],
            "gold": map(str, gold),
        }
        for suffix, lines in texts.items():
            with atomic_path(arguments.folder / f"{split}.{suffix}") as path:
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    data = commands.binarize(arguments.folder, SOURCE, TARGET, ["--nwordssrc", arguments.vocabulary])
    counts = ", ".join(f"{len(gold)} {split}" for split, gold in splits.items())
    print(f"{counts} trees; the data directory: {data}")


def parse(arguments):
    """Generate with Section 6.3's search, restore trees, write and score them."""
    gold_file = arguments.folder / f"{arguments.split}.gold"
    gold = load(gold_file)
    log = arguments.folder / f"{arguments.split}.generate.log"
    log.unlink(missing_ok=True)
    commands.run("fairseq-generate", [
        arguments.folder / "bin", "--user-dir", commands.PLUGIN, "--task", "vaswani_translation",
        "--path", arguments.path, "--gen-subset", arguments.split, "--beam", 21, "--lenpen", 0.3,
        "--max-len-a", 1, "--max-len-b", 300, "--batch-size", arguments.batch_size,
    ], log)
    outputs = hypotheses(log.read_text(encoding="utf-8"), len(gold))
    parsed, repaired = [], 0
    for tokens, tree in zip(outputs, gold):
        # A parser is not told the tags: its words stand under XX.
        restored, changed = trees.restore(tokens, [trees.Leaf(trees.WORD, leaf.word) for leaf in tree.leaves()])
        parsed.append(restored)
        repaired += changed
    file = arguments.folder / f"{arguments.split}.parsed"
    with atomic_path(file) as path:
        path.write_text("".join(f"{tree}\n" for tree in parsed), encoding="utf-8")
    print(f"{len(parsed)} trees, {repaired} of them repaired: {file}")
    report(trees.score(gold, parsed))


def hypotheses(log, count):
    """The best output of each sentence, as tokens, in the order of the file. Raises ValueError."""
    found = {int(number): tokens.split() for number, tokens in re.findall(r"^H-(\d+)\t\S+\t?(.*)$", log, re.MULTILINE)}
    missing = [number for number in range(count) if number not in found]
    if missing:
        raise ValueError(f"sentence {missing[0] + 1} has no output: it is longer than the model's positions")
    return [found[number] for number in range(count)]


def score(arguments):
    """Compare two files of trees."""
    report(trees.score(load(arguments.gold), load(arguments.parsed)))


def report(result):
    print(f"labelled brackets: {result.matched} matched, {result.gold} gold, {result.parsed} parsed")
    print(f"precision {100 * result.precision:.2f}  recall {100 * result.recall:.2f}  F1 {100 * result.f1:.2f}"
          f"  exact {100 * result.exact / result.sentences:.2f}")


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    action = actions.add_parser("prepare", help=prepare.__doc__, description=prepare.__doc__)
    action.add_argument("folder", type=Path, help="where to write; the data directory is FOLDER/bin")
    for split in SPLITS:
        action.add_argument(f"--{split}", type=Path, required=True, metavar="FILE", help=f"bracketed trees of {split}")
    action.add_argument("--vocabulary", type=int, default=16_000,
                        help="entries for words and brackets (default %(default)s, the paper's for WSJ alone)")
    action.set_defaults(act=prepare)
    action = actions.add_parser("parse", help=parse.__doc__, description=parse.__doc__)
    action.add_argument("folder", type=Path, help="a folder of `prepare`")
    action.add_argument("--path", required=True, help="the checkpoint")
    action.add_argument("--split", default="test", choices=SPLITS)
    action.add_argument("--batch-size", type=int, default=16, help="sentences at a time (default %(default)s)")
    action.set_defaults(act=parse)
    action = actions.add_parser("score", help=score.__doc__, description=score.__doc__)
    action.add_argument("gold", type=Path)
    action.add_argument("parsed", type=Path)
    action.set_defaults(act=score)
    return parser.parse_args()


def main():
    arguments = _arguments()
    arguments.act(arguments)


if __name__ == "__main__":
    run_as_script(main)
