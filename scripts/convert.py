"""Carry a trained model from one library to another, with the same logits.

    python scripts/convert.py checkpoint_best.pt converted.pt --to fairseq      # from this plugin to fairseq's transformer
    python scripts/convert.py checkpoint_best.pt converted.pt --to vaswani      # and from there, torch or Marian to here

What MODEL is, it says itself: a checkpoint of fairseq, the plugin's or of fairseq's own transformer; a file that --to
torch wrote; a folder of Hugging Face's Marian. The result is written after both models were built by their own
libraries and gave the same logits for random sentences. Where options of the model mean something that the other
library cannot express, nothing is written and one sentence says which.
"""

import argparse
import dataclasses
import logging
import math
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, NamedTuple

import torch
from common import atomic_path, load_checkpoint, run_as_script

logging.basicConfig(level=logging.WARNING)  # before fairseq, which remarks on every optional package that is missing

import weight_formats as formats  # noqa: E402
from fairseq.data import Dictionary  # noqa: E402
from fairseq.dataclass.utils import convert_namespace_to_omegaconf  # noqa: E402
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY  # noqa: E402
from fairseq.models.transformer import TransformerModel, base_architecture  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from vaswani_plugin.config import VaswaniConfig  # noqa: E402
from vaswani_plugin.transformer import VaswaniModel  # noqa: E402

SAME = 1e-5  # the largest difference of logits, computed in float64, that is taken for rounding of the saved numbers
SENTENCES, LENGTH = 8, 12  # of the comparison


class Model(NamedTuple):
    """A model as read: in this plugin's terms, and as its own library computes it."""

    library: str
    config: VaswaniConfig
    state: dict
    logits: Callable  # of ``source [batch, time]`` and shifted ``target [batch, time]``, in float64
    checkpoint: dict  # of fairseq, or what a new one needs


# ---- logits by each library ---------------------------------------------------------------------------------------
def dictionary(entries):
    """A dictionary of so many entries; the words do not matter."""
    words = Dictionary()
    for number in range(entries - len(words)):
        words.add_symbol(f"w{number}")
    return words


def fairseq_model(options, state):
    """fairseq's own transformer."""
    options = argparse.Namespace(**options)
    base_architecture(options)
    source, target = (dictionary(state[f"{stack}.embed_tokens.weight"].size(0)) for stack in formats.STACKS)
    model = TransformerModel.build_model(options, SimpleNamespace(source_dictionary=source, target_dictionary=target))
    model.load_state_dict(dict(state))
    return model


def fairseq_logits(options, state):
    """Logits by fairseq's own transformer."""
    model = fairseq_model(options, state).double().eval()
    return lambda source, target: model(source, source.ne(formats.PAD).sum(1), target)[0]


def vaswani_model(config, state):
    """This plugin's model."""
    source, target = (dictionary(state[f"{stack}.embedding.weight"].size(0)) for stack in formats.STACKS)
    model = VaswaniModel.from_config(config, source, target)
    model.load_state_dict(dict(state))
    return model


def vaswani_logits(config, state):
    """Logits by this plugin."""
    model = vaswani_model(config, state).double().eval()
    return lambda source, target: model(source, None, target)[0]


def torch_logits(saved):
    """Logits by torch.nn.Transformer."""
    model = torch.nn.Transformer(**saved["settings"], batch_first=True)
    model.encoder.norm = model.decoder.norm = None
    model.load_state_dict(saved["transformer"])
    model.double().eval()
    scale = math.sqrt(saved["settings"]["d_model"])

    def embed(tokens, side):
        table = saved[f"{side}_positions"][: tokens.size(1)].double()
        return scale * saved[f"{side}_embedding"].double()[tokens] + table

    def logits(source, target):
        causal = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        return model(embed(source, "source"), embed(target, "target"), tgt_mask=causal) @ saved["output"].double().t()

    return logits


def marian_logits(model):
    """Logits by Hugging Face's Marian."""
    model = model.double().eval()
    return lambda source, target: model(input_ids=source, decoder_input_ids=target).logits


# ---- reading ------------------------------------------------------------------------------------------------------
def read(path):
    """The :class:`Model` at ``path``. Raises ValueError."""
    path = Path(path)
    if path.is_dir():
        return read_marian(path)
    if not path.is_file():
        raise ValueError(f"{path} is neither a checkpoint nor a folder")
    saved = load_torch(path)
    if saved is not None:
        config, state = formats.from_torch(saved)
        return Model("torch", config, state, torch_logits(saved), new_checkpoint())
    checkpoint = load_checkpoint(path)
    settings = model_settings(checkpoint, path)
    name = settings.get("_name") or settings.get("arch")
    kind = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
    if kind is VaswaniModel:
        known = {field.name for field in dataclasses.fields(VaswaniConfig)}
        config = VaswaniConfig(**{key: value for key, value in settings.items() if key in known})
        state = dict(checkpoint["model"])
        return Model("vaswani", config, state, vaswani_logits(config, state), checkpoint)
    if kind is TransformerModel:
        config, state = formats.from_fairseq(settings, checkpoint["model"])
        logits = fairseq_logits(formats.fairseq_options(settings), checkpoint["model"])
        return Model("fairseq", config, state, logits, checkpoint)
    raise ValueError(f"{path} is a model of the architecture {name}: only this plugin's and those of fairseq's"
                     " transformer can be converted")


