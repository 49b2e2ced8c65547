"""Named arrays as tables: `.npy`, HDF5 files of other tools and zarr stores."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import h5py
import numpy as np

from ooc_fw.convert import readers
from ooc_fw.convert.readers import MAX_ROW_BYTES, TableReader
from ooc_fw.data import hdf5, stores, zarrs
from ooc_fw.data.arrays import ReadArray, only_column, open_npy
from ooc_fw.data.converted import is_converted
from ooc_fw.data.formats import stored_bytes
from ooc_fw.data.opening import open_labels
from ooc_fw.data.rows import AnyArray
from ooc_fw.data.sources import CSRSource
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError


class ArrayReader(TableReader):
    """Named arrays as a table: rows in one and labels in another, or an array for each column.

    The part of a block has the slices of all arrays by name; sparse rows have no name.
    """

    takes_label_file = True

    def __init__(self, path: str, format_name: str, options: ConvertOptions) -> None:
        super().__init__(path, stored_bytes(path))
        self._options, self._label = options, "y"
        self._arrays: dict[str, Any] = {}
        self._sparse_rows: CSRSource | None = None
        # The array of each column, and the index of the column there.
        self._places: dict[str, tuple[str, Any]] = {}
        with ExitStack() as failed, hdf5.structure_errors(path):
            failed.callback(self.close)
            root = self._open_root(path, format_name)
            if stores.is_array(root):
                self._arrays[options.x_name] = stores.open_array(root)
            else:
                self._open_group(root)
            if options.labels is not None:
                self._arrays[self._label] = open_labels(os.fspath(options.labels))
            self._name_columns()
            failed.pop_all()

    def _open_root(self, path: str, format_name: str) -> Any:
        if format_name == "npz":
            raise InputError(f"{path} is an archive; save its arrays with numpy.save")
        if format_name == "npy":
            array = open_npy(path)
            self.callback(array.close)
            return array
        if format_name == "zarr":
            return zarrs.open_store(path)
        file = hdf5.open_file(path)
        self.callback(hdf5.close_file, file)
        return file

    def _open_group(self, root: Any) -> None:
        """Open rows and labels by their names, or every array that can be a part of a table."""
        if hdf5.is_model(root):
            stores.find_rows(root, "X")
        if is_converted(root):
            raise InputError(f"{self.name} is a converted file already: use it as it is")
        x_name, label = self._options.x_name, self._options.label
        if stores.find(root, x_name) is None and not stores.is_csr(root):
            for name in root:
                node: Any = stores.find(root, name)
                if node is not None and stores.is_array(node) and len(node.shape) in (1, 2):
                    self._arrays[name] = stores.open_array(node)
            if not self._arrays:
                raise InputError(
                    f"{self.name} holds no array of rows (it has: {', '.join(root) or 'nothing'}); "
                    f"name its rows with --x-name"
                )
        else:
            rows = stores.find_rows(root, x_name)
            if stores.is_array(rows):
                self._arrays[x_name] = stores.open_array(rows, refuse_end=True)
                n_features = (0, *rows.shape)[-1]
            else:
                source: Any = stores.open_rows(rows)
                self._sparse_rows, n_features, self.sparse = source, source.n_features, True
                self.callback(source.close)
            self.feature_names = stores.feature_names(root, x_name, n_features)
            self.label_names = tuple(_label_names(root, x_name))
            if label is not None and any(_columns_called(root, label)):
                self._label = label
        for column in _columns_called(root, self._label):
            self._arrays[self._label] = self._open_labels(root, column)
            break

    def _open_labels(self, root: Any, column: Any) -> Any:
        """Labels in an array, or in a column of AnnData, None where they are missing there."""
        if stores.is_array(column) and column.shape and "categories" not in column.attrs:
            return only_column(stores.open_array(column))
        found = stores.find_labels(root, self._label, self._options.missing_labels, {})
        assert found is not None
        labels = found

        def read(start: int, stop: int) -> AnyArray:
            values = np.asarray(labels.values[start:stop])
            if values.dtype.kind == "b":
                values = values.astype(np.float64)
            values = values.astype(object)
            if labels.missing is not None:
                values[labels.missing[start:stop]] = None
            return values

        return ReadArray((len(labels.values),), object, read)

    def _name_columns(self) -> None:
        """Name the columns, and check that all of them have the same length."""
        x_name = self._options.x_name
        lengths = {name: array.shape[0] for name, array in self._arrays.items()}
        widths = [math.prod(array.shape[1:]) for array in self._arrays.values()]
        widths += [len(array.dtype.names or ()) for array in self._arrays.values()]
        readers.check_columns(self.name, sum(widths))
        if self._sparse_rows is not None:
            lengths[x_name] = self._sparse_rows.n_rows
        kinds: dict[str, str] = {}
        for name, array in self._arrays.items():
            names = self.feature_names if name == x_name else None
            prefix = "" if name == x_name else name
            for column, index, dtype in _columns_of(name, prefix, array, names):
                if column in kinds:
                    raise InputError(f"{self.name} has two columns {column!r}; rename one of them")
                kinds[column] = _kind_of(dtype)
                self._places[column] = name, index
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise InputError(
                f"the arrays in {self.name} differ in their number of rows ({listed}); name rows "
                f"and labels with --x-name and --label"
            )
        self.n_rows, self.kinds = next(iter(lengths.values()), 0), kinds
        if self._label in self._arrays and self._label in kinds and x_name in lengths:
            self.own_label = self._label

    def blocks(self) -> Iterator[tuple[Any, ...]]:  # noqa: D102
        sparse_rows = self._sparse_rows
        row_bytes = sum(
            max(8, array.dtype.itemsize) * math.prod(array.shape[1:])
            for array in self._arrays.values()
        )
        _check_row(row_bytes, f"each row of {self.name}")
        if sparse_rows is not None:
            row_bytes += sparse_rows.decoded_bytes // sparse_rows.n_rows
        size = readers.block_rows(row_bytes)
        while self.row < self.n_rows:
            start, stop = self.row, min(self.n_rows, self.row + size)
            columns: dict[str, Any] = {}
            if sparse_rows is not None:
                sizes = 12 * np.diff(sparse_rows.indptr[start : stop + 1]).cumsum()
                _check_row(int(sizes[0]), f"{self.name}: row {start} of its sparse matrix")
                stop = start + int(np.searchsorted(sizes, MAX_ROW_BYTES, side="right"))
                rows: Any = sparse_rows.read_unchecked(start, stop)
                columns[readers.SPARSE] = rows
                self.text_bytes += rows.data.nbytes + rows.indices.nbytes
            pieces = {name: array[start:stop] for name, array in self._arrays.items()}
            self.text_bytes += sum(piece.nbytes for piece in pieces.values())
            self.row = stop
            columns |= {name: pieces[array][at] for name, (array, at) in self._places.items()}
            yield columns, stop - start, partial(readers.row_place, self.name, start)


def _check_row(n_bytes: int, what: str) -> None:
    if n_bytes > MAX_ROW_BYTES:
        raise InputError(
            f"{what} takes {n_bytes >> 20} MiB, and the limit is {MAX_ROW_BYTES >> 20} MiB; write "
            f"shorter ones"
        )


def _kind_of(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "biuf":
        return readers.NUMBERS
    # Objects that are not text are references and the like.
    is_text = dtype.kind in "SU" or (dtype.kind == "O" and not dtype.metadata)
    return readers.WORDS if is_text or h5py.check_string_dtype(dtype) is not None else str(dtype)


def _columns_of(
    name: str, prefix: str, array: Any, names: Sequence[str] | None
) -> Iterator[tuple[str, Any, np.dtype[Any]]]:
    """Name of each column of an array, its index there, and its type."""
    dtype, n_dimensions = array.dtype, len(array.shape)
    if dtype.names and n_dimensions == 1:
        yield from ((record, record, dtype[record]) for record in dtype.names)
    elif n_dimensions == 1:
        yield name, ..., dtype
    elif n_dimensions == 2 and not dtype.names:
        words = names or [f"{prefix}{j}" for j in range(array.shape[1])]
        yield from ((word, (..., j), dtype) for j, word in enumerate(words))
    else:
        raise InputError(
            f"the rows {name!r} must be a table of two dimensions, not of {n_dimensions}, or one "
            f"of records of one"
        )


def _columns_called(root: Any, label: str) -> Iterator[Any]:
    nodes = (stores.find(root, place) for place in (label, f"obs/{label}"))
    return (node for node in nodes if node is not None)


def _label_names(root: Any, x_name: str) -> Iterator[str]:
    for path in (*root, *stores.column_names(root)):
        column = stores.find(root, path)
        if path == x_name or column is None:
            continue
        if not stores.is_array(column):
            if {*column} & {"codes", "mask"}:
                yield path
        elif len(column.shape) == 1 and not column.dtype.names:
            yield path
