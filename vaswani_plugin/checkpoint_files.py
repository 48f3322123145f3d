"""Checkpoint files on disk: which are whole, and from which one a training goes on.

fairseq writes each checkpoint under a temporary name and renames it, but then copies it over
``checkpoint_last.pt`` and ``checkpoint_best.pt`` in place. Whoever is killed in the middle of that
copy, or runs out of disk, is left with half a ``checkpoint_last.pt`` beside the whole file that it
was copied from.
"""

import os
import pickle
import re
import zipfile
import zlib

import torch

from .errors import UserError

LAST = "checkpoint_last.pt"
# What fairseq calls the checkpoints of a training, beside the last.
_OTHERS = re.compile(r"checkpoint(_\d+_\d+|\d+|_best|\.best_.+)\.pt")
_LEGACY = b"\x80"  # torch before 1.6 wrote no zip archives but bare pickles
_FORBIDDEN = re.compile(r"GLOBAL ([\w.]+)")


def damage(path):
    """What is wrong with the file of a checkpoint, in a few words, or ``None`` if every byte is as it was written.

    Reads the whole file: about a second per gigabyte. ``torch.load`` finds missing ends, but not changed bytes.
    """
    try:
        with open(path, "rb") as file:
            first = file.read(1)
        if not first:
            return "it is empty"
        if first == _LEGACY:
            return None
        with zipfile.ZipFile(path) as archive:
            changed = archive.testzip()
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError):
        return "it is cut off, or no checkpoint"
    return None if changed is None else "its content has changed since it was written"


def updates(path):
    """After how many updates a checkpoint was written; ``None`` if a training cannot go on from it."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # tensors stay on disk
        state["extra_state"]["train_iterator"]
        return state["optimizer_history"][-1]["num_updates"]
    except Exception:  # whatever a foreign or damaged file raises, it is not one to go on from
        return None


def newest_whole(folder):
    """``(path, updates)`` of the whole checkpoint of ``folder`` with the most updates, ``checkpoint_last.pt``
    apart; ``None`` if there is none."""
    found = []
    for name in sorted(os.listdir(folder or ".")):
        path = os.path.join(folder, name)
        if _OTHERS.fullmatch(name) and damage(path) is None and (number := updates(path)) is not None:
            found.append((number, path))
    if not found:
        return None
    number, path = max(found)
    return path, number


def to_resume_from(save_dir, restore_file):
    """The file that a training goes on from: what was asked for, or if that is ``checkpoint_last.pt`` and
    damaged or missing, the newest whole one beside it.

    Returns ``(restore_file, sentence)``; the sentence says what happened, or is ``None``.

    Raises:
        UserError: the file is damaged and no other may take its place
    """
    is_last = restore_file == LAST
    path = os.path.join(save_dir, LAST) if is_last else restore_file
    there = os.path.exists(path)
    wrong = damage(path) if there else None
    if wrong is not None or (is_last and not there):
        other = newest_whole(save_dir) if is_last and os.path.isdir(save_dir) else None
        if other is not None:
            state = f"damaged ({wrong})" if there else "missing"
            return other[0], f"{path} is {state}: going on from {other[0]} ({other[1]} updates)"
        if there:
            raise UserError(damaged(path, wrong))
    return restore_file, None


def damaged(path, wrong):
    """The sentence for a damaged checkpoint, with the one to take instead."""
    folder = os.path.dirname(path)
    other = newest_whole(folder) if os.path.isdir(folder or ".") else None
    if other is not None and not _same(other[0], path):
        cure = f"the newest whole checkpoint beside it is {other[0]} ({other[1]} updates)"
    elif os.path.basename(path) == LAST:
        cure = "no other checkpoint beside it is whole: move it away to start anew"
    else:
        cure = "no other checkpoint beside it is whole: take a copy of it"
    return f"{path} is damaged ({wrong}); {cure}"


def _same(a, b):
    return os.path.exists(b) and os.path.samefile(a, b)


def load_failure(path, error):
    """The sentence for an ``error`` of torch's safe unpickling of ``path``; ``None`` if the file is not the cause."""
    wrong = damage(path)
    if wrong is not None:
        return damaged(path, wrong)
    if isinstance(error, pickle.UnpicklingError):
        name = _FORBIDDEN.search(str(error))
        what = f"the object {name.group(1)}" if name else "more than tensors and plain values"
        return (
            f"{path} was not loaded: it holds {what}, and loading that could run any program;"
            " ask for a checkpoint of tensors and plain values"
        )
    if isinstance(error, (LookupError, TypeError, ValueError, AttributeError)):
        return f"{path} is no checkpoint of fairseq: what it holds gives a {type(error).__name__} ({error})"
    return None
