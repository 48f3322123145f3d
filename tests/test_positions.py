"""Section 3.5."""

import math

import pytest
import torch

from vaswani_plugin.positions import LearnedPositions, SinusoidalPositions, sinusoids, token_positions


def test_the_table_by_hand():
    table = sinusoids(3, 4, torch.float64)
    assert table[0].tolist() == [0.0, 1.0, 0.0, 1.0]
    # 10000^(2/4) = 100
    expected = [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)]
    torch.testing.assert_close(table[2], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)


def test_single_precision_is_cast_from_double_at_every_position():
    exact, single = sinusoids(5000, 512, torch.float64), sinusoids(5000, 512, torch.float32)
    assert torch.equal(single, exact.float())


def test_padding_on_either_side_does_not_count():
    padding = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    assert token_positions(padding).tolist() == [[0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 2, 3], [0, 0, 0, 0]]


def test_the_table_follows_type_and_length_without_being_a_parameter():
    positions = SinusoidalPositions(4)
    assert not list(positions.parameters()) and not positions.state_dict()
    single = positions(2, like=torch.zeros(1))
    assert single.dtype == torch.float32
    double = positions.double()(1500, like=torch.zeros(1, dtype=torch.float64))
    assert torch.equal(double, sinusoids(1500, 4, torch.float64))
    with pytest.raises(ValueError, match="even, not 3"):
        SinusoidalPositions(3)


def test_learned_positions_end():
    positions = LearnedPositions(4, 8)
    assert torch.equal(positions(3, like=torch.zeros(1)), positions.table[:3])
    with pytest.raises(ValueError, match="end at 8; a sentence has 9"):
        LearnedPositions(4, 8)(9, like=torch.zeros(1))
