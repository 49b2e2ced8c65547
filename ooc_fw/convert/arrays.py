"""Named arrays as tables: `.npy`, `.npz` and HDF5 files of other tools.

An array here is whatever has a shape, a dtype and contiguous slices of rows, read front to back.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import h5py
import numpy as np

from ooc_fw.convert.readers import (
    MAX_ROW_BYTES,
    NUMBERS,
    WORDS,
    Place,
    TypedReader,
    Words,
    block_rows,
    check_columns,
    collect_words,
    keep_stored,
    number_values,
    word_of,
)
from ooc_fw.data.formats import format_of, open_bytes, stored_bytes
from ooc_fw.data.labels import inexact_labels
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Int64Array, canonical_csr
from ooc_fw.data.sources.annotated import (
    Field,
    Labels,
    Missing,
    check_missing,
    column_labels,
    column_names,
    find_column,
    is_array,
    is_column,
)
from ooc_fw.data.sources.flatfile import check_header, open_npy
from ooc_fw.data.sources.hdf5 import (
    CSR_PARTS,
    DatasetSlices,
    csr_shape,
    find_names,
    is_converted,
    open_column,
)
from ooc_fw.data.sources.opening import (
    check_filters,
    check_no_model,
    check_storage,
    close_file,
    find_node,
    open_file,
    structure_errors,
)
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError, unreadable

Arrays: TypeAlias = dict[str, Any]
_DAMAGED = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error)


class ArrayReader(TypedReader):
    """Named arrays as a table: rows in one and labels in another, or an array for each column.

    The part of a block has the slices of all arrays by name; those of a CSR matrix have no name.
    """

    takes_label_file = True

    def __init__(self, path: str, format_name: str, options: ConvertOptions) -> None:
        super().__init__(path, stored_bytes(path))
        self._options = options
        self._label = options.y_name
        self._matrix: _CSRMatrix | None = None
        # The array of each column, and the index of the column there.
        self._places: dict[str, tuple[str, Any]] = {}
        try:
            with structure_errors(path):
                self._arrays: Arrays = getattr(self, f"_open_{format_name}")()
                if options.labels is not None:
                    self._arrays[options.y_name] = self._open_label_file()
                self._name_columns()
        except BaseException:
            self.close()
            raise

    def _open_npy(self) -> Arrays:
        array = open_npy(self.name)
        self.resources.callback(array.close)
        return {self._options.x_name: array}

    def _open_npz(self) -> Arrays:
        try:
            archive = self.resources.enter_context(zipfile.ZipFile(self.name))
            items = archive.infolist()
            members: Arrays = {
                item.filename.removesuffix(".npy"): _ZipArray(self.name, archive, item)
                for item in items
                if item.filename.endswith(".npy")
            }
        except _DAMAGED as error:
            raise InputError(
                f"{self.name} cannot be read as .npz ({error}); write it with numpy.savez"
            ) from error
        self.compressed = any(item.compress_type != zipfile.ZIP_STORED for item in items)
        if not {*CSR_PARTS, "shape"} <= set(members):
            return self._choose(members)
        kind = members.pop("format")[0:1] if "format" in members else None
        if kind is not None and word_of(kind.reshape(-1)[0]) != "csr":
            raise InputError(f"{self.name} is a sparse matrix in another form; save it as CSR")
        parts = {name: members.pop(name) for name in CSR_PARTS}
        self._matrix = _CSRMatrix(self.name, parts, members.pop("shape")[0:2])
        return members

    def _open_hdf5(self) -> Arrays:
        file = open_file(self.name)
        self.resources.callback(close_file, file)
        check_no_model(file)
        if is_converted(file):
            raise InputError(f"{self.name} is a converted file already: use it as it is")
        x_name, y_name, label = self._options.x_name, self._options.y_name, self._options.label
        rows = find_node(file, x_name)
        if rows is not None:
            self.label_names = _label_names(file, x_name)
            if label is not None and find_column(file, label, find_node) is not None:
                y_name = self._label = label
        labels = find_column(file, y_name, find_node)
        own = {} if labels is None else {self._label: self._open_labels(labels)}
        if not isinstance(rows, h5py.Group):
            nodes = {name: find_node(file, name) for name in file} | {x_name: rows}
            members = {name: _HDF5Array(node) for name, node in nodes.items() if _is_array(node)}
            if x_name in members and len(rows.shape) == 2:
                self.feature_names = find_names(file, x_name, rows.shape[1])
            return self._choose(members | own)
        if not set(CSR_PARTS) <= set(rows):
            raise InputError(
                f"{self.name}: {x_name!r} is a group, but no CSR matrix ({', '.join(CSR_PARTS)} "
                f"and the attribute shape); name other rows (--x-name)"
            )
        parts = {name: _HDF5Array(find_node(rows, name)) for name in CSR_PARTS}
        self._matrix = _CSRMatrix(self.name, parts, csr_shape(rows, self.name))
        self.feature_names = find_names(file, x_name, self._matrix.shape[1])
        return own

    def _open_zarr(self) -> Arrays:
        from ooc_fw.data.sources import zarrs

        options, root = self._options, zarrs.open_zarr(self.name)
        rows = zarrs.find_rows(root, options.x_name, self.name)
        own: Arrays = {}
        if rows is not root:
            labels = zarrs.find_labels(root, options.label or options.y_name, self.name)
            if options.label is not None:
                self._label = options.label
            if labels is not None:
                check_missing(labels, f"{self.name}: {self._label!r}", _missing(options))
                own = {self._label: _Labels(labels)}
        n_features = rows.shape[-1] if is_array(rows) else zarrs.csr_shape(rows, self.name)[1]
        if not is_array(root):
            self.feature_names = zarrs.find_names(root, options.x_name, n_features)
        if is_array(rows):
            return {options.x_name: zarrs.StoredArray(rows), **own}
        parts = {name: zarrs.StoredArray(rows[name]) for name in CSR_PARTS}
        self._matrix = _CSRMatrix(self.name, parts, zarrs.csr_shape(rows, self.name))
        return own

    def _open_labels(self, node: Any) -> Any:
        """Labels in a data set, or in a group as AnnData writes categories."""
        if _is_array(node):
            return _HDF5Array(node)
        if not is_array(node) and is_column(node):
            what = f"{self.name}: {self._label!r}"
            labels = column_labels(node, open_column, what)
            check_missing(labels, what, _missing(self._options))
            return _Labels(labels)
        known = ", ".join(self.label_names) or "none"
        raise InputError(
            f"{self.name}: {self._label!r} is neither a data set nor a group of codes and "
            f"categories; name other labels (--y-name; it has {known})"
        )

    def _open_label_file(self) -> Any:
        path = os.fspath(self._options.labels or "")
        with open_bytes(path) as file:
            if format_of(file.read(8)) != "npy":
                raise InputError(f"the labels {path} must be a .npy file")
        labels = open_npy(path)
        self.resources.callback(labels.close)
        return labels

    def _choose(self, members: Arrays) -> Arrays:
        """Rows and labels by their names, or every array that can be a part of a table."""
        x_name = self._options.x_name
        if x_name in members:
            return {name: members[name] for name in (x_name, self._label) if name in members}
        found = {name: array for name, array in members.items() if len(array.shape) in (1, 2)}
        if not found:
            raise InputError(
                f"{self.name} holds no array of rows (it has: {', '.join(members) or 'nothing'}); "
                f"name its rows with --x-name"
            )
        return found

    def _name_columns(self) -> None:
        """Name the columns, and check that all of them have the same length."""
        x_name, matrix = self._options.x_name, self._matrix
        lengths = {name: array.shape[0] for name, array in self._arrays.items()}
        widths = [math.prod(array.shape[1:]) for array in self._arrays.values()]
        widths += [len(array.dtype.names or ()) for array in self._arrays.values()]
        check_columns(self.name, sum(widths))
        if matrix is not None:
            self.sparse = True
            lengths[x_name] = matrix.shape[0]
        kinds: dict[str, str] = {}
        for name, array in self._arrays.items():
            prefix = "" if name == x_name else name
            names = self.feature_names if name == x_name else None
            for column, index, dtype in _columns_of(name, prefix, array, names):
                if column in kinds:
                    raise InputError(f"{self.name} has two columns {column!r}; rename one of them")
                own = NUMBERS if dtype.kind in "biuf" else WORDS
                kinds[column] = own if dtype.kind in "biufSUO" else str(dtype)
                self._places[column] = name, index
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise InputError(
                f"the arrays in {self.name} differ in their number of rows ({listed}); name rows "
                f"and labels with --x-name and --y-name"
            )
        self.n_rows = next(iter(lengths.values()), 0)
        if self._label in self._arrays and self._label in kinds and x_name in lengths:
            self.own_label = self._label
        self.kinds = kinds

    def blocks(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Read the parts of all arrays that belong to a block."""
        row_bytes = sum(
            max(8, array.dtype.itemsize) * math.prod(array.shape[1:])
            for array in self._arrays.values()
        )
        if row_bytes > MAX_ROW_BYTES:
            raise InputError(
                f"the rows of {self.name} take {row_bytes >> 20} MiB each, and the limit is "
                f"{MAX_ROW_BYTES >> 20} MiB; write narrower ones"
            )
        if self._matrix is not None:
            row_bytes += self._matrix.row_bytes
        size = block_rows(row_bytes)
        while self.row < self.n_rows:
            start, stop = self.row, min(self.n_rows, self.row + size)
            if self._matrix is not None:
                stop = self._matrix.fitting(start, stop)
            part = {name: array[start:stop] for name, array in self._arrays.items()}
            self.text_bytes += sum(piece.nbytes for piece in part.values())
            if self._matrix is not None:
                data, indices, _ = part[""] = self._matrix[start:stop]
                self.text_bytes += data.nbytes + indices.nbytes
            self.row = stop
            yield start, stop, part

    def _column(self, part: Mapping[str, Any], name: str) -> AnyArray:
        array, index = self._places[name]
        found: AnyArray = part[array][index]
        return found

    def _numbers(
        self, part: Mapping[str, Any], n_rows: int, names: Sequence[str]
    ) -> Float64Array | CSRRows:
        if self._matrix is None:
            return super()._numbers(part, n_rows, names)
        data, indices, starts = part[""]
        # A copy: what is read from an .npz file cannot be written to.
        data = np.array(data, dtype=np.float64)
        rows = canonical_csr(data, indices, starts, self._matrix.shape[1], self.name)
        return keep_stored(rows, rows.data != 0, self._matrix.shape[1])

    def _floats(self, column: AnyArray) -> Float64Array:
        return column.astype(np.float64)

    def _words_of(self, column: AnyArray, place: Place) -> Words:
        if column.dtype.kind == "O":
            return collect_words(*number_values(column.tolist()), place)
        found, codes = np.unique(column, return_inverse=True)
        return collect_words(codes.reshape(-1), found.tolist(), place)

    def _inexact_label(self, column: AnyArray) -> tuple[int, Any] | None:
        rows = np.flatnonzero(inexact_labels(column))
        return (int(rows[0]), column[rows[0]]) if len(rows) else None


