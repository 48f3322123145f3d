"""Work in steps that are done once: each fills a folder of its own, which appears when it is complete."""

import fcntl
import json
import shutil
import sys
from pathlib import Path


class Steps:
    """The steps of one piece of work in a folder that belongs to it, and to one process at a time.

    `identity` is all that the outcome depends on. A folder with the steps of another is refused. Raises ValueError.
    """

    def __init__(self, folder, identity):
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.folder / "lock", "w")
        except OSError as error:
            raise ValueError(f"{folder} cannot be written: {error.strerror}.") from None
        try:
            # Of this process alone: worker processes that outlive it for a moment do not hold the lock.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"another process is at work in {folder}.") from None
        about = self.folder / "settings.json"
        text = json.dumps(identity, indent=1, ensure_ascii=False, sort_keys=True)
        done = [path for path in self.folder.iterdir() if path.is_dir() and path.suffix != ".part"]
        if not about.exists() or not done:
            part = self.folder / "settings.json.part"
            part.write_text(text, "utf-8")
            part.rename(about)
        elif about.read_text("utf-8") != text:
            raise ValueError(
                f"{folder} holds unfinished work with other settings or input files (see {about}); remove it, or name"
                " another output."
            )

    def run(self, name, make, *arguments):
        """The folder of the step `name`, made by `make(folder, *arguments)` unless it was made before."""
        done, part = self.folder / name, self.folder / f"{name}.part"
        if done.is_dir():
            print(f"== {name}: done before", file=sys.stderr)
            return done
        print(f"== {name}", file=sys.stderr)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        make(part, *arguments)
        part.rename(done)
        return done

    def remove(self):
        """Remove the folder and all steps."""
        shutil.rmtree(self.folder)
        self._lock.close()
