"""One layer of the encoder and of the decoder: Section 3.1 and Figure 1.

The output of each sub-layer is ``LayerNorm(x + Sublayer(x))``, with dropout on ``Sublayer(x)``
before it is added and normalised (Section 5.4).
"""

from dataclasses import dataclass

from torch import nn

from .attention import MultiHeadAttention
from .dropout import Dropout
from .feed_forward import FeedForward


@dataclass(frozen=True)
class LayerSizes:
    """What a layer is made of, in the paper's letters; ``d_k`` and ``d_v`` are per head."""

    d_model: int
    d_ff: int
    heads: int
    d_k: int
    d_v: int
    dropout: float
    attention_dropout: float = 0.0
    attention_bias: bool = False
    layer_norm_eps: float = 1e-6

    def attention(self):
        return MultiHeadAttention(
            self.d_model, self.heads, self.d_k, self.d_v, self.attention_bias, self.attention_dropout
        )

    def feed_forward(self):
        return FeedForward(self.d_model, self.d_ff)

    def residual(self):
        return Residual(self.d_model, self.dropout, self.layer_norm_eps)


class Residual(nn.Module):
    """``LayerNorm(x + Dropout(Sublayer(x)))``."""

    def __init__(self, d_model, dropout, eps):
        super().__init__()
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(d_model, eps=eps)

    def forward(self, x, sublayer_output):
        dropped = self.dropout(sublayer_output)
        if dropped is sublayer_output:
            return self.norm(x + dropped)
        # In place of what nobody else holds: on CPUs a freed tensor leaves a hole between those that are kept.
        return self.norm(dropped.add_(x))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network; ``[batch, source, d_model]`` throughout."""

    def __init__(self, sizes):
        super().__init__()
        self.self_attention = sizes.attention()
        self.self_attention_residual = sizes.residual()
        self.feed_forward = sizes.feed_forward()
        self.feed_forward_residual = sizes.residual()

    def forward(self, x, allowed=None):
        """``allowed``: boolean ``[batch, 1, 1, source]``, false at padding; ``None`` without padding."""
        x = self.self_attention_residual(x, self.self_attention(x, allowed=allowed))
        return self.feed_forward_residual(x, self.feed_forward(x))


class DecoderLayer(nn.Module):
    """Masked self-attention, encoder-decoder attention, feed-forward; ``[batch, target, d_model]`` throughout."""

    def __init__(self, sizes):
        super().__init__()
        self.self_attention = sizes.attention()
        self.self_attention_residual = sizes.residual()
        self.cross_attention = sizes.attention()
        self.cross_attention_residual = sizes.residual()
        self.feed_forward = sizes.feed_forward()
        self.feed_forward_residual = sizes.residual()

    def forward(self, x, memory, memory_allowed=None, allowed=None):
        """All target positions at once, as in training.

        Args:
            x: ``[batch, target, d_model]``
            memory: the encoder's output, ``[batch, source, d_model]``
            memory_allowed: boolean ``[batch, 1, 1, source]``, false at padding
            allowed: boolean ``[batch, 1, target, target]``; ``None``: position ``i`` sees ``0..i``
        """
        attended = self.self_attention(x, allowed=allowed, causal=allowed is None)
        x = self.self_attention_residual(x, attended)
        attended = self.cross_attention(x, memory, allowed=memory_allowed)
        x = self.cross_attention_residual(x, attended)
        return self.feed_forward_residual(x, self.feed_forward(x))

    def step(self, x, cache, layer):
        """The newest position of each hypothesis, ``[sentences, beams, d_model]``; what came before is in ``cache``."""
        query, key, value = self.self_attention.project(x)
        key, value = cache.append(layer, key, value)
        x = self.self_attention_residual(x, self.self_attention.attend(query, key, value, cache.mask))
        query = self.cross_attention.project_query(x)
        attended = self.cross_attention.attend(query, *cache.memory(layer), cache.memory_mask)
        x = self.cross_attention_residual(x, attended)
        return self.feed_forward_residual(x, self.feed_forward(x))
