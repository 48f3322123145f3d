"""Section 5.4: the rate, the scale, the seed, and what it costs in memory."""

import pytest
import torch

from vaswani_plugin.dropout import Dropout


def dropped(p, *shape, seed=1, dtype=torch.float64):
    torch.manual_seed(seed)
    return Dropout(p)(torch.ones(*shape, dtype=dtype))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_drops_at_its_rate_and_keeps_the_expectation(p):
    count = 1_000_003  # no multiple of the two that share a draw
    y = dropped(p, count)
    zero = (y == 0).double().mean().item()
    deviation = (p * (1 - p) / count) ** 0.5
    assert abs(zero - p) < 4 * deviation
    # What is kept is divided by the chance of being kept, a multiple of 2^-32.
    (scale,) = y[y != 0].unique().tolist()
    assert 1 / scale == pytest.approx(1 - p, abs=2**-33)


def test_elements_are_independent_also_within_a_draw():
    """Each of the 2^8 patterns of eight neighbours, four draws, is as frequent as independence says: chi-squared."""
    p, patterns = 0.4, 200_000
    kept = (dropped(p, patterns, 8) != 0).long()
    counts = torch.bincount(kept @ (1 << torch.arange(8)), minlength=256).double()
    ones = torch.tensor([bin(code).count("1") for code in range(256)])
    expected = patterns * (1 - p) ** ones * p ** (8 - ones)
    chi_squared = ((counts - expected) ** 2 / expected).sum().item()
    # 255 degrees of freedom: mean 255, standard deviation 22.6
    assert abs(chi_squared - 255) < 4 * 22.6


def test_the_seed_decides():
    assert torch.equal(dropped(0.3, 7, 5), dropped(0.3, 7, 5))
    assert not torch.equal(dropped(0.3, 7, 5), dropped(0.3, 7, 5, seed=2))
    torch.manual_seed(1)
    layer, x = Dropout(0.3), torch.ones(7, 5)
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_gradient_passes_where_the_value_did(dtype):
    torch.manual_seed(3)
    x = torch.randn(5, 6, dtype=dtype).transpose(0, 1).requires_grad_()
    y = Dropout(0.5)(x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == dtype
    torch.testing.assert_close(y, x * x.grad)
    assert set(x.grad.flatten().tolist()) == {0.0, 2.0}


def test_nothing_is_dropped_in_evaluation_or_at_rate_zero():
    x = torch.randn(50)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1.0)(x), torch.zeros(50))


def test_remembers_one_byte_an_element():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        Dropout(0.1)(torch.randn(100, requires_grad=True))
    assert [(t.dtype, t.numel()) for t in saved] == [(torch.bool, 100)]


def test_retained_dropout_stays_on_in_generation():
    """fairseq's ``--retain-dropout``, with and without ``--retain-dropout-modules``."""
    x = torch.ones(100)
    for options, on in (
        ({}, False), ({"retain_dropout": True}, True),
        ({"retain_dropout": True, "retain_dropout_modules": ["Dropout"]}, True),
        ({"retain_dropout": True, "retain_dropout_modules": ["TransformerEncoder"]}, False),
    ):
        layer = Dropout(0.5).eval()
        layer.make_generation_fast_(name="x", **options)
        assert (0 in layer(x)) == on
