"""Products by oneDNN are those of ``nn.Linear``, in training and of packed weights, and follow the weights."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from vaswani_plugin.linear import Linear

from .helpers import REPOSITORY


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


def test_memory_does_not_grow_with_the_sizes_of_batches():
    """oneDNN would keep a program for each of 600 numbers of rows, about 300 MB of them."""
    program = (
        "import random, torch, vaswani_plugin; from vaswani_plugin.linear import Linear\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4 // 1024\n"
        "layer = Linear(256, 1024); layer(torch.randn(1500, 256)); before = resident()\n"
        "for rows in random.Random(1).choices(range(100, 1500), k=600): layer(torch.randn(rows, 256))\n"
        "print(resident() - before)"
    )
    # Large tensors in memory of their own: what is left is what is kept.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, cwd=REPOSITORY,
                          env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 120


@pytest.mark.parametrize("wanted, in_training, in_generation", [(None, "64", None), ("7", "7", "7")])
def test_generation_keeps_the_programs_of_all_sizes(wanted, in_training, in_generation):
    """Numbers of rows come again there. What the user says holds in both."""
    program = (
        "import os, vaswani_plugin; from vaswani_plugin.linear import Linear\n"
        "layer, names = Linear(4, 4), ('ONEDNN_PRIMITIVE_CACHE_CAPACITY', 'LRU_CACHE_CAPACITY')\n"
        "print([os.environ.get(name) for name in names])\n"
        "layer.make_generation_fast_(); layer.make_generation_fast_()\n"
        "print([os.environ.get(name) for name in names])"
    )
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= dict.fromkeys(names, wanted) if wanted else {}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, cwd=REPOSITORY,
                          env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str([value] * 2) for value in (in_training, in_generation)]
