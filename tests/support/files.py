"""Small HDF5 files, written without the converter.

This second, independent implementation of the layout shows mistakes that reader and converter
share.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ooc_fw.data.rows import AnyArray, Float32Array


def write_dense(path: Path, X: Float32Array, y: AnyArray, **storage: Any) -> Path:
    """Write a converted file with dense rows and labels, and return its path.

    /row says that the rows came in reverse order. `storage` has chunks and compression, as for
    h5py's ``create_dataset``.
    """
    return _write(path, X, y, lambda file: file.create_dataset("X", data=X, **storage))


def write_sparse(path: Path, X: Float32Array, y: AnyArray, **storage: Any) -> Path:
    """Write a converted file with sparse rows, as `write_dense` does."""
    return _write(path, X, y, lambda file: write_csr_group(file.create_group("X"), X, **storage))


def write_csr_group(group: Any, X: AnyArray, **storage: Any) -> None:
    """Fill an HDF5 group with the sparse form of a dense table."""
    row_of, columns = np.nonzero(X)
    group.create_dataset("data", data=X[row_of, columns], **storage)
    group.create_dataset("indices", data=columns.astype(np.int32), **storage)
    group["indptr"] = np.searchsorted(row_of, np.arange(len(X) + 1)).astype(np.int64)
    group.attrs["shape"] = X.shape
    group.attrs["encoding-type"] = "csr_matrix"
    group.attrs["encoding-version"] = "0.1.0"


def _write(path: Path, X: Float32Array, y: AnyArray, write_rows: Callable[[Any], object]) -> Path:
    exact = X.astype(np.float64)
    with h5py.File(path, "w") as file:
        write_rows(file)
        file.attrs.update(
            format_version=1,
            n_rows=X.shape[0],
            n_features=X.shape[1],
            shuffled=True,
            scaling="none",
            log1p=False,
            mean_square_norm=float(np.mean(np.sum(exact**2, axis=1))),
            complete=1,
        )
        file["mean"] = exact.mean(axis=0)
        file["y"] = y
        file["row"] = np.arange(len(X))[::-1].astype(np.int64)
        for name in ("X", "X/data", "X/indices", "X/indptr", "y", "row", "mean"):
            if isinstance(file.get(name), h5py.Dataset):
                sums = file.create_dataset(f"checksums/{name}", data=[zlib.crc32(file[name][...])])
                sums.attrs["length"] = len(file[name])
    return path
