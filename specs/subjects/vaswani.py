"""The plugin of this repository, as `fairseq-train --user-dir vaswani_plugin --arch vaswani2017` uses it."""

import torch

import vaswani_plugin  # noqa: F401  (registers everything with fairseq)
from specs.rows import ROWS
from specs.subject import Recipe
from specs.subjects.fairseq_common import FairseqSubject, dictionary
from vaswani_plugin.attention import attention_weights, scaled_dot_product_attention
from vaswani_plugin.config import VaswaniConfig
from vaswani_plugin.inference import average_states
from vaswani_plugin.label_smoothing import VaswaniLabelSmoothedCrossEntropy
from vaswani_plugin.positions import sinusoids
from vaswani_plugin.transformer import VaswaniModel


class Vaswani(FairseqSubject):
    name = "vaswani"
    task = "vaswani_translation"
    arch = {
        **{name: f"vaswani2017_{name.replace('-', '_')}" for name in ROWS},
        "base": "vaswani2017", "big-en-fr": "vaswani2017_big_en_fr", "parsing": "vaswani2017_parsing",
    }  # fmt: skip

    def width_flags(self, d_model):
        return ["--encoder-embed-dim", str(d_model), "--encoder-layers", "1", "--decoder-layers", "1",
                "--encoder-ffn-embed-dim", "8"]  # fmt: skip

    # ---- the model --------------------------------------------------------------------------------------------------
    def build(self, sizes):
        config = VaswaniConfig(
            encoder_embed_dim=sizes.d_model, encoder_ffn_embed_dim=sizes.d_ff, encoder_layers=sizes.layers,
            decoder_layers=sizes.layers, encoder_attention_heads=sizes.heads, attention_key_dim=sizes.d_k,
            attention_value_dim=sizes.d_v, dropout=sizes.dropout, learned_positions=sizes.learned_positions,
        )  # fmt: skip
        return VaswaniModel.from_config(config, dictionary(sizes.vocabulary)).eval()

    def embed(self, model, tokens, stack):
        return (model.encoder if stack == "encoder" else model.decoder)._embed(tokens)

    def embeddings(self, model):
        return model.encoder.embedding.weight, model.decoder.embedding.weight, model.decoder.output_projection.weight

    def encoder_layer(self, layer, x):
        return layer(x)

    def decoder_layer(self, layer, y, states):
        return layer(y, states)

    def sublayer(self, layer, kind, x, states=None):
        if kind == "feed-forward":
            return layer.feed_forward(x)
        if kind == "cross":
            return layer.cross_attention(x, states)
        return layer.self_attention(x, causal=kind == "masked")

    def norms(self, layer):
        names = ("self_attention_residual", "cross_attention_residual", "feed_forward_residual")
        return [getattr(layer, name).norm for name in names if hasattr(layer, name)]

    def projections(self, layer, kind):
        block = layer.cross_attention if kind == "cross" else layer.self_attention
        rows = block.projection.weight.split(block.sizes)
        biases = (None,) * 3 if block.projection.bias is None else block.projection.bias.split(block.sizes)
        weights = {f"W_{x}": matrix.T for x, matrix in zip("QKV", rows)}
        return {**weights, **{f"b_{x}": bias for x, bias in zip("QKV", biases)}, "W_O": block.output.weight.T, "b_O": block.output.bias}

    def feed_forward_weights(self, layer):
        inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
        return dict(W_1=inner.weight.T, b_1=inner.bias, W_2=outer.weight.T, b_2=outer.bias)

    def attention(self, query, key, value, allowed=None):
        return scaled_dot_product_attention(query, key, value, allowed)

    def attention_weights(self, query, key, allowed=None):
        return attention_weights(query, key, allowed)

    def attention_maps(self, model, source, target_in):
        """From the queries and keys that each block projects during one pass."""
        maps = {"encoder": [], "decoder": [], "cross": []}

        def see(kind):
            def hook(block, args, kwargs):
                x, memory = args[0], (args[1] if len(args) > 1 else None)
                query, key, _ = block.project(x, memory)
                allowed = torch.ones(x.size(1), x.size(1)).bool().tril() if kind == "decoder" else kwargs.get("allowed")
                maps[kind].append(attention_weights(query, key, allowed))

            return hook

        hooks = []
        for stack, kind, name in (("encoder", "encoder", "self_attention"), ("decoder", "decoder", "self_attention"), ("decoder", "cross", "cross_attention")):
            for layer in self.layers(model, stack):
                hooks.append(getattr(layer, name).register_forward_pre_hook(see(kind), with_kwargs=True))
        try:
            self.logits(model, source, target_in)
        finally:
            for hook in hooks:
                hook.remove()
        return maps

    def positions(self, length, d_model):
        return sinusoids(length, d_model)

    # ---- training and inference -------------------------------------------------------------------------------------
    def recipe(self, name):
        args = self.parse(self.known_arch(name))
        search = self.generation_defaults()
        return Recipe(
            sizes=self.named_sizes(
                args.encoder_embed_dim, args.encoder_attention_heads, args.attention_key_dim, args.attention_value_dim,
                layers=args.encoder_layers, d_ff=args.encoder_ffn_embed_dim, dropout=args.dropout,
                learned_positions=args.learned_positions,
            ),
            tied=args.share_all_embeddings, optimizer=args.optimizer.removeprefix("vaswani_"), betas=self.betas(args), epsilon=args.adam_eps,
            warmup=args.warmup_updates, follows_eq_3=args.lr_scheduler == "vaswani_inverse_sqrt" and args.lr_factor == 1.0,
            smoothing=args.label_smoothing, updates=args.max_update, tokens_per_update=args.max_tokens,
            clip_norm=args.clip_norm, weight_decay=getattr(args, "weight_decay", 0.0),
            attention_dropout=args.attention_dropout, activation_dropout=0.0,  # the plugin has none
            beam=search.beam, alpha=search.lenpen, extra_length=int(search.max_len_b) if search.max_len_a == 1 else None,
        )  # fmt: skip

    def loss(self, logits, targets, smoothing):
        """The criterion on a model whose projection of unit vectors yields these logits."""
        criterion = VaswaniLabelSmoothedCrossEntropy(self.task_for(logits.size(1)), smoothing)
        rows = torch.eye(len(logits), dtype=logits.dtype)

        class Projection:
            weight, bias = logits.T, None

        class Given:
            class decoder:  # noqa: N801  (an attribute in fairseq's models)
                output_projection = Projection

            def __call__(self, features_only):
                return rows[None], None

        return criterion(Given(), {"net_input": {}, "target": targets[None], "ntokens": len(targets)})[0]

    def average(self, states):
        return average_states(states)
