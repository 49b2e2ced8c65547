"""Rows in HDF5 files: those of `ooc-fw convert`, and pairs X, y that another tool wrote.

A data set is opened only after `ooc_fw.data.sources.storage` has found that all of it is there, and
the size of the file is checked again with every read. Arrays of converted files are compared with
their checksums (`ooc_fw.data.sources.checksums`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import h5py
import numpy as np

from ooc_fw.data.attributes import get_text
from ooc_fw.data.rows import AnyArray, Int64Array, StoredRows, canonical_csr
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources.array import check_width, csr_bytes
from ooc_fw.data.sources.base import RowSource, Sliceable, StoredStatistics, check_real
from ooc_fw.data.sources.checksums import SMALL_ARRAYS, Checksums, Range, read_checksums
from ooc_fw.data.sources.hdf5_arrays import (
    NO_SUMS,
    DatasetSlices,
    checked,
    open_array,
    open_labels,
)
from ooc_fw.data.sources.opening import (
    Node,
    check_filters,
    close_file,
    file_name,
    find_node,
    is_plain_file,
    open_file,
    structure_errors,
)
from ooc_fw.data.sources.stamp import FileStamp
from ooc_fw.data.sources.storage import check_storage
from ooc_fw.system.errors import DamageError, InputError

FORMAT_VERSION = 1
"""Newest layout of converted files that this module reads."""

CSR_PARTS = ("data", "indices", "indptr")

_LIBRARY_CACHE = 1 << 20
"""Bytes of chunks that HDF5 itself keeps for a data set."""


class Converted(NamedTuple):
    """Root of a file that `ooc-fw convert` wrote, and the checksums of its arrays by name."""

    root: Node
    sums: Mapping[str, Checksums]


class HDF5Rows(RowSource):
    """What dense and sparse rows in HDF5 files have in common.

    Parameters
    ----------
    node : h5py.Dataset or h5py.Group
        Where the rows are.
    values : h5py.Dataset
        The largest data set under `node`, whose storage decides how rows are read.
    converted : Converted or None
        The converted file, which says more about its rows; None for other files.
    **common
        See `RowSource`.
    """

    _labels_hint = "name its data set of labels (--y-name, or y_name= in Python)"

    def __init__(
        self, node: Node, values: Node, converted: Converted | None, **common: Any
    ) -> None:
        super().__init__(file_name(node), **common)
        self._value_bytes = int(values.dtype.itemsize)
        self._library_bytes = 0  # that HDF5 takes for chunks
        if is_plain_file(node.file):
            # The open file: another one may have its name by now.
            self._stamp = FileStamp(self.name, node.file.id.get_vfd_handle())
        self._others = [FileStamp(path) for path in check_storage(values)]
        self._sums = NO_SUMS if converted is None else converted.sums
        if values.id.get_create_plist().get_nfilters():  # a chunk is decompressed whole
            self.max_gap = self.span_rows = self.chunk_rows
        self._row: Sliceable | None = None
        if converted is not None:
            self._adopt(converted.root)

    def _adopt(self, root: Node) -> None:
        """Take over what a converted file says about its rows."""
        self.shuffled = bool(root.attrs.get("shuffled", False))
        small = {name: find_node(root, name) for name in SMALL_ARRAYS}
        for name, node in small.items():
            if node is not None:
                _check_column(node, name, "biuf", self.n_features)
                check_storage(node)
        self.scaling = Scaling.read(root)
        if small["mean"] is not None and "mean_square_norm" in root.attrs:
            mean = np.asarray(small["mean"][...], dtype=np.float64)
            norm = float(root.attrs["mean_square_norm"])
            # If they are not finite, reading the rows will name the one that is to blame.
            if np.isfinite(norm) and np.isfinite(mean).all():
                self.statistics = StoredStatistics(mean, norm)
        row = find_node(root, "row")
        if row is not None:
            _check_column(row, "row", "iu", self.n_rows)
            self._row = self._open(row, "row")

    def _open(
        self, dataset: Node, name: str, rows_of: Callable[[int, int], Range] | None = None
    ) -> Sliceable:
        """Reader of parts of a data set of this name in a converted file, closed with the source.

        `rows_of` is explained in `CheckedSlices`.
        """
        array = open_array(dataset)
        if isinstance(array, DatasetSlices):
            chunk = math.prod(dataset.chunks or (0,)) * dataset.dtype.itemsize
            # A chunk as compressed and as decompressed, and what is kept here.
            self._library_bytes += _LIBRARY_CACHE + 2 * chunk + array.kept_bytes
            self.cache_bytes += array.kept_bytes
        else:
            self.own(array.close)
        return checked(array, dataset, name, self._sums, rows_of)

    @property
    def read_bytes(self) -> int:
        """Bytes that reading takes at most: a span of rows, also as stored, and chunks of HDF5."""
        return super().read_bytes * (1 + -(-self._value_bytes // 4)) + self._library_bytes

    def check_unchanged(self) -> None:
        """Raise InputError when a file behind the rows is not as it was when opened."""
        super().check_unchanged()
        for stamp in self._others:
            stamp.check()

    @contextmanager
    def _same_file(self) -> Iterator[None]:
        """Check after a read that the file is still the same, which would also explain damage."""
        try:
            yield
        except DamageError:
            self.check_unchanged()
            raise
        self.check_unchanged()

    def labels(self, start: int, stop: int) -> AnyArray:
        """Label values of rows ``start:stop`` as stored."""
        with self._same_file():
            return super().labels(start, stop)

    def row_ids(self, start: int, stop: int) -> Int64Array:
        """Position of rows ``start:stop`` in the text they were converted from."""
        if self._row is None:
            return super().row_ids(start, stop)
        self._check_range(start, stop)
        with self._same_file():
            return np.asarray(self._row[start:stop], dtype=np.int64)


class HDF5Source(HDF5Rows):
    """Dense rows in an HDF5 data set of real numbers, shape (n_rows, n_features)."""

    def __init__(
        self, table: Node, labels: Sliceable | None = None, converted: Converted | None = None
    ) -> None:
        check_real(file_name(table), table.dtype)
        check_filters(table)
        super().__init__(
            table,
            table,
            converted,
            shape=table.shape or (),
            labels=labels,
            chunk_rows=None if table.chunks is None else table.chunks[0],
        )
        self._table = self._open(table, "X")

    def _fetch(self, start: int, stop: int) -> tuple[StoredRows, int]:
        with self._same_file():
            block = self._table[start:stop]
        return block, block.nbytes


class HDF5CSRSource(HDF5Rows):
    """Sparse rows in an HDF5 group laid out as AnnData's csr_matrix.

    The row pointers are kept in RAM, 8 bytes per row; values and columns stay on disk.
    """

    sparse = True

    def __init__(
        self, group: Node, labels: Sliceable | None = None, converted: Converted | None = None
    ) -> None:
        name = file_name(group)
        sums = NO_SUMS if converted is None else converted.sums
        shape = csr_shape(group, name, known=bool(sums))
        data, indices, indptr = (find_node(group, part) for part in CSR_PARTS)
        for node, kinds in ((data, "biuf"), (indices, "iu"), (indptr, "iu")):
            _check_column(node, node.name, kinds)
            check_filters(node)
        if len(indices) != len(data):
            raise InputError(
                f"{name} has {len(data)} sparse values but {len(indices)} column numbers; "
                f"write it again"
            )
        self._indptr = _row_pointers(indptr, shape, len(data), sums)
        chunk_rows = None
        if data.chunks is not None:
            chunk_rows = max(1, data.chunks[0] * shape[0] // max(1, len(data)))
        super().__init__(
            group,
            data,
            converted,
            shape=shape,
            labels=labels,
            chunk_rows=chunk_rows,
            decoded_bytes=csr_bytes(len(data), shape[0]),
        )
        self._data = self._open(data, "X/data", self._rows_of)
        self._indices = self._open(indices, "X/indices", self._rows_of)

    @property
    def read_bytes(self) -> int:
        """Bytes that reading takes at most, and those of the row pointers."""
        return super().read_bytes + int(self._indptr.nbytes)

    def _rows_of(self, first: int, stop: int) -> Range:
        return rows_of_values(self._indptr, first, stop)

    def _fetch(self, start: int, stop: int) -> tuple[StoredRows, int]:
        indptr = self._indptr[start : stop + 1]
        first, last = int(indptr[0]), int(indptr[-1])
        with self._same_file():
            data, indices = self._data[first:last], self._indices[first:last]
        rows = canonical_csr(data, indices, indptr, self.n_features, self.name)
        return rows, data.nbytes + indices.nbytes


def open_hdf5(
    path: str, labels: Sliceable | None = None, *, x_name: str = "X", y_name: str = "y"
) -> HDF5Rows:
    """Open the rows and labels of an HDF5 file by their names in it; `labels` replace its own.

    InputError is raised for a file that is damaged, unfinished, or does not hold what the names
    say.
    """
    file = open_file(path)
    try:
        with structure_errors(path):
            source = open_group(file, labels, x_name=x_name, y_name=y_name)
    except BaseException:
        close_file(file)
        raise
    source.own(file.close)
    return source


def open_group(
    group: Node, labels: Sliceable | None = None, *, x_name: str = "X", y_name: str = "y"
) -> HDF5Rows:
    """Open the rows in an HDF5 group: a pair `x_name`, `y_name`, or itself a CSR matrix.

    The group stays open. Errors are those of `open_hdf5`.
    """
    name = file_name(group)
    rows = find_node(group, x_name)
    if rows is None:
        if _is_csr(group):
            return open_rows(group, labels)
        if group.get(x_name, getlink=True) is not None:
            raise InputError(
                f"{name}: the link {x_name!r} leads to nothing; name its rows (--x-name, or "
                f"x_name= in Python)"
            )
        raise InputError(
            f"{name} has no {x_name!r} (it has: {', '.join(group) or 'nothing'}); "
            f"name its rows (--x-name, or x_name= in Python)"
        )
    converted = Converted(group, read_checksums(group)) if is_converted(group) else None
    stored = None if labels is not None else find_node(group, y_name)
    if stored is not None:
        sums = NO_SUMS if converted is None or y_name != "y" else converted.sums
        labels = open_labels(stored, sums)
    return open_rows(rows, labels, converted if x_name == "X" else None)


def open_rows(
    node: Node, labels: Sliceable | None = None, converted: Converted | None = None
) -> HDF5Rows:
    """Open an HDF5 data set as dense rows, or a CSR group as sparse ones."""
    source: HDF5Rows
    if isinstance(node, h5py.Dataset):
        source = HDF5Source(node, labels, converted)
    elif _is_csr(node):
        source = HDF5CSRSource(node, labels, converted)
    else:
        raise InputError(
            f"{file_name(node)}: {node.name!r} is neither a data set nor a group with "
            f"{', '.join(CSR_PARTS)}; name another (--x-name, or x_name= in Python)"
        )
    source.check_unchanged()  # all arrays were found in one and the same file
    return source


def rows_of_values(indptr: Int64Array, first: int, stop: int) -> Range:
    """Rows that the stored values ``first:stop`` of a CSR matrix belong to."""
    rows = np.searchsorted(indptr, [first, stop - 1], side="right")
    return int(rows[0]) - 1, int(rows[1])


def rows_of_pointers(first: int, stop: int) -> Range:
    """Rows that the row pointers ``first:stop`` begin or end."""
    return max(0, first - 1), max(1, stop - 1)


def is_converted(group: Node) -> bool:
    """Whether `ooc-fw convert` wrote this file; InputError if it did not finish, or is newer."""
    if not {"format_version", "n_features"} <= set(group.attrs):
        return False
    name = file_name(group)
    if int(group.attrs["format_version"]) > FORMAT_VERSION:
        raise InputError(
            f"{name} has format version {group.attrs['format_version']}, newer than "
            f"{FORMAT_VERSION}; update ooc-fw or convert the data again"
        )
    if int(group.attrs.get("complete", 0)) != 1:
        raise InputError(f"{name} was not finished when it was written; convert the data again")
    return True


def _is_csr(node: Node) -> bool:
    return isinstance(node, h5py.Group) and all(
        find_node(node, part) is not None for part in CSR_PARTS
    )


def csr_shape(group: Node, name: str, *, known: bool = False) -> tuple[int, int]:
    """Shape of a CSR group, which its three arrays alone do not tell.

    The kind of a group `known` to be converted is not read: it is text of variable length, which no
    checksum covers (see `ooc_fw.data.attributes`).
    """
    for attribute in () if known else ("encoding-type", "h5sparse_format"):
        kind = get_text(group.attrs, attribute) if attribute in group.attrs else "csr"
        if kind.removesuffix("_matrix") != "csr":
            by_column = ", stored by columns" if kind.startswith("csc") else ""
            raise InputError(
                f"{name}: {group.name!r} is a {kind}{by_column}; write it as a csr_matrix, by rows "
                f"(tocsr() in Python)"
            )
    shape = np.ravel(group.attrs.get("shape", ()))
    if len(shape) != 2:
        raise InputError(
            f"{name}: the sparse matrix {group.name!r} has no attribute 'shape'; "
            f"add it (rows, columns)"
        )
    if shape.dtype.kind not in "iu" or shape.min() < 0:
        raise InputError(
            f"{name}: the attribute 'shape' of {group.name!r} must be two whole numbers, not "
            f"{shape.tolist()}; correct it"
        )
    check_width(name, int(shape[1]))
    return int(shape[0]), int(shape[1])


def _row_pointers(
    indptr: Node, shape: tuple[int, int], n_stored: int, sums: Mapping[str, Checksums]
) -> Int64Array:
    """Row pointers in RAM, after checks that they can be used."""
    name, n_rows = file_name(indptr), shape[0]
    if len(indptr) != n_rows + 1:
        by_column = "is it stored by columns (CSC)? " if len(indptr) == shape[1] + 1 else ""
        raise InputError(
            f"{name} has {n_rows} sparse rows but {len(indptr)} row pointers instead of "
            f"{n_rows + 1}; {by_column}write it again as CSR"
        )
    check_storage(indptr)
    array = checked(DatasetSlices(indptr), indptr, "X/indptr", sums, rows_of_pointers)
    pointers = np.asarray(array[: n_rows + 1], dtype=np.int64)
    if pointers[0] != 0 or pointers[-1] != n_stored or np.any(pointers[1:] < pointers[:-1]):
        raise InputError(
            f"{name}: the row pointers {indptr.name!r} do not rise from 0 to the {n_stored} "
            f"values stored; write it again"
        )
    return pointers


def _check_column(node: Node, name: str, kinds: str, length: int | None = None) -> None:
    """Raise InputError unless a node is a vector of numbers, of the `length` given if any."""
    path = file_name(node)
    if not isinstance(node, h5py.Dataset) or len(node.shape or ()) != 1:
        raise InputError(f"{path}: {name!r} must be a data set of one dimension; write it again")
    if node.dtype.kind not in kinds:
        what = "whole numbers" if kinds == "iu" else "numbers"
        raise InputError(
            f"{path}: {name!r} is of type {node.dtype}, but must be {what}; convert it"
        )
    if length is not None and len(node) != length:
        raise DamageError(
            f"{path}: {name!r} has {len(node)} values instead of {length}; write it again"
        )
