"""What the heads look at: the weights of Eq. 1 in all layers, as in Figures 3 to 5 of the paper."""

from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass
class AttentionMaps:
    """The three attentions of one sentence pair; each row of weights sums to one.

    Attributes:
        encoder: ``[layers, heads, source, source]``, encoder self-attention
        decoder: ``[layers, heads, target, target]``, masked decoder self-attention
        cross: ``[layers, heads, target, source]``, encoder-decoder attention
        logits: ``[target, entries]``, the model's output, which looking does not change
    """

    encoder: torch.Tensor
    decoder: torch.Tensor
    cross: torch.Tensor
    logits: torch.Tensor


@torch.no_grad()
def attention_maps(model, source, target):
    """The attention weights of all layers and heads for one sentence pair.

    Args:
        model: a ``VaswaniModel``, in eval mode
        source: ``[source]``, token numbers as the encoder reads them, end token included
        target: ``[target]``, token numbers as the decoder writes them, end token included; row ``i`` of a
            map is the step that writes token ``i``, where the decoder has read the end token (as the
            start) and tokens ``0..i-1``

    Returns:
        :class:`AttentionMaps`

    Raises:
        ValueError: a model in training mode, an empty sentence, or one that contains padding
    """
    if model.training:
        raise ValueError("the model is in training mode, where dropout changes what heads look at: call model.eval()")
    for name, sentence, padding in (("source", source, model.encoder.padding), ("target", target, model.decoder.padding)):
        if sentence.dim() != 1 or sentence.numel() == 0 or sentence.eq(padding).any():
            raise ValueError(f"{name} must be one sentence of token numbers without padding, not {sentence.tolist()}")
    with _seen([layer.self_attention for layer in model.encoder.layers]) as encoder, \
            _seen([layer.self_attention for layer in model.decoder.layers]) as decoder, \
            _seen([layer.cross_attention for layer in model.decoder.layers]) as cross:
        lengths = source.new_tensor([source.numel()])
        logits, _ = model(source[None], lengths, target.roll(1)[None])
        return AttentionMaps(*(torch.cat([kept[0] for kept in seen]) for seen in (encoder, decoder, cross)), logits[0])


@contextmanager
def _seen(attentions):
    """For each attention a list that its weights are added to."""
    before = [attention.seen_weights for attention in attentions]
    kept = [[] for _ in attentions]
    try:
        for attention, weights in zip(attentions, kept):
            attention.seen_weights = weights
        yield kept
    finally:
        for attention, weights in zip(attentions, before):
            attention.seen_weights = weights
