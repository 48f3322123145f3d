"""Wrong uses of every command and script: one sentence, an exit code that is not 0, no traceback, nothing written.

The commands run in forks of one process (``tests/forks.py``), in an empty folder of their own. ``{name}`` in an
argument is a file or folder of the fixture ``things``.
"""

import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from .helpers import PLUGIN, REPOSITORY
from .resuming import TINY

pytestmark = pytest.mark.slow

# A place where even root makes no files.
NOWHERE = "/sys/vaswani"


def train(*flags, data="{bin}"):
    return ["fairseq-train", data, *TINY, "--save-dir", "save", "--max-update", "1", *flags]


def generate(*flags, data="{bin}", path="{model}", command="fairseq-generate"):
    return [command, data, "--user-dir", PLUGIN, "--task", "vaswani_translation", "--path", path, "--cpu", *flags]


def script(name, *arguments):
    return [REPOSITORY / "scripts" / name, *arguments]


def translate(*flags, model="{model}"):
    return script("translate.py", model, "--data", "{bin}", "--codes", "{codes}", "--cpu", *flags)


def prepare_report(*changes):
    names = {"source": "{three.a}", "reference": "{three.b}", "output": "{three.b}", "new": "{numbers}", "manifest": "{json}"}
    names.update(changes)
    return script("quickstart_report.py", names["source"], names["reference"], names["output"], "--new-lines", names["new"],
                  "--manifest", names["manifest"], "--out", "report.txt")


