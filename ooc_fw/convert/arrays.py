"""Named arrays as tables: `.npy`, `.npz` and HDF5 files of other tools.

Chooses the arrays, names their columns and reads them front to back, dense or as CSR matrices.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import h5py
import numpy as np

from ooc_fw.convert import readers
from ooc_fw.convert.readers import (
    Cells,
    TableReader,
    Wanted,
    Words,
    collect_words,
    keep_stored,
    label_not_exact,
    word_of,
)
from ooc_fw.data.formats import format_of, open_bytes
from ooc_fw.data.labels import inexact_labels
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Int64Array, canonical_csr
from ooc_fw.data.sources.flatfile import open_npy
from ooc_fw.data.sources.hdf5 import CSR_PARTS, csr_shape, is_converted
from ooc_fw.data.sources.hdf5_arrays import DatasetSlices
from ooc_fw.data.sources.opening import (
    check_filters,
    close_file,
    find_node,
    open_file,
    structure_errors,
)
from ooc_fw.data.sources.storage import check_storage
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

CODES = 1 << 20
"""Codes of categories that are checked at once."""


class _Place(NamedTuple):
    """Where a column is: an array, and its column or field there."""

    array: str
    part: int | str | None = None


@dataclass
class _Arrays:
    """Arrays of one or two dimensions, or of records, by name.

    An array has a shape, a dtype and contiguous slices; `sparse` holds the parts of a CSR matrix
    and its shape.
    """

    named: dict[str, Any] = field(default_factory=dict)
    sparse: dict[str, Any] | None = None


class ArrayReader(TableReader):
    """Named arrays as a table: rows in one and labels in another, or an array for each column."""

    takes_label_file = True

    def __init__(self, path: str, format_name: str, options: ConvertOptions) -> None:
        super().__init__(path, os.path.getsize(path))
        self._options = options
        self._label = options.y_name
        try:
            with structure_errors(path):
                found = getattr(self, f"_open_{format_name}")()
                if options.labels is not None:
                    found.named[options.y_name] = self._open_label_file()
                self._name_columns(found)
                self._arrays, sparse = found.named, found.sparse
                self._sparse = sparse
                self._starts = self._row_pointers(sparse) if sparse is not None else None
        except BaseException:
            self.close()
            raise
        self._row = 0
        row_bytes = sum(
            max(8, array.dtype.itemsize) * int(np.prod(array.shape[1:]))
            for array in self._arrays.values()
        )
        if self._starts is not None:
            row_bytes += 12 * int(self._starts[-1]) // max(1, self._n_rows)
        self._block_rows = max(1, readers.BLOCK_BYTES // max(1, row_bytes))
        self._block_rows = min(readers.MAX_BLOCK_ROWS, self._block_rows)

    def _open_npy(self) -> _Arrays:
        array = open_npy(self.name)
        self.resources.callback(array.close)
        return _Arrays({self._options.x_name: array})

    def _open_npz(self) -> _Arrays:
        try:
            archive = self.resources.enter_context(zipfile.ZipFile(self.name))
            members = {
                item.filename.removesuffix(".npy"): _ZipArray(self.name, archive, item)
                for item in archive.infolist()
                if item.filename.endswith(".npy")
            }
        except (OSError, zipfile.BadZipFile, ValueError, EOFError) as error:
            raise InputError(
                f"{self.name} cannot be read as .npz ({error}); write it with numpy.savez"
            ) from error
        self.compressed = any(
            item.compress_type != zipfile.ZIP_STORED for item in archive.infolist()
        )
        if not {*CSR_PARTS, "shape"} <= set(members):
            return self._choose(members)
        kind = members.pop("format")[0:1] if "format" in members else None
        if kind is not None and word_of(kind.reshape(-1)[0]) != "csr":
            raise InputError(f"{self.name} is a sparse matrix in another form; save it as CSR")
        parts = {name: members.pop(name) for name in CSR_PARTS}
        return _Arrays(members, {**parts, "shape": members.pop("shape")[0:2]})

    def _open_hdf5(self) -> _Arrays:
        file = open_file(self.name)
        self.resources.callback(close_file, file)
        if is_converted(file):
            raise InputError(f"{self.name} is a converted file already: use it as it is")
        x_name, label = self._options.x_name, self._options.label
        rows, y_name = find_node(file, x_name), self._options.y_name
        if rows is not None:
            self.label_names = _label_names(file, x_name)
            # Labels are at the root, or beside the rows as in AnnData.
            for place in () if label is None else (label, f"obs/{label}"):
                if label is not None and find_node(file, place) is not None:
                    y_name, self._label = place, label
                    break
        found = _Arrays()
        if (labels := find_node(file, y_name)) is not None:
            found.named[self._label] = self._open_labels(labels)
        if not isinstance(rows, h5py.Group):
            nodes = {name: find_node(file, name) for name in file}
            members = {name: _HDF5Array(node) for name, node in nodes.items() if _is_array(node)}
            if rows is not None and _is_array(rows):  # its name may be a path
                members[x_name] = _HDF5Array(rows)
            return self._choose(members | found.named)
        if not set(CSR_PARTS) <= set(rows):
            raise InputError(
                f"{self.name}: {x_name!r} is a group, but no CSR matrix ({', '.join(CSR_PARTS)} "
                f"and the attribute shape); name other rows (--x-name)"
            )
        found.sparse = {name: _HDF5Array(find_node(rows, name)) for name in CSR_PARTS}
        found.sparse["shape"] = np.array(csr_shape(rows, self.name))
        return found

    def _open_labels(self, node: Any) -> Any:
        """Labels in a data set, or in a group as AnnData writes categories."""
        if _is_array(node):
            return _HDF5Array(node)
        if isinstance(node, h5py.Group) and {"codes", "categories"} <= set(node):
            return _Categories(self.name, node, drop=self._options.missing_labels == "drop")
        known = ", ".join(self.label_names) or "none"
        raise InputError(
            f"{self.name}: {node.name!r} is neither a data set nor a group of codes and "
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

    def _choose(self, members: Mapping[str, Any]) -> _Arrays:
        """Rows and labels by their names, or every array that can be a part of a table."""
        x_name = self._options.x_name
        if x_name in members:
            names = [x_name, self._label]
            return _Arrays({name: members[name] for name in names if name in members})
        found = {name: array for name, array in members.items() if len(array.shape) in (1, 2)}
        if not found:
            raise InputError(
                f"{self.name} holds no array of rows (it has: {', '.join(members) or 'nothing'}); "
                f"name its rows with --x-name"
            )
        return _Arrays(found)

    def _name_columns(self, found: _Arrays) -> None:
        """Name the columns and check that all of them have the same length."""
        x_name = self._options.x_name
        lengths = {name: array.shape[0] for name, array in found.named.items()}
        places: dict[str, _Place] = {}
        self.sparse = found.sparse is not None
        if found.sparse is not None:
            lengths[x_name], self._width = (int(length) for length in found.sparse["shape"])
        alone = x_name in found.named
        for name, array in found.named.items():
            prefix = "" if alone and name == x_name else name
            for label, place in _columns_of(name, prefix, array):
                if label in places:
                    raise InputError(f"{self.name} has two columns {label!r}; rename one of them")
                places[label] = place
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
        kinds: dict[str, np.dtype[Any]] = {}
        for name, (array_name, part) in places.items():
            dtype = found.named[array_name].dtype
            kinds[name] = dtype[part] if isinstance(part, str) else dtype
        self.words = frozenset(name for name, kind in kinds.items() if kind.kind in "SUO")
        self.unusable = {
            name: str(kind) for name, kind in kinds.items() if kind.kind not in "biufSUO"
        }

    def _row_pointers(self, sparse: Mapping[str, Any]) -> Int64Array:
        """Where the rows of a CSR matrix begin: 8 bytes of memory per row."""
        starts = np.asarray(sparse["indptr"][0 : self._n_rows + 1], dtype=np.int64)
        stored = min(sparse[name].shape[0] for name in ("data", "indices"))
        if (
            len(starts) != self._n_rows + 1
            or starts[0] != 0
            or starts[-1] > stored
            or np.any(np.diff(starts) < 0)
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
        """Read the parts of all arrays that belong to a block, with the number of its first row."""
        while self._row < self._n_rows:
            start, stop = self._row, min(self._n_rows, self._row + self._block_rows)
            block = {name: array[start:stop] for name, array in self._arrays.items()}
            if self._sparse is not None and self._starts is not None:
                first, last = (int(self._starts[row]) for row in (start, stop))
                for name in ("data", "indices"):
                    block[f"/{name}"] = self._sparse[name][first:last]
            self._row = stop
            self.text_bytes += sum(part.nbytes for part in block.values())
            yield start, block

    def parse(self, block: tuple[int, dict[str, AnyArray]], wanted: Wanted) -> Cells:
        """Cells of a block."""
        start, parts = block
        n_rows = min(self._n_rows, start + self._block_rows) - start

        def column(name: str) -> AnyArray:
            array, part = self._places[name]
            if part is None:
                return parts[array]
            return parts[array][part] if isinstance(part, str) else parts[array][:, part]

        def place(row: int) -> str:
            return f"{self.name}, row {start + row}"

        labels: Float64Array | Words = np.zeros(n_rows)
        if wanted.label is not None:
            label = column(wanted.label)
            if wanted.label in self.words:
                labels = _array_words(label, place)
            else:
                for row in np.flatnonzero(inexact_labels(label))[:1].tolist():
                    raise label_not_exact(place(row), label[row])
                labels = label.astype(np.float64)
        numbers: Float64Array | CSRRows
        if self._starts is not None:
            # A copy: what is read from an .npz file cannot be written to.
            data = np.array(parts["/data"], dtype=np.float64)
            starts = self._starts[start : start + n_rows + 1]
            rows = canonical_csr(data, parts["/indices"], starts, self._width, self.name)
            numbers = keep_stored(rows, rows.data != 0, self._width)
        else:
            numbers = np.empty((n_rows, len(wanted.numbers)))
            for j, name in enumerate(wanted.numbers):
                numbers[:, j] = column(name)
        words = tuple(_array_words(column(name), place) for name in wanted.words)
        return Cells(self.name, labels, numbers, words, lambda row: f"row {start + row}")


class _HDF5Array(DatasetSlices):
    """A data set; text in it is read as bytes."""

    def __init__(self, dataset: Any) -> None:
        check_filters(dataset)
        check_storage(dataset)
        super().__init__(dataset)
        self.shape = dataset.shape
        text = h5py.check_string_dtype(dataset.dtype) is not None
        # Objects that are not text are references and the like.
        usable = text or dataset.dtype.kind != "O"
        self.dtype = dataset.dtype if usable else np.dtype(np.void)


class _Categories:
    """Labels as AnnData writes categories: a code for each row, -1 where it is missing.

    Missing ones are an error unless rows without a label will be dropped.
    """

    def __init__(self, path: str, group: Any, *, drop: bool) -> None:
        self._codes = _HDF5Array(_part(path, group, "codes"))
        self.shape = self._codes.shape
        self.dtype = np.dtype(object)
        if len(self.shape) != 1 or self._codes.dtype.kind not in "iu":
            raise InputError(f"{path}: the codes of {group.name!r} are no list of whole numbers")
        try:
            words = [word_of(value) for value in _HDF5Array(_part(path, group, "categories"))[:]]
        except UnicodeDecodeError:
            raise InputError(
                f"{path}: the categories of {group.name!r} are not UTF-8 text; write them again"
            ) from None
        self._words = np.array([*words, None], dtype=object)
        n_missing = 0
        for start in range(0, self.shape[0], CODES):
            codes = self._codes[start : start + CODES]
            if not -1 <= int(codes.min()) <= int(codes.max()) < len(words):
                raise InputError(
                    f"{path}: {group.name!r} has codes that are none of its {len(words)} categories"
                )
            n_missing += int(np.count_nonzero(codes == -1))
        if n_missing and not drop:
            raise InputError(
                f"{path}: {n_missing} of {self.shape[0]} rows have no category in {group.name!r}; "
                f"leave them out with --missing-labels drop"
            )

    def __getitem__(self, key: slice) -> AnyArray:
        return np.asarray(self._words[self._codes[key]])


def _part(path: str, group: Any, name: str) -> Any:
    node = find_node(group, name)
    if not _is_array(node):
        raise InputError(f"{path}: {group.name}/{name} is no data set; write the group again")
    return node


def _label_names(file: Any, x_name: str) -> tuple[str, ...]:
    """What may be labels in a file of named arrays, for messages."""
    found = []
    for prefix, group in (("", file), ("obs/", find_node(file, "obs"))):
        for name in group if isinstance(group, h5py.Group) else ():
            node = find_node(group, name)
            is_list = _is_array(node) and len(node.shape) == 1
            is_coded = isinstance(node, h5py.Group) and "codes" in node
            if name not in (x_name, "_index") and (is_list or is_coded):
                found.append(f"{prefix}{name}")
    return tuple(found)


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
        if self.dtype.hasobject:
            raise ValueError(f"{item.filename} holds Python objects")
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
        n_bytes = int(np.prod(shape)) * self.dtype.itemsize
        try:
            data = self._stream.read(n_bytes)
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"{self._name} is damaged ({error}); fetch it again") from error
        if len(data) < n_bytes:
            raise InputError(f"{self._name} is cut short; fetch it again")
        self._position = stop
        return np.frombuffer(data, dtype=self.dtype).reshape(shape)


def _columns_of(name: str, prefix: str, array: Any) -> Iterator[tuple[str, _Place]]:
    """Columns of an array, by name."""
    if array.dtype.names:
        if len(array.shape) != 1:
            raise InputError(f"{name!r} is a table of records; give one record a row")
        for record in array.dtype.names:
            yield record, _Place(name, record)
    elif len(array.shape) == 1:
        yield name, _Place(name)
    elif len(array.shape) == 2:
        for j in range(array.shape[1]):
            yield f"{prefix}{j}", _Place(name, j)
    else:
        raise InputError(
            f"the rows {name!r} must be a table of two dimensions, not of {len(array.shape)}"
        )


def _array_words(column: AnyArray, place: Callable[[int], str]) -> Words:
    """Column of an array as words."""
    if column.dtype.kind == "O":
        values = column.tolist()
        codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
        return collect_words(np.array([codes[value] for value in values], int), codes, place)
    found, places = np.unique(column, return_inverse=True)
    return collect_words(places.reshape(-1), found.tolist(), place)


def _is_array(node: Any) -> bool:
    return isinstance(node, h5py.Dataset) and node.shape not in (None, ())
