"""A Transformer as a student might write it after reading the paper: one file, plain, nothing fast.

The suite's worked example of an implementation to judge, and the text from which the faults of `specs/faults` are made:
each fault changes one detail here. It knows nothing of the specs.
"""

import math

import torch
from torch import nn

PADDING, START, END = 0, 1, 2

def row(name):
    """All settings of one model: Table 3, the models of Section 6.1, the parser of Section 6.3."""
    base = dict(layers=6, d_model=512, d_ff=2048, heads=8, d_k=64, d_v=64, dropout=0.1, learned_positions=False)
    recipe = dict(smoothing=0.1, warmup=4000, updates=100_000, tokens=25_000, beam=4, alpha=0.6, extra=50)
    adam = dict(betas=(0.9, 0.98), eps=1e-9)
    habits = dict(tied=True, optimizer="adam", eq_3=True, clip_norm=0.0, weight_decay=0.0, other_dropout=0.0)
    rows = {  # what differs from the base model
        "base": {},
        "big": dict(d_model=1024, d_ff=4096, heads=16, dropout=0.3, updates=300_000),
        "big-en-fr": dict(d_model=1024, d_ff=4096, heads=16, dropout=0.1, updates=300_000),
        "a-h1": dict(heads=1, d_k=512, d_v=512),
        "a-h4": dict(heads=4, d_k=128, d_v=128),
        "a-h16": dict(heads=16, d_k=32, d_v=32),
        "a-h32": dict(heads=32, d_k=16, d_v=16),
        "b-dk16": dict(d_k=16),
        "b-dk32": dict(d_k=32),
        "c-n2": dict(layers=2),
        "c-n4": dict(layers=4),
        "c-n8": dict(layers=8),
        "c-d256": dict(d_model=256, d_k=32, d_v=32),
        "c-d1024": dict(d_model=1024, d_k=128, d_v=128),
        "c-ff1024": dict(d_ff=1024),
        "c-ff4096": dict(d_ff=4096),
        "d-drop0": dict(dropout=0.0),
        "d-drop2": dict(dropout=0.2),
        "d-ls0": dict(smoothing=0.0),
        "d-ls2": dict(smoothing=0.2),
        "e-learned": dict(learned_positions=True),
        "parsing": dict(layers=4, d_model=1024, d_k=128, d_v=128),
    }

    return {**base, **recipe, **adam, **habits, **rows[name]}


# ---- Section 3.2: attention ---------------------------------------------------------------------------------------
def attention_weights(query, key, allowed=None):
    """softmax(Q K^T / sqrt(d_k)), `[batch, heads, queries, keys]`; a query that may see nothing attends to nothing."""
    d_k = query.size(-1)
    scores = query @ key.transpose(-2, -1)
    scores = scores / math.sqrt(d_k)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)
    if allowed is not None:
        weights = weights.masked_fill(~allowed, 0.0)
    return weights


def attention(query, key, value, allowed=None):
    """Eq. 1."""
    return attention_weights(query, key, allowed) @ value


class MultiHead(nn.Module):
    """Concat(head_1, ..., head_h) W_O."""

    def __init__(self, d_model, heads, d_k, d_v):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(d_model, heads * d_k, bias=False)
        self.key = nn.Linear(d_model, heads * d_k, bias=False)
        self.value = nn.Linear(d_model, heads * d_v, bias=False)
        self.output = nn.Linear(heads * d_v, d_model, bias=False)

    def split(self, x):
        batch, time, width = x.shape
        return x.view(batch, time, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x, memory, allowed=None):
        q, k, v = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        self.weights = attention_weights(q, k, allowed)
        heads = self.weights @ v
        return self.output(heads.transpose(1, 2).flatten(2))


# ---- Section 3.3: feed-forward ------------------------------------------------------------------------------------
class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        for linear in (self.inner, self.outer):
            nn.init.zeros_(linear.bias)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))


# ---- Section 3.5: positions ---------------------------------------------------------------------------------------
def frequencies(d_model):
    return 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)


