"""What a user can get wrong before a training, found before it starts.

Every check raises a ``UserError`` whose text says what is wrong and what to do.
"""

import filecmp
import logging
import os
from dataclasses import fields

from fairseq.data.data_utils import infer_language_pair
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationTask
from fairseq.utils import split_paths

from . import checkpoint_files, label_smoothing, learning_rate
from .config import VaswaniConfig
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
    # fairseq starts anew without a word when a file that was asked for is not there.
    if args.restore_file != "checkpoint_last.pt" and not os.path.exists(args.restore_file):
        raise UserError(f"--restore-file {args.restore_file} does not exist: give the path of a checkpoint")
    if issubclass(TASK_REGISTRY[args.task], TranslationTask):
        data(args)
    resuming(args)


def resuming(args):
    """Go on from a whole checkpoint: choose another where ``checkpoint_last.pt`` is damaged or missing."""
    if args.restore_file == checkpoint_files.LAST and args.no_last_checkpoints:
        return  # whoever wants none starts anew each time
    file, sentence = checkpoint_files.to_resume_from(args.save_dir, args.restore_file)
    if sentence is not None:
        logger.warning(sentence)
        args.restore_file = file
        args.finetune_from_model = None  # only where there is nothing to go on from


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
    if args.share_all_embeddings and not filecmp.cmp(*dictionaries, shallow=False):
        raise UserError(f"{dictionaries[0]} and {dictionaries[1]} differ: {NOT_JOINED}")
