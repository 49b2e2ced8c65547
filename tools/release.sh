#!/bin/sh
# Build the files of a release from the last commit, try them, and leave them in dist/.
#
#     sh tools/release.sh                                   with python3
#     PYTHONS="python3.11 python3.14" sh tools/release.sh   with each of these
#
# Each interpreter gets four empty environments: the wheel and the source distribution, with the
# lowest and with the newest versions of the dependencies. In each, the installed package runs the
# demo and the fast tests. Arguments go to pytest in place of --fast.
set -eu
project=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM HUP
[ $# -gt 0 ] || set -- --fast
say() { printf '\n== %s\n' "$*"; }

say "Building the last commit"
cd "$scratch"
"${PYTHON:-python3}" -m venv tools
tools/bin/pip install --quiet build twine uv py-rattler-build
export UV_CACHE_DIR="${UV_CACHE_DIR:-$scratch/uv}"
mkdir source tree
git -C "$project" archive HEAD | tar x -C source
tools/bin/python -m build --outdir built source >build.log || { cat build.log; exit 1; }
tools/bin/twine check --strict built/*
wheel=$(echo built/*.whl)
sdist=$(echo built/*.tar.gz)
tar xzf "$sdist" --strip-components 1 -C tree  # its tests, which run beside the installed package
rm -r tree/ooc_fw

say "Filling in the recipe"
tools/bin/python tree/tools/recipe.py "$sdist" >recipe.yaml

# Try $1, a file, with the interpreter $2 and the $3 versions; further arguments go to pytest.
# Old libraries call what newer ones beneath them deprecate: such warnings are no errors with the
# lowest versions. The testing tools of scikit-learn 1.6 need SCIPY_ARRAY_API beside anndata.
try() (
    file=$1 python=$2 versions=$3
    shift 3
    name="$(basename "$file"), $("$python" --version), $versions versions"
    say "$name"
    rm -rf venv demo compiled
    from_source=
    [ "$file" = "$wheel" ] || from_source="--no-binary ooc-fw"
    tools/bin/uv venv --quiet --no-project --python "$(command -v "$python")" venv
    tools/bin/uv pip install --quiet --python venv --resolution "$versions" --only-binary :all: \
        $from_source "ooc-fw[test] @ file://$scratch/$file"
    tools/bin/uv pip check --quiet --python venv
    export PATH="$scratch/venv/bin:$PATH" NUMBA_CACHE_DIR="$scratch/compiled"
    ooc-fw demo demo >demo.log || { cat demo.log; exit 1; }
    ln -sfn "$(python -c 'import ooc_fw; print(ooc_fw.__path__[0])')" tree/ooc_fw
    cd tree
    if [ "$versions" = lowest-direct ]; then
        export SCIPY_ARRAY_API=1
        set -- -W ignore::DeprecationWarning "$@"
    fi
    python -m ooc_fw warm-up --quiet
    python -m pytest --quiet --numprocesses auto --dist worksteal "$@"
    echo "passed: $name" >>"$scratch/passed"
)
for python in ${PYTHONS:-python3}; do
    for versions in lowest-direct highest; do
        for file in "$wheel" "$sdist"; do
            try "$file" "$python" "$versions" "$@"
        done
    done
done

say "Done"
cat passed
rm -rf "$project/dist"
mkdir "$project/dist"
cp "$wheel" "$sdist" recipe.yaml "$project/dist"
echo "The recipe for conda is dist/recipe.yaml. Upload the release by:"
echo "    twine upload dist/ooc_fw-*"
