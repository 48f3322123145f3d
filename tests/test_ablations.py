"""Table 3 at another scale: sizes, figures from logs, verdicts, report, resuming."""

import json
import math
import random
import signal
import subprocess
import sys
from dataclasses import replace

import ablations
import pytest
import table3
import toy_language

from vaswani_plugin.architectures import ARCHITECTURES

from .helpers import REPOSITORY, run

SETTINGS = ablations.Settings(data="bin", subset="valid", scale="1/8", depth="1/2", updates=1000, warmup=40,
                              lr_factor=1.0, tokens=500)


def runs(*perplexities):
    """Results of one row: seeds 1, 2, ... with these perplexities."""
    return {seed: {"perplexity": value} for seed, value in enumerate(perplexities, 1)}


def test_rows_are_those_of_the_paper_and_of_the_plugin():
    assert {ablations.architecture_name(row) for row in table3.PAPER} <= set(ARCHITECTURES)
    left_out = set(ARCHITECTURES) - {ablations.architecture_name(row) for row in table3.PAPER}
    assert left_out == {"vaswani2017_big_en_fr", "vaswani2017_parsing", "vaswani2017_tiny"}


def test_choosing_rows():
    assert table3.choose(["B", "a_h1"]) == ["base", "a_h1", "b_dk16", "b_dk32"]
    assert table3.choose(["all"]) == list(table3.PAPER)
    with pytest.raises(ValueError, match="c_n3 is no row of Table 3"):
        table3.choose(["c_n3"])


def test_scaled_sizes():
    base, keys, deep = (SETTINGS.architecture(row) for row in ("base", "b_dk16", "c_n8"))
    assert (base.layers, base.d_model, base.d_ff, base.heads, base.d_k) == (3, 64, 256, 8, 0)
    assert (keys.d_k, keys.d_model) == (2, 64)
    assert deep.layers == 4
    big = SETTINGS.architecture("big")
    assert (big.d_model, big.d_ff, big.heads, big.updates, big.dropout) == (128, 512, 16, 3000, 0.3)


def test_layers_are_rounded_and_at_least_one():
    third = replace(SETTINGS, depth="1/3")
    assert [third.architecture(row).layers for row in ("c_n2", "c_n4", "base", "c_n8")] == [1, 1, 2, 3]
    assert replace(SETTINGS, depth="1/8").architecture("c_n2").layers == 1


@pytest.mark.parametrize("row, says", [("b_dk16", "d_k would be 1/2"), ("a_h32", "32 heads do not divide 16")])
def test_scales_that_make_no_model_are_refused(row, says):
    with pytest.raises(ValueError, match=says):
        replace(SETTINGS, scale="1/32").architecture(row)


TRAIN_LOG = """
2026-01-01 00:00:00 | INFO | fairseq_cli.train | num. shared model params: 1,234 (num. trained: 1,234)
2026-01-01 00:00:01 | INFO | valid | {"epoch": 1, "valid_loss": "3", "valid_nll_loss": "2", "valid_num_updates": "10"}
2026-01-01 00:00:02 | INFO | valid | {"epoch": 1, "valid_loss": "3", "valid_nll_loss": "1", "valid_num_updates": "20"}
2026-01-01 00:00:03 | INFO | valid | {"epoch": 1, "valid_loss": "3", "valid_nll_loss": "1", "valid_num_updates": "20"}
2026-01-01 00:00:04 | INFO | valid | {"epoch": 2, "valid_loss": "3", "valid_nll_loss": "1.5", "valid_num_updates": "30"}
2026-01-01 00:00:05 | INFO | train | {"epoch": 2, "train_loss": "3", "train_nll_loss": "0.5", "train_num_updates": "30"}
"""


def test_figures_from_the_logs():
    figures = ablations.figures_of(TRAIN_LOG, "... BLEU4 = 12.34, 50.0/20.0/9.0/4.0 (BP=1.000 ...")
    assert figures == {
        "perplexity": 2**1.5, "best_perplexity": 2, "training_perplexity": 2**0.5, "bleu": 12.34, "parameters": 1234,
        "curve": [(10, 4), (20, 2), (30, 2**1.5)],
    }
    with pytest.raises(ValueError, match="lack"):
        ablations.figures_of(TRAIN_LOG, "no score")


