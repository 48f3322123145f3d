"""Several processes that train one model.

fairseq starts a process for each GPU of its machine by itself. Everything beyond that is started by ``torchrun``,
which tells its processes by environment variables who they are; on a machine without GPUs, or with one, fairseq
does not look at them, and each process trains a model of its own. Here they are looked at.
"""

import logging
import os

import torch

from . import toolkit
from .errors import UserError

logger = logging.getLogger(__name__)

TORCHRUN = "torchrun --no-python --nproc-per-node {} fairseq-train ..."


def join(args):
    """Make the process that parsed ``args`` one worker of its training; sets ``args.distributed_*``.

    Raises:
        UserError: a launch that would train several models, or none
    """
    if args.tpu or args.pipeline_model_parallel:
        return
    if args.distributed_init_method is None:
        if _started_by("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            _join_torchrun(args)
        elif int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
            _check_slurm(args)
        else:
            _check_alone(args)
    elif args.distributed_world_size > 1 and not args.distributed_no_spawn and _gpus(args) == 0:
        raise UserError(
            f"--distributed-world-size {args.distributed_world_size} without GPUs: fairseq starts one process for each"
            " GPU, so none, and trains nothing; start the processes yourself: " + _torchrun(args)
        )
    if args.cpu and args.distributed_world_size > 1:
        _without_gpus(args)


def _started_by(*variables):
    return all(variable in os.environ for variable in variables)


def _gpus(args):
    return 0 if args.cpu else torch.cuda.device_count()


def _torchrun(args):
    return TORCHRUN.format(args.distributed_world_size)


def _join_torchrun(args):
    workers = int(os.environ["WORLD_SIZE"])
    # fairseq's own default is the number of GPUs that it sees.
    if args.distributed_world_size not in (workers, max(1, torch.cuda.device_count())):
        raise UserError(
            f"torchrun started {workers} processes and --distributed-world-size is {args.distributed_world_size}:"
            " leave the flag out"
        )
    args.distributed_world_size = workers
    if workers == 1:
        return
    local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
    if not args.cpu and local >= torch.cuda.device_count():
        raise UserError(
            f"torchrun started process {local} (counted from 0) on a machine with {torch.cuda.device_count()} GPUs:"
            " give --nproc-per-node the number of GPUs of each machine, or --cpu"
        )
    args.distributed_init_method = "env://"
    args.distributed_rank = int(os.environ["RANK"])
    args.device_id = 0 if args.cpu else local
    args.distributed_no_spawn = True


def _check_slurm(args):
    """``srun`` starts tasks; fairseq finds out who they are only if ``--distributed-port`` is given."""
    tasks, nodes = int(os.environ["SLURM_STEP_NUM_TASKS"]), int(os.environ.get("SLURM_STEP_NUM_NODES", 1))
    if args.distributed_port <= 0 or args.cpu:
        raise UserError(
            f"srun started {tasks} tasks, and each would train a model of its own: let it start torchrun once on each"
            " machine, as scripts/slurm.sh does"
        )
    if tasks == nodes:
        args.distributed_world_size = nodes * torch.cuda.device_count()
    elif args.distributed_world_size != tasks:
        raise UserError(
            f"srun started {tasks} tasks and --distributed-world-size is {args.distributed_world_size}: give {tasks}"
        )


def _check_alone(args):
    """One process that starts the others itself, if there are any."""
    if args.cpu and args.distributed_world_size == torch.cuda.device_count():
        args.distributed_world_size = 1  # not asked for: fairseq's own default is the number of GPUs
    elif args.distributed_world_size > max(1, _gpus(args)):
        raise UserError(
            f"--distributed-world-size {args.distributed_world_size} with {_gpus(args)} GPUs: fairseq starts one process"
            " for each GPU of this machine; start as many as you want with " + _torchrun(args)
        )


def _without_gpus(args):
    """fairseq's defaults for several processes are for GPUs and die without them."""
    if args.distributed_backend == "nccl":
        args.distributed_backend = "gloo"
    if args.ddp_backend in ("c10d", "pytorch_ddp"):
        args.ddp_backend = "legacy_ddp"
    logger.info("workers on CPUs: --distributed-backend %s --ddp-backend %s", args.distributed_backend, args.ddp_backend)


def check_one_model():
    """Refuse to build the model of one of several processes that know nothing of each other.

    For ``fairseq-hydra-train``, which parses no command line that :func:`join` could complete.
    """
    if (toolkit.command() == "fairseq-hydra-train" and _started_by("RANK", "WORLD_SIZE")
            and int(os.environ["WORLD_SIZE"]) > 1 and not torch.distributed.is_initialized()):
        raise UserError(
            f"torchrun started {os.environ['WORLD_SIZE']} processes, and with fairseq-hydra-train each would train a"
            " model of its own: start fairseq-train"
        )
