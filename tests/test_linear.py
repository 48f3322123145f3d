"""Products by packed weights are those of ``nn.Linear``, and follow the weights."""

import torch
import torch.nn.functional as F

from vaswani_plugin.linear import Linear


def test_packed_products_equal_plain_ones_also_of_some_rows():
    torch.manual_seed(1)
    layer, x = Linear(24, 40), torch.randn(3, 2, 24)
    layer.make_generation_fast_()
    with torch.no_grad():
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
        for first, last in ((0, 16), (16, None)):
            rows = slice(first, last)
            torch.testing.assert_close(layer(x, first, last), F.linear(x, layer.weight[rows], layer.bias[rows]))


def test_weights_loaded_after_packing_are_used():
    torch.manual_seed(1)
    layer, other, x = Linear(24, 40, bias=False), Linear(24, 40, bias=False), torch.randn(3, 24)
    layer.make_generation_fast_()
    with torch.no_grad():
        layer(x)
        layer.load_state_dict(other.state_dict())
        torch.testing.assert_close(layer(x), F.linear(x, other.weight))
