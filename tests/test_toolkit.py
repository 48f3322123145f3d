"""What is handled around fairseq and torch."""

import subprocess
import sys
from argparse import Namespace

import pytest
import torch

from vaswani_plugin import toolkit
from vaswani_plugin.errors import UserError

from .helpers import PLUGIN, REPOSITORY


def python(program, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments, "-c", program],
        capture_output=True, text=True, cwd=REPOSITORY, **options,
    )


def test_versions_are_compared_as_numbers():
    assert toolkit.version("2.13.0+cpu") == (2, 13, 0) > toolkit.version("2.6.1")
    assert toolkit.version("2.6.0a0") == (2, 6)


def test_python_dash_m_says_where_and_on_what():
    done = subprocess.run(
        [sys.executable, "-m", "vaswani_plugin"], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert done.returncode == 0
    assert str(PLUGIN) in done.stdout and torch.__version__ in done.stdout and "0.12" in done.stdout


@pytest.mark.parametrize("missing", ["torch", "fairseq"])
def test_a_missing_toolkit_is_one_sentence(missing, tmp_path):
    """A stand-in finder hides the package, as on a machine without it."""
    hide = (
        "import importlib.util, runpy, sys\n"
        f"find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *rest: None if name == '{missing}' else find(name, *rest)\n"
    )
    done = python(hide + "sys.argv = ['-m']\nrunpy.run_module('vaswani_plugin', run_name='__main__')")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {missing} is missing: install") and done.stderr.count("\n") == 1
    done = python(hide + "import vaswani_plugin")
    assert done.stderr.strip().splitlines()[-1].startswith(f"ImportError: {missing} is missing")


def test_a_toolkit_that_does_not_import_is_named(tmp_path):
    broken = tmp_path / "fairseq" / "dataclass"
    broken.mkdir(parents=True)
    for package in (broken, broken.parent):
        (package / "__init__.py").write_text("")
    (broken / "configs.py").write_text("raise ValueError('mutable default for field common')\n")
    program = (
        f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['-m'];"
        "runpy.run_module('vaswani_plugin', run_name='__main__')"
    )
    done = python(program)
    assert done.returncode == 1
    assert "does not import on Python" in done.stderr and "mutable default for field common" in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_twice_and_in_any_spelling_is_harmless(tmp_path):
    program = (
        "import vaswani_plugin; from argparse import Namespace as N; from fairseq.utils import import_user_module as f;"
        f"f(N(user_dir='vaswani_plugin')); f(N(user_dir='./vaswani_plugin/')); f(N(user_dir={str(PLUGIN)!r}));"
        "print('fine')"
    )
    done = python(program)
    assert done.stdout == "fine\n", done.stderr


def test_importing_prints_nothing():
    done = subprocess.run(
        [sys.executable, "-c", "import vaswani_plugin"], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert done.stdout == ""


def test_user_errors_become_sentences_on_fairseqs_commands_alone():
    for name, expected in (("/usr/bin/fairseq-train", "error: too wide\n"), ("/usr/bin/other", None)):
        done = python(
            f"import sys; sys.argv = [{name!r}]; import vaswani_plugin; from vaswani_plugin.errors import UserError\n"
            "try:\n    raise UserError('too wide')\nexcept UserError:\n    raise Exception('cannot load')"
        )
        assert done.returncode == 1
        if expected:
            assert done.stderr.endswith(expected) and "Traceback" not in done.stderr
        else:
            assert "Traceback" in done.stderr


def test_which_errors_have_a_sentence():
    assert toolkit.user_sentence(UserError("x is wrong")) == "x is wrong"
    assert toolkit.user_sentence(ValueError("a bug")) is None
    found = toolkit.user_sentence(FileNotFoundError("Dataset not found: valid (data-bin)"))
    assert found.startswith("Dataset not found: valid (data-bin): run fairseq-preprocess")


def test_which_errors_of_the_system_have_a_sentence(monkeypatch):
    found = toolkit.user_sentence(PermissionError(13, "Permission denied", "/x/save"))
    assert found == "/x/save: Permission denied"
    assert "make room" in toolkit.user_sentence(OSError(28, "No space left on device"))
    assert toolkit.user_sentence(OSError("something")) is None
    assert toolkit.user_sentence(KeyError(None)) is None
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fairseq-validate"])
    assert "--task" in toolkit.user_sentence(KeyError(None))


def test_the_sentence_of_a_worker_is_found_in_its_traceback():
    """fairseq's spawned processes hand theirs on as text."""
    text = "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n" \
           "  File x, line 1\nvaswani_plugin.errors.UserError: a source is too long\n"
    assert toolkit.user_sentence(Exception(text)) == "a source is too long"
    assert toolkit.user_sentence(Exception(text.replace("User", "Value"))) is None


class Harmful:
    def __reduce__(self):
        return (print, ("executed",))


PREFETCHING = """
import sys
import torch
from fairseq.data.iterators import BufferedIterator

class Batches:
    def __len__(self):
        return 10**9

    def __iter__(self):
        while True:
            yield [torch.nonzero(torch.randn(200) > 0).sum().item() for _ in range(5)]

waiting, working = BufferedIterator(20, Batches()), BufferedIterator(10**6, Batches())
next(waiting), next(working)
"""


def test_a_thread_that_makes_batches_ahead_does_not_abort_the_process():
    # without the plugin's remedy this ends with "terminate called without an active exception"
    run = python("import vaswani_plugin" + PREFETCHING)
    assert run.returncode == 0, run.stderr


def test_checkpoints_load_safely_and_foreign_objects_are_refused(tmp_path):
    torch.save({"args": Namespace(arch="transformer")}, tmp_path / "stock.pt")
    assert torch.load(tmp_path / "stock.pt")["args"].arch == "transformer"
    torch.save({"args": Harmful()}, tmp_path / "harmful.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(tmp_path / "harmful.pt")


def test_bf16_asks_for_no_tpu():
    args = Namespace(bf16=True, tpu=True)
    toolkit.undo_tpu_for_bf16(args)
    assert args.tpu is False
    args = Namespace(bf16=False, tpu=True)
    toolkit.undo_tpu_for_bf16(args)
    assert args.tpu is True


def test_no_autocast_says_what_was_active():
    with toolkit.no_autocast("cpu") as dtype:
        assert dtype is None
    with torch.autocast("cpu", dtype=torch.bfloat16), toolkit.no_autocast("cpu") as dtype:
        assert dtype == torch.bfloat16
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
