"""The report of compare.py: as Markdown, as one HTML file with its pictures inside, and the pictures.

Everything in it comes from what the runs left in their folders: ``result.json``, logs and translations.
"""

import base64
import html
import itertools
import math
import statistics
from dataclasses import dataclass

from common import atomic_path
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from table3 import Spread, row_of

SAMPLES = 1000
EXAMPLES = 6
METRICS = {"bleu": "BLEU", "chrf": "chrF2"}


@dataclass
class Entry:
    """One system: its runs that ended well, by seed, and the sentences of those that did not.

    A run is its ``result.json``: ``parameters``, ``tokens_per_second``, ``peak_memory``, ``seconds``, ``train_loss``,
    ``valid`` and ``train`` (lists of ``[update, loss]``; ``times`` and ``batches`` beside the latter), ``rates`` and ``scores``, a
    dictionary of search -> metric -> score.
    """

    name: str
    note: str
    change: str
    search: str
    runs: dict
    failures: dict
    commands: list  # of the first seed

    def spread(self, value):
        return Spread(tuple(value(run) for run in self.runs.values()))


# ---- a document ---------------------------------------------------------------------------------------------------------
class Document:
    """Headings, paragraphs, tables, code and pictures, written as Markdown and as HTML alike."""

    def __init__(self, title):
        self.title, self.parts = title, []

    def heading(self, text):
        self.parts.append(("heading", text))

    def text(self, text):
        self.parts.append(("text", text))

    def table(self, columns, rows):
        self.parts.append(("table", [list(map(str, columns)), *(list(map(str, row)) for row in rows)]))

    def code(self, lines):
        self.parts.append(("code", "\n".join(lines)))

    def picture(self, path):
        self.parts.append(("picture", path))

    def markdown(self):
        lines = [f"# {self.title}"]
        for kind, content in self.parts:
            lines.append("")
            if kind == "heading":
                lines.append(f"## {content}")
            elif kind == "text":
                lines.append(content)
            elif kind == "code":
                lines += ["```", content, "```"]
            elif kind == "picture":
                lines.append(f"![{content.stem}]({content.name})")
            else:
                head, *rows = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in content]
                lines += [row_of(head), row_of(["---"] * len(head)), *map(row_of, rows)]
        return "\n".join(lines) + "\n"

    def html(self):
        parts = [f"<h1>{html.escape(self.title)}</h1>"]
        for kind, content in self.parts:
            if kind == "heading":
                parts.append(f"<h2>{html.escape(content)}</h2>")
            elif kind == "text":
                parts.append(f"<p>{html.escape(content)}</p>")
            elif kind == "code":
                parts.append(f"<pre>{html.escape(content)}</pre>")
            elif kind == "picture":
                data = base64.b64encode(content.read_bytes()).decode()
                parts.append(f'<img alt="{html.escape(content.stem)}" src="data:image/png;base64,{data}">')
            else:
                rows = []
                for number, row in enumerate(content):
                    tag = "td" if number else "th"
                    rows.append("<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>")
                parts.append(f"<table>{''.join(rows)}</table>")
        return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(self.title)}</title>'
                f"<style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n")


STYLE = (
    "body{font:15px/1.45 sans-serif;max-width:75em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;display:block;"
    "overflow-x:auto}td,th{border:1px solid #bbb;padding:.25em .6em;text-align:left;vertical-align:top}th{background:#eee}"
    "pre{background:#f4f4f4;padding:.7em;overflow-x:auto}img{max-width:100%}"
)


# ---- figures --------------------------------------------------------------------------------------------------------------
def same_batches(entries):
    """A sentence on whether all systems saw batches of the same size in each update of each seed."""
    seen, different = {}, []
    for entry in entries:
        for seed, run in entry.runs.items():
            batches = [(update, *batch) for (update, _), batch in zip(run["train"], run["batches"])]
            first_name, first = seen.setdefault(seed, (entry.name, batches))
            if batches != first:
                update = next((a[0] for a, b in zip(batches, first) if a != b), min(len(batches), len(first)) + 1)
                different.append(f"{entry.name} and {first_name} with seed {seed} from update {update} on")
    if different:
        return "The batches were NOT the same: " + "; ".join(different) + "."
    return ("The same batches: in each update all systems of a seed had the same numbers of target tokens and of sentences"
            " (wpb and bsz in their logs).")


