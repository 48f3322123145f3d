"""Verdicts as a table by section, as JSON and as Markdown, and the matrix of several subjects."""

import collections
import json
import os
import pathlib
import tempfile

from specs.judge import STATES, ledger

MARKS = {"holds": "✓", "deviates": "≈", "fails": "✗", "not offered": "–", "error": "!", "untestable": "?"}
LEGEND = (
    "✓ holds, ≈ deviates (known, with reason), ✗ fails, – not offered, ! error, ? untestable (needs the authors'"
    " hardware, corpus or weights)"
)


def sections():
    """Section names in reading order."""
    seen = dict.fromkeys(claim.section for claim in ledger().values())
    return sorted(seen, key=lambda s: (s == "Appendix", [int(part) for part in s.split(".") if part.isdigit()]))


def count(verdicts, section=None):
    """How many verdicts of each state, of one section or of all."""
    claims = ledger()
    states = collections.Counter(v.state for v in verdicts.values() if section in (None, claims[v.claim].section))
    return {state: states[state] for state in STATES}


def table(verdicts):
    """Lines of a plain table: one row per section, one column per state."""
    lines = ["section    " + "".join(f"{state:>13}" for state in STATES)]
    for name in [*sections(), None]:
        counts = count(verdicts, name)
        if any(counts.values()):
            lines.append(f"{name or 'all':<11}" + "".join(f"{n or '.':>13}" for n in counts.values()))
    return lines


def as_json(subject, verdicts):
    claims = ledger()
    return {
        "subject": subject,
        "counts": count(verdicts),
        "claims": [
            {"id": v.claim, "section": claims[v.claim].section, "level": claims[v.claim].level,
             "statement": claims[v.claim].statement, "verdict": v.state, "text": v.text}
            for v in verdicts.values()
        ],
    }  # fmt: skip


def _cell(text):
    return text.split("\nTo reproduce:")[0].replace("|", "\\|").replace("\n", " ")


def as_markdown(subject, verdicts):
    claims = ledger()
    lines = [f"# Claims of the paper, judged on {subject}", "", LEGEND, ""]
    for name in sections():
        rows = [v for v in verdicts.values() if claims[v.claim].section == name]
        if rows:
            lines += [f"## Section {name}" if name[0].isdigit() else f"## {name}", "", "| claim | level | verdict | statement | |", "|---|---|---|---|---|"]
            lines += [
                f"| `{v.claim}` | {claims[v.claim].level} | {MARKS[v.state]} {v.state} | {_cell(claims[v.claim].statement)} | {_cell(v.text)} |"
                for v in rows
            ]
            lines.append("")
    return "\n".join(lines)


def matrix(results):
    """Markdown of claim x implementation; `results`: verdicts by subject name. Claims about the paper come once."""
    claims = ledger()
    names = list(results)
    lines = [LEGEND, "", "| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    about_implementation = [c for c in claims.values() if c.about == "implementation" and c.level != "untestable"]
    for state in STATES[:-1]:
        counts = [sum(results[name][c.id].state == state for c in about_implementation) for name in names]
        lines.append(f"| {state} | " + " | ".join(map(str, counts)) + " |")
    for section in sections():
        rows = [c for c in about_implementation if c.section == section]
        if rows:
            lines += ["", f"### {'Section ' if section[0].isdigit() else ''}{section}", "", "| claim | " + " | ".join(names) + " |", "|---|" + ":-:|" * len(names)]
            lines += [
                f"| `{c.id}`: {_cell(c.statement)} | " + " | ".join(MARKS[results[name][c.id].state] for name in names) + " |"
                for c in rows
            ]
    lines += ["", "### Known deviations and failures", ""]
    for name in names:
        found = collections.defaultdict(list)
        for c in about_implementation:
            v = results[name][c.id]
            if v.state in ("deviates", "fails", "error") and not c.covered_by:
                sentence = _cell(v.text)
                reason = sentence.split("): ")[0] + ")" if v.state == "deviates" else sentence
                found[(v.state, reason)].append(c.id)
        if found:
            lines += [f"**{name}**", ""]
            lines += [f"- {state}: {reason} ({', '.join(f'`{i}`' for i in ids)})" for (state, reason), ids in found.items()]
            lines.append("")
    paper = [v for v in results[names[0]].values() if claims[v.claim].about == "paper" and v.state != "untestable"]
    holds = sum(v.state == "holds" for v in paper)
    untestable = sum(c.level == "untestable" for c in claims.values())
    lines += [f"Beside these, {holds} of {len(paper)} claims about the paper's own arithmetic hold, and {untestable} claims are untestable.", ""]
    return "\n".join(lines)


def write(path, text):
    """Write a whole file or nothing."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


def write_report(path, subject, verdicts):
    """JSON or Markdown by the name's ending; ValueError for any other."""
    suffix = pathlib.Path(path).suffix
    if suffix == ".json":
        write(path, json.dumps(as_json(subject, verdicts), indent=1, ensure_ascii=False) + "\n")
    elif suffix == ".md":
        write(path, as_markdown(subject, verdicts))
    else:
        raise ValueError(f"--report {path}: the name must end in .json or .md")
