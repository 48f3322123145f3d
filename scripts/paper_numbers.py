"""What the paper says about itself, computed: the figures behind scripts/paper_experiments.py.

Every function returns plain numbers and draws nothing. What is the model's own, such as attention, positions, schedule
and sizes, comes from the plugin.
"""

import math

import torch
from torch import nn

import vaswani_plugin  # noqa: F401  (registers the model with fairseq)
from fairseq.data import Dictionary
from vaswani_plugin.architectures import ARCHITECTURES
from vaswani_plugin.attention import MultiHeadAttention, attention_weights
from vaswani_plugin.config import VaswaniConfig
from vaswani_plugin.feed_forward import FeedForward
from vaswani_plugin.learning_rate import inverse_sqrt_rate
from vaswani_plugin.positions import LearnedPositions, sinusoids
from vaswani_plugin.transformer import VaswaniModel

ENTRIES = 37_000  # Section 5.1, English-German


def dictionary(entries):
    """A fairseq dictionary of ``entries`` in all."""
    words = Dictionary()
    for number in range(entries - len(words)):
        words.add_symbol(f"w{number}")
    return words


def score_variance(widths, pairs=200_000, seed=1):
    """Section 3.2.1, footnote 4: ``d_k -> (variance of q.k, variance of q.k / sqrt(d_k))``.

    The components of ``q`` and ``k`` are independent, of mean 0 and variance 1.
    """
    generator = torch.Generator().manual_seed(seed)
    result = {}
    for width in widths:
        query, key = torch.randn(2, pairs, width, generator=generator)
        product = (query * key).sum(dim=-1, dtype=torch.float64)
        result[width] = (product.var().item(), (product / math.sqrt(width)).var().item())
    return result


def saturation(widths, keys=50, queries=2_000, seed=1):
    """What the division by sqrt(d_k) does to the softmax over random keys.

    Returns ``d_k -> {"unscaled": (p, h, j), "scaled": (p, h, j)}``: the mean of the largest weight, the mean entropy
    in nats, and the median Frobenius norm of the softmax's Jacobian ``diag(p) - p p^T``, the size of its gradients.
    """
    generator = torch.Generator().manual_seed(seed)
    result = {}
    for width in widths:
        query = torch.randn(1, 1, queries, width, generator=generator, dtype=torch.float64)
        key = torch.randn(1, 1, keys, width, generator=generator, dtype=torch.float64)
        result[width] = {
            # The plugin divides by sqrt(d_k); a query that much larger undoes it.
            "unscaled": _softmax_figures(attention_weights(query * math.sqrt(width), key)),
            "scaled": _softmax_figures(attention_weights(query, key)),
        }
    return result


def _softmax_figures(weights):
    rows = weights.flatten(0, 2)
    entropy = torch.special.entr(rows).sum(dim=-1)
    # |diag(p) - p p^T|^2 = sum p^2 - 2 sum p^3 + (sum p^2)^2
    squares = rows.pow(2).sum(dim=-1)
    jacobian = (squares - 2 * rows.pow(3).sum(dim=-1) + squares**2).clamp(min=0).sqrt()
    return rows.amax(dim=-1).mean().item(), entropy.mean().item(), jacobian.median().item()


def position_products(d_model=512, length=100, offsets=(0, 1, 2, 5, 10, 20, 50)):
    """Section 3.5: ``offset -> (least, largest)`` of ``PE(pos) . PE(pos + offset)`` over all positions."""
    table = sinusoids(length, d_model, torch.float64)
    products = table @ table.T
    return {offset: tuple(f(products.diagonal(offset)).item() for f in (torch.min, torch.max)) for offset in offsets}


def wavelengths(d_model=512):
    """Section 3.5: the wavelength of each pair of columns, in positions, from the angle between positions 0 and 1."""
    sine, cosine = sinusoids(2, d_model, torch.float64)[1].unflatten(0, (-1, 2)).unbind(dim=1)
    return (2 * math.pi / torch.atan2(sine, cosine)).tolist()


def schedule(choices, updates):
    """Eq. 3: ``(d_model, warm-up) -> rates`` at ``updates``."""
    return {choice: [inverse_sqrt_rate(update, *choice) for update in updates] for choice in choices}


# Table 1: what each kind of layer needs, as the paper writes it.
COMPLEXITY = {
    "self-attention": lambda n, d, k, r: n * n * d,
    "recurrent": lambda n, d, k, r: n * d * d,
    "convolutional": lambda n, d, k, r: k * n * d * d,
    "self-attention (restricted)": lambda n, d, k, r: r * n * d,
}
SEQUENTIAL = {
    "self-attention": lambda n: 1,
    "recurrent": lambda n: n,
    "convolutional": lambda n: 1,
    "self-attention (restricted)": lambda n: 1,
}


def table_1(n, d, k, r):
    """``kind -> (operations, sequential operations, longest path)`` for one layer; paths by :func:`longest_path`.

    Operations and sequential operations are the paper's expressions with their factor of 1. The convolution's path is
    that of a dilated stack, to which log_k(n) belongs.
    """
    return {kind: (COMPLEXITY[kind](n, d, k, r), SEQUENTIAL[kind](n), longest_path(kind, n, k, r)) for kind in COMPLEXITY}


