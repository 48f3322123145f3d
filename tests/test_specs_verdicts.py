"""Whatever a subject does, the suite gives verdicts; the same ones each time."""

import json
import pathlib
import re
import subprocess
import sys
import time

import pytest
import torch

from specs import judge, report
from specs.judge import judge as verdict_on
from specs.judge import judge_all, ledger
from specs.subject import NotOffered, Subject, Unsupported
from specs.subjects import NotInstalled, find
from specs.subjects.student import Student

ROOT = pathlib.Path(__file__).resolve().parent.parent


def faulty(**methods):
    return type("Faulty", (Student,), {"name": "faulty", **methods})()


def returns(value):
    return lambda self, *_, **__: value


def raises(error):
    def method(self, *_, **__):
        raise error

    return method


@pytest.mark.parametrize("value, got", [
    (None, "NoneType"),
    (torch.full((1, 1, 5, 8), torch.nan), "NaN or infinity"),
    (torch.full((1, 1, 5, 8), torch.inf), "NaN or infinity"),
    (torch.zeros(5, 8), re.escape("shape (5, 8)")),
    (torch.zeros(1, 1, 5, 8, dtype=torch.long), "dtype torch.int64"),
    ([[0.0] * 8] * 5, "list"),
])  # fmt: skip
def test_wrong_values_fail_with_a_sentence(value, got):
    verdict = verdict_on("3.2.1-equation", faulty(attention=returns(value)))
    assert verdict.state == "fails"
    assert re.search(got, verdict.text) and verdict.text.startswith("Attention(Q, K, V) = softmax")


@pytest.mark.parametrize("value", [None, "0.1", float("nan"), True, [0.1, 0.2], torch.ones(2)])
def test_wrong_numbers_fail(value):
    assert verdict_on("6.1-length-penalty", faulty(score=returns(value))).state == "fails"


@pytest.mark.parametrize("error", [RuntimeError("out\nof luck"), KeyError("x"), SystemExit(3), AssertionError(), RecursionError()])
def test_exceptions_are_errors(error):
    verdict = verdict_on("3.2.1-equation", faulty(attention=raises(error)))
    assert verdict.state == "error" and type(error).__name__ in verdict.text


def test_unsupported_fails_and_missing_is_not_offered():
    assert verdict_on("3.2.1-equation", faulty(attention=raises(Unsupported("one head only")))).state == "fails"
    assert verdict_on("3.2.1-equation", faulty(attention=raises(NotOffered("none")))).state == "not offered"


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_method_that_hangs_is_an_error(stubborn):
    def hang(self, *_):
        while True:
            try:
                time.sleep(10)
            except Exception:
                if not stubborn:
                    raise

    start = time.monotonic()
    verdict = verdict_on("3.2.1-equation", faulty(attention=hang), time_limit=0.2)
    assert verdict.state == "error" and "within 0.2 s" in verdict.text and time.monotonic() - start < 5


def test_a_subject_without_parts_holds_nothing():
    states = {claim: v.state for claim, v in judge_all(Subject()).items() if ledger()[claim].about == "implementation"}
    mixed = [claim for claim, state in states.items() if state == "holds" and not ledger()[claim].covered_by]
    assert mixed == [] and set(states.values()) == {"not offered", "untestable"}


def test_a_subject_that_only_raises_gets_errors():
    parts = [name for name in vars(Subject) if not name.startswith("_") and callable(getattr(Subject, name))]
    broken = faulty(**{name: raises(RuntimeError("broken")) for name in parts})
    states = {v.state for claim, v in judge_all(broken).items() if ledger()[claim].about == "implementation"}
    assert states == {"error", "untestable"}


def test_verdicts_do_not_depend_on_the_run():
    claims = ["3.2.1-scaled-scores-have-unit-variance", "3.2.2-multi-head", "6.1-search-scores-what-it-finds", "5.4-one-rate"]
    first = [str(verdict_on(claim, find("fault:scale-by-d-k"))) for claim in claims]
    torch.manual_seed(99)
    torch.rand(7)
    assert [str(verdict_on(claim, find("fault:scale-by-d-k"))) for claim in reversed(claims)] == first[::-1]