@pytest.mark.parametrize("row, base, other, says", [
    # The paper: d_drop0 0.85 above base, c_n8 0.04 below, e_learned equal.
    ("d_drop0", (2, 2, 2), (3, 3.1, 2.9), "shown (3 of 3 seeds, +1.000 ± 0.058)"),
    ("d_drop0", (2, 2, 2), (3, 1.9, 1.9), "not shown beyond the spread (1 of 3 seeds"),
    ("d_drop0", (2, 2, 2), (1, 1.1, 0.9), "opposite (0 of 3 seeds"),
    ("d_drop0", (2, 2, 2), (1, 2.1, 1.9), "not shown (1 of 3 seeds"),
    ("c_n8", (2, 2, 2), (1, 1.1, 0.9), "shown (3 of 3 seeds"),
    ("e_learned", (2, 2, 2), (2.1, 1.9, 2.1), "equal, as in the paper (+0.033 ± 0.067)"),
    ("e_learned", (2, 2, 2), (3, 3.1, 2.9), "not equal; in the paper equal"),
    ("d_drop0", (2,), (3,), "needs two seeds"),
])
def test_verdicts(row, base, other, says):
    assert table3.verdict(row, {"base": runs(*base), row: runs(*other)}).startswith(says)


def test_seeds_are_compared_in_pairs():
    # Seed 3 of base is missing: it cannot be compared.
    assert "2 of 2 seeds, +1.000" in table3.verdict("a_h1", {"base": runs(2, 3), "a_h1": runs(3, 4, 9)})


def test_spread():
    spread = table3.Spread((1.0, 2.0, 3.0))
    assert spread.text(2) == "2.00 ± 1.00"  # by hand: deviations -1, 0, 1 over n - 1 = 2
    assert table3.Spread((1.5,)).text(1) == "1.5" and table3.Spread(()).text(1) == "-"


