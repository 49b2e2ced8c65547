"""What every source of rows promises, and the parts all of them share.

Owns the `RowSource` protocol, the checks that rows pass when they enter the program (finite,
float32, sorted columns) and the rule that turns wanted row numbers into a few contiguous reads.
Knows no file format: each storage has a module of its own. Decides nothing about which rows to
read: that is `ooc_fw.data.sampling`.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import (
    CSRRows,
    Float32Array,
    Float64Array,
    Int64Array,
    Rows,
    StoredRows,
    concat_rows,
    take_rows,
)
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    from ooc_fw.data.scaling import Scaling

AnyArray: TypeAlias = npt.NDArray[Any]

CHUNK_BYTES = 2 << 20
"""Read unit, in decoded bytes, of storage that has no chunks of its own."""

GAP_BYTES = 256 << 10
"""Bytes that are cheaper to read along with their neighbours than to jump over in a second read."""


@dataclass(frozen=True)
class StoredStatistics:
    """Statistics of all rows as a file states them.

    Parameters
    ----------
    mean : ndarray of float64, shape (n_features,)
        Mean row.
    mean_square_norm : float
        Mean of the squared Euclidean norms of the rows.
    """

    mean: Float64Array
    mean_square_norm: float


class Sliceable(Protocol):
    """A sequence of numbers that gives contiguous parts of itself as arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice, /) -> AnyArray: ...


