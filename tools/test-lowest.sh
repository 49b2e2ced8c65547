#!/bin/sh
# Run the tests with the lowest versions of the dependencies that pyproject.toml allows.
# The environment stays in .venv-lowest beside the project's files (another place: VENV=DIR).
# Old libraries call what newer ones beneath them deprecate: such warnings are no errors here.
# The testing tools of scikit-learn 1.6 need SCIPY_ARRAY_API beside the array_api_compat of anndata.
# Arguments go to pytest.
set -eu
project=$(cd "$(dirname "$0")/.." && pwd)
venv=${VENV:-$project/.venv-lowest}

"${PYTHON:-python3}" -m venv "$venv"
echo '*' >"$venv/.gitignore"
"$venv/bin/python" - "$project/pyproject.toml" >"$venv/lowest.txt" <<'PYTHON'
import sys, tomllib

project = tomllib.load(open(sys.argv[1], "rb"))["project"]
extras = project["optional-dependencies"]
used = [extras[name] for name in ("compression", "cluster", "plot")]
for requirement in sum(used, project["dependencies"]):
    print(requirement.replace(">=", "=="))
PYTHON
"$venv/bin/pip" install --quiet --constraint "$venv/lowest.txt" --editable "$project[test]"

cd "$project"
export SCIPY_ARRAY_API=1
"$venv/bin/pytest" --numprocesses auto --dist worksteal -W ignore::DeprecationWarning "$@"
