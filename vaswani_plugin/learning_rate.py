"""The learning rate: Section 5.3.

    lrate = d_model^-0.5 * min(step_num^-0.5, step_num * warmup_steps^-1.5)  (Eq. 3)
"""

from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from .errors import UserError


def inverse_sqrt_rate(step, d_model, warmup=4000, factor=1.0):
    """Eq. 3 for update ``step``, counted from 1, times ``factor``.

    The rate rises linearly to ``factor * (d_model * warmup)^-0.5`` at ``step = warmup`` and
    falls with the inverse square root of ``step`` from there.
    """
    if step < 1:
        raise ValueError(f"updates are counted from 1, not {step}: Eq. 3 is not defined at 0")
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


@dataclass
class VaswaniInverseSqrtConfig(FairseqDataclass):
    warmup_updates: int = field(
        default=4000, metadata={"help": "updates over which the learning rate rises linearly (Eq. 3)"}
    )
    lr_factor: float = field(
        default=1.0, metadata={"help": "factor on Eq. 3 (the paper: 1); --lr has no part in it"}
    )
    # Without help text this becomes no flag: it is the d_model of whatever model is trained.
    encoder_embed_dim: int = II("model.encoder_embed_dim")


@register_lr_scheduler("vaswani_inverse_sqrt", dataclass=VaswaniInverseSqrtConfig)
class VaswaniInverseSqrt(FairseqLRScheduler):
    """Eq. 3 as applied: the first update of a training runs at ``step_num`` 1.

    ``--lr`` is not used, since Eq. 3 states the rate itself.

    Raises:
        UserError: ``--warmup-updates`` below 1, or ``--lr-factor`` not positive
    """

    def __init__(self, cfg, optimizer):
        super().__init__(cfg, optimizer)
        check(cfg.warmup_updates, cfg.lr_factor)

    def step_update(self, num_updates):
        """Called by fairseq with the number of updates *done*; sets the rate of the next one."""
        rate = inverse_sqrt_rate(
            num_updates + 1, self.cfg.encoder_embed_dim, self.cfg.warmup_updates, self.cfg.lr_factor
        )
        self.optimizer.set_lr(rate)
        return rate


def check(warmup_updates, lr_factor):
    """Refuse a schedule that Eq. 3 cannot compute, with a ``UserError``."""
    if warmup_updates < 1:
        raise UserError(
            f"--warmup-updates must be at least 1, not {warmup_updates}: Eq. 3 divides by it"
            " (1 means decay from the first update on)"
        )
    if not lr_factor > 0:
        raise UserError(f"--lr-factor must be positive, not {lr_factor}")
