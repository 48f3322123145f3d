"""What the scripts share: files that appear complete or not at all, and errors of one sentence."""

import argparse
import os
import pickle
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path):
    """Give a temporary path beside `path` to write to; rename it to `path` on success, remove it on failure."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}.")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp makes files that only their owner can read
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_lines(path):
    """The lines of a UTF-8 text file without their ends and a byte order mark; only "\\n" ends a line, as in fairseq. Raises ValueError."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}).") from None
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def load_checkpoint(path):
    """A checkpoint as fairseq saved it, on the CPU, without running anything it may hold. Raises ValueError."""
    import torch

    from vaswani_plugin import checkpoint_files  # importing the plugin teaches torch what a checkpoint may hold

    if not Path(path).is_file():
        raise ValueError(f"{path} cannot be read: {'it is a folder' if Path(path).is_dir() else 'No such file'}.")
    wrong = checkpoint_files.damage(path)  # torch does not notice changed bytes
    if wrong is not None:
        raise ValueError(f"{checkpoint_files.damaged(str(path), wrong)}.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, LookupError, pickle.UnpicklingError) as error:
        reason = checkpoint_files.load_failure(str(path), error)
        raise ValueError(f"{reason or f'{path} is no checkpoint that torch can load'}.") from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        raise ValueError(f"{path} is no checkpoint of fairseq: it holds no model.")
    return checkpoint


def positive(text):
    """A type for argparse: whole numbers above 0."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)


def run_as_script(main):
    """Run `main()`; a ValueError, or a file that the system refuses, becomes one sentence on standard error and exit
    code 1, without a traceback."""
    try:
        main()
    except ValueError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except OSError as error:
        if error.filename is None or error.strerror is None:
            raise
        sys.exit(f"{Path(sys.argv[0]).name}: {error.filename}: {error.strerror}.")
    except KeyboardInterrupt:
        sys.exit(130)
