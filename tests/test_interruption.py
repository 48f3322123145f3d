"""A training that is killed, or finds its disk full or its checkpoints damaged, goes on as if nothing had happened."""

import collections
import os
import random
import re
import shutil
import subprocess
import time

import pytest
import torch

from vaswani_plugin import checkpoint_files
from vaswani_plugin.errors import UserError

from .resuming import TINY, logged, same_tensors

# The full number is 20 (VASWANI_KILLS=20 pytest -m slow tests/test_interruption.py); a few show the same in CI.
KILLS = int(os.environ.get("VASWANI_KILLS", "5"))
UPDATES = 40  # two epochs and more
TRAINING = [*TINY, "--max-tokens", "700", "--save-interval-updates", "4", "--keep-interval-updates", "3",
            "--max-update", UPDATES]


def fake_checkpoint(path, updates, **more):
    """A file with what ``checkpoint_files`` looks at."""
    torch.save({
        "model": {"weight": torch.full((50, 50), float(updates))},
        "optimizer_history": [{"num_updates": updates}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        **more,
    }, path)
    return path


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[content.index(torch.ones(8).mul(7).numpy().tobytes()) + 1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("part", [0, 1, 0.01, 0.5, 0.99, -1])
def test_a_truncated_file_is_damaged(tmp_path, part):
    path = fake_checkpoint(tmp_path / "x.pt", 7)
    assert checkpoint_files.damage(path) is None
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content)) if isinstance(part, float) else part])
    assert checkpoint_files.damage(path) is not None


def test_a_changed_byte_is_damage_although_torch_loads_it(tmp_path):
    path = fake_checkpoint(tmp_path / "x.pt", 7)
    change_a_byte(path)
    assert not torch.equal(torch.load(path, weights_only=True)["model"]["weight"], torch.full((50, 50), 7.0))
    assert checkpoint_files.damage(path) == "its content has changed since it was written"


