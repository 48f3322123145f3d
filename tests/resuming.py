"""What the tests of interruption and of several processes share: a small training and what it logs."""

import json
import re

import torch

from .helpers import PLUGIN

TINY = [
    "--user-dir", PLUGIN, "--task", "vaswani_translation", "--arch", "vaswani2017_tiny", "--encoder-embed-dim", "32",
    "--encoder-ffn-embed-dim", "64", "--encoder-layers", "1", "--decoder-layers", "1", "--max-tokens", "600", "--cpu",
    "--num-workers", "0", "--log-format", "json", "--log-interval", "1", "--required-batch-size-multiple", "1",
]
NUMBERS = ("loss", "nll_loss", "ppl", "lr", "gnorm", "wpb", "bsz")


def logged(output, names=NUMBERS):
    """``{update: its logged numbers}``; the same update logged twice must be the same."""
    found = {}
    for line in re.findall(r"train_inner \| (\{.*\})", output):
        entry = json.loads(line)
        values = {name: entry[name] for name in names if name in entry}
        assert found.setdefault(int(entry["num_updates"]), values) == values
    return found


def state(path):
    return torch.load(path, weights_only=True)


def same_tensors(a, b):
    """Whether two checkpoints hold the same model and the same optimizer state, bit by bit."""
    def tensors(checkpoint):
        for name, tensor in checkpoint["model"].items():
            yield name, tensor
        for number, moments in checkpoint["last_optimizer_state"]["state"].items():
            for name, value in moments.items():
                if isinstance(value, torch.Tensor):
                    yield f"{number}.{name}", value

    a, b = dict(tensors(state(a))), dict(tensors(state(b)))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
