"""Table 3 of the paper, beside what was measured here: as Markdown, JSON and a picture.

Every row of the paper's table is a variation of the base model, and the paper draws its conclusions from the sign of
the difference to base. So does this report: for each row it says in how many seeds the perplexity moved the paper's
way, and calls a direction shown only if the mean moved that way by more than two standard errors.
"""

import math
import statistics
from dataclasses import dataclass

BASE = "base"

# Row: perplexity per token and BLEU on newstest2013, millions of parameters where the paper prints them.
PAPER = {
    "base": (4.92, 25.8, 65),
    "a_h1": (5.29, 24.9, None),
    "a_h4": (5.00, 25.5, None),
    "a_h16": (4.91, 25.8, None),
    "a_h32": (5.01, 25.4, None),
    "b_dk16": (5.16, 25.1, 58),
    "b_dk32": (5.01, 25.4, 60),
    "c_n2": (6.11, 23.7, 36),
    "c_n4": (5.19, 25.3, 50),
    "c_n8": (4.88, 25.5, 80),
    "c_d256": (5.75, 24.5, 28),
    "c_d1024": (4.66, 26.0, 168),
    "c_ff1024": (5.12, 25.4, 53),
    "c_ff4096": (4.75, 26.2, 90),
    "d_drop0": (5.77, 24.6, None),
    "d_drop2": (4.95, 25.5, None),
    "d_ls0": (4.67, 25.3, None),
    "d_ls2": (5.47, 25.7, None),
    "e_learned": (4.92, 25.7, None),
    "big": (4.33, 26.4, 213),
}

GROUPS = {
    **{letter.upper(): [row for row in PAPER if row.startswith(f"{letter}_")] for letter in "abcde"},
    "all": list(PAPER),
}


def choose(names):
    """Rows for the names of rows and groups, in the order of Table 3; base always comes along. Raises ValueError."""
    chosen = {BASE}
    for name in names:
        if name in GROUPS:
            chosen.update(GROUPS[name])
        elif name in PAPER:
            chosen.add(name)
        else:
            raise ValueError(f"{name} is no row of Table 3: choose among {', '.join(PAPER)}, or {', '.join(GROUPS)}")
    return [row for row in PAPER if row in chosen]


def sign(number):
    return (number > 0) - (number < 0)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of one figure over seeds; ``None`` where there is too little for it."""

    values: tuple

    @property
    def mean(self):
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self):
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def text(self, digits):
        if not self.values:
            return "-"
        if self.deviation is None:
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} ± {self.deviation:.{digits}f}"


def verdict(row, results):
    """What the seeds say about the paper's direction of ``row``: a short text.

    Seeds are compared in pairs, row against base. ``results``: row -> seed -> figures of one run.
    """
    paper = round(PAPER[row][0] - PAPER[BASE][0], 2)
    seeds = sorted(results.get(row, {}).keys() & results.get(BASE, {}).keys())
    if len(seeds) < 2:
        return "needs two seeds"
    differences = [results[row][seed]["perplexity"] - results[BASE][seed]["perplexity"] for seed in seeds]
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    clear = abs(mean) > 2 * error
    if paper == 0:
        text = "equal, as in the paper" if not clear else "not equal; in the paper equal"
        return f"{text} ({mean:+.3f} ± {error:.3f})"
    agreeing = sum(sign(difference) == sign(paper) for difference in differences)
    if sign(mean) != sign(paper):
        text = "opposite" if clear else "not shown"
    else:
        text = "shown" if clear else "not shown beyond the spread"
    return f"{text} ({agreeing} of {len(seeds)} seeds, {mean:+.3f} ± {error:.3f})"


def markdown(header, sizes, results):
    """The table. ``header``: lines of text; ``sizes``: row -> cells of that row; ``results`` as in :func:`verdict`."""
    columns = ["row", *next(iter(sizes.values())), "PPL", "best PPL", "training PPL", "BLEU", "parameters", "runs",
               "PPL against base: the paper's direction", "paper: PPL", "BLEU", "10^6"]
    lines = ["# Table 3, run at another scale", "", *header, "", row_of(columns), row_of(["---"] * len(columns))]
    for row, cells in sizes.items():
        runs = [results.get(row, {})[seed] for seed in sorted(results.get(row, {}))]
        spread = {name: Spread(tuple(run[name] for run in runs))
                  for name in ("perplexity", "best_perplexity", "training_perplexity", "bleu")}
        ppl, bleu, millions = PAPER[row]
        lines.append(row_of([
            row, *cells.values(), spread["perplexity"].text(3), spread["best_perplexity"].text(3),
            spread["training_perplexity"].text(3), spread["bleu"].text(1),
            f"{runs[0]['parameters']:,}" if runs else "-", len(runs),
            "" if row == BASE else verdict(row, results), f"{ppl:.2f}", bleu, millions or "",
        ]))
    lines += [
        "",
        "PPL: of the reference, per token of the dictionary, without smoothing, at the last update; ± is the standard"
        " deviation over seeds. best PPL: the lowest of all validations. training PPL: over the last epoch or part of"
        " one, with dropout on. Direction: seeds paired with base; *shown* means that the mean difference has the"
        " paper's sign and is larger than two standard errors of it, both given in brackets. The paper's figures are"
        " for English-German, newstest2013.",
    ]
    return "\n".join(lines) + "\n"


def row_of(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def plot(path, title, rows, results):
    """PPL of each row and seed here, the paper's beside it, and PPL over the updates."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in rows if results.get(row)]
    figure, (here, paper, curves) = pyplot.subplots(
        1, 3, figsize=(15, 2.2 + 0.36 * max(8, len(rows))), width_ratios=(3, 2, 4), layout="constrained"
    )
    figure.suptitle(title, fontsize=10)
    places = range(len(rows))
    colours = dict(zip(rows, _colours(len(rows))))
    for place, row in enumerate(rows):
        values = [run["perplexity"] for run in results[row].values()]
        here.plot(values, [place] * len(values), "o", color=colours[row], alpha=0.6)
        here.plot([statistics.fmean(values)], [place], "|", color="black", markersize=14)
        paper.plot([PAPER[row][0]], [place], "s", color=colours[row])
        for run in results[row].values():
            curves.plot(*zip(*run["curve"]), color=colours[row], linewidth=1, alpha=0.8,
                        label=row if run is next(iter(results[row].values())) else None)
    for axes, text in ((here, "perplexity here (a dot a seed, a bar the mean)"),
                       (paper, "perplexity in the paper, newstest2013")):
        if BASE in rows:
            figures = results if axes is here else {BASE: {0: {"perplexity": PAPER[BASE][0]}}}
            axes.axvline(statistics.fmean(run["perplexity"] for run in figures[BASE].values()),
                         color="grey", linewidth=0.8, linestyle=":")
        axes.set_yticks(places, rows)
        axes.invert_yaxis()
        axes.set_xlabel(text)
    curves.set_xlabel("update")
    curves.set_ylabel("perplexity, validation")
    curves.set_yscale("log")
    curves.yaxis.set_major_formatter("{x:g}")
    curves.yaxis.set_minor_formatter("{x:g}")
    curves.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _colours(count):
    from matplotlib import colormaps

    colours = colormaps["tab10" if count <= 10 else "tab20"]
    return [colours(number % colours.N) for number in range(count)]
