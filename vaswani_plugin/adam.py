"""Adam: Section 5.3, with beta_1 = 0.9, beta_2 = 0.98 and epsilon = 10^-9."""

import ast
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, List

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import Adam as StockAdam
from omegaconf import II

from . import toolkit


class Adam(torch.optim.AdamW):
    """Adam as its paper orders the computation at the end of its Section 2, each update one fused kernel.

    alpha_t = alpha * sqrt(1 - beta_2^t) / (1 - beta_1^t),  theta -= alpha_t * m / (sqrt(v) + epsilon).

    torch's kernel adds epsilon to the root of the corrected v instead (Algorithm 1 of that paper). With
    epsilon / sqrt(1 - beta_2^t) in its place both are the same. Weight decay, which the paper does not use, is
    AdamW's, as in fairseq's Adam.
    """

    def __init__(self, params, lr, betas, eps, weight_decay):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, **toolkit.fastest_adam())
        # Hooks, not a ``step`` of our own: around two of those torch would run the hooks of others twice.
        self.register_step_pre_hook(self._enlarge_epsilon)
        self.register_step_post_hook(self._restore_epsilon)

    @staticmethod
    def _enlarge_epsilon(optimizer, *_):
        optimizer._stated = [group["eps"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["updates"] = group.get("updates", 0) + 1
            group["eps"] = group["eps"] / math.sqrt(1 - group["betas"][1] ** group["updates"])

    @staticmethod
    def _restore_epsilon(optimizer, *_):
        for group, eps in zip(optimizer.param_groups, optimizer._stated):
            group["eps"] = eps

    @property
    def supports_flat_params(self):
        """fairseq asks: with fp16 it keeps all parameters in one vector."""
        return True


@dataclass
class VaswaniAdamConfig(FairseqDataclass):
    adam_betas: Any = field(default="(0.9, 0.98)", metadata={"help": "Section 5.3: (0.9, 0.98)"})
    adam_eps: float = field(default=1e-9, metadata={"help": "Section 5.3: 1e-9"})
    weight_decay: float = field(default=0.0, metadata={"help": "decoupled weight decay; the paper: none"})
    lr: List[float] = II("optimization.lr")


@register_optimizer("vaswani_adam", dataclass=VaswaniAdamConfig)
class VaswaniAdam(FairseqOptimizer):
    """:class:`Adam` for fairseq's Trainer."""

    def __init__(self, cfg, params):
        super().__init__(cfg)
        params = list(params)
        # with --memory-efficient-fp16 and -bf16 there are no float32 weights: fairseq's Adam computes in float32 all the same
        half = any(p.dtype in (torch.float16, torch.bfloat16) for p in params)
        self._optimizer = (StockAdam if half else Adam)(params, **self.optimizer_config)

    @property
    def optimizer_config(self):
        """What fairseq sets anew when a training goes on."""
        betas = self.cfg.adam_betas
        betas = ast.literal_eval(betas) if isinstance(betas, str) else betas
        return {
            "lr": self.cfg.lr[0] if isinstance(self.cfg.lr, Collection) else self.cfg.lr,
            "betas": tuple(betas),
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
        }
