"""The comparison: what is trained, that one rung changes one thing, figures from logs, and the report."""

import json
import math
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import compare
import comparison_report
import pytest
import systems
import training_log
from comparison_report import Document, Entry
from fairseq import options

from vaswani_plugin.architectures import ARCHITECTURES
from vaswani_plugin.learning_rate import inverse_sqrt_rate

from .helpers import PLUGIN, REPOSITORY

BUDGET = systems.Budget(updates=100, warmup=20, tokens=500, lr_factor=0.5)
SHAPE = (2, 32, 48, 4)
RUNGS = ["stock", "adam_eps", "schedule", "smoothing", "implementation", "positions", "bias", "layer_norm_eps",
         "initialisation", "length_penalty"]


# ---- systems -------------------------------------------------------------------------------------------------------------
def chosen(*names, shape=SHAPE):
    return systems.choose(names, shape, BUDGET)


def parsed(system, data):
    """The options that fairseq-train would use for a system."""
    flags = [str(data), "--user-dir", str(PLUGIN), "--task", "vaswani_translation", "--max-tokens", "500",
             "--max-update", "100", *system.flags]
    return vars(options.parse_args_and_arch(options.get_training_parser(), flags))


def test_choosing_systems():
    assert [s.name for s in chosen("vaswani2017_tiny", "ladder", "vaswani2017_tiny")] == [
        "vaswani2017_tiny", *(f"ladder:{rung}" for rung in RUNGS)
    ]
    assert chosen("transformer_wmt_en_de")[0].flags[:2] == ("--arch", "transformer_wmt_en_de")
    assert chosen("transformer:default")[0].flags[:2] == ("--arch", "transformer")
    for name in ("transformers", "vaswani2017_deviating", "vaswani2017_c_n3"):
        with pytest.raises(ValueError, match=f"{name} is no system"):
            chosen(name)
    with pytest.raises(ValueError, match="cannot have the sizes of vaswani2017_b_dk16"):
        chosen("vaswani2017_b_dk16", "transformer:matched")


def test_trained_models_are_shared_where_only_the_search_differs():
    training = {system.name: system.training for system in chosen("transformer:matched", "vaswani2017_tiny", "ladder")}
    assert training["ladder:adam_eps"] == training["transformer:matched"]
    assert training["ladder:initialisation"] == training["ladder:length_penalty"] == training["vaswani2017_tiny"]
    assert len(set(training.values())) == 9


def test_the_matched_transformer_has_our_sizes_and_recipe(data_bin):
    for shape, (layers, d_model, d_ff, heads) in ((None, (3, 256, 1024, 4)), (SHAPE, SHAPE)):
        stock, ours = (parsed(system, data_bin) for system in chosen("transformer:matched", "vaswani2017_tiny", shape=shape))
        for stack in ("encoder", "decoder"):
            assert (stock[f"{stack}_layers"], stock[f"{stack}_embed_dim"], stock[f"{stack}_ffn_embed_dim"],
                    stock[f"{stack}_attention_heads"]) == (layers, d_model, d_ff, heads)
        for name in ("dropout", "attention_dropout", "adam_betas", "adam_eps", "label_smoothing", "clip_norm",
                     "share_all_embeddings", "warmup_updates", "max_update", "max_tokens", "encoder_layers"):
            assert stock[name] == ours[name], name
        # The peak of Eq. 3, by hand: factor / sqrt(d_model * warmup).
        assert stock["lr"] == [pytest.approx(0.5 / math.sqrt(d_model * 20), rel=1e-12)]