def paired_bootstrap(entries, seed, search_of, texts, reference):
    """Rows of sacreBLEU's paired bootstrap, the first entry the baseline; and the signatures.

    ``texts(entry, seed, search)`` gives the lines of an output.
    """
    present = [entry for entry in entries if seed in entry.runs]
    if len(present) < 2:
        return [], ""
    named = [(entry.name, texts(entry, seed, search_of(entry))) for entry in present]
    metrics = {"BLEU": BLEU(references=[reference]), "chrF2": CHRF(references=[reference])}
    signatures, scores = PairedTest(named, metrics, references=None, test_type="bs", n_samples=SAMPLES)()
    rows = []
    for number, (name, _) in enumerate(named):
        cells = [seed, name]
        for metric in ("BLEU", "chrF2"):
            result = scores[metric][number]
            cells.append(f"{result.score:.2f} ({result.mean:.2f} ± {result.ci:.2f})")
            # sacreBLEU calls even equal outputs significantly different.
            equal = number > 0 and named[number][1] == named[0][1]
            cells.append("baseline" if number == 0 else "identical" if equal else f"{result.p_value:.4f}")
        rows.append(cells)
    return rows, "; ".join(f"{name} {signature}" for name, signature in signatures.items())


def paired_difference(entry, before, value):
    """Mean difference of ``value(entry, run)`` over the seeds that both have, with its standard error if there are two or more."""
    seeds = sorted(entry.runs.keys() & before.runs.keys())
    differences = [value(entry, entry.runs[seed]) - value(before, before.runs[seed]) for seed in seeds]
    if not differences:
        return "-"
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return f"{mean:+.3f}"
    return f"{mean:+.3f} ± {statistics.stdev(differences) / math.sqrt(len(differences)):.3f}"


def last_valid(run):
    return run["valid"][-1][1]


def own_bleu(entry, run):
    return run["scores"][entry.search]["bleu"]


def build(out, header, entries, seeds, common, searches, texts, sources, reference, note_on_reference, final):
    """Write report.md, report.html and the pictures to ``out``.

    Args:
        header: lines on data, budget and versions
        common: the search that all systems share; ``searches``: what the names of searches mean
        texts: as in :func:`paired_bootstrap`
        sources, reference: lines of the test set, ``None`` while no run has ended
        note_on_reference: where they come from
        final: also the bootstrap, which takes its time
    """
    document = Document("Side by side")
    for line in header:
        document.text(line)
    document.heading("Results")
    document.table(
        ["system", "parameters", "validation loss", "lowest", "training loss", "tokens/s", "peak memory, MiB",
         "training, s", "BLEU own", "chrF2 own", "BLEU common", "chrF2 common", "runs"],
        [_results(entry, common) for entry in entries],
    )
    document.text(
        "Losses are cross-entropies of the unsmoothed distribution in bits per target token; validation at the last"
        " update, training with dropout over the last tenth of the updates. Speed is the median over updates, memory the"
        " largest resident set of fairseq-train. ± is the standard deviation over seeds. own: with the search that"
        " belongs to the system; common: all with the paper's. BLEU and chrF2 are sacreBLEU's."
        + (f" {note_on_reference}" if reference else "")
    )
    document.table(["system", "what it is", "its own search"],
                   [[entry.name, entry.change or entry.note, searches[entry.search]] for entry in entries])
    failures = [[entry.name, seed, sentence] for entry in entries for seed, sentence in entry.failures.items()]
    if failures:
        document.heading("Failed runs")
        document.table(["system", "seed", "why"], failures)
    with_runs = [entry for entry in entries if entry.runs]
    if with_runs:
        document.text(same_batches(with_runs))
        document.heading("Curves")
        document.picture(_picture(out / "loss.png", _draw_losses, with_runs))
        document.picture(_picture(out / "learning_rate.png", _draw_rates, with_runs))
        document.text("The learning rate with which an update was made:")
        document.table(["system", "update 1", "update 2", "highest", "last"], [_rates(entry) for entry in with_runs])
    rungs = [entry for entry in entries if entry.change]
    if rungs:
        _ladder(document, out, rungs)
    if final and reference:
        _bootstrap(document, with_runs, seeds, common, texts, reference)
        _examples(document, with_runs, common, texts, sources, reference)
    document.heading("Exact commands")
    for entry in with_runs:
        if entry.commands:
            document.text(f"{entry.name}, seed {min(entry.runs)}:")
            document.code(entry.commands)
    document.heading("Where each number comes from")
    document.table(["number", "file in the run's folder"], PROVENANCE)
    document.text("The folder of a run: " + "; ".join(
        f"{entry.name} in {', '.join(run['folder'] for run in entry.runs.values())}" for entry in with_runs) + ".")
    with atomic_path(out / "report.md") as path:
        path.write_text(document.markdown(), encoding="utf-8")
    with atomic_path(out / "report.html") as path:
        path.write_text(document.html(), encoding="utf-8")


