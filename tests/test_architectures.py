"""The table of architectures against Table 3 and Sections 5.4, 6.1 and 6.3 of the paper."""

import re
import time
from dataclasses import fields

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary

from vaswani_plugin.architectures import ARCHITECTURES, Architecture
from vaswani_plugin.config import VaswaniConfig
from vaswani_plugin.transformer import VaswaniModel

from .helpers import PLUGIN, succeed

# What each row of Table 3 prints beside its letter; all else is base. Written from the paper, not from the code.
TABLE_3 = {
    "vaswani2017": {},
    "vaswani2017_a_h1": {"heads": 1},
    "vaswani2017_a_h4": {"heads": 4},
    "vaswani2017_a_h16": {"heads": 16},
    "vaswani2017_a_h32": {"heads": 32},
    "vaswani2017_b_dk16": {"d_k": 16},
    "vaswani2017_b_dk32": {"d_k": 32},
    "vaswani2017_c_n2": {"layers": 2},
    "vaswani2017_c_n4": {"layers": 4},
    "vaswani2017_c_n8": {"layers": 8},
    "vaswani2017_c_d256": {"d_model": 256},
    "vaswani2017_c_d1024": {"d_model": 1024},
    "vaswani2017_c_ff1024": {"d_ff": 1024},
    "vaswani2017_c_ff4096": {"d_ff": 4096},
    "vaswani2017_d_drop0": {"dropout": 0.0},
    "vaswani2017_d_drop2": {"dropout": 0.2},
    "vaswani2017_d_ls0": {"label_smoothing": 0.0},
    "vaswani2017_d_ls2": {"label_smoothing": 0.2},
    "vaswani2017_e_learned": {"learned_positions": True},
    "vaswani2017_big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3, "updates": 300_000,
                        "checkpoint_updates": 600, "averaged_checkpoints": 20},
}

# Widths of a head that rows (A) and (C) print.
HEAD_WIDTHS = {
    "vaswani2017": 64,
    "vaswani2017_a_h1": 512,
    "vaswani2017_a_h4": 128,
    "vaswani2017_a_h16": 32,
    "vaswani2017_a_h32": 16,
    "vaswani2017_c_d256": 32,
    "vaswani2017_c_d1024": 128,
    "vaswani2017_big": 64,
}

# The column "params x 10^6".
PRINTED_MILLIONS = {
    "vaswani2017": 65,
    "vaswani2017_b_dk16": 58,
    "vaswani2017_b_dk32": 60,
    "vaswani2017_c_n2": 36,
    "vaswani2017_c_n4": 50,
    "vaswani2017_c_n8": 80,
    "vaswani2017_c_d256": 28,
    "vaswani2017_c_d1024": 168,
    "vaswani2017_c_ff1024": 53,
    "vaswani2017_c_ff4096": 90,
}


def differences(architecture, from_base=Architecture()):
    return {
        field.name: getattr(architecture, field.name)
        for field in fields(Architecture)
        if getattr(architecture, field.name) != getattr(from_base, field.name)
    }


