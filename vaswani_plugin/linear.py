"""``x W^T + b``, with the weights laid out for the processor once generation starts.

The paper is silent on how weights start. Here a matrix is uniform within 1 / sqrt(inputs), as in torch,
and a bias zero: each residual branch then starts smaller than the path that it is added to. Xavier's wider
ranges, which the authors' code has, made small models learn far more slowly.

On CPUs a product of few rows spends most of its time bringing the matrix into the order in which it
is multiplied. Training cannot avoid it, since weights change; generation can. A product of packed
weights also gives a row the same bits whatever rows stand beside it, so that hypotheses do not depend
on the batch. Packed weights are a second copy in memory.
"""

import torch
import torch.nn.functional as F
from torch import nn

from . import toolkit


class Linear(nn.Linear):
    """``nn.Linear`` with the same weights, names and results, faster in generation on CPUs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._packed = None  # packed weights by their first and last row, and the version that they are of

    def reset_parameters(self):
        bound = self.in_features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def make_generation_fast_(self, **unused):
        """fairseq's hook before generation, after which it allows no more training: weights stay as they are."""
        self._packed = {}

    def forward(self, x, first=0, last=None):
        """``[..., inputs]`` to ``[..., outputs]``; of the outputs only ``first`` to ``last``, if these are given."""
        rows = slice(first, last)
        bias = None if self.bias is None else self.bias[rows]
        if self._packed is not None and toolkit.can_multiply_packed(x, self.weight):
            version, packed = self._packed.get((first, last), (None, None))
            if version != self.weight._version:  # not packed yet, or other weights were loaded since
                version, packed = self.weight._version, toolkit.pack(self.weight[rows])
                self._packed[first, last] = version, packed
            return toolkit.multiply_packed(x, packed, bias)
        return F.linear(x, self.weight[rows], bias)
