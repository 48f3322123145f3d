"""Section 3.3: position-wise feed-forward networks."""

import torch

from specs import expect, reference
from specs.helpers import TOLERANCE, all_layers, shake, small_model, states
from specs.judge import spec
from specs.spy import depends


@spec("3.3-equation")
def test_equation(subject):
    model = shake(small_model(subject))
    x = states(1, 5, 16)
    for stack, layer in all_layers(subject, model):
        expected = reference.feed_forward(x[0], subject.feed_forward_weights(layer))
        expect.close(subject.sublayer(layer, "feed-forward", x), expected[None], TOLERANCE, f"FFN(x) of the {stack}")


@spec("3.3-position-wise")
def test_position_wise(subject):
    model = small_model(subject)
    for _, layer in all_layers(subject, model):
        seen = depends(lambda x: subject.sublayer(layer, "feed-forward", x[None])[0], states(4, 16))
        expect.equal(seen.int().tolist(), torch.eye(4).int().tolist(), "the positions that FFN(x) at each position depends on")


@spec("3.3-two-convolutions-of-kernel-1")
def test_two_convolutions(subject):
    model = shake(small_model(subject))
    x = states(2, 5, 16)
    layer = subject.layers(model, "encoder")[0]
    w = {name: value.detach() for name, value in subject.feed_forward_weights(layer).items()}
    inner = torch.relu(torch.nn.functional.conv1d(x.mT, w["W_1"].T[:, :, None], w["b_1"]))
    expected = torch.nn.functional.conv1d(inner, w["W_2"].T[:, :, None], w["b_2"]).mT
    expect.close(subject.sublayer(layer, "feed-forward", x), expected, TOLERANCE, "FFN(x) as two convolutions")


@spec("3.3-biases")
def test_biases(subject):
    model = small_model(subject)
    for _, layer in all_layers(subject, model):
        w = subject.feed_forward_weights(layer)
        for name, width in (("b_1", 40), ("b_2", 16)):
            expect.true(w[name] is not None, f"a bias {name}", "none")
            expect.tensor(w[name], (width,), name)


@spec("3.3-inner-width")
def test_inner_width(subject):
    model = small_model(subject)
    for _, layer in all_layers(subject, model):
        w = subject.feed_forward_weights(layer)
        expect.tensor(w["W_1"], (16, 40), "W_1")
        expect.tensor(w["W_2"], (40, 16), "W_2")


@spec("3.3-differs-from-layer-to-layer")
def test_differs_from_layer_to_layer(subject):
    model = small_model(subject)
    matrices = [subject.feed_forward_weights(layer)["W_1"].detach() for _, layer in all_layers(subject, model)]
    for a in range(len(matrices)):
        for b in range(a):
            expect.true((matrices[a] != matrices[b]).any(), "W_1 to differ from layer to layer", f"layers {b} and {a} equal")