WRONG_USES = {
    # fairseq-train: data
    "train: absent data": (train(data="/nowhere"), "DATA /nowhere is not a directory"),
    "train: data is a file": (train(data="{three.a}"), "is not a directory"),
    "train: data is an empty folder": (train(data="{empty}"), "is empty"),
    "train: data without languages": (train(data="{model folder}"), "holds no language pair"),
    "train: no data": (["fairseq-train", *train()[2:]], "the following arguments are required: data"),
    "train: other languages": (train("-s", "xx", "-t", "yy"), "dict.xx.txt is missing"),
    "train: separate dictionaries": (train(data="{separate}"), "--joined-dictionary"),
    "train: broken dictionary": (train(data="{bad dictionary}"), "dict.a.txt"),
    "train: dictionary not UTF-8": (train(data="{latin dictionary}"), "dict.a.txt"),
    "train: truncated index": (train(data="{bad index}"), "train.a-b.a"),
    "train: no training text": (train(data="{no training text}"), "Dataset not found: train"),
    "train: absent validation": (train("--valid-subset", "absent"), "Dataset not found: absent"),
    "train: sentences beyond the limit": (train("--max-source-positions", "4"), "--skip-invalid-size-inputs-valid-test"),
    # fairseq-train: numbers
    "train: heads": (train("--encoder-attention-heads", "3"), "not divisible by --encoder-attention-heads 3"),
    "train: odd width": (train("--encoder-embed-dim", "33"), "must be even, not 33"),
    "train: no layers": (train("--encoder-layers", "0"), "--encoder-layers must be at least 1, not 0"),
    "train: layers no number": (train("--decoder-layers", "two"), "invalid int value"),
    "train: negative keys": (train("--attention-key-dim", "-1"), "--attention-key-dim must not be negative"),
    "train: no positions": (train("--max-target-positions", "0"), "--max-target-positions must be at least 1, not 0"),
    "train: dropout": (train("--dropout", "1.5"), "--dropout must lie in [0, 1), and is 1.5"),
    "train: dropout nan": (train("--dropout", "nan"), "--dropout must lie in [0, 1), and is nan"),
    "train: smoothing": (train("--label-smoothing", "-0.1"), "--label-smoothing must lie in [0, 1), and is -0.1"),
    "train: warm-up": (train("--warmup-updates", "0"), "--warmup-updates must be at least 1, not 0"),
    "train: factor": (train("--lr-factor", "0"), "--lr-factor must be positive, not 0.0"),
    "train: betas": (train("--adam-betas", "0.9;0.98"), "--adam-betas"),
    "train: betas beyond 1": (train("--adam-betas", "(0.9, 1.2)"), "--adam-betas"),
    "train: betas that are a program": (train("--adam-betas", "open('pwned','w')"), "--adam-betas"),
    "train: no tokens": (train("--max-tokens", "0"), "--max-tokens must be at least 1, not 0"),
    "train: negative tokens": (train("--max-tokens", "-7"), "--max-tokens must be at least 1, not -7"),
    "train: tokens below a sentence": (train("--max-tokens", "3"), "--max-tokens"),
    "train: no sentences": (train("--batch-size", "0"), "--batch-size must be at least 1, not 0"),
    "train: update-freq": (train("--update-freq", "0"), "--update-freq must be at least 1, not 0"),
    "train: half precision without a GPU": (train("--fp16"), "--fp16 needs a GPU"),
    "train: unknown architecture": (train("--arch", "vaswani2018"), "invalid choice"),
    "train: unknown flag": (train("--dropuot", "0.1"), "unrecognized arguments: --dropuot 0.1"),
    "train: unknown format": (train("--log-format", "xml"), "invalid choice: 'xml'"),
    # fairseq-train: checkpoints and folders
    "train: absent restore file": (train("--restore-file", "none.pt"), "--restore-file none.pt does not exist"),
    "train: truncated restore file": (train("--restore-file", "{truncated}"), "is damaged (it is cut off"),
    "train: changed restore file": (train("--restore-file", "{changed}"), "is damaged (its content has changed"),
    "train: restore file is text": (train("--restore-file", "{three.a}"), "is damaged (it is cut off, or no checkpoint)"),
    "train: forbidden restore file": (train("--restore-file", "{forbidden}"), "was not loaded: it holds the object"),
    "train: restore file without a training": (train("--restore-file", "{weights alone}"), "{weights alone}"),
    "train: another model": (train("--save-dir", "{model folder}", "--decoder-layers", "2", "--max-update", "9"),
                             "the checkpoint is of another model"),
    "train: damaged last": (train("--save-dir", "{damaged folder}"), "move it away to start anew"),
    "train: absent model to finetune": (train("--finetune-from-model", "none.pt"), "none.pt does not exist"),
    "train: folder that cannot be made": (train("--save-dir", NOWHERE), NOWHERE),
    "train: folder is a file": (train("--save-dir", "{three.a}"), "{three.a}"),
    "train: log where none can be": (train("--log-file", NOWHERE), NOWHERE),
    # fairseq-train: several processes
    "train: two processes without GPUs": (train("--distributed-world-size", "2"), "torchrun --no-python --nproc-per-node 2"),
    "train: two processes that are not started": (
        train("--distributed-world-size", "2", "--distributed-init-method", "tcp://localhost:1"), "trains nothing"),
    # fairseq-generate, -interactive, -validate
    "generate: absent checkpoint": (generate(path="none.pt"), "Model file not found: none.pt"),
    "generate: truncated checkpoint": (generate(path="{truncated}"), "is damaged (it is cut off"),
    "generate: empty checkpoint": (generate(path="{nothing}"), "is damaged (it is empty)"),
    "generate: checkpoint is text": (generate(path="{three.a}"), "is damaged (it is cut off, or no checkpoint)"),
    "generate: forbidden checkpoint": (generate(path="{forbidden}"), "was not loaded: it holds the object"),
    "generate: checkpoint that runs a program": (generate(path="{program}"), "was not loaded: it holds the object posix.system"),
    "generate: no checkpoint": (generate()[:6] + ["--cpu"], "--path"),
    "generate: absent subset": (generate("--gen-subset", "absent"), "Dataset not found: absent"),
    "generate: absent data": (generate(data="/nowhere"), "/nowhere"),
    "generate: data with other dictionaries": (generate(data="{separate}"), "was trained with other dictionaries"),
    "generate: no beam": (generate("--beam", "0"), "--beam must be at least 1, not 0"),
    "generate: no best": (generate("--nbest", "0"), "--nbest must be at least 1, not 0"),
    "generate: temperature": (generate("--temperature", "0"), "--temperature must be above 0"),
    "generate: lengths that contradict": (generate("--min-len", "90"), "lower --min-len"),
    "generate: penalty": (generate("--length-penalty", "none"), "invalid choice"),
    "generate: results where none can be": (generate("--results-path", NOWHERE), NOWHERE),
    "interactive: forbidden checkpoint": (generate(path="{forbidden}", command="fairseq-interactive"), "was not loaded"),
    "interactive: absent input": (generate("--input", "none.txt", command="fairseq-interactive"), "none.txt"),
    "validate: truncated checkpoint": (
        generate("--max-tokens", "500", path="{truncated}", command="fairseq-validate"), "is damaged"),
    "validate: no size": (generate(command="fairseq-validate"), "give --max-tokens or --batch-size"),
    "validate: no task": (["fairseq-validate", "{bin}", "--user-dir", PLUGIN, "--path", "{model}", "--cpu"], "--task"),
    # scripts
    "average: absent folder": (script("average_checkpoints.py", "none", "--out", "x.pt"), "none"),
    "average: empty folder": (script("average_checkpoints.py", "{empty}", "--out", "x.pt"), "holds no checkpoints"),
    "average: too few": (script("average_checkpoints.py", "{model folder}", "--out", "x.pt"), "holds 1 checkpoints and 5"),
    "average: none": (script("average_checkpoints.py", "{model folder}", "--last", "0", "--out", "x.pt"), "--last must be at least 1"),
    "average: truncated": (script("average_checkpoints.py", "{model}", "{truncated}", "--out", "x.pt"), "is damaged"),
    "average: changed": (script("average_checkpoints.py", "{changed}", "--out", "x.pt"), "its content has changed"),
    "average: forbidden": (script("average_checkpoints.py", "{forbidden}", "--out", "x.pt"), "was not loaded"),
    "average: a program": (script("average_checkpoints.py", "{program}", "--out", "x.pt"), "the object posix.system"),
    "average: no folder for the result": (script("average_checkpoints.py", "{model}", "--out", "no/x.pt"), "no"),
    "average: result where none can be": (script("average_checkpoints.py", "{model}", "--out", NOWHERE + ".pt"), "/sys"),
    "average: no result": (script("average_checkpoints.py", "{model}"), "--out"),
    "translate: absent checkpoint": (translate(model="none.pt"), "none.pt cannot be read"),
    "translate: forbidden checkpoint": (translate(model="{forbidden}"), "was not loaded"),
    "translate: one of two forbidden": (translate(model="{model}:{forbidden}"), "was not loaded"),
    "translate: truncated checkpoint": (translate(model="{truncated}"), "is damaged"),
    "translate: weights alone": (translate(model="{weights alone}"), "{weights alone}"),
    "translate: absent codes": (translate("--codes", "none"), "BPE codes none cannot be read"),
    "translate: codes not UTF-8": (translate("--codes", "{latin}"), "not UTF-8"),
    "translate: codes that are none": (translate("--codes", "{model}"), "codes"),
    "translate: absent dictionaries": (translate("--data", "{empty}", "--source-lang", "a", "--target-lang", "b"), "give --data"),
    "translate: other languages": (translate("--target-lang", "xx"), "dict.xx.txt"),
    "translate: no beam": (translate("--beam", "0"), "--beam must be at least 1"),
    "translate: no tokens": (translate("--max-tokens", "0"), "--max-tokens must be at least 1"),
    "attention: empty sentence": (script("attention.py", "{model}", "--data", "{bin}", "--codes", "{codes}", "--source", " ", "--out", "x"),
                                  "the source sentence holds no words"),
    "attention: no folder": (script("attention.py", "{model}", "--data", "{bin}", "--codes", "{codes}", "--source", "w1", "--out", "no/x"), "no"),
    "attention: forbidden": (script("attention.py", "{forbidden}", "--source", "w1", "--out", "x"), "was not loaded"),
    "score: absent": (script("score.py", "none", "--reference", "{three.a}", "--lang", "de"), "none cannot be read"),
    "score: other lengths": (script("score.py", "{three.a}", "--reference", "{two.a}", "--lang", "de"), "3"),
    "score: not UTF-8": (script("score.py", "{latin}", "--reference", "{three.a}", "--lang", "de"), "is not UTF-8"),
    "score: empty": (script("score.py", "{nothing}", "--reference", "{nothing}", "--lang", "de"), "{nothing}"),
    "score: samples": (script("score.py", "{three.a}", "--reference", "{three.a}", "--lang", "de", "--samples", "-1"), "--samples"),
    "curve: no losses": (script("loss_curve.py", "{three.a}", "x.png"), "has no losses"),
    "curve: absent": (script("loss_curve.py", "none", "x.png"), "none cannot be read"),
    "duplicates: absent": (script("near_duplicates.py", "none", "{three.a}", "--out", "x"), "none cannot be read"),
    "duplicates: threshold": (script("near_duplicates.py", "{three.a}", "{three.a}", "--out", "x", "--threshold", "0"), "threshold"),
    "report: other lengths": (prepare_report(("output", "{two.a}")), "differ in their number of lines"),
    "report: no JSON": (prepare_report(("manifest", "{three.a}")), "{three.a}"),
    "report: no numbers": (prepare_report(("new", "{three.a}")), "{three.a}"),
    "corpus: absent": (script("demo_corpus.py", "--from", "none", "--out", "x"), "none"),
    "corpus: incomplete": (script("demo_corpus.py", "--from", "{empty}", "--out", "x"), "{empty}"),
    "language: none": (script("toy_language.py", "x", "--train", "0"), "at least 1"),
    "language: folder is a file": (script("toy_language.py", "{three.a}"), "{three.a}"),
    "trees: none": (script("toy_trees.py", "x", "--valid", "-3"), "at least 1"),
    "trees: folder is a file": (script("toy_trees.py", "{three.a}"), "{three.a}"),
    "parser: nothing to do": (script("parse_trees.py"), "arguments are required"),
    "parser: absent": (script("parse_trees.py", "score", "none", "none"), "none"),
    "parser: no trees": (script("parse_trees.py", "score", "{three.a}", "{three.a}"), "{three.a}"),
    "parser: bad trees": (script("parse_trees.py", "prepare", "x", "--train", "{three.a}", "--valid", "{three.a}", "--test", "{three.a}"),
                          "{three.a}"),
    "experiments: unknown": (script("paper_experiments.py", "x", "--only", "nothing"), "invalid choice: 'nothing'"),
    "experiments: no length": (script("paper_experiments.py", "x", "--only", "table1", "-n", "0"), "-n"),
    "experiments: folder is a file": (script("paper_experiments.py", "{three.a}", "--only", "table1"), "{three.a}"),
    "ablations: absent data": (script("ablations.py", "none", "x"), "DATA none is not a directory"),
    "ablations: unknown row": (script("ablations.py", "{bin}", "x", "--rows", "z"), "z"),
    "ablations: scale": (script("ablations.py", "{bin}", "x", "--scale", "1/0"), "is not a positive number"),
    "ablations: factor": (script("ablations.py", "{bin}", "x", "--lr-factor", "-1"), "--lr-factor must be positive"),
    "ablations: folder is a file": (script("ablations.py", "{bin}", "{three.a}", "--rows", "base", "--updates", "25"), "{three.a}"),
    "benchmark: no GPU": (script("benchmark.py", "--device", "cuda", "--output", "x.json"), "GPU"),
    "benchmark: threads": (script("benchmark.py", "--threads", "0", "--output", "x.json"), "--threads"),
    "benchmark: case": (script("benchmark.py", "--case", "nothing like it", "--output", "x.json"), "nothing like it"),
    "conformance: report": (script("conformance.py", "--output", "x.txt"), "must end in .md or .json"),
    "conformance: subject": (script("conformance.py", "nothing", "--output", "x.md"), "nothing"),
    "vectors: folder is a file": (script("spec_vectors.py", "--output", "{three.a}"), "{three.a}"),
}

