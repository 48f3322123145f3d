"""What several specs need: small models and sentences."""

import dataclasses

import torch

from specs.rows import SMALL

TOLERANCE = 1e-5  # models run in float64; some implementations take their softmax in float32 all the same


def small_model(subject, **changes):
    """A small float64 model for evaluation, with the changed sizes."""
    return subject.build(dataclasses.replace(SMALL, **changes)).double().eval()


def words(subject, *shape, vocabulary=SMALL.vocabulary):
    """Random ordinary words."""
    return torch.randint(subject.first_word, vocabulary, shape)


def states(*shape):
    """Random real vectors, `[..., d_model]`."""
    return torch.randn(*shape, dtype=torch.float64)


def sharp_model(subject, source):
    """A small model that soon ends its outputs, which a random one hardly ever does."""
    model = small_model(subject)
    with torch.no_grad():
        features = subject.decode(model, subject.encode(model, source), source, words(subject, 1, 8))[0].mean(dim=0)
        matrix = subject.embeddings(model)[2]
        # The end symbol's row towards the decoder's outputs.
        matrix[subject.end] = 1.3 * (matrix @ features).max() * features / features.square().sum()
    return model


def shake(model):
    """Give every parameter of one dimension (biases, gains) a random value, so that none is invisibly 0 or 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def all_layers(subject, model):
    """(stack, layer) of both stacks."""
    return [(stack, layer) for stack in ("encoder", "decoder") for layer in subject.layers(model, stack)]


def kinds(stack):
    """The attention sub-layers of a layer of this stack."""
    return ("self",) if stack == "encoder" else ("masked", "cross")


def softmax_rows(x):
    return torch.softmax(x.double(), dim=-1)
