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
        (b"not a checkpoint", "damaged .it is cut off, or no checkpoint"),
        (b"", "damaged .it is empty"),
        ({"weights": 1}, "holds no model"),
        ({"model": {"w": Forbidden()}}, "was not loaded: it holds the object"),
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


def test_the_papers_numbers_and_too_few(tmp_path, monkeypatch, capsys):
    for update in range(1, 8):
        checkpoint(tmp_path, f"checkpoint_1_{update}.pt", float(update))
    out = tmp_path / "out.pt"
    average(monkeypatch, tmp_path, "--preset", "base", "--out", out)
    assert torch.load(out, weights_only=True)["model"]["w"].tolist() == [5.0, 10.0]  # of 3, 4, 5, 6, 7
    shown = capsys.readouterr()
    assert shown.err.count("averaging") == 5 and "checkpoint_1_3.pt" in shown.err
    assert "average of 5 checkpoints" in shown.out
    with pytest.raises(ValueError, match="7 checkpoints and 20"):
        average(monkeypatch, tmp_path, "--preset", "big", "--out", tmp_path / "big.pt")
    assert not (tmp_path / "big.pt").exists()
    average(monkeypatch, tmp_path, "--preset", "big", "--allow-fewer", "--out", out)
    assert torch.load(out, weights_only=True)["model"]["w"].tolist() == [4.0, 8.0]


def test_checkpoints_by_epoch_where_there_are_no_others(tmp_path, monkeypatch):
    for epoch in (9, 10, 11):
        checkpoint(tmp_path, f"checkpoint{epoch}.pt", float(epoch))
    average(monkeypatch, tmp_path, "--last", 2, "--out", tmp_path / "out.pt")
    assert torch.load(tmp_path / "out.pt", weights_only=True)["model"]["w"].tolist() == [10.5, 21.0]


@pytest.mark.parametrize(
    "one, other, named",
    [
        ({"cfg": {"model": {"encoder_attention_heads": 4}}}, {"cfg": {"model": {"encoder_attention_heads": 8}}}, "heads"),
        ({"cfg": {"common": {"seed": 1}}}, {"cfg": {"common": {"seed": 2}}}, "seed"),
        ({"cfg": {"model": {"_name": "vaswani2017"}}}, {"cfg": {"model": {"_name": "other"}}}, "arch"),
    ],
)
def test_models_of_equal_shapes_and_different_trainings_are_refused(tmp_path, monkeypatch, one, other, named):
    paths = [checkpoint(tmp_path, "a.pt", 1.0, **one), checkpoint(tmp_path, "b.pt", 2.0, **other)]
    with pytest.raises(ValueError, match=f"one training.*{named}"):
        average(monkeypatch, *paths, "--out", tmp_path / "out.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "b.pt"]


def test_one_matrix_under_three_names_stays_one(tmp_path, monkeypatch):
    for number in (1, 2):
        matrix = torch.full((2, 2), float(number))
        state = {"model": {"source": matrix, "target": matrix, "output": matrix, "other": matrix.clone()}}
        torch.save(state, tmp_path / f"checkpoint_1_{number}.pt")
    average(monkeypatch, tmp_path, "--last", 2, "--out", tmp_path / "out.pt")
    model = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
    assert model["source"].data_ptr() == model["target"].data_ptr() == model["output"].data_ptr()
    assert model["other"].data_ptr() != model["source"].data_ptr()
    assert all(tensor.tolist() == [[1.5, 1.5], [1.5, 1.5]] for tensor in model.values())
