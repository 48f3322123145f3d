"""Many trainings in one study: resumable, with progress, and a failure of one does not end the others.

A *run* has ``name``, ``result()`` (its figures, or ``None`` while unfinished), ``execute(say)`` (does what is missing and
returns the figures; ``ValueError`` if it fails) and ``summary(figures)``, one line about them.
"""

import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import commands
from common import atomic_path


class Study:
    """All runs of one command, their progress and their report.

    Args:
        out: folder
        runs: in the order in which they are done
        settings: all that decides the figures, as JSON has it: a folder holds runs with the same settings only
    """

    def __init__(self, out, runs, settings):
        self.out, self.runs, self._settings = out, runs, settings
        self.lock = threading.Lock()
        self.start = time.monotonic()
        self.failures = {}  # run -> sentence
        self.ended = False  # by the user

    def report(self):
        """Write what is known so far to the folder."""
        raise NotImplementedError

    def finish(self):
        """Called once when all runs were tried."""
        self.report()

    def execute(self, jobs=1):
        """Do what is not yet done. Raises ValueError at the end if a run failed; the others are finished first."""
        self.out.mkdir(parents=True, exist_ok=True)
        self._keep_settings()
        waiting = [run for run in self.runs if run.result() is None]
        self._say(f"{len(self.runs)} runs, {len(self.runs) - len(waiting)} of them finished before")
        pool = ThreadPoolExecutor(jobs)
        futures = [pool.submit(self._one, run) for run in waiting]
        try:
            for future in futures:
                future.result()
        except KeyboardInterrupt:
            self.ended = True
            pool.shutdown(wait=False, cancel_futures=True)
            commands.stop()
            raise
        self.finish()
        if self.failures:
            run, sentence = next(iter(self.failures.items()))
            raise ValueError(f"{len(self.failures)} of {len(self.runs)} runs failed, the first: {run.name}: {sentence}")

    def _one(self, run):
        try:
            figures = run.execute(self._say)
        except ValueError as error:
            self.failures[run] = str(error)
            if not self.ended:
                self._say(f"{run.name} failed: {error}")
                with self.lock:
                    self.report()
            return
        with self.lock:
            self.report()
        self._say(f"{run.name}: {run.summary(figures)}")

    def _say(self, text):
        done = sum(run.result() is not None for run in self.runs)
        minutes, seconds = divmod(int(time.monotonic() - self.start), 60)
        print(f"{minutes:3d}:{seconds:02d}  {done}/{len(self.runs)} runs  {text}", flush=True)

    def _keep_settings(self):
        """A folder holds runs of one kind only."""
        file = self.out / "settings.json"
        if file.is_file():
            earlier = json.loads(file.read_text())
            different = [f"{name} {earlier.get(name)}" for name, value in self._settings.items()
                         if value != earlier.get(name)]
            if different:
                raise ValueError(f"{self.out} holds runs with {', '.join(different)}: choose another folder for these")
        else:
            with atomic_path(file) as path:
                path.write_text(json.dumps(self._settings, indent=1))


def one_thread_each():
    """Small models are fastest with one thread; a user's own setting stays."""
    return {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}


def record(line, kind):
    """The JSON object of a line ``... | INFO | KIND | {...}`` of fairseq's log, or ``None``."""
    found = re.search(rf"\| {kind} \| (\{{.*\}})\s*$", line)
    return json.loads(found.group(1)) if found else None
