"""Label smoothing: Section 5.4, after Szegedy et al. 2015, which the paper cites.

    q(k) = (1 - eps) [k = gold] + eps / K                  over all K entries of the dictionary
    loss = - sum_k q(k) log p(k)
"""

import math
import sys
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from omegaconf import II
from torch.autograd.function import once_differentiable

from . import toolkit
from .errors import UserError

# Rows of logits that are held at a time: enough for full-speed products, few enough for memory
# and, on a CPU, for its caches.
ROWS = 384
# oneDNN's product takes fresh memory each time: rows so few that it is what was given back the time before.
PRODUCT_ROWS = 128
# float16 has no room for eps / K: what goes into its products is held larger by this, its sums still in range.
HALF_SCALE = 32


def smoothed_targets(gold, entries, smoothing, dtype=torch.float32):
    """The distribution ``q`` for each position: ``[positions, entries]``, rows sum to one."""
    q = torch.full((gold.numel(), entries), smoothing / entries, dtype=dtype, device=gold.device)
    q[torch.arange(gold.numel(), device=gold.device), gold] += 1 - smoothing
    return q


def smoothed_loss(logits, gold, smoothing, padding=None):
    """Loss and negative log-likelihood of each position, in nats, from all logits at once.

    Args:
        logits: ``[positions, entries]``
        gold: ``[positions]``; where it equals ``padding`` both results are 0

    Returns:
        two tensors ``[positions]``
    """
    log_p = logits.log_softmax(dim=-1, dtype=_accumulator(logits.dtype))
    nll = -log_p.gather(-1, gold.unsqueeze(-1)).squeeze(-1)
    loss = (1 - smoothing) * nll - smoothing * log_p.mean(dim=-1)
    if padding is not None:
        is_padding = gold.eq(padding)
        nll, loss = nll.masked_fill(is_padding, 0.0), loss.masked_fill(is_padding, 0.0)
    return loss, nll


def _accumulator(dtype):
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class _ProjectedLoss(torch.autograd.Function):
    """Sum of the smoothed loss over rows, and both gradients, a block of rows at a time.

    The gradient with respect to a row of logits is ``p - q``; it is ready as soon as the loss is,
    so that no more than one block of logits exists at any moment, and becomes in place the block's
    probabilities and then its gradient. One buffer serves all blocks, since on CPUs fresh memory costs
    more than the arithmetic in it.
    """

    @staticmethod
    def forward(ctx, features, weight, gold, smoothing, padding):
        with toolkit.no_autocast(features.device.type) as dtype:
            return _ProjectedLoss._forward(ctx, features, weight, gold, smoothing, padding, dtype or features.dtype)

    @staticmethod
    def _forward(ctx, features, weight, gold, smoothing, padding, dtype):
        entries = weight.size(0)
        wide = _accumulator(dtype)
        matrix = weight.to(dtype)
        real = gold.ne(padding).nonzero().squeeze(1)
        # Not in float16: they are multiplied by the loss scale only in the backward pass.
        grad_features = torch.zeros_like(features, dtype=wide) if ctx.needs_input_grad[0] else None
        scale = HALF_SCALE if dtype == torch.float16 else 1
        grad_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        blocks = real.chunk(max(1, math.ceil(real.numel() / ROWS)))
        onednn = toolkit.has_onednn_products(features, matrix)
        product = torch.empty(blocks[0].numel(), entries, dtype=dtype, device=features.device)
        buffer = product if wide == dtype else torch.empty_like(product, dtype=wide)
        # Two tensors, not views of one: where a worker has no batch left, fairseq multiplies its loss by 0 in place.
        loss, nll = (torch.zeros((), dtype=wide, device=features.device) for _ in range(2))
        for index in blocks:
            x, gold_entry = features[index].to(dtype), gold[index].unsqueeze(1)
            block = slice(0, index.numel())
            logits = buffer[block]
            if onednn:
                for few, rows in zip(x.split(PRODUCT_ROWS), logits.split(PRODUCT_ROWS)):
                    few = toolkit.onednn_product(few, matrix)
                    torch.sub(few, few.amax(dim=1, keepdim=True), out=rows)
            else:
                torch.mm(x, matrix.t(), out=product[block])
                if wide != dtype:
                    logits.copy_(product[block])
                logits.sub_(logits.amax(dim=1, keepdim=True))
            gold_logit, mean_logit = logits.gather(1, gold_entry), logits.mean(dim=1, keepdim=True)
            exponentials = logits.exp_()
            normalizer = exponentials.sum(dim=1, keepdim=True)
            nll_of_row = normalizer.log() - gold_logit
            nll += nll_of_row.sum()
            loss += (nll_of_row + smoothing * (gold_logit - mean_logit)).sum()
            if grad_features is None and grad_weight is None:
                continue
            grad = exponentials.div_(normalizer).sub_(smoothing / entries)
            grad.scatter_add_(1, gold_entry, grad.new_full(gold_entry.shape, smoothing - 1))
            if wide != dtype:
                grad = product[block].copy_(grad.mul_(scale))
            if grad_features is not None:
                of_x = toolkit.onednn_product(grad, matrix.t()) if onednn else grad @ matrix
                grad_features[index] = of_x.to(wide).div_(scale)
            if grad_weight is not None:
                if wide == dtype:
                    grad_weight.addmm_(grad.t(), x)
                else:
                    grad_weight.add_(grad.t() @ x, alpha=1 / scale)
        ctx.gradients = grad_features, grad_weight
        ctx.types = features.dtype, weight.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss, _grad_nll):
        if ctx.gradients is None:
            raise RuntimeError("projected_smoothed_loss allows one backward pass: compute the loss again")
        gradients, ctx.gradients = ctx.gradients, None
        scaled = [None if grad is None else grad.mul_(grad_loss).to(dtype) for grad, dtype in zip(gradients, ctx.types)]
        return *scaled, None, None, None


