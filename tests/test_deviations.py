"""The model with fairseq's choices is fairseq's transformer: the same function, drawn from the same distribution."""

import argparse
from types import SimpleNamespace

import pytest
import torch
import weight_formats
from fairseq.models.transformer import TransformerModel, base_architecture

from vaswani_plugin.deviations import DeviatingConfig, DeviatingModel

from .helpers import PAD, dictionary, padded, sentences

WORDS = dictionary(60)
TASK = SimpleNamespace(source_dictionary=WORDS, target_dictionary=WORDS)
SIZES = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 96, "encoder_layers": 2, "decoder_layers": 2,
         "encoder_attention_heads": 4}


def deviating(**changes):
    cfg = DeviatingConfig(**{**SIZES, "attention_bias": True, "layer_norm_eps": 1e-5, "fairseq_positions": True,
                             "fairseq_initialisation": True, **changes})
    return DeviatingModel.build_model(Attributes(cfg), TASK)


class Attributes(dict):
    """The fields of a dataclass by attribute and by key, as fairseq's configuration gives them."""

    def __init__(self, cfg):
        super().__init__(vars(cfg))
        self.__dict__ = self


def stock():
    options = argparse.Namespace(**SIZES, decoder_attention_heads=4, share_all_embeddings=True)
    base_architecture(options)
    return TransformerModel.build_model(options, TASK), options


def test_same_function_as_fairseqs_transformer():
    torch.manual_seed(1)
    theirs, options = stock()
    model = deviating()
    _, state = weight_formats.from_fairseq(options, theirs.state_dict())
    state = {name: tensor for name, tensor in state.items() if "positions" not in name}
    model.load_state_dict(state)
    source = padded([row + [2] for row in sentences(1, (3, 9, 6))], "left")
    target = padded([[2] + row for row in sentences(2, (7, 2, 8))])
    with torch.no_grad():
        one = model.eval()(source, None, target)[0]
        other = theirs.eval()(source, source.ne(PAD).sum(1), target)[0]
    assert (one - other)[target.ne(PAD)].abs().max() < 1e-5


def test_same_distribution_of_first_weights():
    """Largest magnitude and standard deviation of every kind of weight, each from many draws."""

    def statistics(build):
        found = {}
        for seed in range(8):
            torch.manual_seed(seed)
            for name, tensor in build().items():
                # The three projections have one scale in both; layers are alike.
                found.setdefault(name.replace("layers.1", "layers.0"), []).append(tensor.flatten())
        return {name: torch.cat(parts) for name, parts in found.items()}

    def converted():
        model, options = stock()
        _, state = weight_formats.from_fairseq(options, model.state_dict())
        return {name: tensor for name, tensor in state.items() if "positions" not in name}

    theirs, ours = statistics(converted), statistics(lambda: deviating().state_dict())
    assert theirs.keys() == ours.keys()
    for name in ours:
        # The standard error of a deviation from n draws is below deviation / sqrt(n).
        spread = ours[name].numel() ** -0.5
        assert float(ours[name].std()) == pytest.approx(float(theirs[name].std()), rel=6 * spread, abs=1e-9), name
        if "embedding" not in name and "output_projection" not in name:  # those are normal, without a bound
            assert float(ours[name].abs().max()) == pytest.approx(float(theirs[name].abs().max()), rel=0.05), name


@pytest.mark.parametrize("changes, kind", [
    ({"fairseq_positions": False}, "positions"), ({"fairseq_initialisation": False}, "initialisation"),
])
def test_each_choice_by_itself(changes, kind):
    torch.manual_seed(1)
    model = deviating(**changes)
    first_row = model.encoder.positions(3, like=torch.zeros(1))[0]
    assert (first_row[:2].tolist() == [0.0, 1.0]) == (kind == "positions")  # sin 0, cos 0: the paper's
    bias = model.encoder.layers[0].self_attention.projection.bias
    assert bool(bias.any()) == (kind != "initialisation")
