"""Position-wise feed-forward network: Section 3.3.

    FFN(x) = max(0, x W_1 + b_1) W_2 + b_2                                   (Eq. 2)
"""

import torch.nn.functional as F
from torch import nn

from .linear import Linear


class FeedForward(nn.Module):
    """Eq. 2, the same for every position; ``[batch, time, d_model]`` to the same shape."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.inner = Linear(d_model, d_ff)
        self.outer = Linear(d_ff, d_model)

    def forward(self, x):
        # As a matrix, since an in-place maximum of a view would be copied in the backward pass; and in
        # place, since at four times the width a second tensor costs more time than the maximum itself.
        inner = self.inner(x.flatten(0, -2))
        return self.outer(F.relu(inner, inplace=True)).unflatten(0, x.shape[:-1])