class _CSRMatrix:
    """Rows of a CSR matrix, by the arrays of its parts, read front to back."""

    def __init__(self, path: str, parts: Arrays, shape: Sequence[Any]) -> None:
        n_rows, n_features = map(int, shape)
        self.shape = n_rows, n_features
        self._path, self._parts = path, parts
        self._stored = min(parts[name].shape[0] for name in ("data", "indices"))
        # Row pointers from that of row `_first` on, as far as they were read.
        self._first, self._starts = 0, np.asarray(parts["indptr"][0:1], dtype=np.int64)
        if parts["indptr"].shape[0] != n_rows + 1 or self._starts[0] != 0:
            raise self._wrong()
        self.row_bytes = 12 * self._stored // max(1, n_rows)

    def fitting(self, start: int, stop: int) -> int:
        """Read the row pointers of rows ``start:stop``; the last of them that fit into a block."""
        begun = self._starts[start - self._first :]
        more = self._parts["indptr"][start + len(begun) : stop + 1]
        self._first, self._starts = start, np.concatenate([begun, np.asarray(more, dtype=np.int64)])
        sizes = 12 * (self._starts - self._starts[0])
        if np.any(np.diff(sizes) < 0) or self._starts[-1] > self._stored:
            raise self._wrong()
        if sizes[1] > MAX_ROW_BYTES:
            raise InputError(
                f"{self._path}: row {start} of its sparse matrix takes {int(sizes[1]) >> 20} MiB, "
                f"and the limit is {MAX_ROW_BYTES >> 20} MiB; write shorter ones"
            )
        return start + int(np.searchsorted(sizes, MAX_ROW_BYTES, side="right")) - 1

    def _wrong(self) -> InputError:
        return InputError(
            f"{self._path}: the row pointers of its sparse matrix do not rise from 0 to the "
            f"values stored; write it again"
        )

    def __getitem__(self, key: slice) -> tuple[AnyArray, AnyArray, Int64Array]:
        """Values, columns and row pointers of some rows, for which `fitting` was asked."""
        starts = self._starts[key.start - self._first : key.stop - self._first + 1]
        data, indices = (
            self._parts[name][int(starts[0]) : int(starts[-1])] for name in ("data", "indices")
        )
        return data, indices, starts