# Shell scripts, as processes of their own.
WRONG_USES_OF_SHELL_SCRIPTS = {
    "quickstart: minutes": (["quickstart.sh", "--minutes", "0"], "--minutes must be a number above 0"),
    "quickstart: minutes no number": (["quickstart.sh", "--minutes", "1; touch pwned"], "--minutes must be a number above 0"),
    "quickstart: no value": (["quickstart.sh", "--out"], "--out needs a value"),
    "quickstart: unknown": (["quickstart.sh", "--minuets", "1"], "unknown argument '--minuets'"),
    "quickstart: corpus": (["quickstart.sh", "--corpus", "none"], "there is no folder 'none'"),
    "environment: unknown": (["setup_env.sh", "now"], "unknown argument 'now'"),
    "slurm: no number": (["slurm.sh", "--nodes", "two", "--per-node", "8", "--", "data"], "--nodes must be a number above 0, not 'two'"),
    "slurm: a program": (["slurm.sh", "--nodes", "2", "--per-node", "8", "--time", "$(touch pwned)", "--", "data"], "--time must be a time"),
    "slurm: no data": (["slurm.sh", "--nodes", "2", "--per-node", "8"], "DATA is missing"),
    "slurm: no Slurm": (["slurm.sh", "--nodes", "2", "--per-node", "8", "--", "data"], "sbatch is not on PATH"),
    "hosts: number": (["two_hosts.sh", "--per-host", "0", "--", "data"], "--per-host must be a number"),
    "hosts: no data": (["two_hosts.sh"], "DATA is missing"),
    "hosts: unknown": (["two_hosts.sh", "data"], "unknown argument 'data'"),
}


