"""Average the last checkpoints of a training run, as Section 6.1 of the paper does."""

import argparse
import logging
import pickle
import re
import sys
from pathlib import Path

import torch
from common import atomic_path, run_as_script

logging.basicConfig(level=logging.WARNING)  # before fairseq, which remarks on every optional package that is missing

import vaswani_plugin  # noqa: E402,F401  (teaches torch which objects of fairseq a checkpoint may hold)
from vaswani_plugin.inference import average_states  # noqa: E402


def last_checkpoints(directory, count):
    """The `count` checkpoints `checkpoint_EPOCH_UPDATE.pt` of a folder with the most updates, oldest first."""
    numbered = {}
    for path in Path(directory).glob("checkpoint_*_*.pt"):
        match = re.fullmatch(r"checkpoint_\d+_(\d+)\.pt", path.name)
        if match:
            numbered[int(match.group(1))] = path
    if not numbered:
        raise ValueError(
            f"{directory} holds no checkpoints named checkpoint_EPOCH_UPDATE.pt; --save-interval-updates writes them."
        )
    return [numbered[update] for update in sorted(numbered)[-count:]]


def load(path):
    """A checkpoint as fairseq saved it, on the CPU, without running anything it may hold. Raises ValueError."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = (str(error).splitlines() or ["it is empty"])[0]
        raise ValueError(f"{path} is no checkpoint that can be loaded safely: {reason}") from None
    if not isinstance(checkpoint, dict) or "model" not in checkpoint:
        raise ValueError(f"{path} is no checkpoint of fairseq: it holds no model.")
    return checkpoint


def main():
    parser = argparse.ArgumentParser(
        description="Average the parameters of the last checkpoints that --save-interval-updates wrote (Section 6.1), or "
        "of the checkpoints named.",
        epilog="example: python scripts/average_checkpoints.py checkpoints --last 5 --out checkpoints/averaged.pt",
    )
    parser.add_argument("checkpoints", nargs="+", help="a folder of checkpoints, or checkpoint files")
    parser.add_argument("--last", type=int, default=5, help="how many of a folder (default: %(default)s, as the base model)")
    parser.add_argument("--out", required=True, help="averaged checkpoint to write")
    args = parser.parse_args()
    if args.last < 1:
        raise ValueError(f"--last must be at least 1, not {args.last}.")

    if len(args.checkpoints) == 1 and Path(args.checkpoints[0]).is_dir():
        paths = last_checkpoints(args.checkpoints[0], args.last)
    else:
        paths = args.checkpoints

    def states():
        for path in paths:
            print(f"averaging {path}", file=sys.stderr)
            yield load(path)["model"]

    averaged = average_states(states())
    # What belongs to the run (settings, dictionary size, task state) is that of the last; the optimizer is not kept.
    checkpoint = load(paths[-1])
    checkpoint["model"] = averaged
    checkpoint.pop("last_optimizer_state", None)

    with atomic_path(args.out) as temporary:
        torch.save(checkpoint, temporary)
    print(f"{args.out}: average of {len(paths)} checkpoints")


if __name__ == "__main__":
    run_as_script(main)
