"""Write an invented language pair, small enough that a laptop learns it in minutes, and binarize it.

    python scripts/toy_language.py runs/toy

The pair has what the variations of Table 3 are about, in the smallest form:

- Word order differs and nests. The source puts verbs in the middle and relative clauses after their noun
  ("the dog that sees a cat runs ..."); the target puts verbs last and relative clauses first.
- Words agree with others far away, and most endings depend on several words at once. A noun and its adjectives end in
  its class, its number (told by the article) and its case: the case of a subject follows from the tense, which a
  particle at the end of the source sentence sets, that of an object from the verb. A verb ends in the class and number
  of its subject *and* the class of its object.
- Some words have two translations, and the choice between them is free. No model can predict it; the training text
  is so small that a model that is not regularised learns its choices by heart.

Everything follows from --seed: the same command writes the same files.
"""

import argparse
import itertools
import random
from pathlib import Path

import commands
from common import atomic_path, run_as_script

SOURCE, TARGET = "src", "tgt"
CLASSES, CASES = 3, 3
NOUNS, ADJECTIVES, VERBS = 30, 12, 18
FREE = 2  # every second noun has two translations
TENSES = ("past", "now", "soon")
ARTICLES = ("a", "some")  # singular, plural


class Language:
    """The lexicon, and sentences of the pair drawn from ``random_``."""

    def __init__(self, random_):
        self.random = random_
        names = _names()
        self.nouns, self.adjectives, self.verbs = (
            [next(names) for _ in range(count)] for count in (NOUNS, ADJECTIVES, VERBS)
        )
        words = self.nouns + self.adjectives + self.verbs
        stems = [next(names) for _ in words]
        random_.shuffle(stems)
        self.stem = dict(zip(words, stems))
        self.second_stem = {noun: next(names) for noun in self.nouns[::FREE]}
        self.noun_class = {noun: random_.randrange(CLASSES) for noun in self.nouns}
        self.case = {verb: random_.randrange(CASES) for verb in self.verbs}

    def sentence(self):
        """One pair: ``(source words, target words)``."""
        tense = self.random.randrange(len(TENSES))
        source, target = self._clause(tense)
        return source + [TENSES[tense]], target

    def _clause(self, tense):
        """subject verb object; in the target subject object verb, and the verb agrees with both."""
        verb = self._word(self.verbs)
        subject, subject_target, subject_class, number = self._noun_phrase(tense, case=tense)
        object_, object_target, object_class, _ = self._noun_phrase(tense, case=self.case[verb])
        verb_target = self._verb(verb, tense, subject_class, number, object_class)
        return [*subject, verb, *object_], subject_target + object_target + verb_target

    def _noun_phrase(self, tense, case):
        """article adjective* noun (that verb object)?; in the target (object verb ke)? noun adjective*."""
        noun = self._word(self.nouns)
        noun_class, number = self.noun_class[noun], self.random.randrange(2)
        adjectives = [self._word(self.adjectives) for _ in range(self.random.choice((0, 0, 1)))]
        source = [ARTICLES[number], *adjectives, noun]
        stem = self.stem[noun]
        if noun in self.second_stem and self.random.random() < 0.5:
            stem = self.second_stem[noun]
        stems = [stem] + [self.stem[adjective] for adjective in adjectives]
        target = [word for stem in stems for word in (stem, f"-{'ae'[number]}{noun_class}{case}")]
        if self.random.random() < 0.15:
            verb = self._word(self.verbs)
            object_, object_target, object_class, _ = self._noun_phrase(tense, case=self.case[verb])
            source += ["that", verb, *object_]
            target = object_target + self._verb(verb, tense, noun_class, number, object_class) + ["ke"] + target
        return source, target, noun_class, number

    def _verb(self, verb, tense, subject_class, number, object_class):
        return [self.stem[verb], f"-{'nm'[number]}{subject_class}{object_class}", f"-{TENSES[tense][0]}"]

    def _word(self, words):
        """A word; the first ones are more frequent, as in a real text."""
        return words[int(len(words) * self.random.random() ** 2)]


def _names():
    """Pronounceable words, all different."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    for first, second in itertools.product(syllables, syllables[::3]):
        yield first + second


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to write; the binarized data go to FOLDER/bin")
    parser.add_argument("--train", type=int, default=1000, help="sentences to train on (default %(default)s)")
    parser.add_argument("--valid", type=int, default=200, help="sentences of valid and of test (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if min(arguments.train, arguments.valid) < 1:
        raise ValueError("--train and --valid must be at least 1")
    write(arguments.folder, arguments.train, arguments.valid, arguments.seed)
    print(f"the data directory: {commands.binarize(arguments.folder, SOURCE, TARGET)}")


def write(folder, train, valid, seed):
    """Write the text of all splits; no sentence of valid or test stands in an earlier split."""
    language = Language(random.Random(seed))
    folder.mkdir(parents=True, exist_ok=True)
    seen = set()
    for split, count in (("train", train), ("valid", valid), ("test", valid)):
        pairs = []
        while len(pairs) < count:
            source, target = (" ".join(words) for words in language.sentence())
            if split == "train" or source not in seen:
                pairs.append((source, target))
        seen.update(source for source, _ in pairs)
        for side, suffix in enumerate((SOURCE, TARGET)):
            with atomic_path(folder / f"{split}.{suffix}") as path:
                path.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")


if __name__ == "__main__":
    run_as_script(main)
