"""Average the last checkpoints of a training run, as Section 6.1 of the paper does."""

import argparse
import logging
import re
import sys
from pathlib import Path

import torch
from common import atomic_path, load_checkpoint, run_as_script

logging.basicConfig(level=logging.WARNING)  # before fairseq, which remarks on every optional package that is missing

from vaswani_plugin.companions import copy_companions  # noqa: E402
from vaswani_plugin.errors import UserError  # noqa: E402
from vaswani_plugin.inference import average_states  # noqa: E402

# Section 6.1: the last 5 checkpoints for the base models, the last 20 for the big ones.
PRESETS = {"base": 5, "big": 20}
# What makes two models different whose tensors have the same shapes.
TELLING = ("_heads", "_key_dim", "_value_dim", "normalize_before", "activation_fn", "layer_norm_eps", "learned_pos")


def last_checkpoints(directory, count, allow_fewer=False):
    """The `count` checkpoints of a folder with the most updates, oldest first.

    Those are `checkpoint_EPOCH_UPDATE.pt`, or where there are none `checkpointEPOCH.pt`.
    Raises ValueError: there are fewer.
    """
    numbered = {}
    for pattern in (r"checkpoint_\d+_(\d+)\.pt", r"checkpoint(\d+)\.pt"):
        matches = [(re.fullmatch(pattern, path.name), path) for path in Path(directory).iterdir()]
        numbered = {int(match.group(1)): path for match, path in matches if match}
        if numbered:
            break
    if not numbered:
        raise ValueError(
            f"{directory} holds no checkpoints named checkpoint_EPOCH_UPDATE.pt, which --save-interval-updates writes,"
            " or checkpointEPOCH.pt."
        )
    if len(numbered) < count and not allow_fewer:
        raise ValueError(
            f"{directory} holds {len(numbered)} checkpoints and {count} are to be averaged: give a smaller --last,"
            " or --allow-fewer."
        )
    return [numbered[number] for number in sorted(numbered)[-count:]]


def updates(checkpoint):
    """The number of updates after which a checkpoint was written, or None."""
    history = checkpoint.get("optimizer_history") or [{}]
    return history[-1].get("num_updates")


def identity(checkpoint):
    """What checkpoints of one training have in common beside the shapes of their tensors."""
    settings = checkpoint.get("cfg")
    if settings is None:
        model = common = vars(checkpoint["args"]) if checkpoint.get("args") else {}
    else:
        model, common = settings.get("model") or {}, settings.get("common") or {}
        model = vars(model) if isinstance(model, argparse.Namespace) else model
    known = {name: model[name] for name in model if str(name).endswith(TELLING)}
    return {**known, "arch": model.get("arch") or model.get("_name"), "seed": common.get("seed")}


def average(paths):
    """The last checkpoint of `paths` with the mean of the models of all, and without the optimizer.

    Raises ValueError: a file that cannot be loaded safely; checkpoints of several trainings.
    """
    of_first, last = {}, {}

    def states():
        for path in paths:
            checkpoint = load_checkpoint(path)
            of_this = identity(checkpoint)
            if not of_first:
                of_first.update(of_this)
            for name in of_first.keys() | of_this.keys():
                if of_first.get(name) != of_this.get(name):
                    raise ValueError(
                        f"only checkpoints of one training can be averaged: {name} is {of_first.get(name)} in"
                        f" {paths[0]} and {of_this.get(name)} in {path}."
                    )
            print(f"averaging {path} ({updates(checkpoint)} updates)", file=sys.stderr)
            checkpoint.pop("last_optimizer_state", None)
            last.update(checkpoint)
            yield checkpoint["model"]

    averaged = average_states(states())
    # What belongs to the run (settings, task state) is that of the last.
    return {**last, "model": averaged}


def main():
    parser = argparse.ArgumentParser(
        description="Average the parameters of the last checkpoints of a folder (Section 6.1), or of the checkpoints"
        " named. The average keeps the settings of the last, and no optimizer state.",
        epilog="example: python scripts/average_checkpoints.py checkpoints --preset base --out checkpoints/averaged.pt",
    )
    parser.add_argument("checkpoints", nargs="+", help="a folder of checkpoints, or checkpoint files")
    count = parser.add_mutually_exclusive_group()
    count.add_argument("--last", type=int, help="how many of a folder, the last by number of updates (default: 5)")
    count.add_argument("--preset", choices=PRESETS, help="the paper's numbers: base, the last 5; big, the last 20")
    parser.add_argument("--allow-fewer", action="store_true", help="take what there is where the folder holds fewer")
    parser.add_argument("--out", required=True, help="averaged checkpoint to write")
    args = parser.parse_args()
    wanted = args.last if args.last is not None else PRESETS[args.preset or "base"]
    if wanted < 1:
        raise ValueError(f"--last must be at least 1, not {wanted}.")

    paths = [Path(path) for path in args.checkpoints]
    if len(paths) == 1 and paths[0].is_dir():
        paths = last_checkpoints(paths[0], wanted, args.allow_fewer)
    elif args.last is not None or args.preset is not None:
        raise ValueError("--last and --preset choose from one folder; files are averaged as they are named.")
    with atomic_path(args.out) as temporary:
        torch.save(average(paths), temporary)
    try:  # translate.py needs the dictionaries and merges beside the average
        copy_companions(paths[-1].parent, Path(args.out).parent)
    except UserError as error:
        print(f"dictionaries and merges are not copied: {error}", file=sys.stderr)
    print(f"{args.out}: average of {len(paths)} checkpoints")


if __name__ == "__main__":
    run_as_script(main)
