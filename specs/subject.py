"""What an implementation shows of itself so that the specs can judge it.

Subclass `Subject` and fulfil as many methods as the implementation has parts for; each one left out makes the specs
that need it *not offered*, never passed. A part that the implementation has but that cannot do what the paper asks
raises `Unsupported`, and the spec fails with that sentence.

Tensors are batch-first: `[batch, time, d_model]`; `t` counts target positions, `s` source positions. Models are
`torch.nn.Module`s: the specs call `.eval()`, `.train()`, `.double()`, `.parameters()` on them and hooks on their layers.
"""

import dataclasses

import torch


class NotOffered(Exception):
    """The implementation has no such part: nothing to judge."""


class Unsupported(Exception):
    """The implementation has the part, and it cannot do what the paper asks of it."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """One model of the paper. `d_k` and `d_v` are widths of one head; `vocabulary` counts all symbols, special ones too."""

    vocabulary: int = 37000
    layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    heads: int = 8
    d_k: int = 64
    d_v: int = 64
    dropout: float = 0.1
    learned_positions: bool = False


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a named model is trained and used when its user says nothing more; None where the implementation leaves it open."""

    sizes: Sizes | None = None
    tied: bool | None = None
    optimizer: str | None = None
    betas: tuple[float, float] | None = None
    epsilon: float | None = None
    warmup: int | None = None
    follows_eq_3: bool | None = None
    smoothing: float | None = None
    updates: int | None = None
    tokens_per_update: int | None = None
    clip_norm: float | None = None
    weight_decay: float | None = None
    attention_dropout: float | None = None
    activation_dropout: float | None = None
    beam: int | None = None
    alpha: float | None = None
    extra_length: int | None = None


def _not_offered(what):
    raise NotOffered(f"{what} is not offered")


