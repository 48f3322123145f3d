"""The task ``vaswani_translation``: fairseq's translation with the paper's inference (Section 6.1).

    fairseq-generate DATA --user-dir vaswani_plugin --task vaswani_translation --path CHECKPOINT

searches with beam 4, ranks by log-probability / ((5 + length) / 6)^0.6 and gives each output at most
50 tokens more than its own source; every flag overrides. In training, batches depend on seed and
epoch alone, so that a resumed run sees those of an undisturbed one. Dictionaries and subword merges are
copied beside the checkpoints, and a checkpoint knows its dictionaries: with others it is not used.
"""

import argparse
import math
from dataclasses import dataclass, field

import torch
from fairseq import utils
from fairseq.dataclass import ChoiceEnum
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.utils import split_paths
from omegaconf import II

from .beam_search import BeamSearch
from .companions import copy_companions, fingerprint
from .errors import UserError
from .inference import PAPER_SEARCH, length_penalty


@dataclass
class VaswaniTranslationConfig(TranslationConfig):
    length_penalty: ChoiceEnum(["gnmt", "fairseq"]) = field(
        default="gnmt",
        metadata={
            "help": "what divides the log-probability of an output of n tokens:"
            " gnmt, ((5 + n) / 6)^lenpen (the paper's), or fairseq, n^lenpen"
        },
    )
    # No flag of the task: where the training saves its checkpoints.
    save_dir: str = II("checkpoint.save_dir")


@register_task("vaswani_translation", dataclass=VaswaniTranslationConfig)
class VaswaniTranslationTask(TranslationTask):
    """fairseq's translation task with the defaults, the search and the scores of Section 6.1."""

    @classmethod
    def add_args(cls, parser):
        super().add_args(parser)
        # With fairseq's batches of a multiple of 8 sentences, fairseq-generate leaves out up to 7 sentences.
        parser.set_defaults(required_batch_size_multiple=1, **PAPER_SEARCH)

    def can_reuse_epoch_itr(self, dataset):
        """No: an iterator kept from an earlier epoch holds that epoch's batches, a resumed run has none to keep."""
        return False

    def begin_epoch(self, epoch, model):
        """Called by training alone: what belongs to the model is put beside its checkpoints."""
        super().begin_epoch(epoch, model)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not distributed or torch.distributed.get_rank() == 0:
            copy_companions(split_paths(self.cfg.data)[0], self.cfg.save_dir)

    def state_dict(self):
        """What checkpoints keep of the task: which dictionaries it had."""
        return {**super().state_dict(), "dictionaries": self._dictionaries()}

    def load_state_dict(self, state_dict):
        """Raises ``UserError``: the checkpoint was trained with other dictionaries."""
        state = dict(state_dict)
        if state.pop("dictionaries", self._dictionaries()) != self._dictionaries():
            raise UserError(
                f"the checkpoint was trained with other dictionaries than those in {self.cfg.data}: give the data directory"
                " of its training, or the folder where it was saved, which has a copy of them."
            )
        super().load_state_dict(state)

    def _dictionaries(self):
        return [fingerprint(self.source_dictionary), fingerprint(self.target_dictionary)]

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None,
                        prefix_allowed_tokens_fn=None):
        """The search that the options in ``args`` ask for; what they leave out is the paper's.

        Plain beam search is :class:`~vaswani_plugin.beam_search.BeamSearch`. Sampling, constraints, diverse
        beams, blocked n-grams and language models are searches of fairseq, with this task's scores; there
        the longest source of a batch sets the length limit.
        """
        given = vars(args) if isinstance(args, argparse.Namespace) else dict(args)
        options = argparse.Namespace(**{**PAPER_SEARCH, **given})
        extra = {name: value for name, value in (extra_gen_cls_kwargs or {}).items() if value is not None}
        penalty = self._penalty(options)
        if getattr(options, "score_reference", False):
            alignment = getattr(options, "print_alignment", None)
            return ReferenceScorer(self.target_dictionary, penalty, compute_alignment=bool(alignment))
        if seq_gen_cls is None and prefix_allowed_tokens_fn is None and is_plain_beam_search(options, extra):
            search = BeamSearch(
                models,
                self.target_dictionary,
                beam=options.beam,
                penalty=penalty,
                max_len_a=options.max_len_a,
                max_len_b=options.max_len_b,
                min_len=getattr(options, "min_len", 1),
                nbest=getattr(options, "nbest", 1),
                unk_penalty=getattr(options, "unkpen", 0),
                temperature=getattr(options, "temperature", 1.0),
                symbols_to_strip_from_output=extra.get("symbols_to_strip_from_output"),
            )
            alignment = getattr(options, "print_alignment", None)
            return Aligned(search, models, alignment) if alignment else search
        if seq_gen_cls is None:
            extra["penalty"] = penalty
            seq_gen_cls = PenalisedGenerator
            if getattr(options, "print_alignment", None):
                seq_gen_cls = PenalisedGeneratorWithAlignment
                extra["print_alignment"] = options.print_alignment
        generator = super().build_generator(models, options, seq_gen_cls, extra, prefix_allowed_tokens_fn)
        generator.max_len_b -= generator.max_len_a  # fairseq counts the end token of the source
        if generator.repeat_ngram_blocker is not None:
            generator.repeat_ngram_blocker = RepeatBlock(options.no_repeat_ngram_size)
        return generator

    def _penalty(self, options):
        alpha = options.lenpen
        if getattr(options, "unnormalized", False):
            return lambda length: 1.0
        if str(self.cfg.length_penalty) == "fairseq":
            return lambda length: length**alpha
        return lambda length: length_penalty(length, alpha)


