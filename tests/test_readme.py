"""Every command that the README shows is one that the program it names understands."""

import io
import logging
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from functools import cache

import pytest
from fairseq import options

from .helpers import REPOSITORY

TEXT = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def commands():
    """The commands of the README's blocks of code, each as a list of words without what is piped or redirected."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE):
        if language:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            ends = [words.index(sign) for sign in ("<", ">", "|") if sign in words]
            words = words[: min(ends)] if ends else words
            if words and "=" not in words[0]:
                found.append(words)
    return found


COMMANDS = commands()


def of(*beginning):
    chosen = [words for words in COMMANDS if words[: len(beginning)] == list(beginning)]
    assert chosen, beginning
    return chosen


def flags(words):
    return {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}


@cache
def help_of(script, *subcommand):
    """What a script of ours answers to --help."""
    said, argv, disabled = io.StringIO(), sys.argv, logging.root.manager.disable
    sys.argv = [script, *subcommand, "--help"]
    try:
        with redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings(), pytest.raises(SystemExit):
            runpy.run_path(str(REPOSITORY / script), run_name="__main__")
    finally:
        sys.argv = argv
        logging.disable(disabled)  # some scripts silence fairseq
    return said.getvalue()


def test_the_blocks_hold_the_commands():
    assert len(COMMANDS) > 40
    assert {words[0] for words in COMMANDS} >= {"bash", "python", "fairseq-train", "fairseq-generate", "pytest"}


@pytest.mark.parametrize("words", [w for w in COMMANDS if w[0] == "python" and w[1].startswith("scripts/")], ids=" ".join)
def test_scripts_know_their_flags(words):
    subcommand = [word for word in words[2:3] if f" {word} " in help_of(words[1]) and re.fullmatch("[a-z]+", word)]
    text = help_of(words[1])
    if subcommand and "{" in text.split("\n\n")[0]:
        text = help_of(words[1], *subcommand)
    for flag in flags(words[2:]):
        assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text), flag


@pytest.mark.parametrize("words", of("bash"), ids=" ".join)
def test_shell_scripts_know_their_flags(words):
    run = subprocess.run(["bash", words[1], "--help"], cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0
    own = words[2 : words.index("--")] if "--" in words else words[2:]
    for flag in flags(own):
        assert flag in run.stdout, flag


PARSERS = {
    "fairseq-train": options.get_training_parser,
    "fairseq-generate": options.get_generation_parser,
    "fairseq-validate": options.get_validation_parser,
    "fairseq-interactive": options.get_interactive_generation_parser,
    "fairseq-preprocess": options.get_preprocessing_parser,
}


@pytest.mark.parametrize("words", [w for w in COMMANDS if w[0] in PARSERS], ids=" ".join)
def test_fairseq_knows_the_flags(words, data_bin):
    parser = PARSERS[words[0]]()
    arguments = [str(data_bin) if word in ("DATA", "$R/data", "runs/parser/bin") else word for word in words[1:]]
    at = arguments.index("--user-dir") if "--user-dir" in arguments else None
    if at is not None:
        assert arguments[at + 1] == "vaswani_plugin"
        del arguments[at : at + 2]  # it is imported already
    if words[0] == "fairseq-preprocess":
        parser.parse_args(arguments)
    else:
        options.parse_args_and_arch(parser, arguments)
