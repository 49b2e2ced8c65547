"""Classifiers a second of pairs of small classes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bench.report import table
from ooc_fw.data.sources import ArraySource
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import ClassificationProblem
from ooc_fw.system.threads import cpu_count
from ooc_fw.training.fit import fit

SHAPES = ((60, 60), (12, 600), (6, 1200))  # classes, and rows of each
FEATURES = 16


def classifiers_per_second(n_classes: int, n_rows: int, threads: int) -> float:
    """Rate of training all pairs of classes, each a normal cloud around a centre of its own."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(n_classes), n_rows)
    centres = rng.normal(size=(n_classes, FEATURES))
    X = (centres[codes] + rng.normal(size=(len(codes), FEATURES))).astype(np.float32)
    problem = ClassificationProblem(
        ArraySource(X), codes, make_kernel("rbf", gamma=1 / (2 * FEATURES))
    )
    options = TrainOptions(C=10.0, threads=threads)
    best = np.inf
    for _ in range(3):
        started = time.perf_counter()
        fit(problem, options)
        best = min(best, time.perf_counter() - started)
    return n_classes * (n_classes - 1) / 2 / best


def tables() -> Iterator[str]:
    """One row for each size of the classes."""
    counts = sorted({1, cpu_count()})
    rows = [
        [n, size, *(f"{classifiers_per_second(n, size, threads):.0f}" for threads in counts)]
        for n, size in SHAPES
    ]
    yield "## Binary classifiers a second, trained and certified, of small classes"
    yield table(["classes", "rows of each", *(f"{n} threads" for n in counts)], rows)