def test_each_rung_changes_one_thing(data_bin):
    """Rung by rung, the options that fairseq-train would use differ by exactly what the rung is named after."""
    rungs = {system.name.removeprefix("ladder:"): parsed(system, data_bin) for system in chosen("ladder")}
    allowed = {
        "adam_eps": {"adam_eps"},
        "schedule": {"lr_scheduler", "lr", "lr_factor", "warmup_init_lr"},
        "smoothing": {"criterion", "report_accuracy", "ignore_prefix_size"},
        "positions": {"fairseq_positions"},
        "bias": {"attention_bias"},
        "layer_norm_eps": {"layer_norm_eps"},
        # The last rung is the plugin's own command: another name for the same model without fairseq's choices.
        "initialisation": {"fairseq_initialisation", "fairseq_positions", "arch"},
        "length_penalty": set(),
    }
    for before, rung in zip(RUNGS, RUNGS[1:]):
        one, other = rungs[before], rungs[rung]
        different = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
        if rung != "implementation":  # another model, whose options have other names
            assert different <= allowed[rung], (rung, different - allowed[rung])
            assert different or rung == "length_penalty"
        else:
            assert all(other[name] for name in ("fairseq_positions", "fairseq_initialisation", "attention_bias"))
            assert (one["optimizer"], other["optimizer"]) == ("adam", "vaswani_adam")
            training = ("adam_betas", "adam_eps", "lr_scheduler", "lr_factor", "warmup_updates", "criterion",
                        "label_smoothing", "dropout", "attention_dropout", "clip_norm", "share_all_embeddings",
                        "encoder_layers", "decoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim",
                        "encoder_attention_heads")
            assert all(one[name] == other[name] for name in training)
            assert other["layer_norm_eps"] == 1e-5
    assert not rungs["initialisation"].get("fairseq_positions") and not rungs["positions"].get("fairseq_positions")
    ladder = {system.name: system for system in chosen("ladder")}
    assert ladder["ladder:initialisation"].search == "fairseq" and ladder["ladder:length_penalty"].search == "paper"


# ---- logs -----------------------------------------------------------------------------------------------------------------
def line(kind, **values):
    values = {"epoch": 1, **{name: str(value) for name, value in values.items()}}
    return f"2026-01-01 00:00:00 | INFO | {kind} | {json.dumps(values)}"


def step(number, nll, lr, words=100, wps=50.0):
    return line("train_inner", num_updates=number, nll_loss=nll, lr=lr, wpb=words, bsz=4, wps=wps)


LOG = "\n".join([
    "$ fairseq-train bin --adam-betas '(0.9, 0.98)'",
    "2026 | INFO | fairseq_cli.train | num. shared model params: 1,234 (num. trained: 1,234)",
    step(1, 9, 0.2, wps=0), step(2, 8, 0.3), step(3, 7, 0.4),
    line("valid", valid_num_updates=3, valid_nll_loss=6.5),
    step(4, 99, 9), "peak memory of fairseq-train: 300 MiB",
    "$ fairseq-train bin --adam-betas '(0.9, 0.98)'",  # started again from update 3
    step(4, 6, 0.5, words=50, wps=0), step(5, 5, 0.6, wps=100.0),
    line("valid", valid_num_updates=5, valid_nll_loss=4.5), "peak memory of fairseq-train: 200 MiB",
])


def test_figures_from_a_log_that_was_resumed():
    log = training_log.read(LOG)
    assert [(u.number, u.nll_loss, u.words) for u in log.updates] == [
        (1, 9, 100), (2, 8, 100), (3, 7, 100), (4, 6, 50), (5, 5, 100)
    ]
    assert log.valid == [(3, 6.5), (5, 4.5)]
    assert (log.parameters, log.peak_memory) == (1234, 300)
    # The line of update k holds the rate of update k + 1.
    assert log.rates(first=0.1) == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.5)]
    assert log.rates(first=None) == log.rates(first=0.1)[1:]
    assert log.seconds() == [0, 2, 4, 4, 5]  # 100 words at 50/s; the first of a process is not timed
    assert log.tokens_per_second() == 50
    assert log.last_loss(share=0.4) == pytest.approx((50 * 6 + 100 * 5) / 150)
    assert training_log.commands_in(LOG) == ["fairseq-train bin --adam-betas '(0.9, 0.98)'"] * 2


def test_several_updates_in_a_line():
    log = training_log.read("\n".join([step(10, 5, 0.1, words=100), step(20, 4, 0.2, words=80)]))
    assert [u.words for u in log.updates] == [1000, 800]


def test_translations_in_the_order_of_the_data():
    printed = "S-1\tc d\nT-1\tD C\nH-1\t-0.5\tx y\nD-1\t-0.5\tx y\nP-1\t-1 -2\nS-0\ta b\nT-0\tB A\nH-0\t-0.1\t\n"
    assert compare.generated(printed) == {"S": ["a b", "c d"], "T": ["B A", "D C"], "H": ["", "x y"]}
    for broken in ("", printed.replace("T-1", "X-1")):
        with pytest.raises(ValueError, match="no complete set"):
            compare.generated(broken)


