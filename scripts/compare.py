"""Train this plugin's model beside fairseq's own on the same data, and report what differs.

    python scripts/compare.py runs/quickstart/data runs/compare --systems transformer:matched vaswani2017_tiny \\
        --updates 300 --warmup 100 --lr-factor 0.4 --tokens 1024 --seeds 1 2 3

Every system is trained with fairseq-train on the same batches for the same number of updates, and translates with its
own search and with the paper's. Systems: vaswani2017 and all its variants; transformer:matched, fairseq's transformer
with the same sizes and the recipe as near as its flags reach; transformer:default and every other architecture of
fairseq, such as transformer_wmt_en_de, as they come; ladder, from the stock transformer to the paper's in ten rungs of
one change each. The first system is the baseline of the significance tests.

Give the same command again after an interruption: what is done is kept. The report, report.md and report.html, stands
in the output folder and grows with every run.
"""

import argparse
import json
import logging
import platform
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import commands
import comparison_report
import training_log
from common import atomic_path, positive, read_lines, run_as_script
from runner import Study, record
from sacrebleu.metrics import BLEU, CHRF
from sacremoses import MosesDetokenizer

sys.path.insert(0, str(commands.PLUGIN.parent))
logging.basicConfig(level=logging.ERROR)  # before fairseq, which remarks on every optional package that is missing

import systems  # noqa: E402

from vaswani_plugin import toolkit  # noqa: E402

VALIDATIONS = 10  # in each training
MOST_LINES = 5000  # of a log, which has one for each update if there are no more


