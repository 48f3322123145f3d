"""prepare.py beside the commands that it replaces: processor time, memory, and whether the results are the same.

The commands are those of a usual shell pipeline: sacremoses, subword-nmt learn-joint-bpe-and-vocab and apply-bpe,
fairseq-preprocess. Processor time is that of all processes together, so that other work on the machine counts little.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import run_as_script

SCRIPTS = Path(__file__).resolve().parent


def measured(name, *command, stdin=None, stdout=None):
    """Run a command; returns its seconds of processor time, with those of its processes. Raises ValueError: it failed."""
    program = Path(sys.executable).parent / command[0]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with open(stdin or os.devnull, "rb") as source, open(stdout or os.devnull, "wb") as target:
        done = subprocess.run(
            [str(program if program.exists() else command[0]), *map(str, command[1:])], stdin=source, stdout=target,
            stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    if done.returncode:
        raise ValueError(f"{' '.join(map(str, command))} failed: {done.stderr.decode(errors='replace')[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name:<28}{seconds:9.1f} s of processor{time.monotonic() - began:9.1f} s passed", flush=True)
    return seconds


def pipeline(folder, raw, source, target, merges, workers):
    """The usual commands, one after the other, into `folder/data`; returns their processor time."""
    seconds = 0.0
    words = {language: folder / f"words.{language}" for language in (source, target)}
    for language, commands in ((source, ["normalize", "tokenize"]), (target, ["tokenize"])):
        seconds += measured(f"sacremoses {language}", "sacremoses", "-q", "-l", language, "-j", workers, *commands,
                            stdin=f"{raw}.{language}", stdout=words[language])
    seconds += measured("subword-nmt learn", "subword-nmt", "learn-joint-bpe-and-vocab", "--symbols", merges,
                        "--num-workers", workers, "--input", *words.values(), "--output", folder / "codes",
                        "--write-vocabulary", folder / "v1", folder / "v2")
    for language, path in words.items():
        seconds += measured(f"subword-nmt apply {language}", "subword-nmt", "apply-bpe", "--codes", folder / "codes",
                            "--num-workers", workers, "--input", path, "--output", folder / f"train.{language}")
    return seconds + measured("fairseq-preprocess", "fairseq-preprocess", "-s", source, "-t", target, "--joined-dictionary",
                              "--trainpref", folder / "train", "--destdir", folder / "data", "--workers", workers)


def main():
    parser = argparse.ArgumentParser(
        description="Measure prepare.py against sacremoses, subword-nmt and fairseq-preprocess on the same text, with the"
        " same number of processes and without filters, and compare what comes out.",
        epilog="example: python scripts/benchmark_prepare.py data/corpus/train --source en --target de --merges 32000",
    )
    parser.add_argument("raw", help="beginning of two text files: RAW.SOURCE and RAW.TARGET")
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--merges", type=int, default=32000, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: %(default)s)")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = measured(
            "prepare.py", sys.executable, SCRIPTS / "prepare.py", "--source", args.source, "--target", args.target, "--train",
            args.raw, "--out", folder / "ours", "--merges", args.merges, "--workers", args.workers, "--max-words", 0,
            "--max-ratio", 0, "--keep-repeats",
        )
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"{'':<28}{memory:9.0f} MiB, the largest of its processes", flush=True)
        (folder / "theirs").mkdir()
        theirs = pipeline(folder / "theirs", args.raw, args.source, args.target, args.merges, args.workers)
        print(f"{'the commands together':<28}{theirs:9.1f} s of processor: {theirs / ours:.2f} times as much")
        same = {
            path.name: path.read_bytes() == (folder / "ours" / path.name).read_bytes()
            for path in (folder / "theirs" / "data").iterdir() if path.name != "preprocess.log"
        }
        same["codes"] = (folder / "theirs" / "codes").read_bytes() == (folder / "ours" / "codes").read_bytes()
        different = [name for name, equal in same.items() if not equal]
        print(f"files that differ: {', '.join(different) or 'none of ' + str(len(same))}")


if __name__ == "__main__":
    run_as_script(main)
