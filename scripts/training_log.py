"""What a log of fairseq-train in JSON says of each update (--log-interval 1), whatever was resumed on the way."""

import re
from dataclasses import dataclass, field

from runner import record


@dataclass(frozen=True)
class Update:
    """One line of the log: the updates since the line before. Losses are in bits per token."""

    number: int
    nll_loss: float  # of the unsmoothed distribution, which alone compares between criteria
    next_rate: float  # fairseq logs the learning rate after it has set that of the *next* update
    words: float  # target tokens
    sentences: float
    words_per_second: float  # 0 on the first line of a process, which has no line before


@dataclass
class TrainingLog:
    """The log of one training, in order of updates."""

    updates: list = field(default_factory=list)
    valid: list = field(default_factory=list)  # (update, nll_loss)
    parameters: int = 0
    peak_memory: int = 0  # MiB

    def rates(self, first):
        """``[(update, rate)]`` as applied; ``first`` is that of update 1, which no line shows, or ``None``."""
        return [(1, first)] * (first is not None) + [(update.number + 1, update.next_rate) for update in self.updates[:-1]]

    def seconds(self):
        """Wall-clock time at each line, validation and saving included; time between two processes is left out."""
        total, found = 0.0, []
        for update in self.updates:
            total += update.words / update.words_per_second if update.words_per_second else 0.0
            found.append(total)
        return found

    def tokens_per_second(self):
        """The median over lines, which validation after a few of them does not move."""
        speeds = sorted(update.words_per_second for update in self.updates if update.words_per_second)
        middle = len(speeds) // 2
        return (speeds[middle] + speeds[~middle]) / 2 if speeds else 0.0

    def last_loss(self, share=0.1):
        """The mean training loss of the last ``share`` of the updates, weighted by their tokens."""
        last = self.updates[-max(1, round(share * len(self.updates))) :]
        return sum(u.nll_loss * u.words for u in last) / sum(u.words for u in last)


def read(text):
    """The :class:`TrainingLog` in ``text``. What a resumed run did again replaces the first time."""
    log, updates, valid = TrainingLog(), {}, {}
    for line in text.splitlines():
        if found := record(line, "train_inner"):
            number = int(found["num_updates"])
            for later in [other for other in updates if other >= number]:
                del updates[later]
            for later in [other for other in valid if other >= number]:
                del valid[later]
            before = max(updates, default=0)
            updates[number] = Update(
                number, float(found["nll_loss"]), float(found["lr"]), float(found["wpb"]) * (number - before),
                float(found["bsz"]) * (number - before), float(found["wps"]),
            )
        elif found := record(line, "valid"):
            valid[int(found["valid_num_updates"])] = float(found["valid_nll_loss"])
        elif found := re.search(r"num\. shared model params: ([\d,]+)", line):
            log.parameters = int(found.group(1).replace(",", ""))
        elif found := re.fullmatch(r"peak memory of fairseq-train: (\d+) MiB", line):
            log.peak_memory = max(log.peak_memory, int(found.group(1)))
    log.updates, log.valid = list(updates.values()), sorted(valid.items())
    return log


def commands_in(text):
    """The commands that wrote to a log, as they could be given to a shell."""
    return [line[2:] for line in text.splitlines() if line.startswith("$ ")]