class Run:
    """One system with one seed. Its folder is that of its training, which other systems may share."""

    def __init__(self, system, seed, comparison):
        self.system, self.seed, self.comparison = system, seed, comparison
        self.name = f"{system.name} seed {seed}"
        self.folder = comparison.out / system.training / f"seed{seed}"
        self.log = self.folder / "train.log"
        self.checkpoint = self.folder / "checkpoint_last.pt"
        self.result_file = self.folder / f"result-{re.sub(r'[^A-Za-z0-9_]', '_', system.name)}.json"

    def result(self):
        """What the report needs, or ``None``."""
        return json.loads(self.result_file.read_text()) if self.result_file.is_file() else None

    def summary(self, result):
        """One line about a finished run, and how long the others will take."""
        scores = ", ".join(f"BLEU {scores['bleu']:.1f} ({search} search)" for search, scores in result["scores"].items())
        return (f"validation loss {result['valid'][-1][1]:.3f} bits, {result['tokens_per_second']:.0f} tokens/s, {scores};"
                f" {self.comparison.estimate()}")

    def execute(self, say):
        """Train, translate, score; what an earlier try has done is kept. Raises ValueError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.trained():
            commands.run("fairseq-train", self.train_arguments(), self.log, on_line=lambda line: self._progress(line, say))
        if not self.trained():
            raise ValueError(f"fairseq-train ended before update {self.comparison.budget.updates}; see {self.log}")
        scores = {}
        for search in dict.fromkeys((self.system.search, systems.COMMON)):
            if not self.output(search).is_file():
                say(f"{self.name}: translates with the {search} search")
                self._translate(search)
            scores[search] = self.comparison.scores(read_lines(self.output(search)))
        result = {**self.figures(), "scores": scores, "folder": str(self.folder)}
        with atomic_path(self.result_file) as path:
            path.write_text(json.dumps(result, indent=1))
        return result

    def trained(self):
        """Whether the training came to its end."""
        return self.checkpoint.is_file() and (self._log().valid or [(0, 0)])[-1][0] == self.comparison.budget.updates

    def done(self):
        """How many updates the log tells of."""
        updates = self._log().updates
        return updates[-1].number if updates else 0

    def _log(self):
        return training_log.read(self.log.read_text(encoding="utf-8") if self.log.is_file() else "")

    def figures(self):
        """From the log, and from the rehearsal the rate of the first update."""
        log = self._log()
        return {
            "parameters": log.parameters, "tokens_per_second": log.tokens_per_second(), "peak_memory": log.peak_memory,
            "seconds": log.seconds()[-1], "train_loss": log.last_loss(), "valid": log.valid,
            "train": [(update.number, update.nll_loss) for update in log.updates],
            "batches": [(update.words, update.sentences) for update in log.updates], "times": log.seconds(),
            "rates": log.rates(self.comparison.first_rate(self.system)),
        }

    def _progress(self, line, say):
        found = record(line, "valid")
        if found:
            say(f"{self.name}: update {found['valid_num_updates']} of {self.comparison.budget.updates}, validation loss"
                f" {float(found['valid_nll_loss']):.3f} bits")

    def train_arguments(self):
        """The flags of fairseq-train."""
        every = max(1, self.comparison.budget.updates // VALIDATIONS)
        return [
            *self.comparison.shared_flags(), *self.system.flags, "--seed", self.seed, "--validate-interval-updates", every,
            "--save-interval-updates", every, "--keep-interval-updates", 1, "--no-epoch-checkpoints",
            # Validations and checkpoints come by updates alone: epochs are short on small data.
            "--validate-interval", 10**6, "--save-interval", 10**6, "--save-dir", self.folder,
            "--log-format", "json", "--log-interval", max(1, self.comparison.budget.updates // MOST_LINES),
        ]

    def search_folder(self, search):
        return self.folder / f"search-{search}"

    def output(self, search):
        """The file of detokenised translations."""
        return self.search_folder(search) / "output.txt"

    def _translate(self, search):
        folder = self.search_folder(search)
        folder.mkdir(exist_ok=True)
        subset = self.comparison.subset
        printed = folder / f"generate-{subset}.txt"
        flags, _ = systems.SEARCHES[search]
        log = folder / "generate.log"
        log.unlink(missing_ok=True)
        commands.run("fairseq-generate", [
            self.comparison.data, "--user-dir", commands.PLUGIN, *flags, "--path", self.checkpoint, "--gen-subset", subset,
            "--batch-size", 64, "--remove-bpe", "--num-workers", 0, "--results-path", folder,
            *(["--cpu"] if self.comparison.cpu else []),
        ], log)
        found = generated(printed.read_text(encoding="utf-8"))
        self.comparison.keep_texts(found)
        with atomic_path(self.output(search)) as path:
            path.write_text("".join(f"{line}\n" for line in self.comparison.detokenised(found["H"])), encoding="utf-8")

    def commands(self):
        """The exact commands, as its logs have them."""
        logs = [self.log, *(self.search_folder(name) / "generate.log" for name in dict.fromkeys(
            (self.system.search, systems.COMMON)))]
        return [line for log in logs if log.is_file() for line in training_log.commands_in(log.read_text("utf-8"))]


def generated(text):
    """``{"S": lines, "T": lines, "H": lines}`` of what fairseq-generate printed, in the order of the data set. Raises ValueError."""
    found = {"S": {}, "T": {}, "H": {}}
    for line in text.split("\n"):
        match = re.match(r"([STH])-(\d+)\t(.*)$", line)
        if match:
            kind, number, content = match.groups()
            found[kind][int(number)] = content.partition("\t")[2] if kind == "H" else content
    numbers = sorted(found["H"])
    if not numbers or any(sorted(by_number) != numbers for by_number in found.values()):
        raise ValueError("fairseq-generate printed no complete set of translations with their references")
    return {kind: [by_number[number] for number in numbers] for kind, by_number in found.items()}


class Comparison(Study):
    """All runs of one command, and their report."""

    def __init__(self, data, out, chosen, seeds, budget, subset, reference, cpu):
        self.data, self.budget, self.subset, self.seeds, self.cpu = data, budget, subset, seeds, cpu
        self.systems, self.reference_file = chosen, reference
        self.out = Path(out)
        self.languages = languages(data)
        self._detokenizer = MosesDetokenizer(self.languages[1])
        self.final = False
        # Seed by seed, so that an interrupted comparison has whole comparisons.
        runs = [Run(system, seed, self) for seed in seeds for system in chosen]
        settings = {**asdict(budget), "data": str(data), "subset": subset,
                    "reference": str(reference) if reference else None}
        super().__init__(self.out, runs, settings)

    def shared_flags(self):
        """What all systems have in common."""
        return [
            self.data, "--user-dir", commands.PLUGIN, "--task", "vaswani_translation", "--max-update", self.budget.updates,
            "--max-tokens", self.budget.tokens, "--required-batch-size-multiple", 1, "--valid-subset", "valid",
            "--num-workers", 0,  # short epochs: a process to load each costs more than it saves
            *(["--cpu"] if self.cpu else []),
        ]

    # ---- beforehand ---------------------------------------------------------------------------------------------------
    def rehearse(self):
        """Measure a few updates of each system that is not yet trained, and say how long all will take."""
        self.out.mkdir(parents=True, exist_ok=True)
        self._keep_settings()
        waiting = {}
        for run in self.runs:
            if run.result() is None and "seconds_per_update" not in self.rehearsal().get(run.system.training, {}):
                waiting.setdefault(run.system.training, [
                    str(word) for word in (*self.shared_flags(), *run.system.flags, "--seed", run.seed,
                                           "--save-dir", run.folder)  # where the task puts the dictionaries
                ])
        if waiting:
            self._say(f"measures a few updates of {', '.join(waiting)}")
            trainings = self.out / "rehearsal-flags.json"
            with atomic_path(trainings) as path:
                path.write_text(json.dumps(waiting, indent=1))
            ended = subprocess.run(
                [sys.executable, str(Path(__file__).with_name("rehearsal.py")), str(trainings),
                 str(self.out / "rehearsal.json"), "--subset", self.subset], stderr=subprocess.PIPE, text=True,
            )
            if ended.returncode:
                self._say(f"no estimate: {(ended.stderr.strip().splitlines() or ['the rehearsal ended'])[-1]}")
        self._say(self.estimate())

    def rehearsal(self):
        file = self.out / "rehearsal.json"
        return json.loads(file.read_text()) if file.is_file() else {}

    def first_rate(self, system):
        """The learning rate that the optimizer used first."""
        return self.rehearsal().get(system.training, {}).get("first_rate")

    def estimate(self):
        """A sentence on the time that the runs still to do will take."""
        rehearsed, total, unknown, seen = self.rehearsal(), 0.0, [], set()
        for run in self.runs:
            measured = rehearsed.get(run.system.training, {})
            if run.result() is not None:
                continue
            if "seconds_per_update" not in measured:
                unknown.append(f"{run.name} ({measured.get('error', 'not measured')})")
                continue
            if run.folder not in seen and not run.trained():
                total += (self.budget.updates - run.done()) * measured["seconds_per_update"]
            for search in dict.fromkeys((run.system.search, systems.COMMON)):
                if not run.output(search).is_file() and (run.folder, search) not in seen:
                    total += measured["sentences"] * measured["seconds_per_sentence"]
                    seen.add((run.folder, search))
            seen.add(run.folder)
        sentence = f"about {total / 60:.0f} min to go, if models translate as slowly as before they have learned to stop"
        return sentence + (f"; not counted: {'; '.join(unknown)}" if unknown else "")

    # ---- texts ----------------------------------------------------------------------------------------------------------
    def detokenised(self, lines):
        return [self._detokenizer.detokenize(line.split()) for line in lines]

    def keep_texts(self, found):
        """Write sources and references once; every later output must be of the same sentences. Raises ValueError."""
        for name, lines in (("source.txt", found["S"]), ("reference.txt", found["T"])):
            file, lines = self.out / name, self.detokenised(lines)
            if name == "reference.txt" and self.reference_file:
                lines = read_lines(self.reference_file)
            if file.is_file():
                if read_lines(file) != lines:
                    raise ValueError(f"{file} is of other sentences than those that were translated now")
                continue
            with atomic_path(file) as path:
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def scores(self, lines):
        reference = [read_lines(self.out / "reference.txt")]
        return {"bleu": BLEU().corpus_score(lines, reference).score, "chrf": CHRF().corpus_score(lines, reference).score}

    # ---- the report -----------------------------------------------------------------------------------------------------
    def finish(self):
        """The report, with the significance tests and examples."""
        self._say("significance tests and examples")
        self.final = True
        self.report()

    def report(self):
        """Write report.md, report.html and the pictures from the finished runs."""
        entries = []
        for system in self.systems:
            of_system = [run for run in self.runs if run.system is system]
            results = {run.seed: run.result() for run in of_system}
            results = {seed: result for seed, result in results.items() if result is not None}
            entries.append(comparison_report.Entry(
                system.name, system.note, system.change, system.search, results,
                {run.seed: self.failures[run] for run in of_system if run in self.failures},
                next((run.commands() for run in of_system if run.seed in results), []),
            ))
        by_name = {(run.system.name, run.seed): run for run in self.runs}
        texts = [read_lines(self.out / name) if (self.out / name).is_file() else None for name in ("source.txt", "reference.txt")]
        comparison_report.build(
            self.out, self._header(), entries, self.seeds, systems.COMMON,
            {name: meaning for name, (_, meaning) in systems.SEARCHES.items()},
            lambda entry, seed, search: read_lines(by_name[entry.name, seed].output(search)), *texts,
            "The reference is the file of --reference, untouched." if self.reference_file else
            "The reference is that of the data directory, joined and detokenised as the outputs are: give --reference for"
            " scores that compare with other people's.",
            self.final,
        )

    def _header(self):
        import torch

        fairseq = " ".join(toolkit.fairseq_distribution() or ("fairseq", "unknown"))
        source, target = self.languages
        return [
            f"Data: {self.data}, {source} to {target}, translated and scored on the subset {self.subset}. {self.budget.updates}"
            f" updates of up to {self.budget.tokens} target tokens, {self.budget.warmup} of warm-up; Eq. 3 times"
            f" {self.budget.lr_factor:g} where a system follows it. Seeds: {', '.join(map(str, self.seeds))}.",
            f"Python {platform.python_version()}, torch {torch.__version__}, {fairseq}, {platform.machine()},"
            f" {torch.get_num_threads()} threads.",
        ]


def languages(data):
    """Source and target of a data directory. Raises ValueError."""
    from fairseq.data.data_utils import infer_language_pair

    pair = infer_language_pair(str(data)) if Path(data).is_dir() else (None, None)
    if not all(pair):
        raise ValueError(f"DATA {data} is no directory of fairseq-preprocess: it holds no train.SOURCE-TARGET files")
    return pair


def sentences(data, subset, pair):
    """How many sentences a subset of a data directory has."""
    from fairseq.data.data_utils import load_indexed_dataset

    source, target = pair
    return len(load_indexed_dataset(str(data / f"{subset}.{source}-{target}.{target}"), dictionary=None))


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="directory of fairseq-preprocess --joined-dictionary")
    parser.add_argument("out", type=Path, help="folder for runs and report")
    parser.add_argument("--systems", nargs="+", default=["transformer:matched", "vaswani2017_tiny"], metavar="SYSTEM",
                        help="see above (default: %(default)s)")
    parser.add_argument("--shape", nargs=4, type=positive, metavar=("N", "D_MODEL", "D_FF", "H"),
                        help="sizes of this plugin's models, transformer:matched and the ladder (default: those of the first"
                        " vaswani2017... named, or of vaswani2017_tiny)")
    parser.add_argument("--updates", type=positive, default=100_000, help="default: %(default)s, the paper's")
    parser.add_argument("--warmup", type=positive, help="warm-up updates (default: 4%% of --updates, as in the paper)")
    parser.add_argument("--lr-factor", type=float, default=1.0,
                        help="factor on Eq. 3, whose peak (d_model warmup)^-0.5 is high for small models and short warm-ups"
                        " (default: 1)")
    parser.add_argument("--tokens", type=positive, default=25_000,
                        help="target tokens of an update, on one worker (default: %(default)s, the paper's)")
    parser.add_argument("--seeds", type=positive, nargs="+", default=[1])
    parser.add_argument("--subset", default="test", help="split that is translated (default: test)")
    parser.add_argument("--reference", type=Path, help="its references, untouched (default: those of DATA, detokenised)")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    return parser.parse_args()


def main():
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: the commands that run, end too
    if not arguments.lr_factor > 0:
        raise ValueError(f"--lr-factor must be positive, not {arguments.lr_factor}")
    budget = systems.Budget(arguments.updates, arguments.warmup or max(1, arguments.updates // 25), arguments.tokens,
                            arguments.lr_factor)
    names = list(dict.fromkeys(name for given in arguments.systems for name in given.split(",") if name))
    shape = tuple(arguments.shape) if arguments.shape else None
    chosen = systems.choose(names, shape, budget)
    pair = languages(arguments.data)
    if not list(arguments.data.glob(f"{arguments.subset}.{pair[0]}-{pair[1]}.*")):
        raise ValueError(f"{arguments.data} has no subset {arguments.subset}: give another --subset")
    if arguments.reference:
        given, of_subset = len(read_lines(arguments.reference)), sentences(arguments.data, arguments.subset, pair)
        if given != of_subset:
            raise ValueError(f"{arguments.reference} has {given} lines and the subset {arguments.subset} has {of_subset}"
                             " sentences: give the untouched file that it was made from")
    comparison = Comparison(arguments.data, arguments.out, chosen, sorted(set(arguments.seeds)), budget, arguments.subset,
                            arguments.reference, arguments.cpu)
    comparison.rehearse()
    try:
        comparison.execute()
    finally:
        print(f"the report: {arguments.out / 'report.md'} and report.html", flush=True)


if __name__ == "__main__":
    run_as_script(main)
