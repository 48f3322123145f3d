#!/usr/bin/env bash
# Set up the environment and run the specs and the tests. Arguments go to pytest.
set -euo pipefail

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
    cat <<'TEXT'
Usage: bash scripts/test.sh [PYTEST ARGUMENTS]

Makes the virtual environment if need be (see scripts/setup_env.sh for VENV and PYTHON) and runs
`pytest specs tests`. The tests marked slow, end-to-end runs of minutes, are left out unless asked for:

  bash scripts/test.sh                            the fast ones
  bash scripts/test.sh -m 'slow or not slow'      all
  bash scripts/test.sh -k attention               those with "attention" in their name
TEXT
    exit 0
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup_env.sh
# One thread: the models of the tests are so small that a second thread mostly waits for the first.
export OMP_NUM_THREADS=1
# The commands that the tests start (fairseq-train and its like) are those of this environment.
export PATH="$(cd "${VENV:-.venv}/bin" && pwd):$PATH"
printf '+ pytest specs tests %s\n' "$*" >&2
exec python -m pytest specs tests "$@"
