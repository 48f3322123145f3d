"""What the scripts share: files that appear complete or not at all, and errors of one sentence."""

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

    import vaswani_plugin  # noqa: F401  (teaches torch which objects of fairseq a checkpoint may hold)

    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = (str(error).splitlines() or ["it is empty"])[0]
        raise ValueError(f"{path} is no checkpoint that can be loaded safely: {reason}") from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        raise ValueError(f"{path} is no checkpoint of fairseq: it holds no model.")
    return checkpoint


def run_as_script(main):
    """Run `main()`; a ValueError becomes one sentence on standard error and exit code 1, without a traceback."""
    try:
        main()
    except ValueError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
