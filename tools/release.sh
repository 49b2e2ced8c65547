#!/bin/sh
# Build the files of a release from the last commit, try them, and leave them in dist/.
#
#     sh tools/release.sh                                   with python3
#     PYTHONS="python3.11 python3.14" sh tools/release.sh   with each of these
#
# Each interpreter gets four empty environments: for the source distribution and for the wheel, with
# the lowest and with the newest versions of the dependencies. In each, the installed package runs
# the demo. Both have to install the same files, which run the fast tests as those of the wheel.
# Arguments go to pytest in place of --fast.
set -eu
project=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM HUP
[ $# -gt 0 ] || set -- --fast
unset PYTHONPATH  # or the package of a checkout might be tried
say() { printf '\n== %s\n' "$*"; }

say "Building the last commit"
cd "$scratch"
"${PYTHON:-python3}" -m venv tools
tools/bin/pip install --quiet build twine uv py-rattler-build
export UV_CACHE_DIR="${UV_CACHE_DIR:-$scratch/uv}"
mkdir source tree
git -C "$project" archive HEAD | tar x -C source
tools/bin/python source/tools/package.py source
tools/bin/python -m build --outdir built source >build.log || { cat build.log; exit 1; }
tools/bin/twine check --strict built/*
wheel=$(echo built/*.whl)
sdist=$(echo built/*.tar.gz)
tar xzf "$sdist" --strip-components 1 -C tree  # its tests, which run beside the installed package
rm -r tree/ooc_fw

say "Filling in the recipe"
tools/bin/python tree/tools/recipe.py "$sdist" >recipe.yaml

# Install the file $1 for the interpreter $2, with the $3 versions of the dependencies.
install() {
    from_source=
    [ "$1" = "$wheel" ] || from_source="--no-binary ooc-fw"
    rm -rf venv demo
    tools/bin/uv venv --quiet --no-project --python "$(command -v "$2")" venv
    tools/bin/uv pip install --quiet --python venv --resolution "$3" --only-binary :all: \
        $from_source "ooc-fw[test] @ file://$scratch/$1"
    tools/bin/uv pip check --quiet --python venv
    package=$(venv/bin/python -c 'import ooc_fw; print(ooc_fw.__path__[0])')
    diff -r --exclude __pycache__ unpacked/ooc_fw "$package"
}

# Run the fast tests beside the installed package, with the $1 versions and arguments for pytest.
# Old libraries call what newer ones beneath them deprecate: such warnings are no errors with the
# lowest versions. The testing tools of scikit-learn 1.6 need SCIPY_ARRAY_API beside anndata.
run_tests() (
    versions=$1
    shift
    ln -sfn "$package" tree/ooc_fw
    cd tree
    if [ "$versions" = lowest-direct ]; then
        export SCIPY_ARRAY_API=1
        set -- -W ignore::DeprecationWarning "$@"
    fi
    "$scratch/venv/bin/python" -m pytest --quiet --numprocesses auto --dist worksteal "$@"
)

tools/bin/python -m zipfile -e "$wheel" unpacked
export NUMBA_CACHE_DIR="$scratch/compiled"
for python in ${PYTHONS:-python3}; do
    for versions in lowest-direct highest; do
        for file in "$sdist" "$wheel"; do
            name="$("$python" --version), $versions versions: $(basename "$file")"
            say "$name"
            install "$file" "$python" "$versions"
            venv/bin/ooc-fw demo demo >demo.log 2>&1 || { cat demo.log; exit 1; }
            echo "$name: installed, demo" >>passed
        done
        venv/bin/ooc-fw warm-up --quiet
        run_tests "$versions" "$@"
        echo "$name: fast tests" >>passed
    done
done

say "Done"
cat passed
rm -rf "$project/dist"
mkdir "$project/dist"
cp "$wheel" "$sdist" recipe.yaml "$project/dist"
echo "The recipe for conda is dist/recipe.yaml. Upload the release by:"
echo "    twine upload dist/ooc_fw-*"
