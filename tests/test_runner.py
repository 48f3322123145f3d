"""What studies of many trainings share: the log of a command, failures, progress."""

import shlex
import subprocess
import sys

import commands
import pytest
import runner

from .helpers import REPOSITORY


class Run:
    """A run that ends with its figures, or with a failure as often as is asked for."""

    def __init__(self, name, failures=0):
        self.name, self.failures, self.figures = name, failures, None

    def result(self):
        return self.figures

    def execute(self, say):
        say(f"{self.name} works")
        if self.failures:
            self.failures -= 1
            raise ValueError("boom")
        self.figures = {"score": 7}
        return self.figures

    @staticmethod
    def summary(figures):
        return f"score {figures['score']}"


class Study(runner.Study):
    reports = 0

    def report(self):
        self.reports += 1


def test_a_failure_does_not_end_the_rest_and_is_tried_again(tmp_path, capsys):
    runs = [Run("one"), Run("two", failures=1), Run("three")]
    study = Study(tmp_path / "out", runs, {"size": 1})
    with pytest.raises(ValueError, match="1 of 3 runs failed, the first: two: boom"):
        study.execute()
    assert [run.figures is not None for run in runs] == [True, False, True]
    assert study.reports == 4  # after each run, and at the end
    printed = capsys.readouterr().out
    assert "1/3 runs  two failed: boom" in printed and "2/3 runs  three: score 7" in printed

    again = Study(tmp_path / "out", runs, {"size": 1})
    again.execute()
    assert "3 runs, 2 of them finished before" in capsys.readouterr().out
    assert not again.failures and runs[1].figures
    with pytest.raises(ValueError, match="holds runs with size 1: choose another folder"):
        Study(tmp_path / "out", runs, {"size": 2}).execute()


def test_the_log_says_what_ran_and_how_much_memory_it_took(tmp_path):
    code = "x = bytearray(500_000_000); x[::4096] = bytes(len(x[::4096])); print('done (so to say)')"
    # From a process of its own: a child counts what its parent held when it was born, and here that is all tests so far.
    program = f"import commands, pathlib; commands.run('python', ['-c', {code!r}], pathlib.Path({str(tmp_path / 'log')!r}))"
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY / "scripts", check=True)
    first, second, last = (tmp_path / "log").read_text().splitlines()
    assert shlex.split(first)[2:] == ["-c", code] and second == "done (so to say)"
    name, _, peak = last.rpartition(": ")
    assert name == "peak memory of python" and peak.endswith(" MiB")
    assert 476 < int(peak.removesuffix(" MiB")) < 1200  # 5e8 bytes are 476.8 MiB


def test_a_failed_command_is_reported_by_its_error(tmp_path):
    code = "print('some.pack.KeyError: lost'); print('a remark'); raise SystemExit(3)"
    with pytest.raises(ValueError, match=r"python ended with code 3 \(some.pack.KeyError: lost\); .*log"):
        commands.run("python", ["-c", code], tmp_path / "log")
    with pytest.raises(ValueError, match=r"code 2 \(the last line\)"):
        commands.run("python", ["-c", "print('the last line'); raise SystemExit(2)"], tmp_path / "log")
