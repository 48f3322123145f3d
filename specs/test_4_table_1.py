"""Section 4, Table 1 and Section 2: operations, sequential steps and path lengths, measured."""

import math

import torch

from specs import expect
from specs.helpers import small_model, states, words
from specs.judge import spec
from specs.spy import depends, multiply_accumulates, operations_started
from specs.table_1 import layers_to_connect, operations, steps


def _scaling(layer, exponents, *arguments):
    """Doubling n (and d) multiplies the operations by 2 to the exponent."""
    base = operations(layer, 64, 32, *arguments)
    expect.near(operations(layer, 128, 32, *arguments) / base, 2 ** exponents[0], 1e-9, "growth when n doubles")
    expect.near(operations(layer, 64, 64, *arguments) / base, 2 ** exponents[1], 1e-9, "growth when d doubles")


# ---- what the implementation does -----------------------------------------------------------------------------------
@spec("table1-attention-operations")
def test_attention_operations(subject):
    def beside_projections(n, d):
        model = small_model(subject, d_model=d, heads=4, d_k=d // 4, d_v=d // 4)
        layer, x = subject.layers(model, "encoder")[0], states(1, n, d)
        return multiply_accumulates(lambda: subject.sublayer(layer, "self", x)) - 4 * n * d * d

    for n, d in ((24, 16), (48, 16), (24, 32)):
        expect.equal(beside_projections(n, d), 2 * n * n * d, f"multiply-accumulates of self-attention beside the four projections, n = {n}, d = {d}")


def _constant(few, many, more_positions, what):
    """Torch may copy here and there by size; a step for each position would add at least one operation for each."""
    grown = abs(many - few)
    expect.true(grown < more_positions / 2, f"{what} to start no operations for {more_positions} positions more", f"{few} and {many}")


@spec("table1-attention-steps")
def test_attention_steps(subject):
    model = small_model(subject)
    layer = subject.layers(model, "encoder")[0]

    def count(n):
        x = states(1, n, 16)
        return operations_started(lambda: subject.sublayer(layer, "self", x))

    _constant(count(8), count(64), 56, "self-attention")


@spec("table1-attention-path")
def test_attention_path(subject):
    model = small_model(subject)
    for layer in subject.layers(model, "encoder"):
        seen = depends(lambda x: subject.encoder_layer(layer, x[None])[0], states(9, 16))
        expect.true(seen.all(), "one encoder layer to connect every pair of positions", f"{int((~seen).sum())} pairs apart")


@spec("table1-training-steps")
def test_training_steps(subject):
    model = small_model(subject)

    def count(t):
        source, target_in = words(subject, 1, 4), words(subject, 1, t)
        with torch.no_grad():
            subject.logits(model, source, target_in)  # what is kept for later, such as masks, is made here
        return operations_started(lambda: subject.logits(model, source, target_in))

    _constant(count(5), count(40), 35, "a training pass over the target")


@spec("table1-generation-steps")
def test_generation_steps(subject):
    model = small_model(subject)

    def count(t):
        source, target_in = words(subject, 1, 4), words(subject, 1, t)
        return operations_started(lambda: subject.step_logits(model, source, target_in))

    few, many = count(5), count(10)
    expect.true(many > 1.5 * few, "operations started to generate to grow with the words", f"{many} for 10, {few} for 5")


# ---- what the paper says --------------------------------------------------------------------------------------------
@spec("table1-self-attention-complexity")
def test_self_attention_complexity(paper):
    _scaling(paper.layers.self_attention, (2, 1))
    expect.equal(operations(paper.layers.self_attention, 40, 16), 2 * 40 * 40 * 16, "multiply-accumulates of Q K^T and A V")


@spec("table1-recurrent-complexity")
def test_recurrent_complexity(paper):
    _scaling(paper.layers.recurrent, (1, 2))
    expect.equal(operations(paper.layers.recurrent, 40, 16), 2 * 40 * 16 * 16, "multiply-accumulates of a recurrent layer")


@spec("table1-convolution-complexity")
def test_convolution_complexity(paper):
    _scaling(paper.layers.convolution, (1, 2), 3)
    expect.equal(operations(paper.layers.convolution, 40, 16, 3), 3 * 40 * 16 * 16, "multiply-accumulates of a convolution")


@spec("table1-restricted-complexity")
def test_restricted_complexity(paper):
    _scaling(paper.layers.restricted_attention, (1, 1), 5)
    expect.equal(operations(paper.layers.restricted_attention, 40, 16, 5), 2 * 5 * 40 * 16, "multiply-accumulates with r = 5")


@spec("table1-self-attention-steps-constant")
def test_self_attention_steps(paper):
    expect.equal(steps(paper.layers.self_attention, 64, 8), steps(paper.layers.self_attention, 8, 8), "dependent steps at n = 64 (as at 8)")


@spec("table1-convolution-steps-constant")
def test_convolution_steps(paper):
    expect.equal(steps(paper.layers.convolution, 64, 8, 3), steps(paper.layers.convolution, 8, 8, 3), "dependent steps at n = 64 (as at 8)")


@spec("table1-restricted-steps-constant")
def test_restricted_steps(paper):
    layer = paper.layers.restricted_attention
    expect.equal(steps(layer, 64, 8, 5), steps(layer, 8, 8, 5), "dependent steps at n = 64 (as at 8)")


@spec("table1-recurrent-steps-linear")
def test_recurrent_steps(paper):
    few, some, many = (steps(paper.layers.recurrent, n, 8) for n in (8, 16, 24))
    expect.true(some - few == many - some >= 8, "dependent steps that grow by at least one per position", (few, some, many))


@spec("table1-self-attention-path-constant")
def test_self_attention_path(paper):
    for n in (8, 40):
        expect.equal(layers_to_connect(lambda _: (paper.layers.self_attention, 0), n), 1, f"layers to connect {n} positions")


@spec("table1-recurrent-path-linear", "section2-recurrent-path")
def test_recurrent_path(paper):
    # One hop of a recurrence is from a state to the next: the layer on two neighbours.
    def hop(x):
        return torch.cat([x[:1], *(paper.layers.recurrent(x[t - 1 : t + 1])[1:] for t in range(1, len(x)))])

    for n in (5, 12):
        expect.equal(layers_to_connect(lambda _: (hop, 0), n), n - 1, f"hops of a recurrence between the ends of {n} positions")


@spec("table1-convolution-path-contiguous", "section2-convs2s-linear")
def test_contiguous_path(paper):
    for n, k in ((81, 3), (50, 8)):
        found = layers_to_connect(lambda _: (lambda x: paper.layers.convolution(x, k), 0), n)
        expect.equal(found, math.ceil((n - 1) / (k - 1)), f"plain convolutions of kernel {k} to connect {n} positions")


@spec("table1-convolution-path-dilated", "section2-bytenet-logarithmic", "contradiction-log-k-is-for-dilated")
def test_dilated_path(paper):
    for n, k in ((81, 3), (64, 8)):
        found = layers_to_connect(lambda i: (lambda x: paper.layers.convolution(x, k, k**i), i), n)
        expect.equal(found, round(math.log(n, k)), f"dilated convolutions of kernel {k} to connect {n} positions")
        plain = layers_to_connect(lambda _: (lambda x: paper.layers.convolution(x, k), 0), n)
        expect.true(plain > 4 * found, f"plain convolutions to need many more layers than {found}", plain)


@spec("table1-restricted-path")
def test_restricted_path(paper):
    for n, r in ((41, 5), (41, 9)):
        found = layers_to_connect(lambda _: (lambda x: paper.layers.restricted_attention(x, r), 0), n)
        expect.equal(found, math.ceil((n - 1) / (r // 2)), f"layers of attention restricted to {r} that connect {n} positions")


@spec("section4-attention-cheaper-when-n-below-d", "exercise-equal-at-n-equal-d")
def test_crossover(paper):
    def ratio(n, d):
        return operations(paper.layers.self_attention, n, d) / operations(paper.layers.recurrent, n, d)

    expect.equal(ratio(64, 512), 0.125, "attention's operations over recurrence's at n = 64, d = 512")
    expect.equal(ratio(512, 512), 1.0, "the same at n = d = 512")
    expect.equal(ratio(1024, 512), 2.0, "the same at n = 1024")


@spec("exercise-256-fold")
def test_256_fold(paper):
    # The ratio is n / d exactly, measured where it can be; 131072 is 128 * 1024.
    for n, d in ((48, 16), (160, 8)):
        layers = paper.layers
        expect.equal(operations(layers.self_attention, n, d) / operations(layers.recurrent, n, d), n / d, f"ratio at n = {n}, d = {d}")
    expect.equal(128 * 1024 / 512, 256.0, "the ratio at n = 131072, d = 512")


@spec("contradiction-128k-tokens")
def test_128k(paper):
    d = paper.reported["sizes"]["base"]["d_model"]
    expect.equal((131072 / d, 128000 / d), (256.0, 250.0), "the ratios at 131072 and at 128000 tokens")


@spec("section4-convolution-costs-k-times")
def test_convolution_costs_k_times(paper):
    # A recurrent layer has two products of that size, one for the input and one for the state.
    for k in (3, 7):
        ratio = operations(paper.layers.convolution, 40, 16, k) / (operations(paper.layers.recurrent, 40, 16) / 2)
        expect.equal(ratio, float(k), "a convolution's operations over n d^2")


@spec("section4-separable-convolution")
def test_separable(paper):
    n, d = 24, 16
    for k in (3, n):
        found = operations(paper.layers.separable_convolution, n, d, k)
        expect.equal(found, k * n * d + n * d * d, f"multiply-accumulates of a separable convolution with k = {k}")
    # k = n: as self-attention's n^2 d plus a point-wise layer's n d^2 (one product; the paper's network has two, of 4 d).
    attention = operations(paper.layers.self_attention, n, d) / 2
    expect.equal(operations(paper.layers.separable_convolution, n, d, n), attention + n * d * d, "the cost with k = n")


@spec("table1-projections-left-out")
def test_projections_left_out(paper):
    # Four projections cost 4 n d^2: more than the 2 n^2 d of the table's entry as long as n < 2 d.
    d = paper.reported["sizes"]["base"]["d_model"]
    expect.true(4 * 64 * d * d > operations(paper.layers.self_attention, 64, d), "the projections to dominate at n = 64", "less")
    expect.equal(4 * d * d * 2 * d, 2 * (2 * d) ** 2 * d, "the projections at n = 2 d (equal to the table's entry)")
