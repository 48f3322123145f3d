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
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x):
        # In place: at 4 times the width, a second tensor would cost more time than the maximum itself.
        return self.outer(F.relu(self.inner(x), inplace=True))
