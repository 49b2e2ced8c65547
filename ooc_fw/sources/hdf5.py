"""Rows in HDF5 files: those of `ooc-fw convert`, and any X/y pair that another tool wrote.

Owns the reading side of the file layout and the sentences about files that cannot be used. Writing
is `ooc_fw.prep`.

Uncompressed values are read straight from the file at the offsets that HDF5 reports: a tenth of the
time of a call through the library for a short slice, no global lock between threads, and an error
instead of zeros when the file was cut short. Compressed, virtual and otherwise unusual data sets go
through h5py.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, TypeAlias

import h5py
import numpy as np

from ooc_fw.errors import InputError
from ooc_fw.rows import Int64Array, Rows
from ooc_fw.scaling import Scaling
from ooc_fw.sources.array import check_width, csr_bytes
from ooc_fw.sources.base import (
    AnyArray,
    FileStamp,
    Sliceable,
    SourceBase,
    StoredStatistics,
    as_float32,
    canonical_csr,
    check_real,
)
from ooc_fw.sources.flatfile import ChunkedFileArray, FileArray

FORMAT_VERSION = 1
"""Newest layout of converted files that this module reads."""

CACHE_BYTES = 16 << 20
"""Decompressed chunks that HDF5 keeps for each open data set."""

CSR_PARTS = ("data", "indices", "indptr")

Node: TypeAlias = Any  # an h5py.Dataset or h5py.Group; h5py carries no type hints


class HDF5Rows(SourceBase):
    """What dense and sparse rows in HDF5 files have in common.

    Parameters
    ----------
    node : h5py.Dataset or h5py.Group
        Where the rows are.
    values : h5py.Dataset
        The largest data set under `node`, whose storage decides how to read.
    root : h5py.Group or None
        Root of a file that `ooc-fw convert` wrote, which says more about its rows.
    **common
        See `SourceBase`.
    """

    def __init__(self, node: Node, values: Node, root: Node | None, **common: Any) -> None:
        super().__init__(file_name(node), **common)
        self._stamp = _stamp(node)
        if values.id.get_create_plist().get_nfilters():
            # A chunk is decompressed whole whatever is asked of it: ask once.
            self.max_gap = self.span_rows = self.chunk_rows
        self._row: Sliceable | None = None
        if root is not None:
            self._adopt(root)

    def _adopt(self, root: Node) -> None:
        """Take over what a converted file says about its rows."""
        self.shuffled = bool(root.attrs.get("shuffled", False))
        self.scaling = Scaling.read(root)
        if "mean" in root and "mean_square_norm" in root.attrs:
            mean = np.asarray(root["mean"], dtype=np.float64)
            self.statistics = StoredStatistics(mean, float(root.attrs["mean_square_norm"]))
        if "row" in root:
            self._row = self._open(root["row"])

    def _open(self, dataset: Node) -> Sliceable:
        """Fastest way to read parts of `dataset`; released with the source."""
        direct = find_in_file(dataset)
        if direct is None:
            return DatasetSlices(dataset)
        self.own(direct.close)
        return direct

    def row_ids(self, start: int, stop: int) -> Int64Array:
        """Position of rows ``start:stop`` in the text they were converted from."""
        if self._row is None:
            return super().row_ids(start, stop)
        self._check_range(start, stop)
        ids = np.asarray(self._row[start:stop], dtype=np.int64)
        self.check_unchanged()
        return ids

    def _labels_hint(self) -> str:
        return "name its data set of labels (--y-name, or y_name= in Python)"


class HDF5Source(HDF5Rows):
    """Dense rows in an HDF5 data set.

    Parameters
    ----------
    table : h5py.Dataset
        Real numbers, shape (n_rows, n_features).
    labels : Sliceable or None
        One label a row.
    root : h5py.Group or None
        See `HDF5Rows`.
    """

    def __init__(
        self, table: Node, labels: Sliceable | None = None, *, root: Node | None = None
    ) -> None:
        check_real(file_name(table), table.dtype)
        check_filters(table)
        chunk_rows = None if table.chunks is None else table.chunks[0]
        super().__init__(
            table, table, root, shape=table.shape, labels=labels, chunk_rows=chunk_rows
        )
        self._table = self._open(table)

    def _fetch(self, start: int, stop: int) -> tuple[Rows, int]:
        block = self._table[start:stop]
        self.check_unchanged()
        return as_float32(block), block.nbytes


class HDF5CSRSource(HDF5Rows):
    """Sparse rows in an HDF5 group laid out as AnnData's csr_matrix.

    The row pointers are kept in RAM, 8 bytes a row; values and columns stay on disk.

    Parameters
    ----------
    group : h5py.Group
        Data sets data, indices and indptr, and the attribute shape.
    labels : Sliceable or None
        One label a row.
    root : h5py.Group or None
        See `HDF5Rows`.
    """

    sparse = True

    def __init__(
        self, group: Node, labels: Sliceable | None = None, *, root: Node | None = None
    ) -> None:
        name = file_name(group)
        shape = _csr_shape(group, name)
        data, indices, indptr = (group[part] for part in CSR_PARTS)
        check_real(name, data.dtype)
        for part in (data, indices, indptr):
            check_filters(part)
        if len(indices) != len(data):
            raise InputError(
                f"{name} has {len(data)} sparse values but {len(indices)} column numbers; "
                f"write it again"
            )
        self._indptr = _row_pointers(indptr, shape[0], len(data), name)
        chunk_rows = None
        if data.chunks is not None:
            chunk_rows = max(1, data.chunks[0] * shape[0] // max(1, len(data)))
        super().__init__(
            group,
            data,
            root,
            shape=shape,
            labels=labels,
            chunk_rows=chunk_rows,
            decoded_bytes=csr_bytes(len(data), shape[0]),
        )
        self._data, self._indices = self._open(data), self._open(indices)

    def _fetch(self, start: int, stop: int) -> tuple[Rows, int]:
        indptr = self._indptr[start : stop + 1]
        first, last = int(indptr[0]), int(indptr[-1])
        data, indices = self._data[first:last], self._indices[first:last]
        self.check_unchanged()
        rows = canonical_csr(data, indices, indptr, self.n_features, self.name)
        return rows, data.nbytes + indices.nbytes


class DatasetSlices:
    """Parts of a data set read through h5py, with its errors as sentences.

    Parameters
    ----------
    dataset : h5py.Dataset
        Data set of one or two dimensions.
    """

    def __init__(self, dataset: Node) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return int(self._dataset.shape[0])

    def __getitem__(self, key: slice) -> AnyArray:
        try:
            return np.asarray(self._dataset[key])
        except OSError as error:
            raise InputError(
                f"{file_name(self._dataset)} cannot be read ({error}); "
                f"the file is damaged, write it again"
            ) from error


def open_hdf5(
    path: str, labels: Sliceable | None = None, *, x_name: str = "X", y_name: str = "y"
) -> HDF5Rows:
    """Open the rows of an HDF5 file.

    Parameters
    ----------
    path : str
        File to open.
    labels : Sliceable or None
        One label a row; None for those in the file.
    x_name, y_name : str
        Where the file keeps rows and labels.

    Raises
    ------
    InputError
        The file is damaged, unfinished, or does not hold what the names say.
    """
    try:
        file = h5py.File(path, "r", rdcc_nbytes=CACHE_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be opened as HDF5 ({error}); write it again") from error
    try:
        source = open_group(file, labels, x_name=x_name, y_name=y_name)
    except BaseException:
        file.close()
        raise
    source.own(file.close)
    return source


def open_group(
    group: Node, labels: Sliceable | None = None, *, x_name: str = "X", y_name: str = "y"
) -> HDF5Rows:
    """Open the rows in an HDF5 group: a pair `x_name`, `y_name`, or itself a CSR matrix.

    Parameters and errors are those of `open_hdf5`; the group stays open.
    """
    name = file_name(group)
    if x_name not in group:
        if _is_csr(group):
            return HDF5CSRSource(group, labels)
        raise InputError(
            f"{name} has no {x_name!r} (it has: {', '.join(group) or 'nothing'}); "
            f"name its rows (--x-name, or x_name= in Python)"
        )
    root = group if is_converted(group) and x_name == "X" else None
    if labels is None and y_name in group:
        labels = open_labels(group[y_name])
    return open_rows(group[x_name], labels, root=root)


def open_rows(node: Node, labels: Sliceable | None = None, *, root: Node | None = None) -> HDF5Rows:
    """Open an HDF5 data set as dense rows, or a CSR group as sparse ones."""
    if isinstance(node, h5py.Dataset):
        return HDF5Source(node, labels, root=root)
    if _is_csr(node):
        return HDF5CSRSource(node, labels, root=root)
    raise InputError(
        f"{file_name(node)}: {node.name!r} is neither a data set nor a group with "
        f"{', '.join(CSR_PARTS)}; name another (--x-name, or x_name= in Python)"
    )


def open_labels(dataset: Node) -> Sliceable:
    """Labels in an HDF5 data set of one dimension."""
    if not isinstance(dataset, h5py.Dataset) or len(dataset.shape) != 1:
        raise InputError(
            f"{file_name(dataset)}: the labels {dataset.name!r} must be a data set of one "
            f"dimension; name another (--y-name, or y_name= in Python)"
        )
    check_filters(dataset)
    return DatasetSlices(dataset)


def is_converted(group: Node) -> bool:
    """Whether `ooc-fw convert` wrote this file.

    Raises
    ------
    InputError
        It did, but not to the end, or a newer version of it did.
    """
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


def check_filters(dataset: Node) -> None:
    """Raise InputError when the compression of `dataset` is not installed."""
    properties = dataset.id.get_create_plist()
    for position in range(properties.get_nfilters()):
        code, _, _, label = properties.get_filter(position)
        if not h5py.h5z.filter_avail(code):
            with suppress(ImportError):
                import hdf5plugin  # noqa: F401  (registers its filters on import)
        if not h5py.h5z.filter_avail(code):
            known = label.decode(errors="replace") or "unnamed"
            raise InputError(
                f"{file_name(dataset)} is compressed with HDF5 filter {code} ({known}), which is "
                f"not installed; try: pip install 'ooc-fw[compression]'"
            )


def find_in_file(dataset: Node) -> FileArray | ChunkedFileArray | None:
    """Where the values of `dataset` lie on disk.

    Returns
    -------
    FileArray, ChunkedFileArray or None
        None when they are compressed, scattered, of a type numpy cannot read as it is, or when
        somebody may still be writing to the file.
    """
    properties, shape, dtype = dataset.id.get_create_plist(), dataset.shape, dataset.dtype
    if (
        not _is_plain_file(dataset.file)
        or dataset.file.userblock_size
        or dtype.kind not in "biuf"
        or not h5py.h5t.py_create(dtype, logical=True).equal(dataset.id.get_type())
        or properties.get_nfilters()
        or properties.get_external_count()
        or 0 in shape
    ):
        return None
    path, layout = dataset.file.filename, properties.get_layout()
    if layout == h5py.h5d.CONTIGUOUS and (offset := dataset.id.get_offset()) is not None:
        strides = np.empty((1, *shape[1:]), dtype).strides
        return FileArray(path, offset, shape, strides, dtype)
    if layout == h5py.h5d.CHUNKED and dataset.chunks[1:] == shape[1:]:
        offsets = _chunk_offsets(dataset)
        if (offsets >= 0).all():
            return ChunkedFileArray(path, offsets, dataset.chunks[0], shape, dtype)
    return None


def _chunk_offsets(dataset: Node) -> Int64Array:
    """Byte in the file at which each chunk of rows begins; -1 for those never written."""
    length = dataset.chunks[0]
    offsets = np.full(-(-dataset.shape[0] // length), -1, dtype=np.int64)

    def note(chunk: Any) -> None:
        offsets[chunk.chunk_offset[0] // length] = chunk.byte_offset

    dataset.id.chunk_iter(note)
    return offsets


def file_name(node: Node) -> str:
    """Path of the file that `node` is in."""
    return str(node.file.filename)


def _is_plain_file(file: Node) -> bool:
    """Whether `file` is one file on disk that nobody in this process writes to."""
    return file.mode == "r" and file.driver == "sec2" and os.path.isfile(file.filename)


def _stamp(node: Node) -> FileStamp | None:
    return FileStamp(file_name(node)) if _is_plain_file(node.file) else None


def _is_csr(node: Node) -> bool:
    return isinstance(node, h5py.Group) and all(part in node for part in CSR_PARTS)


def _csr_shape(group: Node, name: str) -> tuple[int, int]:
    """Shape of a CSR group, which its three arrays alone do not tell."""
    kind = group.attrs.get("encoding-type", "csr_matrix")
    if kind != "csr_matrix":
        raise InputError(f"{name}: {group.name!r} is a {kind}; write it as a csr_matrix")
    shape = np.ravel(group.attrs.get("shape", ()))
    if len(shape) != 2:
        raise InputError(
            f"{name}: the sparse matrix {group.name!r} has no attribute 'shape'; "
            f"add it (rows, columns)"
        )
    check_width(name, int(shape[1]))
    return int(shape[0]), int(shape[1])


def _row_pointers(indptr: Node, n_rows: int, n_stored: int, name: str) -> Int64Array:
    """Row pointers in RAM, known to be usable."""
    if indptr.shape != (n_rows + 1,):
        raise InputError(
            f"{name} has {n_rows} sparse rows but {indptr.size} row pointers instead of "
            f"{n_rows + 1}; write it again"
        )
    pointers = np.asarray(indptr[...], dtype=np.int64)
    if pointers[0] != 0 or pointers[-1] != n_stored or np.any(pointers[1:] < pointers[:-1]):
        raise InputError(
            f"{name}: the row pointers {indptr.name!r} do not rise from 0 to the {n_stored} "
            f"values stored; write it again"
        )
    return pointers