class _HDF5Array(DatasetSlices):
    """A data set; text in it is read as bytes."""

    def __init__(self, dataset: Any) -> None:
        check_filters(dataset)
        check_storage(dataset)
        super().__init__(dataset)
        text = h5py.check_string_dtype(dataset.dtype) is not None
        # Objects that are not text are references and the like.
        usable = text or dataset.dtype.kind != "O"
        self.dtype = dataset.dtype if usable else np.dtype(np.void)


class _Labels:
    """Labels of a column of AnnData, None where they are missing."""

    dtype = np.dtype(object)

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self.shape = (len(labels.values),)

    def __getitem__(self, key: slice) -> AnyArray:
        found, missing = np.asarray(self._labels.values[key]).astype(object), self._labels.missing
        if missing is not None:
            found[missing[key]] = None
        return found


def _missing(options: ConvertOptions) -> Missing:
    return "drop" if options.missing_labels == "drop" else "refuse"


class _ZipArray:
    """An array in an .npz file, read front to back."""

    def __init__(self, path: str, archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> None:
        self._name = f"{path}: {item.filename}"
        self._stream = archive.open(item)
        version = np.lib.format.read_magic(self._stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{item.filename} is of version {version}")
        header = "read_array_header_1_0" if version == (1, 0) else "read_array_header_2_0"
        shape, self._fortran, self.dtype = getattr(np.lib.format, header)(self._stream)
        self.shape = shape or (1,)
        check_header(self.shape, self.dtype, item.file_size - self._stream.tell())
        self._position = 0

    def __getitem__(self, key: slice) -> AnyArray:
        """Elements or rows ``key.start:key.stop``, of which the first is the next one."""
        start, stop, _ = key.indices(int(self.shape[0]))
        assert start == self._position
        if self._fortran and len(self.shape) > 1:
            raise InputError(
                f"{self._name} is stored column by column, and inside an .npz file only whole; "
                f"save it with numpy.save, or its numpy.ascontiguousarray with numpy.savez"
            )
        shape = (stop - start, *self.shape[1:])
        n_bytes = math.prod(shape) * self.dtype.itemsize
        try:
            data = self._stream.read(n_bytes)
        except _DAMAGED as error:
            damage = InputError(f"{self._name} is damaged ({error}); fetch it again")
            raise unreadable(self._name, error) or damage from error
        if len(data) < n_bytes:
            raise InputError(f"{self._name} is cut short; fetch it again")
        self._position = stop
        return np.frombuffer(data, dtype=self.dtype).reshape(shape)


def _columns_of(
    name: str, prefix: str, array: Any, names: Sequence[str] | None
) -> Iterator[tuple[str, Any, np.dtype[Any]]]:
    """Name of each column of an array, its index there, and its type."""
    dtype = array.dtype
    if dtype.names:
        if len(array.shape) != 1:
            raise InputError(f"{name!r} is a table of records; give one record a row")
        yield from ((record, record, dtype[record]) for record in dtype.names)
    elif len(array.shape) == 1:
        yield name, ..., dtype
    elif len(array.shape) == 2:
        words = names or [f"{prefix}{j}" for j in range(array.shape[1])]
        yield from ((word, (..., j), dtype) for j, word in enumerate(words))
    else:
        raise InputError(
            f"the rows {name!r} must be a table of two dimensions, not of {len(array.shape)}"
        )


def _label_names(file: Any, x_name: str) -> tuple[str, ...]:
    """What may be labels in a file of named arrays, for messages."""
    found = []
    for path in (*file, *column_names(file, find_node)):
        node = find_column(file, path, find_node)
        is_list = _is_array(node) and len(node.shape) == 1 and not node.dtype.names
        if path != x_name and (is_list or (not is_array(node) and is_column(node))):
            found.append(path)
    return tuple(found)


def _is_array(node: Any) -> bool:
    return isinstance(node, h5py.Dataset | Field) and node.shape not in (None, ())
