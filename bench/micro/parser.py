"""Megabytes of LIBSVM text a second: parsing alone, and the whole conversion."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.micro.timing import best_seconds
from bench.report import table
from ooc_fw.convert.convert import convert
from ooc_fw.convert.text import iter_libsvm

TEXT_BYTES = 64 << 20
REPEATS = 3


def write_text(path: Path, n_features: int, stored: int, size: int) -> None:
    """Lines with `stored` of `n_features` values, at least `size` bytes of them."""
    rng = np.random.default_rng(0)
    lines = []
    for label in (-1, 1) * 500:
        columns = np.sort(rng.permutation(n_features)[:stored]) + 1
        cells = " ".join(f"{j}:{rng.random():.6g}" for j in columns)
        lines.append(f"{label} {cells}\n")
    block = "".join(lines).encode()
    with path.open("wb") as out:
        for _ in range(-(-size // len(block))):
            out.write(block)


def parse_rate(path: Path) -> float:
    """Bytes a second of `iter_libsvm`."""
    return path.stat().st_size / best_seconds(lambda: list(map(len, iter_libsvm(path))), REPEATS)


def convert_rate(path: Path) -> float:
    """Bytes a second of `convert`, shuffle included."""
    target = path.with_suffix(".h5")
    return path.stat().st_size / best_seconds(lambda: convert([path], target), REPEATS)


def tables(size: int = TEXT_BYTES) -> Iterator[str]:
    """One row for each kind of text."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, n_features, stored in (("dense", 22, 22), ("sparse", 300, 12)):
            path = Path(folder) / f"{name}.txt"
            write_text(path, n_features, stored, size)
            rates = parse_rate(path), convert_rate(path)
            rows.append([f"{name}, {stored} of {n_features}", *[f"{r / 1e6:.0f}" for r in rates]])
    yield "## MB of LIBSVM text a second, all threads"
    yield table(["text", "parsed", "converted"], rows)
