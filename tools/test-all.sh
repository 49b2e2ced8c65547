#!/bin/sh
# All that tools/test.sh leaves out, within an hour: the long tests with coverage, a wheel that is
# built, installed and tried, and the tests with the lowest versions of the dependencies.
# Environments stay beside the project's files, as those of tools/test.sh and tools/test-lowest.sh.
set -eu
project=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

sh "$project/tools/test.sh" --long --cov --cov-report term

"${PYTHON:-python3}" -m venv "$scratch/venv"
"$scratch/venv/bin/pip" wheel --quiet --no-deps --wheel-dir "$scratch" "$project"
"$scratch/venv/bin/pip" install --quiet "$scratch"/ooc_fw-*.whl
cd "$scratch"
venv/bin/ooc-fw --version
venv/bin/ooc-fw help contributing >contributing.md
venv/bin/ooc-fw demo files
cd "$project"

sh tools/test-lowest.sh
