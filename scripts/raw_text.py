"""From raw text to subwords and back, with the settings that belong to a model.

The settings are a file `prepare.json` beside the model's dictionary or checkpoint:

    {"languages": {"source": "en", "target": "de"},
     "tokenizer": {"normalize_source": true, "escape": true},
     "codes": "codes"}

where `codes` names the file of BPE merges in the same folder.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE

SETTINGS = "prepare.json"
SEPARATOR = "@@"
# A "word" longer than this is cut: BPE takes quadratic time in it, and no model has seen one.
LONGEST_WORD = 200


@dataclass
class Settings:
    """How the text of a model was prepared."""

    source: str
    target: str
    codes: Path
    normalize_source: bool = True
    escape: bool = True


def read_settings(folder):
    """The settings in a folder's `prepare.json`, or None where there is none. Raises ValueError."""
    path = Path(folder) / SETTINGS
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
        tokenizer = found.get("tokenizer", {})
        return Settings(
            source=found["languages"]["source"],
            target=found["languages"]["target"],
            codes=path.parent / found["codes"],
            normalize_source=tokenizer.get("normalize_source", True),
            escape=tokenizer.get("escape", True),
        )
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} does not state how the text was prepared ({type(error).__name__}: {error});"
            " prepare.py writes it, or give --codes, --source-lang and --target-lang."
        ) from None


class TextPipeline:
    """Raw source text to subwords, and subwords of the target to raw text."""

    def __init__(self, settings):
        self.settings = settings
        self._normalize = MosesPunctNormalizer(settings.source).normalize if settings.normalize_source else None
        self._tokenizer = MosesTokenizer(settings.source)
        self._detokenizer = MosesDetokenizer(settings.target)
        try:
            with open(settings.codes, encoding="utf-8") as codes:
                self._bpe = BPE(codes, separator=SEPARATOR)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ValueError(f"the BPE codes {settings.codes} cannot be read: {reason}.") from None

    def subwords(self, line):
        """The subwords of a line of raw source text; none for a line without visible characters."""
        if self._normalize:
            line = self._normalize(line)
        return self._cut(self._tokenizer, line)

    def target_subwords(self, line):
        """The subwords of a line of raw target text, which is not normalised."""
        return self._cut(MosesTokenizer(self.settings.target), line)

    def _cut(self, tokenizer, line):
        words = tokenizer.tokenize(line, escape=self.settings.escape)
        pieces = (word[i : i + LONGEST_WORD] for word in words for i in range(0, len(word), LONGEST_WORD))
        return self._bpe.segment_tokens(pieces)

    def raw(self, subwords):
        """Raw text on one line from a string of target subwords."""
        words = join_subwords(subwords).split()
        return " ".join(self._detokenizer.detokenize(words, unescape=self.settings.escape).split())


def join_subwords(text):
    """Take the marks of BPE out of a line, also at its end where an output was cut off."""
    return (text + " ").replace(SEPARATOR + " ", "").rstrip()
