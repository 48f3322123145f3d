"""One model, four libraries: this plugin's weights under the names and options of others, and back.

Each pair of functions is exact: the other library's own code computes the same logits from what it gets, up to rounding.
Where the options of a model mean something that the other library cannot express, a ValueError says which one.

What differs, and what becomes of it:

    attention     queries, keys and values are rows of one matrix here and in torch, three matrices elsewhere
    biases        the others always have them: a model without gets zeros, and zeros come back as none
    eps           of layer normalisation: always 1e-5 in fairseq and Marian
    positions     fairseq's sinusoids are others than the paper's (its columns in another order, other wavelengths, first
                  position 2): a model crosses over with a *learned* table that holds the rows it was trained with;
                  Marian's are the paper's in another order of the columns, to which the whole model is permuted
    final norms   torch.nn.Transformer's must be taken off: ``model.encoder.norm = model.decoder.norm = None``
"""

import argparse
from dataclasses import dataclass, replace

import torch

from vaswani_plugin.config import VaswaniConfig
from vaswani_plugin.positions import sinusoids

PAD = 1  # in every dictionary of fairseq; its first position is PAD + 1
STACKS = ("encoder", "decoder")
EPS = 1e-5  # fairseq's and Marian's


@dataclass(frozen=True)
class Names:
    """What a library calls the parts of a layer; the norms in the order of the sub-layers."""

    self_attention: str
    cross_attention: str
    inner: str
    outer: str
    encoder_norms: tuple
    decoder_norms: tuple
    one_matrix: bool  # for queries, keys and values

    def attentions(self, stack):
        """Pairs of our name and theirs."""
        pairs = [("self_attention", self.self_attention), ("cross_attention", self.cross_attention)]
        return pairs if stack == "decoder" else pairs[:1]

    def others(self, stack):
        """The same for all parts that have one weight and one bias."""
        pairs = [(f"{ours}.output", f"{theirs}.out_proj") for ours, theirs in self.attentions(stack)]
        pairs += [("feed_forward.inner", self.inner), ("feed_forward.outer", self.outer)]
        sublayers = [ours for ours, _ in self.attentions(stack)] + ["feed_forward"]
        norms = self.decoder_norms if stack == "decoder" else self.encoder_norms
        return pairs + [(f"{ours}_residual.norm", theirs) for ours, theirs in zip(sublayers, norms)]


FAIRSEQ = MARIAN = Names(
    "self_attn", "encoder_attn", "fc1", "fc2", ("self_attn_layer_norm", "final_layer_norm"),
    ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"), one_matrix=False,
)
TORCH = Names("self_attn", "multihead_attn", "linear1", "linear2", ("norm1", "norm2"), ("norm1", "norm2", "norm3"),
              one_matrix=True)


def layers_to(names, state, layers):
    """All layers of our ``state`` under the other library's names; ``layers``: how many by stack."""
    found = {}
    for stack in STACKS:
        for layer in range(layers[stack]):
            prefix = f"{stack}.layers.{layer}."
            for ours, theirs in names.others(stack):
                weight = found[f"{prefix}{theirs}.weight"] = state[f"{prefix}{ours}.weight"]
                bias = state.get(f"{prefix}{ours}.bias")
                found[f"{prefix}{theirs}.bias"] = weight.new_zeros(weight.size(0)) if bias is None else bias
            for ours, theirs in names.attentions(stack):
                weight = state[f"{prefix}{ours}.projection.weight"]
                bias = state.get(f"{prefix}{ours}.projection.bias")
                bias = weight.new_zeros(weight.size(0)) if bias is None else bias
                for kind, tensor in (("weight", weight), ("bias", bias)):
                    if names.one_matrix:
                        found[f"{prefix}{theirs}.in_proj_{kind}"] = tensor
                    else:
                        for letter, part in zip("qkv", tensor.chunk(3)):
                            found[f"{prefix}{theirs}.{letter}_proj.{kind}"] = part.clone()
    return found


