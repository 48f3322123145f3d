"""Raw pairs of lines to pairs of tokenised sentences, or the reason why a pair is dropped."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field

from raw_text import Words

NOT_UTF8 = "not UTF-8"
EMPTY = "empty"
HELD_OUT = "has a sentence of valid or test"
DIGEST = 16
# So many places are kept of each thing that was dropped or mended, to look at.
PLACES = 5


@dataclass(frozen=True)
class TextSettings:
    """How raw text becomes words, and which training pairs are kept.

    normalize: on which sides punctuation is normalised, "source", "both" or "none"
    max_words, max_ratio: limits of the filters, in words, for training pairs; 0 for none
    """

    source: str
    target: str
    normalize: str = "source"
    escape: bool = True
    max_words: int = 250
    max_ratio: float = 3.0

    @property
    def normalized_sides(self):
        return self.normalize in ("source", "both"), self.normalize == "both"


@dataclass
class Block:
    """What became of a block of pairs.

    source, target: the tokenised lines, as bytes; digests: `DIGEST` bytes for each pair kept; read: pairs; dropped:
    reasons and counts; found: what was mended, and in how many lines; places: `(what, side or None, line number)`, the
    first of each
    """

    source: bytes = b""
    target: bytes = b""
    digests: bytes = b""
    read: int = 0
    dropped: Counter = field(default_factory=Counter)
    found: Counter = field(default_factory=Counter)
    places: list = field(default_factory=list)


def digest(*texts):
    """`DIGEST` bytes that tell texts apart."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=DIGEST).digest()


class PairTokenizer:
    """Called with `[(number, source, target), ...]` of one corpus, gives a `Block`.

    Args:
        settings: `TextSettings`
        training: whether the filters are used
        reason_if_missing: why a side may be None
        held_out: digests of the sentences that no training pair may have, `(of the source, of the target)`
    """

    def __init__(self, settings, training, reason_if_missing, held_out=(frozenset(), frozenset())):
        self.settings = settings
        self.training = training
        self.reason_if_missing = reason_if_missing
        self.held_out = held_out
        self._sides = [
            Words(language, wanted, settings.escape)
            for language, wanted in zip((settings.source, settings.target), settings.normalized_sides)
        ]

    def __call__(self, pairs):
        block = Block(read=len(pairs))
        kept = []
        seen = Counter()

        def note(what, side, number):
            seen[what] += 1
            if seen[what] <= PLACES:
                block.places.append((what, side, number))

        for number, *raw in pairs:
            found = []
            reason, side, sentences = self._pair(raw, found)
            for what, of_side in found:
                block.found[what] += 1
                note(what, of_side, number)
            if reason:
                block.dropped[reason] += 1
                note(reason, side, number)
            else:
                kept.append(sentences)
        if kept:
            sources, targets = zip(*kept)
            block.source = ("\n".join(sources) + "\n").encode()
            block.target = ("\n".join(targets) + "\n").encode()
            block.digests = b"".join(digest(*pair) for pair in kept)
        return block

    def _pair(self, raw, found):
        """`(reason to drop it or None, side that is to blame or None, the two tokenised sentences)`."""
        sentences = []
        for side, (line, words) in enumerate(zip(raw, self._sides)):
            if line is None:
                return self.reason_if_missing, side, None
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError:
                return NOT_UTF8, side, None
            mended = {}
            sentences.append(words(text, mended))
            found += [(what, side) for what in mended]
        for side, words in enumerate(sentences):
            if not words:
                return EMPTY, side, None
        if self.training and (reason := self._filtered(*map(len, sentences))):
            return reason, None, None
        source, target = map(" ".join, sentences)
        if self.training and any(self.held_out):
            for side, text in enumerate((source, target)):
                if digest(text) in self.held_out[side]:
                    return HELD_OUT, side, None
        return None, None, (source, target)

    def _filtered(self, source, target):
        most, ratio = self.settings.max_words, self.settings.max_ratio
        if most and max(source, target) > most:
            return f"longer than {most} words"
        if ratio and max(source, target) > ratio * min(source, target):
            return f"one side more than {ratio:g} times as long as the other"
        return None
