"""The tokeniser and the punctuation normaliser of Moses, as sacremoses has them, without their wasted time.

Results are those of sacremoses, line for line. Two things cost it most of its time: the tokeniser builds a set of all
letters of Unicode each time it looks at one, and the normaliser tries sixty substitutions on lines that hold nothing
to substitute.
"""

import re

from sacremoses import MosesPunctNormalizer, MosesTokenizer

# Every substitution of the normaliser needs one of these to match.
SUBSTITUTED = re.compile("[\r()`´„“”–—‘’‚…«»\u00a0]|  | [:;]|''|\\d %|\"[,.]|[,.]\"")
# In the order of sacremoses: the ampersand first.
ESCAPES = (
    ("&", "&amp;"), ("|", "&#124;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&apos;"), ('"', "&quot;"), ("[", "&#91;"),
    ("]", "&#93;"),
)


class Normalizer(MosesPunctNormalizer):
    """`MosesPunctNormalizer(language)` with its default options."""

    def __init__(self, language):
        super().__init__(language)
        self._compiled = [(re.compile(pattern), replacement) for pattern, replacement in self.substitutions]

    def normalize(self, text):
        """The line with the punctuation of typewriters, without white space around it."""
        if SUBSTITUTED.search(text):
            for pattern, replacement in self._compiled:
                text = pattern.sub(replacement, text)
        return text.strip()


class Tokenizer(MosesTokenizer):
    """`MosesTokenizer(language)`."""

    _lower = frozenset(MosesTokenizer.IsLower)

    def __init__(self, language):
        super().__init__(language)
        self._letters = frozenset(self.IsAlpha)  # Chinese, Japanese and Korean have more
        self.NONBREAKING_PREFIXES = frozenset(self.NONBREAKING_PREFIXES)
        self.NUMERIC_ONLY_PREFIXES = frozenset(self.NUMERIC_ONLY_PREFIXES)

    def islower(self, text):
        return self._lower.issuperset(text)

    def isanyalpha(self, text):
        return not self._letters.isdisjoint(text)

    def escape_xml(self, text):
        for character, escaped in ESCAPES:
            text = text.replace(character, escaped)
        return text