PROVENANCE = [
    ["parameters", "train.log: \"num. shared model params\""],
    ["validation loss, lowest", "train.log: valid_nll_loss of the last line \"| valid |\", and of all"],
    ["training loss", "train.log: nll_loss of the lines \"| train_inner |\", weighted by wpb"],
    ["learning rate of update k", "train.log: lr of the line of update k - 1, since fairseq logs it when it has set the next;"
     " of update 1: ../../rehearsal.json, first_rate, seen at the optimizer's first step"],
    ["tokens/s", "train.log: median of wps"],
    ["training, s; time in the curves", "train.log: sum of wpb / wps, validation and saving included"],
    ["peak memory", "train.log: \"peak memory of fairseq-train\", as the system reports it at the end of the process"],
    ["BLEU, chrF2", "search-NAME/output.txt against ../../reference.txt, or the file of --reference; search-NAME/generate.log and"
     " generate-SUBSET.txt are what fairseq-generate printed"],
    ["commands", "the lines that begin with \"$\" in train.log and search-NAME/generate.log"],
    ["all of them", "result-SYSTEM.json"],
]


def _results(entry, common):
    def score(search, metric):
        return entry.spread(lambda run: run["scores"][search][metric]).text(1)

    runs = list(entry.runs.values())
    failed = f", {len(entry.failures)} failed" if entry.failures else ""
    return [
        entry.name, f"{runs[0]['parameters']:,}" if runs else "-", entry.spread(last_valid).text(3),
        entry.spread(lambda run: min(loss for _, loss in run["valid"])).text(3),
        entry.spread(lambda run: run["train_loss"]).text(3), entry.spread(lambda run: run["tokens_per_second"]).text(0),
        entry.spread(lambda run: run["peak_memory"]).text(0), entry.spread(lambda run: run["seconds"]).text(0),
        score(entry.search, "bleu"), score(entry.search, "chrf"), score(common, "bleu"), score(common, "chrf"),
        f"{len(runs)}{failed}",
    ]


def _rates(entry):
    rates = dict(entry.runs[min(entry.runs)]["rates"])
    highest = max(rates, key=rates.get)
    by_number = [f"{rates[update]:.6g}" if update in rates else "-" for update in (1, 2)]
    return [entry.name, *by_number, f"{rates[highest]:.6g} (update {highest})", f"{rates[max(rates)]:.6g} (update {max(rates)})"]


def _ladder(document, out, rungs):
    document.heading("One change at a time")
    rows, before = [], None
    for entry in rungs:
        difference = ["", ""]
        if before is not None:
            difference = [paired_difference(entry, before, lambda _, run: last_valid(run)),
                          paired_difference(entry, before, own_bleu)]
        rows.append([entry.name.removeprefix("ladder:"), entry.change, entry.spread(last_valid).text(3), difference[0],
                     Spread(tuple(own_bleu(entry, run) for run in entry.runs.values())).text(1), difference[1]])
        before = entry
    document.table(["rung", "what it changes, and keeps from there on", "validation loss", "against the rung before",
                    "BLEU own", "against the rung before"], rows)
    document.text(
        "Differences are paired by seed, ± their standard error where there are two seeds or more: a difference below two"
        " of them is not shown. The rung implementation changes the code and not the function, in exact arithmetic; what"
        " it differs by, beside the draws of weights and dropout, is noise."
    )
    if any(entry.runs for entry in rungs):
        document.picture(_picture(out / "ladder.png", _draw_ladder, rungs))


