"""Attention: Section 3.2 of the paper.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V                        (Eq. 1)
    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O
        where head_i   = Attention(Q W_i^Q, K W_i^K, V W_i^V)

Which keys a query is *allowed* to see, a boolean tensor says, or the :class:`Mask` made of it.
"""

import math
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import nn

from . import toolkit
from .linear import Linear

HALF = (torch.bfloat16, torch.float16)
# Up to here the scores are no more than a few times as large as what they are computed from.
FEW_KEYS = 256
# So many hypotheses of a sentence are the queries in a step of generation.
FEW_QUERIES = 16


class Mask(NamedTuple):
    """Which keys queries see, in the form that attention computes with: made once, of use in many layers.

    Attributes:
        bias: what is added to the scores, broadcastable to ``[batch, heads, queries, keys]``: 0 where a key is
            allowed, else -inf; all 0 for a query that sees none, whose softmax would be 0/0; ``None``: all are allowed
        sees_a_key: boolean, what to multiply the output by, so that such a query attends to nothing and every
            gradient stays finite; ``None``: all see one
    """

    bias: Optional[torch.Tensor] = None
    sees_a_key: Optional[torch.Tensor] = None

    @classmethod
    def of(cls, allowed, dtype):
        """The mask for queries and keys of this type, from booleans of the same shape."""
        sees_a_key = allowed.any(dim=-1, keepdim=True)
        return cls(_bias(allowed | ~sees_a_key, dtype), sees_a_key)

    @classmethod
    def of_seeing(cls, allowed, dtype):
        """:meth:`of`, where every query is known to see a key."""
        return cls(_bias(allowed, dtype))


def _bias(allowed, dtype):
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, -math.inf)


def scaled_dot_product_attention(query, key, value, allowed=None, dropout=0.0, causal=False):
    """Eq. 1, by torch's fused kernel: no scores are kept in memory (but where they are few, on CPUs).

    Args:
        query: ``[batch, heads, queries, d_k]``
        key: ``[batch, heads, keys, d_k]``
        value: ``[batch, heads, keys, d_v]``
        allowed: boolean, broadcastable to ``[batch, heads, queries, keys]``, or a :class:`Mask`; ``None`` allows all
        dropout: probability of dropping a weight (0 in the paper, except Section 6.3)
        causal: query ``i`` sees keys ``0..i`` only (Section 3.2.3); excludes ``allowed``

    Returns:
        ``[batch, heads, queries, d_v]``; a query with no visible key attends to nothing: zeros.
    """
    on_cpu = query.device.type == "cpu"
    written_out = on_cpu and _is_faster_written_out(query, key)
    if on_cpu and not written_out and query.dtype in HALF and torch.is_grad_enabled():
        # The backward pass of torch's kernel for CPUs takes three times as long in these types.
        with toolkit.no_autocast("cpu"):
            single = (x.float() for x in (query, key, value))
            return scaled_dot_product_attention(*single, allowed, dropout, causal).to(query.dtype)
    if written_out and causal:
        allowed, causal = causal_mask(key.size(2)), False
    mask = _as_mask(allowed, query.dtype)
    if written_out:
        weights = _softmax(query, key, mask.bias)
        output = (F.dropout(weights, dropout) if dropout else weights) @ value
    else:
        output = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask.bias, dropout_p=dropout, is_causal=causal
        )
    return _zero_if_blind(output, mask)


def _as_mask(allowed, dtype):
    if isinstance(allowed, Mask):
        return allowed
    return Mask() if allowed is None else Mask.of(allowed, dtype)


def _zero_if_blind(x, mask):
    """``x [batch, heads, queries, width]`` with zeros for the queries that see no key."""
    return x if mask.sees_a_key is None else x * mask.sees_a_key


def _is_faster_written_out(query, key):
    """Whether torch's kernel for CPUs is slower than Eq. 1 as it stands, without much memory to be saved by it."""
    if torch.is_grad_enabled():
        return query.dtype in HALF and key.size(2) <= FEW_KEYS
    return query.size(2) <= FEW_QUERIES and query.size(0) * query.size(2) > 1


