"""The paper's equations, written literally: slow, in float64, one loop per index. The oracle of the specs.

Nothing here is shared with any implementation; a vector is a row, as in the paper.
"""

import math

import torch


def softmax_row(scores):
    """softmax of a list of numbers; -inf scores get weight 0."""
    top = max(scores)
    exponentials = [math.exp(score - top) for score in scores]
    return [e / sum(exponentials) for e in exponentials]


def attention_weights(query, key, allowed=None):
    """softmax(Q K^T / sqrt(d_k)) for one head: `[queries, d_k]`, `[keys, d_k]` -> `[queries, keys]` (Eq. 1)."""
    d_k = query.size(1)
    rows = []
    for i, q in enumerate(query.double().tolist()):
        scores = [sum(a * b for a, b in zip(q, k)) / math.sqrt(d_k) for k in key.double().tolist()]
        if allowed is not None:
            scores = [s if allowed[i, j] else -math.inf for j, s in enumerate(scores)]
        rows.append(softmax_row(scores))
    return torch.tensor(rows, dtype=torch.float64)


def attention(query, key, value, allowed=None):
    """Eq. 1 for one head: `[queries, d_k]`, `[keys, d_k]`, `[keys, d_v]` -> `[queries, d_v]`."""
    weights = attention_weights(query, key, allowed).tolist()
    values = value.double().tolist()
    return torch.tensor(
        [[sum(w * v[c] for w, v in zip(row, values)) for c in range(len(values[0]))] for row in weights],
        dtype=torch.float64,
    )


def multi_head(x, memory, weights, heads, allowed=None):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O for `[queries, d_model]`, `[keys, d_model]` (Section 3.2.2).

    `weights`: W_Q, W_K `[d_model, heads * d_k]`, W_V `[d_model, heads * d_v]`, W_O `[heads * d_v, d_model]`, and
    biases b_Q, b_K, b_V, b_O or None.
    """

    def project(rows, which, head):
        matrix = weights[f"W_{which}"].double()
        width = matrix.size(1) // heads
        block = slice(head * width, (head + 1) * width)
        bias = weights.get(f"b_{which}")
        return rows.double() @ matrix[:, block] + (0.0 if bias is None else bias.double()[block])

    outputs = []
    for head in range(heads):
        q, k, v = project(x, "Q", head), project(memory, "K", head), project(memory, "V", head)
        outputs.append(attention(q, k, v, allowed))
    concatenated = torch.cat(outputs, dim=1)
    bias = weights.get("b_O")
    return concatenated @ weights["W_O"].double() + (0.0 if bias is None else bias.double())


def feed_forward(x, weights):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 for `[positions, d_model]` (Eq. 2)."""
    w = {name: value.detach().double() for name, value in weights.items()}
    rows = []
    for row in x.double():
        inner = [max(0.0, float(z)) for z in row @ w["W_1"] + w["b_1"]]
        rows.append(torch.tensor(inner, dtype=torch.float64) @ w["W_2"] + w["b_2"])
    return torch.stack(rows)


def position(pos, i, d_model):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(same); `i` here is the column (Section 3.5)."""
    angle = pos / 10000 ** ((i - i % 2) / d_model)
    return math.cos(angle) if i % 2 else math.sin(angle)


def positions(length, d_model, first=0):
    """The table `[length, d_model]` from `first` on."""
    return torch.tensor(
        [[position(pos, i, d_model) for i in range(d_model)] for pos in range(first, first + length)],
        dtype=torch.float64,
    )


def learning_rate(step, d_model, warmup=4000):
    """Eq. 3."""
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def smoothed_target(classes, gold, epsilon):
    """q'(k) = (1 - epsilon) [k = gold] + epsilon / K (the definition that Section 5.4 cites)."""
    return [(1 - epsilon) * (k == gold) + epsilon / classes for k in range(classes)]


def smoothed_loss(logits, gold, epsilon):
    """Cross-entropy, in nats, of one row of logits (a list) against the smoothed target."""
    probabilities = softmax_row(logits)
    return -sum(q * math.log(p) for q, p in zip(smoothed_target(len(logits), gold, epsilon), probabilities))


def length_penalty(length, alpha):
    """((5 + |Y|) / 6)^alpha (Wu et al. 2016, cited in Section 6.1)."""
    return ((5 + length) / 6) ** alpha


def adam(gradients, betas, epsilon, epsilon_hat):
    """Where Adam's Algorithm 1 with step size 1 takes a scalar that starts at 0; list of its values after each step.

    `epsilon_hat`: the efficient form at the end of that paper's Section 2, which adds epsilon before bias correction.
    """
    theta = m = v = 0.0
    path = []
    for t, g in enumerate(gradients, start=1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        if epsilon_hat:
            theta -= math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t) * m / (math.sqrt(v) + epsilon)
        else:
            theta -= m / (1 - betas[0] ** t) / (math.sqrt(v / (1 - betas[1] ** t)) + epsilon)
        path.append(theta)
    return path


def attention_parameters(d_model, heads, d_k, d_v, bias):
    matrices = 2 * d_model * heads * d_k + 2 * d_model * heads * d_v
    return matrices + (2 * heads * d_k + heads * d_v + d_model if bias else 0)


def parameter_count(sizes, attention_bias, max_positions=0):
    """All trained scalars of a model with one embedding matrix (`sizes`: specs.subject.Sizes)."""
    attention = attention_parameters(sizes.d_model, sizes.heads, sizes.d_k, sizes.d_v, attention_bias)
    ffn = sizes.d_model * sizes.d_ff + sizes.d_ff + sizes.d_ff * sizes.d_model + sizes.d_model
    norm = 2 * sizes.d_model
    encoder_layer = attention + ffn + 2 * norm
    decoder_layer = 2 * attention + ffn + 3 * norm
    learned = 2 * max_positions * sizes.d_model if sizes.learned_positions else 0
    return sizes.layers * (encoder_layer + decoder_layer) + sizes.vocabulary * sizes.d_model + learned
