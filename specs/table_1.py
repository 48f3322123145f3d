"""The layers that Table 1 compares, small and real, so that its entries can be measured instead of believed.

Each maps `[n, d]` to `[n, d]`. Operations are multiply-accumulates of the products that torch runs; steps are the
longest chain of dependent operations; paths are found from which input positions an output really depends on.
"""

import torch
from torch import nn

from specs.spy import depends, multiply_accumulates


class Layers:
    """One layer of each kind, without projections where the paper's entry leaves them out."""

    def self_attention(self, x):
        return torch.softmax(x @ x.T / x.size(1) ** 0.5, dim=1) @ x

    def recurrent(self, x):
        d = x.size(1)
        w, u = torch.randn(d, d, dtype=x.dtype) / d, torch.randn(d, d, dtype=x.dtype) / d
        state, states = torch.zeros(1, d, dtype=x.dtype), []
        for row in x.split(1):
            state = torch.tanh(row @ w + state @ u)
            states.append(state)
        return torch.cat(states)

    def convolution(self, x, k, dilation=1):
        """Causal, kernel k: position t sees t, t - dilation, ..., t - (k - 1) dilation."""
        d = x.size(1)
        padded = nn.functional.pad(x.T[None], ((k - 1) * dilation, 0))
        return nn.functional.conv1d(padded, torch.randn(d, d, k, dtype=x.dtype) / d, dilation=dilation)[0].T

    def separable_convolution(self, x, k):
        """A kernel for each channel by itself, then one matrix for all positions."""
        d = x.size(1)
        padded = nn.functional.pad(x.T[None], (k - 1, 0))
        each = nn.functional.conv1d(padded, torch.randn(d, 1, k, dtype=x.dtype), groups=d)[0].T
        return each @ torch.randn(d, d, dtype=x.dtype)

    def restricted_attention(self, x, r):
        """Each position sees the r positions around it (r odd)."""
        padded = nn.functional.pad(x, (0, 0, r // 2, r // 2))
        windows = padded.unfold(0, r, 1).transpose(1, 2)  # [n, r, d]
        inside = nn.functional.pad(torch.ones(len(x), dtype=torch.bool), (r // 2, r // 2)).unfold(0, r, 1)
        scores = (windows @ x[:, :, None]).squeeze(2) / x.size(1) ** 0.5
        weights = torch.softmax(scores.masked_fill(~inside, -torch.inf), dim=1)
        return (weights[:, None] @ windows).squeeze(1)


def operations(layer, n, d, *arguments):
    """Multiply-accumulates of one layer on `[n, d]`."""
    x = torch.randn(n, d)
    return multiply_accumulates(lambda: layer(x, *arguments))


def steps(layer, n, d, *arguments):
    """Length of the longest chain of dependent operations in one layer."""
    x = torch.randn(n, d, requires_grad=True)
    depth = {}
    stack = [layer(x, *arguments).grad_fn]
    while stack:
        node = stack[-1]
        children = [child for child, _ in node.next_functions if child is not None]
        waiting = [child for child in children if child not in depth]
        if waiting:
            stack.extend(waiting)
        else:
            depth[node] = 1 + max((depth[child] for child in children), default=0)
            stack.pop()
    return max(depth.values())


def layers_to_connect(layer_at, n, d=4, most=1000):
    """How many layers until every pair of positions (first before last, where causal) is connected.

    `layer_at(depth)` is the layer at that depth; connection is measured, not derived.
    """
    x = torch.randn(n, d, dtype=torch.float64)
    reach = torch.eye(n, dtype=torch.bool)
    one_way, cache = None, {}
    for depth in range(most):
        layer, key = layer_at(depth)
        if key not in cache:
            cache[key] = depends(layer, x)
        hop = cache[key]
        one_way = not hop.triu(1).any() if one_way is None else one_way
        reach = (hop.double() @ reach.double()) > 0
        if reach[-1, 0] and (one_way or reach[0, -1]):
            return depth + 1
    raise AssertionError(f"not connected after {most} layers")
