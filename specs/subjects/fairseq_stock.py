"""fairseq's own `transformer`, as a user gets it who follows the paper with its flags.

The model is `--arch transformer --share-all-embeddings`; training adds `--optimizer adam --lr-scheduler inverse_sqrt
--criterion label_smoothed_cross_entropy` with the paper's values. What claims say of defaults (`recipe`) is judged on what
fairseq does when such a flag is not given.
"""

import pathlib
from types import SimpleNamespace

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.modules import MultiheadAttention, PositionalEmbedding

from specs.subject import Recipe, Unsupported
from specs.subjects.fairseq_common import FairseqSubject, dictionary


class FairseqStock(FairseqSubject):
    name = "fairseq"
    deviations = pathlib.Path(__file__).parent.parent / "deviations" / "fairseq.toml"
    arch = {
        "base": "transformer",
        "big": "transformer_vaswani_wmt_en_de_big",
        "big-en-fr": "transformer_vaswani_wmt_en_fr_big",
    }
    training_flags = (
        "--share-all-embeddings", "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-9",
        "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4000", "--lr", "6.987712429686843e-04",
        "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--max-tokens", "25000",
    )  # fmt: skip

    def width_flags(self, d_model):
        return [
            "--encoder-embed-dim", str(d_model), "--decoder-embed-dim", str(d_model), "--encoder-layers", "1",
            "--decoder-layers", "1", "--encoder-ffn-embed-dim", "8", "--decoder-ffn-embed-dim", "8",
        ]  # fmt: skip

    def build(self, sizes):
        if sizes.d_k != sizes.d_v or sizes.d_k * sizes.heads != sizes.d_model:
            raise Unsupported("heads are always d_model / h wide")
        flags = ["--share-all-embeddings", "--dropout", str(sizes.dropout)]
        for side in ("encoder", "decoder"):
            flags += [
                f"--{side}-layers", str(sizes.layers), f"--{side}-embed-dim", str(sizes.d_model), f"--{side}-ffn-embed-dim",
                str(sizes.d_ff), f"--{side}-attention-heads", str(sizes.heads),
            ]  # fmt: skip
            flags += [f"--{side}-learned-pos"] if sizes.learned_positions else []
        args = self.parse("transformer", *flags)
        task = SimpleNamespace(source_dictionary=dictionary(sizes.vocabulary), target_dictionary=dictionary(sizes.vocabulary))
        return ARCH_MODEL_REGISTRY["transformer"].build_model(args, task).eval()

    def embed(self, model, tokens, stack):
        if stack == "encoder":
            return model.encoder.forward_embedding(tokens)[0]
        encoded = self._encoded(model, tokens[:, :1])
        return model.decoder(tokens, encoded, features_only=True, return_all_hiddens=True)[1]["inner_states"][0].transpose(0, 1)

    def embeddings(self, model):
        return model.encoder.embed_tokens.weight, model.decoder.embed_tokens.weight, model.decoder.output_projection.weight

    def encoder_layer(self, layer, x):
        return layer(x.transpose(0, 1), None).transpose(0, 1)

    def decoder_layer(self, layer, y, states):
        mask = torch.full((y.size(1), y.size(1)), -torch.inf, dtype=y.dtype).triu(1)
        return layer(y.transpose(0, 1), states.transpose(0, 1), self_attn_mask=mask)[0].transpose(0, 1)

    def sublayer(self, layer, kind, x, states=None):
        y = x.transpose(0, 1)
        if kind == "feed-forward":
            return layer.fc2(layer.activation_fn(layer.fc1(x)))
        if kind == "cross":
            memory = states.transpose(0, 1)
            return layer.encoder_attn(y, memory, memory, static_kv=True)[0].transpose(0, 1)
        mask = torch.full((len(y), len(y)), -torch.inf, dtype=x.dtype).triu(1) if kind == "masked" else None
        return layer.self_attn(y, y, y, attn_mask=mask)[0].transpose(0, 1)

    def norms(self, layer):
        names = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
        return [getattr(layer, name) for name in names if hasattr(layer, name)]

    def projections(self, layer, kind):
        block = layer.encoder_attn if kind == "cross" else layer.self_attn
        parts = dict(Q=block.q_proj, K=block.k_proj, V=block.v_proj, O=block.out_proj)
        return {f"W_{x}": part.weight.T for x, part in parts.items()} | {f"b_{x}": p.bias for x, p in parts.items()}

    def feed_forward_weights(self, layer):
        return dict(W_1=layer.fc1.weight.T, b_1=layer.fc1.bias, W_2=layer.fc2.weight.T, b_2=layer.fc2.bias)

    def attention_maps(self, model, source, target_in):
        maps = {"encoder": [], "decoder": [], "cross": []}

        def keep(kind, block):
            def see(module, args, kwargs):
                # Without a state (or static keys) fairseq 0.12 returns the mean over heads whatever it is asked for.
                state = None if kind == "cross" else {}
                again = {**kwargs, "need_weights": True, "need_head_weights": True, "incremental_state": state}
                maps[kind].append(type(block).forward(block, *args, **again)[1].transpose(0, 1))

            return block.register_forward_pre_hook(see, with_kwargs=True)

        hooks = [keep("encoder", layer.self_attn) for layer in model.encoder.layers]
        for layer in model.decoder.layers:
            hooks += [keep("decoder", layer.self_attn), keep("cross", layer.encoder_attn)]
        try:
            self.logits(model, source, target_in)
        finally:
            for hook in hooks:
                hook.remove()
        return maps

    def _attend(self, query, key, value, allowed):
        """fairseq's attention with one head and projections that change nothing: output, weights."""
        d_k, d_v = query.size(-1), value.size(-1)
        if d_k != d_v:
            raise Unsupported("values are always as wide as keys")
        block = MultiheadAttention(d_k, 1).to(query)
        with torch.no_grad():
            for projection in (block.q_proj, block.k_proj, block.v_proj, block.out_proj):
                projection.weight.copy_(torch.eye(d_k))
                projection.bias.zero_()
        batch, heads = query.shape[:2]
        q, k, v = (x.flatten(0, 1).transpose(0, 1) for x in (query, key, value))
        mask = None if allowed is None else torch.zeros(allowed.shape, dtype=q.dtype).masked_fill(~allowed, -torch.inf)
        output, weights = block(q, k, v, attn_mask=mask, need_weights=True)
        return output.transpose(0, 1).unflatten(0, (batch, heads)), weights.unflatten(0, (batch, heads))

    def attention(self, query, key, value, allowed=None):
        return self._attend(query, key, value, allowed)[0]

    def attention_weights(self, query, key, allowed=None):
        return self._attend(query, key, key, allowed)[1]

    def positions(self, length, d_model):
        table = PositionalEmbedding(1024, d_model, self.padding, learned=False)
        return table(torch.full((1, length), self.first_word))[0]

    def recipe(self, name):
        arch = self.known_arch(name)
        bare = self.parse(arch)
        chosen = self.parse(
            arch, "--optimizer", "adam", "--lr-scheduler", "inverse_sqrt", "--criterion", "label_smoothed_cross_entropy"
        )
        search = self.generation_defaults()
        return Recipe(
            sizes=self.named_sizes(
                bare.encoder_embed_dim, bare.encoder_attention_heads, layers=bare.encoder_layers,
                d_ff=bare.encoder_ffn_embed_dim, dropout=bare.dropout, learned_positions=bare.encoder_learned_pos,
            ),
            tied=bare.share_all_embeddings, optimizer=bare.optimizer, betas=self.betas(chosen), epsilon=chosen.adam_eps,
            warmup=chosen.warmup_updates, follows_eq_3=bare.lr_scheduler == "inverse_sqrt", smoothing=chosen.label_smoothing,
            updates=bare.max_update, tokens_per_update=bare.max_tokens, clip_norm=bare.clip_norm,
            weight_decay=chosen.weight_decay, attention_dropout=bare.attention_dropout,
            activation_dropout=bare.activation_dropout, beam=search.beam, alpha=search.lenpen,
            extra_length=int(search.max_len_b) if search.max_len_a == 1 else None,
        )  # fmt: skip

    def loss(self, logits, targets, smoothing):
        criterion = LabelSmoothedCrossEntropyCriterion(self.task_for(logits.size(1)), False, smoothing)

        class Given:
            """A model whose output is already there."""

            def __call__(self):
                return logits[None], None

            def get_normalized_probs(self, output, log_probs):
                return torch.log_softmax(output[0], dim=-1)

            def get_targets(self, sample, output):
                return sample["target"]

        return criterion(Given(), {"net_input": {}, "target": targets[None], "ntokens": len(targets)})[0]
