"""Conversions in tests: files to convert, and what a converted file holds."""

from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import feather, parquet

from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling

Y = {"label": "y"}


class Contents(NamedTuple):
    """Arrays and attributes; rows are dense."""

    X: Any
    y: Any
    row: Any
    mean: Any
    attrs: dict[str, Any]
    scaling: Scaling | None

    @property
    def columns(self) -> list[str]:
        """Names of the features."""
        return [name.decode() for name in self.attrs["columns"]]


def read(path: Path) -> Contents:
    with h5py.File(path) as file:
        X = file["X"]
        if isinstance(X, h5py.Group):
            n_rows, n_features = X.attrs["shape"]
            rows = CSRRows(*(X[name][...] for name in ("data", "indices", "indptr")), n_features)
            assert len(rows) == n_rows
            assert (rows.data != 0).all()
            X = rows.toarray()
        arrays = [None if name not in file else file[name][...] for name in ("y", "row", "mean")]
        return Contents(X[...], *arrays, dict(file.attrs), Scaling.read(file))


def write_table(path: Path, columns: Any) -> Path:
    """Write a table as CSV, Parquet, Arrow or Feather, by the name of the file."""
    if path.suffix == ".csv":
        pd.DataFrame(columns).to_csv(path, index=False)
        return path
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=90)
    else:
        feather.write_feather(table, path, compression="uncompressed", chunksize=120)
    return path


def write_npy(path: Path, array: Any) -> Path:
    np.save(path, array)
    return path
