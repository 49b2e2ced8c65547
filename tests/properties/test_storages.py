"""The same rows, wherever they are kept and however they are chunked, give the same solution."""

import numpy as np
import pytest

from ooc_fw.data.opening import open_source
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.options import TrainOptions
from ooc_fw.solver.loop import solve
from tests.support.files import write_dense, write_sparse
from tests.support.methods import grid

N_ROWS, N_FEATURES = 700, 6
TRAINING = {
    "corrective": TrainOptions(method="corrective", C=2.0, tol=1e-5, seed=3),
    "cvm": TrainOptions(method="cvm", lmo="sampled", C=2.0, tol=1e-4, seed=3, max_iter=60),
    # A fixed course: equal objectives mean equal draws.
    "swap2": TrainOptions(
        method="swap2", lmo="sampled", C=2.0, tol=1e-9, seed=3, max_iter=120, certify=False
    ),
    "partan": TrainOptions(
        method="partan", lmo="sampled", C=2.0, tol=1e-9, seed=3, max_iter=60, certify=False
    ),
}


@pytest.fixture(scope="module")
def table():
    """Rows in random order; some zeros, so that sparse storage is not a mere formality."""
    rng = np.random.default_rng(11)
    X = rng.normal(size=(N_ROWS, N_FEATURES)) * (rng.random((N_ROWS, N_FEATURES)) < 0.6)
    y = np.where(X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=N_ROWS) > 0, 1.0, -1.0)
    return X.astype(np.float32), y


@pytest.fixture(scope="module")
def storages(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("storages")
    X, y = table
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    mapped = np.load(folder / "X.npy", mmap_mode="r")
    chunks = {"one row": 1, "odd": 37, "all rows": N_ROWS}
    dense = {
        f"dense, {name}": (write_dense(folder / f"{n}.h5", X, y, chunks=(n, N_FEATURES)), None)
        for name, n in chunks.items()
    }
    return dense | {
        "csr": (write_sparse(folder / "csr.h5", X, y), None),
        "csr, small chunks": (write_sparse(folder / "csr7.h5", X, y, chunks=(7,)), None),
        "npy": (folder / "X.npy", folder / "y.npy"),
        "memory map": (mapped, y),
        "array": (X, y),
        "float64 array": (X.astype(np.float64), y),
    }


def train(storage, y, options):
    data, labels = storage
    with open_source(data, labels) as source:
        return solve(source, y.astype(np.int8), make_kernel("rbf", gamma=0.5), options)


@pytest.mark.parametrize("method", grid([*TRAINING], quick=1))
def test_storage_and_chunks_make_no_difference(method, storages, table):
    _, y = table
    options = TRAINING[method]
    expected = train(storages["array"], y, options)
    for name, storage in storages.items():
        solution = train(storage, y, options)
        gaps = 1e-6
        if options.certify:
            gaps += solution.certified_gap + expected.certified_gap
        assert solution.objective == pytest.approx(expected.objective, rel=gaps), name
