"""The quick start from raw text to a score, stopped and started again, and its answers to bad input."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from demo_corpus import Pair, write_corpus
from generated_sentences import read

from .helpers import REPOSITORY

TINY = [
    "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--encoder-layers", "1", "--decoder-layers", "1",
    "--max-tokens", "300", "--warmup-updates", "20", "--lr-factor", "0.2", "--save-interval-updates", "10",
    "--log-interval", "1", "--cpu",
]  # fmt: skip


def command(*arguments):
    return ["bash", str(REPOSITORY / "scripts" / "quickstart.sh"), "--no-install", *map(str, arguments)]


def environment():
    tools = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def quickstart(*arguments, cwd=REPOSITORY):
    return subprocess.run(command(*arguments), cwd=cwd, env=environment(), capture_output=True, text=True, timeout=1800)


@pytest.fixture
def corpus(tmp_path):
    pairs = [Pair(*pair) for pair in read("en", "de", 260)[0]]
    write_corpus(tmp_path / "text", {"train": pairs[:220], "valid": pairs[220:240], "test": pairs[240:]}, "en", "de", {})
    return tmp_path / "text"


def updates(out):
    return [int(number) for number in re.findall(r'"num_updates": "(\d+)"', (out / "train.log").read_text())]


@pytest.mark.slow
def test_from_text_to_score_with_a_stop_in_between(corpus, tmp_path):
    out = tmp_path / "run"
    arguments = ["--corpus", corpus, "--out", out, "--", *TINY, "--max-update", "60"]

    process = subprocess.Popen(
        command(*arguments), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip  (whoever runs the tests in the background of a shell ignores the signal, and children inherit that)
    deadline = time.monotonic() + 1200
    while not list((out / "checkpoints").glob("checkpoint_*_*.pt")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0][-3000:]
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 130, output[-3000:]
    assert "The same command goes on from here." in output
    assert not (out / "done" / "train").exists()

    # A copy that was cut off when the run was stopped: the newest whole checkpoint takes its place.
    last = out / "checkpoints" / "checkpoint_last.pt"
    whole = next((out / "checkpoints").glob("checkpoint_*_*.pt"))
    last.write_bytes(whole.read_bytes()[:1000])
    before = updates(out)
    done = quickstart(*arguments)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    assert "== tokenise: done before" in output
    assert "checkpoint_last.pt is damaged" in output
    again = updates(out)[len(before) :]
    assert again[0] > 10 and again[-1] == 60, "training went on from a checkpoint"

    # every step by its plain command, and what they leave
    for tool in ("fairseq-train", "fairseq-generate", "python scripts/average_checkpoints.py", "sacremoses -l de detokenize"):
        assert f"+ {tool}" in output
    translations = (out / "translation" / "output.de").read_text().splitlines()
    assert len(translations) == 20
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    report = (out / "report.txt").read_text()
    assert re.search(r"BLEU \d+\.\d on all 20 test sentences", report)
    assert "sacreBLEU signature: nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in report
    assert report.count("\nreference  ") == 10
    assert report in output
    # fairseq's references, put into order as the translations are, are those of the corpus
    generated = (out / "translation" / "generate-test.txt").read_text()
    numbered = dict(re.findall(r"^T-(\d+)\t(.*)$", generated, re.M))
    tokenised = (out / "tokenised" / "test.de").read_text().replace("&apos;", "'").splitlines()
    for number, sentence in enumerate(tokenised):
        # a subword that so small a text never shows is <<unk>> in fairseq's reference
        known = re.split(r" ?<<unk>> ?", numbered[str(number)])
        assert re.fullmatch(".*".join(map(re.escape, known)), sentence)
    assert sum("<<unk>>" not in line for line in numbered.values()) > 10

    # the average carries what raw text needs
    translated = subprocess.run(
        [sys.executable, REPOSITORY / "scripts" / "translate.py", out / "averaged.pt"], input="I know the house.\n",
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert translated.returncode == 0, translated.stderr
    assert translated.stdout.count("\n") == 1

    # a third time there is nothing to do, and more training is more training
    assert quickstart(*arguments).stdout.count("done before") == 8
    more = quickstart(*arguments[:-1], "62")
    assert more.returncode == 0 and "== binarise: done before" in more.stdout and "== report\n" in more.stdout
    assert updates(out)[-1] == 62

    # the folder belongs to its corpus
    (corpus / "train.en").write_text((corpus / "train.en").read_text().replace("I know", "I think"))
    other = quickstart(*arguments)
    assert other.returncode == 1
    assert "holds a run on another corpus" in other.stderr


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--minutes", "soon"], "--minutes must be a number above 0, not 'soon'"),
        (["--minutes", "0"], "--minutes must be a number above 0, not '0'"),
        (["--minutes"], "--minutes needs a value"),
        (["--corpus", "no/such/folder"], "there is no folder 'no/such/folder'"),
        (["--speed"], "unknown argument '--speed'"),
    ],
)
def test_wrong_arguments(arguments, sentence):
    done = quickstart(*arguments)
    assert done.returncode == 1
    assert re.fullmatch(rf"quickstart\.sh: .*{re.escape(sentence)}.*\n", done.stderr)


def test_a_corpus_of_unequal_files(corpus, tmp_path):
    (corpus / "valid.de").write_text("zu wenig\n")
    done = quickstart("--corpus", corpus, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "valid.en has 20 lines and valid.de has 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "corpus").exists()


def test_help_names_every_option():
    text = quickstart("--help").stdout
    for option in ("--minutes", "--corpus", "--source", "--target", "--out", "--no-install"):
        assert f"  {option}" in text


def test_environment_without_a_fitting_python(tmp_path):
    old = tmp_path / "python"
    old.write_text('#!/bin/sh\necho "is Python 3.9" >&2\nexit 1\n')
    old.chmod(0o755)
    variables = {**os.environ, "PYTHON": str(old), "VENV": str(tmp_path / "venv")}
    done = subprocess.run(
        ["bash", str(REPOSITORY / "scripts" / "setup_env.sh")], env=variables, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"setup_env.sh: needs Python 3.11 or 3.12 with the venv module, name one with PYTHON=...; {old} is Python 3.9.\n"
    )
    assert not (tmp_path / "venv").exists()
