"""Which checkpoints are averaged, what comes out, and what is refused."""

import sys

import average_checkpoints
import pytest
import torch


def checkpoint(folder, name, value, **extra):
    state = {"model": {"w": torch.tensor([value, 2 * value])}, "last_optimizer_state": {"step": 1}, **extra}
    torch.save(state, folder / name)
    return folder / name


def average(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["average_checkpoints.py", *map(str, arguments)])
    average_checkpoints.main()


def test_the_last_by_number_of_updates(tmp_path, monkeypatch):
    for epoch, update in ((1, 900), (1, 1000), (2, 1100), (2, 200)):
        checkpoint(tmp_path, f"checkpoint_{epoch}_{update}.pt", float(update), run=update)
    for name in ("checkpoint_last.pt", "checkpoint_best.pt", "checkpoint7.pt", "checkpoint_x_1.pt"):
        checkpoint(tmp_path, name, 1e9)
    out = tmp_path / "averaged.pt"
    average(monkeypatch, tmp_path, "--last", 3, "--out", out)
    averaged = torch.load(out, weights_only=True)
    assert averaged["model"]["w"].tolist() == [1000.0, 2000.0]
    assert averaged["run"] == 1100
    assert "last_optimizer_state" not in averaged


def test_named_files(tmp_path, monkeypatch):
    paths = [checkpoint(tmp_path, f"{name}.pt", value) for name, value in (("a", 1.0), ("b", 4.0))]
    average(monkeypatch, *paths, "--out", tmp_path / "out.pt")
    assert torch.load(tmp_path / "out.pt", weights_only=True)["model"]["w"].tolist() == [2.5, 5.0]


class Forbidden:
    """An object that no checkpoint should hold."""


@pytest.mark.parametrize(
    "content, sentence",
    [
        (None, "cannot be read: No such file"),
        (b"not a checkpoint", "no checkpoint that can be loaded safely"),
        (b"", "no checkpoint that can be loaded safely"),
        ({"weights": 1}, "holds no model"),
        ({"model": {"w": Forbidden()}}, "no checkpoint that can be loaded safely"),
        ({"model": {"w": torch.zeros(3)}}, "names or shapes"),
    ],
)
def test_bad_checkpoints_are_refused_and_nothing_is_written(tmp_path, monkeypatch, content, sentence):
    good, bad, out = checkpoint(tmp_path, "good.pt", 1.0), tmp_path / "bad.pt", tmp_path / "out.pt"
    if isinstance(content, bytes):
        bad.write_bytes(content)
    elif content is not None:
        torch.save(content, bad)
    with pytest.raises(ValueError, match=sentence):
        average(monkeypatch, good, bad, "--out", out)
    assert {path.name for path in tmp_path.iterdir()} <= {"good.pt", "bad.pt"}


def test_a_folder_without_checkpoints(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="--save-interval-updates"):
        average(monkeypatch, tmp_path, "--out", tmp_path / "out.pt")


def test_at_least_one(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="at least 1, not 0"):
        average(monkeypatch, tmp_path, "--last", 0, "--out", tmp_path / "out.pt")
