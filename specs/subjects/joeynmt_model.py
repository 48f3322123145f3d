"""JoeyNMT: its Transformer with `layer_norm: post`, its Noam scheduler, loss and beam search."""

import pathlib
from types import SimpleNamespace

import torch
from joeynmt.builders import NoamScheduler
from joeynmt.helpers import subsequent_mask
from joeynmt.loss import XentLoss
from joeynmt.model import build_model
from joeynmt.search import beam_search
from joeynmt.transformer_layers import MultiHeadedAttention, PositionalEncoding
from joeynmt.vocabulary import Vocabulary

from specs.subject import Subject, Unsupported
from specs.subjects.parts import attend_with, restack


class _Words(Vocabulary):
    """A vocabulary of so many entries without listing them: joining 37 000 words takes JoeyNMT minutes."""

    def __len__(self):
        return getattr(self, "entries", super().__len__())


class JoeyNMT(Subject):
    name = "joeynmt"
    deviations = pathlib.Path(__file__).parent.parent / "deviations" / "joeynmt.toml"
    padding, start, end, first_word = 1, 2, 3, 4

    def _vocabulary(self, entries):
        tags = SimpleNamespace(
            unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None, unk_id=0, pad_id=1,
            bos_id=2, eos_id=3, sep_id=None, lang_tags=[],
        )  # fmt: skip
        words = _Words([], tags)
        words.entries = entries
        return words

    def build(self, sizes):
        if sizes.d_k != sizes.d_v or sizes.d_k * sizes.heads != sizes.d_model:
            raise Unsupported("heads are always d_model / h wide")
        if sizes.learned_positions:
            raise Unsupported("positions are always sinusoids")
        side = dict(
            type="transformer", num_layers=sizes.layers, num_heads=sizes.heads, hidden_size=sizes.d_model,
            ff_size=sizes.d_ff, dropout=sizes.dropout, layer_norm="post",
            embeddings=dict(embedding_dim=sizes.d_model, scale=True, dropout=sizes.dropout),
        )  # fmt: skip
        words = self._vocabulary(sizes.vocabulary)
        cfg = dict(encoder=side, decoder=side, tied_embeddings=True, tied_softmax=True)
        return build_model(cfg, words, words).eval()

    def _visible(self, tokens):
        return (tokens != self.padding)[:, None, :]

    def embed(self, model, tokens, stack):
        side, lookup = (model.encoder, model.src_embed) if stack == "encoder" else (model.decoder, model.trg_embed)
        return side.emb_dropout(side.pe(lookup(tokens)))

    def embeddings(self, model):
        return model.src_embed.lut.weight, model.trg_embed.lut.weight, model.decoder.output_layer.weight

    def encode(self, model, source):
        return model(return_type="encode", src=source, src_length=None, src_mask=self._visible(source))[0]

    def _decode(self, model, states, source, target_in):
        return model(
            return_type="decode", encoder_output=states, encoder_hidden=None, src_mask=self._visible(source),
            trg_input=target_in, unroll_steps=None, trg_mask=self._visible(target_in),
        )  # fmt: skip

    def decode(self, model, states, source, target_in):
        return self._decode(model, states, source, target_in)[1]

    def logits(self, model, source, target_in):
        return self._decode(model, self.encode(model, source), source, target_in)[0]

    def step_logits(self, model, source, target_in):
        """As its search does: the whole prefix again at every step."""
        states = self.encode(model, source)
        return restack(lambda t: self._decode(model, states, source, target_in[:, :t])[0][:, -1:], target_in)

    def layers(self, model, stack):
        return list((model.encoder if stack == "encoder" else model.decoder).layers)

    def encoder_layer(self, layer, x):
        return layer(x, None)

    def decoder_layer(self, layer, y, states):
        return layer(y, states, None, subsequent_mask(y.size(1)))[0]

    def sublayer(self, layer, kind, x, states=None):
        if kind == "feed-forward":
            return layer.feed_forward.pwff_layer(x)
        if kind == "cross":
            return layer.src_trg_att(states, states, x)[0]
        if kind == "masked":
            return layer.trg_trg_att(x, x, x, mask=subsequent_mask(x.size(1)))[0]
        return layer.src_src_att(x, x, x)[0]

    def norms(self, layer):
        names = ("layer_norm", "x_layer_norm", "dec_layer_norm")
        return [getattr(layer, name) for name in names if hasattr(layer, name)] + [layer.feed_forward.layer_norm]

    def projections(self, layer, kind):
        block = {"self": "src_src_att", "masked": "trg_trg_att", "cross": "src_trg_att"}[kind]
        block = getattr(layer, block)
        parts = dict(Q=block.q_layer, K=block.k_layer, V=block.v_layer, O=block.output_layer)
        return {f"W_{x}": part.weight.T for x, part in parts.items()} | {f"b_{x}": p.bias for x, p in parts.items()}

    def feed_forward_weights(self, layer):
        inner, outer = layer.feed_forward.pwff_layer[0], layer.feed_forward.pwff_layer[3]
        return dict(W_1=inner.weight.T, b_1=inner.bias, W_2=outer.weight.T, b_2=outer.bias)

    def attention(self, query, key, value, allowed=None):
        def block(d_k):
            made = MultiHeadedAttention(1, d_k, dropout=0.0)
            return made, (made.q_layer, made.k_layer, made.v_layer, made.output_layer)

        mask = None if allowed is None else allowed[None]
        return attend_with(block, lambda made, q, k, v: made(k, v, q, mask=mask)[0], query, key, value)

    def positions(self, length, d_model):
        table = PositionalEncoding(d_model)
        if length > table.pe.size(1):
            raise Unsupported(f"the table ends after {table.pe.size(1)} positions")
        return table(torch.zeros(1, length, d_model))[0]

    def learning_rates(self, d_model, updates):
        """As its trainer drives it: optimizer first, then `scheduler.step(steps)`, then `steps` is counted up."""
        rates = []
        for update in updates:
            parameter = torch.nn.Parameter(torch.zeros(1))
            optimizer = torch.optim.Adam([parameter], lr=3e-4)  # `learning_rate` of its configuration, if not given
            scheduler = NoamScheduler(d_model, optimizer, factor=1.0, warmup=4000)
            optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
            if update > 1:
                scheduler.step(update - 2)
            parameter.grad = torch.ones(1)
            optimizer.step()
        return rates

    def loss(self, logits, targets, smoothing):
        return XentLoss(self.padding, smoothing)(torch.log_softmax(logits, dim=-1), trg=targets)

    def translate(self, model, source, beam, alpha):
        states = self.encode(model, source)
        with torch.no_grad():
            tokens, scores, _ = beam_search(
                model, beam, states, None, self._visible(source), max_output_length=source.size(1) + 50,
                alpha=alpha, n_best=beam, return_prob="hyp",
            )  # fmt: skip
        return [(self._words(row), float(score)) for row, score in zip(tokens.tolist(), scores.flatten().tolist())]

    def _words(self, row):
        return row[: row.index(self.end)] if self.end in row else [token for token in row if token != self.padding]
