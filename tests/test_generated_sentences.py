"""The generated corpus: numbers in words, and that it is the same every time."""

import pytest
from generated_sentences import english_number, german_number, read


@pytest.mark.parametrize(
    "number, english, german",
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (12, "twelve", "zwölf"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (101, "one hundred one", "einhunderteins"),
        (312, "three hundred twelve", "dreihundertzwölf"),
        (1000, "one thousand", "eintausend"),
        (2742, "two thousand seven hundred forty-two", "zweitausendsiebenhundertzweiundvierzig"),
        (9999, "nine thousand nine hundred ninety-nine", "neuntausendneunhundertneunundneunzig"),
    ],
)
def test_numbers(number, english, german):
    assert english_number(number) == english
    assert german_number(number) == german


@pytest.mark.parametrize("spell", [english_number, german_number])
def test_every_number_has_its_own_name(spell):
    assert len({spell(number) for number in range(10_000)}) == 10_000


@pytest.mark.parametrize("number", [-1, 10_000])
def test_numbers_out_of_range(number):
    with pytest.raises(ValueError, match=f"not {number}"):
        german_number(number)


def test_the_same_corpus_every_time_and_in_both_directions():
    forth, about = read("en", "de", 50)
    back, _ = read("de", "en", 50)
    assert [(english, german) for _, english, german in forth] == [(english, german) for _, german, english in back]
    assert forth == read("en", "de", 50)[0]
    assert "GENERATED" in about["corpus"]


def test_other_languages_are_refused():
    with pytest.raises(ValueError, match="not in en and fr"):
        read("en", "fr", 1)
