"""The small experiments of the paper in seconds: each as text and as a picture.

    python scripts/paper_experiments.py runs/experiments
    python scripts/paper_experiments.py runs/experiments --only schedule masks
    python scripts/paper_experiments.py runs/experiments --only table1 -n 1000 -d 1024 -k 5 -r 64

Writes NAME.txt and NAME.png for each experiment into the folder, and prints the texts.
"""

import argparse
import logging
import math
import sys
from pathlib import Path

import matplotlib

from commands import PLUGIN
from common import atomic_path, run_as_script

sys.path.insert(0, str(PLUGIN.parent))
logging.disable(logging.INFO)  # fairseq sets the level to DEBUG when it is imported, and matplotlib has much to say

import paper_numbers  # noqa: E402  (needs the plugin on the path)
from vaswani_plugin.positions import sinusoids  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

WIDTHS = (4, 16, 64, 256, 512)
LENGTHS = (64, 512, 131_072)


def variance(arguments):
    """Variance of q.k before and after the division by sqrt(d_k), Section 3.2.1."""
    result = paper_numbers.score_variance(WIDTHS, seed=arguments.seed)
    text = ["Variance of scores q.k, 200000 random pairs with components of mean 0 and variance 1:",
            table(["d_k", "unscaled", "scaled by 1/sqrt(d_k)"],
                  [[width, f"{before:.2f}", f"{after:.4f}"] for width, (before, after) in result.items()])]
    figure, axes = pyplot.subplots(figsize=(5, 4), layout="constrained")
    axes.loglog(WIDTHS, [result[width][0] for width in WIDTHS], "o-", label="q.k")
    axes.loglog(WIDTHS, [result[width][1] for width in WIDTHS], "s-", label="q.k / sqrt(d_k)")
    axes.loglog(WIDTHS, WIDTHS, ":", color="grey", label="d_k")
    axes.set(xlabel="d_k", ylabel="variance", title="Scores of random queries and keys")
    axes.set_xticks(WIDTHS, WIDTHS)
    axes.minorticks_off()
    axes.legend()
    return text, figure


def saturation(arguments):
    """What scaling does to the softmax: its largest weight, entropy and gradients, Section 3.2.1."""
    result = paper_numbers.saturation(WIDTHS, seed=arguments.seed)
    rows = [[width, kind, *(f"{value:.4f}" for value in figures)]
            for width, kinds in result.items() for kind, figures in kinds.items()]
    text = ["Softmax over 50 random keys, 2000 random queries:",
            table(["d_k", "scores", "largest weight", "entropy, nats", "|Jacobian|, median"], rows),
            f"(An even softmax: largest weight {1 / 50:.4f}, entropy {math.log(50):.4f}.) At d_k = 64 the weights are"
            " already far apart without scaling; the gradients vanish only at larger widths."]
    names = ("mean largest weight", "mean entropy (nats)", "median norm of the Jacobian")
    figure, all_axes = pyplot.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    for number, (axes, name) in enumerate(zip(all_axes, names)):
        for kind, marker in (("unscaled", "o-"), ("scaled", "s-")):
            axes.plot(WIDTHS, [result[width][kind][number] for width in WIDTHS], marker, label=kind)
        axes.set_xscale("log", base=2)
        axes.set_xticks(WIDTHS, WIDTHS)
        axes.set(xlabel="d_k", title=name)
        axes.set_ylim(bottom=0)
    all_axes[0].legend()
    return text, figure


def positions(arguments):
    """The sinusoids, their products and their wavelengths, Section 3.5."""
    small, table_ = sinusoids(5, 8), sinusoids(100, 512)
    products, waves = paper_numbers.position_products(), paper_numbers.wavelengths()
    text = [f"PE of 5 positions, d_model 8, shape {tuple(small.shape)}:",
            "\n".join("  ".join(f"{value:7.4f}" for value in row) for row in small.tolist()),
            "",
            "PE(pos) . PE(pos + offset) for d_model 512, over all positions below 100: the offset alone decides.",
            table(["offset", "least", "largest"],
                  [[offset, f"{low:.9f}", f"{high:.9f}"] for offset, (low, high) in products.items()]),
            f"Wavelengths for d_model 512: from {waves[0]:.4f} = 2 pi, each {waves[1] / waves[0]:.6f} times the one"
            f" before, to {waves[-1]:.1f}. The text's 10000 * 2 pi = {2e4 * math.pi:.1f} is what they approach as"
            " d_model grows: the formula's last exponent is (d_model - 2) / d_model."]
    figure, (heat, product, wave) = pyplot.subplots(1, 3, figsize=(14, 4), layout="constrained")
    image = heat.imshow(table_, aspect="auto", cmap="RdBu", interpolation="nearest")
    heat.set(xlabel="column", ylabel="position", title="PE, d_model 512")
    figure.colorbar(image, ax=heat)
    image = product.imshow(table_ @ table_.T, cmap="viridis")
    product.set(xlabel="position", ylabel="position", title="PE(a) . PE(b)")
    figure.colorbar(image, ax=product)
    wave.semilogy(waves)
    wave.axhline(2e4 * math.pi, linestyle=":", color="grey")
    wave.text(0, 2e4 * math.pi, " 10000 * 2 pi", va="bottom")
    wave.set(xlabel="pair of columns i", ylabel="positions", title="wavelength")
    wave.set_ylim(top=2e5)
    return text, figure


