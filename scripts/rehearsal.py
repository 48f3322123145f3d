"""A few updates of a training, and a few translations, to know beforehand how long the whole will take.

Started by compare.py as a process of its own, so that its memory is not taken for that of a training.
"""

import argparse
import contextlib
import io
import json
import logging
import sys
import time
from pathlib import Path

import commands
from common import atomic_path, run_as_script

sys.path.insert(0, str(commands.PLUGIN.parent))
logging.basicConfig(level=logging.ERROR)

from fairseq import options, tasks  # noqa: E402
from fairseq.dataclass.utils import convert_namespace_to_omegaconf  # noqa: E402
from fairseq.logging import metrics  # noqa: E402
from fairseq.trainer import Trainer  # noqa: E402

import vaswani_plugin  # noqa: E402, F401

LEAST_UPDATES, LEAST_SECONDS, MOST_UPDATES = 2, 1.0, 20
SENTENCES = 16


def rehearse(flags, subset):
    """What the first updates of ``fairseq-train FLAGS`` show: seconds per update and per translated sentence, the
    learning rate of the first update, and how many sentences ``subset`` has. Raises ValueError."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            args = options.parse_args_and_arch(options.get_training_parser(), input_args=flags)
            args.no_progress_bar, args.log_format = True, "none"
    except SystemExit:
        raise ValueError(complaint.getvalue().strip().splitlines()[-1]) from None
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    rates = []
    trainer.optimizer.optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    epoch = trainer.get_train_iterator(epoch=1, load_dataset=True)
    batches = epoch.next_epoch_itr(shuffle=True)
    trainer.begin_epoch(1)
    with metrics.aggregate(new_root=True):
        trainer.train_step([next(batches)])
        start, done = time.perf_counter(), 0
        while batches.has_next() and done < MOST_UPDATES:
            if done >= LEAST_UPDATES and time.perf_counter() - start > LEAST_SECONDS:
                break
            trainer.train_step([next(batches)])
            done += 1
    per_update = (time.perf_counter() - start) / max(done, 1)
    task.load_dataset(subset)
    return {
        "seconds_per_update": per_update, "first_rate": rates[0], "sentences": len(task.dataset(subset)),
        "seconds_per_sentence": _translate(trainer.model, task, subset),
    }


def _translate(model, task, subset):
    """Seconds for one sentence. A model that has learned nothing writes up to the limit: this is about the most."""
    model.eval()
    data = task.dataset(subset)
    step = max(1, len(data) // SENTENCES)
    sample = data.collater([data[index] for index in range(0, len(data), step)][:SENTENCES])
    generator = task.build_generator([model], argparse.Namespace())
    start = time.perf_counter()
    task.inference_step(generator, [model], sample)
    return (time.perf_counter() - start) / sample["id"].numel()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainings", type=Path, help="JSON: the flags of fairseq-train by name")
    parser.add_argument("out", type=Path, help="JSON to write after each of them; what it holds is kept")
    parser.add_argument("--subset", required=True, help="what will be translated")
    args = parser.parse_args()
    found = json.loads(args.out.read_text()) if args.out.is_file() else {}
    for name, flags in json.loads(args.trainings.read_text()).items():
        if "seconds_per_update" in found.get(name, {}):
            continue
        try:
            found[name] = rehearse(flags, args.subset)
        except Exception as error:  # the training itself will fail in the same way, and be reported
            found[name] = {"error": (str(error).splitlines() or [type(error).__name__])[0]}
        with atomic_path(args.out) as path:
            path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    run_as_script(main)
