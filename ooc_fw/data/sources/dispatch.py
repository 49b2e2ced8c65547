"""Open rows of any kind: `open_source` looks at what it is given and picks the source."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ooc_fw.data.attributes import as_text
from ooc_fw.data.formats import detect_format, format_of, is_store, read_head
from ooc_fw.data.remote import is_url
from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.data.sources.annotated import (
    Labels,
    Missing,
    check_missing,
    is_annotated,
    labels_of_annotated,
    names_of_annotated,
    rows_of_annotated,
    without_missing,
)
from ooc_fw.data.sources.base import ArraySource, CSRSource, RowSource, Sliceable
from ooc_fw.data.sources.chunked import is_chunked, open_chunked
from ooc_fw.data.sources.flatfile import find_in_file, open_npy, open_table
from ooc_fw.data.sources.hdf5 import open_group, open_hdf5, open_labels, open_rows
from ooc_fw.data.sources.opening import check_regular, file_name, structure_errors
from ooc_fw.data.sources.views import SubsetSource, complement, draw_parts
from ooc_fw.data.sources.zarrs import is_group, open_root, open_store
from ooc_fw.system.errors import DamageError, InputError


def open_source(
    data: Any,
    labels: Any = None,
    *,
    x_name: str = "X",
    y_name: str = "y",
    missing_labels: Missing = "refuse",
) -> RowSource:
    """Open labelled rows, wherever they are kept, without loading them.

    Parameters
    ----------
    data : path, array, h5py object or RowSource
        See the table in `ooc_fw.data.sources`. A `RowSource` is returned as it is.
    labels : path of a .npy file, h5py.Dataset, array or name, optional
        One label per row; replaces those in the file. A name is that of labels in `data`, as
        `y_name` is.
    x_name, y_name : str
        Names of rows and labels in an HDF5 file, a zarr store or an AnnData object: paths such as
        "layers/counts", "obsm/X_pca" and "obs/cell_type", where "obs/" may be left out.
    missing_labels : {"refuse", "drop"}
        Whether rows without a label in such a column are an error, or are left out.

    Returns
    -------
    RowSource
        Close it, or use it in a ``with`` statement.

    Examples
    --------
    >>> import numpy as np
    >>> with open_source(np.eye(3), labels=[1, -1, 1]) as source:
    ...     source.n_rows, source.read(0, 1)
    (3, array([[1., 0., 0.]], dtype=float32))
    """
    if isinstance(data, RowSource):
        if labels is not None:
            raise InputError(f"{data.name} is open already; give the labels where it is opened")
        return data
    if _is_name(labels) and not is_annotated(data):
        y_name, labels = labels, None
    if is_annotated(data):
        return _open_annotated(data, labels, x_name, y_name, missing_labels)
    found = None if labels is None else _open_labels(labels)
    if isinstance(data, (str, os.PathLike)):
        path = os.fspath(data)
        own = y_name if found is None else None
        source = _open_path(path, found, x_name, own, missing_labels)
        place = path if is_url(path) else os.path.abspath(path)
        source.reopen_by(
            _open_path, (place, None, x_name, own, missing_labels), with_labels=found is None
        )
        return source
    names: dict[str, Any] = {
        "x_name": x_name,
        "y_name": y_name,
        "missing_labels": missing_labels,
    }
    if isinstance(data, h5py.Group | h5py.Dataset):
        with structure_errors(file_name(data)):
            if isinstance(data, h5py.Dataset):
                return open_rows(data, found)
            return open_group(data, found, **names)
    if is_group(data):
        return open_root(data, found, name=str(data.store), **names)
    if hasattr(data, "tocsr"):
        return CSRSource(data.tocsr(), found)
    if is_chunked(data):
        return open_chunked(data, found)
    columns = names_of_frame(data)
    array = _as_array(data, "array")
    if columns is not None and array.dtype.kind == "O":  # columns of several types
        with suppress(AttributeError, TypeError, ValueError):  # words are refused below
            array = np.asarray(data.astype(np.float64))
    table = find_in_file(array) if array.size and array.ndim == 2 else None
    source = ArraySource(array, found) if table is None else open_table(table, found)
    source.columns = columns
    return source


def train_test_split(
    data: Any,
    test_share: float = 0.3,
    seed: int = 0,
    *,
    labels: Any = None,
    x_name: str = "X",
    y_name: str = "y",
    stratify: bool = False,
) -> tuple[SubsetSource, SubsetSource]:
    """Split labelled rows into two random parts, without loading or copying them.

    The test part of a file marked as shuffled is one run of consecutive rows, which may continue at
    row 0; that of other data is a random choice of single rows.

    Parameters
    ----------
    data, labels, x_name, y_name
        As for `open_source`. A `RowSource` stays open.
    test_share : float
        Share of the rows in the test part, above 0 and below 1.
    seed : int
        The same seed gives the same parts.
    stratify : bool
        Whether both parts have the same share of each class.

    Returns
    -------
    train, test : SubsetSource
        Each row is in one of them, in the order of the file. To be closed.

    Examples
    --------
    >>> import numpy as np
    >>> train, test = train_test_split(np.eye(10), 0.3, labels=np.arange(10) % 2)
    >>> train.n_rows, test.n_rows
    (7, 3)
    """
    opened = not isinstance(data, RowSource)
    first = open_source(data, labels, x_name=x_name, y_name=y_name)
    test_ranges = draw_test_rows(first, test_share, seed, stratify=stratify)
    train = SubsetSource(first, complement(test_ranges, first.n_rows))
    second = open_source(data, labels, x_name=x_name, y_name=y_name) if opened else first
    test = SubsetSource(second, test_ranges)
    if opened:  # each part has a file of its own, so that either may be closed first
        train.own(first.close)
        test.own(second.close)
    return train, test


def draw_test_rows(
    source: RowSource, test_share: float, seed: int, *, stratify: bool
) -> Int64Array:
    """Ranges of the test part of `train_test_split`."""
    if not 0 < test_share < 1:
        raise InputError(f"test_share must be above 0 and below 1, not {test_share}")
    n_test = round(test_share * source.n_rows)
    if not 0 < n_test < source.n_rows:
        raise InputError(
            f"{source.name} has {source.n_rows} rows, of which a share of {test_share} leaves one "
            f"part empty; choose another share"
        )
    codes = None
    if stratify:
        from ooc_fw.data.labels import encode_labels  # which reads sources

        _, codes = encode_labels(source)
    rng = np.random.default_rng(seed)
    (ranges,) = draw_parts(source.n_rows, [n_test], source.shuffled is True, rng, codes)
    return ranges


def _is_name(labels: Any) -> bool:
    """Whether labels are given by their name in the data, rather than by a file of their own."""
    return isinstance(labels, str) and not labels.endswith(".npy") and not os.path.exists(labels)


def _open_annotated(
    data: Any, labels: Any, x_name: str, y_name: str, missing_labels: Missing
) -> RowSource:
    """Rows of an AnnData object, and a column of its ``obs`` or other labels."""
    found, name = None, labels if isinstance(labels, str) else y_name
    if labels is not None and not isinstance(labels, str):
        found = Labels(_open_labels(labels))
    elif isinstance(labels, str) or y_name != "y":
        found = labels_of_annotated(data, name)
        check_missing(found, repr(name), missing_labels)
    values = None if found is None else found.values
    source = open_source(rows_of_annotated(data, x_name), values)
    source.columns = names_of_annotated(data, x_name)
    return source if found is None else without_missing(source, found)


def names_of_frame(data: Any) -> list[str] | None:
    """Names of the columns of a frame or table in RAM, text or not; None for what has none."""
    names = getattr(data, "column_names", getattr(data, "columns", None))
    if names is None or len(getattr(data, "shape", ())) != 2:
        return None
    return [as_text(name) for name in names]


def _open_path(
    path: str, labels: Sliceable | None, x_name: str, y_name: str | None, missing_labels: Missing
) -> RowSource:
    names: dict[str, Any] = {
        "x_name": x_name,
        "y_name": y_name,
        "missing_labels": missing_labels,
    }
    if is_store(path):
        return open_store(path, labels, **names)
    if is_url(path) and path.endswith((".h5ad", ".h5", ".hdf5")):
        raise InputError(
            f"{path} is remote, and HDF5 is not read from there; download it, or use a zarr store"
        )
    if is_url(path):
        raise InputError(
            f"{path} is remote, where only zarr stores are trained on directly; convert it first: "
            f"{conversion(path)}"
        )
    head = b"" if os.path.isdir(path) else _first_bytes(path)
    kind = detect_format(path)
    if kind in ("parquet", "arrow"):
        raise InputError(f"{path} is a table; convert it first: {conversion(path)} --label COLUMN")
    if kind == "npy":
        return open_table(open_npy(path), labels)
    if kind == "hdf5":
        return open_hdf5(path, labels, **names)
    table = ""
    if kind == "csv":
        kind, table = "a table", " --label COLUMN"  # only the user knows which column
    elif format_of(head) is not None:
        kind = "compressed"
    elif re.search(rb"\d:[-+.\d]", head):
        kind = "LIBSVM text"
    elif not re.search(rb"[^\t\n\r -~]", head):
        kind = "text"
    else:
        raise DamageError(
            f"{path} is neither HDF5 nor .npy, or it is damaged; make it with ooc-fw convert or "
            f"numpy.save"
        )
    raise InputError(f"{path} is {kind}; convert it first: {conversion(path)}{table}")


def conversion(path: str) -> str:
    """The command that converts a file."""
    name = Path(path).name
    target = f"{name.split('.')[0]}.h5"
    target = target if target != name else f"converted-{target}"
    return f"ooc-fw convert {shlex.quote(path)} {shlex.quote(target)}"


def _first_bytes(path: str) -> bytes:
    check_regular(path)
    head = read_head(path)
    if not head:
        raise DamageError(f"{path} is empty; give a file with rows in it")
    return head


def _open_labels(labels: Any) -> Sliceable:
    if isinstance(labels, h5py.Dataset):
        return open_labels(labels)
    if isinstance(labels, (str, os.PathLike)):
        name = os.fspath(labels)
        if format_of(_first_bytes(name)) != "npy":
            raise InputError(f"the labels {name} must be a .npy file; write it with numpy.save")
        found: Any = open_npy(name)
    else:
        name, found = "labels", _as_array(labels, "labels")
    if len(found.shape) != 1:
        raise InputError(
            f"{name} must have one dimension, not {len(found.shape)}; give one label a row"
        )
    if found.dtype.kind not in "biufSUO":
        raise InputError(f"{name} are of type {found.dtype}; give numbers or text")
    return found  # type: ignore[no-any-return]


def _as_array(data: Any, name: str) -> AnyArray:
    try:
        return np.asarray(data)
    except ValueError as error:  # rows of different lengths
        raise InputError(f"the {name} cannot be made an array ({error})") from error
