"""Which test sentences have no near-duplicate in the training text?

Texts such as manuals repeat themselves with one word changed. A score over sentences that the model has all but seen
says little about translation, so the quick start reports the score with and without them.
"""

import argparse
import math
import re
from collections import Counter, defaultdict

from common import atomic_path, read_lines, run_as_script

THRESHOLD = 0.6


def words(sentence):
    """The set of lower-case words and numbers of a sentence."""
    return frozenset(re.findall(r"\w+", sentence.lower()))


def overlap(one, other):
    """Words that two sets share, as a share of all their words (Jaccard index); two empty sets overlap fully."""
    union = len(one | other)
    return len(one & other) / union if union else 1.0


class NearDuplicateIndex:
    """Finds whether a sentence overlaps with any training sentence by at least `threshold`, without comparing it to all.

    Two sets of words that overlap by t share at least ceil(t * size) words of each. So with the words of every sentence
    sorted from rare to frequent, the first size - ceil(t * size) + 1 words of the one must meet the same of the other:
    only training sentences listed under one of those rare words need comparing, and only those of a similar size.
    """

    def __init__(self, training_sentences, threshold=THRESHOLD):
        if not 0 < threshold <= 1:
            raise ValueError(f"the threshold for near-duplicates must lie in (0, 1], not {threshold}.")
        self.threshold = threshold
        self._sets = list({words(sentence) for sentence in training_sentences})
        self._frequency = Counter(word for one in self._sets for word in one)
        self._listed_under = defaultdict(list)
        for number, one in enumerate(self._sets):
            for word in self._rare_words(one):
                self._listed_under[word].append(number)
        self._has_empty = frozenset() in self._sets

    def _rare_words(self, one):
        # the nudge keeps 0.6 * 5 = 3.0000000000000004 from counting as more than 3
        needed = math.ceil(self.threshold * len(one) - 1e-9)
        ordered = sorted(one, key=lambda word: (self._frequency[word], word))
        return ordered[: len(one) - needed + 1]

    def contains_near(self, sentence):
        one = words(sentence)
        if not one:
            return self._has_empty
        candidates = {number for word in self._rare_words(one) for number in self._listed_under.get(word, ())}
        smallest, largest = self.threshold * len(one) - 1e-9, len(one) / self.threshold + 1e-9
        return any(
            smallest <= len(self._sets[number]) <= largest and overlap(one, self._sets[number]) >= self.threshold
            for number in candidates
        )


def main():
    parser = argparse.ArgumentParser(
        description="Write the numbers (from 1) of the test lines that have no near-duplicate in the training text: no "
        "training sentence with which they share THRESHOLD of all words of the two.",
        epilog="example: python scripts/near_duplicates.py train.en test.en --out test.new-lines",
    )
    parser.add_argument("train", help="training text, one sentence a line")
    parser.add_argument("test", help="test text of the same language")
    parser.add_argument("--out", required=True, help="file of line numbers to write")
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help="default: %(default)s")
    args = parser.parse_args()
    index = NearDuplicateIndex(read_lines(args.train), args.threshold)
    test = read_lines(args.test)
    new = [number for number, sentence in enumerate(test, start=1) if not index.contains_near(sentence)]
    with atomic_path(args.out) as temporary:
        temporary.write_text("".join(f"{number}\n" for number in new))
    print(f"{len(new)} of {len(test)} test lines have no training sentence with word overlap >= {args.threshold}.")


if __name__ == "__main__":
    run_as_script(main)
