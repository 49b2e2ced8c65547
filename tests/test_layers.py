"""The import rule: disk yields rows, kernels turn rows into numbers, the core sees only numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ooc_fw

PACKAGE = Path(ooc_fw.__file__).parent

# Packages and modules of ooc_fw, from the top down: each may import those below it.
LAYERS = (
    "__init__",
    "__main__",
    "estimators",
    "cli",
    "testing",
    "training",
    "report",
    "model",
    "landmarks",
    "solver",
    "convert",
    "certificate",
    "problem",
    "kernels",
    "data",
    "_core",
    "options",
    "system",
)

# Packages that are slow to import -> where they may be imported.
CONFINED = {
    "numba": {"_core/loading.py", "_core/pairwise.py"},
    "dask": {"data/parallel.py"},
    "distributed": {"data/parallel.py"},
    "sklearn": {"estimators"},
    "scipy": {"landmarks", "kernels/functions.py"},
    "matplotlib": {"report/figures.py"},
    "pyarrow": {"convert"},
    "onnx": {"model/onnx.py"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
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


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_lower_layers(path):
    own = layer(path)
    allowed = LAYERS[LAYERS.index(own) :]
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "ooc_fw" and len(parts) > 1:
            assert parts[1] in allowed, f"{own} must not import {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_slow_packages_stay_where_they_belong(path):
    place = str(path.relative_to(PACKAGE))
    for name in imports(path):
        package = name.partition(".")[0]
        if package in CONFINED:
            homes = CONFINED[package]
            assert place in homes or layer(path) in homes, f"{place} must not import {package}"


def test_every_layer_is_listed():
    assert {layer(path) for path in modules()} <= set(LAYERS)
