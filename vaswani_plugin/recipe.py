"""The paper's training as defaults that ride on ``--arch``: Section 5.

fairseq asks the model for flags (``add_arguments``), parses, and then calls the architecture's
function (``apply``). In between, ``None`` or absence marks a value that the user did not give; only
those are filled, so that every flag wins, also one that repeats a default of fairseq.
"""

import logging

from . import checks, learning_rate, toolkit, workers

logger = logging.getLogger(__name__)

OPTIMIZER = "vaswani_adam"
_ADAMS = (OPTIMIZER, "adam")  # ours, and fairseq's if the user names it
SCHEDULER = "vaswani_inverse_sqrt"
CRITERION = "vaswani_label_smoothed_cross_entropy"
TOKENS_PER_UPDATE = 25_000  # Section 5.1, source and target each, over all workers
WARMUP = 4_000  # Section 5.3

# fairseq's own default, where the user took another schedule and left the rate open.
_STOCK_LR = [0.25]
# fairseq's default of 8 silently leaves out the last sentences of a data set (its issue 5036).
_EVERY_SENTENCE = {"required_batch_size_multiple": 1}


def add_arguments(parser):
    """Make the paper's components the defaults, and add their flags without default values."""
    parser.set_defaults(
        optimizer=OPTIMIZER,
        lr_scheduler=SCHEDULER,
        criterion=CRITERION,
        lr=None,
        max_update=None,
        clip_norm=None,
        save_interval_updates=None,
        keep_interval_updates=None,
        required_batch_size_multiple=None,
    )
    # fairseq adds the flags of a component only if the command line names it. When it does, its own
    # definitions of these give way to ours.
    parser.add_argument("--adam-betas", help="Section 5.3: (0.9, 0.98)")
    parser.add_argument("--adam-eps", type=float, help="Section 5.3: 1e-9")
    parser.add_argument("--warmup-updates", type=int, help="Section 5.3: 4000")
    parser.add_argument("--lr-factor", type=float, help="factor on the learning rate of Eq. 3; the paper: 1")
    parser.add_argument("--label-smoothing", type=float, help="Section 5.4: 0.1")


def paper_values(args, architecture):
    """What the paper says for each option that the components in ``args`` have, by fairseq's names."""
    values = {
        **architecture.options(),
        "attention_bias": False,
        "share_all_embeddings": True,
        "optimizer": args.optimizer if args.optimizer in _ADAMS else OPTIMIZER,
        "lr_scheduler": SCHEDULER,
        "criterion": CRITERION,
        "clip_norm": 0.0,
        "weight_decay": 0.0,
        "max_update": architecture.updates,
        "save_interval_updates": architecture.checkpoint_updates,
        "keep_interval_updates": architecture.averaged_checkpoints,
    }
    if args.optimizer in _ADAMS:
        values.update(adam_betas="(0.9, 0.98)", adam_eps=1e-9)
    if args.lr_scheduler == SCHEDULER:
        values.update(warmup_updates=WARMUP, lr_factor=1.0)
    if args.criterion == CRITERION:
        values.update(label_smoothing=architecture.label_smoothing)
    return values


def apply(args, name, architecture):
    """Fill what the user left open with the values of ``architecture``, and check the whole.

    ``args`` is fairseq's namespace when a command line was parsed, or later the model's part of the
    configuration alone, which holds no training.

    Raises:
        UserError: values that cannot be trained
    """
    if getattr(args, "lr_scheduler", None) is None:
        _fill(args, architecture.options())
        return
    _fill(args, {**paper_values(args, architecture), **_EVERY_SENTENCE})
    workers.join(args)
    checks.training(args)
    _fill_batch(args)
    if args.lr is not None and args.lr_scheduler == SCHEDULER:
        logger.warning("--lr %s is not used: Eq. 3 states the rate; scale it with --lr-factor", args.lr[0])
    elif args.lr is None:
        # fairseq logs --lr: with our schedule, which does not use it, the peak misleads nobody.
        args.lr = [_peak(args)] if args.lr_scheduler == SCHEDULER else _STOCK_LR
    toolkit.undo_tpu_for_bf16(args)
    _log(args, name, architecture)


def _fill(args, values):
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def _fill_batch(args):
    """About 25 000 target tokens in each update, whatever the number of workers and of batches."""
    if args.max_tokens is None and args.batch_size is None:
        args.max_tokens = max(1, TOKENS_PER_UPDATE // _batches_per_update(args))
        if getattr(args, "max_tokens_valid", None) is None:
            args.max_tokens_valid = args.max_tokens


def _batches_per_update(args):
    return max(1, args.distributed_world_size) * args.update_freq[0]


def _peak(args):
    warmup = args.warmup_updates
    return learning_rate.inverse_sqrt_rate(warmup, args.encoder_embed_dim, warmup, args.lr_factor)


def _comparable(value):
    return value.replace(" ", "") if isinstance(value, str) else value


def _log(args, name, architecture):
    """One block at the start: the recipe in force, and what is not the paper's."""
    paper = paper_values(args, architecture)
    differences = [
        f"--{key.replace('_', '-')} {getattr(args, key)} (paper: {value})"
        for key, value in paper.items()
        if _comparable(getattr(args, key)) != _comparable(value)
    ]
    if args.max_tokens is None:
        batch = f"{args.batch_size * _batches_per_update(args)} sentences per update"
        differences.append(f"--batch-size {args.batch_size} (paper: about {TOKENS_PER_UPDATE} tokens per update)")
    else:
        tokens = args.max_tokens * _batches_per_update(args)
        batch = (
            f"up to {tokens} tokens per update ({args.max_tokens} x {max(1, args.distributed_world_size)} workers"
            f" x {args.update_freq[0]} batches)"
        )
        if abs(tokens - TOKENS_PER_UPDATE) > 0.02 * TOKENS_PER_UPDATE:
            differences.append(f"{tokens} tokens per update (paper: about {TOKENS_PER_UPDATE})")
    parts = [f"N={args.encoder_layers} d_model={args.encoder_embed_dim} d_ff={args.encoder_ffn_embed_dim}"
             f" h={args.encoder_attention_heads} dropout={args.dropout}"]
    if args.optimizer in _ADAMS:
        parts.append(f"Adam betas={args.adam_betas} eps={args.adam_eps}")
    if args.lr_scheduler == SCHEDULER:
        parts.append(f"Eq. 3 with {args.warmup_updates} warm-up updates, factor {args.lr_factor},"
                     f" peak {_peak(args):.6g}")
    if args.criterion == CRITERION:
        parts.append(f"label smoothing {args.label_smoothing}")
    parts.append(batch)
    parts.append(f"{args.max_update} updates")
    logger.info("recipe of %s: %s", name, "; ".join(parts))
    logger.info("changed from the paper: %s", "; ".join(differences) if differences else "nothing")
