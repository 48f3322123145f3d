"""Section 5 rides on ``--arch``, and every flag of the user wins: through fairseq's own parser."""

import logging

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from vaswani_plugin.errors import UserError

from .helpers import PLUGIN

PAPER = {
    "optimizer._name": "vaswani_adam",
    "optimizer.adam_betas": "(0.9, 0.98)",
    "optimizer.adam_eps": 1e-9,
    "optimizer.weight_decay": 0.0,
    "lr_scheduler._name": "vaswani_inverse_sqrt",
    "lr_scheduler.warmup_updates": 4000,
    "lr_scheduler.lr_factor": 1.0,
    "lr_scheduler.encoder_embed_dim": 512,
    "criterion._name": "vaswani_label_smoothed_cross_entropy",
    "criterion.label_smoothing": 0.1,
    "optimization.max_update": 100_000,
    "optimization.clip_norm": 0.0,
    "dataset.max_tokens": 25_000,
    "dataset.max_tokens_valid": 25_000,
    "dataset.required_batch_size_multiple": 1,
    "checkpoint.save_interval_updates": 1500,
    "checkpoint.keep_interval_updates": 5,
    "model.encoder_embed_dim": 512,
    "model.encoder_ffn_embed_dim": 2048,
    "model.encoder_layers": 6,
    "model.decoder_layers": 6,
    "model.encoder_attention_heads": 8,
    "model.dropout": 0.1,
    "model.attention_dropout": 0.0,
    "model.share_all_embeddings": True,
    "model.attention_bias": False,
    "model.learned_positions": False,
    "common.tpu": False,
}


def parse(data_bin, *flags, arch="vaswani2017"):
    """The configuration that ``fairseq-train`` would run."""
    parser = options.get_training_parser()
    command = [str(data_bin), "--user-dir", str(PLUGIN), "--arch", arch, *flags]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, command))


def differences(cfg):
    found = {}
    for key, value in PAPER.items():
        actual = OmegaConf.select(cfg, key)
        actual = OmegaConf.to_container(actual) if OmegaConf.is_config(actual) else actual
        if actual != value:
            found[key] = actual
    return found


def test_the_architecture_alone_is_section_5(data_bin):
    assert differences(parse(data_bin)) == {}


OVERRIDES = [
    # flags; what differs from the paper then
    (["--adam-eps", "1e-8"], {"optimizer.adam_eps": 1e-8}),
    (["--adam-betas", "(0.9, 0.999)"], {"optimizer.adam_betas": "(0.9, 0.999)"}),
    (["--optimizer", "adam"], {"optimizer._name": "adam"}),
    (["--optimizer", "adam", "--weight-decay", "0.01"], {"optimizer._name": "adam", "optimizer.weight_decay": 0.01}),
    (["--optimizer", "vaswani_adam", "--weight-decay", "0.01"], {"optimizer.weight_decay": 0.01}),
    (["--warmup-updates", "8000"], {"lr_scheduler.warmup_updates": 8000}),
    (["--lr-factor", "2"], {"lr_scheduler.lr_factor": 2.0}),
    (["--label-smoothing", "0.0"], {"criterion.label_smoothing": 0.0}),
    (["--max-update", "0"], {"optimization.max_update": 0}),
    (["--clip-norm", "25"], {"optimization.clip_norm": 25.0}),
    (["--save-interval-updates", "0"], {"checkpoint.save_interval_updates": 0}),
    (["--keep-interval-updates", "-1"], {"checkpoint.keep_interval_updates": -1}),
    (["--dropout", "0.3"], {"model.dropout": 0.3}),
    (["--no-share-all-embeddings"], {"model.share_all_embeddings": False}),
    (["--share-all-embeddings"], {}),
    (["--attention-bias"], {"model.attention_bias": True}),
    (["--learned-positions"], {"model.learned_positions": True}),
    (["--encoder-layers", "2"], {"model.encoder_layers": 2}),
    (["--encoder-embed-dim", "256"], {"model.encoder_embed_dim": 256, "lr_scheduler.encoder_embed_dim": 256}),
    (["--max-tokens", "100"], {"dataset.max_tokens": 100, "dataset.max_tokens_valid": 100}),
    (["--max-tokens-valid", "100"], {"dataset.max_tokens_valid": 100}),
    (["--required-batch-size-multiple", "8"], {"dataset.required_batch_size_multiple": 8}),
    (["--batch-size", "8"], {"dataset.max_tokens": None, "dataset.max_tokens_valid": None}),
    (["--update-freq", "4"], {"dataset.max_tokens": 6250, "dataset.max_tokens_valid": 6250}),
    (["--distributed-world-size", "8"], {"dataset.max_tokens": 3125, "dataset.max_tokens_valid": 3125}),
    (
        ["--distributed-world-size", "2", "--update-freq", "4"],
        {"dataset.max_tokens": 3125, "dataset.max_tokens_valid": 3125},
    ),
    (["--bf16"], {}),
]


@pytest.mark.parametrize("flags, expected", OVERRIDES, ids=lambda value: " ".join(value))
def test_a_flag_changes_its_value_and_nothing_else(data_bin, flags, expected, monkeypatch):
    if "--distributed-world-size" in flags:  # refused where there are fewer GPUs
        monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    assert differences(parse(data_bin, *flags)) == expected


