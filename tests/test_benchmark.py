"""The benchmark: fair batches, right arithmetic, nothing measured twice, and a whole small run."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from .helpers import EOS, PAD, REPOSITORY, run

sys.path.insert(0, str(REPOSITORY / "scripts"))

import benchmark  # noqa: E402
import benchmark_sides  # noqa: E402
from benchmark_sides import Case  # noqa: E402

SMALL = Case("tiny", entries=60, words=6, tokens=24, mixed=True)
SETTINGS = SimpleNamespace(device="cpu", precision="fp32", threads=1, clock="wall")


def test_a_batch_has_the_shape_that_its_case_says():
    sample = benchmark_sides.batch(Case(entries=50, words=8, tokens=100))
    assert sample["target"].shape == sample["net_input"]["src_tokens"].shape == (12, 8)
    assert sample["ntokens"] == 96 and sample["target"].max() < 50
    assert (sample["target"][:, -1] == EOS).all() and (sample["net_input"]["prev_output_tokens"][:, 0] == EOS).all()
    assert torch.equal(sample["net_input"]["prev_output_tokens"][:, 1:], sample["target"][:, :-1])
    assert torch.equal(benchmark_sides.batch(SMALL)["target"], benchmark_sides.batch(SMALL)["target"])


def test_mixed_lengths_pad_sources_on_the_left_and_targets_on_the_right():
    sample = benchmark_sides.batch(Case(entries=50, words=8, tokens=160, mixed=True))
    source, target = sample["net_input"]["src_tokens"], sample["target"]
    lengths = target.ne(PAD).sum(dim=1)
    assert lengths.sum() == sample["ntokens"] and lengths.min() >= 4 and lengths.max() <= 12
    assert (source[:, -1] == EOS).all() and (source[:, 0] == PAD).any() and (target[:, -1] == PAD).any()
    assert all(target[row, n - 1] == EOS for row, n in enumerate(lengths))


@pytest.mark.parametrize("side", benchmark_sides.SIDES)
def test_each_side_trains_on_the_same_batch_from_losses_of_an_untrained_model(side):
    built = benchmark.sides_of(SMALL, [side], SETTINGS)[side]
    sample = benchmark_sides.batch(SMALL)
    losses = [built.train_step(sample) for _ in range(3)]
    # Around log2(60) = 5.9 bits: logits of unit variance and more are no better than a guess.
    assert all(4 < loss < 16 for loss in losses)
    assert built.trainer.get_num_updates() == 3
    built.valid_step(sample)


def test_sides_have_the_same_number_of_weights_but_for_attention_biases_and_last_norms():
    sides = benchmark.sides_of(SMALL, benchmark_sides.SIDES, SETTINGS)
    count = {name: sum(p.numel() for p in side.trainer.model.parameters()) for name, side in sides.items()}
    d, layers = 256, 3
    assert count["stock"] - count["ours"] == 3 * layers * 4 * d
    assert count["torch"] - count["stock"] == 2 * 2 * d


def test_both_sides_search_with_the_same_number_of_steps():
    case = Case("tiny", entries=60, words=5, tokens=10, beam=4, steps=7)
    rates = benchmark.generate(case, ("ours", "stock"), 1, SETTINGS, lambda text: None)
    assert [sorted(taken) for taken in rates] == [["ours", "stock"]]


def test_turns_alternate_and_the_first_round_does_not_count():
    calls = []
    seconds = benchmark.in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2, SETTINGS, lambda text: None)
    assert "".join(calls) == "ba" + "ab" + "ba" and len(seconds) == 2


def test_ratios_are_of_rounds_and_above_one_where_ours_is_faster():
    rounds = [{"ours": 1.0, "stock": 2.0}, {"ours": 10.0, "stock": 15.0}, {"ours": 4.0, "stock": 4.0}]
    assert benchmark.summarise("train", SMALL, rounds)["ratios"]["stock"] == {"median": 1.5, "low": 1.0, "high": 2.0}
    assert benchmark.summarise("generate", SMALL, rounds)["ratios"]["stock"]["median"] == pytest.approx(2 / 3)
    assert benchmark.summarise("memory", SMALL, rounds)["ratios"]["stock"]["median"] == pytest.approx(2 / 3)


def test_the_fit_finds_the_two_terms_of_table_1():
    seconds = {n: 3e-12 * n**2 * 512 + 5e-13 * n * 512**2 for n in (32, 128, 512, 2048)}
    fit = benchmark.fit(seconds, 512)
    assert fit["seconds per n^2 d"] == pytest.approx(3e-12) and fit["seconds per n d^2"] == pytest.approx(5e-13)
    assert all(value == pytest.approx(1) for value in fit["measured / fitted"].values())
    seconds[2048] *= 2
    assert benchmark.fit(seconds, 512)["measured / fitted"]["2048"] > 1.1


def test_peak_memory_counts_what_this_process_touched():
    before = benchmark.peak_memory("cpu")
    held = torch.ones(int(before / 4))  # as many bytes again
    assert benchmark.peak_memory("cpu") > 1.2 * before > 0
    del held
    assert benchmark.peak_memory("cpu") > 1.2 * before


@pytest.mark.parametrize("flags, sentence", [
    (["--precision", "fp16"], "fp16 needs a GPU"),
    (["--threads", "0"], "--threads must be at least 1, not 0"),
    (["--case", "no such case"], "nothing to measure"),
    ([], "of another machine or other settings"),
])
def test_bad_wishes_are_refused_before_anything_is_measured(tmp_path, monkeypatch, flags, sentence):
    report = tmp_path / "report.json"
    report.write_text('{"machine": {}, "rows": []}')
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--output", str(report), *flags])
    with pytest.raises(ValueError, match=sentence):
        benchmark.main()
    assert report.read_text() == '{"machine": {}, "rows": []}'


def test_on_the_command_line_bad_wishes_end_in_one_sentence():
    done = run("python", "scripts/benchmark.py", "--device", "cuda")
    assert done.returncode == 1 and done.stderr == "benchmark.py: --device cuda: torch sees no GPU here.\n"


@pytest.mark.slow
def test_a_run_writes_report_and_table_and_goes_on_where_it_stopped(tmp_path):
    report = tmp_path / "runs" / "report.json"
    flags = ["--only", "train", "--case", "tiny", "--threads", "1", "--output", report]
    done = run("python", "scripts/benchmark.py", *flags, timeout=600)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(report.read_text())["rows"]
    assert set(row["sides"]) == {"ours", "stock", "torch"} and len(row["sides"]["ours"]["values"]) == 7
    table = report.with_suffix(".md").read_text()
    assert done.stdout == table and "| train | tiny, V=8000" in table
    again = run("python", "scripts/benchmark.py", *flags)
    assert "already" in again.stderr and again.stdout == table