def is_plain_beam_search(options, extra):
    """Whether ``BeamSearch`` does all that is asked for."""
    return not (
        getattr(options, "sampling", False)
        or getattr(options, "diverse_beam_groups", -1) > 0
        or getattr(options, "diversity_rate", -1) > -1
        or getattr(options, "match_source_len", False)
        or getattr(options, "constraints", None)
        or getattr(options, "prefix_allowed_tokens_fn", None)
        or getattr(options, "no_repeat_ngram_size", 0) > 0
        or getattr(options, "unkpen", 0) < 0
        or extra.keys() - {"lm_weight", "symbols_to_strip_from_output"}
    )


class _Penalised:
    """Divides log-probabilities by our penalty where fairseq divides by ``length ** len_penalty``."""

    def __init__(self, *args, penalty, **kwargs):
        super().__init__(*args, **kwargs)
        self.penalty = penalty

    def finalize_hypos(self, step, *args, **kwargs):
        length = step + 1
        self.len_penalty = math.log(self.penalty(length)) / math.log(length) if length > 1 else 0.0
        return super().finalize_hypos(step, *args, **kwargs)


class PenalisedGenerator(_Penalised, SequenceGenerator):
    pass


class PenalisedGeneratorWithAlignment(_Penalised, SequenceGeneratorWithAlignment):
    pass


class RepeatBlock(torch.nn.Module):
    """``--no-repeat-ngram-size``: forbids tokens that would complete an n-gram of ``size`` for the second time.

    fairseq's own (on CPUs) compares the end of its buffer, which is padding, and so forbids nothing.
    """

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, tokens, lprobs, bsz, beam_size, step):
        """``lprobs [rows, entries]`` with ``-inf`` where a token would repeat; ``tokens [rows, time]``, all read."""
        for row, read in enumerate(tokens[:, 1 : step + 1].tolist()):
            begun = read[len(read) - self.size + 1 :] if self.size > 1 else []
            for first in range(len(read) - self.size + 1):
                *before, last = read[first : first + self.size]
                if before == begun:
                    lprobs[row, last] = -math.inf
        return lprobs


class ReferenceScorer(SequenceScorer):
    """fairseq's ``--score-reference`` with this task's scores, so that references compare with outputs."""

    def __init__(self, dictionary, penalty, compute_alignment=False):
        super().__init__(dictionary, compute_alignment=compute_alignment)
        self.penalty = penalty

    def generate(self, models, sample, **kwargs):
        """The references as hypotheses, in the form of ``BeamSearch.generate``."""
        hypotheses = super().generate(models, sample, **kwargs)
        for hypothesis in (hypothesis for of_sentence in hypotheses for hypothesis in of_sentence):
            log_probs = hypothesis["positional_scores"]
            hypothesis["score"] = log_probs.sum() / self.penalty(log_probs.numel())
        return hypotheses


class Aligned:
    """``--print-alignment``: adds to each hypothesis which source token each of its tokens looks at.

    The weights are those of the last encoder-decoder attention, averaged over heads.
    """

    def __init__(self, search, models, kind):
        self.search, self.models = search, models
        self.symbols_to_strip_from_output = search.symbols_to_strip_from_output
        self.extract = utils.extract_soft_alignment if kind == "soft" else utils.extract_hard_alignment

    @torch.no_grad()
    def generate(self, models, sample, **kwargs):
        """As ``BeamSearch.generate``, with ``attention [source, target]`` and ``alignment`` filled as in fairseq."""
        self._want_attention(False)
        finished = self.search.generate(models, sample, **kwargs)
        self._want_attention(True)
        for source, hypotheses in zip(sample["net_input"]["src_tokens"], finished):
            source = utils.strip_pad(source, self.search.pad)
            for hypothesis in hypotheses:
                weights = self._weights(source, hypothesis["tokens"])
                hypothesis["attention"] = weights.t()
                hypothesis["alignment"] = self.extract(
                    weights.cpu(), source.cpu(), hypothesis["tokens"].cpu(), self.search.pad, self.search.eos
                )
        return finished

    def _want_attention(self, wanted):
        for model in self.models:
            model.decoder.need_attn = wanted

    def _weights(self, source, target):
        """``[target, source]``, the mean of the models."""
        shifted = target.roll(1)  # the end token comes first
        lengths = source.new_tensor([source.numel()])
        outputs = [model(source.unsqueeze(0), lengths, shifted.unsqueeze(0)) for model in self.models]
        return torch.stack([extra["attn"][0][0].float() for _, extra in outputs]).mean(dim=0)
