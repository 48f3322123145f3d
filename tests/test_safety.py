"""What is read from others runs nothing here: no code out of checkpoints, no text to a shell.

What each command says to a checkpoint with a forbidden object is in ``tests/test_wrong_uses.py``.
"""

import argparse
import ast
import os
import pickle
import re
import zipfile

import pytest
import torch
from common import load_checkpoint

from vaswani_plugin import checkpoint_files, toolkit

from .helpers import REPOSITORY

SOURCES = sorted([*(REPOSITORY / "vaswani_plugin").glob("*.py"), *(REPOSITORY / "scripts").glob("*.py")])


def calls(path):
    """``(line, name, keywords)`` of every call in a file, the name as it is written: ``os.system``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}


FORBIDDEN_CALLS = {"eval", "exec", "compile", "os.system", "os.popen", "pickle.load", "pickle.loads", "yaml.load",
                   "subprocess.getoutput", "subprocess.getstatusoutput"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_text_becomes_a_program(path):
    for line, name, keywords in calls(path):
        assert name not in FORBIDDEN_CALLS, f"{path.name}:{line}"
        assert keywords.get("shell", "False") == "False", f"{path.name}:{line}"
        if name.endswith("torch.load") or name == "torch.load":
            assert keywords.get("weights_only") == "True", f"{path.name}:{line}"


def test_the_search_for_calls_finds_them(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("import os\nos.system('x')\ntorch.load(f, weights_only=False)\nsubprocess.run(c, shell=True)\n")
    assert {name for _, name, _ in calls(bad)} == {"os.system", "torch.load", "subprocess.run"}
    for line in ("os.system('x')", "torch.load(f)", "subprocess.run(c, shell=True)", "eval(x)"):
        bad.write_text(line + "\n")
        with pytest.raises(AssertionError, match="bad.py:1"):
            test_no_text_becomes_a_program(bad)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "scripts").glob("*.sh")), ids=lambda path: path.name)
def test_shell_scripts_quote_what_they_are_given(path):
    """No ``eval``, no ``bash -c`` of a variable, no unquoted argument list."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        code = line.split(" #")[0]
        assert not re.search(r"(^|[;&|]\s*|\bthen )eval\b|\b(ba)?sh -c", code), f"{path.name}:{number}"
        assert not re.search(r"""(?<!["{])\$[@*](?!["}])""", code), f"{path.name}:{number}: {line}"


class Runs:
    """Unpickled, it would call ``function`` with ``arguments``."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


# Ways to run something, in any part of a checkpoint; none may be allowed by the list that fairseq's checkpoints need.
HARMFUL = {
    "a system call": lambda out: Runs(os.system, f"touch {out}"),
    "writing a file": lambda out: Runs(open, str(out), "w"),
    "a program as text": lambda out: Runs(eval, f"open({str(out)!r}, 'w')"),
    "a process": lambda out: Runs(__import__("subprocess").Popen, ["touch", str(out)]),
    "a class of ours": lambda out: argparse.ArgumentParser(),
    "an import": lambda out: Runs(__import__, "this"),
    "attributes": lambda out: Runs(getattr, os, "system"),
}
PLACES = {
    "model": lambda thing: {"model": {"w": thing}},
    "settings": lambda thing: {"model": {}, "cfg": {"model": {"_name": thing}}},
    "namespace": lambda thing: {"model": {}, "args": argparse.Namespace(arch=thing)},
    "optimizer": lambda thing: {"model": {}, "last_optimizer_state": {"state": [thing]}},
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("thing", HARMFUL.values(), ids=HARMFUL)
def test_a_checkpoint_runs_nothing_and_its_object_is_named(tmp_path, thing, place):
    path, out = tmp_path / "x.pt", tmp_path / "pwned"
    try:
        torch.save(place(thing(out)), path)
    except (TypeError, AttributeError, pickle.PicklingError):
        pytest.skip("this object cannot even be saved")
    with pytest.raises(ValueError, match=r"x\.pt was not loaded: it holds (the object [\w.]+|more than tensors)"):
        load_checkpoint(path)
    assert not out.exists()


def test_a_file_of_the_old_format_runs_nothing_either(tmp_path):
    path, out = tmp_path / "x.pt", tmp_path / "pwned"
    torch.save({"model": Runs(os.system, f"touch {out}")}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match="x.pt was not loaded"):
        load_checkpoint(path)
    assert not out.exists()


def test_names_inside_a_checkpoint_lead_nowhere(tmp_path):
    """A zip archive whose entries name files outside: they are read, never written."""
    path = tmp_path / "inner" / "x.pt"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../escaped", "text")
    with pytest.raises(ValueError):
        load_checkpoint(path)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["x.pt"]


def test_old_versions_of_torch_are_made_to_load_safely(monkeypatch):
    """Before torch 2.6 fairseq's ``torch.load`` would run whatever a checkpoint holds; this variable forbids it."""
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "")  # so that it is as before afterwards
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD")
    toolkit.allow_safe_checkpoints()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    toolkit.allow_safe_checkpoints()
    assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "1"


def test_the_sentence_of_a_refused_checkpoint_advises_nobody_to_load_it(tmp_path):
    torch.save({"model": Runs(os.system, "true")}, tmp_path / "x.pt")
    with pytest.raises(pickle.UnpicklingError) as caught:
        torch.load(tmp_path / "x.pt", weights_only=True)
    sentence = checkpoint_files.load_failure(str(tmp_path / "x.pt"), caught.value)
    assert "posix.system" in sentence and "weights_only" not in sentence
