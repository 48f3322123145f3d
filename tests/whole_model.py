"""The whole model by the paper's equations, one sentence at a time, in float64, from a state dictionary.

Only ``specs.reference`` computes; the names of the plugin's tensors are all that is taken from it.
"""

import math

import torch

from specs import reference


class WholeModel:
    """Sections 3.1 to 3.5 for a state dictionary of ``VaswaniModel`` with tied embeddings."""

    def __init__(self, state, layers, heads, d_k, d_v, eps=1e-6):
        self.state = {name: tensor.double() for name, tensor in state.items()}
        self.layers, self.heads, self.d_k, self.d_v, self.eps = layers, heads, d_k, d_v, eps
        self.matrix = self.state["encoder.embedding.weight"]

    def encode(self, source):
        """``source``: token numbers of one sentence. Returns ``[source, d_model]``."""
        x = self._embed(source)
        for layer in range(self.layers):
            name = f"encoder.layers.{layer}"
            x = self._residual(name, "self_attention", x, self._attention(f"{name}.self_attention", x, x))
            x = self._residual(name, "feed_forward", x, self._feed_forward(name, x))
        return x

    def decode(self, memory, target):
        """``target``: the shifted target, token numbers. Returns logits ``[target, entries]``."""
        causal = torch.tensor([[j <= i for j in range(len(target))] for i in range(len(target))])
        y = self._embed(target)
        for layer in range(self.layers):
            name = f"decoder.layers.{layer}"
            attended = self._attention(f"{name}.self_attention", y, y, causal)
            y = self._residual(name, "self_attention", y, attended)
            attended = self._attention(f"{name}.cross_attention", y, memory)
            y = self._residual(name, "cross_attention", y, attended)
            y = self._residual(name, "feed_forward", y, self._feed_forward(name, y))
        return y @ self.matrix.t()

    def _embed(self, tokens):
        d_model = self.matrix.size(1)
        return math.sqrt(d_model) * self.matrix[tokens] + reference.positions(len(tokens), d_model)

    def _attention(self, name, x, memory, allowed=None):
        rows = self.state[f"{name}.projection.weight"]
        query, key, value = rows.split([self.heads * self.d_k, self.heads * self.d_k, self.heads * self.d_v])
        weights = {"W_Q": query.t(), "W_K": key.t(), "W_V": value.t(),
                   "W_O": self.state[f"{name}.output.weight"].t()}
        if f"{name}.projection.bias" in self.state:
            biases = self.state[f"{name}.projection.bias"].split(
                [self.heads * self.d_k, self.heads * self.d_k, self.heads * self.d_v]
            )
            weights.update(zip(("b_Q", "b_K", "b_V"), biases), b_O=self.state[f"{name}.output.bias"])
        return reference.multi_head(x, memory, weights, self.heads, allowed)

    def _feed_forward(self, layer, x):
        name = f"{layer}.feed_forward"
        return reference.feed_forward(x, {
            "W_1": self.state[f"{name}.inner.weight"].t(), "b_1": self.state[f"{name}.inner.bias"],
            "W_2": self.state[f"{name}.outer.weight"].t(), "b_2": self.state[f"{name}.outer.bias"],
        })

    def _residual(self, layer, sublayer, x, output):
        norm = f"{layer}.{sublayer}_residual.norm"
        total = x + output
        mean = total.mean(dim=1, keepdim=True)
        variance = ((total - mean) ** 2).mean(dim=1, keepdim=True)
        normalised = (total - mean) / torch.sqrt(variance + self.eps)
        return normalised * self.state[f"{norm}.weight"] + self.state[f"{norm}.bias"]
