"""Section 3.5: positional encodings."""

import math

import torch

from specs import expect, reference
from specs.helpers import TOLERANCE, small_model, states, words
from specs.judge import spec


def _table(subject, length, d_model):
    return expect.tensor(subject.positions(length, d_model), (length, d_model), "positional encodings").detach()


def _frequencies(table, stride):
    """Angular frequency of each column of sinusoids, whatever their order and phase.

    A sinusoid obeys x[p + stride] + x[p - stride] = 2 cos(stride w) x[p].
    """
    middle, outer = table[stride:-stride], table[2 * stride :] + table[: -2 * stride]
    cosine = (middle * outer).sum(0) / middle.square().sum(0) / 2
    return torch.acos(cosine.clamp(-1, 1)) / stride


@spec("3.5-equation")
def test_equation(subject):
    for length, d_model in ((300, 16), (40, 512)):
        expect.close(subject.positions(length, d_model), reference.positions(length, d_model), 1e-6, f"PE[pos, column] with d_model = {d_model}")


@spec("3.5-interleaved")
def test_interleaved(subject):
    table = _table(subject, 50, 16)
    expect.close(table[:, 0::2] ** 2 + table[:, 1::2] ** 2, torch.ones(50, 8), 1e-5, "sine^2 + cosine^2 of neighbouring columns")


@spec("3.5-first-position-is-zero")
def test_first_position(subject):
    first = _table(subject, 5, 16)[0]
    expect.close(first.sort().values, torch.tensor([0.0] * 8 + [1.0] * 8), 1e-6, "the first position's sines and cosines, sorted")


@spec("3.5-wavelengths")
def test_wavelengths(subject):
    # Frequencies above 0.05 are well determined over 200 positions.
    found = _frequencies(_table(subject, 200, 32), 1).sort(descending=True).values
    expected = torch.tensor([10000 ** (-2 * (c // 2) / 32) for c in range(32)]).double()
    fast = expected > 0.05
    expect.close(2 * math.pi / found[fast], 2 * math.pi / expected[fast], 0.01, "the wavelengths below 40 pi, ascending")


@spec("3.5-wavelengths-grow-geometrically")
def test_wavelengths_grow_geometrically(subject):
    found = _frequencies(_table(subject, 200, 32), 1).sort(descending=True).values[:10:2]
    ratios = found[1:] / found[:-1]
    expect.close(ratios, ratios[:1].expand(4), 1e-3, "the ratio of neighbouring frequencies")


@spec("3.5-shortest-wavelength")
def test_shortest_wavelength(subject):
    fastest = _frequencies(_table(subject, 200, 16), 1).max().item()
    expect.near(2 * math.pi / fastest, 2 * math.pi, 1e-4, "the shortest wavelength")


@spec("3.5-longest-wavelength")
def test_longest_wavelength(subject):
    # d_model = 8: the formula's last wavelength is 10000^(6/8) = 1000 times 2 pi, the text's 10000 times 2 pi.
    table = _table(subject, 3000, 8)
    column = (table[1:] - table[:-1]).square().sum(dim=0).argmin()
    slowest = _frequencies(table[:, column : column + 1], 1000).item()
    expect.true(slowest > 0, "a positive frequency", slowest)
    expect.near(1 / slowest, 1000.0, 1e-2, "the longest wavelength over 2 pi with d_model = 8")


@spec("3.5-offset-is-linear")
def test_offset_is_linear(subject):
    table = _table(subject, 200, 16)
    for k in (1, 17):
        now, later = table[: 200 - k], table[k:]
        # Fitted on the even positions, true on the odd ones.
        matrix = torch.linalg.lstsq(now[::2], later[::2], driver="gelsd").solution
        expect.close(now[1::2] @ matrix, later[1::2], 1e-4, f"PE[pos + {k}] as a linear function of PE[pos]")


@spec("3.5-constant-norm")
def test_constant_norm(subject):
    table = _table(subject, 2000, 16)
    expect.close(table.square().sum(dim=1), torch.full((2000,), 8.0), 1e-4, "the squared length of each position's encoding")


@spec("3.5-longer-than-any-table")
def test_longer_than_any_table(subject):
    short, long = _table(subject, 100, 16), _table(subject, 6000, 16)
    expect.close(long[:100], short, 1e-6, "the first 100 positions of 6000")
    expect.close(long[5000:].square().sum(dim=1), torch.full((1000,), 8.0), 1e-4, "the squared length beyond position 5000")


def _position_part(subject, stack):
    model = small_model(subject)
    # One word six times: less the first, only the positions are left, whatever the embedding's scale.
    same = torch.full((1, 6), subject.first_word)
    embedded = expect.tensor(subject.embed(model, same, stack), (1, 6, 16), "embedded tokens")[0].detach()
    table = _table(subject, 6, 16)
    expect.close(embedded - embedded[:1], table - table[:1], TOLERANCE, f"what positions add to one word in the {stack}")


@spec("3.5-added-to-source-embeddings")
def test_added_to_source(subject):
    _position_part(subject, "encoder")


@spec("3.5-added-to-target-embeddings")
def test_added_to_target(subject):
    _position_part(subject, "decoder")


@spec("3.5-no-parameters")
def test_no_parameters(subject):
    model = small_model(subject)
    matrices = {id(matrix) for matrix in subject.embeddings(model)}
    in_layers = {id(p) for stack in ("encoder", "decoder") for layer in subject.layers(model, stack) for p in layer.parameters()}
    bottom = [subject.embed(model, words(subject, 1, 6), stack) for stack in ("encoder", "decoder")]
    torch.autograd.backward([x.sum() for x in bottom if x.requires_grad])
    others = [p for p in model.parameters() if p.grad is not None and id(p) not in matrices | in_layers]
    expect.equal(len(others), 0, "parameters beside the embeddings that feed the first layer")


@spec("consequence-equivariance-without-positions")
def test_equivariance_without_positions(subject):
    model = small_model(subject)
    x, order = states(1, 6, 16), torch.tensor([3, 0, 5, 1, 4, 2])
    y, z = x, x[:, order]
    for layer in subject.layers(model, "encoder"):
        y, z = subject.encoder_layer(layer, y), subject.encoder_layer(layer, z)
    expect.close(z, y[:, order], TOLERANCE, "encoder layers on reordered rows (reordered outputs)")


@spec("consequence-positions-break-equivariance")
def test_positions_break_equivariance(subject):
    model = small_model(subject)
    source = torch.arange(subject.first_word, subject.first_word + 6)[None]
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    y = expect.tensor(subject.encode(model, source), (1, 6, 16), "encoder output")
    z = expect.tensor(subject.encode(model, source[:, order]), (1, 6, 16), "encoder output")
    difference = (z - y[:, order]).abs().max().item()
    expect.true(difference > 0.01, "word order to matter to the encoder", f"a difference of {difference:.3g}")


@spec("3.5-learned-positions-possible")
def test_learned_positions(subject):
    model = small_model(subject, learned_positions=True)
    tokens = words(subject, 1, 5)
    for stack in ("encoder", "decoder"):
        embedded = expect.tensor(subject.embed(model, tokens, stack), (1, 5, 16), "embedded tokens")
        model.zero_grad()
        embedded.square().sum().backward()
        matrices = {id(matrix) for matrix in subject.embeddings(model)}
        learned = [p for p in model.parameters() if p.grad is not None and p.grad.abs().sum() > 0 and id(p) not in matrices]
        expect.true(bool(learned), f"a position table of the {stack} that learns", "none")


@spec("walkthrough-shape-5-8")
def test_shape_5_8(subject):
    _table(subject, 5, 8)
