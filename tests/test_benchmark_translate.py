"""Trained weights on both sides of a comparison, with the same search, sentence by sentence."""

import re
import sys
from dataclasses import asdict
from unittest import mock

import pytest
import torch

from vaswani_plugin.beam_search import BeamSearch
from vaswani_plugin.config import VaswaniConfig
from vaswani_plugin.transformer import VaswaniModel

from .helpers import REPOSITORY, SMALL, run

sys.path.insert(0, str(REPOSITORY / "scripts"))

import benchmark_translate  # noqa: E402

# A small model whose logits are far apart, so that no rounding decides between two words.
LARGE_WEIGHTS = 3.0


@pytest.fixture
def checkpoint(data_bin, tmp_path):
    torch.manual_seed(1)
    config = VaswaniConfig(**SMALL)
    words = benchmark_translate.task_of("translation", data_bin).source_dictionary
    state = {name: LARGE_WEIGHTS * weight for name, weight in VaswaniModel.from_config(config, words).state_dict().items()}
    settings = {name: value for name, value in asdict(config).items() if not name.startswith("_")}
    path = tmp_path / "model.pt"
    torch.save({"args": None, "cfg": {"model": {"_name": "vaswani", **settings}}, "model": state}, path)
    return path


def test_both_models_translate_alike_and_batches_go_from_short_to_long(checkpoint, data_bin):
    stock, plugin = (benchmark_translate.task_of(name, data_bin) for name in ("translation", "vaswani_translation"))
    built = benchmark_translate.models(checkpoint, stock)
    assert {type(model).__name__ for model in built.values()} == {"VaswaniModel", "TransformerModel"}
    batches = benchmark_translate.batches_of(stock, "valid", 4)
    lengths = [batch["net_input"]["src_tokens"].size(1) for batch in batches]
    assert lengths == sorted(lengths)
    searches = benchmark_translate.searches(built, stock, plugin, beam=3)
    with mock.patch.object(BeamSearch, "generate", autospec=True, side_effect=BeamSearch.generate) as paper:
        found = {side: [t.tolist() for batch in batches for t in search(batch)] for side, search in searches.items()}
    assert paper.call_count == len(batches)  # the search of Section 6.1 is that of one side alone
    assert found[benchmark_translate.OURS] == found[benchmark_translate.STOCK]
    assert len(found[benchmark_translate.PAPER]) == sum(batch["nsentences"] for batch in batches)


@pytest.mark.parametrize("sentences, taken", [(1, [1, 3, 5, 7, 9]), (2, [1, 3])])
def test_the_batches_taken_are_spread_over_the_data_set(monkeypatch, sentences, taken):
    monkeypatch.setattr(benchmark_translate, "BATCHES", 2)
    monkeypatch.setattr(benchmark_translate, "SENTENCES", 5)

    class Task:
        def load_dataset(self, subset):
            assert subset == "test"

        def dataset(self, subset):
            return subset

        def get_batch_iterator(self, dataset, max_sentences, required_batch_size_multiple):
            assert max_sentences == sentences and required_batch_size_multiple == 1
            return self

        def next_epoch_itr(self, shuffle):
            return iter(range(11 if sentences == 1 else 5))

    assert benchmark_translate.batches_of(Task(), "test", sentences) == taken


def test_the_table_counts_and_compares():
    args = type("Args", (), {"subset": "test", "batch_size": 2, "beam": 4, "threads": 1, "rounds": 3})
    ours, stock, paper = benchmark_translate.OURS, benchmark_translate.STOCK, benchmark_translate.PAPER
    found = {ours: [[5, 2], [6, 2]], stock: [[5, 2], [7, 8, 2]], paper: [[5, 2], [2]]}
    rounds = [{ours: 1.0, stock: 2.0, paper: 4.0}, {ours: 0.5, stock: 2.0, paper: 1.0}, {ours: 1.0, stock: 3.0, paper: 1.0}]
    text = benchmark_translate.table(found, rounds, args)
    assert "2 sentences of the test set" in text and "1 of 2 translations are the same" in text
    assert "| ours | 2 | 4 | 3.00 times as fast (2.00-4.00) |" in text
    assert f"| {paper} | 2 | 3 | 2.00 times as fast (0.50-3.00) |" in text
    assert "| stock | 1 | 5 |  |" in text


def test_data_of_another_model_is_refused(checkpoint, separate_data_bin):
    task = benchmark_translate.task_of("translation", separate_data_bin)
    with pytest.raises(ValueError, match="give the data that the model was trained with"):
        benchmark_translate.models(checkpoint, task)


def test_a_run_on_the_command_line(checkpoint, data_bin, tmp_path):
    done = run("python", "scripts/benchmark_translate.py", checkpoint, data_bin, "--rounds", "1", "--batch-size", "8")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\| ours \| [\d.e+]+ \| \d+ \| [\d.]+ times as fast \|$", done.stdout, re.MULTILINE)
    assert "round 1 of 1" in done.stderr
    for arguments, sentence in (
        ([checkpoint, tmp_path], f"{tmp_path}: Could not infer language pair"),
        ([checkpoint, data_bin, "--subset", "nope"], "Dataset not found: nope"),
        ([tmp_path / "none.pt", data_bin], "none.pt is neither a checkpoint nor a folder"),
    ):
        done = run("python", "scripts/benchmark_translate.py", *arguments)
        assert done.returncode == 1 and sentence in done.stderr and "Traceback" not in done.stderr
