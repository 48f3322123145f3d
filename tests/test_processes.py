"""Several processes train one model: launches are completed or refused, and the recipe holds for any number."""

import os
import shutil
import socket
import stat
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vaswani_plugin import recipe, workers
from vaswani_plugin.errors import UserError
from vaswani_plugin.label_smoothing import VaswaniLabelSmoothedCrossEntropy

from .helpers import REPOSITORY, dictionary, small_model
from .resuming import TINY, logged, same_tensors, state
from .test_recipe import parse

TORCHRUN = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}


@pytest.fixture
def machine(monkeypatch):
    """A function that makes this a machine of so many GPUs, and this process one that a launcher started."""
    def become(gpus=0, **variables):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NUM_TASKS",
                     "SLURM_STEP_NUM_NODES"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    become()
    return become


def on_this_machine(data_bin, *flags):
    """The configuration; fairseq's default number of workers, fixed when it was imported, is that of ``machine``."""
    gpus = str(max(1, torch.cuda.device_count()))
    return parse(data_bin, "--save-dir", "/nowhere", "--distributed-world-size", gpus, *flags)


def distributed(data_bin, *flags):
    return on_this_machine(data_bin, *flags).distributed_training


@settings(deadline=None)
@given(processes=st.integers(1, 500), batches=st.integers(1, 50))
def test_an_update_has_25000_tokens_for_any_workers_and_batches(processes, batches):
    """As many as whole numbers allow: less than one token in each batch is missing."""
    args = Namespace(max_tokens=None, batch_size=None, distributed_world_size=processes, update_freq=[batches])
    recipe._fill_batch(args)
    assert 0 <= recipe.TOKENS_PER_UPDATE - args.max_tokens * processes * batches < processes * batches
    assert args.max_tokens_valid == args.max_tokens


@pytest.mark.parametrize("processes, batches, tokens", [(8, 1, 3125), (16, 3, 520)])
def test_the_tokens_of_an_update_are_printed(data_bin, machine, caplog, processes, batches, tokens):
    caplog.set_level("INFO", logger="vaswani_plugin.recipe")
    machine(gpus=processes)
    cfg = on_this_machine(data_bin, "--update-freq", str(batches))
    assert cfg.dataset.max_tokens == tokens
    assert (f"up to {tokens * processes * batches} tokens per update ({tokens} x {processes} workers x {batches} batches)"
            in caplog.text)


def test_a_process_of_torchrun_learns_who_it_is(data_bin, machine):
    machine(gpus=0, **TORCHRUN)
    found = distributed(data_bin, "--cpu")
    assert (found.distributed_world_size, found.distributed_rank, found.distributed_init_method) == (2, 1, "env://")
    assert (found.distributed_no_spawn, found.device_id) == (True, 0)
    assert (found.distributed_backend, str(found.ddp_backend)) == ("gloo", "legacy_ddp")
    # two machines with one GPU each: fairseq alone would train two models
    machine(gpus=1, **{**TORCHRUN, "LOCAL_RANK": "0"})
    found = distributed(data_bin)
    assert (found.distributed_world_size, found.distributed_rank, found.device_id) == (2, 1, 0)
    assert (found.distributed_backend, str(found.ddp_backend)) == ("nccl", "pytorch_ddp")
    # eight GPUs on each of two
    machine(gpus=8, **{**TORCHRUN, "WORLD_SIZE": "16", "RANK": "11", "LOCAL_RANK": "3"})
    found = distributed(data_bin)
    assert (found.distributed_world_size, found.distributed_rank, found.device_id) == (16, 11, 3)