def _bootstrap(document, entries, seeds, common, texts, reference):
    document.heading("Paired bootstrap")
    for title, search_of in (("Common search", lambda entry: common), ("Own search", lambda entry: entry.search)):
        rows, signature = [], ""
        for seed in seeds:
            found, new = paired_bootstrap(entries, seed, search_of, texts, reference)
            rows, signature = rows + found, new or signature
        if rows:
            document.text(f"{title}. Score (bootstrap mean ± half of the 95% interval), and p of the paired test against the"
                          f" first system; {SAMPLES} samples. {signature}")
            document.table(["seed", "system", "BLEU", "p", "chrF2", "p"], rows)
        else:
            document.text(f"{title}: needs two systems with the same seed.")


def _examples(document, entries, common, texts, sources, reference):
    document.heading("Examples")
    count = len(reference)
    chosen = sorted({round(i * (count - 1) / max(1, EXAMPLES - 1)) for i in range(EXAMPLES)})
    outputs = {entry.name: texts(entry, min(entry.runs), common) for entry in entries}
    for number in chosen:
        rows = [["source", sources[number]], ["reference", reference[number]]]
        rows += [[name, lines[number]] for name, lines in outputs.items()]
        document.text(f"Line {number + 1} of the test set, common search, lowest seed:")
        document.table(["", ""], rows)


# ---- pictures -----------------------------------------------------------------------------------------------------------------
def _picture(path, draw, entries):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = draw(pyplot, entries)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    pyplot.close(figure)
    return path


def smoothed(points, width=50):
    """Means of so many neighbouring points that about ``width`` are left, at the last of them."""
    size = max(1, len(points) // width)
    return [(points[end - 1][0], statistics.fmean(value for _, value in points[end - size : end]))
            for end in range(size, len(points) + 1, size)]


def _draw_losses(pyplot, entries):
    figure, axes = pyplot.subplots(2, 2, figsize=(13, 9), sharey="row", layout="constrained")
    for colour, entry in zip(_colours(pyplot), entries):
        for seed, run in entry.runs.items():
            label = entry.name if seed == min(entry.runs) else None
            style = {"color": colour, "linewidth": 1.2, "alpha": 0.85, "label": label}
            times = dict(zip((update for update, _ in run["train"]), run["times"]))
            axes[0][0].plot(*zip(*smoothed(run["train"])), **style)
            axes[0][1].plot(*zip(*smoothed([(times[update], loss) for update, loss in run["train"]])), **style)
            axes[1][0].plot(*zip(*run["valid"]), "o-", markersize=3, **style)
            timed = [(times[update], loss) for update, loss in run["valid"] if update in times]
            if timed:
                axes[1][1].plot(*zip(*timed), "o-", markersize=3, **style)
    for row, name in zip(axes, ("training", "validation")):
        row[0].set(xlabel="update", ylabel=f"{name} loss, bits per token")
        row[1].set(xlabel="seconds of training, validation and saving included")
        for axis in row:
            axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    return figure


def _draw_rates(pyplot, entries):
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for colour, entry in zip(_colours(pyplot), entries):
        axes.plot(*zip(*entry.runs[min(entry.runs)]["rates"]), color=colour, label=entry.name, linewidth=1.2, alpha=0.85)
    axes.set(xlabel="update", ylabel="learning rate as applied")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def _draw_ladder(pyplot, rungs):
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 1.5 + 0.4 * len(rungs)), sharey=True, layout="constrained")
    names = [entry.name.removeprefix("ladder:") for entry in rungs]
    for place, entry in enumerate(rungs):
        for axis, values in ((axes[0], [last_valid(run) for run in entry.runs.values()]),
                             (axes[1], [own_bleu(entry, run) for run in entry.runs.values()])):
            axis.plot(values, [place] * len(values), "o", color="C0", alpha=0.6)
            if values:
                axis.plot([statistics.fmean(values)], [place], "|", color="black", markersize=14)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("validation loss, bits per token (a dot a seed, a bar the mean)")
    axes[1].set_xlabel("BLEU, own search")
    for axis in axes:
        axis.grid(alpha=0.3)
    return figure


def _colours(pyplot):
    """The ten strong colours, then ten pale ones, and again."""
    paired = pyplot.get_cmap("tab20").colors
    return itertools.cycle((*paired[::2], *paired[1::2]))
