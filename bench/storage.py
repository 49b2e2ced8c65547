"""Converted files, read by h5py alone.

For peers, who must not pay for importing ooc_fw, and for the brute force, which must not share code
with what it checks. Reads everything into RAM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import scipy.sparse


def read_rows(node: h5py.Dataset | h5py.Group, dtype: npt.DTypeLike) -> Any:
    """Rows as an ndarray, or as a CSR matrix where the file holds a CSR group."""
    if isinstance(node, h5py.Dataset):
        return node.astype(dtype)[:]
    parts = node["data"].astype(dtype)[:], node["indices"][:], node["indptr"][:]
    matrix = scipy.sparse.csr_matrix(parts, shape=tuple(node.attrs["shape"]))
    if matrix.nnz < np.iinfo(np.int32).max:  # some peers take no wider indices
        matrix.indptr = matrix.indptr.astype(np.int32)
    return matrix


def read_labelled(path: Path | str, dtype: npt.DTypeLike) -> tuple[Any, npt.NDArray[np.float64]]:
    """Rows and labels of a converted file, in the order stored."""
    with h5py.File(path) as file:
        return read_rows(file["X"], dtype), file["y"][:]


def store_as(rows: Any, storage: str) -> Any:
    """Rows as a ``"dense"`` or ``"sparse"`` matrix."""
    sparse = scipy.sparse.issparse(rows)
    if storage == "dense":
        return rows.toarray() if sparse else rows
    return rows if sparse else scipy.sparse.csr_matrix(rows)
