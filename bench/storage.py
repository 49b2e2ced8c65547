"""Files of rows and labels, read into RAM by h5py alone.

For peers, who must not pay for importing ooc_fw, and for the brute force, which must not share code
with what it checks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import scipy.sparse


def read_labelled(
    path: Path | str, dtype: npt.DTypeLike, storage: Any = None
) -> tuple[Any, npt.NDArray[np.float64]]:
    """Rows and labels of a converted file, in the order stored.

    Rows are an ndarray or a CSR matrix, as the file has them or as `storage` says: "dense" or
    "sparse".
    """
    with h5py.File(path) as file:
        node, labels = file["X"], file["y"][:]
        if isinstance(node, h5py.Dataset):
            rows = node.astype(dtype)[:]
            return scipy.sparse.csr_matrix(rows) if storage == "sparse" else rows, labels
        parts = node["data"].astype(dtype)[:], node["indices"][:], node["indptr"][:]
        rows = scipy.sparse.csr_matrix(parts, shape=tuple(node.attrs["shape"]))
    if rows.nnz < np.iinfo(np.int32).max:  # some peers take no wider indices
        rows.indptr = rows.indptr.astype(np.int32)
    return rows.toarray() if storage == "dense" else rows, labels
