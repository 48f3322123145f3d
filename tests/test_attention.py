"""Section 3.2 against loops over heads, queries and keys."""

import pytest
import torch

from specs import reference
from vaswani_plugin.attention import (
    MultiHeadAttention,
    attention_weights,
    causal_mask,
    scaled_dot_product_attention,
)


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("d_k, d_v", [(4, 4), (3, 5)])
def test_equation_1_for_each_head(d_k, d_v):
    query, key, value = random(2, 3, 4, d_k), random(2, 3, 5, d_k, seed=2), random(2, 3, 5, d_v, seed=3)
    allowed = torch.rand(2, 1, 4, 5, generator=torch.Generator().manual_seed(4)) > 0.4
    allowed[..., 0] = True
    output = scaled_dot_product_attention(query, key, value, allowed)
    weights = attention_weights(query, key, allowed)
    for b in range(2):
        for h in range(3):
            expected = reference.attention_weights(query[b, h], key[b, h], allowed[b, 0])
            torch.testing.assert_close(weights[b, h], expected, rtol=0, atol=1e-12)
            torch.testing.assert_close(output[b, h], expected @ value[b, h], rtol=0, atol=1e-12)


def test_causal_lets_position_i_see_0_to_i():
    assert causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    query, key, value = random(1, 2, 4, 3), random(1, 2, 4, 3, seed=2), random(1, 2, 4, 3, seed=3)
    torch.testing.assert_close(
        scaled_dot_product_attention(query, key, value, causal=True),
        scaled_dot_product_attention(query, key, value, causal_mask(4)),
        rtol=0, atol=1e-14,
    )


def test_a_query_without_a_visible_key_attends_to_nothing():
    query, key, value = (random(1, 1, 2, 3, seed=s).requires_grad_() for s in (1, 2, 3))
    allowed = torch.tensor([[[[True, False], [False, False]]]])
    output = scaled_dot_product_attention(query, key, value, allowed)
    torch.testing.assert_close(output[0, 0, 0], value[0, 0, 0])
    assert output[0, 0, 1].tolist() == [0.0, 0.0, 0.0]
    assert attention_weights(query, key, allowed)[0, 0].tolist() == [[1.0, 0.0], [0.0, 0.0]]
    (output.sum() + attention_weights(query, key, allowed).square().sum()).backward()
    assert all(x.grad.isfinite().all() for x in (query, key, value))
    assert (query.grad[0, 0, 1] == 0).all()


@pytest.mark.parametrize("few_keys, roundings", [(0, 1), (5, 8)], ids=["long", "short"])
@pytest.mark.parametrize("mask", ["padding", "causal", "none"])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_in_half_precision(dtype, autocast, mask, few_keys, roundings, monkeypatch):
    """On CPUs long sentences take torch's kernel in float32, which rounds its result alone; short ones take Eq. 1 as
    written, whose scores and weights are rounded too."""
    monkeypatch.setattr("vaswani_plugin.attention.FEW_KEYS", few_keys)
    query, key, value = (random(2, 2, 5, 4, seed=s).to(dtype).requires_grad_() for s in (1, 2, 3))
    exact = [x.detach().double().requires_grad_() for x in (query, key, value)]
    allowed = torch.tensor([[True, True, True, True, False], [True, False, False, False, False]]).view(2, 1, 1, 5)
    masks = {"padding": (allowed, 0.0, False), "causal": (None, 0.0, True), "none": ()}[mask]
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        output = scaled_dot_product_attention(query, key, value, *masks)
    assert output.dtype == dtype
    expected = scaled_dot_product_attention(*exact, *masks)
    weights = random(*expected.shape, seed=4).to(dtype)  # numbers that both types hold
    output.backward(weights)
    expected.backward(weights.double())
    error = roundings * torch.finfo(dtype).eps
    for found, right in [(output, expected), *((x.grad, y.grad) for x, y in zip((query, key, value), exact))]:
        torch.testing.assert_close(found.double(), right, rtol=error, atol=error if few_keys else 1e-6)


def test_dropout_in_half_precision_drops_weights():
    """Dropped weights are zero and the others larger by 1 / (1 - rate): with values of 1, sums of what is left."""
    torch.manual_seed(1)
    query, key = (random(1, 1, 400, 4, seed=s)[:, :, :200].bfloat16().requires_grad_() for s in (1, 2))
    value = torch.ones(1, 1, 200, 1, dtype=torch.bfloat16)
    output = scaled_dot_product_attention(query, key, value, dropout=0.5).squeeze().float()
    assert output.std() > 0.02 and abs(output.mean() - 1) < 0.05


@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention_is_a_loop_over_heads(bias):
    torch.manual_seed(5)
    attention = MultiHeadAttention(d_model=6, heads=2, d_k=4, d_v=5, bias=bias).double()
    if bias:
        torch.nn.init.normal_(attention.projection.bias)
        torch.nn.init.normal_(attention.output.bias)
    x, memory = random(1, 3, 6), random(1, 4, 6, seed=2)
    query, key, value = attention.projection.weight.detach().split([8, 8, 10])
    weights = {"W_Q": query.t(), "W_K": key.t(), "W_V": value.t(), "W_O": attention.output.weight.detach().t()}
    if bias:
        weights.update(zip(("b_Q", "b_K", "b_V"), attention.projection.bias.detach().split([8, 8, 10])))
        weights["b_O"] = attention.output.bias.detach()
    for y in (None, memory):
        expected = reference.multi_head(x[0], x[0] if y is None else y[0], weights, heads=2)
        torch.testing.assert_close(attention(x, y)[0].detach(), expected, rtol=0, atol=1e-12)


def test_weights_are_seen_without_changing_the_output():
    torch.manual_seed(5)
    attention = MultiHeadAttention(d_model=6, heads=2, d_k=3, d_v=3).double()
    x = random(1, 3, 6)
    plain = attention(x, causal=True)
    attention.seen_weights = []
    assert torch.equal(attention(x, causal=True), plain)
    (weights,) = attention.seen_weights
    assert weights.shape == (1, 2, 3, 3)
    assert (weights.triu(1) == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 3, dtype=torch.float64))


def test_matrices_start_within_the_inverse_root_of_their_inputs():
    torch.manual_seed(6)
    attention = MultiHeadAttention(d_model=64, heads=4, d_k=16, d_v=8)
    for matrix in attention.projection.weight.split([64, 64, 32]):
        assert 0.97 * 0.125 < matrix.abs().max() <= 0.125  # 64 inputs
    assert 0.97 * 32**-0.5 < attention.output.weight.abs().max() <= 32**-0.5  # 4 heads of 8


def test_attention_dropout_only_in_training():
    attention = MultiHeadAttention(d_model=6, heads=2, d_k=3, d_v=3, dropout=0.5).double()
    x = random(1, 3, 6)
    attention.eval()
    assert torch.equal(attention(x), attention(x))
    attention.train()
    assert not torch.equal(attention(x), attention(x))
