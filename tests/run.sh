#!/usr/bin/env bash
# All checks: lint, format, types, tests. Arguments go to pytest: bash tests/run.sh -k lmdb
#
# Everything is installed into .venv, made with ${PYTHON:-python3}.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ ! -x .venv/bin/pip ]; then
    if ! "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "${PYTHON:-python3} cannot make virtual environments: apt install python3-venv" >&2
        exit 1
    fi
    "${PYTHON:-python3}" -m venv .venv
fi
source .venv/bin/activate

set -x
pip install --quiet -c constraints.txt -e '.[torch,test]'
ruff check
ruff format --check
mypy
pytest "$@"
