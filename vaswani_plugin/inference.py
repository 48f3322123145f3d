"""Inference: Section 6.1.

Checkpoints are averaged, hypotheses are ranked by the length penalty of Wu et al. 2016, which the
paper cites, and an output may be as long as its input plus 50.
"""

from collections import OrderedDict

import torch

ALPHA = 0.6
BEAM = 4
EXTRA_LENGTH = 50

# The same under the names of fairseq's options.
PAPER_SEARCH = {"beam": BEAM, "lenpen": ALPHA, "max_len_a": 1.0, "max_len_b": EXTRA_LENGTH}


def length_penalty(length, alpha=ALPHA):
    """``((5 + length) / 6)^alpha``; a hypothesis scores its log-probability divided by this.

    ``length`` counts the end token, as in the authors' code.
    """
    return ((5 + length) / 6) ** alpha


def length_limit(source_length, a=1.0, b=EXTRA_LENGTH):
    """The most tokens of an output, ``a * source_length + b``; neither counts the end token."""
    return int(a * source_length + b)


def average_states(states):
    """The arithmetic mean of several models' tensors, accumulated in float64.

    Args:
        states: an iterable of state dictionaries, read one at a time

    Returns:
        a state dictionary with the types of the first

    Raises:
        ValueError: no states at all, or states whose names or shapes differ
    """
    sums, types, count = OrderedDict(), {}, 0
    for state in states:
        shapes = {name: tensor.shape for name, tensor in state.items()}
        if count == 0:
            types = {name: tensor.dtype for name, tensor in state.items()}
            sums = OrderedDict((name, tensor.to(torch.float64)) for name, tensor in state.items())
        else:
            if shapes != {name: tensor.shape for name, tensor in sums.items()}:
                raise ValueError("only checkpoints of one model can be averaged: names or shapes of tensors differ")
            for name, tensor in state.items():
                sums[name] = sums[name] + tensor
        count += 1
    if count == 0:
        raise ValueError("there is no checkpoint to average")
    return OrderedDict((name, (total / count).to(types[name])) for name, total in sums.items())
