#!/bin/sh
# Make the site: README, guides, the reference of all public names, a gallery and a notebook.
# Needs Python 3.11 or newer (another one: PYTHON=...). The site is build/site/html/index.html.
#
# The environment stays in .venv-site beside the project's files (another place: VENV=DIR), and with
# it the compiled code. Warnings are errors, and so is a link that leads nowhere.
set -eu
project=$(cd "$(dirname "$0")/.." && pwd)
venv=${VENV:-$project/.venv-site}
site=$project/build/site

cd "$project"
if ! cmp -s pyproject.toml "$venv/installed.toml"; then
    "${PYTHON:-python3}" -m venv "$venv"
    echo '*' >"$venv/.gitignore"
    "$venv/bin/pip" install --quiet --no-compile --editable "$project[site]"
    cp pyproject.toml "$venv/installed.toml"
fi
export NUMBA_CACHE_DIR="$venv/compiled"
export PYDEVD_DISABLE_FILE_VALIDATION=1  # notebooks need no debugger, and no word of it
rm -rf "$site"
"$venv/bin/python" tools/site/pages.py "$site/source"
"$venv/bin/sphinx-build" --fail-on-warning --keep-going --quiet -c tools/site "$site/source" "$site/html"
"$venv/bin/python" tools/site/check.py "$site/html"
