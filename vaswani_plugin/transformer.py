"""The Transformer: Section 3 and Figure 1, in the classes that fairseq expects.

    encoder: x = Dropout(sqrt(d_model) E[source] + PE); N encoder layers
    decoder: y = Dropout(sqrt(d_model) E[shifted target] + PE); N decoder layers
    output:  softmax(y E^T), with one matrix E in all three places           (Section 3.4)
"""

import argparse
import math
from contextlib import contextmanager
from dataclasses import fields

import torch
from fairseq.models import (
    FairseqEncoder,
    FairseqEncoderDecoderModel,
    FairseqIncrementalDecoder,
    register_model,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from . import checks, recipe, workers
from .attention import causal_mask
from .cache import DecoderCache
from .config import VaswaniConfig, flag
from .dropout import Dropout
from .errors import UserError
from .layers import DecoderLayer, EncoderLayer
from .linear import Linear
from .positions import LearnedPositions, SinusoidalPositions, at_positions, token_positions


def build_embedding(entries, d_model):
    """The matrix E. With the factor sqrt(d_model) its rows have unit variance, like LayerNorm's outputs."""
    embedding = nn.Embedding(entries, d_model)
    nn.init.normal_(embedding.weight, std=d_model**-0.5)
    return embedding


class _Stack:
    """What encoder and decoder share: the embedded input, and layers that may be recomputed."""

    def _build(self, config, embedding, padding, max_positions, layer_class, layers):
        sizes = config.layer_sizes()
        self.embedding = embedding
        self.padding = padding
        self.limit = int(max_positions)
        self.positions = (
            LearnedPositions(sizes.d_model, self.limit)
            if config.learned_positions
            else SinusoidalPositions(sizes.d_model)
        )
        self.embedding_scale = math.sqrt(sizes.d_model)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layer_class(sizes) for _ in range(layers))
        self.checkpoint_activations = config.checkpoint_activations

    def _embed(self, tokens, is_padding=None, first=0):
        """Dropout(sqrt(d_model) E[tokens] + PE): ``[batch, time]`` to ``[batch, time, d_model]``.

        ``first`` is the position of the first token (Sections 3.4, 3.5, 5.4).
        """
        length = first + tokens.size(1)
        if length > self.limit:
            raise UserError(
                f"a {self.side} of {length} tokens is longer than {flag(f'max_{self.side}_positions')}"
                f" {self.limit}: give a larger limit, or shorten the sentence"
            )
        embedded = self.embedding_scale * self.embedding(tokens)
        table = self.positions(length, like=embedded)
        if is_padding is None:
            embedded = embedded + table[first:]
        else:
            embedded = embedded + at_positions(table, token_positions(is_padding))
        return self.dropout(embedded)

    def _run(self, layer, *inputs):
        if self.checkpoint_activations and self.training and torch.is_grad_enabled():
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)

    def max_positions(self):
        """The longest sentence, in tokens, that the task may send."""
        return self.limit


class VaswaniEncoder(_Stack, FairseqEncoder):
    """The encoder: N layers over the source (Section 3.1)."""

    side = "source"

    def __init__(self, config, dictionary, embedding):
        super().__init__(dictionary)
        self._build(config, embedding, dictionary.pad(), config.max_source_positions, EncoderLayer,
                    config.encoder_layers)

    def forward(self, src_tokens, src_lengths=None, return_all_hiddens=False, **unused):
        """Encode ``src_tokens [batch, source]``, padded on either side.

        Returns fairseq's dictionary of lists: ``encoder_out`` ``[source, batch, d_model]``,
        ``encoder_padding_mask`` ``[batch, source]``, with ``return_all_hiddens`` also
        ``encoder_states``, the embedded input and the output of each layer.
        """
        is_padding = src_tokens.eq(self.padding)
        if is_padding.any():
            x = self._embed(src_tokens, is_padding)
            allowed = ~is_padding[:, None, None, :]
        else:
            x, allowed = self._embed(src_tokens), None
        states = [x]
        for layer in self.layers:
            x = self._run(layer, x, allowed)
            states.append(x)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [is_padding] if allowed is not None else [],
            "encoder_states": [state.transpose(0, 1) for state in states] if return_all_hiddens else [],
            "sentence_of_row": [],
            # torch's hooks, which fairseq hangs on every module to find where a gradient became infinite, look for a
            # tensor among the values, and die without one.
            "is_padding": is_padding,
        }

    def reorder_encoder_out(self, encoder_out, new_order):
        """Row ``i`` of a later call of the decoder translates what row ``new_order[i]`` did.

        The sentences themselves stay as they are, once each: only ``sentence_of_row`` changes.
        """
        previous = encoder_out["sentence_of_row"]
        return {**encoder_out, "sentence_of_row": [previous[0][new_order] if previous else new_order]}


