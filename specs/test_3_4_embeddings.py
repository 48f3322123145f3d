"""Section 3.4: embeddings, their scale, and one matrix in three places."""

import torch

from specs import expect
from specs.helpers import TOLERANCE, small_model, words
from specs.judge import spec


def _matrices(subject, model):
    names = ("source embedding", "target embedding", "pre-softmax matrix")
    return [(name, matrix) for name, matrix in zip(names, subject.embeddings(model), strict=True)]


@spec("3.4-one-matrix-in-three-places")
def test_one_matrix(subject):
    model = small_model(subject)
    (_, first), *others = _matrices(subject, model)
    expect.tensor(first, (23, 16), "the source embedding")
    subject.logits(model, words(subject, 2, 4), words(subject, 2, 5)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    for name, matrix in others:
        expect.close(matrix, first, 0.0, f"the {name} after an update (the source embedding)")


@spec("3.4-one-matrix-learns-from-three-uses")
def test_one_matrix_learns_from_three_uses(subject):
    # Three words, each used in one way only: read in the source, read in the target, predicted. A fourth is not used.
    model = small_model(subject)
    matrix = subject.embeddings(model)[0]
    read, written, predicted, unused = range(subject.first_word, subject.first_word + 4)
    logits = subject.logits(model, torch.tensor([[read, read]]), torch.tensor([[subject.start, written]]))
    logits[..., predicted].square().sum().backward()
    expect.true(matrix.grad is not None, "a gradient of the shared matrix", "none")
    learns = [bool((matrix.grad[word] != 0).any()) for word in (read, written, predicted, unused)]
    uses = "the rows that learn: read in the source, read in the target, predicted, not used"
    expect.equal(learns, [True, True, True, False], uses)


def _scaled(subject, stack, which):
    model = small_model(subject)
    tokens = words(subject, 2, 5)
    matrix = _matrices(subject, model)[which][1].detach()
    difference = expect.tensor(subject.embed(model, tokens, stack), (2, 5, 16), "embedded tokens") - 4.0 * matrix[tokens]
    # What is left must be the position's alone: the same for every word.
    expect.close(difference[1], difference[0], TOLERANCE, "embedded words less sqrt(d_model) E (the same at a position)")


@spec("3.4-source-embedding-times-sqrt-d-model")
def test_source_scale(subject):
    _scaled(subject, "encoder", 0)


@spec("3.4-target-embedding-times-sqrt-d-model")
def test_target_scale(subject):
    _scaled(subject, "decoder", 1)


@spec("3.4-output-is-features-times-matrix")
def test_output(subject):
    model = small_model(subject)
    source, target_in = words(subject, 2, 4), words(subject, 2, 5)
    features = subject.decode(model, subject.encode(model, source), source, target_in)
    expected = features.detach().double() @ _matrices(subject, model)[2][1].detach().T
    expect.close(subject.logits(model, source, target_in), expected, TOLERANCE, "logits (features E^T: no scale, no bias)")


@spec("3.4-tied-by-default")
def test_tied_by_default(subject):
    expect.equal(subject.recipe("base").tied, True, "one matrix in three places when the user says nothing")


@spec("choice-embedding-initialisation")
def test_embedding_initialisation(subject):
    # 500 x 64 normal numbers: the relative standard deviation of the estimate is 0.4 %; 2.5 % is six of them.
    model = small_model(subject, vocabulary=500, d_model=64, heads=4, d_k=16, d_v=16)
    matrix = subject.embeddings(model)[0].detach()[subject.first_word :]
    expect.near(matrix.std().item() * 8, 1.0, 0.025, "sqrt(d_model) times the embeddings' standard deviation")
    expect.true(abs(matrix.mean().item() * 8) < 0.035, "embeddings with mean 0", matrix.mean().item())


@spec("choice-projection-initialisation")
def test_projection_initialisation(subject):
    model = small_model(subject, d_model=64, d_ff=192, heads=4, d_k=16, d_v=16)
    for stack in ("encoder", "decoder"):
        layer = subject.layers(model, stack)[0]
        attention = subject.projections(layer, "self" if stack == "encoder" else "cross")
        matrices = {name: attention[name] for name in ("W_Q", "W_K", "W_V", "W_O")}
        ffn = subject.feed_forward_weights(layer)
        for name, matrix in {**matrices, "W_1": ffn["W_1"], "W_2": ffn["W_2"]}.items():
            bound = matrix.shape[0] ** -0.5
            largest = matrix.detach().abs().max().item()
            # The largest of 4096 uniform numbers is above 0.995 of the bound except with probability 0.995^4096 = 1.2e-9.
            expect.true(0.995 * bound < largest <= bound * 1.000001, f"{name} uniform up to {bound:.4f}", f"{largest:.4f}")