def schedule(arguments):
    """The learning rate for several d_model and warm-ups, Eq. 3."""
    choices = [(512, 4000), (512, 8000), (256, 4000), (1024, 4000)]
    marks = [1, 1000, 4000, 8000, 20_000, 100_000, 300_000]
    rates = paper_numbers.schedule(choices, marks)
    text = ["Learning rate of Eq. 3 at some updates (the first update is 1):",
            table(["d_model", "warm-up", *marks], [[*choice, *(f"{rate:.6e}" for rate in rates[choice])]
                                                   for choice in choices])]
    updates = range(1, 20_001, 20)
    figure, axes = pyplot.subplots(figsize=(6.5, 4), layout="constrained")
    for choice, values in paper_numbers.schedule(choices, updates).items():
        axes.plot(updates, values, label=f"d_model {choice[0]}, warm-up {choice[1]}")
    axes.set(xlabel="update", ylabel="learning rate", title="Eq. 3")
    axes.legend()
    return text, figure


def table1(arguments):
    """Table 1 with numbers, and where attention stops being the cheaper layer."""
    n, d, k, r = arguments.n, arguments.d, arguments.k, arguments.r
    result = paper_numbers.table_1(n, d, k, r)
    ratios = [[length, f"{length * length * d:.4g}", f"{length * d * d:.4g}", f"{length / d:g}"]
              for length in sorted({*LENGTHS, d})]
    undilated = paper_numbers.longest_path("convolutional, not dilated", n, k, r)
    text = [f"Table 1 for n = {n}, d = {d}, k = {k}, r = {r}:",
            table(["layer", "operations", "one after another", "longest path"],
                  [[kind, f"{operations:,}", sequential, path] for kind, (operations, sequential, path) in result.items()]),
            f"(Convolutions reach this path if dilated; if not, {undilated}. Both look back only.)",
            "",
            f"Self-attention against recurrence for d = {d}; equal at n = d:",
            table(["n", "n^2 d", "n d^2", "ratio"], ratios),
            f"The table leaves out the four projections of attention, 4 n d^2 = {4 * n * d * d:,}: they are more than"
            f" the scores and their use, 2 n^2 d = {2 * n * n * d:,}, as long as n is below 2 d = {2 * d}."]
    lengths = [2**power for power in range(4, 18)]
    figure, axes = pyplot.subplots(figsize=(6, 4.4), layout="constrained")
    for kind, count in paper_numbers.COMPLEXITY.items():
        axes.loglog(lengths, [count(length, d, k, r) for length in lengths], label=kind)
    axes.axvline(d, linestyle=":", color="grey")
    axes.text(d, 0.97, f" n = d = {d}", transform=axes.get_xaxis_transform(), va="top")
    axes.set(xlabel="n", ylabel="operations of a layer", title=f"Table 1, d = {d}, k = {k}, r = {r}")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.9))
    return text, figure


def masks(arguments):
    """Who sees whom in the three attentions, for 3 source and 2 target tokens, Section 3.2.3."""
    maps = paper_numbers.attention_maps(seed=arguments.seed)
    text = ["Weights of one head of an untrained model, a query a row, a key a column:"]
    figure, all_axes = pyplot.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
    for axes, (name, weights) in zip(all_axes, maps.items()):
        rows = ["  ".join("  .  " if weight == 0 else f"{weight:.3f}" for weight in row) for row in weights.tolist()]
        text += ["", f"{name}, {weights.size(0)} x {weights.size(1)} ('.' is exactly 0, hidden)", *rows]
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
        for row, values in enumerate(weights.tolist()):
            for column, value in enumerate(values):
                axes.text(column, row, f"{value:.2f}" if value else "hidden", ha="center", va="center",
                          color="white" if value > 0.6 else "black")
        axes.set(title=name, xlabel="key", ylabel="query", xticks=range(weights.size(1)), yticks=range(weights.size(0)))
    return text, figure