def sinusoids(length, d_model, first=0):
    """PE(pos, 2i) = sin, PE(pos, 2i + 1) = cos of pos / 10000^(2i / d_model); rows are pos = first, first + 1, ..."""
    angles = torch.arange(first, first + length, dtype=torch.float64)[:, None] * frequencies(d_model)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class Embedding(nn.Module):
    """sqrt(d_model) E[token] + position, then dropout (Sections 3.4, 3.5, 5.4)."""

    def __init__(self, table, dropout, learned_positions):
        super().__init__()
        self.table = table
        self.scale = math.sqrt(table.size(1))
        self.dropout = nn.Dropout(dropout)
        self.learned = nn.Parameter(torch.randn(1024, table.size(1)) * 0.02) if learned_positions else None

    def positions(self, length, first):
        if self.learned is not None:
            return self.learned[first : first + length]
        return sinusoids(length, self.table.size(1), first)

    def forward(self, tokens, first=0):
        scaled = self.table[tokens] * self.scale
        positions = self.positions(tokens.size(1), first).to(scaled)
        return self.dropout(scaled + positions)


# ---- Section 3.1: stacks ------------------------------------------------------------------------------------------
def norm(d_model):
    return nn.LayerNorm(d_model, eps=1e-6)


class EncoderLayer(nn.Module):
    def __init__(self, d_model, d_ff, heads, d_k, d_v, dropout):
        super().__init__()
        self.attention = MultiHead(d_model, heads, d_k, d_v)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.norms = nn.ModuleList(norm(d_model) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, visible=None):
        x = self.norms[0](x + self.dropout(self.attention(x, x, visible)))
        return self.norms[1](x + self.dropout(self.feed_forward(x)))


def causal(queries, keys):
    """Position i sees positions 0..i: `[queries, keys]`, the queries being the last ones of the keys."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


class DecoderLayer(nn.Module):
    def __init__(self, d_model, d_ff, heads, d_k, d_v, dropout):
        super().__init__()
        self.attention = MultiHead(d_model, heads, d_k, d_v)
        self.cross = MultiHead(d_model, heads, d_k, d_v)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.norms = nn.ModuleList(norm(d_model) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, y, states, visible=None, past=None):
        """`past`: the layer's inputs at earlier positions when decoding token by token."""
        seen = y if past is None else torch.cat((past, y), dim=1)
        y = self.norms[0](y + self.dropout(self.attention(y, seen, causal(y.size(1), seen.size(1)))))
        y = self.norms[1](y + self.dropout(self.cross(y, states, visible)))
        return self.norms[2](y + self.dropout(self.feed_forward(y)))


class Transformer(nn.Module):
    def __init__(self, vocabulary, layers, d_model, d_ff, heads, d_k, d_v, dropout, learned_positions=False):
        super().__init__()
        shape = (d_model, d_ff, heads, d_k, d_v, dropout)
        self.table = nn.Parameter(torch.randn(vocabulary, d_model) * d_model**-0.5)
        self.source = Embedding(self.table, dropout, learned_positions)
        self.target = Embedding(self.table, dropout, learned_positions)
        self.projection = self.table
        self.encoder = nn.ModuleList(EncoderLayer(*shape) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(*shape) for _ in range(layers))

    def visible(self, source):
        """Which source positions are words: `[batch, 1, 1, source]`."""
        return (source != PADDING)[:, None, None, :]

    def encode(self, source):
        x = self.source(source)
        for layer in self.encoder:
            x = layer(x, self.visible(source))
        return x

    def decode(self, states, source, target_in):
        y = self.target(target_in)
        for layer in self.decoder:
            y = layer(y, states, self.visible(source))
        return y

    def decode_step(self, states, source, token, cache):
        """One more target token `[batch, 1]`; `cache` keeps each layer's earlier inputs."""
        first = cache[0].size(1) if cache else 0
        y = self.target(token, first)
        for i, layer in enumerate(self.decoder):
            past = cache[i] if first else None
            cache[i] = y if past is None else torch.cat((past, y), dim=1)
            y = layer(y, states, self.visible(source), past)
        return y

    def project(self, features):
        return features @ self.projection.T

    def forward(self, source, target_in):
        return self.project(self.decode(self.encode(source), source, target_in))


def shift_right(targets):
    return torch.cat((torch.full_like(targets[:, :1], START), targets[:, :-1]), dim=1)


def count_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


