"""The import rule: disk yields rows, kernels turn rows into numbers, the core sees only numbers."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import ooc_fw

PACKAGE = Path(ooc_fw.__file__).parent

# Packages and modules of ooc_fw, from the top down: each may import those below it.
LAYERS = (
    "__init__",
    "__main__",
    "estimators",
    "cli",
    "datafiles",
    "training",
    "report",
    "model",
    "landmarks",
    "solver",
    "conversion",
    "certificate",
    "problem",
    "kernels",
    "data",
    "_core",
    "options",
    "system",
)

# Packages that are slow to import, or that some systems lack -> where they may be imported.
CONFINED = {
    "numba": {"_core/loading.py"},
    "dask": {"data/parallel.py"},
    "distributed": {"data/parallel.py"},
    "sklearn": {"estimators", "report/figures.py", "model/evaluation.py"},
    "scipy": {"landmarks", "kernels", "data/rows.py", "model/machines.py"},
    "matplotlib": {"report/figures.py"},
    "pyarrow": {"conversion"},
    "onnx": {"model/onnx.py"},
    "fcntl": {"system"},
    "resource": {"system"},
    "psutil": {"system"},
}


def imported_by(path: Path) -> Iterator[str]:
    """Dotted names of all modules imported anywhere in a file, the late ones included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            yield node.module
            if node.module == "ooc_fw":
                yield from (f"ooc_fw.{alias.name}" for alias in node.names)


def layer(path: Path) -> str:
    """Top-level module or folder of ooc_fw that a file belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


@cache
def imports() -> list[tuple[Path, str]]:
    return [(path, name) for path in PACKAGE.rglob("*.py") for name in imported_by(path)]


def test_imports_only_lower_layers():
    assert {layer(path) for path in PACKAGE.rglob("*.py")} <= set(LAYERS)
    for path, name in imports():
        package, _, below = name.partition(".")
        if package == "ooc_fw" and below:
            allowed = LAYERS[LAYERS.index(layer(path)) :]
            assert below.partition(".")[0] in allowed, f"{path} must not import {name}"


def test_such_packages_stay_where_they_belong():
    for path, name in imports():
        package = name.partition(".")[0]
        places = {str(path.relative_to(PACKAGE)), layer(path)}
        homes = CONFINED.get(package, places)
        assert places & homes, f"{path} must not import {package}"