class Forbidden:
    """An object that no checkpoint should hold."""


class Program:
    def __reduce__(self):
        return os.system, ("touch pwned",)


@pytest.fixture(scope="module")
def things(forks, data_bin, separate_data_bin, tmp_path_factory):
    """Good and bad files, by the names that the tables use."""
    home = tmp_path_factory.mktemp("things")
    done = forks.run("fairseq-train", data_bin, *TINY, "--save-dir", home / "model", "--max-update", "1")
    assert done.returncode == 0, done.stderr
    (home / "model" / "checkpoint_best.pt").rename(home / "model" / "checkpoint_1_1.pt")
    model = home / "model" / "checkpoint_last.pt"
    content = model.read_bytes()
    found = {"bin": data_bin, "separate": separate_data_bin, "model folder": home / "model", "model": model}

    def file(name, content):
        path = found[name] = home / name.replace(" ", "-")
        path.write_bytes(content)

    file("nothing", b"")
    file("truncated", content[: len(content) // 2])
    place = content.index(torch.load(model, weights_only=True)["model"]["encoder.embedding.weight"][5].numpy().tobytes())
    file("changed", content[: place + 3] + bytes([content[place + 3] ^ 64]) + content[place + 4 :])
    file("three.a", b"one\ntwo\nthree\n")
    file("three.b", b"eins\nzwei\ndrei\n")
    file("two.a", b"one\ntwo\n")
    file("latin", "Stra\u00dfe\n".encode("latin-1") * 3)
    file("numbers", b"1\n2\n")
    file("json", b"{}\n")
    file("codes", b"#version: 0.2\nw 1</w>\n")
    for name, thing in (("forbidden", Forbidden()), ("program", Program()), ("weights alone", None)):
        found[name] = home / name.replace(" ", "-")
        torch.save({"model": {}} if thing is None else {"model": {}, "args": Namespace(x=thing)}, found[name])
    found["empty"] = home / "empty"
    found["empty"].mkdir()
    found["damaged folder"] = home / "damaged"
    found["damaged folder"].mkdir()
    (found["damaged folder"] / "checkpoint_last.pt").write_bytes(content[:1000])
    for name, path, change in (
        ("bad dictionary", "dict.a.txt", lambda old: b"word\nother word x\n"),
        ("latin dictionary", "dict.a.txt", lambda old: "Stra\u00dfe 5\n".encode("latin-1") + old),
        ("bad index", "train.a-b.a.idx", lambda old: old[:30]),
        ("no training text", "train.a-b.a.bin", None),
    ):
        found[name] = home / name.replace(" ", "-")
        shutil.copytree(data_bin, found[name])
        if change is None:
            (found[name] / path).unlink()
            continue
        for changed in {path, path.replace("dict.a", "dict.b")}:
            (found[name] / changed).write_bytes(change((found[name] / changed).read_bytes()))
    return found


def files(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def check(done, sentence, work, before):
    everything = done.stdout + done.stderr
    assert done.returncode not in (0, 99), everything[-2000:]
    assert "Traceback" not in everything, everything[-3000:]
    last = [line for line in done.stderr.splitlines() if line.strip()][-1]
    assert sentence in last, everything[-3000:]
    assert files(work) == before


def filled_in(text, things):
    text = str(text)
    for name, path in things.items():
        text = text.replace("{" + name + "}", str(path))
    return text


@pytest.mark.parametrize("argv, sentence", WRONG_USES.values(), ids=WRONG_USES)
def test_a_wrong_use_is_answered_in_a_sentence(forks, things, tmp_path, argv, sentence):
    folder = things["model"].parent
    untouched = files(folder)
    done = forks.run(*(filled_in(word, things) for word in argv), cwd=str(tmp_path), env={"TQDM_DISABLE": "1"})
    check(done, filled_in(sentence, things), tmp_path, {})
    assert files(folder) == untouched


@pytest.mark.parametrize("argv, sentence", WRONG_USES_OF_SHELL_SCRIPTS.values(), ids=WRONG_USES_OF_SHELL_SCRIPTS)
def test_a_wrong_use_of_a_shell_script_is_answered_in_a_sentence(tmp_path, argv, sentence):
    name, *arguments = argv
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run(["bash", REPOSITORY / "scripts" / name, *arguments], capture_output=True, text=True,
                          cwd=tmp_path, env=environment, timeout=60)
    check(done, sentence, tmp_path, {})


def test_there_are_at_least_sixty():
    assert len(WRONG_USES) + len(WRONG_USES_OF_SHELL_SCRIPTS) >= 60
