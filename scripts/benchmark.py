"""Measure this plugin against fairseq's stock transformer of the same shape, and training steps against torch.nn.Transformer.

The sides take turns in one process, on the same batches, with the same number of threads. Of each round the ratio is
taken, so that what disturbs the machine for a while disturbs both; given are medians, with the lowest and highest.
"""

import argparse
import json
import logging
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

logging.disable(logging.INFO)  # before fairseq configures its own
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from common import atomic_path, run_as_script  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import benchmark_sides  # noqa: E402
from benchmark_sides import Case, Side  # noqa: E402

from vaswani_plugin import toolkit  # noqa: E402
from vaswani_plugin.layers import EncoderLayer  # noqa: E402
from vaswani_plugin.architectures import ARCHITECTURES  # noqa: E402
from vaswani_plugin.config import VaswaniConfig  # noqa: E402

TINY = Case("tiny", entries=8_000)
GENERATION = {"beam": 4, "words": 24, "steps": 40, "entries": 37_000}

# (measure, case, sides, rounds)
QUICK = [
    ("train", TINY, ("ours", "stock", "torch"), 7),
    ("train", Case(), ("ours", "stock", "torch"), 3),
    ("memory", Case(tokens=2_000), ("ours", "stock"), 1),
    ("generate", Case("tiny", tokens=24, **GENERATION), ("ours", "stock"), 5),
    ("generate", Case("tiny", tokens=768, **GENERATION), ("ours", "stock"), 2),
    ("validate", TINY, ("ours", "stock"), 5),
    ("start-up", Case(entries=1_000), ("ours", "stock"), 2),
]
FULL = [
    *[("train", case, ("ours", "stock", "torch"), rounds) for case, rounds in (
        (TINY, 15),
        (replace(TINY, entries=37_000), 11),
        (Case(), 9),
        (Case(mixed=True), 9),
        (Case(entries=8_000), 9),
        (Case(tokens=4_096), 5),
        (Case(words=512, tokens=4_096), 5),
        (Case("big"), 3),
    )],
    *[("memory", case, ("ours", "stock", "torch"), 1) for case in (Case(), Case(tokens=4_096))],
    ("memory", Case(words=512, tokens=4_096), ("ours", "stock", "torch"), 1),
    ("recompute", Case(tokens=4_096), ("ours", "stock"), 1),
    *[("generate", Case(model, tokens=24 * sentences, **GENERATION), ("ours", "stock"), rounds)
      for model in ("tiny", "base") for sentences, rounds in ((1, 9), (32, 5))],
    ("validate", Case(tokens=4_096), ("ours", "stock"), 5),
    ("start-up", Case(entries=1_000), ("ours", "stock"), 7),
    ("length", Case(), ("ours",), 5),
    ("precision", Case(), ("ours",), 5),
]
MEASURES = list(dict.fromkeys(row[0] for row in FULL))
LESS_IS_BETTER = {"train": "s", "validate": "s", "start-up": "s", "memory": "MB", "recompute": "MB"}


# ---- measures: each returns a list of {side: value}, one for each round ---------------------------------------------
def processor_time():
    """Seconds that all threads of this process and its finished children have computed."""
    import resource

    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


CLOCKS = {"wall": time.perf_counter, "processor": processor_time}


def in_turns(functions, rounds, settings, progress):
    """Seconds of each function in each round after one that does not count; the order turns around every round."""
    clock = CLOCKS[settings.clock]
    seconds = []
    for number in range(rounds + 1):
        order = list(functions) if number % 2 else list(reversed(functions))
        taken = {}
        for name in order:
            start = clock()
            functions[name]()
            taken[name] = clock() - start
        if number:
            seconds.append({name: taken[name] for name in functions})
        progress(f"round {number} of {rounds}")
    return seconds


def sides_of(case, sides, settings, precision=None, extra=()):
    precision = precision or settings.precision
    with tempfile.TemporaryDirectory() as folder:
        benchmark_sides.write_dictionaries(folder, case.entries)
        return {side: Side(side, case, folder, settings.device, precision, extra) for side in sides}


def waiting(side, function, *arguments):
    def run():
        function(*arguments)
        side.synchronize()

    return run


def train(case, sides, rounds, settings, progress):
    """Seconds of an update: forward, backward and Adam."""
    sample = benchmark_sides.batch(case)
    built = sides_of(case, sides, settings)
    return in_turns({name: waiting(side, side.train_step, sample) for name, side in built.items()}, rounds, settings, progress)


