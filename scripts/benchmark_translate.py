"""Translate a test set with a trained model and with fairseq's stock transformer of the same weights, and time both.

    python scripts/benchmark_translate.py runs/quickstart/averaged.pt runs/quickstart/data

benchmark.py measures a search of a fixed number of steps with weights that nobody has trained; here sentences end when
they end and leave the batch. The weights are converted (scripts/convert.py), both models translate the same batches with
fairseq's own search and the same settings, and how many translations are the same is reported. A third row is this
plugin's model with the search of Section 6.1, which goes on until no hypothesis can overtake, so that it makes more steps.
"""

import argparse
import logging
import os
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

logging.disable(logging.INFO)  # before fairseq configures its own
warnings.filterwarnings("ignore")

import benchmark  # noqa: E402
import convert  # noqa: E402
import torch  # noqa: E402
import weight_formats  # noqa: E402
from benchmark_sides import translator  # noqa: E402
from common import positive, run_as_script  # noqa: E402
from fairseq import options, tasks  # noqa: E402
from fairseq.dataclass.utils import convert_namespace_to_omegaconf  # noqa: E402

from vaswani_plugin.inference import PAPER_SEARCH  # noqa: E402

STOCK, OURS, PAPER = "stock", "ours", "ours, search of Section 6.1"
BATCHES, SENTENCES = 8, 64  # at least so many of each are translated, where the data set has them


def task_of(name, data):
    """A task of fairseq, set up as its commands do. Raises ValueError: no data there."""
    flags = [str(data), "--task", name, "--path", "unused"]
    arguments = options.parse_args_and_arch(options.get_generation_parser(), input_args=flags)
    try:
        return tasks.setup_task(convert_namespace_to_omegaconf(arguments).task)
    except Exception as error:  # fairseq raises bare ones for a folder without languages
        raise ValueError(f"{data}: {error}") from None


def models(path, task):
    """Ours and stock of the same weights. Raises ValueError: a model of other dictionaries, or that stock cannot be."""
    read = convert.read(path)
    sizes = tuple(read.state[name].size(0) for name in weight_formats.OUR_EMBEDDINGS[:2])
    expected = (len(task.source_dictionary), len(task.target_dictionary))
    if sizes != expected:
        raise ValueError(f"{path} knows {sizes[0]} and {sizes[1]} tokens, the dictionaries of the data have {expected[0]} and"
                         f" {expected[1]}: give the data that the model was trained with")
    config = replace(read.config, layer_norm_eps=weight_formats.EPS)  # stock has no other, and time does not depend on it
    return {OURS: convert.vaswani_model(config, read.state),
            STOCK: convert.fairseq_model(*weight_formats.to_fairseq(config, read.state))}


def batches_of(task, subset, sentences):
    """Batches of a data set, evenly spaced from short sentences to long ones. Raises ValueError: there is no such set."""
    try:
        task.load_dataset(subset)
    except FileNotFoundError as error:
        raise ValueError(str(error)) from None
    iterator = task.get_batch_iterator(task.dataset(subset), max_sentences=sentences, required_batch_size_multiple=1)
    batches = list(iterator.next_epoch_itr(shuffle=False))
    wanted = max(BATCHES, SENTENCES // sentences)
    step = max(1, len(batches) // wanted)
    return batches[step // 2 :: step][:wanted]


def searches(built, stock, plugin, beam):
    """For each side a function that gives the best hypotheses of a batch; given both tasks."""
    settings = argparse.Namespace(**{**PAPER_SEARCH, "beam": beam, "nbest": 1, "min_len": 1})
    return {side: translator(task, built[model], settings)
            for side, task, model in ((OURS, stock, OURS), (STOCK, stock, STOCK), (PAPER, plugin, OURS))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a checkpoint of this plugin or of fairseq's transformer")
    parser.add_argument("data", type=Path, help="what fairseq-preprocess or prepare.py made, with a test set")
    parser.add_argument("--subset", default="test", help="data set to translate (default: %(default)s)")
    parser.add_argument("--batch-size", type=positive, default=32, help="sentences (default: %(default)s)")
    parser.add_argument("--beam", type=positive, default=PAPER_SEARCH["beam"], help="default: %(default)s")
    parser.add_argument("--rounds", type=positive, default=5, help="after one that does not count (default: %(default)s)")
    parser.add_argument("--threads", type=positive, default=os.cpu_count(), help="of torch (default: %(default)s, all cores)")
    parser.set_defaults(clock="wall")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    stock, plugin = (task_of(name, args.data) for name in ("translation", "vaswani_translation"))
    built = models(args.model, stock)
    batches = batches_of(stock, args.subset, args.batch_size)
    found = {}

    def translate(side, search):
        found[side] = [tokens.tolist() for batch in batches for tokens in search(batch)]

    runs = {side: partial(translate, side, search) for side, search in searches(built, stock, plugin, args.beam).items()}
    rounds = benchmark.in_turns(runs, args.rounds, args, benchmark.progress_of(f"{args.subset} set"))
    print(table(found, rounds, args))


def table(found, rounds, args):
    """The report in Markdown."""
    sentences = len(found[OURS])
    same = sum(ours == stock for ours, stock in zip(found[OURS], found[STOCK]))
    lines = [f"{sentences} sentences of the {args.subset} set, batches of {args.batch_size}, beam {args.beam}, {args.threads}"
             f" threads, medians of {args.rounds} rounds, in brackets lowest and highest. With fairseq's search {same} of"
             f" {sentences} translations are the same.", "",
             "| | sentences/s | tokens | against stock |", "|---|---|---|---|"]
    for side in (OURS, PAPER, STOCK):
        rate = benchmark.spread([sentences / taken[side] for taken in rounds])["median"]
        ratio = benchmark.spread([taken[STOCK] / taken[side] for taken in rounds])
        against = "" if side == STOCK else benchmark.ratio_cell(ratio, "times as fast")
        lines.append(f"| {side} | {rate:.3g} | {sum(map(len, found[side]))} | {against} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_as_script(main)