# ---- the report -------------------------------------------------------------------------------------------------------------
REFERENCE = [f"this is the sentence number {number} of <b> | them" for number in range(40)]


def figures(valid, bleu=10.0, words=100):
    return {
        "parameters": 1234, "tokens_per_second": 50.0, "peak_memory": 300, "seconds": 4.0, "train_loss": 5.5,
        "valid": [[1, 9.0], [2, valid]], "train": [[1, 9.0], [2, 8.0]], "times": [0.0, 2.0],
        "batches": [[words, 4], [words, 4]], "rates": [[1, 0.1], [2, 0.2]], "folder": "somewhere",
        "scores": {"paper": {"bleu": bleu, "chrf": 20.0}, "fairseq": {"bleu": bleu + 1, "chrf": 21.0}},
    }


def entry(name, runs, failures=None, change="", search="fairseq"):
    return Entry(name, "a note", change, search, runs, failures or {}, ["fairseq-train --adam-betas '(0.9, 0.98)'"])


def texts(shown, seed, search):
    if shown.name == "good":
        return REFERENCE
    return [line.replace("sentence", "phrase") if number % 2 else line for number, line in enumerate(REFERENCE)]


def build(folder, entries, final=True):
    comparison_report.build(folder, ["Data: some."], entries, [1, 2], "paper", {"paper": "P", "fairseq": "F"}, texts,
                            REFERENCE, REFERENCE, "About it.", final)
    return (folder / "report.md").read_text(), (folder / "report.html").read_text()


