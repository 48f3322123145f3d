"""fairseq's choices, one by one, on this plugin's model: to see which deviation of its transformer matters.

    fairseq-train DATA --user-dir vaswani_plugin --arch vaswani2017_deviating --fairseq-positions ...

``--attention-bias`` and ``--layer-norm-eps 1e-5`` belong to the model itself; here are the two that do not. With all four
the model computes what fairseq's ``transformer`` does. Nobody needs them who does not compare (``scripts/compare.py``).
"""

import math
from dataclasses import dataclass, field

from fairseq.models import register_model, register_model_architecture
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import nn

from . import recipe
from .architectures import Architecture
from .attention import MultiHeadAttention
from .config import VaswaniConfig
from .feed_forward import FeedForward
from .transformer import VaswaniModel


@dataclass
class DeviatingConfig(VaswaniConfig):
    fairseq_positions: bool = field(
        default=False,
        metadata={"help": "fairseq's sinusoids: sines before cosines, wavelengths up to 10000 * 2 pi, first position 2"},
    )
    fairseq_initialisation: bool = field(
        default=False,
        metadata={"help": "fairseq's: Xavier-uniform attention, smaller queries, keys and values, random biases"},
    )


class FairseqSinusoids(nn.Module):
    """The rows that fairseq's ``transformer`` adds; stands in for ``SinusoidalPositions``."""

    def __init__(self, d_model, length, padding):
        super().__init__()
        table = SinusoidalPositionalEmbedding.get_embedding(padding + 1 + length, d_model, padding)
        self.register_buffer("table", table[padding + 1 :], persistent=False)

    def forward(self, length, like):
        """``[length, d_model]``, the rows of the first ``length`` tokens of a sentence, in the type of ``like``."""
        return self.table[:length].to(like.dtype)


def initialise_as_fairseq(model):
    """Draw all weights of a ``VaswaniModel`` as fairseq's ``MultiheadAttention`` and ``transformer`` do."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            for matrix in module.projection.weight.split(module.sizes):
                nn.init.xavier_uniform_(matrix, gain=1 / math.sqrt(2))
            nn.init.xavier_uniform_(module.output.weight)
            if module.projection.bias is not None:
                bound = module.projection.in_features**-0.5
                nn.init.uniform_(module.projection.bias, -bound, bound)
                nn.init.zeros_(module.output.bias)
        elif isinstance(module, FeedForward):
            nn.Linear.reset_parameters(module.inner)
            nn.Linear.reset_parameters(module.outer)
    for stack in (model.encoder, model.decoder):
        nn.init.zeros_(stack.embedding.weight[stack.padding].detach())


@register_model("vaswani_deviating", dataclass=DeviatingConfig)
class DeviatingModel(VaswaniModel):
    """``VaswaniModel`` with choices of fairseq's that no reader of the paper would make."""

    @classmethod
    def build_model(cls, cfg, task):
        """As in ``VaswaniModel``; ``cfg`` holds the fields of :class:`DeviatingConfig`."""
        model = super().build_model(cfg, task)
        if cfg.fairseq_positions:
            for stack in (model.encoder, model.decoder):
                stack.positions = FairseqSinusoids(cfg.encoder_embed_dim, stack.limit, stack.padding)
        if cfg.fairseq_initialisation:
            initialise_as_fairseq(model)
        return model


@register_model_architecture("vaswani_deviating", "vaswani2017_deviating")
def deviating(args):
    recipe.apply(args, "vaswani2017_deviating", Architecture())