def shapes(arguments):
    """Every shape on the way of a batch of 32 sentences, 40 source and 50 target tokens."""
    trace = paper_numbers.shape_trace()
    sizes = [math.prod(shape) for _, shape in trace]
    text = ["Base model, 32 sentences, 40 source and 50 target tokens; one encoder and one decoder layer:",
            table(["", "shape", "numbers"], [[where, " x ".join(map(str, shape)), f"{size:,}"]
                                             for (where, shape), size in zip(trace, sizes)])]
    figure, axes = pyplot.subplots(figsize=(9, 6), layout="constrained")
    names = [f"{where}  {' x '.join(map(str, shape))}" for where, shape in trace]
    axes.barh(range(len(trace)), sizes, color=["tab:orange" if "weights" in where else "tab:blue" for where, _ in trace])
    axes.set_yticks(range(len(trace)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set(xlabel="numbers", title="Shapes of a batch 32 x 40 x 50 (orange: attention weights)")
    return text, figure


def parameters(arguments):
    """Where the parameters of every architecture are."""
    shares = paper_numbers.parameter_shares()
    parts = list(next(iter(shares.values())))
    rows = []
    for name, counts in shares.items():
        total = sum(counts.values())
        rows.append([name, f"{total:,}", *(f"{100 * counts[part] / total:.2f}%" for part in parts),
                     f"{100 * counts['feed-forward'] / (total - counts['embeddings']):.1f}%"])
    text = [f"Parameters of every architecture, {paper_numbers.ENTRIES} entries in the dictionary:",
            table(["architecture", "all", *parts, "feed-forward, without embeddings"], rows)]
    figure, axes = pyplot.subplots(figsize=(9, 7), layout="constrained")
    left = [0] * len(shares)
    for part in parts:
        millions = [counts[part] / 1e6 for counts in shares.values()]
        axes.barh(range(len(shares)), millions, left=left, label=part)
        left = [a + b for a, b in zip(left, millions)]
    axes.set_yticks(range(len(shares)), list(shares), fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.02)
    axes.set(xlabel="million parameters", title=f"{paper_numbers.ENTRIES} entries")
    axes.legend()
    return text, figure


def cost(arguments):
    """Training cost of Table 2, from time and from counted operations."""
    result = paper_numbers.training_cost()
    keys = list(next(iter(result.values())))
    ratios = [f"{figures['from hours'] / figures['counted']:.1f}" for figures in result.values()]
    text = ["Floating-point operations of training and hours, 8 GPUs of 9.5e12 operations per second:",
            table(["", *result], [[key, *(f"{figures[key]:.4g}" for figures in result.values())] for key in keys]),
            "The printed costs follow from the printed hours; updates x seconds give somewhat less. What the model itself"
            f" computes is {' and '.join(ratios)} times less: the paper counts what the GPUs can do in that time."]
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    everyone = dict(sorted(paper_numbers.TRAINING_COST.items(), key=lambda item: item[1]))
    axes.barh(list(everyone), everyone.values(),
              color=["tab:orange" if name.startswith("Transformer") else "tab:blue" for name in everyone])
    for name, figures in result.items():
        axes.plot([figures["from hours"]], [name], "|", color="black", markersize=16, label="8 x hours x 9.5e12")
        axes.plot([figures["counted"]], [name], "o", color="black", label="counted")
    axes.set_xscale("log")
    axes.set(xlabel="operations to train, English-German", title="Table 2")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[:2], labels[:2], loc="lower right")
    return text, figure


EXPERIMENTS = {function.__name__: function for function in
               (variance, saturation, positions, schedule, table1, masks, shapes, parameters, cost)}


def table(head, rows):
    """Columns under each other, numbers to the right."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
                     .rstrip() for row in cells)


def _arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:12s}{function.__doc__}" for name, function in EXPERIMENTS.items()),
    )
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS), metavar="NAME",
                        help="these experiments alone (the list is below)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (default 1)")
    for letter, default, text in (("n", 70, "positions"), ("d", 512, "width"), ("k", 3, "kernel width"),
                                  ("r", 16, "neighbourhood")):
        parser.add_argument(f"-{letter}", type=int, default=default, help=f"{text} in Table 1 (default {default})")
    arguments = parser.parse_args()
    for letter, least in (("n", 2), ("d", 1), ("k", 2), ("r", 2)):
        if getattr(arguments, letter) < least:
            raise ValueError(f"-{letter} must be at least {least}, not {getattr(arguments, letter)}")
    return arguments


def main():
    arguments = _arguments()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        lines, figure = EXPERIMENTS[name](arguments)
        text = "\n".join(lines) + "\n"
        with atomic_path(arguments.folder / f"{name}.txt") as path:
            path.write_text(text, encoding="utf-8")
        with atomic_path(arguments.folder / f"{name}.png") as path:
            figure.savefig(path, dpi=100)
        pyplot.close(figure)
        print(f"== {name}\n{text}")


if __name__ == "__main__":
    run_as_script(main)
