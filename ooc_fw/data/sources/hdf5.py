"""Rows in HDF5 files: those of `ooc-fw convert`, and any X/y pair that another tool wrote.

Owns the reading side of the file layout and the sentences about files that cannot be used. Writing
is `ooc_fw.convert`.

Uncompressed values are read straight from the file at the offsets that HDF5 reports: a tenth of the
time of a call through the library for a short slice, no global lock between threads, and an error
instead of zeros when the file was cut short. Compressed, virtual and otherwise unusual data sets go
through h5py, which gives zeros for what lies behind the end of a file: no data set is opened before
`ooc_fw.data.sources.opening` has seen that all of it is there, and the size of the file is looked
at again with every read.

Arrays of converted files are compared with their checksums (`ooc_fw.data.sources.checksums`): what
is read whole at opening and every long read of rows, labels and row numbers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np

from ooc_fw.data.attributes import LABEL_NAMES, get_text, get_texts
from ooc_fw.data.rows import Int64Array, StoredRows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources.array import check_width, csr_bytes
from ooc_fw.data.sources.base import (
    AnyArray,
    FileStamp,
    Sliceable,
    SourceBase,
    StoredStatistics,
    canonical_csr,
    check_real,
)
from ooc_fw.data.sources.checksums import (
    SMALL_ARRAYS,
    CheckedSlices,
    Checksums,
    Range,
    read_checksums,
)
from ooc_fw.data.sources.decoded import DecodedChunks, equal_chunks
from ooc_fw.data.sources.flatfile import ChunkedFileArray, FileArray
from ooc_fw.data.sources.opening import (
    Node,
    check_filters,
    check_storage,
    close_file,
    file_name,
    find_node,
    is_plain_file,
    open_file,
    structure_errors,
)
from ooc_fw.system.errors import DamageError, InputError

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
"""Newest layout of converted files that this module reads."""

CSR_PARTS = ("data", "indices", "indptr")

_LIBRARY_CACHE = 1 << 20  # bytes of chunks that HDF5 itself keeps for a data set
_LARGEST_BAND = 1 << 30  # decoded bytes of chunks side by side that are kept together

NO_SUMS: Mapping[str, Checksums] = {}
"""Checksums of a file that has none."""


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
    sums : mapping of str to Checksums
        Checksums of the arrays of that file, by name.
    **common
        See `SourceBase`.
    """

    def __init__(
        self,
        node: Node,
        values: Node,
        root: Node | None,
        sums: Mapping[str, Checksums],
        **common: Any,
    ) -> None:
        super().__init__(file_name(node), **common)
        self._value_bytes = int(values.dtype.itemsize)
        self._library_bytes = 0  # that HDF5 takes for chunks
        self._stamp = _stamp(node)
        self._others = [FileStamp(path) for path in check_storage(values)]
        self._sums = sums
        if values.id.get_create_plist().get_nfilters():
            # A chunk is decompressed whole whatever is asked of it: ask once.
            self.max_gap = self.span_rows = self.chunk_rows
        self._row: Sliceable | None = None
        if root is not None:
            self._adopt(root)

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
            if (
                np.isfinite(norm) and np.isfinite(mean).all()
            ):  # else a row is to blame, and is named
                self.statistics = StoredStatistics(mean, norm)
        row = find_node(root, "row")
        if row is not None:
            _check_column(row, "row", "iu", self.n_rows)
            self._row = self._open(row, "row")

    def _open(
        self, dataset: Node, name: str, rows_of: Callable[[int, int], Range] | None = None
    ) -> Sliceable:
        """Fastest way to read parts of a data set, checked if it can be; released with the source.

        Parameters
        ----------
        dataset : h5py.Dataset
            Rows, or elements that belong to rows.
        name : str
            Its name in a converted file.
        rows_of : callable or None
            See `CheckedSlices`.
        """
        array = open_array(dataset)
        if isinstance(array, DatasetSlices):
            chunk = math.prod(dataset.chunks or (0,)) * dataset.dtype.itemsize
            # Compressed and decompressed, and what is kept here.
            self._library_bytes += _LIBRARY_CACHE + 2 * chunk + array.kept_bytes
            self.cache_bytes += array.kept_bytes
        else:
            self.own(array.close)
        return _checked(array, dataset, name, self._sums, rows_of)

    @property
    def read_bytes(self) -> int:
        """Bytes that reading takes at most: a span of rows, as stored too, and chunks of HDF5."""
        return super().read_bytes * (1 + -(-self._value_bytes // 4)) + self._library_bytes

    def check_unchanged(self) -> None:
        """Raise InputError when a file behind the rows is not as it was when opened."""
        super().check_unchanged()
        for stamp in self._others:
            stamp.check()

    @contextmanager
    def _same_file(self) -> Iterator[None]:
        """Look after a read whether the file is still the same: the better reason for damage."""
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
    root, sums
        See `HDF5Rows`.
    """

    def __init__(
        self,
        table: Node,
        labels: Sliceable | None = None,
        *,
        root: Node | None = None,
        sums: Mapping[str, Checksums] = NO_SUMS,
    ) -> None:
        check_real(file_name(table), table.dtype)
        check_filters(table)
        chunk_rows = None if table.chunks is None else table.chunks[0]
        super().__init__(
            table, table, root, sums, shape=table.shape or (), labels=labels, chunk_rows=chunk_rows
        )
        self._table = self._open(table, "X")

    def _fetch(self, start: int, stop: int) -> tuple[StoredRows, int]:
        with self._same_file():
            block = self._table[start:stop]
        return block, block.nbytes


class HDF5CSRSource(HDF5Rows):
    """Sparse rows in an HDF5 group laid out as AnnData's csr_matrix.

    The row pointers are kept in RAM, 8 bytes a row; values and columns stay on disk.

    Parameters
    ----------
    group : h5py.Group
        Data sets data, indices and indptr, and the attribute shape.
    labels : Sliceable or None
        One label a row.
    root, sums
        See `HDF5Rows`.
    """

    sparse = True

    def __init__(
        self,
        group: Node,
        labels: Sliceable | None = None,
        *,
        root: Node | None = None,
        sums: Mapping[str, Checksums] = NO_SUMS,
    ) -> None:
        name = file_name(group)
        shape = csr_shape(group, name, known=bool(sums))
        data, indices, indptr = (find_node(group, part) for part in CSR_PARTS)
        for node, part, kinds in (
            (data, "data", "biuf"),
            (indices, "indices", "iu"),
            (indptr, "indptr", "iu"),
        ):
            _check_column(node, f"{group.name}/{part}", kinds)
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
            root,
            sums,
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
        """Rows that the stored values ``first:stop`` belong to."""
        return rows_of_values(self._indptr, first, stop)

    def _fetch(self, start: int, stop: int) -> tuple[StoredRows, int]:
        indptr = self._indptr[start : stop + 1]
        first, last = int(indptr[0]), int(indptr[-1])
        with self._same_file():
            data, indices = self._data[first:last], self._indices[first:last]
        rows = canonical_csr(data, indices, indptr, self.n_features, self.name)
        return rows, data.nbytes + indices.nbytes


class DatasetSlices:
    """Parts of a data set read through h5py, with its errors as sentences.

    Compressed chunks are decoded once and kept for the next part; HDF5 itself keeps none that is
    larger than its cache, and decodes it again for every part.

    Parameters
    ----------
    dataset : h5py.Dataset
        Data set of one or two dimensions.
    view : object, optional
        What is sliced in its place: another form of the same values.

    Attributes
    ----------
    kept_bytes : int
        Decoded bytes that are kept at most.
    """

    def __init__(self, dataset: Node, view: Any = None) -> None:
        self._dataset = dataset
        self._view = dataset if view is None else view
        self._read: Callable[[int, int], AnyArray] = self._decode
        self.kept_bytes = 0
        if dataset.chunks is None or not dataset.id.get_create_plist().get_nfilters():
            return
        length = dataset.chunks[0]
        row_bytes = max(1, dataset.nbytes // max(1, len(dataset)))
        in_columns = dataset.chunks[1:] != dataset.shape[1:]
        if in_columns and length * row_bytes > _LARGEST_BAND:
            logger.warning(
                "%s keeps %d rows of a few columns in each chunk, all of which have to be decoded "
                "for every block of rows, which is slow; ooc-fw convert stores rows together",
                file_name(dataset),
                length,
            )
            return
        ends = equal_chunks(len(dataset), length)
        chunks = DecodedChunks(ends, self._decode, row_bytes)
        self._read, self.kept_bytes = chunks.read, chunks.kept_bytes

    def __len__(self) -> int:
        return int(self._dataset.shape[0])

    def __getitem__(self, key: slice) -> AnyArray:
        start, stop, _ = key.indices(len(self))
        return self._read(start, max(start, stop))

    def _decode(self, start: int, stop: int) -> AnyArray:
        try:
            return np.asarray(self._view[start:stop])
        except OSError as error:
            raise DamageError(
                f"{file_name(self._dataset)} cannot be read ({error}); "
                f"the file is damaged, write it again"
            ) from error


class NamedLabels:
    """Labels stored as codes 0, 1, ..., handed out as the words they stand for.

    Parameters
    ----------
    codes : Sliceable
        One code a row.
    names : list of str
        Words in the order of their codes.
    path : str
        File, for messages.
    """

    def __init__(self, codes: Sliceable, names: list[str], path: str) -> None:
        self._codes = codes
        self._names = np.array(names, dtype=np.str_)
        self._path = path

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, key: slice) -> AnyArray:
        codes = np.asarray(self._codes[key])
        places = codes.astype(np.int64)
        if np.any(places != codes) or np.any((places < 0) | (places >= len(self._names))):
            raise DamageError(
                f"{self._path} has labels that are no whole numbers from 0 to "
                f"{len(self._names) - 1}, for which it has {LABEL_NAMES}; write it again"
            )
        return self._names[places]


class TextLabels:
    """Labels stored as text, of fixed or variable length.

    Parameters
    ----------
    labels : Sliceable
        One label a row, as h5py gives them.
    """

    def __init__(self, labels: Sliceable) -> None:
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, key: slice) -> AnyArray:
        labels = [
            label.decode("utf-8", "surrogateescape") if isinstance(label, bytes) else str(label)
            for label in self._labels[key].tolist()
        ]
        return np.array(labels, dtype=np.str_)


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

    Parameters and errors are those of `open_hdf5`; the group stays open.
    """
    name = file_name(group)
    rows = find_node(group, x_name)
    if rows is None:
        if _is_csr(group):
            return HDF5CSRSource(group, labels)
        if group.get(x_name, getlink=True) is not None:
            raise InputError(
                f"{name}: the link {x_name!r} leads to nothing; name its rows (--x-name, or "
                f"x_name= in Python)"
            )
        raise InputError(
            f"{name} has no {x_name!r} (it has: {', '.join(group) or 'nothing'}); "
            f"name its rows (--x-name, or x_name= in Python)"
        )
    converted = is_converted(group)
    sums = read_checksums(group) if converted else {}
    stored = None if labels is not None else find_node(group, y_name)
    if stored is not None:
        labels = open_labels(stored, sums if y_name == "y" else NO_SUMS)
    if not converted or x_name != "X":
        return open_rows(rows, labels)
    return open_rows(rows, labels, root=group, sums=sums)


def open_rows(
    node: Node,
    labels: Sliceable | None = None,
    *,
    root: Node | None = None,
    sums: Mapping[str, Checksums] = NO_SUMS,
) -> HDF5Rows:
    """Open an HDF5 data set as dense rows, or a CSR group as sparse ones."""
    kind: type[HDF5Source] | type[HDF5CSRSource] | None = None
    if isinstance(node, h5py.Dataset):
        kind = HDF5Source
    elif _is_csr(node):
        kind = HDF5CSRSource
    if kind is not None:
        source = kind(node, labels, root=root, sums=sums)
        source.check_unchanged()  # the arrays were found and opened in one and the same file
        return source
    raise InputError(
        f"{file_name(node)}: {node.name!r} is neither a data set nor a group with "
        f"{', '.join(CSR_PARTS)}; name another (--x-name, or x_name= in Python)"
    )


def open_labels(dataset: Node, sums: Mapping[str, Checksums] = NO_SUMS) -> Sliceable:
    """Labels in an HDF5 data set of one dimension, compared with the checksums of "y" if any.

    Numbers are handed out as stored; codes with the attribute `LABEL_NAMES`, and text, as words.
    """
    if not isinstance(dataset, h5py.Dataset) or len(dataset.shape or ()) != 1:
        raise InputError(
            f"{file_name(dataset)}: the labels {dataset.name!r} must be a data set of one "
            f"dimension; name another (--y-name, or y_name= in Python)"
        )
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    if dataset.dtype.kind not in "biuf" and not is_text:
        raise InputError(
            f"{file_name(dataset)}: the labels {dataset.name!r} are of type {dataset.dtype}, but "
            f"must be numbers or text; name another (--y-name, or y_name= in Python)"
        )
    check_filters(dataset)
    check_storage(dataset)
    labels = _checked(DatasetSlices(dataset), dataset, "y", sums)
    names = get_texts(dataset.attrs, LABEL_NAMES)
    if names is not None:
        return NamedLabels(labels, names, file_name(dataset))
    return TextLabels(labels) if is_text else labels


def open_array(dataset: Node) -> FileArray | ChunkedFileArray | DatasetSlices:
    """Fastest way to read parts of a data set.

    Raises
    ------
    InputError
        A part of it is not there; see `check_storage`.
    """
    check_storage(dataset)
    return find_in_file(dataset) or DatasetSlices(dataset)


def _checked(
    array: Sliceable,
    dataset: Node,
    name: str,
    sums: Mapping[str, Checksums],
    rows_of: Callable[[int, int], Range] | None = None,
) -> Sliceable:
    """An array that compares what it reads with its checksums, if there are any."""
    if name not in sums:
        return array
    return CheckedSlices(
        array,
        sums[name],
        path=file_name(dataset),
        name=name,
        chunk_length=chunk_length(dataset),
        rows_of=rows_of,
    )


def chunk_length(dataset: Node) -> int:
    """Rows or elements of a chunk; all of them where there are no chunks."""
    return max(1, int((dataset.chunks or dataset.shape)[0]))


def rows_of_values(indptr: Int64Array, first: int, stop: int) -> Range:
    """Rows that the stored values ``first:stop`` of a CSR matrix belong to."""
    rows = np.searchsorted(indptr, [first, stop - 1], side="right")
    return int(rows[0]) - 1, int(rows[1])


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
        not is_plain_file(dataset.file)
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


def _stamp(node: Node) -> FileStamp | None:
    """What the file that HDF5 has open is like: another one may have its name by now."""
    if not is_plain_file(node.file):
        return None
    return FileStamp(file_name(node), node.file.id.get_vfd_handle())


def _is_csr(node: Node) -> bool:
    return isinstance(node, h5py.Group) and set(CSR_PARTS) <= set(node)


def csr_shape(group: Node, name: str, *, known: bool = False) -> tuple[int, int]:
    """Shape of a CSR group, which its three arrays alone do not tell.

    A group `known` to be ours is not asked for its kind: that is text for others, which lies where
    no checksum covers it (see `ooc_fw.data.attributes`).
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
    """Row pointers in RAM, known to be usable."""
    name, n_rows = file_name(indptr), shape[0]
    if len(indptr) != n_rows + 1:
        by_column = len(indptr) == shape[1] + 1
        raise InputError(
            f"{name} has {n_rows} sparse rows but {len(indptr)} row pointers instead of "
            f"{n_rows + 1}; "
            + ("is it stored by columns (CSC)? " if by_column else "")
            + "write it again as CSR"
        )
    check_storage(indptr)
    array = _checked(DatasetSlices(indptr), indptr, "X/indptr", sums, rows_of_pointers)
    pointers = np.asarray(array[: n_rows + 1], dtype=np.int64)
    if pointers[0] != 0 or pointers[-1] != n_stored or np.any(pointers[1:] < pointers[:-1]):
        raise InputError(
            f"{name}: the row pointers {indptr.name!r} do not rise from 0 to the {n_stored} "
            f"values stored; write it again"
        )
    return pointers


def _check_column(node: Node, name: str, kinds: str, length: int | None = None) -> None:
    """Raise InputError unless a node is a vector of numbers, of the `length` given if any."""
    path = str(node.file.filename)
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


def rows_of_pointers(first: int, stop: int) -> Range:
    """Rows that the row pointers ``first:stop`` begin or end."""
    return max(0, first - 1), max(1, stop - 1)
