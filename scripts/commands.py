"""fairseq's commands as child processes: found beside this Python, logged to a file, ended with this process."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

PLUGIN = Path(__file__).resolve().parent.parent / "vaswani_plugin"

_running = set()
_stopped = threading.Event()


def run(name, arguments, log, on_line=None, environment=None):
    """Run the command ``name``; it, everything that it prints and its peak memory are added to the file ``log``.

    Args:
        on_line: called with each printed line
        environment: variables beside those of this process

    Raises:
        ValueError: the command is not installed, or ended with an error, or :func:`stop` was called
    """
    if _stopped.is_set():
        raise ValueError(f"{name} was not started any more")
    words = [find(name), *map(str, arguments)]
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(words)}\n")
        file.flush()
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace",
            env={**os.environ, **(environment or {})},
        )
        _running.add(process)
        last = error = ""
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                last = line.strip() or last
                error = line.strip() if re.match(r"[\w.]+(Error|Exception): ", line) else error
                if on_line is not None:
                    on_line(line)
            peak = _wait(process)
            file.write(f"peak memory of {name}: {peak} MiB\n")
        except BaseException:
            process.terminate()
            raise
        finally:
            _running.discard(process)
    if process.returncode != 0:
        raise ValueError(f"{name} ended with code {process.returncode} ({error or last}); all that it said is in {log}")


def _wait(process):
    """Wait for the end of a child; returns the most memory that it held, in MiB.

    The system counts what this process held when it started the child as held by the child, too: that is exact only
    for children that need more than their parent.
    """
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return round(usage.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10))  # bytes there, KiB elsewhere


def binarize(folder, source, target, arguments=()):
    """fairseq-preprocess of ``folder/{train,valid,test}.{source,target}`` into ``folder/bin``, complete or not at all.

    Both languages get one dictionary (Section 3.4). Returns the data directory; raises ValueError.
    """
    unfinished, finished = folder / "bin.unfinished", folder / "bin"
    for old in (unfinished, finished):
        shutil.rmtree(old, ignore_errors=True)
    splits = [word for split in ("train", "valid", "test") for word in (f"--{split}pref", folder / split)]
    run("fairseq-preprocess", [
        "--source-lang", source, "--target-lang", target, *splits, "--joined-dictionary", "--destdir", unfinished,
        *arguments,
    ], folder / "preprocess.log")
    unfinished.rename(finished)
    return finished


def stop():
    """End the commands that other threads are running, and start no more."""
    _stopped.set()
    for process in list(_running):
        process.terminate()


def find(name):
    """The path of an installed command: beside this Python, else on the search path. Raises ValueError."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise ValueError(f"the command {name} is not installed: install the project's requirements first")
    return found
