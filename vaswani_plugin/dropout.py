"""Dropout: Section 5.4, residual dropout, with rate P_drop."""

import torch
from torch import nn

from . import toolkit

_LEVELS = 1 << 16  # values of a 16-bit number
_PER_DRAW = 4  # 16-bit numbers in one 64-bit draw


class Dropout(nn.Dropout):
    """``torch.nn.Dropout``, several times as fast on CPUs, where it also remembers a byte an element, not four.

    torch draws a number for each element there, on many CPUs in one thread: 5 % of a training step.
    Here one 64-bit draw decides four elements. The rate is the nearest multiple of 1/65536 to ``p``
    (0.1 becomes 0.100006), and what is kept is divided by exactly the chance of being kept, so that
    the expectation is the input. ``torch.manual_seed`` governs it.
    """

    def forward(self, x):
        kept = round((1 - self.p) * _LEVELS)
        decided = not self.training or kept in (0, _LEVELS)
        if decided or x.device.type != "cpu" or toolkit.is_compiling():
            return super().forward(x)
        draws = torch.empty(-(-x.numel() // _PER_DRAW), dtype=torch.int64)
        draws.random_(-(1 << 63), None)  # all 64 bits
        numbers = draws.view(torch.int16)[: x.numel()].view(x.shape)  # uniform over -LEVELS / 2 .. LEVELS / 2 - 1
        keep = numbers < kept - _LEVELS // 2
        return torch.where(keep, x, 0.0).mul_(_LEVELS / kept)
