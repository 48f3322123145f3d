"""Claims, the specs that check them, and verdicts.

    from specs.judge import judge
    from specs.subjects import find
    print(judge("3.2.1-scale", find("fairseq")))
"""

import contextlib
import dataclasses
import fnmatch
import functools
import importlib
import pathlib
import random
import signal
import threading
import time
import tomllib
import zlib

import numpy
import torch

from specs.expect import Broken
from specs.subject import NotOffered, Unsupported

HERE = pathlib.Path(__file__).parent
STATES = ("holds", "deviates", "fails", "not offered", "error", "untestable")
LEVELS = ("must", "should", "choice", "untestable")
SOURCES = ("paper", "walkthrough", "slow-read", "big-picture")
TIME_LIMIT = 30.0  # seconds for one spec


@dataclasses.dataclass(frozen=True)
class Claim:
    """One sentence of the ledger.

    `about`: "implementation", judged on each subject, or "paper", judged on the paper's own numbers.
    `covered_by`: claims that say the same; such a claim has no spec of its own.
    `reason`: why an untestable claim is so. `no_fault`: why no single fault can break this claim alone.
    """

    id: str
    section: str
    level: str
    statement: str
    expected: str = ""
    source: str = "paper"
    about: str = "implementation"
    covered_by: tuple[str, ...] = ()
    reason: str = ""
    no_fault: str = ""


@dataclasses.dataclass(frozen=True)
class Verdict:
    claim: str
    state: str
    text: str = ""

    def __str__(self):
        return f"{self.claim}: {self.state}" + (f" - {self.text}" if self.text else "")


class TimeLimit(BaseException):
    """A spec took too long. Not an Exception, so that a subject's own handlers let it through."""


