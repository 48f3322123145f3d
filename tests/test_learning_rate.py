"""Section 5.3: Eq. 3, and the rate that an optimizer really steps with."""

from argparse import Namespace

import pytest
import torch
from omegaconf import OmegaConf

from vaswani_plugin.errors import UserError
from vaswani_plugin.learning_rate import VaswaniInverseSqrt, check, inverse_sqrt_rate

# step: rate, for d_model 512 and 4000 warm-up updates; 512^-0.5 = 0.04419417382, 4000^-1.5 = 3.952847075e-6
BY_HAND = {
    1: 1.746928107e-7,
    2: 3.493856214e-7,
    3: 5.240784322e-7,
    3999: 6.985965501e-4,
    4000: 6.987712430e-4,
    4001: 6.986839129e-4,
    100_000: 1.397542486e-4,
}


@pytest.mark.parametrize("step", BY_HAND)
def test_equation_3(step):
    assert inverse_sqrt_rate(step, 512) == pytest.approx(BY_HAND[step], rel=1e-9)


def test_the_big_models_peak_and_end():
    assert inverse_sqrt_rate(4000, 1024) == pytest.approx(4.941058844e-4, rel=1e-9)
    assert inverse_sqrt_rate(300_000, 1024) == pytest.approx(5.705443308e-5, rel=1e-9)


def test_warm_up_of_one_is_pure_decay_and_step_0_is_refused():
    assert [inverse_sqrt_rate(step, 4, warmup=1) for step in (1, 4)] == [0.5, 0.25]
    with pytest.raises(ValueError, match="counted from 1, not 0"):
        inverse_sqrt_rate(0, 512)


@pytest.mark.parametrize(
    "warmup, factor, sentence",
    [(0, 1.0, "--warmup-updates must be at least 1, not 0"), (-5, 1.0, "at least 1, not -5"),
     (4000, 0.0, "--lr-factor must be positive, not 0.0"), (4000, float("nan"), "--lr-factor must be positive")],
)
def test_impossible_schedules_are_refused(warmup, factor, sentence):
    with pytest.raises(UserError, match=sentence):
        check(warmup, factor)


def test_the_rate_as_applied_counts_from_step_1():
    """Driven as fairseq's trainer does: ``step_update(0)`` once, then after each update with their number."""
    from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

    parameter = torch.nn.Parameter(torch.ones(1))
    config = OmegaConf.structured(FairseqAdamConfig(adam_betas="(0.9, 0.98)", adam_eps=1e-9, tpu=False, lr=[0.25]))
    optimizer = FairseqAdam(config, [parameter])
    schedule = VaswaniInverseSqrt(Namespace(warmup_updates=4000, lr_factor=2.0, encoder_embed_dim=512), optimizer)
    applied = []
    schedule.step_update(0)
    for update in range(1, 4):
        parameter.grad = torch.ones(1)
        applied.append(optimizer.optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step_update(update)
    assert applied == pytest.approx([2 * BY_HAND[step] for step in (1, 2, 3)], rel=1e-9)
