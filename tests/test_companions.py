"""Dictionaries and merges lie beside the checkpoints, and a checkpoint is not used with those of others."""

import json
import sys

import average_checkpoints
import pytest
import translate
from fairseq.data import Dictionary
from raw_text import SETTINGS, read_settings

from vaswani_plugin.companions import copy_companions, fingerprint
from vaswani_plugin.errors import UserError
from vaswani_plugin.translation import VaswaniTranslationConfig, VaswaniTranslationTask

from .helpers import PLUGIN, succeed
from .saved_model import save_model

NAMES = ["codes", "dict.de.txt", "dict.en.txt", SETTINGS]


def there(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".pt"}


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    save_model(folder).unlink()
    return folder


def task_of(folder, save_dir):
    config = VaswaniTranslationConfig(data=str(folder), source_lang="en", target_lang="de", save_dir=str(save_dir))
    return VaswaniTranslationTask.setup_task(config)


def test_the_first_epoch_brings_them(data, tmp_path):
    save_dir = tmp_path / "not" / "there yet"
    task_of(data, save_dir).begin_epoch(1, None)
    assert there(save_dir) == there(data)
    assert sorted(there(save_dir)) == NAMES


def test_data_without_settings_brings_what_it_has(data, tmp_path):
    (data / SETTINGS).unlink()
    (data / "codes").unlink()
    copy_companions(data, tmp_path / "to")
    assert sorted(there(tmp_path / "to")) == NAMES[1:3]


def test_checkpoints_of_other_data_are_not_given_these(data, tmp_path):
    folder = tmp_path / "to"
    copy_companions(data, folder)
    (data / "codes").write_text("#version: 0.2\na b\n")
    before = there(folder)
    copy_companions(data, folder)  # no checkpoint yet: a training that begins anew
    assert there(folder)["codes"] != before["codes"]
    (folder / "checkpoint_last.pt").touch()
    (data / "dict.de.txt").write_text("a 1\n")
    before = there(folder)
    with pytest.raises(UserError, match=r"dict\.de\.txt there differs.*another --save-dir"):
        copy_companions(data, folder)
    assert there(folder) == before


def test_fingerprints():
    one, other = Dictionary(), Dictionary()
    for word in ("a", "b"):
        one.add_symbol(word)
    for word in ("b", "a"):
        other.add_symbol(word)
    assert fingerprint(one) != fingerprint(other)  # the same words under other numbers are another dictionary
    one.count = [n + 1 for n in one.count]
    again = Dictionary()
    again.add_symbol("a")
    again.add_symbol("b")
    assert fingerprint(one) == fingerprint(again)


def test_a_checkpoint_knows_its_dictionaries(data, tmp_path):
    state = task_of(data, tmp_path).state_dict()
    task_of(data, tmp_path).load_state_dict(state)
    task_of(data, tmp_path).load_state_dict({})  # a checkpoint that was saved before there was this
    lines = (data / "dict.en.txt").read_text("utf-8").splitlines(keepends=True)
    (data / "dict.en.txt").write_text("".join([lines[1], lines[0], *lines[2:]]), "utf-8")
    with pytest.raises(UserError, match="trained with other dictionaries than those in"):
        task_of(data, tmp_path).load_state_dict(state)


def test_an_average_has_them_too(data, tmp_path, monkeypatch, capsys):
    checkpoint = save_model(data)
    (tmp_path / "to").mkdir()
    monkeypatch.setattr(sys, "argv", ["average_checkpoints.py", str(checkpoint), "--out", str(tmp_path / "to" / "averaged.pt")])
    average_checkpoints.main()
    assert there(tmp_path / "to") == there(data)
    (data / "codes").write_text("#version: 0.2\na b\n")
    average_checkpoints.main()  # a folder of another model keeps what it has
    assert there(tmp_path / "to")["codes"] != there(data)["codes"]
    assert "belong to other data" in capsys.readouterr().err


@pytest.mark.slow
def test_a_trained_model_translates_wherever_its_folder_is(tmp_path, monkeypatch, capfdbinary):
    """prepare.py, fairseq-train and translate.py, the folder moved and the data gone in between."""
    import io
    import shutil

    import prepare

    from .test_prepare import write_raw

    arguments = write_raw(tmp_path)
    monkeypatch.setattr(sys, "argv", ["prepare.py", *map(str, arguments), "--out", str(tmp_path / "bin"), "--workers", "1"])
    prepare.main()
    succeed(
        "fairseq-train", tmp_path / "bin", "--user-dir", PLUGIN, "--task", "vaswani_translation", "--arch", "vaswani2017_tiny",
        "--max-tokens", 500, "--max-update", 3, "--save-dir", tmp_path / "checkpoints", "--cpu", "--num-workers", 0,
        "--no-epoch-checkpoints",
    )
    manifest = json.loads((tmp_path / "bin" / SETTINGS).read_text("utf-8"))
    shutil.rmtree(tmp_path / "bin")
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    assert json.loads((tmp_path / "elsewhere" / SETTINGS).read_text("utf-8")) == manifest
    assert read_settings(tmp_path / "elsewhere").source == "en"
    capfdbinary.readouterr()
    monkeypatch.setattr(sys, "argv", ["translate.py", str(tmp_path / "elsewhere" / "checkpoint_last.pt"), "--cpu", "--max-len-b", "2"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The house is small.\n\n")))
    translate.main()
    assert capfdbinary.readouterr().out.count(b"\n") == 2
    lines = (tmp_path / "elsewhere" / "dict.en.txt").read_text("utf-8").splitlines(keepends=True)
    for language in ("en", "de"):
        (tmp_path / "elsewhere" / f"dict.{language}.txt").write_text("".join([lines[1], lines[0], *lines[2:]]), "utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The house is small.\n")))
    with pytest.raises(ValueError, match="trained with other dictionaries"):
        translate.main()