def test_other_components_bring_their_own_defaults(data_bin):
    cfg = parse(data_bin, "--criterion", "cross_entropy", "--lr-scheduler", "inverse_sqrt", "--optimizer", "adagrad")
    assert cfg.criterion._name == "cross_entropy"
    assert (cfg.lr_scheduler._name, cfg.lr_scheduler.warmup_updates) == ("inverse_sqrt", 4000)
    assert cfg.optimization.lr == [0.25]  # fairseq's own default again
    cfg = parse(data_bin, "--lr-scheduler", "fixed", "--lr", "0.25", "--criterion", "label_smoothed_cross_entropy")
    assert (cfg.lr_scheduler._name, cfg.lr_scheduler.warmup_updates) == ("fixed", 0)
    assert cfg.criterion.label_smoothing == 0.0
    cfg = parse(data_bin, "--lr-scheduler", "cosine", "--lr", "0.1")
    assert (cfg.lr_scheduler._name, cfg.lr_scheduler.warmup_updates, cfg.optimization.lr) == ("cosine", 0, [0.1])


@pytest.mark.parametrize("optimizer", ["adadelta", "adafactor", "adagrad", "adamax", "lamb", "nag", "sgd"])
def test_every_optimizer_of_the_toolkit_still_parses(data_bin, optimizer):
    cfg = parse(data_bin, "--optimizer", optimizer, "--weight-decay", "0.5")
    node = cfg.optimizer
    assert node._name == optimizer
    assert node.weight_decay == 0.5


def test_the_logged_rate_is_the_peak_of_equation_3(data_bin):
    assert parse(data_bin).optimization.lr == [pytest.approx(6.987712430e-4, rel=1e-9)]


def test_the_big_models(data_bin):
    expected = {
        "lr_scheduler.encoder_embed_dim": 1024, "optimization.max_update": 300_000,
        "checkpoint.save_interval_updates": 600, "checkpoint.keep_interval_updates": 20,
        "model.encoder_embed_dim": 1024, "model.encoder_ffn_embed_dim": 4096, "model.encoder_attention_heads": 16,
    }
    assert differences(parse(data_bin, arch="vaswani2017_big")) == {**expected, "model.dropout": 0.3}
    assert differences(parse(data_bin, arch="vaswani2017_big_en_fr")) == expected


def test_stock_architectures_parse_as_without_the_plugin(data_bin):
    """In fresh processes, since a registry cannot be unloaded."""
    import subprocess
    import sys

    program = (
        "import sys; from fairseq import options; parser = options.get_training_parser();"
        "args = options.parse_args_and_arch(parser, sys.argv[1:]); args.user_dir = None;"
        "print(sorted(vars(args).items(), key=str))"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(data_bin), "--arch", "transformer"]
    outputs = [
        subprocess.run([*command, *flags], capture_output=True, text=True, check=True).stdout
        for flags in ([], ["--user-dir", str(PLUGIN)])
    ]
    assert "encoder_embed_dim" in outputs[0]
    assert outputs[0] == outputs[1]


def test_a_stock_parse_in_the_same_process_stays_stock(data_bin):
    parse(data_bin)
    cfg = parse(data_bin, arch="transformer")
    assert (cfg.criterion._name, cfg.lr_scheduler._name, cfg.optimization.max_update) == ("cross_entropy", "fixed", 0)
    assert cfg.optimization.lr == [0.25]
    assert cfg.optimizer is None


def test_the_block_at_the_start_names_what_is_not_the_papers(data_bin, caplog):
    caplog.set_level(logging.INFO, logger="vaswani_plugin.recipe")
    parse(data_bin)
    assert "recipe of vaswani2017: N=6 d_model=512 d_ff=2048 h=8" in caplog.text
    assert "up to 25000 tokens per update (25000 x 1 workers x 1 batches)" in caplog.text
    assert "changed from the paper: nothing" in caplog.text
    caplog.clear()
    parse(data_bin, "--dropout", "0.2", "--lr", "0.1", "--max-tokens", "1000", "--optimizer", "adam",
          "--weight-decay", "0.1")
    assert (
        "changed from the paper: --dropout 0.2 (paper: 0.1); --weight-decay 0.1 (paper: 0.0);"
        " 1000 tokens per update (paper: about 25000)"
    ) in caplog.text
    assert "--lr 0.1 is not used" in caplog.text


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (["--warmup-updates", "0"], "--warmup-updates must be at least 1"),
        (["--label-smoothing", "1"], "--label-smoothing must lie in"),
        (["--dropout", "-1"], "--dropout must lie in"),
        (["--encoder-attention-heads", "5"], "not divisible"),
        (["--restore-file", "/nowhere/model.pt"], "--restore-file /nowhere/model.pt does not exist"),
    ],
)
def test_bad_values_are_refused_before_the_training(data_bin, flags, sentence):
    with pytest.raises(UserError, match=sentence):
        parse(data_bin, *flags)


def test_hydra_configuration_says_the_same_as_the_architecture(data_bin):
    shipped = OmegaConf.load(PLUGIN / "config" / "vaswani2017.yaml")
    cfg = parse(data_bin)
    for group in ("criterion", "optimizer", "lr_scheduler", "dataset", "optimization", "checkpoint", "model"):
        for key, value in OmegaConf.to_container(shipped[group]).items():
            if key == "_name" and group == "model":
                assert value == "vaswani"
            elif key == "adam_betas":  # fairseq keeps the flag's text
                assert str(tuple(value)) == cfg.optimizer.adam_betas
            elif not str(value).startswith("${"):
                assert OmegaConf.select(cfg, f"{group}.{key}") == value, f"{group}.{key}"