def layers_from(names, rest, layers):
    """Our names for the layers in ``rest``, from which they are taken; and whether any attention has a bias.

    Raises ValueError: a part is missing.
    """
    found, biases = {}, {}

    def take(name):
        if name not in rest:
            raise ValueError(f"the weights lack {name}: they are of another model than its options say")
        return rest.pop(name)

    for stack in STACKS:
        for layer in range(layers[stack]):
            prefix = f"{stack}.layers.{layer}."
            for ours, theirs in names.others(stack):
                for kind in ("weight", "bias"):
                    into = biases if ours.endswith(".output") and kind == "bias" else found
                    into[f"{prefix}{ours}.{kind}"] = take(f"{prefix}{theirs}.{kind}")
            for ours, theirs in names.attentions(stack):
                for kind, into in (("weight", found), ("bias", biases)):
                    into[f"{prefix}{ours}.projection.{kind}"] = (
                        take(f"{prefix}{theirs}.in_proj_{kind}") if names.one_matrix
                        else torch.cat([take(f"{prefix}{theirs}.{letter}_proj.{kind}") for letter in "qkv"])
                    )
    has_biases = any(bias.any() for bias in biases.values())
    return {**found, **(biases if has_biases else {})}, has_biases


def layer_counts(config):
    return {"encoder": config.encoder_layers, "decoder": config.decoder_layers}


def check_all_used(rest):
    """Every tensor must have found its place. Raises ValueError."""
    if rest:
        raise ValueError(f"{sorted(rest)[0]} ({len(rest)} tensors in all) has no counterpart in the paper's model")


def check_widths(config, other):
    """Raises ValueError: heads of another width than d_model / h, which ``other`` cannot have."""
    sizes = config.layer_sizes()
    if not sizes.d_k == sizes.d_v == sizes.d_model / sizes.heads:
        raise ValueError(
            f"heads of {other} are d_model / h = {sizes.d_model / sizes.heads:g} wide; this model has --attention-key-dim"
            f" {sizes.d_k} and --attention-value-dim {sizes.d_v}"
        )


def check_eps(config, other):
    """Raises ValueError: another eps than the one that is fixed in ``other``."""
    if config.layer_norm_eps != EPS:
        raise ValueError(
            f"layer normalisation of {other} always has eps {EPS:g}; this model was trained with --layer-norm-eps"
            f" {config.layer_norm_eps:g}: train with --layer-norm-eps {EPS:g} to convert it"
        )


def check_options(options, required, whose):
    """Raises ValueError: one of ``options`` is not what the paper's model has."""
    for name, value in required.items():
        if options.get(name) != value:
            raise ValueError(
                f"{whose} was trained with {name} = {options.get(name)}; the paper's model has {value}: it cannot be"
                " expressed by the other's options"
            )


def position_tables(config, state):
    """The rows of positions 0, 1, ... by stack: ``[max_positions, d_model]``, sinusoids or learned."""
    if config.learned_positions:
        return {stack: state[f"{stack}.positions.table"] for stack in STACKS}
    like = state["encoder.embedding.weight"]
    limits = {"encoder": config.max_source_positions, "decoder": config.max_target_positions}
    return {stack: sinusoids(limits[stack], config.encoder_embed_dim, like.dtype, like.device) for stack in STACKS}


def with_positions(config, tables):
    """``config`` for these tables, and their part of its state: none where they are the paper's sinusoids."""
    config = replace(config, max_source_positions=len(tables["encoder"]), max_target_positions=len(tables["decoder"]))
    if all(torch.equal(table, sinusoids(len(table), table.size(1), table.dtype)) for table in tables.values()):
        return replace(config, learned_positions=False), {}
    return replace(config, learned_positions=True), {f"{stack}.positions.table": tables[stack] for stack in STACKS}


def embeddings(state):
    """Source, target and output matrix of our model."""
    return tuple(state[name] for name in OUR_EMBEDDINGS)


OUR_EMBEDDINGS = ("encoder.embedding.weight", "decoder.embedding.weight", "decoder.output_projection.weight")


# ---- fairseq's transformer -------------------------------------------------------------------------------------------
FAIRSEQ_EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight")

