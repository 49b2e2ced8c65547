#!/bin/sh
# Make a virtual environment, install the project and its test tools, and run linters, type checker
# and the whole test suite with coverage. Needs Python 3.11 or newer (another one: PYTHON=...).
# The environment stays in .venv-test beside the project's files (another place: VENV=DIR).
# Arguments go to pytest.
set -eu
project=$(cd "$(dirname "$0")/.." && pwd)
venv=${VENV:-$project/.venv-test}

"${PYTHON:-python3}" -m venv "$venv"
echo '*' >"$venv/.gitignore"
"$venv/bin/pip" install --quiet --editable "$project[test]"

cd "$project"
PATH=$venv/bin:$PATH
ruff check
ruff format --check
mypy
pytest --numprocesses auto --dist worksteal --cov --cov-report term "$@"
