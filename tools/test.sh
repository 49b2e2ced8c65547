#!/bin/sh
# Make a virtual environment, install the project and its test tools, and run linters, type checker
# and tests. Needs Python 3.11 or newer (another one: PYTHON=...).
#
#     sh tools/test.sh          what decides whether a change lands
#     sh tools/test.sh fast     units and contracts with few random examples, within a minute
#
# The environment stays in .venv-test beside the project's files (another place: VENV=DIR), and with
# it the compiled code, which all test processes share. Further arguments go to pytest.
set -eu
project=$(cd "$(dirname "$0")/.." && pwd)
venv=${VENV:-$project/.venv-test}
if [ "${1:-}" = fast ]; then
    shift
    set -- --fast "$@"
fi

cd "$project"
if ! cmp -s pyproject.toml "$venv/installed.toml"; then
    "${PYTHON:-python3}" -m venv "$venv"
    echo '*' >"$venv/.gitignore"
    "$venv/bin/pip" install --quiet --no-compile --editable "$project[test]"
    cp pyproject.toml "$venv/installed.toml"
    rm -f "$venv/warm"
fi
PATH=$venv/bin:$PATH
ruff check
ruff format --check

# Compiled once, rather than by each test process; tests/cli/test_demo.py looks at this, too.
mypy &
checks=$!
export OOC_FW_WARMED="$venv/warmed" NUMBA_CACHE_DIR="$venv/compiled"
if [ ! -e "$venv/warm" ] || [ -n "$(find ooc_fw/_core -name '*.py' -newer "$venv/warm")" ]; then
    NUMBA_CACHE_DIR=$OOC_FW_WARMED ooc-fw warm-up --quiet
    cp -Rpu "$OOC_FW_WARMED/." "$NUMBA_CACHE_DIR"
    touch "$venv/warm"
fi
wait $checks

pytest --numprocesses auto --dist worksteal "$@"