# ---- Section 5: training ------------------------------------------------------------------------------------------
def learning_rate(update, d_model):
    """Eq. 3."""
    warmup = row("base")["warmup"]
    return d_model**-0.5 * min(update**-0.5, update * warmup**-1.5)


class Adam(torch.optim.Optimizer):
    """Kingma and Ba's method in the form at the end of their Section 2: epsilon beside the uncorrected root."""

    def __init__(self, parameters, lr, betas, eps):
        super().__init__(parameters, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta_1, beta_2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter not in self.state:
                    self.state[parameter] = dict(t=0, m=torch.zeros_like(parameter), v=torch.zeros_like(parameter))
                state = self.state[parameter]
                state["t"] += 1
                state["m"] = beta_1 * state["m"] + (1 - beta_1) * parameter.grad
                state["v"] = beta_2 * state["v"] + (1 - beta_2) * parameter.grad**2
                correction = math.sqrt(1 - beta_2 ** state["t"]) / (1 - beta_1 ** state["t"])
                parameter -= group["lr"] * correction * state["m"] / (state["v"].sqrt() + group["eps"])


def make_optimizer(parameters):
    settings = row("base")
    return Adam(parameters, lr=1.0, betas=settings["betas"], eps=settings["eps"])


class Training:
    """Updates a model; `update` counts the finished ones."""

    def __init__(self, model, d_model, update=0):
        self.model, self.d_model, self.update = model, d_model, update
        self.optimizer = make_optimizer(model.parameters())

    def step(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.update += 1
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.update, self.d_model)
        self.optimizer.step()


def smoothed_loss(logits, targets, smoothing):
    """Cross-entropy against (1 - eps) one-hot + eps / K, summed over targets that are not padding."""
    log_p = torch.log_softmax(logits, dim=-1)
    gold = log_p.gather(1, targets[:, None]).squeeze(1)
    each = -(1 - smoothing) * gold - smoothing * log_p.mean(dim=1)
    return each[targets != PADDING].sum()


def batches(lengths, tokens):
    """Indices of sentence pairs of similar length, at most `tokens` padded tokens on either side."""
    groups, group = [], []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i][1], lengths[i][0])):
        widest = [max(lengths[i][side] for i in [*group, index]) for side in (0, 1)]
        if group and max(widest) * (len(group) + 1) > tokens:
            groups.append(group)
            group = []
        group.append(index)
    return [*groups, group]


# ---- Section 6.1: inference ---------------------------------------------------------------------------------------
def score(log_probability, length, alpha):
    return log_probability / ((5 + length) / 6) ** alpha


def length_limit(source_words, extra=50):
    return source_words + extra


@torch.no_grad()
def translate(model, source, beam, alpha):
    """Beam search for one sentence: (words, score) of finished hypotheses, best first."""
    states, longest = model.encode(source), length_limit(source.size(1))
    live, finished = [([START], 0.0, {})], []
    for words in range(longest + 1):
        candidates = []
        for tokens, log_probability, cache in live:
            cache = dict(cache)
            features = model.decode_step(states, source, torch.tensor([tokens[-1:]]), cache)
            log_p = torch.log_softmax(model.project(features)[0, -1], dim=-1)
            log_p[[PADDING, START]] = -math.inf
            if words == longest:
                log_p[[token for token in range(len(log_p)) if token != END]] = -math.inf
            for token in log_p.isfinite().nonzero()[:, 0].tolist():
                candidates.append(([*tokens, token], log_probability + log_p[token].item(), cache))
        candidates.sort(key=lambda candidate: -candidate[1])
        live = []
        for tokens, log_probability, cache in candidates[: 2 * beam]:
            if tokens[-1] == END:
                finished.append((tokens[1:-1], score(log_probability, len(tokens) - 1, alpha)))
            elif len(live) < beam:
                live.append((tokens, log_probability, cache))
        finished = sorted(finished, key=lambda hypothesis: -hypothesis[1])[:beam]
        if len(finished) == beam and live and score(live[0][1], longest + 1, alpha) < finished[-1][1]:
            break
    return finished


def average(states):
    """The arithmetic mean of several state dictionaries."""
    return {name: sum(state[name] for state in states) / len(states) for name in states[0]}
