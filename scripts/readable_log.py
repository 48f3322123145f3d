"""Make the output of fairseq's commands readable while they run."""

import argparse
import re
import sys

from common import run_as_script
from loss_curve import parse

# Of fairseq's remarks these tell a reader how far the run is; the others dump settings, the model and so on.
TELLING = re.compile(r"recipe|Dictionary: |sents, |changed from the paper|Loaded checkpoint|stopping|done training|Translated| \d+ / \d+ ")
REMARK = re.compile(r"^(?:\S+ \S+ \| (?:INFO|DEBUG) \| [^|]* \| |(?:INFO|DEBUG):[^:]*:)")


def readable(line):
    """What is shown of a line of output: the line made plain, or None. Warnings and errors stay as they are."""
    point = parse(line)
    if point is not None:
        text = f"update {point.update:6d}  {point.kind} loss {point.nll_loss:6.3f} bits a token"
        if point.kind == "train":
            text += f"  learning rate {point.learning_rate:.2e}  {point.seconds / 60:5.1f} min"
        return text + "\n"
    remark = REMARK.match(line)
    if remark:
        return line[remark.end() :].lstrip(" :") if TELLING.search(line) else None
    if re.match(r"\s*\(\S+\): |\s*\)|\w+\($", line):  # the printed model
        return None
    return line


def main():
    argparse.ArgumentParser(
        description="Copy standard input to standard output, fairseq's remarks reduced to progress, warnings and errors.",
        epilog="example: fairseq-train DATA --log-format json 2>&1 | python scripts/readable_log.py",
    ).parse_args()
    for line in sys.stdin:
        text = readable(line)
        if text is not None:
            sys.stdout.write(text)
            sys.stdout.flush()


if __name__ == "__main__":
    run_as_script(main)