def projected_smoothed_loss(features, weight, gold, smoothing, padding):
    """Sums of loss and negative log-likelihood, in nats, of ``softmax(features weight^T)``.

    Equal to the sums of :func:`smoothed_loss` of those logits, without ever holding them all;
    padding positions add nothing and are not computed. The gradient flows through the loss.

    Args:
        features: ``[..., d_model]``
        weight: ``[entries, d_model]``
        gold: ``[...]``, as many as there are features
    """
    if not torch.is_grad_enabled():  # in validation, where a function of autograd still sees that the weight has a gradient
        features, weight = features.detach(), weight.detach()
    return _ProjectedLoss.apply(features.flatten(0, -2), weight, gold.flatten(), smoothing, padding)


@dataclass
class VaswaniLabelSmoothingConfig(FairseqDataclass):
    label_smoothing: float = field(default=0.1, metadata={"help": "eps of Section 5.4; 0: cross-entropy"})
    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("vaswani_label_smoothed_cross_entropy", dataclass=VaswaniLabelSmoothingConfig)
class VaswaniLabelSmoothedCrossEntropy(FairseqCriterion):
    """Label-smoothed cross-entropy for any model whose decoder ends in ``output_projection``.

    Raises:
        UserError: ``--label-smoothing`` outside [0, 1)
    """

    def __init__(self, task, label_smoothing, sentence_avg=False):
        super().__init__(task)
        check(label_smoothing)
        self.label_smoothing = label_smoothing
        self.sentence_avg = sentence_avg

    def forward(self, model, sample, reduce=True):
        """fairseq's triple: loss in nats (summed, or with ``reduce=False`` one per position),
        the size that divides its gradient, and what is logged."""
        gold = sample["target"]
        features, _ = model(**sample["net_input"], features_only=True)
        projection = model.decoder.output_projection
        if reduce and projection.bias is None:
            loss, nll = projected_smoothed_loss(
                features, projection.weight, gold, self.label_smoothing, self.padding_idx
            )
        else:
            logits = projection(features).flatten(0, -2)
            loss, nll = smoothed_loss(logits, gold.flatten(), self.label_smoothing, self.padding_idx)
            if reduce:
                loss, nll = loss.sum(), nll.sum()
        self._name_what_is_not_finite(loss, model, sample)
        sample_size = gold.size(0) if self.sentence_avg else sample["ntokens"]
        return loss, sample_size, {
            "loss": loss.detach(),
            "nll_loss": nll.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": gold.size(0),
            "sample_size": sample_size,
        }

    @staticmethod
    def _name_what_is_not_finite(loss, model, sample):
        """When fairseq has met a gradient that is not finite, it saves ``crash.pt`` and computes the update again.

        Only then do we look at the loss: in every update it would make a GPU wait.
        """
        if isinstance(sys.exc_info()[1], FloatingPointError) and not loss.isfinite().all():
            update = getattr(model, "num_updates", 0) + 1
            sentences = ", ".join(map(str, sample["id"].tolist()))
            raise UserError(
                f"the loss of update {update} is {loss.sum().item()}; the state before it is saved as crash.pt in"
                " --save-dir; lower --lr-factor, give --clip-norm, or look at the training sentences of this batch"
                f" (counted from 0): {sentences}"
            )

    @staticmethod
    def reduce_metrics(logging_outputs):
        """Logs loss and nll_loss per token in bits, like fairseq's criteria, and the perplexity of the latter."""
        loss = sum(log["loss"] for log in logging_outputs)
        nll = sum(log["nll_loss"] for log in logging_outputs)
        tokens = sum(log["ntokens"] for log in logging_outputs)
        sample_size = sum(log["sample_size"] for log in logging_outputs)
        metrics.log_scalar("loss", loss / sample_size / math.log(2), sample_size, round=3)
        metrics.log_scalar("nll_loss", nll / tokens / math.log(2), tokens, round=3)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))

    @staticmethod
    def logging_outputs_can_be_summed():
        """The logged sums of several workers may be added before ``reduce_metrics``."""
        return True


def check(label_smoothing):
    """Refuse a smoothing that is no probability, with a ``UserError``."""
    if not 0 <= label_smoothing < 1:
        raise UserError(f"--label-smoothing must lie in [0, 1), and is {label_smoothing}")
