"""All that differs between versions of fairseq and torch, and all that fairseq leaves to its user.

Nothing of fairseq is changed: only its hooks, torch's allow-list for safe unpickling, Python's
warning filters and exception hook are used. Importing this module needs neither of the two.
"""

import argparse
import atexit
import collections
import errno
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import queue
import re
import sys
import threading
import time
import typing
import warnings
from contextlib import contextmanager

from .errors import UserError

TESTED = {"torch": "2.13.0", "ve-fairseq": "0.12.3"}
INSTALL = "install the project's requirements: pip install torch==2.13.0 vaswani_plugin -c constraints.txt"

# Distributions that contain the package ``fairseq``.
FAIRSEQ_DISTRIBUTIONS = ("ve-fairseq", "fairseq-fixed", "fairseq-built", "fairseq")

logger = logging.getLogger(__name__)


def fairseq_distribution():
    """``(name, version)`` of the distribution that the importable fairseq is of, or ``None``."""
    spec = importlib.util.find_spec("fairseq")
    folders = [os.path.dirname(os.path.dirname(spec.origin))] if spec is not None and spec.origin else []
    for path in (folders, sys.path):  # an editable installation has its metadata elsewhere
        for found in importlib.metadata.distributions(path=path):
            if found.metadata["Name"] in FAIRSEQ_DISTRIBUTIONS:
                return found.metadata["Name"], found.version
    return None


def problem():
    """One sentence that says why the toolkit cannot be used here, or ``None``."""
    if importlib.util.find_spec("torch") is None:
        return f"torch is missing: {INSTALL}"
    import torch

    if version(torch.__version__) < (2, 1):
        return f"torch {torch.__version__} is too old, 2.1 is the least: {INSTALL}"
    if importlib.util.find_spec("fairseq") is None:
        return f"fairseq is missing: {INSTALL}"
    try:
        importlib.import_module("fairseq.dataclass.configs")
    except Exception as error:  # whatever a broken installation raises, the reader needs one sentence
        found = " ".join(fairseq_distribution() or ("an unknown fairseq",))
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"{found} does not import on Python {sys.version.split()[0]} ({reason}): {INSTALL}"
    return None