@runtime_checkable
class RowSource(Protocol):
    """Rows of a labelled data set, wherever they are kept.

    Nothing that uses a source asks where its rows come from. Reading never loads more than what is
    asked for, up to whole chunks. Several threads may read at once.
    """

    @property
    def name(self) -> str:
        """File path, or the kind of object, for messages."""

    @property
    def n_rows(self) -> int:
        """Number of rows, at least 1."""

    @property
    def n_features(self) -> int:
        """Number of columns, at least 1."""

    @property
    def chunk_rows(self) -> int:
        """Natural read unit in rows, at least 1 and at most `n_rows`."""

    @property
    def sparse(self) -> bool:
        """Whether `read` gives `CSRRows` rather than a dense block."""

    @property
    def decoded_bytes(self) -> int:
        """Bytes that all rows would take in RAM."""

    @property
    def read_bytes(self) -> int:
        """Bytes that reading takes at most, beside the rows asked for."""

    @property
    def in_memory(self) -> bool:
        """Whether the caller already holds the rows in RAM, so that any access is cheap."""

    @property
    def shuffled(self) -> bool | None:
        """Whether the rows are in random order; None when nothing says so."""

    @property
    def scaling(self) -> Scaling | None:
        """Scaling that was applied to the rows; None when nothing says so."""

    @property
    def statistics(self) -> StoredStatistics | None:
        """Statistics stored with the rows, if any."""

    @property
    def has_labels(self) -> bool:
        """Whether `labels` can be called."""

    @property
    def rows_read(self) -> int:
        """Rows handed out so far."""

    @property
    def bytes_read(self) -> int:
        """Bytes (uncompressed) fetched from the storage so far."""

    @property
    def reopen(self) -> Callable[[], RowSource] | None:
        """What another process calls to read the same rows; None where it cannot."""

    def count(self, n_rows: int, n_bytes: int) -> None:
        """Add to `rows_read` and `bytes_read`, for what another process read of these rows."""

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``start:stop``.

        Parameters
        ----------
        start, stop : int
            ``0 <= start <= stop <= n_rows``.

        Returns
        -------
        ndarray of float32, shape (stop - start, n_features), C-contiguous, or CSRRows
            All values finite. May be a view of the caller's array: not to be written to.

        Raises
        ------
        InputError
            A value is not finite, or the file was changed, cut short or cannot be read.
        """

    def read_exact(self, start: int, stop: int) -> StoredRows:
        """Rows ``start:stop`` as by `read`, but of float64 where they are stored with more digits.

        For whoever scales them before they are rounded.
        """

    def take(self, indices: Int64Array) -> Rows:
        """Rows at `indices`, fetched in contiguous spans or whole chunks.

        Parameters
        ----------
        indices : ndarray of int64
            Increasing, without repeats.

        Returns
        -------
        Rows
            As for `read`, in the order of `indices`.
        """

    def labels(self, start: int, stop: int) -> AnyArray:
        """Label values of rows ``start:stop`` as stored; InputError when there are none."""

    def row_ids(self, start: int, stop: int) -> Int64Array:
        """Position of rows ``start:stop`` in the user's own input, counted from 0."""

    def limited(self, check: Callable[[], None] | None) -> AbstractContextManager[None]:
        """Have `check`, which may raise, called before each read within."""

    def check_unchanged(self) -> None:
        """Raise InputError when the file behind the rows is no longer the one that was opened."""

    def close(self) -> None:
        """Release the file; reading afterwards is an error. Objects of the caller stay open."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class FileStamp:
    """Size and time of change of a file, to notice when somebody replaces or cuts it.

    Parameters
    ----------
    path : str
        File to remember; what it is now is what it has to stay.
    descriptor : int or None
        The same file as it was opened, where somebody may have put another in its place since.

    Attributes
    ----------
    seen : tuple of int
        Size in bytes and time of change in nanoseconds.
    """

    def __init__(self, path: str, descriptor: int | None = None) -> None:
        self.path = path
        self.seen = self._look(path if descriptor is None else descriptor)

    def _look(self, file: str | int) -> tuple[int, int]:
        status = os.stat(file)
        return status.st_size, status.st_mtime_ns

    def check(self) -> None:
        """Raise InputError when the file is no longer the one that was stamped."""
        try:
            now = self._look(self.path)
        except OSError as error:
            raise InputError(
                f"{self.path} went away while it was in use ({error.strerror}); put it back"
            ) from error
        if now != self.seen:
            raise InputError(
                f"{self.path} was changed while it was in use (it had {self.seen[0]} bytes, now "
                f"{now[0]}); start again with a file that stays as it is"
            )


class SourceBase(ABC):
    """Common part of the sources: range checks, spans, labels and counters.

    A subclass implements `_fetch`; everything else has a sensible default. Whoever knows how to
    open the same rows in another process sets `reopen`. Labels that were given apart from the rows
    may stay behind.

    Parameters
    ----------
    name : str
        File path, or the kind of object, for messages.
    shape : tuple of int
        Number of rows and of columns.
    labels : Sliceable or None
        One label a row.
    chunk_rows : int or None
        Natural read unit; None for `CHUNK_BYTES` of decoded rows.
    decoded_bytes : int or None
        Bytes of all rows in RAM; None for a dense float32 block.

    Raises
    ------
    InputError
        No rows, no columns, or a number of labels that is not the number of rows.
    """

    sparse: bool = False
    in_memory: bool = False
    shuffled: bool | None = None
    scaling: Scaling | None = None
    statistics: StoredStatistics | None = None
    cache_bytes: int = 0
    """Bytes of decoded rows that the source may keep for itself between two reads."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        labels: Sliceable | None = None,
        chunk_rows: int | None = None,
        decoded_bytes: int | None = None,
    ) -> None:
        check_shape(name, shape)
        self.name = name
        self.n_rows, self.n_features = (int(length) for length in shape)
        self.decoded_bytes = (
            4 * self.n_rows * self.n_features if decoded_bytes is None else decoded_bytes
        )
        self.chunk_rows = min(self.n_rows, chunk_rows or self._rows_in(CHUNK_BYTES))
        # How `take` groups row numbers: a jump of at most `max_gap` rows is read over, and no span
        # crosses a multiple of `span_rows`.
        self.max_gap = self._rows_in(GAP_BYTES)
        self.span_rows = max(self.chunk_rows, self._rows_in(CHUNK_BYTES))
        self._labels = labels
        if labels is not None and len(labels) != self.n_rows:
            raise InputError(
                f"{name} has {self.n_rows} rows but {len(labels)} labels came with it; "
                f"give one label a row"
            )
        self.reopen: Callable[[], RowSource] | None = None
        self._stamp: FileStamp | None = None
        self._check_time: Callable[[], None] | None = None
        self._resources = ExitStack()
        self._rows_read = 0
        self._bytes_read = 0
        self._counting = threading.Lock()

    @abstractmethod
    def _fetch(self, start: int, stop: int) -> tuple[StoredRows, int]:
        """Rows ``start:stop`` as stored, not yet known to be finite, and the bytes fetched."""

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``start:stop``; see `RowSource.read`."""
        self._check_range(start, stop)
        stored, n_bytes = self._fetch(start, stop)
        rows = rounded(stored)
        check_finite(rows, self.name, range(start, stop))
        self._count(stop - start, n_bytes)
        return rows

    def read_exact(self, start: int, stop: int) -> StoredRows:
        """Rows ``start:stop`` of float32 or float64; see `RowSource.read_exact`."""
        self._check_range(start, stop)
        rows, n_bytes = self._fetch(start, stop)
        values = rows.data if isinstance(rows, CSRRows) else rows
        if not np.can_cast(values.dtype, np.float32):
            values = np.ascontiguousarray(values, dtype=np.float64)
            rows = replace(rows, data=values) if isinstance(rows, CSRRows) else values
        else:
            rows = rounded(rows)
        check_finite(rows, self.name, range(start, stop))
        self._count(stop - start, n_bytes)
        return rows

    def take(self, indices: Int64Array) -> Rows:
        """Rows at `indices`; see `RowSource.take`."""
        if len(indices) == 0:
            return self.read(0, 0)
        self._check_range(int(indices[0]), int(indices[-1]) + 1)
        pieces = []
        for span in split_spans(indices, self.max_gap, self.span_rows):
            first, stop = int(span[0]), int(span[-1]) + 1
            stored, n_bytes = self._fetch(first, stop)
            rows = rounded(stored)
            piece = rows if stop - first == len(span) else take_rows(rows, span - first)
            check_finite(piece, self.name, span)
            pieces.append(piece)
            self._count(len(span), n_bytes)
        return concat_rows(pieces)

    @property
    def read_bytes(self) -> int:
        """Bytes that reading takes at most: a span of rows of which few may be wanted."""
        return 0 if self.in_memory else self.span_rows * self.decoded_bytes // self.n_rows

    @property
    def rows_read(self) -> int:
        """Rows handed out so far."""
        return self._rows_read

    @property
    def bytes_read(self) -> int:
        """Bytes (uncompressed) fetched from the storage so far."""
        return self._bytes_read

    def count(self, n_rows: int, n_bytes: int) -> None:
        """Add what another process read of these rows; see `RowSource.count`."""
        if self._check_time is not None:
            self._check_time()
        self._count(n_rows, n_bytes)

    @property
    def has_labels(self) -> bool:
        """Whether `labels` can be called."""
        return self._labels is not None

    def drop_labels(self) -> None:
        """Forget the labels: they are not those of the rows."""
        self._labels = None

    def labels(self, start: int, stop: int) -> AnyArray:
        """Label values of rows ``start:stop`` as stored."""
        self._check_range(start, stop)
        if self._labels is None:
            raise InputError(f"{self.name} has no labels; {self._labels_hint()}")
        labels = np.asarray(self._labels[start:stop])
        self.check_unchanged()
        return labels

    def _labels_hint(self) -> str:
        return "pass one label a row as labels"

    def row_ids(self, start: int, stop: int) -> Int64Array:
        """Position of rows ``start:stop`` in the user's own input, counted from 0."""
        self._check_range(start, stop)
        return np.arange(start, stop, dtype=np.int64)

    @contextmanager
    def limited(self, check: Callable[[], None] | None) -> Iterator[None]:
        """Have `check` called before each read of rows or labels within, in any thread.

        It raises to end a pass over the rows, such as `ooc_fw.solve.deadline.Deadline.check` does.
        """
        before, self._check_time = self._check_time, check
        try:
            yield
        finally:
            self._check_time = before

    @property
    def stamp(self) -> tuple[int, int] | None:
        """Size and time of change of the file behind the rows, as `FileStamp.seen`."""
        return None if self._stamp is None else self._stamp.seen

    def check_unchanged(self) -> None:
        """Raise InputError when the file behind the rows is not as it was when opened."""
        if self._stamp is not None:
            self._stamp.check()

    def check_stamp(self, stamp: tuple[int, int] | None) -> None:
        """Close the source and raise InputError unless its `stamp` is this one."""
        if self.stamp != stamp:
            self.close()
            raise InputError(
                f"{self.name} is not the file it was when the work began (size or time of change "
                f"differ); start again, and let all machines see one file, or copies with equal "
                f"times (cp -p)"
            )

    def own(self, release: Callable[[], object]) -> None:
        """Have `release` called when the source is closed."""
        self._resources.callback(release)

    def close(self) -> None:
        """Release the files that this source opened."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # A task on another machine gets the way to open the file there, never rows or handles.
        if self.reopen is None:
            raise TypeError(f"{self!r} cannot be sent to another process; open it from a path")
        return _call, (self.reopen,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.n_rows} x {self.n_features}>"

    def _rows_in(self, n_bytes: int) -> int:
        """Count the average rows, at least 1, that take `n_bytes` in RAM."""
        return max(1, n_bytes * self.n_rows // max(1, self.decoded_bytes))

    def _check_range(self, start: int, stop: int) -> None:
        """Before every read: there are such rows, and there is time for them."""
        if self._check_time is not None:
            self._check_time()
        if not 0 <= start <= stop <= self.n_rows:
            raise IndexError(f"rows {start}:{stop} of {self.name}, which has {self.n_rows}")

    def _count(self, n_rows: int, n_bytes: int) -> None:
        # Threads of one sweep share the source; += alone would lose counts.
        with self._counting:
            self._rows_read += n_rows
            self._bytes_read += n_bytes


def _call(reopen: Callable[[], RowSource]) -> RowSource:
    return reopen()


def iter_blocks(
    source: RowSource, start: int, stop: int, max_bytes: int = 2 * CHUNK_BYTES
) -> Iterator[tuple[int, Rows]]:
    """Rows ``start:stop`` in consecutive blocks of about `max_bytes` decoded bytes.

    Yields
    ------
    tuple of int and Rows
        Position of the block's first row, and the block.
    """
    for first, last in block_slices(source, start, stop, max_bytes):
        yield first, source.read(first, last)


class WrappedSource(SourceBase):
    """A source that hands out the rows of another in its own way; subclasses fetch them.

    Parameters
    ----------
    source : RowSource
        Where the rows come from; closed with the wrapper.
    decoded_bytes : int or None
        Bytes of all rows as handed out; None where they are dense float32.
    n_rows : int or None
        Rows handed out; None for all.
    """

    def __init__(
        self, source: RowSource, *, decoded_bytes: int | None, n_rows: int | None = None
    ) -> None:
        super().__init__(
            source.name,
            (source.n_rows if n_rows is None else n_rows, source.n_features),
            chunk_rows=source.chunk_rows,
            decoded_bytes=decoded_bytes,
        )
        self.source = source
        self.shuffled = source.shuffled
        self.cache_bytes = getattr(source, "cache_bytes", 0)
        self.own(source.close)

    @property
    def read_bytes(self) -> int:
        """Bytes that reading takes at most, here and by the wrapped source."""
        return super().read_bytes + self.source.read_bytes

    @property
    def bytes_read(self) -> int:
        """Bytes that the wrapped source fetched from its storage so far."""
        return self.source.bytes_read

    def count(self, n_rows: int, n_bytes: int) -> None:
        """Add what another process read; see `RowSource.count`."""
        self._count(n_rows, 0)
        self.source.count(n_rows, n_bytes)

    @property
    def has_labels(self) -> bool:
        """Whether the wrapped source has labels."""
        return self.source.has_labels

    def labels(self, start: int, stop: int) -> AnyArray:
        """Label values of rows ``start:stop`` as stored."""
        return self.source.labels(start, stop)

    def row_ids(self, start: int, stop: int) -> Int64Array:
        """Position of rows ``start:stop`` in the user's own input, counted from 0."""
        return self.source.row_ids(start, stop)

    def check_unchanged(self) -> None:
        """Raise InputError when the wrapped source's file is not as it was when opened."""
        self.source.check_unchanged()


