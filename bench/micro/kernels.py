"""Kernel values a second and core: the sweep against what BLAS and an exponential allow.

The limit is measured on the spot: 512 x 512 tiles by `numpy.matmul` on one thread, then
`numpy.exp` in place, as little as a kernel value can cost in numpy. The epilogue of the sweep is
compiled and its exponential is the faster one, so that a share above 100 % is possible; below 70 %
something is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse
from threadpoolctl import threadpool_limits

from bench.micro.timing import best_seconds
from bench.report import table
from ooc_fw.certificate.sweep import Search, SupportWeights, certify
from ooc_fw.data.opening import open_source
from ooc_fw.data.rows import CSRRows, Rows, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.problem import BinaryProblem

TILE = 512
VERTICES = 4096
SWEEP_ROWS = 32_768
STORED = 12  # values of a sparse row, as in w7a
SPARSE_FEATURES = 300


@dataclass(frozen=True)
class Case:
    """Rows of one shape."""

    name: str
    rows: Rows

    def vertices(self) -> Rows:
        """The first rows, as support vectors."""
        return take_rows(self.rows, np.arange(VERTICES))


def cases(n_rows: int = SWEEP_ROWS) -> Iterator[Case]:
    """Dense rows of three widths and sparse ones."""
    rng = np.random.default_rng(0)
    for n_features in (22, 127, 300):
        values = rng.normal(size=(n_rows, n_features)).astype(np.float32)
        yield Case(f"dense, {n_features} features", values)
    columns = np.argsort(rng.random((n_rows, SPARSE_FEATURES)), axis=1)[:, :STORED]
    indices = np.sort(columns, axis=1).astype(np.int32).ravel()
    indptr = np.arange(n_rows + 1, dtype=np.int64) * STORED
    data = np.ones(n_rows * STORED, dtype=np.float32)
    yield Case(
        f"sparse, {STORED} of {SPARSE_FEATURES} stored",
        CSRRows(data, indices, indptr, SPARSE_FEATURES),
    )


def limit_rate(case: Case) -> float:
    """Values a second of the product and `numpy.exp`, on one thread."""
    vertices = case.vertices()
    if isinstance(vertices, CSRRows):
        parts = vertices.data, vertices.indices, vertices.indptr
        matrix = scipy.sparse.csr_matrix(parts, shape=vertices.shape)
        return _rate(lambda: _sparse_values(matrix), VERTICES**2)
    vertices = vertices / vertices.shape[1]  # exponents near 0, as a kernel's are
    buffer = np.empty((TILE, TILE), dtype=np.float32)
    with threadpool_limits(1):
        return _rate(lambda: _dense_values(vertices, buffer), VERTICES**2)


def _dense_values(X: npt.NDArray[np.float32], buffer: npt.NDArray[np.float32]) -> None:
    for i in range(0, len(X), TILE):
        for j in range(0, len(X), TILE):
            np.matmul(X[i : i + TILE], X[j : j + TILE].T, out=buffer)
            np.exp(buffer, out=buffer)


def _sparse_values(X: scipy.sparse.csr_matrix) -> None:
    transposed = X.T.tocsr()
    for i in range(0, X.shape[0], TILE):
        block = (X[i : i + TILE] @ transposed).toarray()
        np.exp(block, out=block)


def sum_rate(case: Case) -> float:
    """Values a second of `Engine.weighted_sum`, the fused product of kernel and weights."""
    weights = np.full(VERTICES, 1 / VERTICES)
    with _engine(case) as engine:
        x, z = engine.prepare(case.rows), engine.prepare(case.vertices())
        return _rate(lambda: engine.weighted_sum(x, z, weights), len(x) * len(z))


def sweep_rate(case: Case) -> float:
    """Values a second of a whole certificate: rounding bounds and float64 checks included."""
    labels = _labels(case.rows)
    rows = np.arange(VERTICES)
    source = _source(case.rows, labels)
    weights = SupportWeights(case.vertices(), rows, np.full(VERTICES, 1 / VERTICES), 1.0)
    with source, _engine(case) as engine:
        problem = BinaryProblem(source, labels, engine.kernel)

        def sweep() -> None:
            certify(problem, engine, weights, Search(tol=1e-3))

        return _rate(sweep, len(case.rows) * VERTICES)


def _rate(action: Callable[[], object], n_values: int) -> float:
    return n_values / best_seconds(action)


def _engine(case: Case) -> Engine:
    gamma = 1 / (2 * STORED if isinstance(case.rows, CSRRows) else 4 * case.rows.shape[1])
    return Engine(make_kernel("rbf", gamma=gamma), threads=1)


def _labels(rows: Rows) -> npt.NDArray[np.int8]:
    """Sign of a sum over half of the columns, so that a kernel can tell the classes apart."""
    values = rows.toarray() if isinstance(rows, CSRRows) else rows
    half = values[:, : values.shape[1] // 2].sum(axis=1)
    return np.where(half > np.median(half), 1, -1).astype(np.int8)


def _source(rows: Rows, labels: npt.NDArray[np.int8]) -> RowSource:
    if isinstance(rows, CSRRows):
        matrix = scipy.sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=rows.shape)
        return open_source(matrix, labels)
    return open_source(rows, labels)


def tables() -> Iterator[str]:
    """One row for each shape."""
    rows = []
    for case in cases():
        limit, fused, sweep = limit_rate(case), sum_rate(case), sweep_rate(case)
        rows.append(
            [
                case.name,
                f"{limit / 1e6:.0f}",
                f"{fused / 1e6:.0f}",
                f"{100 * fused / limit:.0f} %",
                f"{sweep / 1e6:.0f}",
                f"{100 * sweep / limit:.0f} %",
            ]
        )
    yield (
        f"## Million kernel values a second, one core, {VERTICES} support vectors\n\n"
        "Limit: BLAS product and numpy.exp (for sparse rows scipy's product)."
    )
    yield table(["rows", "limit", "fused sum", "share", "certificate", "share"], rows)
