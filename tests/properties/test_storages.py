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
COMMON = {"lmo": "sampled", "C": 2.0, "seed": 3}
TRAINING = [
    TrainOptions(method="corrective", C=2.0, tol=1e-5, seed=3),
    TrainOptions(method="cvm", tol=1e-4, max_iter=60, **COMMON),
    # Fixed courses: equal objectives mean equal draws.
    TrainOptions(method="swap2", tol=1e-9, max_iter=120, certify=False, **COMMON),
    TrainOptions(method="partan", tol=1e-9, max_iter=60, certify=False, **COMMON),
]


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
    return {
        "array": (X, y),
        "float64 array": (X.astype(np.float64), y),
        "memory map": (np.load(folder / "X.npy", mmap_mode="r"), y),
        "npy": (folder / "X.npy", folder / "y.npy"),
        "chunks": (write_dense(folder / "37.h5", X, y, chunks=(37, N_FEATURES)), None),
        "csr": (write_sparse(folder / "csr.h5", X, y, chunks=(7,)), None),
    }


def train(storage, y, options):
    data, labels = storage
    with open_source(data, labels) as source:
        return solve(source, y.astype(np.int8), make_kernel("rbf", gamma=0.5), options)


@pytest.mark.parametrize("options", grid(TRAINING, quick=1), ids=lambda options: options.method)
def test_storage_and_chunks_make_no_difference(options, storages, table):
    _, y = table
    expected = train(storages["array"], y, options)
    for name, storage in storages.items():
        solution = train(storage, y, options)
        gaps = 1e-6
        if options.certify:
            gaps += solution.certified_gap + expected.certified_gap
        assert solution.objective == pytest.approx(expected.objective, rel=gaps), name
