"""What several tests need: a small dictionary, small models, and the real fairseq commands."""

import os
import random
import subprocess
import sys
from pathlib import Path

import torch
from fairseq.data import Dictionary

from vaswani_plugin.config import VaswaniConfig
from vaswani_plugin.transformer import VaswaniModel

REPOSITORY = Path(__file__).resolve().parent.parent
PLUGIN = REPOSITORY / "vaswani_plugin"
PAD, EOS = 1, 2

SMALL = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "dropout": 0.0,
}


def dictionary(words=20):
    """A fairseq dictionary: 4 special entries and ``words`` more."""
    entries = Dictionary()
    for number in range(words):
        entries.add_symbol(f"w{number}")
    return entries


def small_model(seed=1, words=20, **changes):
    """A float64 model in eval mode whose LayerNorm gains and biases are random too."""
    torch.manual_seed(seed)
    model = VaswaniModel.from_config(VaswaniConfig(**{**SMALL, **changes}), dictionary(words)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def sentences(seed, lengths, words=20):
    """Random sentences as lists of token numbers, without the end token."""
    generator = random.Random(seed)
    return [[generator.randrange(4, 4 + words) for _ in range(length)] for length in lengths]


def padded(rows, side="right"):
    """Lists of tokens as one tensor ``[batch, time]``."""
    width = max(map(len, rows))
    fill = [[PAD] * (width - len(row)) for row in rows]
    return torch.tensor([row + pad if side == "right" else pad + row for row, pad in zip(rows, fill)])


def write_corpus(folder, seed=1, sizes=(2000, 40, 20)):
    """A made-up language pair, 'a' and its words in reverse order 'b': train, valid and test."""
    generator = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in zip(("train", "valid", "test"), sizes):
        lines = [
            [f"w{generator.randrange(12)}" for _ in range(generator.randint(2, 7))] for _ in range(size)
        ]
        (folder / f"{split}.a").write_text("".join(" ".join(line) + "\n" for line in lines))
        (folder / f"{split}.b").write_text("".join(" ".join(line[::-1]) + "\n" for line in lines))
    return folder


def run(*command, cwd=REPOSITORY, stdin=None, timeout=300, toolkit=None):
    """Run a command of the environment that the tests run in, such as ``fairseq-train``.

    ``toolkit``: a folder where pip has put another fairseq, to be used instead.
    """
    program = (toolkit / "bin" if toolkit else Path(sys.executable).parent) / command[0]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PYTHONPATH", None)  # fairseq itself must find the plugin
    if toolkit:
        environment["PYTHONPATH"] = str(toolkit)
    return subprocess.run(
        [str(program), *map(str, command[1:])],
        cwd=cwd, env=environment, input=stdin, capture_output=True, text=True, timeout=timeout,
    )


def succeed(*command, **options):
    """:func:`run`, and what it printed on both streams; a failure shows the end of it."""
    done = run(*command, **options)
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{output[-3000:]}"
    return output


def preprocess(corpus, destination, *flags):
    """``fairseq-preprocess`` of a corpus of :func:`write_corpus`."""
    succeed(
        "fairseq-preprocess", "-s", "a", "-t", "b", "--trainpref", corpus / "train", "--validpref",
        corpus / "valid", "--testpref", corpus / "test", "--destdir", destination, *flags,
    )
    return destination
