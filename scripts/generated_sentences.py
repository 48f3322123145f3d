"""Generated sentences about numbers in English and German: a stand-in for real text where none can be fetched.

They are no measure of translation. But there is something to learn: German writes a number as one word, units before
tens ("three hundred twelve", "dreihundertzwölf"; "forty-two", "zweiundvierzig"), and moves the verb to the end of a
subordinate clause.
"""

import random

UNITS = (
    ("zero", "null"), ("one", "eins"), ("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf"),
    ("six", "sechs"), ("seven", "sieben"), ("eight", "acht"), ("nine", "neun"), ("ten", "zehn"), ("eleven", "elf"),
    ("twelve", "zwölf"), ("thirteen", "dreizehn"), ("fourteen", "vierzehn"), ("fifteen", "fünfzehn"),
    ("sixteen", "sechzehn"), ("seventeen", "siebzehn"), ("eighteen", "achtzehn"), ("nineteen", "neunzehn"),
)  # fmt: skip
TENS = (
    None, None, ("twenty", "zwanzig"), ("thirty", "dreißig"), ("forty", "vierzig"), ("fifty", "fünfzig"),
    ("sixty", "sechzig"), ("seventy", "siebzig"), ("eighty", "achtzig"), ("ninety", "neunzig"),
)  # fmt: skip
# plural in English and German
THINGS = (
    ("books", "Bücher"), ("apples", "Äpfel"), ("houses", "Häuser"), ("letters", "Briefe"), ("birds", "Vögel"),
    ("cars", "Autos"), ("lamps", "Lampen"), ("trees", "Bäume"), ("chairs", "Stühle"), ("pictures", "Bilder"),
)  # fmt: skip
PEOPLE = (
    ("my brother", "mein Bruder"), ("the teacher", "der Lehrer"), ("our neighbour", "unser Nachbar"),
    ("Anna", "Anna"), ("the old man", "der alte Mann"), ("his daughter", "seine Tochter"),
)  # fmt: skip
# English past, German third person past
VERBS = (
    ("bought", "kaufte"), ("saw", "sah"), ("counted", "zählte"), ("painted", "malte"), ("sold", "verkaufte"),
    ("lost", "verlor"),
)  # fmt: skip


def english_number(number):
    """A number from 0 to 9999 in English words, without "and": 312 is "three hundred twelve"."""
    _check(number)
    for size, word in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = number % size
            return f"{english_number(number // size)} {word}" + (f" {english_number(rest)}" if rest else "")
    if number < 20:
        return UNITS[number][0]
    return TENS[number // 10][0] + (f"-{UNITS[number % 10][0]}" if number % 10 else "")


def german_number(number):
    """A number from 0 to 9999 as one German word: 312 is "dreihundertzwölf"."""
    _check(number)
    for size, word in ((1000, "tausend"), (100, "hundert")):
        if number >= size:
            rest = number % size
            return _german_part(number // size) + word + (german_number(rest) if rest else "")
    if number < 20:
        return UNITS[number][1]
    return (f"{_german_part(number % 10)}und" if number % 10 else "") + TENS[number // 10][1]


def _german_part(number):
    return "ein" if number == 1 else german_number(number)


def _check(number):
    if not 0 <= number <= 9999:
        raise ValueError(f"only numbers from 0 to 9999 are spelt out, not {number}.")


def sentence_pair(chance):
    """One sentence in English and German; `chance` is a `random.Random`."""
    number = int(10 ** chance.uniform(0.31, 4))  # 2 to 9999, short and long words alike
    thing, person, verb = chance.choice(THINGS), chance.choice(PEOPLE), chance.choice(VERBS)
    english, german = f"{english_number(number)} {thing[0]}", f"{german_number(number)} {thing[1]}"
    form = chance.randrange(4)
    if form == 0:
        pair = f"{person[0]} {verb[0]} {english}.", f"{person[1]} {verb[1]} {german}."
    elif form == 1:
        pair = f"yesterday {person[0]} {verb[0]} {english}.", f"gestern {verb[1]} {person[1]} {german}."
    elif form == 2:
        pair = f"I know that {person[0]} {verb[0]} {english}.", f"ich weiß, dass {person[1]} {german} {verb[1]}."
    else:
        more = chance.randrange(2, 100)
        pair = (
            f"{person[0]} {verb[0]} {english} and {english_number(more)} more.",
            f"{person[1]} {verb[1]} {german} und {german_number(more)} weitere.",
        )
    return tuple(sentence[0].upper() + sentence[1:] for sentence in pair)


def read(source, target, count):
    """`count` pairs `(group, source, target)`, always the same, and what the manifest says about them."""
    if {source, target} != {"en", "de"}:
        raise ValueError(f"generated sentences exist in English and German (en, de), not in {source} and {target}.")
    chance = random.Random(2017)
    pairs = []
    for number in range(count):
        english, german = sentence_pair(chance)
        pairs.append((f"generated {number}", english, german) if source == "en" else (f"generated {number}", german, english))
    return pairs, {"corpus": "GENERATED sentences about numbers, not real text", "licence": "none needed"}
