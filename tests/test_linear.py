"""Products by oneDNN are those of ``nn.Linear``, in training and of packed weights, and follow the weights."""

import pytest
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


@pytest.mark.parametrize("shape", [(24,), (5, 24), (3, 2, 24), (0, 24)], ids=str)
@pytest.mark.parametrize("rows", [(0, None), (0, 16), (16, None)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_the_plain_product(shape, rows, bias):
    """In float32, where oneDNN multiplies, against float64, where it does not."""
    torch.manual_seed(1)
    layer = Linear(24, 40, bias=bias)
    x = torch.randn(shape, requires_grad=True)
    wide = {name: value.detach().double().requires_grad_() for name, value in (("x", x), *layer.named_parameters())}
    of_rows = slice(*rows)
    expected = wide["x"] @ wide["weight"][of_rows].T + (wide["bias"][of_rows] if bias else 0)
    output = layer(x, *rows)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn_like(output)
    output.relu_().backward(weights)  # in place, as the feed-forward network does
    expected.relu().backward(weights.double())
    for name, value in (("x", x), *layer.named_parameters()):
        torch.testing.assert_close(value.grad.double(), wide[name].grad, rtol=1e-5, atol=1e-5)


def test_inputs_of_any_strides():
    torch.manual_seed(1)
    layer = Linear(24, 40)
    for x in (torch.randn(24, 3, 5).transpose(0, 2), torch.randn(1, 24).expand(6, 24), torch.randn(6, 48)[:, ::2]):
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
        output = layer(x)
        (output * torch.ones(()).expand_as(output)).sum().backward()  # a gradient without strides
        torch.testing.assert_close(layer.bias.grad, torch.full((40,), float(x.numel() // 24)))
        layer.bias.grad = None


def test_no_gradient_that_nobody_asked_for():
    layer = Linear(24, 40)
    layer.weight.requires_grad_(False)
    x = torch.randn(3, 24)
    layer(x).sum().backward()
    assert layer.weight.grad is None and torch.equal(layer.bias.grad, torch.full((40,), 3.0))
