"""Fixtures that are made once for all tests."""

import pytest

from .forks import Forks
from .helpers import preprocess, write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Raw text of a made-up language pair: ``{train,valid,test}.{a,b}``."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def data_bin(corpus, tmp_path_factory):
    """The corpus as ``fairseq-preprocess --joined-dictionary`` writes it."""
    return preprocess(corpus, tmp_path_factory.mktemp("data") / "bin", "--joined-dictionary")


@pytest.fixture(scope="session")
def separate_data_bin(corpus, tmp_path_factory):
    """The corpus with one dictionary per language, which differ."""
    source = (corpus / "train.a").read_text() + "extra\n"
    other = tmp_path_factory.mktemp("separate")
    for path in corpus.iterdir():
        (other / path.name).write_text(path.read_text())
    (other / "train.a").write_text(source)
    (other / "train.b").write_text((corpus / "train.b").read_text() + "anders\n")
    return preprocess(other, other / "bin")


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    """Runs commands as forks of one process that has everything imported already."""
    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()
