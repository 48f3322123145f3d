"""labml-nn, the annotated implementations: its original Transformer, as its classes compose."""

import pathlib

import torch
from labml_nn.optimizers.noam import Noam
from labml_nn.transformers.feed_forward import FeedForward
from labml_nn.transformers.label_smoothing_loss import LabelSmoothingLoss
from labml_nn.transformers.mha import MultiHeadAttention
from labml_nn.transformers.models import (
    Decoder,
    EmbeddingsWithLearnedPositionalEncoding,
    EmbeddingsWithPositionalEncoding,
    Encoder,
    EncoderDecoder,
    Generator,
    TransformerLayer,
)
from labml_nn.transformers.positional_encoding import get_positional_encoding

from specs.subject import Subject, Unsupported
from specs.subjects.parts import attend_with, restack


def _causal(length):
    return torch.ones(length, length).tril().bool()[..., None]


class Labml(Subject):
    name = "labml"
    deviations = pathlib.Path(__file__).parent.parent / "deviations" / "labml.toml"

    def build(self, sizes):
        if sizes.d_k != sizes.d_v or sizes.d_k * sizes.heads != sizes.d_model:
            raise Unsupported("heads are always d_model / h wide")

        def attention():
            return MultiHeadAttention(sizes.heads, sizes.d_model, dropout_prob=sizes.dropout)

        def layer(**cross):
            return TransformerLayer(
                d_model=sizes.d_model, self_attn=attention(), dropout_prob=sizes.dropout,
                feed_forward=FeedForward(sizes.d_model, sizes.d_ff, sizes.dropout), **cross,
            )  # fmt: skip

        embedding = EmbeddingsWithLearnedPositionalEncoding if sizes.learned_positions else EmbeddingsWithPositionalEncoding
        return EncoderDecoder(
            Encoder(layer(), sizes.layers), Decoder(layer(src_attn=attention()), sizes.layers),
            embedding(sizes.d_model, sizes.vocabulary), embedding(sizes.d_model, sizes.vocabulary),
            Generator(sizes.vocabulary, sizes.d_model),
        ).eval()  # fmt: skip

    def embed(self, model, tokens, stack):
        return (model.src_embed if stack == "encoder" else model.tgt_embed)(tokens.T).transpose(0, 1)

    def embeddings(self, model):
        return model.src_embed.linear.weight, model.tgt_embed.linear.weight, model.generator.projection.weight

    def _visible(self, source):
        return (source != self.padding).T[None]  # [1, keys, batch]

    def encode(self, model, source):
        return model.encode(source.T, self._visible(source)).transpose(0, 1)

    def decode(self, model, states, source, target_in):
        mask = _causal(target_in.size(1))
        return model.decode(states.transpose(0, 1), self._visible(source), target_in.T, mask).transpose(0, 1)

    def logits(self, model, source, target_in):
        return model.generator(self.decode(model, self.encode(model, source), source, target_in))

    def step_logits(self, model, source, target_in):
        states = self.encode(model, source)
        return restack(lambda t: model.generator(self.decode(model, states, source, target_in[:, :t])[:, -1:]), target_in)

    def layers(self, model, stack):
        return list((model.encoder if stack == "encoder" else model.decoder).layers)

    def encoder_layer(self, layer, x):
        return layer(x=x.transpose(0, 1), mask=None).transpose(0, 1)

    def decoder_layer(self, layer, y, states):
        src = states.transpose(0, 1)
        return layer(x=y.transpose(0, 1), mask=_causal(y.size(1)), src=src, src_mask=None).transpose(0, 1)

    def sublayer(self, layer, kind, x, states=None):
        y = x.transpose(0, 1)
        if kind == "feed-forward":
            return layer.feed_forward(x)
        if kind == "cross":
            memory = states.transpose(0, 1)
            return layer.src_attn(query=y, key=memory, value=memory).transpose(0, 1)
        mask = _causal(len(y)) if kind == "masked" else None
        return layer.self_attn(query=y, key=y, value=y, mask=mask).transpose(0, 1)

    def norms(self, layer):
        names = ("norm_self_attn", "norm_src_attn", "norm_ff")
        return [getattr(layer, name) for name in names if hasattr(layer, name)]

    def projections(self, layer, kind):
        block = layer.src_attn if kind == "cross" else layer.self_attn
        parts = dict(Q=block.query.linear, K=block.key.linear, V=block.value.linear, O=block.output)
        return {f"W_{x}": part.weight.T for x, part in parts.items()} | {f"b_{x}": p.bias for x, p in parts.items()}

    def feed_forward_weights(self, layer):
        inner, outer = layer.feed_forward.layer1, layer.feed_forward.layer2
        return dict(W_1=inner.weight.T, b_1=inner.bias, W_2=outer.weight.T, b_2=outer.bias)

    def attention(self, query, key, value, allowed=None):
        def block(d_k):
            made = MultiHeadAttention(1, d_k, dropout_prob=0.0)
            return made, (made.query.linear, made.key.linear, made.value.linear, made.output)

        def run(made, q, k, v):
            q, k, v = (x.transpose(0, 1) for x in (q, k, v))
            return made(query=q, key=k, value=v, mask=None if allowed is None else allowed[..., None]).transpose(0, 1)

        return attend_with(block, run, query, key, value)

    def attention_maps(self, model, source, target_in):
        self.logits(model, source, target_in)

        def maps(block):
            return block.attn.permute(2, 3, 0, 1)  # [queries, keys, batch, heads]

        return {
            "encoder": [maps(layer.self_attn) for layer in model.encoder.layers],
            "decoder": [maps(layer.self_attn) for layer in model.decoder.layers],
            "cross": [maps(layer.src_attn) for layer in model.decoder.layers],
        }

    def positions(self, length, d_model):
        return get_positional_encoding(d_model, 5000)[:length, 0]

    def optimizer(self, parameters):
        return torch.optim.Adam(parameters, lr=1.0)

    def learning_rates(self, d_model, updates):
        rates = []
        for update in updates:
            parameter = torch.nn.Parameter(torch.zeros(1))
            optimizer = Noam([parameter], lr=1.0, warmup=4000, d_model=d_model)
            parameter.grad = torch.ones(1)
            optimizer.step()
            optimizer.state[parameter]["step"] = update - 1
            rate = optimizer.get_lr
            optimizer.get_lr = lambda state, group, rate=rate: rates.append(rate(state, group)) or rates[-1]
            optimizer.step()
        return rates

    def loss(self, logits, targets, smoothing):
        criterion = LabelSmoothingLoss(logits.size(1), self.padding, smoothing)
        return criterion(torch.log_softmax(logits, dim=-1), targets)