@functools.cache
def ledger():
    """All claims by id, in the order of the files."""
    claims = {}
    for path in sorted((HERE / "claims").glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["claim"]:
            if "covered_by" in entry:
                entry["covered_by"] = tuple(entry["covered_by"])
            claim = Claim(**entry)
            if claim.id in claims:
                raise ValueError(f"{path.name}: claim {claim.id} is defined twice")
            claims[claim.id] = claim
    for claim in list(claims.values()):
        if claim.covered_by:
            about = {claims[other].about for other in claim.covered_by}
            claims[claim.id] = dataclasses.replace(claim, about=max(about, key="implementation".__eq__))
    return claims


_specs = {}


def spec(*claims):
    """Mark a function as the spec of these claims. It takes `subject`, or `paper` for claims about the paper."""

    def mark(function):
        for claim in claims:
            if claim in _specs and _specs[claim].__qualname__ != function.__qualname__:
                raise ValueError(f"claim {claim} has two specs: {_specs[claim].__name__} and {function.__name__}")
            _specs[claim] = function
        function.claims = claims
        return function

    return mark


@functools.cache
def specs():
    """Function by claim id, from all `specs/test_*.py`."""
    for path in sorted(HERE.glob("test_*.py")):
        importlib.import_module(f"specs.{path.stem}")
    return dict(_specs)


@contextlib.contextmanager
def _within(seconds):
    """Raise TimeLimit in the block after `seconds`, and again each second if something swallows it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum, frame):
        raise TimeLimit

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def _seeded(text):
    """The same random numbers for the same claim; global state is put back afterwards."""
    state, numpy_state, dtype, grad = random.getstate(), numpy.random.get_state(), torch.get_default_dtype(), torch.is_grad_enabled()
    seed = zlib.crc32(text.encode())
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            random.seed(seed)
            numpy.random.seed(seed)
            torch.set_grad_enabled(True)
            yield
    finally:
        random.setstate(state)
        numpy.random.set_state(numpy_state)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)


def run(function, argument, time_limit=None):
    """(state, expected, got) of one spec on one subject; nothing the subject does gets out, Ctrl-C excepted."""
    limit = TIME_LIMIT if time_limit is None else time_limit
    try:
        with _seeded(function.claims[0]), _within(limit):
            function(argument)
    except Broken as broken:
        return "fails", broken.expected, broken.got
    except Unsupported as unsupported:
        return "fails", "the implementation to be able to do it", str(unsupported)
    except NotOffered as missing:
        return "not offered", "", str(missing)
    except TimeLimit:
        return "error", f"an answer within {limit:g} s", "none"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit and the like come from the subject too
        return "error", "an answer", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return "holds", "", ""


def deviations(subject):
    """Known deviations of a subject: claim id -> sentence. Raises ValueError for an entry that matches no claim."""
    path = getattr(subject, "deviations", None)
    if not path:
        return {}
    known = {}
    for pattern, entry in tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8")).items():
        matches = fnmatch.filter(ledger(), pattern)
        if not matches:
            raise ValueError(f"{path}: {pattern!r} matches no claim")
        if set(entry) != {"reason", "reference"}:
            raise ValueError(f"{path}: {pattern!r} needs exactly a reason and a reference")
        for claim in matches:
            known[claim] = f"{entry['reason']} ({entry['reference']})"
    return known


def reproduce(claim, subject_name):
    return (
        "from specs.judge import judge\n"
        "from specs.subjects import find\n"
        f"print(judge({claim!r}, find({subject_name!r})))"
    )


def verdict(claim, outcome, subject_name, known):
    """The verdict of `claim` given the outcome of `run` and the subject's known deviations."""
    state, expected, got = outcome
    statement = claim.statement.rstrip(".")
    if state == "holds":
        if claim.id in known:
            return Verdict(claim.id, "fails", f"Listed as a known deviation, but the claim holds: {statement}.")
        return Verdict(claim.id, "holds")
    if state == "not offered":
        return Verdict(claim.id, state, got)
    text = f"{statement}: expected {expected}, got {got}."
    if state == "fails" and claim.id in known:
        return Verdict(claim.id, "deviates", f"{known[claim.id]}: {text}")
    return Verdict(claim.id, state, f"{text}\nTo reproduce:\n{reproduce(claim.id, subject_name)}")


class Paper:
    """What claims about the paper are judged on: its printed numbers and the layers it compares."""

    name = "paper"

    def __init__(self, reported=None, layers=None):
        from specs import table_1

        self.reported = reported or tomllib.loads((HERE / "reported.toml").read_text(encoding="utf-8"))
        self.layers = layers or table_1.Layers()


def judge(claim_id, subject, known=None, time_limit=None, subject_name=None):
    """The verdict on one claim."""
    claims = ledger()
    if claim_id not in claims:
        raise ValueError(f"no claim {claim_id!r}")
    claim = claims[claim_id]
    known = deviations(subject) if known is None else known
    name = subject_name or getattr(subject, "name", type(subject).__name__)
    if claim.level == "untestable":
        return Verdict(claim.id, "untestable", claim.reason)
    if claim.covered_by:
        return combine(claim, [judge(other, subject, known, time_limit, name) for other in claim.covered_by])
    argument = Paper() if claim.about == "paper" else subject
    return verdict(claim, run(specs()[claim_id], argument, time_limit), name, known)


def combine(claim, verdicts):
    """A claim that says what others say is as bad as the worst of them."""
    order = ("error", "fails", "deviates", "not offered", "untestable", "holds")
    worst = min(verdicts, key=lambda verdict: order.index(verdict.state))
    text = "" if worst.state == "holds" else f"see {worst.claim}"
    return Verdict(claim.id, worst.state, text)


def judge_all(subject, time_limit=None, subject_name=None, progress=None):
    """Verdicts on the whole ledger by claim id; each spec runs once."""
    known = deviations(subject)
    name = subject_name or subject.name
    outcomes, verdicts = {}, {}
    paper = Paper()
    for claim in ledger().values():
        if claim.level == "untestable":
            verdicts[claim.id] = Verdict(claim.id, "untestable", claim.reason)
        elif not claim.covered_by:
            function = specs()[claim.id]
            if function not in outcomes:
                outcomes[function] = run(function, paper if claim.about == "paper" else subject, time_limit)
            verdicts[claim.id] = verdict(claim, outcomes[function], name, known)
        if progress:
            progress(claim.id)
    for claim in ledger().values():
        if claim.covered_by:
            verdicts[claim.id] = combine(claim, [verdicts[other] for other in claim.covered_by])
    return {claim: verdicts[claim] for claim in ledger()}