class Subject:
    """An implementation under judgement. Override what it has."""

    name = "unnamed"
    padding, start, end = 0, 1, 2
    first_word = 4  # every id from here up to vocabulary - 1 is an ordinary word
    deviations = None  # path of a TOML file of known deviations: claim id -> reason, reference

    # ---- the model ----------------------------------------------------------------------------------------------
    def build(self, sizes):
        """A freshly initialised model of these sizes."""
        _not_offered("building a model")

    def parameter_count(self, sizes):
        """Number of trained scalars; the default builds on the meta device and counts each parameter once."""
        with torch.device("meta"):
            model = self.build(sizes)
        return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)

    def embed(self, model, tokens, stack):
        """What enters the first layer of `stack` ("encoder" or "decoder"): `[b, t]` -> `[b, t, d_model]`."""
        _not_offered("the input of the first layer")

    def embeddings(self, model):
        """The parameters (source embedding, target embedding, pre-softmax), each `[vocabulary, d_model]`."""
        _not_offered("the embedding matrices")

    def encode(self, model, source):
        """Encoder output for `[b, s]` tokens, right-padded with `padding`: `[b, s, d_model]`."""
        _not_offered("the encoder")

    def decode(self, model, states, source, target_in):
        """Decoder output before the projection, all positions in one pass: `[b, t, d_model]`."""
        _not_offered("the decoder")

    def encoder_stack(self, model, x):
        """The whole encoder on `[b, s, d_model]` that are embedded already, for implementations without embeddings."""
        _not_offered("the encoder's stack")

    def decoder_stack(self, model, y, states):
        """The whole decoder (masked) on `[b, t, d_model]` that are embedded already and encoder output."""
        _not_offered("the decoder's stack")

    def logits(self, model, source, target_in):
        """Scores over the vocabulary before the softmax, all positions in one pass: `[b, t, vocabulary]`."""
        _not_offered("logits")

    def step_logits(self, model, source, target_in):
        """The same as `logits`, computed one target token at a time the way the implementation decodes."""
        _not_offered("step-by-step decoding")

    def probabilities(self, model, source, target_in):
        """Next-token probabilities: `[b, t, vocabulary]`."""
        _not_offered("next-token probabilities")

    def shift_right(self, targets):
        """Decoder input for the training targets `[b, t]` (each ends with `end`)."""
        _not_offered("the decoder's training input")

    def attention_maps(self, model, source, target_in):
        """`{"encoder": [...], "decoder": [...], "cross": [...]}`, one `[b, heads, queries, keys]` per layer."""
        _not_offered("attention maps")

    # ---- its parts ----------------------------------------------------------------------------------------------
    def layers(self, model, stack):
        """The layer modules of a stack, bottom first."""
        _not_offered("the layers")

    def encoder_layer(self, layer, x):
        """One encoder layer applied to `[b, s, d_model]` without padding."""
        _not_offered("one encoder layer")

    def decoder_layer(self, layer, y, states):
        """One decoder layer applied to `[b, t, d_model]` (masked) and encoder output `[b, s, d_model]`."""
        _not_offered("one decoder layer")

    def sublayer(self, layer, kind, x, states=None):
        """What the sub-layer alone returns, before dropout, residual and norm. `kind`: "self" (encoder), "masked"
        (decoder self-attention), "cross" (needs `states`), "feed-forward"."""
        _not_offered("the sub-layers")

    def norms(self, layer):
        """The layer's norms as callables on `[b, t, d_model]`, in the order of the sub-layers."""
        _not_offered("the layer's norms")

    def projections(self, layer, kind):
        """Attention weights in the paper's orientation (`x @ W`): W_Q, W_K `[d_model, heads * d_k]`, W_V, W_O, and
        b_Q, b_K, b_V, b_O or None. Head i owns the i-th block of columns. `kind`: "self", "masked", "cross"."""
        _not_offered("the attention projections")

    def feed_forward_weights(self, layer):
        """W_1 `[d_model, d_ff]`, b_1, W_2 `[d_ff, d_model]`, b_2."""
        _not_offered("the feed-forward weights")

    def attention(self, query, key, value, allowed=None):
        """Section 3.2.1 on `[b, heads, queries, d_k]`, `[b, heads, keys, d_k]`, `[b, heads, keys, d_v]`; `allowed`
        `[queries, keys]` is True where attending is legal."""
        _not_offered("scaled dot-product attention")

    def attention_weights(self, query, key, allowed=None):
        """The softmax alone: `[b, heads, queries, keys]`."""
        _not_offered("attention weights")

    def positions(self, length, d_model):
        """Positional encodings of the first `length` positions: `[length, d_model]`."""
        _not_offered("positional encodings")

    # ---- training -----------------------------------------------------------------------------------------------
    def recipe(self, name):
        """The defaults for "base", "big", "big-en-fr", "parsing" or a row of Table 3 such as "a-h1"."""
        _not_offered("a training recipe")

    def optimizer(self, parameters):
        """The optimizer the recipe builds (`step`, `zero_grad`, `param_groups`), its rate set to 1."""
        _not_offered("an optimizer")

    def learning_rates(self, d_model, updates):
        """The rate in force at `optimizer.step` of each of these updates (counted from 1) of a real training."""
        _not_offered("a learning-rate schedule")

    def loss(self, logits, targets, smoothing):
        """Training loss in nats summed over `[n, vocabulary]`, `[n]`; a target `padding` is no target."""
        _not_offered("a training loss")

    def batches(self, lengths, tokens):
        """Sentence pairs of these (source, target) lengths grouped into batches of at most `tokens` per side."""
        _not_offered("batching")

    # ---- inference ----------------------------------------------------------------------------------------------
    def score(self, log_probability, length, alpha):
        """By what the search ranks a finished hypothesis of `length` symbols (the end symbol counted)."""
        _not_offered("the score of a hypothesis")

    def length_limit(self, source_words, extra=50):
        """Most words (the end symbol not counted) that the output for a source of so many words may have, when the
        user asks for the source's length plus `extra`."""
        _not_offered("a limit of the output length")

    def translate(self, model, source, beam, alpha):
        """Finished hypotheses for one `[1, s]` source, best first: a list of (words without specials, score)."""
        _not_offered("beam search")

    def average(self, states):
        """The average of several state dictionaries."""
        _not_offered("checkpoint averaging")
