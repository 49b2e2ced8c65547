"""Rows in HDF5 files: those of `ooc-fw convert`, and pairs X, y that another tool wrote.

Uncompressed values are read straight from the file at the offsets that HDF5 reports. For a short
slice that takes a tenth of the time of a call through the library, threads do not wait for its
global lock, and a file that was cut short gives an error instead of zeros.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np

from ooc_fw.data.attributes import COLUMNS, LABEL_NAMES, RECORD, as_text, get_text, get_texts
from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources.annotated import (
    Field,
    Labels,
    Missing,
    check_missing,
    column_labels,
    column_names,
    feature_names,
    find_column,
    is_array,
    is_column,
    with_missing_numbers,
    without_missing,
)
from ooc_fw.data.sources.base import (
    ArraySource,
    CSRSource,
    FileStamp,
    RowSource,
    Sliceable,
    StoredStatistics,
    check_real,
    check_shape,
    check_width,
)
from ooc_fw.data.sources.checksums import (
    SMALL_ARRAYS,
    CheckedSlices,
    Checksums,
    Range,
    read_checksums,
)
from ooc_fw.data.sources.chunked import DecodedChunks
from ooc_fw.data.sources.flatfile import FileArray
from ooc_fw.data.sources.opening import (
    Node,
    check_filters,
    check_no_model,
    check_storage,
    close_file,
    file_name,
    find_node,
    is_plain_file,
    open_file,
    structure_errors,
)
from ooc_fw.system.errors import DamageError, InputError, unreadable

logger = logging.getLogger(__name__)

_LARGEST_BAND = 1 << 30  # decoded bytes up to which chunks that lie side by side are kept together
NO_SUMS: Mapping[str, Checksums] = {}  # checksums of a file that has none
FORMAT_VERSION = 1  # newest layout of converted files that this module reads
CSR_PARTS = ("data", "indices", "indptr")

_LIBRARY_CACHE = 1 << 20  # bytes of chunks that HDF5 itself keeps for a data set
_NAME_ROWS = "name its rows (--x-name, or x_name= in Python)"


# -- arrays --------------------------------------------------------------------------------------


class DatasetSlices:
    """Parts of a data set of one or two dimensions read through h5py, with its errors as sentences.

    Compressed chunks are decoded once and kept for the next part, up to `kept_bytes`. HDF5 itself
    keeps no chunk that is larger than its cache, and would decode it again for every part.
    """

    def __init__(self, dataset: Node) -> None:
        self._dataset, self.shape, self.dtype = dataset, dataset.shape, dataset.dtype
        self._chunks: DecodedChunks | None = None
        self.kept_bytes = 0
        compressed = dataset.chunks and dataset.id.get_create_plist().get_nfilters()
        if not compressed or dataset.dtype.kind == "O":  # words take many times what is stored
            return
        length = dataset.chunks[0]
        band_bytes = length * dataset.nbytes // max(1, len(dataset))
        if dataset.chunks[1:] != dataset.shape[1:] and band_bytes > _LARGEST_BAND:
            logger.warning(
                "%s keeps %d rows of a few columns in each chunk, all of which have to be decoded "
                "for every block of rows, which is slow; ooc-fw convert stores rows together",
                file_name(dataset),
                length,
            )
            return
        self._chunks = DecodedChunks(self.shape, self.dtype, self._decode, length)
        self.kept_bytes = self._chunks.kept_bytes

    @property
    def decoder(self) -> DecodedChunks | None:
        """What decodes and counts the chunks; None where the library reads them part by part."""
        return self._chunks

    def __len__(self) -> int:
        return int(self._dataset.shape[0])

    def __getitem__(self, key: slice) -> AnyArray:
        if self._chunks is not None:
            return self._chunks[key]
        start, stop, _ = key.indices(len(self))
        return self._decode(start, max(start, stop))

    def _decode(self, start: int, stop: int) -> AnyArray:
        try:
            return np.asarray(self._dataset[start:stop])
        except OSError as error:
            name = file_name(self._dataset)
            damage = f"{name} cannot be read ({error}); the file is damaged, write it again"
            raise DamageError(str(unreadable(name, error) or damage)) from error

    def close(self) -> None:
        """Nothing to close: the file belongs to whoever opened it."""


class WordLabels:
    """Labels returned as words: text, or codes 0, 1, ... of the words in `names`."""

    def __init__(self, labels: Sliceable, names: list[str] | None, path: str) -> None:
        self._labels = labels
        self._names = None if names is None else np.array(names, dtype=np.str_)
        self._path = path

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, key: slice) -> AnyArray:
        labels = np.asarray(self._labels[key])
        if self._names is None:
            return np.array([as_text(label) for label in labels.tolist()], dtype=np.str_)
        places = labels.astype(np.int64)
        if np.any(places != labels) or np.any((places < 0) | (places >= len(self._names))):
            raise DamageError(
                f"{self._path} has labels that are no whole numbers from 0 to "
                f"{len(self._names) - 1}, for which it has {LABEL_NAMES}; write it again"
            )
        return self._names[places]


def open_labels(dataset: Node, sums: Mapping[str, Checksums] = NO_SUMS) -> Sliceable:
    """Labels in an HDF5 data set of one dimension, compared with the checksums of "y" if any.

    Numbers are returned as stored; codes with the attribute `LABEL_NAMES`, and text, as words.
    """
    what = f"{file_name(dataset)}: the labels {dataset.name!r}"
    other = "name another (--y-name, or y_name= in Python)"
    if not isinstance(dataset, h5py.Dataset | Field) or len(dataset.shape or ()) != 1:
        raise InputError(f"{what} must be a data set of one dimension; {other}")
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    if dataset.dtype.kind not in "biuf" and not is_text:
        raise InputError(
            f"{what} are of type {dataset.dtype}, but must be numbers or text; {other}"
        )
    check_filters(dataset)
    check_storage(dataset)
    names = get_texts(dataset.attrs, LABEL_NAMES)
    labels = checked(DatasetSlices(dataset), dataset, "y", sums)
    return WordLabels(labels, names, file_name(dataset)) if is_text or names is not None else labels


def open_array(dataset: Node) -> FileArray | DatasetSlices:
    """Fastest way to read parts of a data set; InputError when a part of it is missing."""
    check_storage(dataset)
    return find_in_file(dataset) or DatasetSlices(dataset)


def checked(
    array: Sliceable,
    dataset: Node,
    name: str,
    sums: Mapping[str, Checksums],
    rows_of: Callable[[int, int], Range] | None = None,
) -> Any:
    """`array`, which compares what it reads with the checksums of `name`, if there are any."""
    return CheckedSlices(array, sums[name], dataset, name, rows_of) if name in sums else array


def find_in_file(dataset: Node) -> FileArray | None:
    """Where the values of `dataset` lie on disk.

    None when they are compressed, scattered or of a type that numpy cannot read as it is, or when
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
    layout = properties.get_layout()
    if layout == h5py.h5d.CONTIGUOUS and (offset := dataset.id.get_offset()) is not None:
        length, offsets = shape[0], np.array([offset], dtype=np.int64)
    elif layout == h5py.h5d.CHUNKED and dataset.chunks[1:] == shape[1:]:
        length = dataset.chunks[0]
        offsets = np.full(-(-shape[0] // length), -1, dtype=np.int64)  # -1: never written

        def note(chunk: Any) -> None:
            offsets[chunk.chunk_offset[0] // length] = chunk.byte_offset

        dataset.id.chunk_iter(note)
    else:
        return None
    if (offsets < 0).any():
        return None
    return FileArray(dataset.file.filename, shape, dtype, offsets, chunk_rows=length)


# -- rows ----------------------------------------------------------------------------------------


def open_hdf5(
    path: str,
    labels: Sliceable | None = None,
    *,
    x_name: str = "X",
    y_name: str | None = "y",
    missing_labels: Missing = "refuse",
) -> RowSource:
    """Open the rows and labels of an HDF5 file by their names in it; `labels` replace its own."""
    file = open_file(path)
    try:
        with structure_errors(path):
            source = open_group(
                file, labels, x_name=x_name, y_name=y_name, missing_labels=missing_labels
            )
    except BaseException:
        close_file(file)
        raise
    source.own(file.close)
    return source


def open_group(
    group: Node,
    labels: Sliceable | None = None,
    *,
    x_name: str = "X",
    y_name: str | None = "y",
    missing_labels: Missing = "refuse",
) -> RowSource:
    """Open the rows in an HDF5 group: a pair `x_name`, `y_name`, or itself a CSR matrix.

    Labels may also be a column of the ``obs`` of AnnData. A `y_name` of None stands for no labels.
    """
    name = file_name(group)
    rows = find_node(group, x_name)
    if rows is None:
        if _is_csr(group):
            return open_rows(group, labels)
        check_no_model(group)
        if group.get(x_name, getlink=True) is not None:
            raise InputError(f"{name}: the link {x_name!r} leads to nothing; {_NAME_ROWS}")
        has = ", ".join(group) or "nothing"
        raise InputError(f"{name} has no {x_name!r} (it has: {has}); {_NAME_ROWS}")
    root = group if is_converted(group) else None
    sums = NO_SUMS if root is None else read_checksums(root)
    found = None if labels is None else Labels(labels)
    if labels is None and y_name is not None:
        found = _find_labels(group, y_name, sums)
    if found is not None:
        labels = found.values
        check_missing(found, f"{name}: {y_name!r}", missing_labels)
    if x_name == "X":
        source = open_rows(rows, labels, root, sums)
    else:
        source = open_rows(rows, labels)
    if source.columns is None:
        source.columns = find_names(group, x_name, source.n_features)
    if known := column_names(group, find_node):
        has = ", ".join(known)
        source.labels_hint = f"name its labels (--label, or y_name= in Python): it has {has}"
    return source if found is None else without_missing(source, found)


def _find_labels(group: Node, y_name: str, sums: Mapping[str, Checksums]) -> Labels | None:
    """Labels called `y_name`, or so in ``obs``; None where there are none."""
    stored = find_column(group, y_name, find_node)
    if stored is None and y_name == "y":
        return None
    if stored is None:
        raise InputError(f"{file_name(group)} has no labels {y_name!r}; {_other_labels(group)}")
    what = f"{file_name(group)}: {y_name!r}"
    if not is_array(stored) and is_column(stored):
        return column_labels(stored, open_column, what)
    if y_name != "y":
        return with_missing_numbers(open_labels(stored))
    return Labels(open_labels(stored, sums if y_name == "y" else NO_SUMS))


def _other_labels(group: Node) -> str:
    """What to name in place of labels that are not there."""
    if find_node(group, "obs") is not None:
        return "it has " + (", ".join(column_names(group, find_node)) or "none")
    if is_converted(group):
        return "leave out --label (y_name= in Python), since its labels are in 'y'"
    return f"it has {', '.join(group)}"


def open_column(dataset: Node) -> DatasetSlices:
    """Part of a column of AnnData."""
    if not isinstance(dataset, h5py.Dataset | Field) or len(dataset.shape or ()) != 1:
        raise InputError(
            f"{file_name(dataset)}: {dataset.name!r} must be a data set of one dimension; write it "
            f"again"
        )
    check_filters(dataset)
    check_storage(dataset)
    return DatasetSlices(dataset)


def find_names(group: Node, x_name: str, n_features: int) -> list[str] | None:
    """Names of the features in the ``var`` of AnnData."""
    return feature_names(group, x_name, find_node, open_column, n_features)


def open_rows(
    node: Node,
    labels: Sliceable | None = None,
    root: Node = None,
    sums: Mapping[str, Checksums] = NO_SUMS,
) -> RowSource:
    """Open an HDF5 data set as dense rows, or a CSR group as sparse ones.

    `root` is that of the converted file that says more of the rows, and `sums` are its checksums.
    """
    name, is_dense = file_name(node), isinstance(node, h5py.Dataset)
    if not is_dense and not _is_csr(node):
        raise InputError(
            f"{name}: {node.name!r} is neither a data set nor a group with "
            f"{', '.join(CSR_PARTS)}; name another (--x-name, or x_name= in Python)"
        )
    stamps = []
    if is_plain_file(node.file):
        # That of the open file: another one may have its name by now.
        stamps.append(FileStamp(name, node.file.id.get_vfd_handle()))
    source, arrays = (_open_dense if is_dense else _open_csr)(node, labels, sums)
    values = node if is_dense else find_node(node, "data")
    source.stamps += [*stamps, *(FileStamp(path) for path in check_storage(values))]
    source.labels_hint = "name its data set of labels (--y-name, or y_name= in Python)"
    if values.id.get_create_plist().get_nfilters():  # a chunk is decompressed whole
        source.max_gap = source.span_rows = source.chunk_rows
    # A span of rows as stored.
    source.overhead_bytes += source.read_bytes * -(-int(values.dtype.itemsize) // 4)
    found = [getattr(array, "decoder", None) for array in arrays.values()]
    decoders = [decoder for decoder in found if decoder is not None]
    if len(decoders) == len(arrays):  # otherwise reads are counted, not chunks
        source.decoders = decoders
    if root is not None:
        arrays |= _adopt(source, root, sums)
    for dataset, array in arrays.items():
        source.own(array.close)
        if isinstance(array, DatasetSlices):
            # A chunk as compressed and as decompressed, and what is kept here.
            chunk_bytes = math.prod(dataset.chunks or (0,)) * dataset.dtype.itemsize
            source.overhead_bytes += _LIBRARY_CACHE + 2 * chunk_bytes + array.kept_bytes
            source.cache_bytes += array.kept_bytes
    if not is_dense:
        source.overhead_bytes += 8 * (source.n_rows + 1)  # row pointers
    source.check_unchanged()  # all arrays were found in one and the same file
    return source


def _open_dense(
    table: Node, labels: Sliceable | None, sums: Mapping[str, Checksums]
) -> tuple[RowSource, dict[Node, Any]]:
    """Source of dense rows, and the array that it reads by data set."""
    name = file_name(table)
    check_real(name, table.dtype)
    check_filters(table)
    check_shape(name, table.shape or ())
    array = open_array(table)
    chunk_rows = None if table.chunks is None else table.chunks[0]
    rows = checked(array, table, "X", sums)
    return ArraySource(rows, labels, name=name, chunk_rows=chunk_rows), {table: array}


def _open_csr(
    group: Node, labels: Sliceable | None, sums: Mapping[str, Checksums]
) -> tuple[RowSource, dict[Node, Any]]:
    """Source of sparse rows laid out as AnnData's csr_matrix, and the arrays that it reads."""
    name = file_name(group)
    shape = csr_shape(group, name, known=bool(sums))
    data, indices, indptr = (find_node(group, part) for part in CSR_PARTS)
    for node, kinds in ((data, "biuf"), (indices, "iu"), (indptr, "iu")):
        _check_column(node, node.name, kinds)
        check_filters(node)
    n_stored, n_columns = len(data), len(indices)
    if n_columns != n_stored:
        raise InputError(
            f"{name} has {n_stored} sparse values but {n_columns} column numbers; write it again"
        )
    pointers = _RowPointers(indptr, shape, len(data), sums)
    check_shape(name, shape)
    chunk_rows = None
    if data.chunks is not None:
        chunk_rows = max(1, data.chunks[0] * shape[0] // max(1, len(data)))
    arrays = {node: open_array(node) for node in (data, indices)}
    rows_of = pointers.rows_of
    values = checked(arrays[data], data, "X/data", sums, rows_of)
    columns = checked(arrays[indices], indices, "X/indices", sums, rows_of)
    matrix = SimpleNamespace(data=values, indices=columns, indptr=pointers, shape=shape)
    return CSRSource(matrix, labels, name=name, chunk_rows=chunk_rows), arrays


def _adopt(source: RowSource, root: Node, sums: Mapping[str, Checksums]) -> dict[Node, Any]:
    """Take over what a converted file says about its rows; the arrays that are read for it."""
    source.shuffled = bool(root.attrs.get("shuffled", False))
    small = {name: find_node(root, name) for name in SMALL_ARRAYS}
    for name, node in small.items():
        if node is not None:
            _check_column(node, name, "biuf", source.n_features)
            check_storage(node)
    source.scaling = Scaling.read(root)
    source.columns = get_texts(root.attrs, COLUMNS)
    source.table = get_text(root.attrs, RECORD) if RECORD in root.attrs else None
    if small["mean"] is not None and "mean_square_norm" in root.attrs:
        mean = np.asarray(small["mean"][...], dtype=np.float64)
        norm = float(root.attrs["mean_square_norm"])
        # If they are not finite, reading the rows will name the one that is to blame.
        if np.isfinite(norm) and np.isfinite(mean).all():
            source.statistics = StoredStatistics(mean, norm)
    row = find_node(root, "row")
    if row is None:
        return {}
    _check_column(row, "row", "iu", source.n_rows)
    array = open_array(row)
    source.ids = checked(array, row, "row", sums)
    return {row: array}


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
    # AnnData before 0.7 calls it h5sparse_shape.
    shape = np.ravel(group.attrs.get("shape", group.attrs.get("h5sparse_shape", ())))
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


class _RowPointers:
    """Row pointers, which are read, checked and kept in RAM when rows are first asked for.

    Until then, a memory limit that they exceed may be refused.
    """

    def __init__(
        self, indptr: Node, shape: tuple[int, int], n_stored: int, sums: Mapping[str, Checksums]
    ) -> None:
        n_rows = shape[0]
        if len(indptr) != n_rows + 1:
            by_column = "is it stored by columns (CSC)? " if len(indptr) == shape[1] + 1 else ""
            raise InputError(
                f"{file_name(indptr)} has {n_rows} sparse rows but {len(indptr)} row pointers "
                f"instead of {n_rows + 1}; {by_column}write it again as CSR"
            )
        check_storage(indptr)
        self._dataset, self._n_stored = indptr, n_stored
        self._array = checked(DatasetSlices(indptr), indptr, "X/indptr", sums, rows_of_pointers)
        self._found: Int64Array | None = None
        self._reading = threading.Lock()

    def __getitem__(self, key: slice | int) -> Any:
        return self._n_stored if key == -1 else self._read()[key]

    def _read(self) -> Int64Array:
        with self._reading:
            if self._found is None:
                found = np.asarray(self._array[: len(self._dataset)], dtype=np.int64)
                falls = np.any(found[1:] < found[:-1])
                if found[0] != 0 or found[-1] != self._n_stored or falls:
                    raise InputError(
                        f"{file_name(self._dataset)}: the row pointers {self._dataset.name!r} do "
                        f"not rise from 0 to the {self._n_stored} values stored; write it again"
                    )
                self._found = found
            return self._found

    def rows_of(self, first: int, stop: int) -> Range:
        """Rows that the stored values ``first:stop`` belong to."""
        return rows_of_values(self._read(), first, stop)


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
