"""`torch.nn.Transformer` with torch's cross-entropy and Adam.

It offers the two stacks and no embedding, position, output projection, schedule or search.
"""

import pathlib

import torch
from torch import nn

from specs.subject import NotOffered, Subject, Unsupported


class TorchTransformer(Subject):
    name = "torch"
    deviations = pathlib.Path(__file__).parent.parent / "deviations" / "torch.toml"

    def build(self, sizes):
        if sizes.d_k != sizes.d_v or sizes.d_k * sizes.heads != sizes.d_model:
            raise Unsupported("heads are always d_model / h wide")
        return nn.Transformer(
            sizes.d_model, sizes.heads, sizes.layers, sizes.layers, sizes.d_ff, sizes.dropout, batch_first=True
        ).eval()

    def parameter_count(self, sizes):
        raise NotOffered("a model with embeddings")

    def encoder_stack(self, model, x):
        return model.encoder(x)

    def decoder_stack(self, model, y, states):
        return model.decoder(y, states, tgt_mask=self._causal(y))

    def layers(self, model, stack):
        return list((model.encoder if stack == "encoder" else model.decoder).layers)

    def encoder_layer(self, layer, x):
        return layer(x)

    def decoder_layer(self, layer, y, states):
        return layer(y, states, tgt_mask=self._causal(y))

    @staticmethod
    def _causal(y):
        return nn.Transformer.generate_square_subsequent_mask(y.size(1), dtype=y.dtype)

    def sublayer(self, layer, kind, x, states=None):
        if kind == "feed-forward":
            return layer.linear2(layer.activation(layer.linear1(x)))
        if kind == "cross":
            return layer.multihead_attn(x, states, states, need_weights=False)[0]
        mask = self._causal(x) if kind == "masked" else None
        return layer.self_attn(x, x, x, attn_mask=mask, need_weights=False)[0]

    def norms(self, layer):
        return [getattr(layer, name) for name in ("norm1", "norm2", "norm3") if hasattr(layer, name)]

    def projections(self, layer, kind):
        block = layer.multihead_attn if kind == "cross" else layer.self_attn
        weights = {f"W_{x}": w.T for x, w in zip("QKV", block.in_proj_weight.chunk(3))} | {"W_O": block.out_proj.weight.T}
        return weights | {f"b_{x}": b for x, b in zip("QKV", block.in_proj_bias.chunk(3))} | {"b_O": block.out_proj.bias}

    def feed_forward_weights(self, layer):
        return dict(W_1=layer.linear1.weight.T, b_1=layer.linear1.bias, W_2=layer.linear2.weight.T, b_2=layer.linear2.bias)

    def attention(self, query, key, value, allowed=None):
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)

    def loss(self, logits, targets, smoothing):
        return nn.functional.cross_entropy(
            logits, targets, label_smoothing=smoothing, ignore_index=self.padding, reduction="sum"
        )

    def optimizer(self, parameters):
        return torch.optim.Adam(parameters, lr=1.0)
