"""The commands in forks of one process that has imported fairseq: a second each instead of six.

``python -m tests.forks`` is that process. It reads one request per line, a JSON object, and answers each with one:
start a command (``{"argv": [...], ...}`` gives ``{"pid": n}``) or wait for it (``{"wait": n}`` gives ``{"code": n}``).
The commands run from their entry points, with streams, arguments, folder and environment of their own.
"""

import contextlib
import importlib
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Forks:
    """Starts commands; close it in the end."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.started = 0
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.forks"], cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )

    def start(self, *argv, **options):
        """Start ``argv``, whose first is ``fairseq-...`` or the path of a Python script.

        ``options``: ``cwd``, ``env`` (added variables), ``stdin`` (bytes), ``before`` (Python source that the
        process executes first).
        """
        self.started += 1
        streams = {name: str(self.folder / f"{self.started}.{name}") for name in ("stdin", "stdout", "stderr")}
        Path(streams["stdin"]).write_bytes(options.pop("stdin", b""))
        return Command(self, self._ask({"argv": [str(word) for word in argv], **streams, **options})["pid"], streams)

    def run(self, *argv, **options):
        """Start, and wait for the end: a ``subprocess.CompletedProcess``."""
        return self.start(*argv, **options).wait()

    def _ask(self, request):
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())

    def close(self):
        self.server.stdin.close()
        self.server.wait(timeout=30)


class Command:
    """One command that was started."""

    def __init__(self, forks, pid, streams):
        self.forks, self.pid, self.streams = forks, pid, streams

    def wait(self):
        """Its end; the return code is negative where a signal ended it."""
        code = self.forks._ask({"wait": self.pid})["code"]
        return subprocess.CompletedProcess(self.pid, code, self.printed("stdout"), self.printed("stderr"))

    def printed(self, stream):
        return Path(self.streams[stream]).read_text(encoding="utf-8", errors="replace")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def kill_when(self, moment, timeout=60):
        """SIGKILL as soon as ``moment()`` is true; whether it came to that before the command ended."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if moment():
                self.kill()
                return True
            if "Z" in Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[:1]:
                return False
        raise AssertionError(f"the moment did not come within {timeout} s")


def _import_everything():
    with contextlib.redirect_stderr(io.StringIO()):
        import fairseq.checkpoint_utils
        import fairseq.hub_utils
        import fairseq.models
        import fairseq.options
        import fairseq.sequence_generator
        import fairseq.tasks
        import fairseq.trainer
        import matplotlib
        import sacrebleu.metrics
        import sacremoses
        import subword_nmt.apply_bpe
        import torch._dynamo  # noqa: F401  (torch's optimizers import it: four seconds)

        matplotlib.use("Agg")
        import matplotlib.pyplot  # noqa: F401


def _become(request):
    """In the fork: turn into the command."""
    os.setpgid(0, 0)
    for number, (name, mode) in enumerate((("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))):
        os.dup2(os.open(request[name], mode | os.O_CREAT | (os.O_TRUNC if number else 0)), number)
    os.chdir(request.get("cwd", ROOT))
    os.environ.update(request.get("env", {}))
    import logging
    import random
    import tempfile

    import numpy

    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    tempfile._name_sequence = None
    random.seed()
    numpy.random.seed()
    sys.stdin = open(0, encoding="utf-8")
    sys.stdout, sys.stderr = open(1, "w", buffering=1, encoding="utf-8"), open(2, "w", buffering=1, encoding="utf-8")
    sys.excepthook = sys.__excepthook__
    sys.argv = list(request["argv"])


def _execute(request):
    if request.get("before"):
        exec(compile(request["before"], "before", "exec"), {})
    name = sys.argv[0]
    if name.endswith(".py"):
        sys.path.insert(0, str(Path(name).parent))
        sys.path.append(str(ROOT))
        runpy.run_path(name, run_name="__main__")
    elif name == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT))]
        importlib.import_module("fairseq_cli." + name.removeprefix("fairseq-").replace("-", "_")).cli_main()


def _end_as_python_does(request):
    code = 0
    try:
        _execute(request)
    except SystemExit as stop:
        code = stop.code
        if code is None or isinstance(code, str):
            print(code or "", file=sys.stderr, end="\n" if code else "")
            code = 1 if code else 0
    except BaseException as error:  # as the interpreter does for whatever was not caught
        code = 1
        sys.excepthook(type(error), error, error.__traceback__)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def _serve():
    _import_everything()
    answers = os.fdopen(os.dup(1), "w")
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "wait" in request:
            code = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
            print(json.dumps({"code": code}), file=answers, flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            try:
                _become(request)
                code = _end_as_python_does(request)
            except BaseException:
                traceback.print_exc()
                code = 99
            os._exit(code)
        print(json.dumps({"pid": pid}), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
