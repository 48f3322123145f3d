"""Write small treebanks from a grammar of a few English words, for trying the parser out.

    python scripts/toy_trees.py runs/trees
    python scripts/parse_trees.py prepare runs/trees/data --train runs/trees/train.mrg --valid runs/trees/valid.mrg \\
        --test runs/trees/test.mrg

The sentences are ambiguous as English is ("saw the dog with a hat"), but the words decide: some nouns are carried and
go with the noun before them, others are tools and go with the verb. Everything follows from --seed.
"""

import argparse
import random
from pathlib import Path

from common import atomic_path, run_as_script
from trees import Leaf, Tree

NOUNS = "dog cat child teacher singer farmer queen king nurse pilot".split()
CARRIED = "hat scarf beard bag".split()
TOOLS = "telescope camera hammer rope".split()
NAMES = "Ada Kurt Emmy Alan Grace".split()
ADJECTIVES = "old young tall quiet happy".split()
TRANSITIVE = "saw met followed heard called".split()
INTRANSITIVE = "slept laughed waited sang".split()
SAYING = "said thought knew".split()
ADVERBS = "often quietly soon".split()


class Grammar:
    """Random trees; ``random_`` decides."""

    def __init__(self, random_):
        self.random = random_

    def sentence(self, depth=0):
        children = [self.noun_phrase(depth), self.verb_phrase(depth)]
        if depth == 0:
            children.append(Leaf(".", "."))
        return Tree("S", children)

    def noun_phrase(self, depth):
        if self.random.random() < 0.25:
            return Tree("NP", [Leaf("NNP", self.random.choice(NAMES))])
        phrase = self._simple(NOUNS)
        choice = self.random.random()
        if choice < 0.15:
            return Tree("NP", [phrase, Tree("PP", [Leaf("IN", "with"), self._simple(CARRIED)])])
        if choice < 0.25 and depth < 1:
            clause = Tree("SBAR", [Tree("WHNP", [Leaf("WP", "who")]), Tree("S", [self.verb_phrase(depth + 1)])])
            return Tree("NP", [phrase, clause])
        if choice < 0.32:
            return Tree("NP", [phrase, Leaf("CC", "and"), self._simple(NOUNS)])
        return phrase

    def verb_phrase(self, depth):
        choice = self.random.random()
        if choice < 0.2 and depth < 1:
            return Tree("VP", [self._word("VBD", SAYING),
                               Tree("SBAR", [Leaf("IN", "that"), self.sentence(depth + 1)])])
        if choice < 0.4:
            children = [self._word("VBD", INTRANSITIVE)]
        else:
            children = [self._word("VBD", TRANSITIVE), self.noun_phrase(depth + 1)]
            if self.random.random() < 0.25:
                children.append(Tree("PP", [Leaf("IN", "with"), self._simple(TOOLS)]))
        if self.random.random() < 0.2:
            children.append(Tree("ADVP", [self._word("RB", ADVERBS)]))
        return Tree("VP", children)

    def _simple(self, nouns):
        adjectives = [self._word("JJ", ADJECTIVES) for _ in range(self.random.choice((0, 0, 1)))]
        return Tree("NP", [Leaf("DT", self.random.choice(("the", "a"))), *adjectives, self._word("NN", nouns)])

    def _word(self, tag, words):
        return Leaf(tag, self.random.choice(words))


def write(folder, train, valid, seed):
    """``train.mrg``, ``valid.mrg`` and ``test.mrg``; no sentence of the last two stands in an earlier file."""
    grammar = Grammar(random.Random(seed))
    folder.mkdir(parents=True, exist_ok=True)
    seen = set()
    for split, count in (("train", train), ("valid", valid), ("test", valid)):
        trees = []
        while len(trees) < count:
            tree = str(grammar.sentence())
            if split == "train" or tree not in seen:
                trees.append(tree)
        seen.update(trees)
        with atomic_path(folder / f"{split}.mrg") as path:
            path.write_text("".join(f"{tree}\n" for tree in trees), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write train.mrg, valid.mrg and test.mrg")
    parser.add_argument("--train", type=int, default=4000, help="trees to train on (default %(default)s)")
    parser.add_argument("--valid", type=int, default=200, help="trees of valid and of test (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if min(arguments.train, arguments.valid) < 1:
        raise ValueError("--train and --valid must be at least 1")
    write(arguments.folder, arguments.train, arguments.valid, arguments.seed)
    print(f"three treebanks: {arguments.folder}")


if __name__ == "__main__":
    run_as_script(main)