def row(text, first, number=0):
    """The cells of a line of a table in Markdown."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", lines[number])[1:-1]]


def test_report(tmp_path):
    entries = [
        entry("plain", {1: figures(4.0), 2: figures(5.0)}),
        entry("good", {1: figures(3.0, bleu=30.0)}, {2: "fairseq-train ended with code 1 (boom)"}),
        entry("none", {}, {1: "no such thing"}),
    ]
    text, page = build(tmp_path, entries)
    assert row(text, "plain")[:4] == ["plain", "1,234", "4.500 ± 0.707", "4.500 ± 0.707"]  # by hand: 0.5 sqrt(2)
    assert row(text, "plain")[8:] == ["11.0 ± 0.0", "21.0 ± 0.0", "10.0 ± 0.0", "20.0 ± 0.0", "2"]
    assert row(text, "good")[-1] == "1, 1 failed" and row(text, "none")[1:] == ["-"] * 11 + ["0, 1 failed"]
    assert ["plain", "0.1", "0.2", "0.2 (update 2)", "0.2 (update 2)"] in [row(text, "plain", n) for n in range(4)]
    assert row(text, "none", number=2)[1:] == ["1", "no such thing"]
    assert "fairseq-train --adam-betas '(0.9, 0.98)'" in text and "The same batches" in text
    assert "this is the sentence number 0 of <b> \\| them" in text

    # One file: pictures are inside, text is escaped, and nothing is loaded from elsewhere.
    assert page.count("data:image/png;base64,") == 2 and not re.search(r'(src|href)="(?!data:)', page)
    assert "of &lt;b&gt; | them" in page and "<b>" not in page
    for name in ("loss.png", "learning_rate.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_paired_bootstrap(tmp_path):
    entries = [entry("plain", {1: figures(4.0)}), entry("good", {1: figures(3.0)}), entry("twin", {1: figures(4.0)})]
    rows, signature = comparison_report.paired_bootstrap(entries, 1, lambda e: "paper", texts, REFERENCE)
    scores = {cells[1]: cells for cells in rows}
    assert scores["plain"][3] == "baseline"
    assert scores["good"][2].startswith("100.00 (100.00 ± 0.00") and float(scores["good"][3]) < 0.01
    assert scores["twin"][2:] == [scores["plain"][2], "identical", scores["plain"][4], "identical"]
    assert "bs:1000" in signature
    assert comparison_report.paired_bootstrap(entries[:1], 1, lambda e: "paper", texts, REFERENCE) == ([], "")


def test_ladder_differences_are_paired_by_seed(tmp_path):
    rungs = [
        entry("ladder:stock", {1: figures(4.0), 2: figures(6.0)}, change="first"),
        entry("ladder:bias", {1: figures(3.0), 2: figures(4.0), 3: figures(9.0)}, change="no biases"),
        entry("ladder:length_penalty", {1: figures(3.0), 2: figures(4.0)}, change="search", search="paper"),
    ]
    text, page = build(tmp_path, rungs, final=False)
    # By hand: -1 and -2 have mean -1.5 and standard deviation 0.707, over sqrt(2).
    assert row(text, "bias")[2:] == ["5.333 ± 3.215", "-1.500 ± 0.500", "11.0 ± 0.0", "+0.000 ± 0.000"]
    assert row(text, "length_penalty")[3:] == ["+0.000 ± 0.000", "10.0 ± 0.0", "-1.000 ± 0.000"]
    assert page.count("data:image/png") == 3


def test_other_batches_are_noticed():
    same, other = figures(1.0), figures(1.0, words=99)
    assert comparison_report.same_batches([entry("a", {1: same}), entry("b", {1: same})]).startswith("The same")
    says = comparison_report.same_batches([entry("a", {1: same, 2: same}), entry("b", {1: same, 2: other})])
    assert says == "The batches were NOT the same: b and a with seed 2 from update 1 on."


def test_smoothing_of_curves():
    points = [(number, float(number)) for number in range(1, 101)]
    assert comparison_report.smoothed(points, width=50)[:2] == [(2, 1.5), (4, 3.5)]
    assert comparison_report.smoothed(points[:3], width=50) == points[:3]


def test_document_escapes():
    document = Document("A & B")
    document.table(["a|b"], [["<x>\ny"]])
    assert "| a\\|b |\n| --- |\n| <x> y |" in document.markdown()
    assert "<td>&lt;x&gt;\ny</td>" in document.html() and "<h1>A &amp; B</h1>" in document.html()


# ---- the command ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("arguments, says", [
    (["{tmp}/none", "{tmp}/out"], "is no directory of fairseq-preprocess"),
    (["{data}", "{tmp}/out", "--systems", "vaswani2018"], "vaswani2018 is no system"),
    (["{data}", "{tmp}/out", "--subset", "test9"], "has no subset test9"),
    (["{data}", "{tmp}/out", "--lr-factor", "0"], "--lr-factor must be positive"),
    (["{data}", "{tmp}/out", "--reference", "{tmp}/none"], "cannot be read"),
    (["{data}", "{tmp}/out", "--reference", "{data}/dict.a.txt"], r"lines and the subset test has 20 sentences"),
])
def test_bad_input(arguments, says, data_bin, tmp_path, monkeypatch):
    words = [word.format(tmp=tmp_path, data=data_bin) for word in arguments]
    monkeypatch.setattr(sys, "argv", ["compare.py", *words])
    with pytest.raises(ValueError, match=says):
        compare.main()
    assert not (tmp_path / "out").exists()


def test_a_folder_holds_one_kind_of_runs(data_bin, tmp_path):
    def comparison(budget):
        return compare.Comparison(data_bin, tmp_path, chosen("transformer:matched"), [1], budget, "test", None, True)

    comparison(BUDGET)._keep_settings()
    with pytest.raises(ValueError, match="holds runs with updates 100: choose another folder"):
        comparison(replace(BUDGET, updates=200))._keep_settings()


def test_the_reference_is_the_untouched_file(data_bin, tmp_path):
    untouched = tmp_path / "test.de"
    untouched.write_text("Ein  Satz.\n„Noch einer“\n", encoding="utf-8")
    comparison = compare.Comparison(data_bin, tmp_path, chosen("transformer:matched"), [1], BUDGET, "test", untouched, True)
    found = {"S": ["a sentence .", "another"], "T": ["ein Satz .", "noch einer"]}
    comparison.keep_texts(found)
    assert (tmp_path / "reference.txt").read_text(encoding="utf-8") == untouched.read_text(encoding="utf-8")
    assert (tmp_path / "source.txt").read_text(encoding="utf-8") == "a sentence.\nanother\n"
    comparison.keep_texts(found)
    with pytest.raises(ValueError, match="other sentences than those that were translated now"):
        comparison.keep_texts({**found, "S": ["b", "another"]})


@pytest.mark.slow
def test_every_system_trains(data_bin):
    """A few updates of each in this process; the rates of the first update are those of the schedules."""
    import rehearsal

    for system in chosen("transformer:matched", "transformer:default", "vaswani2017_tiny", "ladder"):
        flags = [str(data_bin), "--user-dir", str(PLUGIN), "--task", "vaswani_translation", "--max-tokens", "500",
                 "--max-update", "100", "--cpu", "--num-workers", "0", *system.flags]
        if system.name == "transformer:default":
            flags += ["--encoder-layers", "1", "--decoder-layers", "1"]
        found = rehearsal.rehearse(flags, "test")
        assert found["sentences"] == 20 and found["seconds_per_update"] > 0
        eq_3 = system.name not in ("transformer:matched", "transformer:default", "ladder:stock", "ladder:adam_eps")
        assert found["first_rate"] == (pytest.approx(inverse_sqrt_rate(1, 32, 20, 0.5)) if eq_3 else 0.0)


@pytest.mark.slow
def test_from_data_to_report_interrupted_and_again(data_bin, tmp_path):
    out, updates, warmup = tmp_path / "out", 200, 10
    command = [sys.executable, str(REPOSITORY / "scripts" / "compare.py"), str(data_bin), str(out), "--systems",
               "transformer:matched,vaswani2017_tiny", "transformer_lm", "--shape", "1", "32", "48", "2", "--updates",
               str(updates), "--warmup", str(warmup), "--tokens", "300", "--cpu"]

    # Stopped in the middle of the first training, well after its first checkpoint.
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    log = out / "transformer_matched" / "seed1" / "train.log"
    deadline = time.monotonic() + 900
    while not (log.is_file() and '"valid_num_updates": "40"' in log.read_text()):
        assert time.monotonic() < deadline and first.poll() is None, first.stdout.read()
        time.sleep(0.02)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 130
    assert not (log.parent / "result-transformer_matched.json").exists()

    def again():
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=tmp_path)
        # The language model cannot be trained on pairs: it fails, and does not end the rest.
        assert done.returncode == 1 and "1 of 3 runs failed, the first: transformer_lm seed 1" in done.stderr, (
            done.stdout + done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout

    assert "min to go" in again()
    results = {}
    for name in ("transformer_matched", "vaswani2017_tiny"):
        results[name] = json.loads((out / name / "seed1" / f"result-{name}.json").read_text())
        assert [update for update, _ in results[name]["train"]] == list(range(1, updates + 1))
        assert [update for update, _ in results[name]["valid"]] == list(range(20, updates + 1, 20))
    assert results["transformer_matched"]["batches"] == results["vaswani2017_tiny"]["batches"]
    peak_and_on = {"rel": 1e-5}  # the log has six digits
    for update, rate in results["vaswani2017_tiny"]["rates"]:
        assert rate == pytest.approx(inverse_sqrt_rate(update, 32, warmup), **peak_and_on)
    for update, rate in results["transformer_matched"]["rates"]:  # one update behind
        expected = 0.0 if update == 1 else inverse_sqrt_rate(update - 1, 32, warmup)
        assert rate == pytest.approx(expected, **peak_and_on)
    small = replace(ARCHITECTURES["vaswani2017_tiny"], layers=1, d_model=32, d_ff=48, heads=2)
    entries = len((data_bin / "dict.a.txt").read_text().splitlines()) + 4
    assert results["vaswani2017_tiny"]["parameters"] == small.parameters(entries)
    assert results["transformer_matched"]["parameters"] == small.parameters(entries, bias=True)
    assert all(100 < result["peak_memory"] < 5000 for result in results.values())

    text = (out / "report.md").read_text()
    assert row(text, "transformer_lm")[-1] == "0, 1 failed"
    assert row(text, "vaswani2017_tiny")[2] == f"{results['vaswani2017_tiny']['valid'][-1][1]:.3f}"
    # What the report says is what sacreBLEU says of the files.
    scores = results["vaswani2017_tiny"]["scores"]["paper"]
    printed = subprocess.run(
        [sys.executable, "-m", "sacrebleu", str(out / "reference.txt"), "-i",
         str(out / "vaswani2017_tiny" / "seed1" / "search-paper" / "output.txt"), "-m", "bleu", "-b", "-w", "4"],
        capture_output=True, text=True, check=True,
    ).stdout
    assert float(printed) == pytest.approx(scores["bleu"], abs=1e-4)
    assert "| 1 | transformer:matched |" in text and "Examples" in text
    commands = training_log.commands_in(log.read_text())
    assert len(commands) == 2 and all(command in text for command in commands)

    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # nothing is left where the command was given

    before = (out / "report.md").read_text()
    assert "3 runs, 2 of them finished before" in again()
    assert (out / "report.md").read_text() == before
