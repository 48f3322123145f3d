"""The models that benchmark.py compares, each trained and asked to translate through fairseq's own Trainer and task.

    ours   this plugin's model, criterion, optimizer, schedule and task
    stock  fairseq's transformer of the same sizes, its label-smoothed criterion, Adam and inverse-sqrt schedule
    torch  torch.nn.Transformer of the same sizes with fairseq's criterion and Adam (training steps only)

All have one matrix for source, target and output, and the same dropout.
"""

import argparse
import math
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.models import BaseFairseqModel
from fairseq.tasks import TASK_REGISTRY
from fairseq.trainer import Trainer
from torch import nn
from torch.nn import functional as F

from vaswani_plugin import toolkit
from vaswani_plugin.architectures import ARCHITECTURES
from vaswani_plugin.positions import SinusoidalPositions

SIDES = ("ours", "stock", "torch")
PAD, EOS, FIRST_WORD = 1, 2, 4


@dataclass(frozen=True)
class Case:
    """What is measured: a model and batches. Sentences have `words` tokens, the end included, or with `mixed` between
    half and one and a half times as many; a batch has as many sentences as fit into `tokens` target tokens."""

    model: str = "base"
    entries: int = 37_000
    words: int = 32
    tokens: int = 1_000
    mixed: bool = False
    beam: int = 0
    steps: int = 0

    @property
    def architecture(self):
        return "vaswani2017" if self.model == "base" else f"vaswani2017_{self.model}"

    @property
    def sentences(self):
        return max(1, self.tokens // self.words)

    def __str__(self):
        size = f"{self.model}, V={self.entries}"
        if self.beam:
            return f"{size}, batch {self.sentences}, beam {self.beam}, {self.words}-word sources, {self.steps} steps"
        words = f"{self.words // 2}-{self.words * 3 // 2}" if self.mixed else f"{self.words}"
        return f"{size}, {self.sentences * self.words} tokens of {words}-word sentences"


def write_dictionaries(folder, entries):
    """A data directory that holds no more than a joined dictionary of `entries` made-up words."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"w{number} 1\n" for number in range(entries - FIRST_WORD))
    for language in "ab":
        (folder / f"dict.{language}.txt").write_text(text)
    return folder


def batch(case, seed=1):
    """A batch of random sentences as fairseq collates them: sources padded on the left, targets on the right."""
    generator = random.Random(seed)
    low, high = (case.words // 2, case.words * 3 // 2) if case.mixed else (case.words, case.words)

    def sentences():
        lengths = [generator.randint(low, high) for _ in range(case.sentences)]
        return [[generator.randrange(FIRST_WORD, case.entries) for _ in range(n - 1)] + [EOS] for n in lengths]

    def padded(rows, left=False):
        width = max(map(len, rows))
        fill = [[PAD] * (width - len(row)) for row in rows]
        return torch.tensor([pad + row if left else row + pad for row, pad in zip(rows, fill)])

    source, target = sentences(), sentences()
    net_input = {
        "src_tokens": padded(source, left=True),
        "src_lengths": torch.tensor([len(row) for row in source]),
        "prev_output_tokens": padded([[EOS] + row[:-1] for row in target]),
    }
    return {
        "id": torch.arange(len(source)),
        "nsentences": len(source),
        "ntokens": sum(map(len, target)),
        "net_input": net_input,
        "target": padded(target),
    }


class TorchTransformer(BaseFairseqModel):
    """torch.nn.Transformer with embeddings, positions and output as in the paper. It norms the ends of both stacks."""

    def __init__(self, sizes, entries, dropout):
        super().__init__()
        self.embedding = nn.Embedding(entries, sizes.d_model)
        nn.init.normal_(self.embedding.weight, std=sizes.d_model**-0.5)
        self.positions = SinusoidalPositions(sizes.d_model)
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(
            sizes.d_model, sizes.heads, sizes.layers, sizes.layers, sizes.d_ff, dropout, batch_first=True
        )

    def _embed(self, tokens):
        x = math.sqrt(self.embedding.embedding_dim) * self.embedding(tokens)
        return self.dropout(x + self.positions(tokens.size(1), like=x))

    def forward(self, src_tokens, src_lengths, prev_output_tokens):
        length = prev_output_tokens.size(1)
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=src_tokens.device).bool()
        padding = src_tokens.eq(PAD)
        padding = padding if padding.any() else None
        x = self.transformer(
            self._embed(src_tokens), self._embed(prev_output_tokens), tgt_mask=causal, tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )
        return F.linear(x, self.embedding.weight), None

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        return F.log_softmax(net_output[0], dim=-1, dtype=torch.float32)

    def max_positions(self):
        return 1_000_000, 1_000_000


def command_line(side, case, folder, device, precision):
    """The flags of `fairseq-train` for one side."""
    sizes = ARCHITECTURES[case.architecture]
    flags = [
        str(folder), "--source-lang", "a", "--target-lang", "b", "--no-progress-bar", "--log-format", "none",
        "--max-tokens", "1000000", "--max-update", "1000000", "--warmup-updates", "4000", "--clip-norm", "0",
        "--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-9", "--label-smoothing", "0.1",
        "--dropout", str(sizes.dropout), "--max-source-positions", "4096", "--max-target-positions", "4096",
    ]
    flags += ["--cpu"] if device == "cpu" else []
    flags += {"fp32": [], "bf16": ["--bf16"], "fp16": ["--fp16"]}[precision]
    if side == "ours":
        flags += ["--arch", case.architecture]
        return flags + (["--task", "vaswani_translation"] if "vaswani_translation" in TASK_REGISTRY else [])
    flags += ["--arch", "transformer", "--task", "translation", "--share-all-embeddings", "--optimizer", "adam"]
    flags += ["--criterion", "label_smoothed_cross_entropy", "--lr-scheduler", "inverse_sqrt", "--lr", "7e-4"]
    for stack in ("encoder", "decoder"):
        flags += [f"--{stack}-embed-dim", str(sizes.d_model), f"--{stack}-ffn-embed-dim", str(sizes.d_ff)]
        flags += [f"--{stack}-layers", str(sizes.layers), f"--{stack}-attention-heads", str(sizes.heads)]
    return flags


class Side:
    """One model, built as `fairseq-train` builds it."""

    def __init__(self, side, case, folder, device="cpu", precision="fp32", extra=()):
        flags = command_line(side, case, folder, device, precision)
        args = options.parse_args_and_arch(options.get_training_parser(), input_args=[*flags, *extra])
        toolkit.undo_tpu_for_bf16(args)
        self.config = convert_namespace_to_omegaconf(args)
        torch.manual_seed(1)
        self.task = tasks.setup_task(self.config.task)
        self.device = device
        if side == "torch":
            model = TorchTransformer(ARCHITECTURES[case.architecture], case.entries, self.config.model.dropout)
        else:
            model = self.task.build_model(self.config.model)
        self.trainer = Trainer(self.config, self.task, model, self.task.build_criterion(self.config.criterion))
        self.trainer.lr_step_begin_epoch(1)

    def synchronize(self):
        """Wait for the device, so that a clock read afterwards is right."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def train_step(self, sample):
        """One update, as fairseq's Trainer makes it; returns the loss in bits per token."""
        with metrics.aggregate(new_root=True):
            logged = self.trainer.train_step([sample])
        return logged and logged["loss"]

    def valid_step(self, sample):
        """The losses of one batch, as in validation."""
        with metrics.aggregate(new_root=True):
            self.trainer.valid_step(sample)

    def generator(self, case):
        """A function that translates a batch by a beam search of exactly `case.steps` steps; gives the outputs' lengths."""
        search = argparse.Namespace(
            beam=case.beam, nbest=1, max_len_a=0, max_len_b=case.steps - 1, min_len=case.steps - 1, lenpen=0.6
        )
        translate = translator(self.task, self.trainer.model, search)
        return lambda sample: [len(tokens) for tokens in translate(sample)]


def translator(task, model, settings):
    """A function that gives the best hypotheses of a batch, by the search that ``task`` makes of ``settings``."""
    model.eval()
    model.make_generation_fast_(beamable_mm_beam_size=None, need_attn=False)
    generator = task.build_generator([model], settings)
    return lambda sample: [found[0]["tokens"] for found in task.inference_step(generator, [model], sample)]
