"""A checkpoint without a training: a model with random weights, saved as fairseq saves it, beside all it needs."""

import io
import json

import torch
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from subword_nmt.learn_bpe import learn_bpe

from .helpers import PLUGIN

TEXT = [
    "The quick brown fox jumps over the lazy dog.",
    "She said: \"It's not far, is it?\"",
    "A well-known state-of-the-art result costs $3.50 (about 5 %).",
    "Numbers such as 1,234.5 and 2017 stay as they are.",
]
FLAGS = [
    "--arch", "vaswani2017_tiny", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "24", "--encoder-layers", "2",
    "--decoder-layers", "2", "--encoder-attention-heads", "4",
]


def save_model(folder, seed=1, text=TEXT, name="model.pt", settings=True):
    """Write codes, dictionaries, prepare.json and a checkpoint to ``folder``; returns the checkpoint's path."""
    from raw_text import Settings, TextPipeline

    codes = folder / "codes"
    if not codes.exists():
        words = io.StringIO("\n".join(text) + "\n")
        with open(codes, "w", encoding="utf-8") as out:
            learn_bpe(words, out, 60, min_frequency=1)
        pipeline = TextPipeline(Settings("en", "de", codes))
        entries = Dictionary()
        for line in text:
            for subword in pipeline.subwords(line):
                entries.add_symbol(subword)
        entries.finalize()
        for language in ("en", "de"):
            entries.save(str(folder / f"dict.{language}.txt"))
    if settings:
        languages = {"source": "en", "target": "de"}
        (folder / "prepare.json").write_text(json.dumps({"languages": languages, "codes": "codes"}))
    arguments = [str(folder), "--user-dir", str(PLUGIN), "--task", "vaswani_translation", *FLAGS, "--source-lang", "en",
                 "--target-lang", "de"]
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))
    torch.manual_seed(seed)
    model = tasks.setup_task(cfg.task).build_model(cfg.model)
    torch.save(
        {
            "args": None,
            "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
            "model": model.state_dict(),
            "optimizer_history": [{"num_updates": 7, "criterion_name": "x", "optimizer_name": "x", "lr_scheduler_state": {}}],
            "task_state": {},
            "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": None},
        },
        folder / name,
    )
    return folder / name
