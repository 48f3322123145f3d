"""What compare.py trains: this plugin's models, fairseq's own, and the ladder between the two, as flags of fairseq."""

import re
from dataclasses import dataclass, replace

from fairseq.models import ARCH_MODEL_REGISTRY

from vaswani_plugin.architectures import ARCHITECTURES
from vaswani_plugin.deviations import DeviatingModel  # noqa: F401  (the ladder's architecture)
from vaswani_plugin.learning_rate import inverse_sqrt_rate
from vaswani_plugin.transformer import VaswaniModel

BETAS = "(0.9, 0.98)"

# How outputs are searched for: flags of fairseq-generate, and what they mean.
SEARCHES = {
    "paper": (
        ["--task", "vaswani_translation"],
        "the paper's: beam 4, length penalty ((5 + n) / 6)^0.6, at most 50 tokens more than the source",
    ),
    "fairseq": (
        ["--task", "translation", "--beam", "4", "--lenpen", "0.6", "--max-len-a", "1", "--max-len-b", "50",
         "--required-batch-size-multiple", "1"],
        "fairseq's with the paper's numbers: beam 4, n^0.6, the longest source of a batch + 50",
    ),
    "fairseq_defaults": (
        ["--task", "translation", "--required-batch-size-multiple", "1"],
        "fairseq's defaults: beam 5, length penalty n, at most 200 tokens",
    ),
}
COMMON = "paper"


@dataclass(frozen=True)
class Budget:
    """What all systems get alike."""

    updates: int
    warmup: int
    tokens: int
    lr_factor: float


@dataclass(frozen=True)
class System:
    """One line of the comparison.

    ``training`` names the folder of the trained model: systems that differ in their search alone share one. ``flags``
    are its flags of fairseq-train beside those that all have. ``change`` is what a rung of the ladder changes.
    """

    name: str
    training: str
    flags: tuple
    search: str
    note: str
    change: str = ""


def choose(names, shape, budget):
    """The systems for these names, ``ladder`` standing for all of its rungs. Raises ValueError.

    ``shape``: ``(layers, d_model, d_ff, heads)`` for all but the stock architectures that are taken as they come, or
    ``None``: that of the first ``vaswani2017...`` among the names, or of ``vaswani2017_tiny``.
    """
    like = next((name for name in names if name in ARCHITECTURES), "vaswani2017_tiny")
    found = []
    for name in names:
        new = ladder(like, shape, budget) if name == "ladder" else [one(name, like, shape, budget)]
        found += [system for system in new if system.name not in {other.name for other in found}]
    return found


def one(name, like, shape, budget):
    """The system of one name. Raises ValueError."""
    if name in ARCHITECTURES:
        return System(name, name, ours(name, shape, budget), "paper", "this plugin, the paper's recipe")
    if name == "transformer:matched":
        return System(
            name, "transformer_matched", matched(like, shape, budget), "fairseq",
            f"fairseq's transformer with the sizes of {like if shape is None else '--shape'} and the paper's recipe as near as"
            " its flags reach",
        )
    arch = "transformer" if name == "transformer:default" else name
    model = ARCH_MODEL_REGISTRY.get(arch)
    if model is None or issubclass(model, VaswaniModel):
        raise ValueError(
            f"{name} is no system: give vaswani2017, one of its variants, transformer:matched, transformer:default, ladder,"
            " or an architecture of fairseq such as transformer_wmt_en_de"
        )
    return System(
        name, re.sub(r"\W", "_", name), as_it_comes(arch, budget), "fairseq_defaults",
        "fairseq's architecture as it comes, trained with the published flags of its translation example (--lr 5e-4)",
    )


def shape_of(name, shape):
    """The entry of ``ARCHITECTURES`` with ``shape`` in place of its own."""
    architecture = ARCHITECTURES[name]
    if shape is None:
        return architecture
    layers, d_model, d_ff, heads = shape
    return replace(architecture, layers=layers, d_model=d_model, d_ff=d_ff, heads=heads)


def ours(name, shape, budget, arch=None):
    flags = ["--arch", arch or name]
    if shape is not None or arch is not None:
        sizes = shape_of(name, shape)
        flags += _stack_sizes(("encoder",), sizes)
        flags += ["--decoder-layers", str(sizes.layers)]
    if arch is not None:
        flags += ["--dropout", str(sizes.dropout), "--attention-dropout", str(sizes.attention_dropout),
                  "--label-smoothing", str(sizes.label_smoothing)]
    return (*flags, "--warmup-updates", str(budget.warmup), "--lr-factor", str(budget.lr_factor))


