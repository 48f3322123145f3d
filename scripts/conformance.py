"""Judge several implementations against the paper's claims and write the matrix claim x implementation.

Each subject runs in a process of its own; one whose package is not installed is left out with a word.

Example: python scripts/conformance.py --output conformance.md --output conformance.json
"""

import argparse
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specs import judge, report, subjects  # noqa: E402


def judge_one(name, output):
    """Judge one subject and write its verdicts as JSON; exit status 3 when its package is missing."""
    logging.disable(logging.INFO)
    try:
        subject = subjects.find(name)
    except subjects.NotInstalled as missing:
        print(missing, file=sys.stderr)
        return 3
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1

    done = []

    def progress(claim):
        done.append(claim)
        if sys.stderr.isatty():
            print(f"\r{name}: {len(done)} of {len(judge.ledger())} claims", end="", file=sys.stderr)

    verdicts = judge.judge_all(subject, subject_name=name, progress=progress)
    report.write(output, json.dumps([[v.claim, v.state, v.text] for v in verdicts.values()]))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", help="subjects to judge (default: all shipped ones)")
    parser.add_argument("--output", action="append", type=pathlib.Path, default=[], help=".md or .json file (repeatable)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        return judge_one(arguments.one, arguments.output[0])
    for path in arguments.output:
        if path.suffix not in (".md", ".json"):
            parser.error(f"--output {path}: the name must end in .md or .json")

    results = {}
    for name in arguments.subjects or list(subjects.SHIPPED):
        print(f"judging {name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "verdicts.json"
            command = [sys.executable, "-W", "ignore", __file__, "--one", name, "--output", str(path)]
            done = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=False)
            if done.returncode == 3:
                continue
            if done.returncode:
                return f"error: judging {name} ended with status {done.returncode}"
            rows = json.loads(path.read_text(encoding="utf-8"))
            results[name] = {row[0]: judge.Verdict(*row) for row in rows}
    if not results:
        return "error: none of the subjects is installed"
    matrix = report.matrix(results)
    for path in arguments.output:
        data = [report.as_json(name, verdicts) for name, verdicts in results.items()]
        report.write(path, matrix if path.suffix == ".md" else json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    if not arguments.output:
        print(matrix)
    return 0


if __name__ == "__main__":
    sys.exit(main())