def test_report_says_what_was_run(tmp_path):
    study = ablations.Study(SETTINGS, ["base", "a_h1"], [1, 2], tmp_path)
    figures = ablations.figures_of(TRAIN_LOG, "BLEU4 = 12.34")
    study.runs[0].folder.mkdir(parents=True)
    study.runs[0].result_file.write_text(json.dumps(figures))
    study.report()
    text = (tmp_path / "table3.md").read_text()
    for part in ("`bin`, subset `valid`", "Widths x 1/8, layers x 1/2", "1000 updates of up to 500 tokens",
                 "Seeds asked for: 1, 2", "| base | 3 | 64 | 256 | 8 |"):
        assert part in text
    rows = {line.split(" | ")[0][2:]: line.split(" | ") for line in text.splitlines() if line.startswith("| ")}
    place = rows["row"].index("runs")
    assert (rows["base"][place], rows["a_h1"][place]) == ("1", "0")
    assert rows["a_h1"][-3:-1] == ["5.29", "24.9"]
    data = json.loads((tmp_path / "table3.json").read_text())
    assert data["settings"]["scale"] == "1/8" and data["runs"]["base"]["1"]["bleu"] == 12.34
    assert data["paper"]["a_h1"] == {"perplexity": 5.29, "bleu": 24.9, "millions": None}
    assert (tmp_path / "table3.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_holds_one_kind_of_runs(tmp_path):
    ablations.Study(SETTINGS, ["base"], [1], tmp_path)._keep_settings()
    with pytest.raises(ValueError, match="holds runs with scale 1/8: choose another folder"):
        ablations.Study(replace(SETTINGS, scale="1/4"), ["base"], [1], tmp_path)._keep_settings()


def test_the_invented_language_agrees():
    """Endings of the target, worked out from the words of the source."""
    language = toy_language.Language(random.Random(1))
    simple = 0
    for _ in range(200):
        source, target = language.sentence()
        tense, verbs = toy_language.TENSES.index(source[-1]), [word for word in source if word in language.verbs]
        assert target.count(f"-{source[-1][0]}") == len(verbs)
        if len(verbs) > 1:
            continue
        simple += 1
        subject, object_ = [word for word in source if word in language.nouns]
        numbers = [toy_language.ARTICLES.index(word) for word in source if word in toy_language.ARTICLES]
        classes = [language.noun_class[noun] for noun in (subject, object_)]
        cases = [tense, language.case[verbs[0]]]
        endings = [f"-{'ae'[number]}{noun_class}{case}" for number, noun_class, case in zip(numbers, classes, cases)]
        verb_at = target.index(language.stem[verbs[0]])
        object_at = max(place for place in range(verb_at)
                        if target[place] in (language.stem[object_], language.second_stem.get(object_)))
        assert set(target[1:object_at:2]) == {endings[0]}
        assert set(target[object_at + 1:verb_at:2]) == {endings[1]}
        assert target[verb_at + 1] == f"-{'nm'[numbers[0]]}{classes[0]}{classes[1]}"
    assert simple > 50


def test_the_same_seed_writes_the_same_language(tmp_path):
    for folder in ("one", "two"):
        toy_language.write(tmp_path / folder, 30, 10, seed=5)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(names) == 6
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    train = (tmp_path / "one" / "train.src").read_text().splitlines()
    valid = (tmp_path / "one" / "valid.src").read_text().splitlines()
    assert (len(train), len(valid)) == (30, 10) and not set(train) & set(valid)


def script(name, *arguments):
    return run("python", REPOSITORY / "scripts" / name, *arguments, timeout=1800)


def test_bad_input_is_one_sentence(tmp_path):
    result = script("ablations.py", tmp_path / "none", tmp_path / "out")
    assert result.returncode == 1 and "none is not a directory" in result.stderr
    result = script("ablations.py", tmp_path, tmp_path / "out", "--rows", "c_n3")
    assert result.returncode == 1 and "c_n3 is no row of Table 3" in result.stderr
    assert "Traceback" not in result.stderr and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_two_rows_from_data_to_report_and_again(tmp_path):
    result = script("toy_language.py", tmp_path / "toy", "--train", 200, "--valid", 20)
    assert result.returncode == 0, result.stderr
    command = ["ablations.py", tmp_path / "toy" / "bin", tmp_path / "out", "--rows", "b_dk16", "--scale", "1/16",
               "--depth", "1/6", "--updates", 20, "--tokens", 200, "--jobs", 2]
    result = script(*command)
    assert result.returncode == 0, result.stdout + result.stderr
    first = json.loads((tmp_path / "out" / "table3.json").read_text())["runs"]
    dictionary = len((tmp_path / "toy" / "bin" / "dict.src.txt").read_text().splitlines()) + 4
    for row in ("base", "b_dk16"):
        figures = first[row]["1"]
        small = replace(SETTINGS, scale="1/16", depth="1/6", updates=20).architecture(row)
        assert figures["parameters"] == small.parameters(dictionary)
        assert [update for update, _ in figures["curve"]] == list(range(2, 21, 2))
        assert 1 < figures["perplexity"] < dictionary and math.isfinite(figures["training_perplexity"])

    again = script(*command)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "2 runs, 2 of them finished before" in again.stdout
    assert json.loads((tmp_path / "out" / "table3.json").read_text())["runs"] == first


@pytest.mark.slow
def test_an_ended_study_goes_on_where_it_was(tmp_path):
    """Ended and started again, a run gives the figures of an undisturbed one."""
    assert script("toy_language.py", tmp_path / "toy", "--train", 200, "--valid", 20).returncode == 0

    def command(out):
        # It is ended well after its first checkpoint, of update 100, and well before the last.
        return [sys.executable, REPOSITORY / "scripts" / "ablations.py", tmp_path / "toy" / "bin", tmp_path / out, "--rows",
                "base", "--scale", "1/16", "--depth", "1/6", "--updates", "1000", "--tokens", "200"]

    assert subprocess.run(command("undisturbed"), capture_output=True).returncode == 0
    with subprocess.Popen(command("ended"), stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if "update 200 of 1000" in line:
                process.send_signal(signal.SIGTERM)
    assert process.returncode == 130
    log = tmp_path / "ended" / "base" / "seed1" / "train.log"
    assert '"valid_num_updates": "1000"' not in log.read_text()
    again = subprocess.run(command("ended"), capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Loaded checkpoint" in log.read_text()
    results = [json.loads((tmp_path / out / "base" / "seed1" / "result.json").read_text())
               for out in ("undisturbed", "ended")]
    assert results[0]["curve"] == results[1]["curve"] and results[0]["bleu"] == results[1]["bleu"]
