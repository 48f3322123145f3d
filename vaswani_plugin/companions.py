"""What belongs to a model besides its parameters, and lies beside its checkpoints.

Numbers become words again only with the dictionaries that the model was trained with, and text becomes those words only
with the same subword merges and tokeniser. A training therefore copies them from its data directory to the folder of its
checkpoints, from where ``scripts/translate.py`` takes them.
"""

import hashlib
import os
import shutil
from pathlib import Path

from .errors import UserError

# A data directory that scripts/prepare.py did not make may have dictionaries alone.
NAMES = ("dict.*.txt", "codes", "prepare.json")


def fingerprint(dictionary):
    """A short text that tells dictionaries apart: the same only for the same entries in the same order."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8")).hexdigest()[:16]


def copy_companions(data, folder):
    """Copy dictionaries, merges and settings of the data directory ``data`` into ``folder``.

    Each file appears complete or not at all. Raises ``UserError`` and copies nothing where ``folder`` holds checkpoints
    beside other dictionaries or merges.
    """
    data, folder = Path(data), Path(folder)
    names = [path.name for pattern in NAMES for path in sorted(data.glob(pattern))]
    content = {name: (data / name).read_bytes() for name in names}
    different = [name for name in names if (folder / name).is_file() and (folder / name).read_bytes() != content[name]]
    if set(different) - {"prepare.json"} and any(folder.glob("*.pt")):
        raise UserError(
            f"the checkpoints in {folder} belong to other data: {different[0]} there differs from that of {data};"
            " choose another --save-dir."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in different or not (folder / name).is_file():
            temporary = folder / f".{name}.{os.getpid()}"
            shutil.copyfile(data / name, temporary)
            temporary.replace(folder / name)
