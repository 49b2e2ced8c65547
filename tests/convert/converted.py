"""What a converted file holds."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py

from ooc_fw.convert.convert import convert
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling
from ooc_fw.options import ConvertOptions


class Contents(NamedTuple):
    """Arrays and attributes; rows are dense."""

    X: Any
    y: Any
    row: Any
    mean: Any
    attrs: dict[str, Any]
    scaling: Scaling | None


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


def convert_files(inputs: Any, output: Any, *, progress: Any = None, **options: Any) -> Any:
    """Convert tables or text, with fields of `ConvertOptions`, and return the report."""
    return convert(inputs, output, ConvertOptions(**options), progress=progress)


convert_libsvm = partial(convert_files, format="libsvm")