def test_files_of_the_old_format_are_not_judged(tmp_path):
    torch.save({"model": {}}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert checkpoint_files.damage(tmp_path / "old.pt") is None


def test_the_whole_file_with_the_most_updates_takes_over(tmp_path):
    """Neither the newest file by date, nor the last by name, nor an average, a crash or a foreign file."""
    for name, number in (("checkpoint_1_8.pt", 8), ("checkpoint_1_16.pt", 16), ("checkpoint_2_20.pt", 20),
                         ("checkpoint_best.pt", 12), ("checkpoint1.pt", 10)):
        fake_checkpoint(tmp_path / name, number)
    fake_checkpoint(tmp_path / "averaged.pt", 99)
    fake_checkpoint(tmp_path / "crash.pt", 99)
    fake_checkpoint(tmp_path / "checkpoint_9_99.pt", 99, extra_state={})
    (tmp_path / "checkpoint_9_100.pt").write_text("no checkpoint\n")
    last = fake_checkpoint(tmp_path / "checkpoint_last.pt", 20)
    assert checkpoint_files.to_resume_from(str(tmp_path), "checkpoint_last.pt") == ("checkpoint_last.pt", None)
    last.write_bytes(last.read_bytes()[:1000])
    found, sentence = checkpoint_files.to_resume_from(str(tmp_path), "checkpoint_last.pt")
    assert found == str(tmp_path / "checkpoint_2_20.pt")
    assert sentence == f"{last} is damaged (it is cut off, or no checkpoint): going on from {found} (20 updates)"
    (tmp_path / "checkpoint_2_20.pt").write_bytes(b"")
    assert checkpoint_files.to_resume_from(str(tmp_path), "checkpoint_last.pt")[0] == str(tmp_path / "checkpoint_1_16.pt")


def test_a_damaged_file_that_was_asked_for_is_not_replaced_but_another_offered(tmp_path):
    fake_checkpoint(tmp_path / "checkpoint_1_8.pt", 8)
    wanted = fake_checkpoint(tmp_path / "checkpoint_1_16.pt", 16)
    wanted.write_bytes(wanted.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"checkpoint_1_16\.pt is damaged .*beside it is .*checkpoint_1_8\.pt \(8 updates\)"):
        checkpoint_files.to_resume_from(str(tmp_path), str(wanted))


def test_a_missing_last_file_is_one_that_was_not_written_any_more(tmp_path):
    other = fake_checkpoint(tmp_path / "checkpoint_1_8.pt", 8)
    found, sentence = checkpoint_files.to_resume_from(str(tmp_path), "checkpoint_last.pt")
    assert found == str(other) and "checkpoint_last.pt is missing: going on from" in sentence
    other.unlink()
    assert checkpoint_files.to_resume_from(str(tmp_path), "checkpoint_last.pt") == ("checkpoint_last.pt", None)


def test_where_no_file_is_whole_it_is_said_so(tmp_path):
    (tmp_path / "checkpoint_last.pt").write_bytes(b"")
    with pytest.raises(UserError, match="it is empty.*move it away to start anew"):
        checkpoint_files.to_resume_from(str(tmp_path), "checkpoint_last.pt")
    assert checkpoint_files.to_resume_from(str(tmp_path / "new"), "checkpoint_last.pt") == ("checkpoint_last.pt", None)


# What follows runs the real trainings.


@pytest.fixture(scope="module")
def undisturbed(forks, data_bin, tmp_path_factory):
    """Folder, log and seconds of a training that nobody interrupts."""
    save_dir = tmp_path_factory.mktemp("undisturbed")
    begin = time.monotonic()
    done = forks.run("fairseq-train", data_bin, *TRAINING, "--save-dir", save_dir)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    log = logged(done.stdout)
    assert sorted(log) == list(range(1, UPDATES + 1))
    assert re.search(r'"epoch": 3', done.stdout)
    return save_dir, log, time.monotonic() - begin


# In the process that is to be killed: at the nth time that a checkpoint is written, or copied, only a part is.
DIES_WHILE_WRITING = """
import io, os, signal
import {module} as module
original, count = module.{function}, 0
def dies(first, second, *rest, **options):
    global count
    count += str(second).endswith({target!r}) if {copy} else 1
    if count < {nth}:
        return original(first, second, *rest, **options)
    if {copy}:
        content, file = open(first, "rb").read(), open(second, "wb")
    else:
        memory, file = io.BytesIO(), second
        original(first, memory)
        content = memory.getvalue()
    file.write(content[: int({part} * len(content))])
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
module.{function} = dies
"""


def ways_to_die(number, seed):
    """So many ways, in turn: at two random moments, while a checkpoint is written, while one is copied."""
    chance = random.Random(seed)
    for index in range(number):
        if index % 4 < 2:
            yield "moment", chance.random()
        else:
            copy = index % 4 == 3
            module, function = ("shutil", "copyfile") if copy else ("torch", "save")
            target = "checkpoint_last.pt" if index % 8 == 3 else "checkpoint_best.pt"
            yield f"copy to {target}" if copy else "write", DIES_WHILE_WRITING.format(
                module=module, function=function, copy=copy, target=target, nth=chance.randint(1, 3),
                part=chance.random(),
            )


@pytest.mark.slow
def test_killed_trainings_go_on_bit_by_bit(forks, data_bin, undisturbed, tmp_path):
    whole_dir, whole, seconds = undisturbed
    kills = collections.Counter()
    took_another, log = 0, {}
    save_dir = tmp_path / "save"

    def follow(done):
        nonlocal took_another
        for update, values in logged(done.stdout).items():
            assert values == whole[update], update
            log[update] = values
        took_another += "is damaged" in done.stdout

    def check_the_end(done):
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert log == whole
        assert same_tensors(save_dir / "checkpoint_last.pt", whole_dir / "checkpoint_last.pt")
        shutil.rmtree(save_dir)
        log.clear()

    ways = ways_to_die(KILLS * 3, seed=1)  # some come too late: the training has ended
    while kills.total() < KILLS:
        way, detail = next(ways)
        command = forks.start("fairseq-train", data_bin, *TRAINING, "--save-dir", save_dir,
                              before=None if way == "moment" else detail)
        if way == "moment":
            time.sleep(detail * seconds)
            command.kill()
        done = command.wait()
        follow(done)
        if done.returncode == -9:
            kills[way] += 1
        else:
            check_the_end(done)
    done = forks.run("fairseq-train", data_bin, *TRAINING, "--save-dir", save_dir)
    follow(done)
    check_the_end(done)
    print(f"killed {kills.total()} times: {dict(kills)}; {took_another} times checkpoint_last.pt was damaged")
    assert took_another >= kills["copy to checkpoint_last.pt"] > 0


def interrupted_at(forks, data_bin, save_dir, update):
    done = forks.run("fairseq-train", data_bin, *TRAINING, "--save-dir", save_dir, "--max-update", update)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def check_that_it_goes_on(forks, data_bin, save_dir, undisturbed, first):
    """The same command goes on at update ``first`` and ends as the undisturbed training did."""
    done = forks.run("fairseq-train", data_bin, *TRAINING, "--save-dir", save_dir)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert logged(done.stdout) == {update: undisturbed[1][update] for update in range(first, UPDATES + 1)}
    assert same_tensors(save_dir / "checkpoint_last.pt", undisturbed[0] / "checkpoint_last.pt")


def check_the_sentence(done, *parts):
    assert done.returncode == 1
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence.startswith("error: ") and all(part in sentence for part in parts), done.stderr[-2000:]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_leaves_those_before(forks, data_bin, undisturbed, tmp_path):
    """The system refuses files above half a checkpoint's size, as a full disk or a quota does."""
    interrupted_at(forks, data_bin, tmp_path, 10)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.pt")}
    limit = len(before["checkpoint_last.pt"]) // 2
    done = forks.run(
        "fairseq-train", data_bin, *TRAINING, "--save-dir", tmp_path,
        before=f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))",
    )
    check_the_sentence(done, "File too large", "give the same command again")
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.pt")} == before
    check_that_it_goes_on(forks, data_bin, tmp_path, undisturbed, 11)


@pytest.fixture
def small_disk(tmp_path):
    """``(folder, resize)``: a file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "vaswani-test", folder]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system needs root")
    yield folder, lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("room, left", [
    (1.5, "checkpoint_best.pt"),  # the first checkpoint is whole, half of its copy is there, checkpoint_last.pt is not
    (2.5, "checkpoint_last.pt"),
    (3.5, "checkpoint_1_8.pt.tmp"),
])
def test_a_full_disk_costs_no_whole_checkpoint(forks, data_bin, undisturbed, small_disk, room, left):
    disk, resize = small_disk
    resize(int(room * (undisturbed[0] / "checkpoint_last.pt").stat().st_size))
    done = forks.run("fairseq-train", data_bin, *TRAINING, "--save-dir", disk)
    check_the_sentence(done, "No space left on device", "give the same command again")
    assert checkpoint_files.damage(disk / left)
    assert [path.name for path in disk.glob("checkpoint*") if checkpoint_files.damage(path)] == [left]
    resize("64m")
    check_that_it_goes_on(forks, data_bin, disk, undisturbed, 5)