def version(text):
    """The leading numbers of a version as a tuple: ``"2.13.0+cpu"`` gives ``(2, 13, 0)``."""
    numbers = []
    for part in text.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def allow_safe_checkpoints():
    """Let torch's safe unpickling read what fairseq itself writes into checkpoints.

    Only plain containers, configuration nodes and numpy arrays are named; a checkpoint that holds
    anything else is still refused. Before torch 2.6 fairseq's calls of ``torch.load`` unpickle anything; there they
    are made to refuse all but tensors and plain values, which is what our checkpoints hold.
    """
    import torch

    if version(torch.__version__) < (2, 6):
        os.environ.setdefault("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
        return
    import numpy
    from fairseq.distributed.utils import _TensorPlaceholder
    from omegaconf import DictConfig, ListConfig
    from omegaconf.base import ContainerMetadata, Metadata
    from omegaconf.nodes import AnyNode

    reconstruct = numpy.array(0).__reduce__()[0]
    allowed = [
        argparse.Namespace,  # configuration of models without a dataclass
        DictConfig, ListConfig, AnyNode, ContainerMetadata, Metadata, typing.Any, _TensorPlaceholder,
        collections.defaultdict, dict, list, int,  # state sent between workers at a resume
        numpy.ndarray, numpy.dtype, type(numpy.dtype("int64")), type(numpy.dtype("float64")),
        reconstruct, (reconstruct, "numpy.core.multiarray._reconstruct"),  # BLEU counts of --eval-bleu
    ]
    torch.serialization.add_safe_globals(allowed)


def end_prefetching_at_exit():
    """Let fairseq's threads that make batches ahead end before Python does.

    They are daemons: one that is inside torch while Python shuts down is torn out of it, and the
    whole process, its training finished and saved, dies of "terminate called without an active
    exception" (exit code 134).
    """
    atexit.unregister(_end_prefetching)
    atexit.register(_end_prefetching)


def _end_prefetching(patience=10.0):
    from fairseq.data.iterators import BackgroundConsumer

    deadline = time.monotonic() + patience
    for thread in threading.enumerate():
        if not isinstance(thread, BackgroundConsumer):
            continue
        thread._max_len = 0  # read after each batch
        while thread.is_alive() and time.monotonic() < deadline:
            try:
                thread._queue.get(timeout=0.01)  # it may wait for a free place
            except queue.Empty:
                pass


def silence_known_warnings():
    """Hide warnings that fairseq's own calls cause on current versions and that nobody can act upon."""
    for message in (
        r"(?s).*version_base parameter is not specified",
        r"(?s).*hydra\.experimental",
        r"(?s).*The strict flag in the compose API is deprecated",
        r"(?s).*@package _group_",
        r"(?s).*is validated against ConfigStore schema",
        r"(?s).*torch\.cuda\.amp\.autocast",
        r"(?s).*'pin_memory' argument is set as true but no accelerator",
        r"(?s).*torch\.jit\.script",
        r"(?s).*Support for mismatched key_padding_mask and attn_mask",
    ):
        warnings.filterwarnings("ignore", message=message)


def name_every_path(package_path):
    """Other spellings of the package's folder, for the check in ``fairseq.utils.import_user_module``.

    fairseq looks for ``--user-dir NAME`` beside itself under the spelling ``.../fairseq/../NAME``
    and takes it for another package if the same folder was imported under the shorter one.
    """
    import fairseq

    folder = package_path[0]
    name = os.path.basename(folder)
    beside = os.path.join(os.path.dirname(fairseq.__file__), "..", name)
    spellings = [os.path.abspath(folder), beside]
    return [p for p in spellings if p not in package_path and os.path.isdir(p) and os.path.samefile(p, folder)]


def undo_tpu_for_bf16(args):
    """fairseq takes ``--bf16`` for a TPU's flag; without one the run would die."""
    if getattr(args, "bf16", False) and getattr(args, "tpu", False):
        if importlib.util.find_spec("torch_xla") is None:
            args.tpu = False


def whole_configuration(part):
    """What ``part`` of fairseq's configuration belongs to."""
    return part._get_root()  # omegaconf has no public name for it


def has_onednn_products(x, weight):
    """Whether oneDNN multiplies ``x`` by ``weight``: on CPUs in float32, where it is faster than torch's own product."""
    import torch

    return (
        not is_compiling()  # first: the compiler cannot follow what comes next
        and x.is_cpu
        and weight.is_cpu
        and x.dtype == weight.dtype == torch.float32
        and x.numel() > 0
        and autocast_dtype("cpu") is None
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def bound_onednn_caches():
    """Let oneDNN keep the programs of its last 64 products, not of 1024 each, unless the user says otherwise.

    It compiles one for each number of rows, of about 0.75 MB: with batches of all sizes a training grew by a
    gigabyte. A step of a training has about 25 products of different sizes.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # oneDNN's, and that of torch's calls of it
        if name not in os.environ:
            os.environ[name] = "64"  # read at the first product
            _bounds.append(name)


_bounds = []  # variables that this process did not have before


def unbound_onednn_caches():
    """Take :func:`bound_onednn_caches` back, before the first product of a process that generates.

    There the same numbers of rows come again and again, each with every matrix: as many as a batch has sentences that
    can leave it.
    """
    while _bounds:
        os.environ.pop(_bounds.pop(), None)


def pack(weight):
    """``weight [outputs, inputs]`` in oneDNN's own order, of use only to :func:`onednn_product`."""
    import torch

    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)


def onednn_product(x, weight, bias=None):
    """``x W^T + b`` for ``x [..., inputs]`` and ``weight [outputs, inputs]``, packed or not; no gradient is recorded."""
    import torch

    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def fastest_adam():
    """Arguments that let ``torch.optim.AdamW`` update all parameters in one kernel, where this torch has it."""
    import torch

    return {"fused": True} if version(torch.__version__) >= (2, 4) else {}  # 2.4: for CPUs too


def is_compiling():
    """Whether ``torch.compile`` is tracing the caller."""
    import torch

    compiler = getattr(torch, "compiler", None)
    if hasattr(compiler, "is_compiling"):  # torch 2.3
        return compiler.is_compiling()
    return torch._dynamo.is_compiling()


def autocast_dtype(device_type):
    """The type that autocast casts to on devices of this type, or ``None`` where it is off."""
    import torch

    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4
        return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
    if device_type == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


@contextmanager
def no_autocast(device_type):
    """Switch autocast off; yields what :func:`autocast_dtype` was."""
    import torch

    dtype = autocast_dtype(device_type)
    with torch.autocast(device_type, enabled=False):
        yield dtype


# What fairseq raises for bad input of a user, by the beginning of its text, and what to do.
FAIRSEQ_USER_ERRORS = {
    "Dataset not found": "run fairseq-preprocess first, or give another DATA or --gen-subset",
    "Size of sample": "",
    "Could not infer language pair": "",
    "Model file not found": "",
    "Must specify batch size": "give --max-tokens or --batch-size",
    "--path required": "give --path CHECKPOINT",
    "--finetune-from-model": "",
    "Incorrect dictionary format": "take the dictionaries that fairseq-preprocess wrote",
    "Sentences lengths should not exceed max_tokens": "give a larger --max-tokens, or --batch-size",
    "sentences lengths should not exceed max_tokens": "give a larger --max-tokens, or --batch-size",
    "gradients are Nan/Inf": "the state before this update is saved as crash.pt in --save-dir; lower --lr-factor, or"
    " give --clip-norm",
    "Minimum loss scale reached": "train without --fp16, or with --bf16",
}
_DISK_FULL = (
    "{}: a file could not be written, and the checkpoints that were complete before are kept; make room (what ends in"
    " .tmp may be deleted) and give the same command again"
)
_WORKERS_ERROR = re.compile(r"^vaswani_plugin\.errors\.UserError: (.+)$", flags=re.MULTILINE)


def command():
    """The name of the program that runs, such as ``fairseq-train``."""
    return os.path.basename(sys.argv[0])


def show_user_errors_as_sentences():
    """On fairseq's commands, end with the sentence alone where the input was bad.

    Everywhere else, and for every other error, Python's traceback stays.
    """
    if not command().startswith("fairseq-"):
        return
    previous = sys.excepthook

    def hook(kind, error, traceback):
        sentence = user_sentence(error)
        if sentence is None:
            previous(kind, error, traceback)
        else:
            print(f"error: {sentence}", file=sys.stderr)

    sys.excepthook = hook


def user_sentence(error):
    """The sentence of the ``UserError`` behind ``error``, or of fairseq's own; ``None`` for all else."""
    seen = error
    while seen is not None:
        if isinstance(seen, UserError):
            return str(seen)
        seen = seen.__cause__ or seen.__context__
    path = _checkpoint_being_read(error)
    if path is not None:
        from . import checkpoint_files

        return checkpoint_files.load_failure(path, error)
    if isinstance(error, KeyError) and error.args == (None,) and command() == "fairseq-validate":
        return "fairseq-validate does not read the task from the checkpoint: give --task vaswani_translation"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return _DISK_FULL.format(os.strerror(error.errno))
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}"
    text = str(error)
    from_worker = _WORKERS_ERROR.search(text)  # fairseq starts one process per GPU, and hands on its traceback
    if from_worker:
        return from_worker.group(1)
    for beginning, cure in FAIRSEQ_USER_ERRORS.items():
        if text.startswith(beginning):
            return f"{error}: {cure}" if cure else text
    return None


def _checkpoint_being_read(error):
    """The path that fairseq was loading when ``error`` was raised, or ``None``."""
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_name == "load_checkpoint_to_cpu":
            return frame.f_locals.get("local_path")
        traceback = traceback.tb_next
    return None
