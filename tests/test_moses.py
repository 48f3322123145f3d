"""The quick tokeniser and normaliser give what sacremoses gives."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from moses import Normalizer, Tokenizer
from sacremoses import MosesPunctNormalizer, MosesTokenizer

LANGUAGES = ["en", "de", "fr", "cs", "fi", "ko", "zh", "xx"]
PUNCTUATED = st.text(
    st.one_of(
        st.sampled_from("\"'`´„“”–—‘’‚…«»\u00a0 ()[]{}<>|&;:,.!?%-ºnaAzZ12\t"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=40,
)
SENTENCES = [
    'He said: "It\'s 5 %, not 3,5."', "Das ist z.B. Nr. 5 und i.d.R. gut ...", "„Ja“, sagte er – « non\u00a0! »",
    "a.b.c. v. Chr. No. 12 p. 3", "L'année d'avant, aujourd'hui.", "<a href='x'>b & c | [d]</a>", "1\u00a0000 nº\u00a01",
    "...DOTMULTI... 3. 4.5. e.g", "日本語 の テスト. 한국어. 中文。",
]


def agree(language, line):
    assert Normalizer(language).normalize(line) == NORMALIZERS[language].normalize(line)
    for escape in (True, False):
        found = TOKENIZERS[language].tokenize(line, escape=escape)
        assert QUICK[language].tokenize(line, escape=escape) == found


NORMALIZERS = {language: MosesPunctNormalizer(language) for language in LANGUAGES}
TOKENIZERS = {language: MosesTokenizer(language) for language in LANGUAGES}
QUICK = {language: Tokenizer(language) for language in LANGUAGES}


@pytest.mark.parametrize("language", LANGUAGES)
def test_sentences(language):
    for line in SENTENCES:
        agree(language, line)


@settings(deadline=None)
@given(st.sampled_from(["en", "de", "fr"]), PUNCTUATED)
@example("de", '."x')
@example("en", '",')
def test_any_text(language, line):
    agree(language, line)


@settings(deadline=None)
@given(st.sampled_from(LANGUAGES), PUNCTUATED)
def test_what_the_normaliser_skips_has_nothing_to_substitute(language, line):
    """On lines that are left alone, none of the substitutions that sacremoses would try does match."""
    import re

    from moses import SUBSTITUTED

    if not SUBSTITUTED.search(line):
        for pattern, replacement in NORMALIZERS[language].substitutions:
            assert re.sub(pattern, replacement, line) == line
