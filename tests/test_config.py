"""Sizes that make no model are refused in one sentence."""

import pytest

from vaswani_plugin.config import VaswaniConfig
from vaswani_plugin.errors import UserError


def test_widths_of_a_head_default_to_d_model_over_h():
    sizes = VaswaniConfig(encoder_embed_dim=24, encoder_attention_heads=6, attention_value_dim=7).layer_sizes()
    assert (sizes.d_k, sizes.d_v) == (4, 7)


def test_given_widths_need_no_division():
    config = VaswaniConfig(encoder_embed_dim=10, encoder_attention_heads=4, attention_key_dim=3, attention_value_dim=2)
    assert (config.layer_sizes().d_k, config.layer_sizes().d_v) == (3, 2)


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"encoder_attention_heads": 7}, "--encoder-embed-dim 512 is not divisible by --encoder-attention-heads 7"),
        ({"encoder_embed_dim": 9, "encoder_attention_heads": 3}, "--encoder-embed-dim must be even, not 9"),
        ({"encoder_layers": 0}, "--encoder-layers must be at least 1, not 0"),
        ({"decoder_layers": -1}, "--decoder-layers must be at least 1, not -1"),
        ({"encoder_ffn_embed_dim": 0}, "--encoder-ffn-embed-dim must be at least 1"),
        ({"encoder_attention_heads": 0}, "--encoder-attention-heads must be at least 1"),
        ({"attention_key_dim": -4}, "--attention-key-dim must not be negative, and is -4"),
        ({"dropout": 1.0}, r"--dropout must lie in \[0, 1\), and is 1.0"),
        ({"attention_dropout": -0.1}, r"--attention-dropout must lie in \[0, 1\)"),
        ({"dropout": float("nan")}, r"--dropout must lie in \[0, 1\), and is nan"),
    ],
)
def test_bad_sizes(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        VaswaniConfig(**changes).layer_sizes()