def load_torch(path):
    """What --to torch wrote to ``path``, or ``None``: another file."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError):
        return None  # load_checkpoint will say why
    return saved if isinstance(saved, dict) and "transformer" in saved else None


def model_settings(checkpoint, path):
    """The options of the model in a checkpoint of fairseq, as a dictionary."""
    settings = (checkpoint.get("cfg") or {}).get("model") or checkpoint.get("args")
    if settings is None:
        raise ValueError(f"{path} does not say which options its model was built with")
    return vars(settings) if isinstance(settings, argparse.Namespace) else dict(settings)


def read_marian(folder):
    """The :class:`Model` in a folder of ``MarianMTModel.save_pretrained``."""
    transformers = import_transformers()
    try:
        model = transformers.MarianMTModel.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no Marian model that can be loaded: {str(error).splitlines()[0]}") from None
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    config, state = formats.from_marian(model.config.to_dict(), state)
    return Model("marian", config, state, marian_logits(model), new_checkpoint())


def import_transformers():
    """Hugging Face's library. Raises ValueError: it is not installed."""
    try:
        import torchaudio  # noqa: F401
    except ImportError:
        pass
    except OSError:  # fairseq brings one that does not load beside a CPU build of torch, and transformers would try
        sys.modules["torchaudio"] = None
    try:
        import transformers
    except ImportError:
        raise ValueError("Marian needs the package transformers: pip install '.[marian]'") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def new_checkpoint():
    """What a checkpoint of fairseq holds beside the model, for a model that comes from elsewhere."""
    return {
        "args": None,
        "cfg": {"task": {"_name": "translation", "data": ".", "source_lang": None, "target_lang": None}},
        "optimizer_history": [
            {"num_updates": 0, "criterion_name": "none", "optimizer_name": "none", "lr_scheduler_state": {}}
        ],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": None},
    }


# ---- writing ------------------------------------------------------------------------------------------------------
def write(model, library, out):
    """Write ``model`` as one of ``library`` to ``out``. Returns the largest difference of logits. Raises ValueError."""
    writer = {"vaswani": write_vaswani, "fairseq": write_fairseq, "torch": write_torch, "marian": write_marian}
    return writer[library](model, out)


def write_vaswani(model, out):
    difference = checked(model, vaswani_logits(model.config, model.state))
    settings = {"_name": "vaswani", **{
        field.name: getattr(model.config, field.name)
        for field in dataclasses.fields(VaswaniConfig) if not field.name.startswith("_")
    }}
    save_checkpoint(model, settings, model.state, out)
    return difference


def write_fairseq(model, out):
    options, state = formats.to_fairseq(model.config, model.state)
    difference = checked(model, fairseq_logits(options, state))
    save_checkpoint(model, {"_name": "transformer", "arch": "transformer", **options}, state, out)
    return difference


def write_torch(model, out):
    saved = formats.to_torch(model.config, model.state)
    difference = checked(model, torch_logits(saved))
    with atomic_path(out) as path:
        torch.save(saved, path)
    return difference


def write_marian(model, out):
    transformers = import_transformers()
    settings, state = formats.to_marian(model.config, model.state)
    marian = transformers.MarianMTModel(transformers.MarianConfig(**settings))
    marian.load_state_dict(state, strict=False)
    difference = checked(model, marian_logits(marian))
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        marian.to(state["lm_head.weight"].dtype).save_pretrained(unfinished)
        unfinished.rename(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return difference


def save_checkpoint(model, settings, state, out):
    """A checkpoint for fairseq's commands, without the state of an optimizer."""
    saved = {key: value for key, value in model.checkpoint.items() if key != "last_optimizer_state"}
    cfg = saved.get("cfg")
    if cfg is None:  # written before fairseq had cfg
        cfg = OmegaConf.to_container(convert_namespace_to_omegaconf(saved["args"]), resolve=True, enum_to_str=True)
    task = dict(cfg["task"])
    if settings["_name"] == "transformer" and task.get("_name") == "vaswani_translation":
        task["_name"] = "translation"  # where the plugin is not there
        task.pop("length_penalty", None)
    saved |= {"args": None, "cfg": {**cfg, "model": settings, "task": task}, "model": state}
    with atomic_path(out) as path:
        torch.save(saved, path)


@torch.no_grad()
def checked(model, logits):
    """The largest difference between the logits of ``model`` and these. Raises ValueError: it is no rounding."""
    random = torch.Generator().manual_seed(1)
    sizes = [model.state[name].size(0) for name in formats.OUR_EMBEDDINGS[:2]]
    source, target = (torch.randint(4, entries, (SENTENCES, LENGTH), generator=random) for entries in sizes)
    source[:, -1] = target[:, 0] = 2  # the end token ends a source and begins a shifted target
    difference = float((model.logits(source, target) - logits(source, target)).abs().max())
    if not difference <= SAME:
        raise ValueError(f"the logits of the converted model would differ by {difference:.1e}: nothing was written")
    return difference


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="what is converted")
    parser.add_argument("out", type=Path, help="file to write; for marian a folder")
    parser.add_argument("--to", required=True, choices=["vaswani", "fairseq", "torch", "marian"], help="the other library")
    args = parser.parse_args()
    if args.out.exists():
        raise ValueError(f"{args.out} exists: choose another name, or remove it first")
    if not args.out.parent.is_dir():
        raise ValueError(f"there is no folder {args.out.parent} to write {args.out.name} to")
    model = read(args.model)
    if model.library == args.to:
        raise ValueError(f"{args.model} is a model of {args.to} already")
    difference = write(model, args.to, args.out)
    print(f"{args.out}: the {model.library} model {args.model} for {args.to}. Logits of {SENTENCES} random sentences, each"
          f" computed by its own library in float64, differ by {difference:.1e} at most.")
    if model.config.learned_positions and args.to == "vaswani":
        print("Its positions became a table of --learned-positions, since they are not the paper's sinusoids.")


if __name__ == "__main__":
    run_as_script(main)