# Options of fairseq's transformer that change what it computes, and their values in the paper's model.
FAIRSEQ_REQUIRED = {
    "encoder_normalize_before": False, "decoder_normalize_before": False, "activation_fn": "relu",
    "no_scale_embedding": False, "layernorm_embedding": False, "no_cross_attention": False,
    "cross_self_attention": False, "adaptive_input": False, "adaptive_softmax_cutoff": None, "base_layers": 0,
    "merge_src_tgt_embed": False, "char_inputs": False,
}
# Those that act in training only.
FAIRSEQ_TRAINING_ONLY = {
    "activation_dropout": 0.0, "relu_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}


def fairseq_sinusoids(length, like):
    """The rows that fairseq's transformer adds to the tokens of a sentence, ``[length, d_model]``."""
    from fairseq.modules import SinusoidalPositionalEmbedding

    table = SinusoidalPositionalEmbedding.get_embedding(PAD + 1 + length, like.size(1), PAD)
    return table[PAD + 1 :].to(like)


def fairseq_options(settings):
    """The flat options of a fairseq checkpoint's ``cfg["model"]``, whether it came from flags or from hydra."""
    from fairseq.models.transformer import TransformerConfig

    given = vars(settings) if isinstance(settings, argparse.Namespace) else dict(settings)
    config = TransformerConfig.from_namespace(argparse.Namespace(**given))
    flat = {name: value for name, value in vars(config).items() if name not in (*STACKS, "quant_noise")}
    for stack in STACKS:
        flat.update({f"{stack}_{name}": value for name, value in vars(getattr(config, stack)).items()})
    return flat


def from_fairseq(settings, state):
    """Our configuration and state for a checkpoint's ``cfg["model"]`` and ``model``. Raises ValueError."""
    options, rest = fairseq_options(settings), dict(state)
    check_options(options, FAIRSEQ_REQUIRED, "the fairseq model")
    d_model = options["encoder_embed_dim"]
    check_options(options, {
        "decoder_embed_dim": d_model, "decoder_output_dim": d_model,
        "decoder_ffn_embed_dim": options["encoder_ffn_embed_dim"],
        "decoder_attention_heads": options["encoder_attention_heads"],
    }, "the fairseq model, which differs between its two stacks, and")
    config = VaswaniConfig(
        encoder_embed_dim=d_model,
        encoder_ffn_embed_dim=options["encoder_ffn_embed_dim"],
        encoder_layers=options["encoder_layers"],
        decoder_layers=options["decoder_layers"],
        encoder_attention_heads=options["encoder_attention_heads"],
        dropout=options["dropout"],
        attention_dropout=options["attention_dropout"],
        layer_norm_eps=EPS,
        share_all_embeddings=bool(options["share_all_embeddings"]),
    )
    for name in ("encoder.version", "decoder.version"):
        rest.pop(name, None)
    found, config.attention_bias = layers_from(FAIRSEQ, rest, layer_counts(config))
    for ours, theirs in zip(OUR_EMBEDDINGS, FAIRSEQ_EMBEDDINGS):
        # Of a matrix that two places share, old checkpoints hold one.
        found[ours] = rest.pop(theirs) if theirs in rest else found["decoder.embedding.weight"]
    tables = {}
    for stack, side in zip(STACKS, ("source", "target")):
        for name in ("weights", "_float_tensor"):  # of sinusoids, in checkpoints of older versions
            rest.pop(f"{stack}.embed_positions.{name}", None)
        limit, like = options[f"max_{side}_positions"], found["encoder.embedding.weight"]
        if options["no_token_positional_embeddings"]:
            tables[stack] = like.new_zeros(limit, d_model)
        elif options[f"{stack}_learned_pos"]:
            tables[stack] = rest.pop(f"{stack}.embed_positions.weight")[PAD + 1 :]
        else:
            tables[stack] = fairseq_sinusoids(limit, like)
    check_all_used(rest)
    config, table_state = with_positions(config, tables)
    return config, {**found, **table_state}


def to_fairseq(config, state):
    """Options of fairseq's ``transformer`` and the state of its model. Raises ValueError."""
    check_widths(config, "fairseq's transformer")
    check_eps(config, "fairseq's transformer")
    found = dict(zip(FAIRSEQ_EMBEDDINGS, embeddings(state)))
    found |= layers_to(FAIRSEQ, state, layer_counts(config))
    options = {
        **FAIRSEQ_REQUIRED, **FAIRSEQ_TRAINING_ONLY, "no_token_positional_embeddings": False, "dropout": config.dropout,
        "attention_dropout": config.attention_dropout, "share_all_embeddings": config.share_all_embeddings,
        "share_decoder_input_output_embed": config.share_all_embeddings,
        "max_source_positions": config.max_source_positions, "max_target_positions": config.max_target_positions,
        "decoder_input_dim": config.encoder_embed_dim, "decoder_output_dim": config.encoder_embed_dim,
    }
    for stack, layers in layer_counts(config).items():
        options |= {
            f"{stack}_embed_dim": config.encoder_embed_dim, f"{stack}_ffn_embed_dim": config.encoder_ffn_embed_dim,
            f"{stack}_layers": layers, f"{stack}_attention_heads": config.encoder_attention_heads,
        }
    for stack, table in position_tables(config, state).items():
        options[f"{stack}_learned_pos"] = not torch.equal(table, fairseq_sinusoids(len(table), table))
        if options[f"{stack}_learned_pos"]:
            found[f"{stack}.embed_positions.weight"] = torch.cat([table.new_zeros(PAD + 1, table.size(1)), table])
        found[f"{stack}.version"] = torch.tensor([3.0])
    return options, found


# ---- torch.nn.Transformer ---------------------------------------------------------------------------------------------
def to_torch(config, state):
    """``torch.nn.Transformer`` has no embeddings and positions; the result holds them beside its weights.

    ``settings`` are its arguments, ``transformer`` is its state without final norms, and a token's vector is
    ``sqrt(d_model) * source_embedding[token] + source_positions[place]``; logits are ``features @ output.T``.

    Raises ValueError.
    """
    check_widths(config, "torch.nn.Transformer")
    tables = position_tables(config, state)
    source, target, output = embeddings(state)
    return {
        "settings": {
            "d_model": config.encoder_embed_dim, "nhead": config.encoder_attention_heads,
            "num_encoder_layers": config.encoder_layers, "num_decoder_layers": config.decoder_layers,
            "dim_feedforward": config.encoder_ffn_embed_dim, "dropout": config.dropout,
            "layer_norm_eps": config.layer_norm_eps,
        },
        "transformer": layers_to(TORCH, state, layer_counts(config)),
        "source_embedding": source, "target_embedding": target, "output": output,
        "source_positions": tables["encoder"], "target_positions": tables["decoder"],
    }


def from_torch(saved):
    """Our configuration and state for what :func:`to_torch` describes. Raises ValueError."""
    missing = TORCH_PARTS - saved.keys()
    if missing:
        raise ValueError(f"the file lacks {', '.join(sorted(missing))}: see to_torch in scripts/weight_formats.py")
    settings, rest = saved["settings"], dict(saved["transformer"])
    for name in rest:
        if name.startswith(("encoder.norm.", "decoder.norm.")):
            raise ValueError(
                f"{name}: the paper's stacks end in the norm of their last layer; only a torch.nn.Transformer that was"
                " trained with model.encoder.norm = model.decoder.norm = None can be converted"
            )
    check_options({"norm_first": False, "activation": "relu", "bias": True, **settings},
                  {"norm_first": False, "activation": "relu", "bias": True}, "the torch model")
    source, target, output = (saved[name] for name in ("source_embedding", "target_embedding", "output"))
    same = source.shape == target.shape == output.shape and torch.equal(source, target) and torch.equal(source, output)
    config = VaswaniConfig(
        encoder_embed_dim=settings["d_model"],
        encoder_ffn_embed_dim=settings["dim_feedforward"],
        encoder_layers=settings["num_encoder_layers"],
        decoder_layers=settings["num_decoder_layers"],
        encoder_attention_heads=settings["nhead"],
        dropout=settings.get("dropout", 0.1),
        layer_norm_eps=settings.get("layer_norm_eps", EPS),
        share_all_embeddings=same,
    )
    found, config.attention_bias = layers_from(TORCH, rest, layer_counts(config))
    check_all_used(rest)
    found |= zip(OUR_EMBEDDINGS, (source, source, source) if same else (source, target, output))
    config, table_state = with_positions(
        config, {"encoder": saved["source_positions"], "decoder": saved["target_positions"]}
    )
    return config, {**found, **table_state}


TORCH_PARTS = {"settings", "transformer", "source_embedding", "target_embedding", "output", "source_positions",
               "target_positions"}


# ---- Hugging Face Marian ------------------------------------------------------------------------------------------------
def marian_order(d_model):
    """Our column of each column of Marian: first all sines, then all cosines."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def _permuted(state, order):
    """The state with the columns of every vector ``[..., d_model]`` that flows between sub-layers in another order."""
    found = {}
    for name, tensor in state.items():
        if name.endswith(("_residual.norm.weight", "_residual.norm.bias", ".outer.bias", ".output.bias")):
            found[name] = tensor[order]
        elif name.endswith((".output.weight", ".outer.weight")):
            found[name] = tensor[order]  # rows: what the layer gives
        elif name.endswith((".projection.weight", ".inner.weight", ".embedding.weight", ".output_projection.weight")):
            found[name] = tensor[:, order]  # columns: what it takes
        else:
            found[name] = tensor  # biases inside a sub-layer
    return found


def to_marian(config, state):
    """Arguments of ``transformers.MarianConfig`` and the state of its ``MarianMTModel``. Raises ValueError.

    Token numbers stay fairseq's: start and end are ``</s>``, 2. Marian counts padding on the left as positions: pad
    sources on the right.
    """
    check_widths(config, "Marian")
    check_eps(config, "Marian")
    if config.learned_positions:
        raise ValueError("positions of Marian are always sinusoids; this model was trained with --learned-positions")
    if not config.share_all_embeddings:
        raise ValueError("only a model with one matrix for source, target and output is converted to Marian; this one"
                         " was trained with --no-share-all-embeddings")
    permuted = _permuted(state, marian_order(config.encoder_embed_dim))
    matrix = permuted["encoder.embedding.weight"]
    settings = {
        "vocab_size": matrix.size(0), "d_model": config.encoder_embed_dim, "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers, "encoder_attention_heads": config.encoder_attention_heads,
        "decoder_attention_heads": config.encoder_attention_heads, "encoder_ffn_dim": config.encoder_ffn_embed_dim,
        "decoder_ffn_dim": config.encoder_ffn_embed_dim, "dropout": config.dropout,
        "attention_dropout": config.attention_dropout, "activation_dropout": 0.0,
        "max_position_embeddings": max(config.max_source_positions, config.max_target_positions), **MARIAN_REQUIRED,
        "bos_token_id": 0, "pad_token_id": PAD, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
    }
    found = {f"model.{name}": tensor for name, tensor in layers_to(MARIAN, permuted, layer_counts(config)).items()}
    found |= dict.fromkeys(MARIAN_EMBEDDINGS, matrix)
    found["final_logits_bias"] = matrix.new_zeros(1, matrix.size(0))
    return settings, found


MARIAN_EMBEDDINGS = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
                     "lm_head.weight")
MARIAN_REQUIRED = {"activation_function": "relu", "scale_embedding": True, "share_encoder_decoder_embeddings": True,
                   "tie_word_embeddings": True}


def from_marian(settings, state):
    """Our configuration and state for ``config.to_dict()`` and ``state_dict()`` of a ``MarianMTModel``. Raises ValueError."""
    check_options(settings, MARIAN_REQUIRED, "the Marian model")
    check_options(settings, {
        "decoder_attention_heads": settings["encoder_attention_heads"], "decoder_ffn_dim": settings["encoder_ffn_dim"],
        "pad_token_id": PAD, "eos_token_id": 2, "decoder_start_token_id": 2,
    }, "the Marian model, whose tokens or stacks are not numbered and shaped alike, and")
    rest = dict(state)
    if rest.pop("final_logits_bias", torch.zeros(1)).any():
        raise ValueError("the Marian model has a final_logits_bias; the paper's output projection has none")
    for stack in STACKS:
        rest.pop(f"model.{stack}.embed_positions.weight", None)
    matrix = next(rest.pop(name) for name in MARIAN_EMBEDDINGS if name in rest)
    for name in MARIAN_EMBEDDINGS:
        rest.pop(name, None)
    config = VaswaniConfig(
        encoder_embed_dim=settings["d_model"],
        encoder_ffn_embed_dim=settings["encoder_ffn_dim"],
        encoder_layers=settings["encoder_layers"],
        decoder_layers=settings["decoder_layers"],
        encoder_attention_heads=settings["encoder_attention_heads"],
        dropout=settings["dropout"],
        attention_dropout=settings["attention_dropout"],
        layer_norm_eps=EPS,
        max_source_positions=settings["max_position_embeddings"],
        max_target_positions=settings["max_position_embeddings"],
    )
    rest = {name.removeprefix("model."): tensor for name, tensor in rest.items()}
    found, config.attention_bias = layers_from(MARIAN, rest, layer_counts(config))
    check_all_used(rest)
    found |= dict.fromkeys(OUR_EMBEDDINGS, matrix)
    found = _permuted(found, marian_order(config.encoder_embed_dim).argsort())
    return config, {**found, **dict.fromkeys(OUR_EMBEDDINGS, found[OUR_EMBEDDINGS[0]])}
