#!/bin/sh
# Make a virtual environment, install the project into it and run its demo: text to predictions on
# a small real data set. Needs Python 3.11 or newer (another one: PYTHON=python3.12 sh demo.sh).
# The environment stays in .venv-demo beside the project's files (another place: VENV=DIR).
set -eu
project=$(cd "$(dirname "$0")/.." && pwd)
venv=${VENV:-$project/.venv-demo}

"${PYTHON:-python3}" -m venv "$venv"
echo '*' >"$venv/.gitignore"
"$venv/bin/pip" install --quiet "$project"
exec "$venv/bin/ooc-fw" demo "$@"