def build(architecture, entries, bias=False):
    """The model on the meta device: shapes without numbers."""
    dictionary = Dictionary()
    for number in range(entries - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    config = VaswaniConfig(**architecture.options(), attention_bias=bias)
    with torch.device("meta"):
        return VaswaniModel.from_config(config, dictionary)


def test_base_is_section_3():
    base = ARCHITECTURES["vaswani2017"]
    assert (base.layers, base.d_model, base.d_ff, base.heads) == (6, 512, 2048, 8)
    assert (base.dropout, base.label_smoothing, base.updates) == (0.1, 0.1, 100_000)
    assert base.attention_dropout == 0.0 and not base.learned_positions


@pytest.mark.parametrize("name", TABLE_3)
def test_row_differs_from_base_only_as_printed(name):
    assert differences(ARCHITECTURES[name]) == TABLE_3[name]


@pytest.mark.parametrize("name", HEAD_WIDTHS)
def test_width_of_a_head_is_the_printed_one(name):
    sizes = VaswaniConfig(**ARCHITECTURES[name].options()).layer_sizes()
    assert (sizes.d_k, sizes.d_v) == (HEAD_WIDTHS[name], HEAD_WIDTHS[name])


@pytest.mark.parametrize("name, d_k", [("vaswani2017_b_dk16", 16), ("vaswani2017_b_dk32", 32)])
def test_row_b_narrows_keys_and_keeps_values(name, d_k):
    attention = build(ARCHITECTURES[name], 10).encoder.layers[0].self_attention
    assert attention.sizes == [8 * d_k, 8 * d_k, 8 * 64]


def test_other_models_differ_from_their_neighbour_only_as_the_text_says():
    big, french = ARCHITECTURES["vaswani2017_big"], ARCHITECTURES["vaswani2017_big_en_fr"]
    assert differences(french, from_base=big) == {"dropout": 0.1}  # Section 6.1
    parsing = ARCHITECTURES["vaswani2017_parsing"]  # Section 6.3
    assert parsing.layers == 4 and parsing.d_model == 1024
    assert set(differences(parsing)) == {"layers", "d_model", "attention_dropout"}


def test_every_architecture_is_accounted_for():
    others = {"vaswani2017_big_en_fr", "vaswani2017_parsing", "vaswani2017_tiny"}
    assert set(ARCHITECTURES) == set(TABLE_3) | others


def test_closed_form_counts_what_is_built():
    """All rows, with and without biases; fast, since nothing is allocated."""
    start = time.process_time()
    for name, architecture in ARCHITECTURES.items():
        for bias in (False, True):
            model = build(architecture, 100, bias)
            counted = sum(parameter.numel() for parameter in set(model.parameters()))
            assert architecture.parameters(100, bias) == counted, (name, bias)
    assert time.process_time() - start < 2


def test_counts_of_base_and_big_by_hand():
    # Base, 37000 entries: attention 4 * 512^2, feed-forward 2 * 512 * 2048 + 2048 + 512, norm 2 * 512;
    # encoder layer 1 attention and 2 norms, decoder layer 2 attentions and 3 norms, six of each; 37000 * 512.
    attention, feed_forward, norm = 1_048_576, 2_099_712, 1_024
    layers = 6 * (3 * attention + 2 * feed_forward + 5 * norm)
    assert layers == 44_101_632
    assert ARCHITECTURES["vaswani2017"].parameters(37_000) == layers + 18_944_000 == 63_045_632
    assert ARCHITECTURES["vaswani2017"].parameters(37_000, bias=True) == 63_082_496
    assert ARCHITECTURES["vaswani2017_big"].parameters(37_000) == 214_171_648
    assert ARCHITECTURES["vaswani2017_e_learned"].parameters(37_000) == 63_045_632 + 2 * 1024 * 512


@pytest.mark.parametrize("name", PRINTED_MILLIONS)
def test_printed_counts_follow_from_40960_entries_with_biases(name):
    assert round(ARCHITECTURES[name].parameters(40_960, bias=True) / 1e6) == PRINTED_MILLIONS[name]


def test_printed_count_of_big_fits_no_dictionary_that_fits_the_other_rows():
    big, base = ARCHITECTURES["vaswani2017_big"], ARCHITECTURES["vaswani2017"]
    fits_big = {v for v in range(30_000, 50_000) if round(big.parameters(v, bias=True) / 1e6) == 213}
    fits_base = {v for v in range(30_000, 50_000) if round(base.parameters(v, bias=True) / 1e6) == 65}
    assert (min(fits_big), max(fits_big)) == (35_296, 36_272)
    assert (min(fits_base), max(fits_base)) == (39_769, 41_721)


def test_rows_a_keep_size_and_products_constant():
    rows = [ARCHITECTURES[name] for name in TABLE_3 if re.fullmatch(r"vaswani2017(_a_h\d+)?", name)]
    assert len(rows) == 5
    assert len({row.parameters(37_000) for row in rows}) == 1
    assert {row.heads * VaswaniConfig(**row.options()).layer_sizes().d_k for row in rows} == {512}


def parsed(data, name):
    parser = options.get_training_parser()
    return vars(options.parse_args_and_arch(parser, [str(data), "--arch", name]))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """What a data directory needs before it is read: one dictionary for both languages."""
    folder = tmp_path_factory.mktemp("data")
    for language in ("a", "b"):
        (folder / f"dict.{language}.txt").write_text("x 1\n")
    for side in ("a", "b"):
        (folder / f"train.a-b.{side}.idx").touch()
    return folder


# fairseq's name of each field that may differ, and how the field is told there.
ARGUMENTS = {
    "layers": {"encoder_layers", "decoder_layers"},
    "d_model": {"encoder_embed_dim", "lr"},  # --lr holds the peak of Eq. 3, which falls with d_model
    "d_ff": {"encoder_ffn_embed_dim"},
    "heads": {"encoder_attention_heads"},
    "d_k": {"attention_key_dim"},
    "dropout": {"dropout"},
    "attention_dropout": {"attention_dropout"},
    "label_smoothing": {"label_smoothing"},
    "learned_positions": {"learned_positions"},
    "updates": {"max_update"},
    "checkpoint_updates": {"save_interval_updates"},
    "averaged_checkpoints": {"keep_interval_updates"},
}


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "vaswani2017"])
def test_parsed_recipe_differs_from_base_only_where_the_row_does(name, data):
    base, row = parsed(data, "vaswani2017"), parsed(data, name)
    different = {key for key in base.keys() | row.keys() if base.get(key) != row.get(key)}
    expected = {"arch"}.union(*(ARGUMENTS[field] for field in differences(ARCHITECTURES[name])))
    assert different == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vaswani2017_b_dk16", "vaswani2017_e_learned", "vaswani2017_parsing"])
def test_fairseq_train_trains_it(name, data_bin, tmp_path):
    """At its full size, two updates of the real command."""
    output = succeed(
        "fairseq-train", data_bin, "--user-dir", PLUGIN, "--arch", name, "--max-update", 2, "--batch-size", 4,
        "--save-dir", tmp_path, "--no-save", "--disable-validation", "--log-format", "json", "--log-interval", 1,
    )
    entries = len((data_bin / "dict.a.txt").read_text().splitlines()) + 4
    assert f"num. shared model params: {ARCHITECTURES[name].parameters(entries):,} " in output
    assert '"num_updates": "2"' in output
