"""What a user can get wrong before a training, found before it starts.

Every check raises a ``UserError`` whose text says what is wrong and what to do.
"""

import ast
import filecmp
import logging
import os
import struct
from dataclasses import fields

import torch
from fairseq.data.data_utils import infer_language_pair
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationTask
from fairseq.utils import split_paths

from . import checkpoint_files, label_smoothing, learning_rate, toolkit
from .config import VaswaniConfig, flag
from .errors import UserError

logger = logging.getLogger(__name__)

NOT_JOINED = (
    "one matrix in three places (Section 3.4) needs one dictionary for both languages: run"
    " fairseq-preprocess again with --joined-dictionary, or train with --no-share-all-embeddings"
)


def training(args):
    """Check a parsed ``fairseq-train`` command line: sizes, rates and the data directory."""
    names = [field.name for field in fields(VaswaniConfig)]
    VaswaniConfig(**{name: getattr(args, name) for name in names if hasattr(args, name)}).layer_sizes()
    if args.lr_scheduler == "vaswani_inverse_sqrt":
        learning_rate.check(args.warmup_updates, args.lr_factor)
    if hasattr(args, "label_smoothing"):
        label_smoothing.check(args.label_smoothing)
    if getattr(args, "adam_betas", None) is not None:
        betas(args.adam_betas)
    batches(args)
    if (args.fp16 or args.memory_efficient_fp16) and (args.cpu or not torch.cuda.is_available()):
        raise UserError("--fp16 needs a GPU: leave it out, or give --bf16")
    # fairseq starts anew without a word when a file that was asked for is not there.
    if args.restore_file != "checkpoint_last.pt" and not os.path.exists(args.restore_file):
        raise UserError(f"--restore-file {args.restore_file} does not exist: give the path of a checkpoint")
    if issubclass(TASK_REGISTRY[args.task], TranslationTask):
        data(args)
    resuming(args)


def betas(text):
    """``--adam-betas``, which fairseq's Adam hands to Python's ``eval``: two numbers and nothing else."""
    try:
        numbers = ast.literal_eval(text) if isinstance(text, str) else text
        fine = len(numbers) == 2 and all(0 <= number < 1 for number in numbers)
    except (ValueError, SyntaxError, TypeError):
        fine = False
    if not fine:
        raise UserError(f"--adam-betas must be two numbers in [0, 1) such as '(0.9, 0.98)', not '{text}'")


def batches(args):
    """Sizes of batches that hold something."""
    for name in ("max_tokens", "batch_size", "max_tokens_valid", "batch_size_valid"):
        size = getattr(args, name, None)
        if size is not None and int(size) < 1:  # fairseq leaves the sizes for validation as text
            raise UserError(f"{flag(name)} must be at least 1, not {size}")
    for number in args.update_freq:
        if number < 1:
            raise UserError(f"--update-freq must be at least 1, not {number}")


def resuming(args):
    """Go on from a whole checkpoint: choose another where ``checkpoint_last.pt`` is damaged or missing."""
    if args.restore_file == checkpoint_files.LAST and args.no_last_checkpoints:
        return  # whoever wants none starts anew each time
    file, sentence = checkpoint_files.to_resume_from(args.save_dir, args.restore_file)
    if sentence is not None:
        logger.warning(sentence)
        args.restore_file = file
        args.finetune_from_model = None  # only where there is nothing to go on from


def resuming_under_hydra(model):
    """:func:`resuming` for ``fairseq-hydra-train``, which parses no command line: in the configuration around ``model``."""
    if toolkit.command() == "fairseq-hydra-train":
        resuming(toolkit.whole_configuration(model).checkpoint)


def data(args):
    """Check that DATA is a directory of ``fairseq-preprocess``, with one dictionary if it must be one."""
    prepare = "prepare it with fairseq-preprocess --joined-dictionary"
    if not getattr(args, "data", None):
        raise UserError(f"DATA is missing, the directory of the binarized text: {prepare}")
    for folder in split_paths(args.data):
        if not os.path.isdir(folder):
            raise UserError(f"DATA {folder} is not a directory: {prepare}")
        if not os.listdir(folder):
            raise UserError(f"DATA {folder} is empty: {prepare}")
    first = split_paths(args.data)[0]
    source, target = args.source_lang, args.target_lang
    if source is None or target is None:
        source, target = infer_language_pair(first)
    if source is None or target is None:
        raise UserError(f"DATA {first} holds no language pair: give --source-lang and --target-lang, or {prepare}")
    dictionaries = [os.path.join(first, f"dict.{language}.txt") for language in (source, target)]
    for dictionary in dictionaries:
        if not os.path.isfile(dictionary):
            raise UserError(f"{dictionary} is missing: {prepare}")
    for dictionary in dictionaries:
        dictionary_file(dictionary)
    for folder in split_paths(args.data):
        for name in sorted(os.listdir(folder)):
            if name.endswith(".idx"):
                binarized(os.path.join(folder, name.removesuffix(".idx")))
    if args.share_all_embeddings and not filecmp.cmp(*dictionaries, shallow=False):
        raise UserError(f"{dictionaries[0]} and {dictionaries[1]} differ: {NOT_JOINED}")


def dictionary_file(path):
    """Check that every line of a dictionary is a word and its count."""
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                word, _, count = line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ")
                if not word or not count.isdecimal():
                    raise UserError(
                        f"{path}, line {number}: a dictionary has a word and its count on each line; take the"
                        " dictionaries that fairseq-preprocess wrote"
                    )
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: take the dictionaries that fairseq-preprocess wrote") from None


# fairseq's indexed files: magic, version, code of the type, number of sentences, their sizes and places in the .bin.
_BYTES = {4: 4, 5: 8, 8: 2, 9: 4}  # int32, int64, uint16, uint32
_MAGIC, _HEADER = b"MMIDIDX\x00\x00", struct.Struct("<9sQBQ")


def binarized(prefix):
    """Check that the files ``PREFIX.idx`` and ``PREFIX.bin`` of fairseq-preprocess are as long as they say."""
    index, size = f"{prefix}.idx", os.path.getsize(f"{prefix}.idx")
    with open(index, "rb") as file:
        header = file.read(_HEADER.size)
        if not header.startswith(_MAGIC):
            return  # another of fairseq's formats
        whole = len(header) == _HEADER.size
        if whole:
            _, _, code, sentences = _HEADER.unpack(header)
            whole = size == _HEADER.size + sentences * (4 + 8)
        if whole and sentences and os.path.isfile(f"{prefix}.bin"):
            file.seek(_HEADER.size + 4 * (sentences - 1))
            (length,) = struct.unpack("<i", file.read(4))
            file.seek(-8, os.SEEK_END)
            (place,) = struct.unpack("<q", file.read(8))
            whole = os.path.getsize(f"{prefix}.bin") == place + length * _BYTES.get(code, 0) or code not in _BYTES
    if not whole:
        raise UserError(f"{prefix}.idx and .bin are not complete: run fairseq-preprocess again")
