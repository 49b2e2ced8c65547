"""Named arrays as tables: `.npy`, `.npz` and HDF5 files of other tools.

Owns the choice of arrays, what their columns are called, and reading them front to back in blocks,
dense or as CSR matrices. What becomes of the columns is `ooc_fw.convert.tables`.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import h5py
import numpy as np

from ooc_fw.convert.readers import (
    BLOCK_BYTES,
    MAX_BLOCK_ROWS,
    Cells,
    ReadOptions,
    TableReader,
    Wanted,
    Words,
    collect_words,
    label_not_exact,
    word_of,
)
from ooc_fw.data.labels import inexact_labels
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Int64Array, canonical_csr
from ooc_fw.data.sources.hdf5 import CSR_PARTS, csr_shape, is_converted
from ooc_fw.data.sources.hdf5_arrays import DatasetSlices
from ooc_fw.data.sources.memmap import open_npy
from ooc_fw.data.sources.opening import (
    check_filters,
    close_file,
    find_node,
    open_file,
    structure_errors,
)
from ooc_fw.data.sources.storage import check_storage
from ooc_fw.system.errors import InputError

_CODES = 1 << 20
"""Codes of categories looked at together."""


@dataclass(frozen=True)
class _Column:
    """Where a column is: an array, and a column or a field of it."""

    array: str
    part: int | str | None = None


@dataclass
class _Arrays:
    """Named arrays of one or two dimensions, or of records."""

    arrays: dict[str, Any] = field(default_factory=dict)  # with shape, dtype and contiguous slices
    sparse: dict[str, Any] | None = None  # the parts of a CSR matrix, and its shape


class ArrayReader(TableReader):
    """Named arrays as a table: rows in one and labels in another, or a column in each.

    Parameters
    ----------
    path : str
        File to open.
    format_name : {"npy", "npz", "hdf5"}
        What it is.
    options : ReadOptions
        Names of rows and labels, and a file of labels.
    """

    def __init__(self, path: str, format_name: str, options: ReadOptions) -> None:
        super().__init__(path)
        self._label = options.y_name
        self.size = os.path.getsize(path)
        self._hdf5 = format_name == "hdf5"
        try:
            with structure_errors(path):
                found = getattr(self, f"_open_{format_name}")(path, options)
                self._arrange(found, options)
        except BaseException:
            self.close()
            raise
        self._row = 0
        # Rows read at once.
        row_bytes = sum(
            max(8, array.dtype.itemsize) * int(np.prod(array.shape[1:]))
            for array in self._arrays.values()
        )
        if self._sparse is not None:
            row_bytes += 12 * int(self._starts[-1]) // max(1, self._n_rows)
        self._block_rows = min(MAX_BLOCK_ROWS, max(1, BLOCK_BYTES // max(1, row_bytes)))

    # Each returns the arrays to take the columns from.

    def _open_npy(self, path: str, options: ReadOptions) -> _Arrays:
        array = open_npy(path)
        self._resources.callback(array.close)
        return _Arrays({options.x_name: array})

    def _open_npz(self, path: str, options: ReadOptions) -> _Arrays:
        try:
            archive = self._resources.enter_context(zipfile.ZipFile(path))
            members = {
                item.filename.removesuffix(".npy"): _ZipArray(path, archive, item)
                for item in archive.infolist()
                if item.filename.endswith(".npy")
            }
        except (OSError, zipfile.BadZipFile, ValueError, EOFError) as error:
            raise InputError(
                f"{path} cannot be read as .npz ({error}); write it with numpy.savez"
            ) from error
        self.compressed = any(
            item.compress_type != zipfile.ZIP_STORED for item in archive.infolist()
        )
        if {*CSR_PARTS, "shape"} <= set(members):
            kind = members["format"][0:1] if "format" in members else None
            if kind is not None and word_of(kind.reshape(-1)[0]) != "csr":
                raise InputError(f"{path} is a sparse matrix in another form; save it as CSR")
            parts = {name: members.pop(name) for name in CSR_PARTS}
            shape = members.pop("shape")
            members.pop("format", None)
            return _Arrays(members, {**parts, "shape": shape[0:2]})
        return _choose(path, members, options)

    def _open_hdf5(self, path: str, options: ReadOptions) -> _Arrays:
        file = open_file(path)
        self._resources.callback(close_file, file)
        if is_converted(file):
            raise InputError(f"{path} is a converted file already: use it as it is")
        rows = find_node(file, options.x_name)
        y_name = self._label = options.y_name
        if rows is not None:
            self.label_names = _label_names(file, options.x_name)
            for place in _label_places(options.label):
                if options.label is not None and find_node(file, place) is not None:
                    y_name, self._label = place, options.label
                    break
        if isinstance(rows, h5py.Group):
            if not set(CSR_PARTS) <= set(rows):
                raise InputError(
                    f"{path}: {options.x_name!r} is a group, but no CSR matrix ("
                    f"{', '.join(CSR_PARTS)} and the attribute shape); name other rows (--x-name)"
                )
            shape = csr_shape(rows, path)
            parts = {name: _HDF5Array(find_node(rows, name)) for name in CSR_PARTS}
            labels = find_node(file, y_name)
            found: dict[str, Any] = {}
            if labels is not None:
                found[self._label] = self._open_labels(labels, options)
            return _Arrays(found, {**parts, "shape": np.array(shape)})
        nodes = {name: find_node(file, name) for name in file}
        members = {name: _HDF5Array(node) for name, node in nodes.items() if _is_array(node)}
        if rows is not None and _is_array(rows):  # by a path, perhaps
            members[options.x_name] = _HDF5Array(rows)
        labels = find_node(file, y_name)
        if labels is not None:
            members[self._label] = self._open_labels(labels, options)
        return _choose(path, members, replace(options, y_name=self._label))

    def _open_labels(self, node: Any, options: ReadOptions) -> Any:
        """Labels in a data set, or in a group as AnnData writes categories."""
        if _is_array(node):
            return _HDF5Array(node)
        if isinstance(node, h5py.Group) and {"codes", "categories"} <= set(node):
            return _Categories(self.name, node, drop=options.missing_labels == "drop")
        known = ", ".join(self.label_names) or "none"
        raise InputError(
            f"{self.name}: {node.name!r} is neither a data set nor a group of codes and "
            f"categories; name other labels (--y-name; it has {known})"
        )

    def _arrange(self, found: _Arrays, options: ReadOptions) -> None:
        """Name the columns and see that they are of one length."""
        if options.labels is not None:
            if not _is_npy(options.labels):
                raise InputError(f"the labels {options.labels} must be a .npy file")
            labels = open_npy(os.fspath(options.labels))
            self._resources.callback(labels.close)
            found.arrays[options.y_name] = labels
        self._arrays = found.arrays
        self._sparse = found.sparse
        self.sparse = found.sparse is not None
        lengths = {name: array.shape[0] for name, array in found.arrays.items()}
        places: dict[str, _Column] = {}
        if found.sparse is not None:
            lengths[options.x_name], width = (int(length) for length in found.sparse["shape"])
            self._width = width
            self._starts = self._row_pointers(lengths[options.x_name])
        alone = options.x_name in found.arrays
        for name, array in found.arrays.items():
            prefix = "" if alone and name == options.x_name else name
            for label, column in _columns_of(name, prefix, array):
                if label in places:
                    raise InputError(f"{self.name} has two columns {label!r}; rename one of them")
                places[label] = column
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise InputError(
                f"the arrays in {self.name} differ in their number of rows ({listed}); name rows "
                f"and labels with --x-name and --y-name"
            )
        self._n_rows = next(iter(lengths.values()), 0)
        self._places = places
        self.columns = tuple(places)
        if self._label in places and (alone or self.sparse):
            self.own_label = self._label
        kinds = {name: self._dtype(place) for name, place in places.items()}
        self.words = frozenset(name for name, kind in kinds.items() if kind.kind in "SUO")
        self.unusable = {
            name: str(kind) for name, kind in kinds.items() if kind.kind not in "biufSUO"
        }

    def _dtype(self, place: _Column) -> np.dtype[Any]:
        kind: np.dtype[Any] = self._arrays[place.array].dtype
        return kind[place.part] if isinstance(place.part, str) else kind

    def _row_pointers(self, n_rows: int) -> Int64Array:
        """Where the rows of a CSR matrix begin: 8 bytes a row in memory."""
        assert self._sparse is not None
        starts = np.asarray(self._sparse["indptr"][0 : n_rows + 1], dtype=np.int64)
        stored = min(self._sparse[name].shape[0] for name in ("data", "indices"))
        if (
            len(starts) != n_rows + 1
            or starts[0] != 0
            or starts[-1] > stored
            or (np.any(np.diff(starts) < 0))
        ):
            raise InputError(
                f"{self.name}: the row pointers of its sparse matrix do not rise from 0 to the "
                f"values stored; write it again"
            )
        return starts

    @property
    def bytes_read(self) -> int:
        """Share of the file that belongs to the rows read."""
        return (self.size or 0) * self._row // max(1, self._n_rows)

    def blocks(self) -> Iterator[tuple[int, dict[str, AnyArray]]]:
        """First row, and the parts of all arrays that belong to the rows of a block."""
        while self._row < self._n_rows:
            start, stop = self._row, min(self._n_rows, self._row + self._block_rows)
            block = {name: array[start:stop] for name, array in self._arrays.items()}
            if self._sparse is not None:
                first, last = (int(self._starts[row]) for row in (start, stop))
                for name in ("data", "indices"):
                    block[f"/{name}"] = self._sparse[name][first:last]
            self._row = stop
            self.text_bytes += sum(part.nbytes for part in block.values())
            yield start, block

    def parse(self, block: tuple[int, dict[str, AnyArray]], wanted: Wanted) -> Cells:
        """Cells of a block."""
        start, parts = block

        def column(name: str) -> AnyArray:
            place = self._places[name]
            array = parts[place.array]
            if place.part is None:
                return array
            return array[place.part] if isinstance(place.part, str) else array[:, place.part]

        n_rows = min(self._n_rows, start + self._block_rows) - start
        labels: Float64Array | Words = np.zeros(n_rows)

        def row_name(row: int) -> str:
            return f"{self.name}, row {start + row}"

        if wanted.label is not None:
            label = column(wanted.label)
            if wanted.label in self.words:
                labels = _array_words(label, row_name)
            else:
                for row in np.flatnonzero(inexact_labels(label))[:1].tolist():
                    raise label_not_exact(row_name(row), label[row])
                labels = label.astype(np.float64)
        numbers: Float64Array | CSRRows
        if self._sparse is not None:
            starts = self._starts[start : start + n_rows + 1]
            # A copy: what is read from an .npz file cannot be written to.
            data = np.array(parts["/data"], dtype=np.float64)
            rows = canonical_csr(data, parts["/indices"], starts, self._width, self.name)
            numbers = _without_zeros(rows)
        else:
            numbers = np.empty((n_rows, len(wanted.numbers)))
            for j, name in enumerate(wanted.numbers):
                numbers[:, j] = column(name)
        return Cells(
            self.name,
            labels,
            numbers,
            tuple(_array_words(column(name), row_name) for name in wanted.words),
            lambda row: f"row {start + row}",
        )


class _HDF5Array(DatasetSlices):
    """A data set; text in it is read as bytes."""

    def __init__(self, dataset: Any) -> None:
        check_filters(dataset)
        check_storage(dataset)
        super().__init__(dataset)
        self.shape = dataset.shape
        text = h5py.check_string_dtype(dataset.dtype) is not None
        # Objects other than text are references and the like.
        known = text or dataset.dtype.kind != "O"
        self.dtype = dataset.dtype if known else np.dtype(np.void)


class _Categories:
    """Words of a group as AnnData writes categories: a code a row, -1 where it is missing.

    Parameters
    ----------
    path : str
        The file, for messages.
    group : h5py.Group
        With the data sets codes and categories.
    drop : bool
        Whether rows without a category will be left out, so that there may be some.
    """

    def __init__(self, path: str, group: Any, *, drop: bool) -> None:
        self._codes = _HDF5Array(_part(path, group, "codes"))
        self.shape = self._codes.shape
        self.dtype = np.dtype(object)
        if len(self.shape) != 1 or self._codes.dtype.kind not in "iu":
            raise InputError(f"{path}: the codes of {group.name!r} are no list of whole numbers")
        try:
            categories = _HDF5Array(_part(path, group, "categories"))
            words = [word_of(value) for value in categories[:].tolist()]
        except UnicodeDecodeError:
            raise InputError(
                f"{path}: the categories of {group.name!r} are not UTF-8 text; write them again"
            ) from None
        self._words = np.array([*words, None], dtype=object)
        n_missing = 0
        for start in range(0, self.shape[0], _CODES):
            codes = self._codes[start : start + _CODES]
            if len(codes) and not -1 <= int(codes.min()) <= int(codes.max()) < len(words):
                raise InputError(
                    f"{path}: {group.name!r} has codes that are none of its {len(words)} categories"
                )
            n_missing += int(np.count_nonzero(codes == -1))
        if n_missing and not drop:
            raise InputError(
                f"{path}: {n_missing} of {self.shape[0]} rows have no category in {group.name!r}; "
                f"leave them out with --missing-labels drop"
            )

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: slice) -> AnyArray:
        return np.asarray(self._words[self._codes[key]])


def _part(path: str, group: Any, name: str) -> Any:
    """A data set in a group."""
    node = find_node(group, name)
    if not _is_array(node):
        raise InputError(f"{path}: {group.name}/{name} is no data set; write the group again")
    return node


def _label_places(label: str | None) -> tuple[str, ...]:
    """Where labels of this name may be among named arrays: at the root, or beside the rows."""
    return () if label is None else (label, f"obs/{label}")


def _label_names(file: Any, x_name: str) -> tuple[str, ...]:
    """What may be labels in a file of named arrays, for messages."""
    parts = [("", file), ("obs/", find_node(file, "obs"))]
    return tuple(
        f"{prefix}{name}"
        for prefix, group in parts
        if isinstance(group, h5py.Group)
        for name in group
        if name not in (x_name, "_index")
        for node in [find_node(group, name)]
        if node is not None
        and (
            (_is_array(node) and len(node.shape) == 1)
            or (isinstance(node, h5py.Group) and "codes" in node)
        )
    )


class _ZipArray:
    """An array in an .npz file, read front to back.

    Parameters
    ----------
    path : str
        The file, for messages.
    archive : ZipFile
        The file.
    item : ZipInfo
        The array.
    """

    def __init__(self, path: str, archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> None:
        self._name = f"{path}: {item.filename}"
        self._stream = archive.open(item)
        version = np.lib.format.read_magic(self._stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{item.filename} is of version {version}")
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, self._fortran, self.dtype = read(self._stream)
        self.shape = shape or (1,)
        if self.dtype.hasobject:
            raise ValueError(f"{item.filename} holds Python objects")
        self._position = 0

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: slice) -> AnyArray:
        """Elements or rows ``key.start:key.stop``, of which the first is the next one."""
        start, stop, _ = key.indices(len(self))
        assert start == self._position
        if self._fortran and len(self.shape) > 1:
            raise InputError(
                f"{self._name} is stored column by column, and inside an .npz file only whole; "
                f"save it with numpy.save, or its numpy.ascontiguousarray with numpy.savez"
            )
        shape = (stop - start, *self.shape[1:])
        n_bytes = int(np.prod(shape)) * self.dtype.itemsize
        try:
            data = self._stream.read(n_bytes)
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"{self._name} is damaged ({error}); fetch it again") from error
        if len(data) < n_bytes:
            raise InputError(f"{self._name} is cut short; fetch it again")
        self._position = stop
        return np.frombuffer(data, dtype=self.dtype).reshape(shape)


def _choose(path: str, members: Mapping[str, Any], options: ReadOptions) -> _Arrays:
    """Rows and labels by their names, or every array of as many rows as the others."""
    if options.x_name in members:
        names = [options.x_name, options.y_name]
        return _Arrays({name: members[name] for name in names if name in members})
    found = {name: array for name, array in members.items() if len(array.shape) in (1, 2)}
    if not found:
        raise InputError(
            f"{path} holds no array of rows (it has: {', '.join(members) or 'nothing'}); name "
            f"its rows with --x-name"
        )
    return _Arrays(found)


def _columns_of(name: str, prefix: str, array: Any) -> Iterator[tuple[str, _Column]]:
    """Columns of an array and what they are called."""
    if array.dtype.names:
        if len(array.shape) != 1:
            raise InputError(f"{name!r} is a table of records; give one record a row")
        for record in array.dtype.names:
            yield record, _Column(name, record)
    elif len(array.shape) == 1:
        yield name, _Column(name)
    elif len(array.shape) == 2:
        for j in range(array.shape[1]):
            yield f"{prefix}{j}", _Column(name, j)
    else:
        raise InputError(
            f"the rows {name!r} must be a table of two dimensions, not of {len(array.shape)}"
        )


def _without_zeros(rows: CSRRows) -> CSRRows:
    keep = rows.data != 0
    if keep.all():
        return rows
    before = np.concatenate([[0], np.cumsum(keep)])
    return CSRRows(rows.data[keep], rows.indices[keep], before[rows.indptr], rows.n_features)


def _array_words(column: AnyArray, place: Callable[[int], str]) -> Words:
    """Column of an array as words."""
    if column.dtype.kind == "O":
        names = dict.fromkeys(column.tolist())
        codes = {value: code for code, value in enumerate(names)}
        return collect_words(
            np.array([codes[value] for value in column.tolist()], int), names, place
        )
    values, places = np.unique(column, return_inverse=True)
    return collect_words(places.reshape(-1), values.tolist(), place)


def _is_array(node: Any) -> bool:
    return isinstance(node, h5py.Dataset) and node.shape not in (None, ())


def _is_npy(path: str | os.PathLike[str]) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(6) == b"\x93NUMPY"
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror}") from error
