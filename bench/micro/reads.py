"""Milliseconds to read a sample of rows from a converted file: one slice, several, scattered."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from bench.micro.parser import write_text
from bench.micro.timing import best_seconds
from bench.report import table
from ooc_fw.convert.convert import convert
from ooc_fw.data.opening import open_source
from ooc_fw.data.views import SliceSampler

SAMPLE = 194
TEXT_BYTES = 32 << 20


def read_times(path: Path) -> tuple[float, float, float]:
    """Seconds for `SAMPLE` rows, warm: as one slice, as the sampler draws, scattered by h5py."""
    rng = np.random.default_rng(0)
    with open_source(path) as source, h5py.File(path) as file:
        n = source.n_rows
        sampler = SliceSampler(n)
        start = int(rng.integers(n - SAMPLE))
        drawn = sampler.sample(SAMPLE, rng)
        scattered = np.sort(rng.choice(n, SAMPLE, replace=False))
        return (
            best_seconds(lambda: source.read(start, start + SAMPLE)),
            best_seconds(lambda: source.take(drawn)),
            best_seconds(lambda: file["X"][scattered]),
        )


def tables(size: int = TEXT_BYTES) -> Iterator[str]:
    """One row: a dense file."""
    with tempfile.TemporaryDirectory() as folder:
        text, path = Path(folder) / "dense.txt", Path(folder) / "dense.h5"
        write_text(text, 22, 22, size)
        convert([text], path)
        times = read_times(path)
    yield f"## Milliseconds to read {SAMPLE} rows of a dense file, file cache warm"
    heads = ["one slice", "as sampled", "scattered, h5py"]
    yield table(heads, [[f"{1e3 * seconds:.2f}" for seconds in times]])
