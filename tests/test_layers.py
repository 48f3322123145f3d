"""Sections 3.1, 3.3 and 5.4: where dropout and normalisation stand."""

from unittest import mock

import torch
import torch.nn.functional as F

from specs import reference
from vaswani_plugin.dropout import Dropout
from vaswani_plugin.feed_forward import FeedForward
from vaswani_plugin.layers import LayerSizes, Residual

from .helpers import EOS, small_model


def test_the_norm_comes_after_the_sum():
    residual = Residual(4, dropout=0.0, eps=1e-6)
    x, y = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    # x + y = 2, 1, 4, 3: mean 2.5, variance 1.25
    expected = (torch.tensor([[2.0, 1.0, 4.0, 3.0]]) - 2.5) / (1.25 + 1e-6) ** 0.5
    torch.testing.assert_close(residual(x, y), expected)


def test_dropout_hits_the_sublayer_output_alone():
    residual = Residual(4, dropout=0.999999, eps=1e-6).train()
    x = torch.randn(3, 4)
    torch.testing.assert_close(residual(x, torch.randn(3, 4)), F.layer_norm(x, [4], eps=1e-6))


def test_the_residual_leaves_its_inputs_as_they_are():
    for training in (True, False):
        residual = Residual(4, 0.5, 1e-6).train(training)
        x, sublayer_output = torch.randn(3, 4), torch.randn(3, 4)
        copies = x.clone(), sublayer_output.clone()
        residual(x, sublayer_output)
        assert torch.equal(x, copies[0]) and torch.equal(sublayer_output, copies[1])


def test_equation_2():
    torch.manual_seed(1)
    network = FeedForward(3, 5).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(4, 3, dtype=torch.float64)
    expected = reference.feed_forward(x, {
        "W_1": network.inner.weight.t(), "b_1": network.inner.bias,
        "W_2": network.outer.weight.t(), "b_2": network.outer.bias,
    })
    torch.testing.assert_close(network(x).detach(), expected, rtol=0, atol=1e-12)


def test_dropout_stands_in_the_papers_two_places_and_no_third():
    model = small_model(dropout=0.25).train()
    seen = []

    def spy(module, x):
        seen.append((tuple(x.shape), module.p))
        return x

    with mock.patch.object(Dropout, "forward", spy), mock.patch.object(F, "dropout") as other, mock.patch.object(
        F, "scaled_dot_product_attention", wraps=F.scaled_dot_product_attention
    ) as attention:
        model(torch.tensor([[5, 6, EOS]]), None, torch.tensor([[EOS, 7]]))
    # Embedding + position once per stack; 2 sub-layers in each of 2 encoder layers, 3 in each decoder layer.
    assert seen == [((1, 3, 16), 0.25)] * (1 + 2 * 2) + [((1, 2, 16), 0.25)] * (1 + 3 * 2)
    other.assert_not_called()
    assert all(call.kwargs["dropout_p"] == 0.0 for call in attention.call_args_list)


def test_a_layer_has_the_paper_s_modules():
    sizes = LayerSizes(d_model=8, d_ff=16, heads=2, d_k=4, d_v=4, dropout=0.1)
    model = small_model()
    norms = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 3 * 2
    assert {norm.eps for norm in norms} == {1e-6}
    assert sizes.attention().output.bias is None
    assert sizes.feed_forward().inner.bias is not None