class VaswaniDecoder(_Stack, FairseqIncrementalDecoder):
    """The decoder: N layers over the shifted target, then the output projection (Sections 3.1, 3.4)."""

    side = "target"

    def __init__(self, config, dictionary, embedding, output_matrix):
        super().__init__(dictionary)
        self._build(config, embedding, dictionary.pad(), config.max_target_positions, DecoderLayer,
                    config.decoder_layers)
        # On the meta device, since a matrix of its own is not what it gets.
        self.output_projection = Linear(*embedding.weight.shape[::-1], bias=False, device="meta")
        self.output_projection.weight = output_matrix
        self.need_attn = False

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None, features_only=False,
                return_all_hiddens=False, **unused):
        """Logits ``[batch, target, entries]`` of the next token at each position, and fairseq's extras.

        With ``incremental_state`` only the newest token is computed: ``[batch, 1, entries]``.
        With ``features_only`` the output projection is left out.
        """
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state, return_all_hiddens)
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(self, prev_output_tokens, encoder_out, incremental_state=None,
                         return_all_hiddens=False, **unused):
        """The last layer's output ``[batch, target, d_model]``; arguments as in :meth:`forward`."""
        if incremental_state is not None:
            return self._step(prev_output_tokens, encoder_out, incremental_state)
        memory = encoder_out["encoder_out"][0].transpose(0, 1)
        memory_allowed = None
        if encoder_out["encoder_padding_mask"]:
            memory_allowed = ~encoder_out["encoder_padding_mask"][0][:, None, None, :]
        if encoder_out["sentence_of_row"]:
            rows = encoder_out["sentence_of_row"][0]
            memory = memory[rows]
            memory_allowed = None if memory_allowed is None else memory_allowed[rows]

        x, allowed = self._embed_target(prev_output_tokens)
        states = [x]
        with self._alignment() as alignment:
            for layer in self.layers:
                x = self._run(layer, x, memory, memory_allowed, allowed)
                states.append(x)
        extra = {"attn": [alignment[0].mean(dim=1) if alignment else None]}
        if return_all_hiddens:
            extra["inner_states"] = [state.transpose(0, 1) for state in states]
        return x, extra

    def _embed_target(self, tokens):
        """Embedded tokens, and the mask where causality is not enough.

        Padding on the right is hidden by causality from every real token; padding on the left is not.
        """
        is_padding = tokens.eq(self.padding)
        if not is_padding[:, 0].any():
            return self._embed(tokens), None
        allowed = causal_mask(tokens.size(1), tokens.device) & ~is_padding[:, None, None, :]
        return self._embed(tokens, is_padding), allowed

    @contextmanager
    def _alignment(self):
        """A list that, if somebody wants alignments, gets the weights of the last encoder-decoder attention."""
        last = self.layers[-1].cross_attention
        if not self.need_attn:
            yield None
            return
        last.seen_weights = []
        try:
            yield last.seen_weights
        finally:
            last.seen_weights = None

    @torch.no_grad()
    def _step(self, tokens, encoder_out, incremental_state):
        """One step of generation; earlier positions come from the cache in ``incremental_state``."""
        cache = incremental_state.get("vaswani")
        if cache is None:
            cache = incremental_state["vaswani"] = self._new_cache(tokens, encoder_out)
        x = self._embed(tokens[:, -1:], first=cache.next_position())
        x = x.unflatten(0, (-1, cache.beams)).squeeze(2)
        with self._alignment() as alignment:
            for index, layer in enumerate(self.layers):
                x = layer.step(x, cache, index)
        attention = alignment[0].mean(dim=1).flatten(0, 1).unsqueeze(1) if alignment else None
        return x.flatten(0, 1).unsqueeze(1), {"attn": [attention]}

    def _new_cache(self, tokens, encoder_out):
        memory = encoder_out["encoder_out"][0].transpose(0, 1)
        padding_mask = encoder_out["encoder_padding_mask"]
        rows = encoder_out["sentence_of_row"]
        return DecoderCache(
            [layer.cross_attention.project_memory(memory) for layer in self.layers],
            ~padding_mask[0][:, None, None, :] if padding_mask else None,
            rows[0] if rows else torch.arange(tokens.size(0), device=tokens.device),
        )

    def reorder_incremental_state_scripting(self, incremental_state, new_order):
        """Called by fairseq's search: hypothesis ``i`` continues what hypothesis ``new_order[i]`` was."""
        if "vaswani" in incremental_state:
            incremental_state["vaswani"].reorder(new_order)

    reorder_incremental_state = reorder_incremental_state_scripting

    def output_layer(self, features, **unused):
        """``features E^T``: no bias, no scale (Section 3.4)."""
        return self.output_projection(features)

    def log_probs_(self, logits):
        """Log-probabilities, float32 at least, of ``logits [rows, entries]``, which on CPUs they overwrite:
        there fresh memory costs more than the arithmetic in it."""
        if logits.device.type == "cpu" and logits.dtype == torch.float32:
            return torch.log_softmax(logits, dim=-1, out=logits)
        return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def make_generation_fast_(self, need_attn=False, **unused):
        """fairseq's hook before generation; ``need_attn``: somebody wants the alignment."""
        self.need_attn = need_attn


