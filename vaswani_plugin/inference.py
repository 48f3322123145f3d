"""Inference: Section 6.1.

Checkpoints are averaged, hypotheses are ranked by the length penalty of Wu et al. 2016, which the
paper cites, and an output may be as long as its input plus 50.
"""

from collections import OrderedDict

import torch

from .errors import UserError

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

    Names of one and the same tensor (Section 3.4 shares one matrix) share one in the result too.

    Args:
        states: an iterable of state dictionaries, read one at a time

    Returns:
        a state dictionary with the types of the first

    Raises:
        UserError: no states at all, or states whose names or shapes differ
    """
    sums, types, shared, count = OrderedDict(), {}, {}, 0
    for state in states:
        if count == 0:
            types = {name: tensor.dtype for name, tensor in state.items()}
            shared = _shared_names(state)
            shapes = _shapes(state)
            sums = {name: state[name].to(torch.float64, copy=True) for name in set(shared.values())}
        else:
            different = sorted(name for name, _ in shapes.items() ^ _shapes(state).items())
            if different:
                raise UserError(
                    f"only checkpoints of one model can be averaged: {len(different)} names or shapes of tensors"
                    f" differ, the first is {different[0]}"
                )
            for name, total in sums.items():
                total += state[name]
        count += 1
    if count == 0:
        raise UserError("there is no checkpoint to average")
    means = {name: (total / count).to(types[name]) for name, total in sums.items()}
    return OrderedDict((name, means[shared[name]]) for name in types)


def _shapes(state):
    return {name: tensor.shape for name, tensor in state.items()}


def _shared_names(state):
    """For each name the first name of the same tensor in memory."""
    first, shared = {}, {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else name
        shared[name] = first.setdefault(place, name)
    return shared
