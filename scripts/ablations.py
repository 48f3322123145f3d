"""Train rows of Table 3 at any scale, with several seeds, and set the results beside the paper's.

    python scripts/toy_language.py runs/toy
    python scripts/ablations.py runs/toy/bin runs/ablations --rows a_h1 b_dk16 c_n2 d_drop0 e_learned \\
        --scale 1/8 --depth 1/3 --updates 1500 --warmup 100 --lr-factor 0.3 --tokens 300 --seeds 1 2 3 --jobs 2

Every run is a fairseq-train and a fairseq-generate (beam 4, length penalty 0.6, no averaging, as for the paper's
table). Give the same command again after an interruption: finished runs are kept, others go on from their last
checkpoint. The report, table3.md, table3.json and table3.png, stands in the output folder and grows with every run.
"""

import argparse
import json
import logging
import re
import signal
import sys
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path

import commands
import runner
import table3
from common import atomic_path, positive, run_as_script
from runner import one_thread_each, record

sys.path.insert(0, str(commands.PLUGIN.parent))

VALIDATIONS = 10  # in each run


@dataclass(frozen=True)
class Settings:
    """All that decides the figures, but for row and seed."""

    data: str
    subset: str
    scale: str
    depth: str
    updates: int
    warmup: int
    lr_factor: float
    tokens: int

    def architecture(self, row):
        """The row of Table 3 with widths times ``scale``, layers times ``depth`` (rounded, at least 1). Raises ValueError."""
        base, paper = paper_architecture(table3.BASE), paper_architecture(row)
        scale, depth = Fraction(self.scale), Fraction(self.depth)
        small = replace(
            paper,
            layers=max(1, round(paper.layers * depth)),
            d_model=_whole(paper.d_model * scale, "d_model", row),
            d_ff=_whole(paper.d_ff * scale, "d_ff", row),
            d_k=_whole(paper.d_k * scale, "d_k", row, least=0),
            d_v=_whole(paper.d_v * scale, "d_v", row, least=0),
            updates=self.updates * paper.updates // base.updates,
        )
        if small.d_model % small.heads:
            raise ValueError(f"row {row} at scale {self.scale}: {small.heads} heads do not divide {small.d_model}")
        return small

    def header(self, seeds):
        return [
            f"Data: `{self.data}`, subset `{self.subset}`. Widths x {self.scale}, layers x {self.depth}, base trained"
            f" for {self.updates} updates of up to {self.tokens} tokens, {self.warmup} of warm-up, Eq. 3 times"
            f" {self.lr_factor:g}. Seeds asked for: {', '.join(map(str, seeds))}.",
            "",
            "The paper trained these rows on WMT 2014 English-German at scale 1, base for 100000 updates of 25000 tokens,"
            " 4000 of warm-up, and prints one figure for each. Only directions can be compared, not figures.",
        ]


def paper_architecture(row):
    """The plugin's entry for a row of Table 3."""
    from vaswani_plugin.architectures import ARCHITECTURES

    return ARCHITECTURES[architecture_name(row)]


def architecture_name(row):
    return "vaswani2017" if row == table3.BASE else f"vaswani2017_{row}"


def _whole(number, name, row, least=1):
    if number.denominator != 1 or number < least:
        raise ValueError(f"row {row}: {name} would be {number}, not a whole number: choose another --scale")
    return int(number)