@register_model("vaswani", dataclass=VaswaniConfig)
class VaswaniModel(FairseqEncoderDecoderModel):
    """The model of Figure 1 as fairseq sees it."""

    @classmethod
    def add_args(cls, parser):
        """The model's flags, and with them the whole recipe of Section 5 as defaults (``recipe.py``)."""
        recipe.add_arguments(parser)
        # A dataclass field that is true by default would become a flag of the opposite meaning.
        parser.add_argument(
            "--share-all-embeddings",
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help="one matrix for source, target and output (Section 3.4)",
        )
        super().add_args(parser)

    @classmethod
    def build_model(cls, cfg, task):
        """The model for the dictionaries of ``task``; ``cfg`` holds the fields of :class:`VaswaniConfig`."""
        workers.check_one_model()
        checks.resuming_under_hydra(cfg)
        config = VaswaniConfig(**{f.name: cfg[f.name] for f in fields(VaswaniConfig) if f.name in cfg})
        return cls.from_config(config, task.source_dictionary, task.target_dictionary)

    @classmethod
    def from_config(cls, config, source, target=None):
        """The model for two fairseq dictionaries, or one that both sides share.

        Raises:
            UserError: sizes that make no model; different dictionaries for one shared matrix
        """
        target = source if target is None else target
        sizes = config.layer_sizes()
        source_embedding = build_embedding(len(source), sizes.d_model)
        if config.share_all_embeddings:
            if source != target:
                raise UserError(checks.NOT_JOINED)
            target_embedding, output_matrix = source_embedding, source_embedding.weight
        else:
            target_embedding = build_embedding(len(target), sizes.d_model)
            output_matrix = build_embedding(len(target), sizes.d_model).weight
        return cls(
            VaswaniEncoder(config, source, source_embedding),
            VaswaniDecoder(config, target, target_embedding, output_matrix),
        )

    def forward(self, src_tokens, src_lengths, prev_output_tokens, features_only=False, return_all_hiddens=False):
        """Teacher forcing: logits ``[batch, target, entries]`` of all next tokens, and fairseq's extras.

        Args:
            src_tokens: ``[batch, source]``, padded on either side
            src_lengths: not needed
            prev_output_tokens: ``[batch, target]``, the target shifted right by one
            features_only: leave out the output projection
            return_all_hiddens: add the output of every layer of the decoder to the extras
        """
        encoder_out = self.encoder(src_tokens)
        return self.decoder(
            prev_output_tokens, encoder_out, features_only=features_only, return_all_hiddens=return_all_hiddens
        )

    def set_num_updates(self, num_updates):
        """fairseq's hook before each update, with the number of those done."""
        super().set_num_updates(num_updates)
        self.num_updates = num_updates

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """As in fairseq; a checkpoint of another model is named as such.

        Raises:
            UserError: names or shapes of ``state_dict`` are not this model's
        """
        own = self.state_dict()
        different = sorted(
            name for name in own.keys() | state_dict.keys()
            if name not in own or name not in state_dict or own[name].shape != state_dict[name].shape
        )
        if strict and different:
            name = different[0]
            raise UserError(
                f"the checkpoint is of another model: {len(different)} tensors differ, the first is {name}"
                f" ({_shape(state_dict, name)} in the checkpoint, {_shape(own, name)} in the model);"
                " give the flags that it was trained with, or another --save-dir or --restore-file"
            )
        return super().load_state_dict(state_dict, strict, model_cfg, args)


def _shape(state, name):
    return "x".join(map(str, state[name].shape)) if name in state else "missing"
