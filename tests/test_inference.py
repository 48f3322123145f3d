"""Section 6.1."""

import pytest
import torch

from vaswani_plugin.inference import average_states, length_penalty


@pytest.mark.parametrize("length, value", [(1, 1.0), (5, 1.35866), (10, 1.73286), (20, 2.35436), (40, 3.34994)])
def test_the_length_penalty_of_wu_et_al(length, value):
    # ((5 + 10) / 6)^0.6 = 2.5^0.6 = e^(0.6 * 0.9162907) = 1.73286
    assert length_penalty(length, 0.6) == pytest.approx(value, abs=1e-5)


def test_alpha_0_is_no_penalty():
    assert length_penalty(17, 0.0) == 1.0


def test_the_average_is_the_arithmetic_mean():
    states = [{"a": torch.tensor([1.0, 2.0]), "n": torch.tensor([3])}, {"a": torch.tensor([4.0, 8.0]), "n": torch.tensor([3])}]
    mean = average_states(states)
    assert mean["a"].tolist() == [2.5, 5.0] and mean["a"].dtype == torch.float32
    assert mean["n"].tolist() == [3] and mean["n"].dtype == torch.int64


def test_half_precision_is_averaged_in_double():
    # In float16, 2048 + 1 is 2048; the mean of 2048, 1, 1 and 2 is 513.
    states = [{"a": torch.tensor([value], dtype=torch.float16)} for value in (2048.0, 1.0, 1.0, 2.0)]
    assert average_states(states)["a"].item() == 513.0


def test_mixtures_and_nothing_are_refused():
    with pytest.raises(ValueError, match="one model"):
        average_states([{"a": torch.ones(2)}, {"a": torch.ones(3)}])
    with pytest.raises(ValueError, match="one model"):
        average_states([{"a": torch.ones(2)}, {"b": torch.ones(2)}])
    with pytest.raises(ValueError, match="no checkpoint"):
        average_states([])