def validate(case, sides, rounds, settings, progress):
    """Seconds to compute the losses of a batch."""
    sample = benchmark_sides.batch(case)
    built = sides_of(case, sides, settings)
    return in_turns({name: waiting(side, side.valid_step, sample) for name, side in built.items()}, rounds, settings, progress)


def generate(case, sides, rounds, settings, progress):
    """Sentences per second of a beam search with the same number of steps for all."""
    sample = benchmark_sides.batch(case)
    if settings.device == "cuda":
        sample["net_input"] = {name: value.cuda() for name, value in sample["net_input"].items()}
    built = sides_of(case, sides, settings)
    functions = {}
    for name, side in built.items():
        function = side.generator(case)
        lengths = set(function(sample))
        if lengths != {case.steps}:
            raise RuntimeError(f"{name} wrote outputs of {sorted(lengths)} tokens, not {case.steps}: no fair comparison")
        functions[name] = waiting(side, function, sample)
    seconds = in_turns(functions, rounds, settings, progress)
    return [{name: case.sentences / value for name, value in taken.items()} for taken in seconds]


def memory(case, sides, rounds, settings, progress, extra=()):
    """Peak memory in MB of a process of its own that makes two updates (on a GPU, of the tensors there)."""
    peaks = {}
    for side in sides:
        results = multiprocessing.get_context("spawn").Queue()
        child = multiprocessing.get_context("spawn").Process(
            target=_peak, args=(results, side, case, settings, extra)
        )
        child.start()
        child.join()
        if child.exitcode:
            raise RuntimeError(f"the process of {side} ended with {child.exitcode}")
        peaks[side] = results.get()
        progress(side)
    return [peaks]


def recompute(case, sides, rounds, settings, progress):
    """:func:`memory` with --checkpoint-activations."""
    return memory(case, sides, rounds, settings, progress, ("--checkpoint-activations",))


def _peak(results, name, case, settings, extra):
    torch.set_num_threads(settings.threads)
    (side,) = sides_of(case, [name], settings, extra=extra).values()
    sample = benchmark_sides.batch(case)
    for _ in range(2):  # the second holds Adam's moments from its start
        side.train_step(sample)
    results.put(peak_memory(settings.device) / 1e6)


def peak_memory(device):
    """Highest number of bytes that this process has held, or that its tensors on the GPU have."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: Linux hands its maximum down from the process that started this one.
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def start_up(case, sides, rounds, settings, progress):
    """Seconds of a whole `fairseq-train` that makes one small update and saves nothing."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for language in "ab":
            lines = (" ".join(f"w{(7 * i + j) % (case.entries - 4)}" for j in range(8)) for i in range(case.entries))
            (folder / f"train.{language}").write_text("".join(f"{line}\n" for line in lines))
        tool = [sys.executable, "-m", "fairseq_cli.preprocess", "-s", "a", "-t", "b", "--joined-dictionary"]
        tool += ["--trainpref", folder / "train", "--destdir", folder / "bin"]
        subprocess.run(list(map(str, tool)), check=True, capture_output=True)
        commands = {}
        for side in sides:
            flags = benchmark_sides.command_line(side, case, folder / "bin", settings.device, settings.precision)
            plugin = Path(benchmark_sides.toolkit.__file__).parent
            flags += ["--user-dir", str(plugin)] if side == "ours" else []
            flags += ["--max-update", "1", "--max-tokens", "64", "--no-save", "--disable-validation"]
            commands[side] = [sys.executable, "-m", "fairseq_cli.train", *flags]
        environment = {**os.environ, "OMP_NUM_THREADS": str(settings.threads)}
        environment.pop("PYTHONPATH", None)

        def run(command):
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")

        return in_turns({side: lambda c=command: run(c) for side, command in commands.items()}, rounds, settings, progress)


