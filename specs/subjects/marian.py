"""Hugging Face's Marian, built from a configuration with the paper's choices; nothing is downloaded."""

import pathlib
import sys

import torch

try:
    import torchaudio  # noqa: F401
except ImportError:
    pass
except OSError:
    # transformers imports it where it is found, and fairseq's does not load beside a CPU build of torch.
    sys.modules["torchaudio"] = None

from transformers import MarianConfig, MarianMTModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding, shift_tokens_right

from specs.subject import Subject, Unsupported


class Marian(Subject):
    name = "marian"
    deviations = pathlib.Path(__file__).parent.parent / "deviations" / "marian.toml"
    padding, start, end, first_word = 0, 1, 2, 3

    def build(self, sizes):
        if sizes.d_k != sizes.d_v or sizes.d_k * sizes.heads != sizes.d_model:
            raise Unsupported("heads are always d_model / h wide")
        if sizes.learned_positions:
            raise Unsupported("positions are always sinusoids")
        config = MarianConfig(
            vocab_size=sizes.vocabulary, d_model=sizes.d_model, encoder_layers=sizes.layers, decoder_layers=sizes.layers,
            encoder_attention_heads=sizes.heads, decoder_attention_heads=sizes.heads, encoder_ffn_dim=sizes.d_ff,
            decoder_ffn_dim=sizes.d_ff, dropout=sizes.dropout, activation_function="relu", scale_embedding=True,
            pad_token_id=self.padding, eos_token_id=self.end, decoder_start_token_id=self.start, forced_eos_token_id=self.end,
            init_std=sizes.d_model**-0.5, attn_implementation="eager",
        )  # fmt: skip
        return MarianMTModel(config).eval()

    def embed(self, model, tokens, stack):
        side = model.model.encoder if stack == "encoder" else model.model.decoder
        seen = []
        hook = side.layers[0].register_forward_pre_hook(lambda _, args, kwargs: seen.append((*args, *kwargs.values())[0]), with_kwargs=True)
        try:
            if stack == "encoder":
                side(input_ids=tokens)
            else:
                side(input_ids=tokens, encoder_hidden_states=torch.zeros(len(tokens), 1, side.config.d_model, dtype=side.embed_tokens.weight.dtype))
        finally:
            hook.remove()
        return seen[0]

    def embeddings(self, model):
        return model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight, model.lm_head.weight

    def _visible(self, source):
        return (source != self.padding).long()

    def encode(self, model, source):
        return model.model.encoder(input_ids=source, attention_mask=self._visible(source)).last_hidden_state

    def decode(self, model, states, source, target_in):
        return model.model.decoder(
            input_ids=target_in, encoder_hidden_states=states, encoder_attention_mask=self._visible(source)
        ).last_hidden_state

    def logits(self, model, source, target_in):
        return model(input_ids=source, attention_mask=self._visible(source), decoder_input_ids=target_in).logits

    def step_logits(self, model, source, target_in):
        states, past, steps = BaseModelOutput(last_hidden_state=self.encode(model, source)), None, []
        for token in target_in.unbind(1):
            output = model(
                encoder_outputs=states, attention_mask=self._visible(source), decoder_input_ids=token[:, None],
                past_key_values=past, use_cache=True,
            )  # fmt: skip
            past = output.past_key_values
            steps.append(output.logits)
        return torch.cat(steps, dim=1)

    def shift_right(self, targets):
        return shift_tokens_right(targets, self.padding, self.start)

    def attention_maps(self, model, source, target_in):
        output = model(
            input_ids=source, attention_mask=self._visible(source), decoder_input_ids=target_in, output_attentions=True
        )
        return {"encoder": output.encoder_attentions, "decoder": output.decoder_attentions, "cross": output.cross_attentions}

    def layers(self, model, stack):
        return list((model.model.encoder if stack == "encoder" else model.model.decoder).layers)

    @staticmethod
    def _first(output):
        return output[0] if isinstance(output, tuple) else output

    @staticmethod
    def _causal(x):
        return torch.full((x.size(1), x.size(1)), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)[None, None]

    def encoder_layer(self, layer, x):
        return self._first(layer(x, attention_mask=None))

    def decoder_layer(self, layer, y, states):
        return self._first(layer(y, attention_mask=self._causal(y), encoder_hidden_states=states, encoder_attention_mask=None))

    def sublayer(self, layer, kind, x, states=None):
        if kind == "feed-forward":
            return layer.fc2(layer.activation_fn(layer.fc1(x)))
        if kind == "cross":
            return layer.encoder_attn(x, key_value_states=states)[0]
        return layer.self_attn(x, attention_mask=self._causal(x) if kind == "masked" else None)[0]

    def norms(self, layer):
        names = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
        return [getattr(layer, name) for name in names if hasattr(layer, name)]

    def projections(self, layer, kind):
        block = layer.encoder_attn if kind == "cross" else layer.self_attn
        parts = dict(Q=block.q_proj, K=block.k_proj, V=block.v_proj, O=block.out_proj)
        return {f"W_{x}": part.weight.T for x, part in parts.items()} | {f"b_{x}": p.bias for x, p in parts.items()}

    def feed_forward_weights(self, layer):
        return dict(W_1=layer.fc1.weight.T, b_1=layer.fc1.bias, W_2=layer.fc2.weight.T, b_2=layer.fc2.bias)

    def positions(self, length, d_model):
        table = MarianSinusoidalPositionalEmbedding(length, d_model)
        if hasattr(table, "create_weight"):
            table.weight.data = table.create_weight()
        return table(torch.Size((1, length)))

    def translate(self, model, source, beam, alpha):
        """Its own `generate`; `length_penalty` is its alpha, and `max_new_tokens` counts the end symbol."""
        output = model.generate(
            source, attention_mask=self._visible(source), num_beams=beam, num_return_sequences=beam, length_penalty=alpha,
            max_new_tokens=source.size(1) + 51, return_dict_in_generate=True, output_scores=True, do_sample=False,
        )  # fmt: skip
        found = []
        scores = output.sequences_scores.tolist() if beam > 1 else [0.0]  # greedy search scores nothing
        for row, score in zip(output.sequences.tolist(), scores):
            words = row[1:]
            found.append((words[: words.index(self.end)] if self.end in words else [w for w in words if w != self.padding], score))
        return found
