"""The sizes and choices of a model, as fairseq's flags and checkpoints name them.

The dataclass is flat on purpose: a checkpoint then holds plain values alone and loads with safe
unpickling.
"""

from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass

from .errors import UserError
from .layers import LayerSizes


def _option(default, text):
    return field(default=default, metadata={"help": text})


@dataclass
class VaswaniConfig(FairseqDataclass):
    """Sizes and choices of one model; the defaults are the paper's base model."""

    encoder_embed_dim: int = _option(512, "d_model, the width of both stacks")
    encoder_ffn_embed_dim: int = _option(2048, "d_ff, the inner width of the feed-forward networks")
    encoder_layers: int = _option(6, "N of the encoder")
    decoder_layers: int = _option(6, "N of the decoder")
    encoder_attention_heads: int = _option(8, "h, the attention heads of every layer")
    attention_key_dim: int = _option(0, "d_k, the width of a head's queries and keys; 0: d_model / h")
    attention_value_dim: int = _option(0, "d_v, the width of a head's values; 0: d_model / h")
    dropout: float = _option(0.1, "P_drop, on sub-layer outputs and on embeddings + positions")
    attention_dropout: float = _option(0.0, "dropout on attention weights (the paper: parsing only)")
    attention_bias: bool = _option(False, "biases in the attention projections")
    learned_positions: bool = _option(False, "a learned position table, Table 3 row (E)")
    share_all_embeddings: bool = _option(True, "one matrix for source, target and output")
    layer_norm_eps: float = _option(1e-6, "added to the variance in layer normalisation")
    checkpoint_activations: bool = _option(False, "recompute each layer in the backward pass to save memory")
    max_source_positions: int = _option(1024, "longest source, in tokens")
    max_target_positions: int = _option(1024, "longest target, in tokens")

    def layer_sizes(self):
        """The sizes of one layer, checked.

        Raises:
            UserError: a size or rate that makes no model
        """
        d_model, heads = self.encoder_embed_dim, self.encoder_attention_heads
        for name in ("encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_layers", "decoder_layers",
                     "encoder_attention_heads", "max_source_positions", "max_target_positions"):
            if getattr(self, name) < 1:
                raise UserError(f"{flag(name)} must be at least 1, not {getattr(self, name)}")
        if d_model % 2:
            raise UserError(f"--encoder-embed-dim must be even, not {d_model}: sinusoids come in pairs")
        widths = {}
        for name in ("attention_key_dim", "attention_value_dim"):
            widths[name] = getattr(self, name)
            if widths[name] < 0:
                raise UserError(f"{flag(name)} must not be negative, and is {widths[name]}")
            if widths[name] == 0:
                if d_model % heads:
                    raise UserError(
                        f"--encoder-embed-dim {d_model} is not divisible by --encoder-attention-heads"
                        f" {heads}: choose sizes that divide, or give {flag(name)}"
                    )
                widths[name] = d_model // heads
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{flag(name)} must lie in [0, 1), and is {getattr(self, name)}")
        return LayerSizes(
            d_model=d_model,
            d_ff=self.encoder_ffn_embed_dim,
            heads=heads,
            d_k=widths["attention_key_dim"],
            d_v=widths["attention_value_dim"],
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            attention_bias=self.attention_bias,
            layer_norm_eps=self.layer_norm_eps,
        )


def flag(name):
    """The command-line spelling of a field: ``encoder_layers`` gives ``--encoder-layers``."""
    return "--" + name.replace("_", "-")
