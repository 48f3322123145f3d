"""The comparison of prepare.py with the commands that it replaces."""

import re
import sys

import benchmark_prepare
import pytest

from .helpers import run

WORDS = "the small house stands at old lake and nobody knows who built it long ago".split()


@pytest.mark.slow
def test_it_measures_both_and_compares_what_came_out(tmp_path):
    lines = [" ".join(WORDS[i % 7 : i % 7 + 3 + i % 5]).capitalize() + f" ({i})." for i in range(300)]
    (tmp_path / "text.en").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "text.de").write_text("".join(f"{line[::-1]}\n" for line in lines))
    done = run("python", "scripts/benchmark_prepare.py", tmp_path / "text", "--source", "en", "--target", "de", "--merges",
               "60", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"prepare\.py +\d+\.\d s of processor", done.stdout)
    ratio = re.search(r"the commands together +([\d.]+) s of processor: ([\d.]+) times as much", done.stdout)
    assert float(ratio[1]) > 0 and float(ratio[2]) > 0
    assert re.search(r"files that differ: none of \d+$", done.stdout.strip())


def test_a_failing_command_is_shown(monkeypatch):
    with pytest.raises(ValueError, match="exit.* failed: it broke"):
        benchmark_prepare.measured("x", sys.executable, "-c", "import sys; sys.exit('it broke')")