class Run:
    """One row with one seed, in a folder of its own."""

    def __init__(self, settings, row, seed, out):
        self.settings, self.row, self.seed = settings, row, seed
        self.architecture = settings.architecture(row)
        self.folder = out / row / f"seed{seed}"
        self.result_file = self.folder / "result.json"
        self.log = self.folder / "train.log"
        self.name = f"{row} seed {seed}"

    def result(self):
        """The figures of the finished run, or ``None``."""
        return json.loads(self.result_file.read_text()) if self.result_file.is_file() else None

    def execute(self, say):
        """Train, generate, write ``result.json``; what an earlier try has done is kept. Returns the figures."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._trained():
            commands.run("fairseq-train", self._train_arguments(), self.log,
                         on_line=lambda line: self._report(line, say), environment=one_thread_each())
        translations = self.folder / "generate.log"
        translations.unlink(missing_ok=True)
        commands.run("fairseq-generate", self._generate_arguments(), translations, environment=one_thread_each())
        figures = figures_of(self.log.read_text(encoding="utf-8"), translations.read_text(encoding="utf-8"))
        with atomic_path(self.result_file) as path:
            path.write_text(json.dumps(figures, indent=1))
        return figures

    @staticmethod
    def summary(figures):
        return f"perplexity {figures['perplexity']:.3f}, BLEU {figures['bleu']:.1f}"

    def _trained(self):
        if not self.log.is_file():
            return False
        curve = validations(self.log.read_text(encoding="utf-8"))
        return bool(curve) and curve[-1][0] == self.architecture.updates and self._checkpoint().is_file()

    def _checkpoint(self):
        return self.folder / "checkpoint_last.pt"

    def _report(self, line, say):
        found = record(line, "valid")
        if found:
            say(f"{self.name}: update {found['valid_num_updates']} of {self.architecture.updates},"
                f" perplexity {perplexity(found, 'valid'):.2f}")

    def _train_arguments(self):
        small = self.architecture
        every = max(1, small.updates // VALIDATIONS)
        arguments = [
            self.settings.data, "--user-dir", commands.PLUGIN, "--task", "vaswani_translation",
            "--arch", architecture_name(self.row),
            "--encoder-embed-dim", small.d_model, "--encoder-ffn-embed-dim", small.d_ff,
            "--encoder-layers", small.layers, "--decoder-layers", small.layers,
            "--max-update", small.updates, "--warmup-updates", self.settings.warmup,
            "--lr-factor", self.settings.lr_factor, "--max-tokens", self.settings.tokens, "--seed", self.seed,
            "--valid-subset", self.settings.subset, "--validate-interval-updates", every,
            "--save-interval-updates", every, "--keep-interval-updates", 1, "--no-epoch-checkpoints",
            # Validations and checkpoints come by updates alone: epochs are short on small data.
            "--validate-interval", 10**6, "--save-interval", 10**6,
            "--save-dir", self.folder, "--log-format", "json", "--log-interval", every,
            "--num-workers", 0,  # short epochs: a process to load each costs more than it saves
        ]
        if small.d_k:
            arguments += ["--attention-key-dim", small.d_k]
        return arguments

    def _generate_arguments(self):
        return [self.settings.data, "--user-dir", commands.PLUGIN, "--task", "vaswani_translation",
                "--path", self._checkpoint(), "--gen-subset", self.settings.subset, "--batch-size", 64,
                "--remove-bpe"]


def perplexity(found, kind):
    """From the log's nll_loss in bits, which has more digits than its perplexity."""
    return 2 ** float(found[f"{kind}_nll_loss"])


def validations(log):
    """``[(update, perplexity)]`` in order; a validation that a resumed run repeated counts once."""
    records = filter(None, (record(line, "valid") for line in log.splitlines()))
    return sorted({int(found["valid_num_updates"]): perplexity(found, "valid") for found in records}.items())


def figures_of(train_log, generate_log):
    """The figures of a run from what the two commands printed. Raises ValueError when one is missing."""
    curve = validations(train_log)
    epochs = [found for found in (record(line, "train") for line in train_log.splitlines()) if found]
    parameters = re.findall(r"num\. shared model params: ([\d,]+)", train_log)
    bleu = re.findall(r"BLEU4 = ([\d.]+)", generate_log)
    if not (curve and epochs and parameters and bleu):
        raise ValueError("the logs of fairseq-train and fairseq-generate lack a perplexity, a size or a BLEU score")
    return {
        "perplexity": curve[-1][1],
        "best_perplexity": min(value for _, value in curve),
        "training_perplexity": perplexity(epochs[-1], "train"),
        "bleu": float(bleu[-1]),
        "parameters": int(parameters[-1].replace(",", "")),
        "curve": curve,
    }


