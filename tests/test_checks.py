"""Bad data directories are named before the training starts."""

from types import SimpleNamespace

import pytest

from vaswani_plugin import checks
from vaswani_plugin.errors import UserError


def arguments(data, **changes):
    return SimpleNamespace(
        **{"data": data, "source_lang": None, "target_lang": None, "share_all_embeddings": True, **changes}
    )


def test_a_good_directory_passes(data_bin):
    checks.data(arguments(str(data_bin)))
    checks.data(arguments(f"{data_bin}:{data_bin}", source_lang="a", target_lang="b"))


def test_dictionaries_that_differ(separate_data_bin):
    with pytest.raises(UserError, match="differ: .*--joined-dictionary"):
        checks.data(arguments(str(separate_data_bin)))
    checks.data(arguments(str(separate_data_bin), share_all_embeddings=False))


def test_directories_that_hold_no_data(tmp_path, data_bin):
    empty = tmp_path / "empty"
    empty.mkdir()
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("nothing\n")
    for data, sentence in (
        (None, "DATA is missing"),
        (str(tmp_path / "absent"), "absent is not a directory"),
        (str(empty), "empty is empty"),
        (str(other), "holds no language pair"),
        (f"{data_bin}:{empty}", "empty is empty"),
    ):
        with pytest.raises(UserError, match=sentence):
            checks.data(arguments(data))
    with pytest.raises(UserError, match=r"dict\.xx\.txt is missing"):
        checks.data(arguments(str(data_bin), source_lang="xx", target_lang="b"))