def matched(like, shape, budget, adam_eps="1e-9"):
    """fairseq's transformer, of the sizes and by the recipe of ``like`` as near as its flags reach. Raises ValueError."""
    sizes = shape_of(like, shape)
    if sizes.d_k or sizes.d_v or sizes.learned_positions:
        raise ValueError(f"fairseq's transformer cannot have the sizes of {like}: name a variant with heads of d_model / h and"
                         " sinusoids first")
    return (
        "--arch", "transformer", "--share-all-embeddings", *_stack_sizes(("encoder", "decoder"), sizes),
        "--decoder-layers", str(sizes.layers), "--dropout", str(sizes.dropout),
        "--attention-dropout", str(sizes.attention_dropout), "--optimizer", "adam", "--adam-betas", BETAS,
        *(["--adam-eps", adam_eps] if adam_eps else []), *stock_schedule(sizes.d_model, budget),
        *stock_criterion(sizes.label_smoothing),
    )


def _stack_sizes(stacks, sizes):
    flags = []
    for stack in stacks:
        flags += [f"--{stack}-embed-dim", str(sizes.d_model), f"--{stack}-ffn-embed-dim", str(sizes.d_ff),
                  f"--{stack}-attention-heads", str(sizes.heads)]
    return [*flags, "--encoder-layers", str(sizes.layers)]


def stock_schedule(d_model, budget):
    """fairseq's inverse_sqrt with the peak of Eq. 3; it runs one update behind: update 1 has rate 0."""
    peak = inverse_sqrt_rate(budget.warmup, d_model, budget.warmup, budget.lr_factor)
    return ("--lr-scheduler", "inverse_sqrt", "--lr", repr(peak), "--warmup-updates", str(budget.warmup))


def our_schedule(budget):
    return ("--lr-scheduler", "vaswani_inverse_sqrt", "--warmup-updates", str(budget.warmup),
            "--lr-factor", str(budget.lr_factor))


def stock_criterion(smoothing):
    return ("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", str(smoothing))


def as_it_comes(arch, budget):
    """An architecture of fairseq, with the flags of its published example of machine translation."""
    return (
        "--arch", arch, "--optimizer", "adam", "--adam-betas", BETAS, "--lr-scheduler", "inverse_sqrt", "--lr", "5e-4",
        "--warmup-updates", str(budget.warmup), *stock_criterion(0.1),
    )


def ladder(like, shape, budget):
    """From the stock transformer to the paper's: each rung changes one thing and keeps all before it.

    The first rungs are fairseq's model with its or this plugin's components; then this plugin's model takes over with
    all of fairseq's choices, and gives up one after the other.
    """
    sizes = shape_of(like, shape)
    stock = [*matched(like, shape, budget)]
    our_parts = [*our_schedule(budget), "--criterion", "vaswani_label_smoothed_cross_entropy",
                 "--label-smoothing", str(sizes.label_smoothing)]
    model = stock[: stock.index("--lr-scheduler")]
    ours_deviating = [*ours(like, shape, budget, arch="vaswani2017_deviating")]
    choices = [
        ("implementation", [], "this plugin's model with fairseq's four choices below, and its Adam: the same functions"),
        ("positions", ["--fairseq-positions"], "sinusoids of Section 3.5: interleaved, its wavelengths, first position 0"),
        ("bias", ["--attention-bias"], "no biases in the attention projections"),
        ("layer_norm_eps", ["--layer-norm-eps", "1e-5"], "eps of layer normalisation 1e-6 instead of 1e-5"),
        ("initialisation", ["--fairseq-initialisation"], "all matrices uniform within 1 / sqrt(inputs), biases zero"),
    ]
    rungs = [
        ("stock", matched(like, shape, budget, adam_eps=None), "fairseq's transformer with its sizes set, and Adam's betas"),
        ("adam_eps", tuple(stock), "Adam's eps 1e-9 instead of 1e-8"),
        ("schedule", (*model, *our_schedule(budget), *stock_criterion(sizes.label_smoothing)),
         "Eq. 3 counted from 1, not one update behind"),
        ("smoothing", (*model, *our_parts), "label smoothing over all K entries, not K - 1 (Section 5.4)"),
    ]
    for number, (name, _, change) in enumerate(choices):
        left = [word for _, flags, _ in choices[number + 1 :] for word in flags]
        rungs.append((name, (*ours_deviating, *left), change))
    trainings = {"adam_eps": "transformer_matched", "initialisation": like}
    systems = []
    for name, flags, change in rungs:
        if name == "initialisation":  # nothing of fairseq's is left: the plugin's own command
            flags = ours(like, shape, budget)
        systems.append(System(f"ladder:{name}", trainings.get(name, f"ladder_{name}"), flags, "fairseq",
                              "a rung of the ladder", change))
    last = systems[-1]
    systems.append(replace(last, name="ladder:length_penalty", search="paper",
                           change="the same model, searched as in Section 6.1"))
    return systems