def length(case, sides, rounds, settings, progress):
    """Seconds of one encoder layer, forward and backward, by sentence length, and Table 1's terms fitted to them.

    One sentence of n words is cut from 4096 words, so that each length does as much work outside attention.
    """
    layer = EncoderLayer(VaswaniConfig().layer_sizes()).to(settings.device)
    d, words = ARCHITECTURES[case.architecture].d_model, 4_096

    def step(n):
        x = torch.randn(words // n, n, d, device=settings.device, requires_grad=True)

        def run():
            layer(x).sum().backward()
            if settings.device == "cuda":
                torch.cuda.synchronize()

        return run

    lengths = [32, 64, 128, 256, 512, 1024, 2048, 4096]
    rounds = in_turns({str(n): step(n) for n in lengths}, rounds, settings, progress)
    return [{n: seconds * int(n) / words for n, seconds in taken.items()} for taken in rounds]


def precision(case, sides, rounds, settings, progress):
    """Seconds of our update in bf16 and in fp32; the losses of both on 40 batches of a small model stand beside it."""
    sample = benchmark_sides.batch(case)
    built = {name: sides_of(case, ["ours"], settings, name)["ours"] for name in ("bf16", "fp32")}
    return in_turns({name: waiting(side, side.train_step, sample) for name, side in built.items()}, rounds, settings, progress)


def loss_curves(settings, updates=60, every=10):
    """Training losses in bits of the tiny model in both precisions, from the same start on the same batches."""
    case = Case("tiny", entries=1_000, words=16, tokens=512)
    curves = {}
    for name in ("bf16", "fp32"):
        side = sides_of(case, ["ours"], settings, name, ("--warmup-updates", "400"))["ours"]
        losses = [float(side.train_step(benchmark_sides.batch(case, seed=update % 4))) for update in range(updates)]
        curves[name] = losses[::every] + losses[-1:]
    return curves


RUN = {
    "train": train, "memory": memory, "recompute": recompute, "generate": generate, "validate": validate,
    "start-up": start_up, "length": length, "precision": precision,
}


# ---- results --------------------------------------------------------------------------------------------------------
def spread(values):
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def summarise(measure, case, rounds):
    """One row of the report: each side's values, and by how much the first side is ahead of each other one."""
    first, *others = rounds[0]
    row = {"measure": measure, "case": str(case), "sides": {}, "ratios": {}}
    for side in rounds[0]:
        values = [taken[side] for taken in rounds]
        row["sides"][side] = {**spread(values), "values": values}
    if measure == "length":
        row["fit"] = fit({int(n): row["sides"][n]["median"] for n in row["sides"]}, 512)
        return row
    for other in others:
        turned = measure in ("memory", "recompute", "generate")
        ratios = [t[first] / t[other] if turned else t[other] / t[first] for t in rounds]
        row["ratios"][other] = spread(ratios)
    return row


def fit(seconds, d):
    """Least squares of relative errors: seconds of a sentence of n words = a n^2 d + b n d^2, with a and b at least 0."""
    import numpy

    n = numpy.array(list(seconds), dtype=float)
    y = numpy.array(list(seconds.values()))
    terms = numpy.stack([n**2 * d, n * d**2], axis=1)
    a, b = numpy.linalg.lstsq(terms / y[:, None], numpy.ones(len(n)), rcond=None)[0].clip(min=0)
    fitted = terms @ [a, b]
    return {
        "seconds per n^2 d": float(a),
        "seconds per n d^2": float(b),
        "measured / fitted": {str(int(k)): float(v) for k, v in zip(n, y / fitted)},
    }


def machine(settings):
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    described = {
        "processor": name,
        "cores": os.cpu_count(),
        "threads": settings.threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": " ".join(toolkit.fairseq_distribution() or ("unknown",)),
        "device": settings.device,
        "clock": settings.clock,
        "precision": settings.precision,
        "bf16 instructions": has_bf16(settings.device),
    }
    if settings.device == "cuda":
        described["gpu"] = torch.cuda.get_device_name()
    return described


def has_bf16(device):
    """Whether the device multiplies bf16 in hardware."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported()
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and any(flag in cpuinfo.read_text() for flag in ("avx512_bf16", "amx_bf16"))


def markdown(report):
    """The report as a table, one row for each measure and case."""
    m = report["machine"]
    lines = [
        f"{m.get('gpu', m['processor'])}, {m['threads']} threads, {m['precision']}, torch {m['torch']}, {m['fairseq']}."
        f" Medians, in brackets lowest and highest; seconds of {m['clock']} time.",
        "",
        "| measure | case | ours | stock | torch | ours against stock | against torch |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        if row["ratios"] and row["measure"] != "precision":
            unit = LESS_IS_BETTER.get(row["measure"], "sentences/s")
            cells = [_value(row["sides"].get(side), unit) for side in benchmark_sides.SIDES]
            word = "of it" if row["measure"] in ("memory", "recompute") else "times as fast"
            cells += [ratio_cell(row["ratios"].get(side), word) for side in ("stock", "torch")]
            lines.append(f"| {row['measure']} | {row['case']} | {' | '.join(cells)} |")
    for row in report["rows"]:
        if row["measure"] == "length":
            off = row["fit"]["measured / fitted"]
            lines += ["", "Seconds of one encoder layer (base, forward and backward) for a sentence of n words, and how they"
                      " relate to a n^2 d + b n d^2 (Table 1's term for attention, and that of the products beside it):", "",
                      "| n | seconds | measured / fitted |", "|---|---|---|"]
            lines += [f"| {n} | {value['median']:.3g} | {off[n]:.2f} |" for n, value in row["sides"].items()]
        elif row["measure"] == "precision":
            ratio = row["ratios"]["fp32"]
            lines += ["", f"bf16 ({row['case']}): {row['sides']['bf16']['median']:.2f} s a step, fp32"
                      f" {row['sides']['fp32']['median']:.2f} s: {ratio_cell(ratio, 'times as fast')}."]
            if not m["bf16 instructions"]:
                lines.append("This processor has no bf16 instructions.")
            curves = row["losses"]
            lines += ["Training losses in bits, tiny model, every 10 updates: "
                      + "; ".join(f"{name} {', '.join(f'{x:.2f}' for x in losses)}" for name, losses in curves.items())]
    return "\n".join(lines) + "\n"


def _value(values, unit):
    if values is None:
        return ""
    digits = ".0f" if unit == "MB" else ".3g"
    return f"{values['median']:{digits}} {unit}"


def ratio_cell(ratio, word):
    """``1.23 WORD (1.10-1.31)`` of a :func:`spread`."""
    if ratio is None:
        return ""
    if ratio["low"] == ratio["high"]:
        return f"{ratio['median']:.2f} {word}"
    return f"{ratio['median']:.2f} {word} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def progress_of(title):
    """A function that says how far it is with ``title``."""
    return lambda text: print(f"{title}: {text}", file=sys.stderr, flush=True)


def save(report, path):
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(report, indent=1) + "\n")
    with atomic_path(path.with_suffix(".md")) as temporary:
        temporary.write_text(markdown(report))


def resumed(path, described, again):
    """The report at `path` if it is of this machine and these settings, else a new one."""
    if path.exists() and not again:
        try:
            report = json.loads(path.read_text())
            known = report["machine"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise ValueError(f"{path} is no report of this script: name another --output.") from None
        if known != described:
            raise ValueError(f"{path} is of another machine or other settings: name another --output, or give --again.")
        return report
    return {"machine": described, "rows": []}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  python scripts/benchmark.py                                  two minutes\n"
        "  python scripts/benchmark.py --full --output runs/full.json   all shapes; run again to go on after a stop\n"
        "  python scripts/benchmark.py --full --only train memory --case base --device cuda --precision bf16",
    )
    parser.add_argument("--full", action="store_true", help="all shapes, about half an hour on two cores")
    parser.add_argument("--only", nargs="+", choices=MEASURES, metavar="MEASURE", default=MEASURES,
                        help="some measures alone: " + ", ".join(MEASURES))
    parser.add_argument("--case", default="", help="only cases whose description contains this, such as 'base, V=37000'")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32",
                        help="of all sides, by fairseq's --bf16 or --fp16 (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch (default: %(default)s, all cores)")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall",
                        help="processor: seconds that threads computed, for a machine busy with other things, where it"
                        " says most with --threads 1 (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark.json"),
                        help="report to write, with the table beside it in .md; what it holds is not measured again"
                        " (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="start the report anew")
    settings = parser.parse_args()
    if settings.threads < 1:
        raise ValueError(f"--threads must be at least 1, not {settings.threads}.")
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here.")
    if settings.precision == "fp16" and settings.device == "cpu":
        raise ValueError("--precision fp16 needs a GPU: fairseq's fp16 optimizer runs on none else.")
    torch.set_num_threads(settings.threads)

    plan = [row for row in (FULL if settings.full else QUICK) if row[0] in settings.only and settings.case in str(row[1])]
    if not plan:
        raise ValueError(f"nothing to measure: no case of {', '.join(settings.only)} contains '{settings.case}'.")
    report = resumed(settings.output, machine(settings), settings.again)
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    for number, (measure, case, sides, rounds) in enumerate(plan, start=1):
        title = f"[{number}/{len(plan)}] {measure}: {case}"
        if any((row["measure"], row["case"]) == (measure, str(case)) for row in report["rows"]):
            print(f"{title}: in {settings.output} already", file=sys.stderr)
            continue
        row = summarise(measure, case, RUN[measure](case, sides, rounds, settings, progress_of(title)))
        if measure == "precision":
            row["losses"] = loss_curves(settings)
        report["rows"].append(row)
        save(report, settings.output)
    print(markdown(report), end="")


if __name__ == "__main__":
    run_as_script(main)