class Study(runner.Study):
    """All runs of one command, and their report."""

    def __init__(self, settings, rows, seeds, out):
        self.settings, self.rows, self.seeds = settings, rows, seeds
        # Seed by seed, so that an interrupted study has whole comparisons.
        runs = [Run(settings, row, seed, out) for seed in seeds for row in rows]
        super().__init__(out, runs, asdict(settings))

    def report(self):
        """Write table3.md, table3.json and table3.png from the finished runs."""
        results = {}
        for run in self.runs:
            if (figures := run.result()) is not None:
                results.setdefault(run.row, {})[run.seed] = figures
        sizes = {row: self._sizes(row) for row in self.rows}
        header = self.settings.header(self.seeds)
        with atomic_path(self.out / "table3.md") as path:
            path.write_text(table3.markdown(header, sizes, results), encoding="utf-8")
        with atomic_path(self.out / "table3.json") as path:
            path.write_text(json.dumps({
                "settings": asdict(self.settings), "seeds": self.seeds, "sizes": sizes, "runs": results,
                "paper": {row: dict(zip(("perplexity", "bleu", "millions"), table3.PAPER[row])) for row in self.rows},
                "directions": {row: table3.verdict(row, results) for row in self.rows if row != table3.BASE},
            }, indent=1))
        if results:
            with atomic_path(self.out / "table3.png") as path:
                table3.plot(path, self._title(), self.rows, results)

    def _title(self):
        s = self.settings
        return (f"Rows of Table 3 at widths x {s.scale}, layers x {s.depth}, {s.updates} updates of {s.tokens} tokens;"
                f" {len(self.seeds)} seeds; {s.data}, {s.subset}")

    def _sizes(self, row):
        small = self.settings.architecture(row)
        per_head = small.d_model // small.heads
        return {"N": small.layers, "d_model": small.d_model, "d_ff": small.d_ff, "h": small.heads,
                "d_k": small.d_k or per_head, "d_v": small.d_v or per_head, "P_drop": small.dropout,
                "eps_ls": small.label_smoothing, "positions": "learned" if small.learned_positions else "sinusoids",
                "updates": small.updates}


def _fraction(text):
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number such as 1/8 or 0.125")
    return str(value)


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="directory of fairseq-preprocess --joined-dictionary")
    parser.add_argument("out", type=Path, help="folder for runs and report")
    parser.add_argument("--rows", nargs="+", default=["all"], metavar="ROW",
                        help=f"{', '.join(table3.PAPER)}, or groups {', '.join(table3.GROUPS)} (default: all)")
    parser.add_argument("--scale", type=_fraction, default="1", help="factor on d_model, d_ff, d_k, d_v (default: 1)")
    parser.add_argument("--depth", type=_fraction, default="1", help="factor on the number of layers, which is rounded (default: 1)")
    parser.add_argument("--updates", type=positive, default=100_000,
                        help="updates of base; big gets three times as many (default: %(default)s, the paper's)")
    parser.add_argument("--warmup", type=positive, help="warm-up updates (default: 4%% of --updates, as in the paper)")
    parser.add_argument("--lr-factor", type=float, default=1.0,
                        help="factor on Eq. 3, whose peak (d_model warmup)^-0.5 is high for small models (default: 1)")
    parser.add_argument("--tokens", type=positive, default=25_000,
                        help="target tokens of an update, on one worker (default: %(default)s, the paper's)")
    parser.add_argument("--seeds", type=positive, nargs="+", default=[1])
    parser.add_argument("--jobs", type=positive, default=1, help="runs at the same time (default: 1)")
    parser.add_argument("--subset", default="valid", help="split that is judged (default: valid)")
    return parser.parse_args()


def main():
    arguments = _arguments()
    logging.disable(logging.INFO)  # fairseq logs while it is imported
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: the commands that run, end too
    if not arguments.data.is_dir():
        raise ValueError(f"DATA {arguments.data} is not a directory: prepare it with fairseq-preprocess")
    if not arguments.lr_factor > 0:
        raise ValueError(f"--lr-factor must be positive, not {arguments.lr_factor}")
    rows = table3.choose(arguments.rows)
    settings = Settings(
        data=str(arguments.data), subset=arguments.subset, scale=arguments.scale, depth=arguments.depth,
        updates=arguments.updates, warmup=arguments.warmup or max(1, arguments.updates // 25),
        lr_factor=arguments.lr_factor, tokens=arguments.tokens,
    )
    study = Study(settings, rows, sorted(set(arguments.seeds)), arguments.out)
    study.execute(arguments.jobs)
    print(f"the report: {arguments.out / 'table3.md'}")


if __name__ == "__main__":
    run_as_script(main)
