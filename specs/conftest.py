"""`pytest specs` judges an implementation: options, fixtures, and the verdicts at the end."""

import fnmatch
import logging
import pathlib
import sys

import pytest

ROOT = str(pathlib.Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from specs import judge, report, subjects  # noqa: E402


def pytest_addoption(parser):
    group = parser.getgroup("specs", "the paper as an executable specification")
    group.addoption("--subject", default="vaswani", help="implementation to judge: a shipped name, package.module:Class, or fault:ID")
    group.addoption("--report", action="append", default=[], help="write the verdicts to this .json or .md file (repeatable)")
    group.addoption("--claim", help="judge only claims that match this pattern, such as '3.2.1-*'")
    group.addoption("--time-limit", type=float, default=judge.TIME_LIMIT, help="seconds that one spec may take")


class Session:
    def __init__(self, config):
        self.name = config.getoption("--subject")
        self.missing = ""
        self.subject, self.known, self.verdicts = None, {}, {}
        for path in config.getoption("--report"):
            if pathlib.Path(path).suffix not in (".json", ".md"):
                raise pytest.UsageError(f"--report {path}: the name must end in .json or .md")
        try:
            self.subject = subjects.find(self.name)
            self.known = judge.deviations(self.subject)
        except subjects.NotInstalled as error:
            self.missing = str(error)
        except (ValueError, OSError) as error:
            raise pytest.UsageError(str(error)) from error
        except Exception as error:
            raise pytest.UsageError(f"subject {self.name!r} cannot be made: {type(error).__name__}: {error}") from error


def pytest_configure(config):
    config.addinivalue_line("markers", "claims(*ids): the claims of the ledger that a spec checks")
    for noise in (r"ignore::UserWarning:hydra.*", r"ignore:\s*'config' is validated:UserWarning", r"ignore:\s*The strict flag:UserWarning",
                  r"ignore::FutureWarning:fairseq.*", r"ignore::DeprecationWarning:torch.*"):  # fmt: skip
        config.addinivalue_line("filterwarnings", noise)
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    config._specs = Session(config)


def pytest_report_header(config):
    session = config._specs
    return f"subject: {session.name}" + (f" ({session.missing})" if session.missing else "")


def pytest_collection_modifyitems(config, items):
    pattern = config.getoption("--claim")
    kept, dropped = [], []
    for item in items:
        claims = getattr(getattr(item, "function", None), "claims", ())
        if claims:
            item.add_marker(pytest.mark.claims(*claims))
        wanted = not pattern or any(fnmatch.fnmatch(claim, pattern) for claim in claims)
        (kept if wanted else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.fixture(scope="session")
def subject(request):
    return request.config._specs.subject


@pytest.fixture(scope="session")
def paper():
    return judge.Paper()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a spec, keep the verdict on each of its claims, and tell pytest the worst."""
    function = pyfuncitem.obj
    if not hasattr(function, "claims"):
        return None
    session = pyfuncitem.config._specs
    argument = pyfuncitem.funcargs.get("paper", session.subject)
    if argument is None:
        outcome = ("not offered", "", session.missing)
    else:
        outcome = judge.run(function, argument, pyfuncitem.config.getoption("--time-limit"))
    verdicts = [judge.verdict(judge.ledger()[claim], outcome, session.name, session.known) for claim in function.claims]
    session.verdicts.update({verdict.claim: verdict for verdict in verdicts})
    texts = "\n".join(str(verdict) for verdict in verdicts if verdict.state != "holds")
    states = {verdict.state for verdict in verdicts}
    if states & {"fails", "error"}:
        pytest.fail(texts, pytrace=False)
    if "not offered" in states:
        pytest.skip(texts)
    if "deviates" in states:
        pytest.xfail(texts)
    return True


def pytest_terminal_summary(terminalreporter, config):
    session = config._specs
    if not session.verdicts:
        return
    verdicts = dict(session.verdicts)
    for claim in judge.ledger().values():
        pattern = config.getoption("--claim")
        if claim.level == "untestable" and not pattern:
            verdicts[claim.id] = judge.Verdict(claim.id, "untestable", claim.reason)
        elif claim.covered_by and all(other in session.verdicts for other in claim.covered_by):
            verdicts[claim.id] = judge.combine(claim, [session.verdicts[other] for other in claim.covered_by])
    verdicts = {claim: verdicts[claim] for claim in judge.ledger() if claim in verdicts}
    terminalreporter.section(f"verdicts on {session.name}")
    for line in report.table(verdicts):
        terminalreporter.write_line(line)
    for path in config.getoption("--report"):
        report.write_report(path, session.name, verdicts)
        terminalreporter.write_line(f"written: {path}")