def test_torchrun_with_one_process_is_an_ordinary_training(data_bin, machine):
    machine(**{**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"})
    found = distributed(data_bin, "--cpu")
    assert (found.distributed_world_size, found.distributed_init_method) == (1, None)


def test_cpu_trains_in_one_process_also_where_there_are_gpus(data_bin, machine):
    machine(gpus=4)
    assert distributed(data_bin, "--cpu").distributed_world_size == 1
    assert distributed(data_bin).distributed_world_size == 4


def test_a_backend_that_was_chosen_stays(data_bin, machine):
    machine(**TORCHRUN)
    found = distributed(data_bin, "--cpu", "--ddp-backend", "no_c10d", "--distributed-backend", "mpi")
    assert (found.distributed_backend, str(found.ddp_backend)) == ("mpi", "no_c10d")


def test_slurm_tasks_that_fairseq_can_tell_apart(data_bin, machine):
    machine(gpus=4, SLURM_STEP_NUM_TASKS="2", SLURM_STEP_NUM_NODES="2")
    cfg = on_this_machine(data_bin, "--distributed-port", "1234")
    assert (cfg.distributed_training.distributed_world_size, cfg.dataset.max_tokens) == (8, 3125)


# Launches of which fairseq makes several models, none, or an error that does not say what to do.
BAD_LAUNCHES = {
    "more processes than GPUs": (2, {}, ["--distributed-world-size", "3"], "with 2 GPUs: .*torchrun --no-python --nproc-per-node 3"),
    "several without GPUs": (0, {}, ["--cpu", "--distributed-world-size", "2"], "with 0 GPUs"),
    "a port does not help": (0, {}, ["--cpu", "--distributed-world-size", "2", "--distributed-port", "9"], "with 0 GPUs"),
    "none are started": (
        0, {}, ["--cpu", "--distributed-world-size", "2", "--distributed-init-method", "tcp://localhost:9"],
        "trains nothing; start the processes yourself",
    ),
    "another number than torchrun's": (0, TORCHRUN, ["--cpu", "--distributed-world-size", "3"], "leave the flag out"),
    "torchrun without GPUs": (0, TORCHRUN, [], "on a machine with 0 GPUs.*--cpu"),
    "torchrun with too few GPUs": (1, TORCHRUN, [], "on a machine with 1 GPUs"),
    "srun alone": (4, {"SLURM_STEP_NUM_TASKS": "8"}, [], "srun started 8 tasks.*slurm.sh"),
    "srun with another number": (
        8, {"SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_NUM_NODES": "2"}, ["--distributed-port", "9"], "give 16",
    ),
}


@pytest.mark.parametrize("gpus, variables, flags, sentence", BAD_LAUNCHES.values(), ids=BAD_LAUNCHES)
def test_launches_that_train_no_model_or_several_are_refused(data_bin, machine, gpus, variables, flags, sentence):
    machine(gpus, **variables)
    with pytest.raises(UserError, match=sentence):
        distributed(data_bin, *flags)


def test_hydra_under_torchrun_is_refused(machine, monkeypatch):
    machine(**TORCHRUN)
    workers.check_one_model()
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fairseq-hydra-train"])
    with pytest.raises(UserError, match="start fairseq-train"):
        workers.check_one_model()


def test_a_worker_without_a_batch_adds_nothing():
    """fairseq lets it compute some other batch and multiplies the loss by 0, in place."""
    model, words = small_model(), torch.tensor([[7, 8, 2]])
    task = Namespace(target_dictionary=dictionary())
    sample = {"id": torch.tensor([0]), "ntokens": 3, "target": words,
              "net_input": {"src_tokens": words, "src_lengths": torch.tensor([3]), "prev_output_tokens": words.roll(1)}}
    loss, _, _ = VaswaniLabelSmoothedCrossEntropy(task, 0.1)(model, sample)
    loss *= 0
    loss.backward()
    assert not any(parameter.grad.any() for parameter in model.parameters())


# What follows runs the real trainings. Without dropout, whose numbers are drawn for each process.

TRAINING = [*TINY, "--dropout", "0", "--save-interval-updates", "1000"]


@pytest.fixture(scope="module")
def one_process(forks, data_bin, tmp_path_factory):
    """Folder and log of 24 updates of two batches each, in one process; an epoch has 10."""
    save_dir = tmp_path_factory.mktemp("one")
    done = forks.run("fairseq-train", data_bin, *TRAINING, "--update-freq", "2", "--save-dir", save_dir, "--max-update", "24")
    assert done.returncode == 0, done.stderr[-2000:]
    return save_dir, logged(done.stdout)


def free_port():
    with socket.socket() as a:
        a.bind(("localhost", 0))
        return str(a.getsockname()[1])


def two_processes(forks, data_bin, save_dir, *flags):
    """The two processes of torchrun; what the first prints."""
    port = free_port()
    started = [
        forks.start(
            "fairseq-train", data_bin, *TRAINING, "--save-dir", save_dir, *flags,
            env={**TORCHRUN, "RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port},
        )
        for rank in "01"
    ]
    done = [command.wait() for command in started]
    for one in done:
        assert one.returncode == 0, one.stdout[-2000:] + one.stderr[-2000:]
    assert not logged(done[1].stdout)  # the second is quiet
    return done[0].stdout


def check_the_same_training(log, save_dir, one_process):
    other_dir, other = one_process
    assert log.keys() == other.keys()
    for update, values in log.items():
        for name, value in values.items():
            assert float(value) == pytest.approx(float(other[update][name]), rel=1e-3, abs=1.1e-3), (update, name)
        assert values["wpb"] == other[update]["wpb"] and values["lr"] == other[update]["lr"]
    a, b = (state(folder / "checkpoint_last.pt")["model"] for folder in (save_dir, other_dir))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_two_processes_train_the_model_of_one_with_two_batches(forks, data_bin, one_process, tmp_path):
    output = two_processes(forks, data_bin, tmp_path / "whole", "--max-update", "24")
    assert "training on 2 devices" in output and "1200 tokens per update (600 x 2 workers x 1 batches)" in output
    check_the_same_training(logged(output), tmp_path / "whole", one_process)

    # and stopped in the second epoch and resumed, bit by bit what they are together
    parts = two_processes(forks, data_bin, tmp_path / "parts", "--max-update", "13")
    last = tmp_path / "parts" / "checkpoint_last.pt"
    shutil.copy(last, tmp_path / "parts" / "checkpoint_2_13.pt")
    last.write_bytes(last.read_bytes()[:5000])  # both processes take the one before
    rest = two_processes(forks, data_bin, tmp_path / "parts", "--max-update", "24")
    assert "is damaged" in rest
    assert {**logged(parts), **logged(rest)} == logged(output)
    assert same_tensors(last, tmp_path / "whole" / "checkpoint_last.pt")


def commands_of_this_environment(folder=None):
    """The environment in which the fairseq commands, torchrun and, from ``folder``, stand-ins are found."""
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
                   "PATH": os.pathsep.join(([str(folder)] if folder else []) + path)}
    environment.pop("PYTHONPATH", None)
    return environment


def script(*command, **options):
    return subprocess.run(
        ["bash", *map(str, command)], capture_output=True, text=True, timeout=280, cwd=REPOSITORY,
        **{"env": commands_of_this_environment(), **options},
    )


JOB = """\
#!/usr/bin/env bash
#SBATCH --job-name=vaswani
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=1-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -euo pipefail
read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
srun torchrun --no-python --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
    --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:29500" \\
    fairseq-train my\\ data\\;\\ touch\\ x --arch vaswani2017
"""


def test_the_slurm_job_is_printed_and_quotes_its_words():
    done = script("scripts/slurm.sh", "--nodes", 2, "--per-node", 8, "--dry-run", "--", "my data; touch x", "--arch", "vaswani2017")
    assert (done.stdout, done.returncode) == (JOB, 0)


def stand_in(folder, name, text):
    path = folder / name
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.slow
def test_the_slurm_job_trains_one_model(data_bin, one_process, tmp_path):
    """With stand-ins for Slurm that run the job here, srun twice as on two machines; torchrun and fairseq-train are real."""
    bin_dir, save_dir = tmp_path / "bin", tmp_path / "save"
    bin_dir.mkdir()
    stand_in(bin_dir, "sbatch", "export SLURM_JOB_ID=7 SLURM_JOB_NODELIST=here SLURM_NNODES=2\nexec bash -s\n")
    stand_in(bin_dir, "scontrol", "echo localhost; echo other\n")
    stand_in(bin_dir, "srun", """
export SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=here
SLURM_PROCID=1 "$@" >/dev/null & SLURM_PROCID=0 "$@" && wait $!
""")
    done = script(
        "scripts/slurm.sh", "--nodes", 2, "--per-node", 1, "--port", free_port(), "--", data_bin, *TRAINING,
        "--save-dir", save_dir, "--max-update", "24", env=commands_of_this_environment(bin_dir),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # whichever machine came first at the meeting point is the first worker, and prints
    if logged(done.stdout):
        check_the_same_training(logged(done.stdout), save_dir, one_process)
    assert state(save_dir / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 24
    a, b = (state(folder / "checkpoint_last.pt")["model"] for folder in (save_dir, one_process[0]))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_two_hosts_train_one_model(data_bin, one_process, tmp_path):
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("making network namespaces needs root")
    done = script("scripts/two_hosts.sh", "--", data_bin, *TRAINING, "--save-dir", tmp_path / "save", "--max-update", "24")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "distributed init (rank 0)" in done.stdout and "training on 2 devices" in done.stdout
    check_the_same_training(logged(done.stdout), tmp_path / "save", one_process)
    assert not subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.strip()
