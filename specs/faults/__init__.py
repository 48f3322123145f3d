"""Subjects with exactly one wrong detail, each naming the claims that it breaks: proof that specs can fail.

A fault is an entry of a TOML file here, one file a family. It changes one place of the student's Transformer
(`old` -> `new`), of the layers that Table 1 compares (`file = "table_1"`), or one number that the paper prints
(`reported`, a dotted name, and its wrong `value`).
"""

import ast
import copy
import dataclasses
import functools
import importlib.machinery
import importlib.util
import pathlib
import sys
import threading
import tomllib
from typing import Any

from specs import table_1
from specs.judge import Paper, ledger, run, specs
from specs.subjects import student_transformer
from specs.subjects.student import Student

HERE = pathlib.Path(__file__).parent
FILES = {"student": student_transformer, "table_1": table_1}


@dataclasses.dataclass(frozen=True)
class Fault:
    """`says`: the wrong detail in words. `breaks`: every claim that must fail, and no other may."""

    id: str
    family: str
    says: str
    breaks: tuple[str, ...]
    file: str = "student"
    old: str = ""
    new: str = ""
    reported: str = ""
    value: Any = None

    @property
    def about(self):
        return "implementation" if self.file == "student" and not self.reported else "paper"


@functools.cache
def faults():
    """All faults by id."""
    found = {}
    for path in sorted(HERE.glob("*.toml")):
        for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            entry["breaks"] = tuple(entry["breaks"])
            if name in found:
                raise ValueError(f"{path.name}: fault {name} is defined twice")
            found[name] = Fault(id=name, family=path.stem, **entry)
    return found


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads a module with one place of its text changed, past any bytecode cache."""

    def __init__(self, name, path, old, new):
        super().__init__(name, path)
        self.old, self.new = old, new

    def get_code(self, fullname):
        text = self.get_data(self.path).decode()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.path} has {text.count(self.old)} places that read {self.old!r}, not one")
        return self.source_to_code(text.replace(self.old, self.new).encode(), self.path)


def _changed_module(fault):
    module = FILES[fault.file]
    name = f"{module.__name__}_with_{fault.id.replace('-', '_')}"
    loader = _Changed(name, module.__file__, fault.old, fault.new)
    changed = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.modules[name] = changed  # dataclasses and pickling look there
    try:
        loader.exec_module(changed)
    finally:
        del sys.modules[name]
    return changed


def argument(fault):
    """What the specs get to judge: a Student, or a Paper for faults of the paper."""
    if fault.reported:
        paper = Paper()
        reported = copy.deepcopy(paper.reported)
        *path, last = fault.reported.split(".")
        entry = reported
        for key in path:
            entry = entry[key]
        if last not in entry:
            raise ValueError(f"fault {fault.id}: the paper prints no {fault.reported}")
        entry[last] = fault.value
        return Paper(reported=reported)
    module = _changed_module(fault)
    if fault.file == "table_1":
        return Paper(layers=module.Layers())
    subject = Student()
    subject.library, subject.name = module, f"fault:{fault.id}"
    return subject


def fault_subject(name):
    """The subject `fault:NAME`; ValueError if there is none, or if it is a fault of the paper."""
    fault = faults().get(name)
    if fault is None or fault.about != "implementation":
        raise ValueError(f"no faulty implementation {name!r} in specs/faults")
    return argument(fault)


def candidates(about):
    """Specs by claim, for claims that a fault of this kind could break."""
    claims = ledger()
    return {claim: function for claim, function in specs().items() if claims[claim].about == about}


def broken_claims(fault, only=None):
    """The claims that fail (or give an error) under the fault; `only`: functions worth running."""
    subject, outcomes, broken = argument(fault), {}, set()
    for claim, function in candidates(fault.about).items():
        if only is not None and function not in only:
            continue
        if function not in outcomes:
            outcomes[function] = run(function, subject)[0]
        if outcomes[function] != "holds":
            broken.add(claim)
    return broken


class _Lines:
    """Which lines of one file are executed, on all threads, while active."""

    def __init__(self, path):
        self.path, self.lines = path, set()

    def _global(self, frame, event, arg):
        if frame.f_code.co_filename != self.path:
            return None
        self.lines.add(frame.f_lineno)
        return self._local

    def _local(self, frame, event, arg):
        self.lines.add(frame.f_lineno)
        return self._local

    def __enter__(self):
        self.previous = sys.gettrace()
        threading.settrace(self._global)
        sys.settrace(self._global)
        return self

    def __exit__(self, *_):
        sys.settrace(self.previous)
        threading.settrace(self.previous)


@functools.cache
def lines_of_specs():
    """For each spec of an implementation, the lines of the student's file that it executes.

    Specs are deterministic, so a spec that executes no changed line gives the same verdict with and without the change.
    """
    student = Student()
    found = {}
    for function in dict.fromkeys(candidates("implementation").values()):
        with _Lines(student_transformer.__file__) as seen:
            run(function, student)
        found[function] = frozenset(seen.lines)
    return found


class _Recording(Paper):
    """A paper that notes which of its parts is read."""

    def __init__(self):
        self.parts, self.whole = set(), Paper()

    def __getattr__(self, name):
        self.parts.add(name)
        return getattr(self.whole, name)


@functools.cache
def parts_of_specs():
    """For each spec of the paper, whether it reads the `reported` numbers or the `layers`."""
    found = {}
    for function in dict.fromkeys(candidates("paper").values()):
        paper = _Recording()
        run(function, paper)
        found[function] = frozenset(paper.parts)
    return found


def _statement_lines(text, first, last):
    """All lines of the innermost statements that hold the lines first..last (decorated blocks: their headers)."""
    lines = set(range(first, last + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and node.lineno <= last and node.end_lineno >= first:
            lines |= set(range(node.lineno, node.end_lineno + 1))
    return lines


def touching(fault):
    """The specs that could notice a fault; None: all."""
    if fault.about == "paper":
        part = "reported" if fault.reported else "layers"
        return {function for function, parts in parts_of_specs().items() if part in parts}
    text = pathlib.Path(student_transformer.__file__).read_text(encoding="utf-8")
    before = text[: text.index(fault.old)]
    first = before.count("\n") + 1
    changed = _statement_lines(text, first, first + fault.old.rstrip("\n").count("\n"))
    with _Lines(student_transformer.__file__) as at_import:
        _changed_module(dataclasses.replace(fault, new=fault.old))
    if changed & at_import.lines:
        return None  # executed at import, such as a default or a definition: anything may follow
    return {function for function, lines in lines_of_specs().items() if lines & changed}