def block_slices(
    source: RowSource, start: int, stop: int, max_bytes: int = 2 * CHUNK_BYTES
) -> list[tuple[int, int]]:
    """Where the blocks of `iter_blocks` begin and end; follows from the rows alone."""
    step = max(1, max_bytes * source.n_rows // max(1, source.decoded_bytes))
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def split_spans(indices: Int64Array, max_gap: int, span_rows: int) -> list[Int64Array]:
    """Cut increasing row numbers into groups, each to be read as one contiguous span.

    Parameters
    ----------
    indices : ndarray of int64
        Increasing row numbers.
    max_gap : int
        Neighbours at most this far apart share a span.
    span_rows : int
        No span crosses a multiple of this number, which bounds the memory of one read.

    Returns
    -------
    list of ndarray of int64
        Views that together are `indices`.
    """
    far = np.diff(indices) > max_gap
    crossing = np.diff(indices // span_rows) > 0
    return np.split(indices, np.flatnonzero(far | crossing) + 1)


def check_shape(name: str, shape: Sequence[int]) -> None:
    """Raise InputError unless `shape` is that of a table with rows and columns."""
    if len(shape) != 2:
        raise InputError(
            f"the rows in {name} must be a table of two dimensions, not of {len(shape)}"
        )
    if shape[0] < 1 or shape[1] < 1:
        raise InputError(
            f"{name} is empty ({shape[0]} rows, {shape[1]} columns); give at least one of each"
        )


def check_real(name: str, dtype: np.dtype[Any]) -> None:
    """Raise InputError unless values of `dtype` are real numbers."""
    if dtype.kind not in "biuf":
        raise InputError(
            f"the rows in {name} are of type {dtype}, but must be real numbers; "
            f"convert them to float32"
        )


def as_float32(block: AnyArray) -> Float32Array:
    """C-contiguous float32 form of `block`, a view where it is that already.

    Values beyond the range of float32 become infinite and are caught by `check_finite`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(block, dtype=np.float32)


def rounded(rows: StoredRows) -> Rows:
    """Rows with values of float32, themselves where they are that already."""
    if not isinstance(rows, CSRRows):
        return as_float32(rows)
    return rows if rows.data.dtype == np.float32 else replace(rows, data=as_float32(rows.data))


def check_finite(rows: StoredRows, name: str, row_numbers: Sequence[int] | Int64Array) -> None:
    """Raise InputError when a value is not finite.

    Parameters
    ----------
    rows : Rows
        Block to look at.
    name : str
        Source, for the message.
    row_numbers : sequence of int
        Stored number of each row of the block, for the message.
    """
    values = rows.data if isinstance(rows, CSRRows) else rows
    finite = np.isfinite(values)
    if finite.all():
        return
    bad = int(np.flatnonzero(~finite)[0])
    if isinstance(rows, CSRRows):
        row = int(np.searchsorted(rows.indptr, bad, side="right")) - 1
        column = int(rows.indices[bad])
    else:
        row, column = divmod(bad, rows.shape[1])
    raise InputError(
        f"{name}: row {int(row_numbers[row])} holds a value in column {column} that is missing, "
        f"infinite or too large for float32; remove the row or replace the value"
    )


def canonical_csr(
    data: AnyArray,
    indices: AnyArray,
    indptr: AnyArray,
    n_features: int,
    name: str,
) -> CSRRows:
    """Sparse rows with increasing, unique columns, whatever was stored.

    Parameters
    ----------
    data, indices : ndarray, shape (n_stored,)
        Values and columns of consecutive rows.
    indptr : ndarray, shape (n_rows + 1,)
        Where each row begins, counted from any origin.
    n_features : int
        Number of columns.
    name : str
        Source, for messages.

    Returns
    -------
    CSRRows
        Views of the input where it is in this form already.

    Raises
    ------
    InputError
        A column number is negative or not below `n_features`.

    Notes
    -----
    Values stay in the stored precision, in which repeated entries of one cell are added.
    """
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < n_features:
        raise InputError(
            f"{name} has a column number outside 0 to {n_features - 1}; "
            f"correct its indices or its shape"
        )
    starts = indptr.astype(np.int64) - int(indptr[0])
    unsorted = indices[1:] <= indices[:-1]
    inner = starts[1:-1]
    unsorted[inner[(inner > 0) & (inner < len(indices))] - 1] = False  # neighbours in two rows
    if unsorted.any():
        data, indices, starts = _sort_and_merge(data, indices, starts)
    columns = np.ascontiguousarray(indices, dtype=np.int32)
    return CSRRows(data, columns, starts, n_features)


def _sort_and_merge(
    data: AnyArray, indices: AnyArray, indptr: Int64Array
) -> tuple[AnyArray, AnyArray, Int64Array]:
    """Sort each row by column and add up repeated columns."""
    n_rows = len(indptr) - 1
    row_of = np.repeat(np.arange(n_rows), np.diff(indptr))
    order = np.lexsort((indices, row_of))
    row_of, indices = row_of[order], indices[order]
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = (row_of[1:] != row_of[:-1]) | (indices[1:] != indices[:-1])
    merged = np.add.reduceat(data[order], np.flatnonzero(fresh))
    starts = np.zeros(n_rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(row_of[fresh], minlength=n_rows), out=starts[1:])
    return merged, indices[fresh], starts
