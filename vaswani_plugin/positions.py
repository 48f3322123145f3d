"""Positions: Section 3.5, and the learned table of Table 3 row (E).

    PE(pos, 2i)   = sin(pos / 10000^(2i / d_model))
    PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model))
"""

import torch
import torch.nn.functional as F
from torch import nn


def sinusoids(length, d_model, dtype=torch.float32, device=None):
    """The table ``PE[pos, column]``, ``[length, d_model]``, for positions from 0.

    Computed in float64 and cast: in float32 the sines of position 1000 are off by 6e-5.
    """
    position = torch.arange(length, dtype=torch.float64, device=device).unsqueeze(1)
    even_column = torch.arange(0, d_model, 2, dtype=torch.float64, device=device)
    angle = position / 10000 ** (even_column / d_model)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).to(dtype)


def token_positions(is_padding):
    """Position of each token in its sentence, ``[batch, time]``; the first token has 0.

    Padding on either side does not count; padding itself gets any valid position.

    Args:
        is_padding: boolean ``[batch, time]``
    """
    return ((~is_padding).cumsum(dim=1) - 1).clamp_(min=0)


class SinusoidalPositions(nn.Module):
    """The fixed table. It has no parameters, is not saved, and grows when a longer sentence comes."""

    def __init__(self, d_model):
        super().__init__()
        if d_model % 2:
            raise ValueError(f"sinusoids come in pairs: d_model must be even, not {d_model}")
        self.d_model = d_model
        # No buffer: ``.double()`` or ``.half()`` would cast it, and a cast table is a coarser one.
        self._table = None

    def forward(self, length, like):
        """``[length, d_model]``, the rows of positions ``0..length-1``, in type and device of ``like``."""
        table = self._table
        if table is None or length > table.size(0) or table.dtype != like.dtype or table.device != like.device:
            # Powers of two, so that generation does not make a new table at every step.
            size = max(1024, 1 << (length - 1).bit_length())
            self._table = table = sinusoids(size, self.d_model, like.dtype, like.device)
        return table[:length]


class LearnedPositions(nn.Module):
    """Table 3 row (E): one trained vector for each position below ``length``."""

    def __init__(self, d_model, length):
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)

    def forward(self, length, like):
        """``[length, d_model]``, the rows of positions ``0..length-1``, in the type of ``like``.

        Raises:
            ValueError: the table ends before ``length``
        """
        if length > self.table.size(0):
            raise ValueError(f"learned positions end at {self.table.size(0)}; a sentence has {length}")
        return self.table[:length].to(like.dtype)


def at_positions(table, positions):
    """Rows of ``table [length, d_model]`` for ``positions [batch, time]``: ``[batch, time, d_model]``."""
    return F.embedding(positions, table)
