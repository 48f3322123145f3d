#!/usr/bin/env bash
# Make the virtual environment that the other scripts use, with the plugin (editable), fairseq and torch in it.
# Does nothing when the environment is there and complete.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: bash scripts/setup_env.sh

Makes a virtual environment and installs the plugin into it, with the tested versions of constraints.txt.
Does nothing if that was done already and neither setup.py nor constraints.txt has changed.

Environment variables:
  VENV     where the environment lies, from the repository's root (default: .venv)
  PYTHON   the Python to make it with (default: the first of python3.11, python3.12, python3, python that fits)
TEXT
}

die() { echo "setup_env.sh: $*" >&2; exit 1; }
run() { printf '+ %s\n' "$*" >&2; "$@"; }

case "${1:-}" in
    "") ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown argument '$1'; see --help" ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${VENV:-.venv}

# Python 3.11 or newer, able to make an environment. Printed: the version, or the reason against it.
probe='
import sys
if sys.version_info < (3, 11):
    sys.exit("is Python %d.%d" % sys.version_info[:2])
try:
    import ensurepip, venv
except ImportError:
    sys.exit("has no venv module (Debian and Ubuntu: apt install python3-venv)")
'
find_python() {
    local candidate reason refused="" candidates=(python3.11 python3.12 python3 python)
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        command -v "$candidate" >/dev/null || { refused+="; $candidate is not there"; continue; }
        if reason=$("$candidate" -c "$probe" 2>&1); then
            printf '%s\n' "$candidate"
            return
        fi
        refused+="; $candidate ${reason##*$'\n'}"
    done
    die "needs Python 3.11 or 3.12 with the venv module, name one with PYTHON=...$refused."
}

fingerprint() { cat setup.py constraints.txt scripts/setup_env.sh | cksum; }
stamp=$venv/vaswani_plugin.installed
if [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint) $PWD" ]; then
    exit 0
fi

# An environment without its stamp was interrupted or is out of date: pip completes it in place. One whose Python has
# gone is made anew.
if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    [ ! -e "$venv" ] || [ -f "$venv/pyvenv.cfg" ] || [ -z "$(ls -A "$venv")" ] \
        || die "'$venv' exists and is not a virtual environment; choose another place with VENV=..."
    python=$(find_python)
    run "$python" -m venv --clear "$venv"
fi
rm -f "$stamp"

# torch is named in the same command, so that no requirement of a requirement replaces it.
torch=$(grep '^torch==' constraints.txt)
isolation=()
if ! "$venv/bin/python" -c 'import platform, sys
sys.exit((sys.platform, platform.machine()) != ("linux", "x86_64") or sys.version_info >= (3, 13))'; then
    # fairseq-fixed is compiled here, against the torch that must therefore be installed first.
    run "$venv/bin/python" -m pip install "$torch" setuptools wheel cython numpy -c constraints.txt
    isolation=(--no-build-isolation)
fi
run "$venv/bin/python" -m pip install ${isolation[@]+"${isolation[@]}"} "$torch" -e '.[test]' -c constraints.txt
printf '%s\n' "$(fingerprint) $PWD" >"$stamp"
