"""Products of a few rows and of many, from one workspace."""

import numpy as np
import pytest

from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.functions import Linear, Method
from ooc_fw.kernels.products import Workspace


def products(workspace, rows, vertices):
    dtype, nothing = rows.dtype.type, np.zeros(max(len(rows), len(vertices)), rows.dtype)
    x, z = (Operand(own, nothing[: len(own)], nothing, Method(dtype)) for own in (rows, vertices))
    ((_, _, tile),) = workspace.products(x, z, len(rows))
    return tile.copy()


@pytest.mark.parametrize(("dtype", "unit"), [(np.float32, 2**-24), (np.float64, 2**-53)])
def test_dense_products_of_every_shape_err_by_no_more_than_any_order_of_summation(dtype, unit):
    rng, workspace = np.random.default_rng(0), Workspace(Linear(), None)
    for n, m, k in ((1, 1, 1), (1, 512, 3), (7, 200, 22), (16, 1, 130), (300, 77, 500)):
        X, Z = (rng.normal(size=(size, k)).astype(dtype) for size in (n, m))
        exact = X.astype(np.longdouble) @ Z.T.astype(np.longdouble)
        largest = np.linalg.norm(X, axis=1)[:, None] * np.linalg.norm(Z, axis=1)
        assert (np.abs(products(workspace, X, Z) - exact) <= (k + 1) * unit * largest).all()
