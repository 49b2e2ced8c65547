"""The import rule: disk yields rows, kernels turn rows into numbers, the core sees only numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ooc_fw

PACKAGE = Path(ooc_fw.__file__).parent

# Records and helpers without opinions: anyone may import them.
LEAVES = {
    "attributes",
    "errors",
    "rows",
    "state",
    "files",
    "scaling",
    "memory",
    "growing",
    "scratch",
    "screening",
    "interrupt",
    "deadline",
    "pairs",
    "penalties",
    "calibration",
    "blas",
    "labels",
}

# Module or folder of ooc_fw -> what it may import of ooc_fw, leaves and itself apart.
ALLOWED = {
    "attributes": set(),
    "errors": set(),
    "rows": {"_core"},
    "state": set(),
    "files": set(),
    "scaling": {"_core"},
    "labels": set(),
    "ranges": {"_core"},
    "memory": set(),
    "blas": set(),
    "growing": set(),
    "scratch": set(),
    "screening": set(),
    "interrupt": set(),
    "deadline": set(),
    "checkpoint": {"sources"},
    "distinct": {"_core"},
    "_core": set(),
    "sampling": set(),
    "problem": set(),
    "progress": set(),
    "runlog": set(),
    "figures": {"runlog"},
    "report": {"runlog", "figures"},
    "parallel": set(),
    "sources": set(),
    "kernels": {"_core"},
    "products": set(),
    "engine": {"kernels", "products", "_core"},
    "decisions": {"engine", "kernels"},
    "stats": {"ranges", "sources", "parallel", "_core"},
    "prep": {"ranges", "sources", "stats", "distinct", "_core"},
    "kernel_rows": {"engine", "_core"},
    "newton": {"problem"},
    "active_set": {"kernels", "engine", "kernel_rows", "newton", "problem", "_core"},
    "steps": {"active_set", "_core"},
    "lmo": {
        "sampling",
        "sources",
        "kernels",
        "engine",
        "active_set",
        "problem",
        "steps",
        "distinct",
        "_core",
    },
    "pairs": set(),
    "penalties": set(),
    "calibration": set(),
    "held_out": {"model", "one_versus_one", "sources", "kernels"},
    "one_versus_one": {"solver", "sources", "prep", "kernels", "checkpoint"},
    "kept": {"active_set", "engine", "sources"},
    "model": {"kernels", "engine", "decisions", "problem", "sources", "parallel"},
    "certificate": {
        "kernels",
        "engine",
        "decisions",
        "problem",
        "sources",
        "distinct",
        "parallel",
        "_core",
    },
    "solver": {
        "steps",
        "lmo",
        "active_set",
        "problem",
        "certificate",
        "checkpoint",
        "kept",
        "sources",
        "sampling",
        "kernels",
        "kernel_rows",
        "engine",
        "parallel",
    },
    "tuning": {
        "figures",
        "solver",
        "one_versus_one",
        "pairs",
        "model",
        "stats",
        "sources",
        "kernels",
    },
    "streaming": {
        "steps",
        "active_set",
        "problem",
        "sources",
        "kernels",
        "kernel_rows",
        "engine",
        "distinct",
    },
    "estimators": {
        "held_out",
        "one_versus_one",
        "solver",
        "streaming",
        "model",
        "stats",
        "sources",
        "kernels",
        "progress",
        "parallel",
    },
}
EVERYTHING_BUT_ESTIMATORS = set(ALLOWED) - {"estimators"}
ALLOWED["cli"] = EVERYTHING_BUT_ESTIMATORS
ALLOWED["testing"] = EVERYTHING_BUT_ESTIMATORS
ALLOWED["__init__"] = set(ALLOWED)

# Packages that are slow to import -> where they may be imported.
CONFINED = {
    "numba": {"_core/loading.py"},
    "dask": {"parallel.py", "sources/dask_array.py"},
    "distributed": {"parallel.py"},
    "sklearn": {"estimators.py"},
    "scipy": set(),
    "matplotlib": {"figures.py", "tuning.py", "cli/evaluate.py"},
    "pyarrow": {"prep"},
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
    allowed = ALLOWED[own] | LEAVES | {own}
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
    assert {layer(path) for path in modules()} <= set(ALLOWED)
