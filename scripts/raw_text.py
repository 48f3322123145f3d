"""From raw text to subwords and back, with the settings that belong to a model.

The settings are a file `prepare.json` beside the model's dictionary or checkpoint:

    {"languages": {"source": "en", "target": "de"},
     "tokenizer": {"normalize_source": true, "normalize_target": false, "escape": true},
     "codes": "codes"}

where `codes` names the file of BPE merges in the same folder.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from line_discipline import tidy
from moses import Normalizer, Tokenizer
from sacremoses import MosesDetokenizer
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
    normalize_target: bool = False


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
            normalize_target=tokenizer.get("normalize_target", False),
        )
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} does not state how the text was prepared ({type(error).__name__}: {error});"
            " prepare.py writes it, or give --codes, --source-lang and --target-lang."
        ) from None


def read_codes(path):
    """The merges of a codes file, ready to cut words into subwords. Raises ValueError."""
    try:
        with open(path, encoding="utf-8") as codes:
            return BPE(codes, separator=SEPARATOR)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ValueError(f"the BPE codes {path} cannot be read: {reason}.") from None
    except SystemExit:  # what subword-nmt does about a line that is no merge
        raise ValueError(f"{path} is no file of BPE merges.") from None


class Words:
    """Called with a line of raw text of a language, gives its words: tidied, normalised if wanted, tokenised.

    Training text and text to be translated go through this, so that a model meets what it knows. `found` learns what was
    mended, see `line_discipline.tidy`.
    """

    def __init__(self, language, normalized, escape):
        self._normalizer = Normalizer(language) if normalized else None
        self._tokenizer = Tokenizer(language)
        self._escape = escape

    def __call__(self, line, found=None):
        line = tidy(line, found)
        if self._normalizer:
            line = self._normalizer.normalize(line)
        words = self._tokenizer.tokenize(line, escape=self._escape)
        if max(map(len, words), default=0) <= LONGEST_WORD:
            return words
        return [word[i : i + LONGEST_WORD] for word in words for i in range(0, len(word), LONGEST_WORD)]


class TextPipeline:
    """Raw source text to subwords, and subwords of the target to raw text."""

    def __init__(self, settings):
        self.settings = settings
        self._source = Words(settings.source, settings.normalize_source, settings.escape)
        self._target = Words(settings.target, settings.normalize_target, settings.escape)
        self._detokenizer = MosesDetokenizer(settings.target)
        self._bpe = read_codes(settings.codes)

    def subwords(self, line):
        """The subwords of a line of raw source text; none for a line without visible characters."""
        return self._bpe.segment_tokens(self._source(line))

    def target_subwords(self, line):
        """The subwords of a line of raw target text."""
        return self._bpe.segment_tokens(self._target(line))

    def raw(self, subwords):
        """Raw text on one line from a string of target subwords."""
        words = join_subwords(subwords).split()
        return " ".join(self._detokenizer.detokenize(words, unescape=self.settings.escape).split())


def join_subwords(text):
    """Take the marks of BPE out of a line, also at its end where an output was cut off."""
    return (text + " ").replace(SEPARATOR + " ", "").rstrip()
