"""``x W^T + b``, with the weights laid out for the processor once generation starts.

The paper is silent on how weights start. Here a matrix is uniform within 1 / sqrt(inputs), as in torch,
and a bias zero: each residual branch then starts smaller than the path that it is added to. Xavier's wider
ranges, which the authors' code has, made small models learn far more slowly.

On CPUs in float32 the products are oneDNN's. In training the one forward and that for the gradient of
the input are faster than torch's own; that for the gradient of the weights is not. In generation, a product
of few rows spends most of its time bringing the matrix into the order in which it is multiplied: weights
that change no more are packed once. A product of packed weights also gives a row the same bits whatever
rows stand beside it, so that hypotheses do not depend on the batch. Packed weights are a second copy in memory.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from . import toolkit


class _Product(torch.autograd.Function):
    """``x W^T + b`` for a matrix ``x``, and its gradients."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return toolkit.onednn_product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = toolkit.onednn_product(grad, weight.t()) if ctx.needs_input_grad[0] else None
        grad_weight = grad.t() @ x if ctx.needs_input_grad[1] else None
        grad_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias


class Linear(nn.Linear):
    """``nn.Linear`` with the same weights, names and results, faster on CPUs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._packed = None  # packed weights by their first and last row, and the version that they are of

    def reset_parameters(self):
        bound = self.in_features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def make_generation_fast_(self, **unused):
        """fairseq's hook before generation, after which it allows no more training: weights stay as they are."""
        toolkit.unbound_onednn_caches()
        self._packed = {}

    def forward(self, x, first=0, last=None):
        """``[..., inputs]`` to ``[..., outputs]``; of the outputs only ``first`` to ``last``, if these are given."""
        weight, bias = self.weight, self.bias
        if (first, last) != (0, None):  # the gradient of a slice is a copy, also that of a slice of all
            weight, bias = weight[first:last], None if bias is None else bias[first:last]
        if not toolkit.has_onednn_products(x, weight):
            return F.linear(x, weight, bias)
        if self._packed is None or torch.is_grad_enabled():
            product = _Product.apply(x.reshape(-1, x.size(-1)), weight, bias)
            return product if x.dim() == 2 else product.view(*x.shape[:-1], -1)
        version, packed = self._packed.get((first, last), (None, None))
        if version != self.weight._version:  # not packed yet, or other weights were loaded since
            version, packed = self.weight._version, toolkit.pack(weight)
            self._packed[first, last] = version, packed
        return toolkit.onednn_product(x, packed, bias)
