"""fairseq's log as numbers, as a picture, and made readable."""

import sys

import loss_curve
import pytest
from loss_curve import curves, parse
from readable_log import readable


def train(update, nll_loss):
    return (
        f'{{"epoch": 1, "update": 0.2, "loss": "9.9", "nll_loss": "{nll_loss}", "num_updates": "{update}", '
        f'"lr": "0.001", "wall": "30"}}'
    )


def valid(update, nll_loss):
    return f'{{"epoch": 1, "valid_loss": "8", "valid_nll_loss": "{nll_loss}", "valid_num_updates": "{update}"}}'


EPOCH_END = '{"epoch": 1, "train_loss": "8", "train_nll_loss": "7", "train_num_updates": "20"}'


def test_points():
    assert parse(train(20, 7.5)) == (20, 7.5, "train", 0.001, 30)
    assert parse("2026-01-01 00:00:00 | INFO | train_inner | " + train(20, 7.5))[:3] == (20, 7.5, "train")
    assert parse(valid(20, 6.5))[:3] == (20, 6.5, "valid")


@pytest.mark.parametrize("line", [EPOCH_END, "", "{'_name': None}", train(20, 7.5)[:40], '{"epoch": 1, "nll_loss": }'])
def test_lines_without_a_loss_to_draw(line):
    assert parse(line) is None


def test_what_a_resumed_run_repeats_replaces_the_first_time():
    log = [train(10, 9), valid(10, 9), train(20, 8), train(30, 7), train(20, 8.5), train(30, 7.5)]
    points = curves(log)
    assert [(p.update, p.nll_loss) for p in points["train"]] == [(10, 9), (20, 8.5), (30, 7.5)]
    assert [(p.update, p.nll_loss) for p in points["valid"]] == [(10, 9)]


def test_losses_of_a_run_that_was_begun_anew_do_not_stay():
    points = curves([train(10, 9), train(20, 8), train(10, 9.5)])
    assert [(p.update, p.nll_loss) for p in points["train"]] == [(10, 9.5)]


def test_picture(tmp_path, monkeypatch, capsys):
    log, png = tmp_path / "train.log", tmp_path / "loss.png"
    log.write_text("\n".join([train(10, 9), valid(10, 8.5), train(20, 8)]))
    monkeypatch.setattr(sys, "argv", ["loss_curve.py", str(log), str(png)])
    loss_curve.main()
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "20 updates, last train loss 8.000" in capsys.readouterr().out


def test_no_losses(tmp_path, monkeypatch):
    log = tmp_path / "train.log"
    log.write_text("nothing\n")
    monkeypatch.setattr(sys, "argv", ["loss_curve.py", str(log), str(tmp_path / "loss.png")])
    with pytest.raises(ValueError, match="has no losses"):
        loss_curve.main()
    assert not (tmp_path / "loss.png").exists()


@pytest.mark.parametrize(
    "line, shown",
    [
        ("2026-01-01 00:00:00 | INFO | fairseq_cli.train | done training in 3 seconds\n", "done training in 3 seconds\n"),
        ("2026-01-01 00:00:00 | INFO | fairseq_cli.train | {'_name': None}\n", None),
        ("INFO:fairseq_cli.generate:Translated 20 sentences\n", "Translated 20 sentences\n"),
        ("INFO:fairseq.logging.progress_bar::      2 / 3 wps=119\n", "2 / 3 wps=119\n"),
        ("DEBUG:hydra.core.utils:Setting JobRuntime:name=utils\n", None),
        ("  (encoder): VaswaniEncoder(\n", None),
        ("    )\n", None),
        ("2026-01-01 00:00:00 | WARNING | x | ignored 3 samples\n", "2026-01-01 00:00:00 | WARNING | x | ignored 3 samples\n"),
        ("error: Dataset not found\n", "error: Dataset not found\n"),
        ("Traceback (most recent call last):\n", "Traceback (most recent call last):\n"),
    ],
)
def test_readable(line, shown):
    assert readable(line) == shown


def test_readable_losses():
    assert readable(train(20, 7.5)) == "update     20  train loss  7.500 bits a token  learning rate 1.00e-03    0.5 min\n"
    assert readable(valid(20, 7.5)) == "update     20  valid loss  7.500 bits a token\n"