def longest_path(kind, n, k, r):
    """Layers until the last of ``n`` positions depends on the first; a recurrent layer counts a step a position.

    Followed position by position, not taken from a formula: ``reached`` holds what the last position depends on.
    """
    sees = {
        "self-attention": lambda position, layer: range(n),
        "recurrent": lambda position, layer: (position, position - 1),
        "convolutional": lambda position, layer: range(position, position - k**layer * k, -(k**layer)),
        "convolutional, not dilated": lambda position, layer: range(position, position - k, -1),
        "self-attention (restricted)": lambda position, layer: range(position - r // 2, position + r // 2 + 1),
    }[kind]
    reached, layers = {n - 1}, 0
    while 0 not in reached:
        reached = {seen for position in reached for seen in sees(position, layers) if 0 <= seen < n}
        layers += 1
    return layers


def attention_maps(source=3, target=2, seed=1):
    """The three attentions of Section 3.2.3 in a fresh model: ``name -> weights [queries, keys]`` of one head."""
    torch.manual_seed(seed)
    words = dictionary(20)
    config = VaswaniConfig(encoder_embed_dim=32, encoder_ffn_embed_dim=64, encoder_attention_heads=4,
                           encoder_layers=1, decoder_layers=1)
    model = VaswaniModel.from_config(config, words).eval()
    attentions = {
        "encoder self-attention": model.encoder.layers[0].self_attention,
        "masked decoder self-attention": model.decoder.layers[0].self_attention,
        "encoder-decoder attention": model.decoder.layers[0].cross_attention,
    }
    for attention in attentions.values():
        attention.seen_weights = []
    first = words.nspecial
    with torch.no_grad():
        model(torch.arange(first, first + source)[None], None, torch.arange(first, first + target)[None])
    return {name: attention.seen_weights[0][0, 0] for name, attention in attentions.items()}


def shape_trace(batch=32, source=40, target=50, name="vaswani2017", entries=ENTRIES):
    """The shape of every intermediate result of one encoder and one decoder layer, in order: ``[(where, shape)]``.

    The layers run on torch's meta device, which computes shapes alone.
    """
    config = VaswaniConfig(**ARCHITECTURES[name].options())
    trace = []

    def shape_of(output):
        # The feed-forward network takes all positions of a batch as the rows of one matrix.
        return tuple((output.unflatten(0, (batch, -1)) if output.dim() == 2 else output).shape)

    def follow(layer, side):
        for label, module in layer.named_modules():
            where = f"{side} {label.replace('_', ' ').replace('.', ', ')}"
            if isinstance(module, MultiHeadAttention):
                module.seen_weights = _Recorder(trace, f"{where}, weights")
            if isinstance(module, (MultiHeadAttention, FeedForward)) or label.endswith(("inner", "norm")):
                module.register_forward_hook(
                    lambda module, inputs, output, where=where: trace.append((where, shape_of(output)))
                )

    with torch.device("meta"):
        model = VaswaniModel.from_config(config, dictionary(entries))
        follow(model.encoder.layers[0], "encoder")
        follow(model.decoder.layers[0], "decoder")
        x = model.encoder.embedding(torch.zeros(batch, source, dtype=torch.long))
        trace.append(("encoder input", tuple(x.shape)))
        memory = model.encoder.layers[0](x)
        y = model.decoder.embedding(torch.zeros(batch, target, dtype=torch.long))
        trace.append(("decoder input", tuple(y.shape)))
        y = model.decoder.layers[0](y, memory)
        trace.append(("logits", tuple(model.decoder.output_layer(y).shape)))
    return trace


class _Recorder(list):
    """Stands in for the list that an attention adds its weights to."""

    def __init__(self, trace, where):
        super().__init__()
        self.trace, self.where = trace, where

    def append(self, weights):
        self.trace.append((self.where, tuple(weights.shape)))


def parameter_shares(entries=ENTRIES):
    """``architecture -> {part: parameters}``, counted in the built model, each matrix once."""
    parts = {MultiHeadAttention: "attention", FeedForward: "feed-forward", nn.LayerNorm: "normalisation",
             nn.Embedding: "embeddings", LearnedPositions: "positions"}
    words = dictionary(entries)
    result = {}
    for name, architecture in ARCHITECTURES.items():
        with torch.device("meta"):
            model = VaswaniModel.from_config(VaswaniConfig(**architecture.options()), words)
        counts = dict.fromkeys(parts.values(), 0)
        for module in model.modules():
            if type(module) in parts:
                counts[parts[type(module)]] += sum(parameter.numel() for parameter in module.parameters())
        assert sum(counts.values()) == sum(parameter.numel() for parameter in model.parameters()), name
        result[name] = counts
    return result


P100 = 9.5e12  # operations per second that the paper assumes of one P100 (footnote 5)
GPUS = 8

# Table 2, operations to train the models for English-German.
TRAINING_COST = {"GNMT + RL": 2.3e19, "ConvS2S": 9.6e18, "MoE": 2.0e19, "GNMT + RL, ensemble": 1.8e20,
                 "ConvS2S, ensemble": 7.7e19, "Transformer, base": 3.3e18, "Transformer, big": 2.3e19}

# Sections 5.2 and Table 2: architecture, updates, seconds an update, hours of training.
TRAINING = {
    "Transformer, base": ("vaswani2017", 100_000, 0.4, 12),
    "Transformer, big": ("vaswani2017_big", 300_000, 1.0, 3.5 * 24),
}


def training_cost():
    """Table 2: for both models, the printed cost and three ways to it.

    ``from hours``: time x 8 GPUs x 9.5e12, as the paper says; ``from steps``: the same with updates x seconds an
    update; ``counted``: 6 operations a parameter and token, forward and backward, 25 000 tokens an update.
    """
    result = {}
    for model, (name, updates, seconds, hours) in TRAINING.items():
        result[model] = {
            "printed": TRAINING_COST[model],
            "from hours": hours * 3600 * GPUS * P100,
            "from steps": updates * seconds * GPUS * P100,
            "counted": 6 * ARCHITECTURES[name].parameters(ENTRIES) * 25_000 * updates,
            "hours printed": hours,
            "hours from steps": updates * seconds / 3600,
        }
    return result