def attention_weights(query, key, allowed=None):
    """The softmax of Eq. 1 by itself, for people who want to look at it.

    Shapes as in :func:`scaled_dot_product_attention`; returns ``[batch, heads, queries, keys]``.
    Rows sum to one; a row with no visible key is zero.
    """
    mask = _as_mask(allowed, query.dtype)
    return _zero_if_blind(_softmax(query, key, mask.bias), mask)


def _softmax(query, key, bias):
    """The softmax of Eq. 1, with ``bias`` added to the scores."""
    batch, heads, queries, d_k = query.shape
    scale = 1 / math.sqrt(d_k)
    products = query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2)
    if bias is None:
        scores = torch.baddbmm(query.new_empty(1), *products, beta=0, alpha=scale)
    else:
        bias = bias.expand(batch, heads, queries, key.size(2)).flatten(0, 1)
        scores = torch.baddbmm(bias, *products, alpha=scale)
    return scores.softmax(dim=-1).view(batch, heads, queries, key.size(2))


def causal_mask(length, device=None):
    """Section 3.2.3: position ``i`` may see positions ``0..i``. Boolean ``[length, length]``."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


class MultiHeadAttention(nn.Module):
    """Section 3.2.2.

    ``W^Q``, ``W^K`` and ``W^V`` of all heads are the rows of one matrix, so that self-attention
    needs one product: ``h*d_k`` rows of queries, ``h*d_k`` of keys, ``h*d_v`` of values.

    Args:
        d_model, heads, d_k, d_v: as in the paper; ``d_k`` and ``d_v`` are widths of one head
        bias: add biases to the four projections (the paper's equations show none)
        dropout: probability of dropping an attention weight while training (Section 6.3 only)
    """

    def __init__(self, d_model, heads, d_k, d_v, bias=False, dropout=0.0):
        super().__init__()
        self.heads, self.d_k, self.d_v = heads, d_k, d_v
        self.sizes = [heads * d_k, heads * d_k, heads * d_v]
        self.dropout = dropout
        self.seen_weights = None  # a list: the weights of each call are added to it
        self.projection = Linear(d_model, sum(self.sizes), bias=bias)
        self.output = Linear(heads * d_v, d_model, bias=bias)

    def forward(self, x, memory=None, allowed=None, causal=False):
        """Attend from ``x`` to ``memory``, or to ``x`` itself.

        Args:
            x: ``[batch, queries, d_model]``
            memory: ``[batch, keys, d_model]``, the encoder's output in encoder-decoder attention
            allowed, causal: as in :func:`scaled_dot_product_attention`

        Returns:
            ``[batch, queries, d_model]``
        """
        query, key, value = self.project(x, memory)
        return self.attend(query, key, value, allowed, causal)

    def project(self, x, memory=None):
        """Queries of ``x``, keys and values of ``memory`` (default ``x``), each ``[batch, heads, time, width]``."""
        if memory is None:
            query, key, value = self.projection(x).split(self.sizes, dim=-1)
            return self.split_heads(query), self.split_heads(key), self.split_heads(value)
        return (self.project_query(x), *self.project_memory(memory))

    def project_query(self, x):
        """Queries alone, ``[batch, heads, queries, d_k]``."""
        return self.split_heads(self.projection(x, last=self.sizes[0]))

    def project_memory(self, memory):
        """Keys and values alone, ``[batch, heads, keys, d_k]`` and ``[batch, heads, keys, d_v]``."""
        key, value = self.projection(memory, first=self.sizes[0]).split(self.sizes[1:], dim=-1)
        return self.split_heads(key), self.split_heads(value)

    def attend(self, query, key, value, allowed=None, causal=False):
        """``Concat(head_1, ..., head_h) W^O`` of projected queries, keys and values."""
        if self.seen_weights is not None:
            mask = causal_mask(query.size(2), query.device) if causal else allowed
            self.seen_weights.append(attention_weights(query, key, mask))
        dropout = self.dropout if self.training else 0.0
        heads = scaled_dot_product_attention(query, key, value, allowed, dropout, causal)
        return self.output(heads.transpose(1, 2).flatten(2))

    def split_heads(self, x):
        """``[batch, time, heads * width]`` to ``[batch, heads, time, width]``."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)
