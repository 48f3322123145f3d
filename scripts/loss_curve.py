"""The losses of a training run as a picture, from fairseq's log in JSON (--log-format json)."""

import argparse
import json
import re
from typing import NamedTuple

from common import atomic_path, read_lines, run_as_script


class Point(NamedTuple):
    """One line of the log: losses are cross-entropies of the unsmoothed distribution in bits per token."""

    update: int
    nll_loss: float
    kind: str  # "train" or "valid"
    learning_rate: float
    seconds: float


def parse(line):
    """The `Point` that a line of the log or of fairseq-train's output tells of, or None for all other lines."""
    match = re.search(r'\{"epoch".*\}\s*$', line)
    if match is None:
        return None
    try:
        values = json.loads(match.group())
    except json.JSONDecodeError:  # a line cut off when the run was stopped
        return None
    if "valid_nll_loss" in values:
        update, nll_loss, kind = values["valid_num_updates"], values["valid_nll_loss"], "valid"
    elif "nll_loss" in values:
        update, nll_loss, kind = values["num_updates"], values["nll_loss"], "train"
    else:
        return None
    return Point(int(update), float(nll_loss), kind, float(values.get("lr", "nan")), float(values.get("wall", "nan")))


def curves(lines):
    """`{"train": points, "valid": points}` in order of updates. What a resumed run did again replaces the first time."""
    found = {"train": {}, "valid": {}}
    for point in filter(None, map(parse, lines)):
        by_update = found[point.kind]
        for later in [update for update in by_update if update > point.update]:
            del by_update[later]
        by_update[point.update] = point
    return {kind: list(by_update.values()) for kind, by_update in found.items()}


def draw(points, path):
    """Write the curves as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), constrained_layout=True)
    for kind, style in (("train", "-"), ("valid", "o-")):
        if points[kind]:
            axes.plot(*zip(*((p.update, p.nll_loss) for p in points[kind])), style, label=kind, markersize=4)
    axes.set(xlabel="update", ylabel="cross-entropy, bits per subword token")
    axes.legend()
    axes.grid(alpha=0.3)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description="Draw the losses of a training run.",
        epilog="example: python scripts/loss_curve.py train.log loss.png",
    )
    parser.add_argument("log", help="log that fairseq-train wrote with --log-format json --log-file LOG")
    parser.add_argument("png", help="picture to write")
    args = parser.parse_args()
    points = curves(read_lines(args.log))
    if not points["train"] and not points["valid"]:
        raise ValueError(f"{args.log} has no losses: was it written with --log-format json?")
    draw(points, args.png)
    last = (points["train"] or points["valid"])[-1]
    print(f"{args.png}: {last.update} updates, last {last.kind} loss {last.nll_loss:.3f} bits a token.")


if __name__ == "__main__":
    run_as_script(main)
