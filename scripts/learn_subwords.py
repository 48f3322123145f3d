"""Byte pair encoding as subword-nmt learns it (Sennrich et al. 2016), several times as fast.

`subword-nmt learn-joint-bpe-and-vocab` looks through all pairs of symbols for the most frequent one, for each merge
anew. Here that search goes over the few pairs that can be it; everything else is done by subword-nmt's own functions,
in the same order, so that the merges are the same.
"""

from collections import Counter

from subword_nmt.learn_bpe import get_pair_statistics, prune_stats, replace_pair, update_pair_statistics
from tqdm import tqdm

END_OF_WORD = "</w>"
# How far below the most frequent pair those are that are looked through in the merges that follow.
REACH = 0.9


class _MostFrequent:
    """Finds the pair with the greatest count in `counts`, ties to the later in order, among those above a floor."""

    def __init__(self, counts):
        self.restart(counts)

    def restart(self, counts):
        """Begin anew with other counts."""
        self.counts = counts
        self._floor = None
        self._above = set()

    def find(self):
        """The pair, or None where there are none."""
        while True:
            counts = self.counts
            self._above = {pair for pair in self._above if pair in counts and counts[pair] >= self._floor}
            if self._above:
                return max(self._above, key=lambda pair: (counts[pair], pair))
            if not counts:
                return None
            self._floor = max(counts.values()) * REACH
            if self._floor <= 0:
                return max(counts, key=lambda pair: (counts[pair], pair))
            self._above = {pair for pair, count in counts.items() if count >= self._floor}

    def raised(self, pairs):
        """Tell which pairs may have become more frequent."""
        if self._floor is not None:
            counts, floor = self.counts, self._floor
            self._above.update(pair for pair in pairs if counts.get(pair, 0) >= floor)


def characters(words):
    """How many different characters words hold within and at their end, counted apart as BPE does."""
    within = {character for word in words for character in word[:-1]}
    return len(within) + len({word[-1] for word in words})


def learn(words, merges, min_frequency=2, progress=True):
    """The lines of a codes file: at most `merges` merges, learned from `{word: count}`.

    Equal to what subword-nmt writes for the same words. Fewer merges come out where no pair of symbols is left that
    occurs `min_frequency` times.
    """
    vocabulary = Counter()
    for word, count in words.items():
        vocabulary[(*word[:-1], word[-1] + END_OF_WORD)] += count
    entries = sorted(vocabulary.items(), key=lambda entry: entry[1], reverse=True)
    counts, places = get_pair_statistics(entries)
    all_counts = counts.copy()
    lines = ["#version: 0.2"]
    if not counts:
        return lines
    threshold = max(counts.values()) / 10
    search = _MostFrequent(counts)
    for merge in tqdm(range(merges), unit=" merges", mininterval=1, disable=not progress):
        best = search.find()
        if best is None or (merge and counts[best] < threshold):
            # subword-nmt sets rare pairs aside, and takes them back when the frequent ones are used up
            prune_stats(counts, all_counts, threshold)
            counts = all_counts.copy()
            search.restart(counts)
            best = search.find()
            threshold = counts[best] * merge / (merge + 10000.0)
            prune_stats(counts, all_counts, threshold)
        if counts[best] < min_frequency:
            break
        lines.append(" ".join(best))
        changes = replace_pair(best, entries, places)
        update_pair_statistics(best, changes, counts, places)
        counts[best] = 0
        new = "".join(best)
        search.raised(
            {pair for _, word, _, _ in changes for pair in zip(word, word[1:]) if new in pair}
        )
        if not merge % 100:
            prune_stats(counts, all_counts, threshold)
    return lines