def test_global_state_is_put_back():
    def rude(self, *_):
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.manual_seed(1)
        return torch.zeros(1)

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    verdict_on("3.2.1-equation", faulty(attention=rude))
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled() and torch.equal(torch.rand(3), expected)


def test_failure_text_says_claim_expectation_result_and_how_to_reproduce():
    text = verdict_on("3.2.1-scale", find("fault:scale-by-d-k")).text
    sentence, _, lines = text.partition("\nTo reproduce:\n")
    assert sentence == (
        "Scores are divided by the square root of the key width of one head: expected the score of q.k = 1 with d_k = 4"
        " to be 0.5 (within 1e-05 of it), got 0.25."
    )
    assert len(lines.splitlines()) == 3
    done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "got 0.25" in done.stdout


def test_a_known_deviation_deviates_and_must_not_hold(tmp_path):
    known = tmp_path / "known.toml"
    known.write_text('["3.2.1-scale"]\nreason = "divides by d_k"\nreference = "its manual"\n')
    subject = find("fault:scale-by-d-k")
    subject.deviations = known
    verdict = verdict_on("3.2.1-scale", subject)
    assert verdict.state == "deviates" and verdict.text.startswith("divides by d_k (its manual): ")
    sound = faulty(deviations=known)
    verdict = verdict_on("3.2.1-scale", sound)
    assert verdict.state == "fails" and "Listed as a known deviation, but the claim holds" in verdict.text


def _pytest(*arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "specs", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_pytest_writes_reports(tmp_path):
    paths = [tmp_path / "out.json", tmp_path / "out.md"]
    done = _pytest("--subject", "fault:scale-by-d-k", "--claim", "3.2.1-s*", *(f"--report={path}" for path in paths))
    assert done.returncode == 1 and "verdicts on fault:scale-by-d-k" in done.stdout
    data = json.loads(paths[0].read_text())
    states = {entry["id"]: entry["verdict"] for entry in data["claims"]}
    assert data["subject"] == "fault:scale-by-d-k" and states["3.2.1-scale"] == "fails"
    assert "| `3.2.1-scale` | must | ✗ fails |" in paths[1].read_text()


@pytest.mark.parametrize("arguments, sentence", [
    (["--subject", "nobody"], "no subject 'nobody'"),
    (["--subject", "no_such_module:Class"], "cannot import no_such_module"),
    (["--subject", "specs.subject:Nobody"], "has no class Nobody"),
    (["--subject", "student", "--report", "verdicts.txt"], "must end in .json or .md"),
])  # fmt: skip
def test_pytest_refuses_in_one_sentence(arguments, sentence):
    done = _pytest(*arguments)
    assert done.returncode == 4 and sentence in done.stderr and "Traceback" not in done.stderr


def test_a_missing_package_is_said_in_a_word(monkeypatch):
    monkeypatch.setitem(sys.modules, "labml_nn.optimizers.noam", None)
    monkeypatch.delitem(sys.modules, "specs.subjects.labml_model", raising=False)
    with pytest.raises(NotInstalled, match="labml needs a package that is not installed"):
        find("labml")


def test_matrix_has_a_row_for_each_claim():
    verdicts = {claim.id: judge.Verdict(claim.id, "untestable" if claim.level == "untestable" else "holds") for claim in ledger().values()}
    text = report.matrix({"one": verdicts, "two": verdicts})
    for claim in ledger().values():
        assert (f"| `{claim.id}`:" in text) == (claim.about == "implementation" and claim.level != "untestable")


def test_readme_example_is_judged(tmp_path):
    """The adapter in specs/README.md, as a reader would save and run it."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "specs" / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "specs", "--subject", "mine:Mine", "--claim", "3.*"]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert " passed" in done.stdout and "skipped" in done.stdout and " failed" not in done.stdout, done.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vaswani", "fairseq", "torch"])
def test_shipped_subjects_have_no_unknown_failure(name):
    """The plugin holds all; the others show exactly the deviations that their files list."""
    verdicts = judge_all(find(name), time_limit=120)
    assert [str(v) for v in verdicts.values() if v.state in ("fails", "error") and not ledger()[v.claim].covered_by] == []
    if name == "vaswani":
        assert {v.state for v in verdicts.values()} == {"holds", "untestable"}
