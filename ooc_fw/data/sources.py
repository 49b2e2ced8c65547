"""`RowSource`, the interface of all sources of rows, and the two kinds that read storage.

`ArraySource` reads dense rows from one array, and `CSRSource` reads sparse rows from three arrays.
An array is anything with slices: in RAM, at a place in a file, or in chunks that are decoded.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from ooc_fw.data.arrays import Sliceable
from ooc_fw.data.rows import (
    FLOAT32,
    AnyArray,
    CSRRows,
    Float64Array,
    Int64Array,
    Rows,
    StoredRows,
    canonical_csr,
    check_finite,
    check_pointers,
    check_real,
    check_shape,
    concat_rows,
    converted,
    rows_bytes,
    take_rows,
)
from ooc_fw.data.scaling import Scaling
from ooc_fw.system.errors import InputError

CHUNK_BYTES = 2 << 20  # decoded bytes that are read together from storage without chunks
ROUNDING = 1e-12  # a variance below this share of the mean squared norm is rounding error


@dataclass(frozen=True)
class StoredStatistics:
    """Mean row, shape (n_features,), and mean squared norm of all rows."""

    mean: Float64Array
    mean_square_norm: float

    @property
    def average_squared_distance(self) -> float:
        """Average of ``|x_i - x_j|^2`` over all ordered pairs of rows; 0 if it is only rounding."""
        spread = self.mean_square_norm - float(self.mean @ self.mean)
        return 2 * spread if spread > ROUNDING * self.mean_square_norm else 0.0


# Facts of a source that hold for all sources that are made from it.
_FACTS = (
    "sparse shuffled scaling columns choices fills_missing table targets n_input origin".split()
)

FileStamp: TypeAlias = tuple[int, int]  # size of a file in bytes, time of change in nanoseconds


def stamp_of(file: str | int) -> FileStamp:
    """Stamp of the file at a path or with a descriptor; (0, 0) if it does not exist."""
    try:
        status = os.stat(file)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def check_stamp(path: str, seen: FileStamp) -> None:
    """Raise InputError if the file at `path` has another stamp than the one `seen` before."""
    if stamp_of(path) != seen:
        raise InputError(
            f"{path} was changed while it was in use; start again and leave it as it is"
        )


class RowSource(ExitStack):
    """Rows of a labelled data set in any storage; it is closed like an `ExitStack`.

    A read loads only the rows in question, up to whole chunks, and several threads may read at the
    same time. A subclass implements `_fetch`. If it takes rows from other sources, it names them as
    `parents`; facts about the rows of the first parent hold here, too.
    """

    name: str  # path of the file, or kind of the object, for messages
    n_rows: int
    n_features: int
    chunk_rows: int  # rows that the storage reads together
    decoded_bytes: int  # bytes of all rows in RAM
    max_gap: int  # `take` reads over gaps of at most so many rows
    span_rows: int  # no read by `take` crosses a multiple of this row number
    dtype: np.dtype[Any] = FLOAT32  # type of the values in storage
    sparse: bool = False  # whether `read` returns `CSRRows` rather than a dense block
    in_memory: bool = False  # whether the caller already holds the rows in RAM
    shuffled: bool | None = None  # whether rows are in random order; None: unknown
    scaling: Scaling | None = None  # scaling that was applied to the rows; None: unknown
    statistics: StoredStatistics | None = None  # statistics that are stored with the rows
    columns: Sequence[str] | None = None  # names of the features; None: unknown
    choices: Sequence[str] = ()  # names of all that the file of another program holds
    fills_missing: bool = False  # whether features of a model that the rows lack count as 0
    table: str | None = None  # `TableRecord` as JSON: how features came from columns of a table
    targets: bool | None = None  # whether labels are targets; None: unknown
    kept_bytes: int = 0  # most bytes of rows, or of their numbers, in memory between two reads
    # Arrays with values for each row, if there are any: labels "y", each "weight" in training, and
    # the number "row" in the user's own input (by default the number here). If columns are encoded
    # by labels, there are "categories", too; see `ooc_fw.data.encoded`.
    beside: dict[str, Sliceable]
    n_input: int  # number of rows of that input
    # What is known of where rows and labels come from: "x_name", "label", "labels_as" and
    # "ordinary", the label of the rows that a novelty model learns.
    origin: Mapping[str, str] = MappingProxyType({})
    # Function and arguments that open the same rows in another process; None for rows in RAM.
    recipe: tuple[Any, ...] | None = None
    # A function that runs before each read; it raises if there is no time for it.
    check_time: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        labels: Sliceable | None = None,
        chunk_rows: int | None = None,
        decoded_bytes: int | None = None,
        parents: tuple[RowSource, ...] = (),
    ) -> None:
        super().__init__()
        check_shape(name, shape)
        self.name = name
        self.n_rows = int(shape[0])
        self.n_features = int(shape[1])
        dense_bytes = 4 * self.n_rows * self.n_features
        self.decoded_bytes = dense_bytes if decoded_bytes is None else decoded_bytes
        self.chunk_rows = min(self.n_rows, chunk_rows or self.rows_in(CHUNK_BYTES))
        self.max_gap = self.rows_in(256 << 10)  # a second read would take longer
        self.span_rows = max(self.chunk_rows, self.rows_in(CHUNK_BYTES))
        self.n_input = self.n_rows
        self.beside = {}
        if labels is not None:
            self.beside["y"] = self.by_row(labels, "labels")
        self._parents = parents
        for fact in _FACTS if parents else ():
            setattr(self, fact, getattr(parents[0], fact))
        self.stamps: dict[str, FileStamp] = {}  # by file; the files of the rows must not change
        self._counting = threading.Lock()
        self.rows_read = 0
        self._bytes_read = 0

    @abstractmethod
    def _fetch(self, start: int, stop: int) -> StoredRows:
        """Rows ``start:stop`` as stored; they may hold infinite values."""

    def read(self, start: int, stop: int, *, exact: bool = False, checked: bool = True) -> Rows:
        """Rows ``start:stop``, finite if `checked`; do not change them, they may be a view.

        With `exact`, rows are in float64 if more digits are stored than float32 holds.
        """
        self._check_range(start, stop)
        rows = self._fetch_unchanged(start, stop, exact)
        if checked:
            check_finite(rows, self.name, range(start, stop))
        self._count(stop - start)
        return rows

    def take(self, indices: Int64Array, *, exact: bool = False) -> Rows:
        """Rows at increasing `indices` without repeats; reads go over contiguous spans."""
        first, stop = span_of(indices)
        if stop - first == len(indices) and not self.in_memory:  # rows in RAM are copied
            return self.read(first, stop, exact=exact)
        self._check_range(first, stop)
        rows = self._take(indices, exact)
        self._count(len(indices))
        return rows

    def _take(self, indices: Int64Array, exact: bool) -> Rows:
        """Rows at `indices`, which must exist."""
        pieces = []
        for span in split_spans(indices, self.max_gap, self.span_rows):
            first, stop = span_of(span)
            rows = self._fetch_unchanged(first, stop, exact)
            piece = rows if stop - first == len(span) else take_rows(rows, span - first)
            check_finite(piece, self.name, span)
            pieces.append(piece)
        return concat_rows(pieces)

    def _fetch_unchanged(self, start: int, stop: int, exact: bool) -> Rows:
        """Rows in their final type; if a file has changed, InputError replaces any other error."""
        try:
            rows = self._fetch(start, stop)
        finally:
            self.check_unchanged()
        return self._converted(rows, exact)

    def _converted(self, rows: StoredRows, exact: bool) -> Rows:
        """Count bytes from storage, and round rows to float32 (unless `exact` keeps digits)."""
        if not self._parents:
            self._count(0, rows_bytes(rows))
        rounded: Rows = converted(rows, exact=exact)
        return rounded

    @property
    def read_bytes(self) -> int:
        """Most bytes that a read takes in addition to its rows and labels."""
        own_bytes = self.span_rows * self.decoded_bytes // self.n_rows
        if not self._parents:  # the span as stored, in 64 bits, and compressed; row pointers
            own_bytes = 4 * own_bytes + 8 * self.n_rows * self.sparse
        own_bytes *= not self.in_memory
        own_bytes += self.kept_bytes + getattr(self.beside.get("y"), "kept_bytes", 0)
        return own_bytes + sum(part.read_bytes for part in self._parents)

    @property
    def bytes_read(self) -> int:
        """Bytes (uncompressed) of the rows that were fetched from storage so far."""
        return self._bytes_read + sum(parent.bytes_read for parent in self._parents)

    def roots(self) -> list[RowSource]:
        """The sources that read the rows from their storage."""
        return [root for parent in self._parents for root in parent.roots()] or [self]

    @property
    def has_labels(self) -> bool:  # noqa: D102
        return "y" in self.beside

    def labels(self, start: int, stop: int) -> AnyArray:
        """Labels of rows ``start:stop`` as stored; InputError if there are none."""
        self._check_range(start, stop)
        if not self.has_labels:
            has = "; it has " * bool(self.choices) + ", ".join(self.choices)
            raise InputError(
                f"{self.name} has no labels; name them (--label), or give a file of them "
                f"(--labels; labels= in Python){has}"
            )
        return np.asarray(self.beside["y"][start:stop])

    def row_ids(self, start: int, stop: int) -> Int64Array:
        """Places of rows ``start:stop`` in the user's own input, counted from 0."""
        self._check_range(start, stop)
        ids = self.beside["row"][start:stop] if "row" in self.beside else np.arange(start, stop)
        return np.asarray(ids, dtype=np.int64)

    def by_row(self, given: Sliceable, what: str) -> Any:
        """Values `given` for the rows of the user's own input, in the order of this source.

        InputError unless each row of the input has one. A source that the user opened has an order
        of its own, and needs no such match.
        """
        if given.shape[:1] != (self.n_input,):
            part = f" of an input of {self.n_input}" * (self.n_input != self.n_rows)
            count = len(given) if given.shape else "one value as"
            raise InputError(
                f"{self.name} has {self.n_rows} rows{part} but {count} {what}; give one for "
                f"each row of the input, in its order"
            )
        if "row" not in self.beside:
            return given
        return np.asarray(given[0 : len(given)])[self.row_ids(0, self.n_rows)]

    def label_rows(self, labels: Sliceable, **origin: str) -> None:
        """Replace the labels; `origin` is what is known of the new ones."""
        self.beside["y"] = labels
        if isinstance(labels, np.ndarray):
            self.kept_bytes += labels.nbytes
        self.origin = {**self.origin, **origin}

    @contextmanager
    def limited(self, check: Callable[[], None]) -> Iterator[None]:
        """Call `check` before each read in this context, in any thread; it may raise to stop."""
        before = self.check_time
        self.check_time = check
        try:
            yield
        finally:
            self.check_time = before

    def check_unchanged(self) -> None:
        """Raise InputError if a file of the rows has changed since it was opened."""
        for path, seen in self.stamps.items():
            check_stamp(path, seen)
        for parent in self._parents:
            parent.check_unchanged()

    def hold(self, array: Any) -> None:
        """Count the memory that an array keeps, and close the array with the source."""
        self.kept_bytes += array.kept_bytes
        self.callback(array.close)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process receives the recipe to open the file there, never rows or handles.
        if self.recipe is None:
            raise InputError(
                f"other processes cannot read the rows of this {self.name}, which are in the "
                f"memory of this one; use dask threads, or give a file's path"
            )
        return self.recipe

    def rows_in(self, n_bytes: int) -> int:
        """Average number of rows in `n_bytes` of RAM, at least 1."""
        return max(1, n_bytes * self.n_rows // max(1, self.decoded_bytes))

    def _check_range(self, start: int, stop: int) -> None:
        """Before every read, check that the rows exist and that there is time for it."""
        self.check_time()
        if not 0 <= start <= stop <= self.n_rows:
            raise IndexError(f"rows {start}:{stop} of {self.name}, which has {self.n_rows}")

    def _count(self, n_rows: int, n_bytes: int = 0) -> None:
        with self._counting:  # several threads read from one source
            self.rows_read += n_rows
            self._bytes_read += n_bytes


class ArraySource(RowSource):
    """Dense rows of an array of real numbers, shape (n_rows, n_features)."""

    def __init__(self, array: Any, labels: Sliceable | None = None, name: str = "array") -> None:
        check_real(name, array.dtype)
        chunk_rows = getattr(array, "chunk_rows", None)
        super().__init__(name, array.shape, labels=labels, chunk_rows=chunk_rows)
        self.in_memory = isinstance(array, np.ndarray)
        self.dtype = array.dtype
        self._array = array

    def _fetch(self, start: int, stop: int) -> StoredRows:
        return self._array[start:stop]  # type: ignore[no-any-return]

    def _take(self, indices: Int64Array, exact: bool) -> Rows:
        if not self.in_memory:
            return super()._take(indices, exact)
        rows = self._converted(self._array[indices], exact)  # scattered access is as cheap in RAM
        check_finite(rows, self.name, indices)
        return rows


class CSRSource(RowSource):
    """Sparse rows of a CSR matrix, from scipy or a file; each read puts its columns in order."""

    sparse = True

    def __init__(
        self, matrix: Any, labels: Sliceable | None = None, name: str = "sparse matrix"
    ) -> None:
        check_real(name, matrix.data.dtype)
        n_rows = matrix.shape[0]
        self._n_stored = int(getattr(matrix, "nnz", len(matrix.data)))
        decoded_bytes = 8 * self._n_stored + 8 * (n_rows + 1)
        chunk_rows = getattr(matrix.data, "chunk_rows", None)  # number of values in a chunk
        if chunk_rows is not None:
            chunk_rows = max(1, chunk_rows * n_rows // max(1, self._n_stored))
        super().__init__(
            name, matrix.shape, labels=labels, chunk_rows=chunk_rows, decoded_bytes=decoded_bytes
        )
        self.in_memory = isinstance(matrix.data, np.ndarray)
        self.dtype = matrix.data.dtype
        self._matrix = matrix

    @cached_property
    def indptr(self) -> Int64Array:
        """Row pointers, read on first use, so that a memory limit is checked before."""
        pointers = np.asarray(self._matrix.indptr[0 : self.n_rows + 1], dtype=np.int64)
        check_pointers(pointers, self._n_stored, self.name)
        return pointers

    def _fetch(self, start: int, stop: int) -> StoredRows:
        indptr = self.indptr[start : stop + 1]
        part = slice(int(indptr[0]), int(indptr[-1]))
        data, indices = self._matrix.data[part], self._matrix.indices[part]
        return canonical_csr(data, indices, indptr, self.n_features, self.name)


def rows_source(rows: Rows, name: str, labels: Any = None) -> ArraySource | CSRSource:
    """Rows in RAM as a source."""
    return (CSRSource if isinstance(rows, CSRRows) else ArraySource)(rows, labels, name=name)


def stretches(n_rows: int, n_stretches: int = 32, length: int = 32) -> Int64Array:
    """Increasing row numbers below `n_rows`, in short stretches that are evenly spread."""
    starts = np.linspace(0, n_rows, n_stretches, endpoint=False).astype(np.int64)
    row_ids = np.unique(starts[:, None] + np.arange(length))
    return row_ids[row_ids < n_rows]


def sampled_rows(source: RowSource, n_rows: int) -> Int64Array:
    """`stretches` of `n_rows` rows, so short that these rows of a source fit into a block."""
    return stretches(n_rows, length=max(1, min(32, source.rows_in(2 * CHUNK_BYTES) // 32)))


def block_slices(
    source: RowSource, start: int, stop: int, max_bytes: int = 2 * CHUNK_BYTES
) -> list[tuple[int, int]]:
    """Cut rows ``start:stop`` into ranges of about `max_bytes` decoded bytes."""
    step = source.rows_in(max_bytes)
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def iter_blocks(
    source: RowSource, start: int, stop: int, max_bytes: int = 2 * CHUNK_BYTES
) -> Iterator[tuple[int, Rows]]:
    """Yield the first row number and the rows of each range from `block_slices`."""
    for first, last in block_slices(source, start, stop, max_bytes):
        yield first, source.read(first, last)


def span_of(rows: Int64Array) -> tuple[int, int]:
    """First of increasing row numbers, and the last plus one; 0 and 0 if there are none."""
    return (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)


def split_spans(indices: Int64Array, max_gap: int, span_rows: int) -> list[Int64Array]:
    """Cut row numbers into spans with gaps up to `max_gap`, and at multiples of `span_rows`."""
    far = np.diff(indices) > max_gap
    crossing = np.diff(indices // span_rows) > 0
    return np.split(indices, np.flatnonzero(far | crossing) + 1)
