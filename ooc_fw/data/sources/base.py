"""The interface of all sources of rows, and the parts that they share.

A source knows how its storage is read. It does not decide which rows are read: that is
`ooc_fw.data.sampling`.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np

from ooc_fw.data.rows import (
    AnyArray,
    Float64Array,
    Int64Array,
    Rows,
    StoredRows,
    check_finite,
    concat_rows,
    rounded,
    take_rows,
    unrounded,
)
from ooc_fw.data.sources.stamp import FileStamp
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    from ooc_fw.data.scaling import Scaling

_Kind = TypeVar("_Kind", bound=StoredRows)

CHUNK_BYTES = 2 << 20
"""Read unit, in decoded bytes, of storage that has no chunks of its own."""

GAP_BYTES = 256 << 10
"""Two rows at most this many bytes apart are read together: a second read would take longer."""


@dataclass(frozen=True)
class StoredStatistics:
    """Mean row, shape (n_features,), and mean squared norm of all rows, as a file states them."""

    mean: Float64Array
    mean_square_norm: float


class Sliceable(Protocol):
    """A sequence of numbers that returns contiguous parts of itself as arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice, /) -> AnyArray: ...


class RowSource(ABC):
    """Rows of a labelled data set, wherever they are kept.

    Code that uses a source does not ask where the rows come from. A read loads no more than was
    asked for, up to whole chunks, and several threads may read at the same time. A subclass
    implements `_fetch`.

    Parameters
    ----------
    name : str
        Path of the file, or kind of the object, for messages.
    shape : tuple of int
        Number of rows and of columns.
    labels : Sliceable or None
        One label per row.
    chunk_rows : int or None
        Rows that the storage reads together; None for `CHUNK_BYTES` of decoded rows.
    decoded_bytes : int or None
        Bytes of all rows in RAM; None for a dense float32 block.

    Attributes
    ----------
    n_rows, n_features : int
        Number of rows and of columns, at least 1.
    sparse : bool
        Whether `read` returns `CSRRows` rather than a dense block.
    in_memory : bool
        Whether the caller already holds the rows in RAM, so that any access is cheap.
    shuffled : bool or None
        Whether the rows are in random order; None when nothing says so.
    scaling : Scaling or None
        Scaling that was applied to the rows; None when nothing says so.
    statistics : StoredStatistics or None
        Statistics stored with the rows.
    cache_bytes : int
        Largest number of bytes of decoded rows that the source keeps between two reads.
    rows_read, bytes_read : int
        Rows returned, and (uncompressed) bytes fetched from storage, so far.
    reopen : callable or None
        Called in another process to open the same rows there; None where that is impossible.

    Raises
    ------
    InputError
        There are no rows or columns, or the number of labels is not the number of rows.
    """

    sparse: bool = False
    in_memory: bool = False
    shuffled: bool | None = None
    scaling: Scaling | None = None
    statistics: StoredStatistics | None = None
    cache_bytes: int = 0
    reopen: Callable[[], RowSource] | None = None
    _stamp: FileStamp | None = None
    _check_time: Callable[[], None] | None = None
    _labels_hint = "pass one label a row as labels"

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
        # `take` reads over gaps of at most `max_gap` rows, and no read of it crosses a multiple of
        # `span_rows`.
        self.max_gap = self._rows_in(GAP_BYTES)
        self.span_rows = max(self.chunk_rows, self._rows_in(CHUNK_BYTES))
        if labels is not None and len(labels) != self.n_rows:
            raise InputError(
                f"{name} has {self.n_rows} rows but {len(labels)} labels came with it; "
                f"give one label a row"
            )
        self._labels = labels
        self._resources = ExitStack()
        self._counting = threading.Lock()
        self._rows_read = self._bytes_read = 0

    @abstractmethod
    def _fetch(self, start: int, stop: int) -> tuple[StoredRows, int]:
        """Rows ``start:stop`` as stored, which may hold infinite values, and the bytes fetched."""

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``start:stop``, all values finite.

        They may be a view of the caller's array: do not write to them.

        Raises
        ------
        InputError
            A value is not finite, or the file was changed, was cut short or cannot be read.
        IndexError
            Not ``0 <= start <= stop <= n_rows``.
        """
        return self._read(start, stop, rounded)

    def read_exact(self, start: int, stop: int) -> StoredRows:
        """Rows ``start:stop``, of float64 where more digits are stored than float32 holds.

        A scaling is applied to these before they are rounded.
        """
        return self._read(start, stop, unrounded)

    def _read(self, start: int, stop: int, convert: Callable[[StoredRows], _Kind]) -> _Kind:
        self._check_range(start, stop)
        stored, n_bytes = self._fetch(start, stop)
        rows = convert(stored)
        check_finite(rows, self.name, range(start, stop))
        self._count(stop - start, n_bytes)
        return rows

    def take(self, indices: Int64Array) -> Rows:
        """Rows at increasing `indices` without repeats, read in contiguous spans or chunks."""
        first, stop = (int(indices[0]), int(indices[-1]) + 1) if len(indices) else (0, 0)
        self._check_range(first, stop)
        rows, n_bytes = self._take(indices)
        self._count(len(indices), n_bytes)
        return rows

    def _take(self, indices: Int64Array) -> tuple[Rows, int]:
        """Rows at `indices`, which exist, and the bytes fetched."""
        if len(indices) == 0:
            return rounded(self._fetch(0, 0)[0]), 0
        pieces, total = [], 0
        for span in split_spans(indices, self.max_gap, self.span_rows):
            first, stop = int(span[0]), int(span[-1]) + 1
            stored, n_bytes = self._fetch(first, stop)
            rows = rounded(stored)
            piece = rows if stop - first == len(span) else take_rows(rows, span - first)
            check_finite(piece, self.name, span)
            pieces.append(piece)
            total += n_bytes
        return concat_rows(pieces), total

    @property
    def read_bytes(self) -> int:
        """Bytes that reading takes at most, in addition to the rows asked for."""
        return 0 if self.in_memory else self.span_rows * self.decoded_bytes // self.n_rows

    @property
    def rows_read(self) -> int:
        """Rows returned so far."""
        return self._rows_read

    @property
    def bytes_read(self) -> int:
        """Bytes (uncompressed) fetched from storage so far."""
        return self._bytes_read

    def count(self, n_rows: int, n_bytes: int) -> None:
        """Add what another process read of these rows to the counters."""
        if self._check_time is not None:
            self._check_time()
        self._count(n_rows, n_bytes)

    @property
    def has_labels(self) -> bool:
        """Whether `labels` can be called."""
        return self._labels is not None

    def labels(self, start: int, stop: int) -> AnyArray:
        """Label values of rows ``start:stop`` as stored; InputError when there are none."""
        self._check_range(start, stop)
        if self._labels is None:
            raise InputError(f"{self.name} has no labels; {self._labels_hint}")
        labels = np.asarray(self._labels[start:stop])
        self.check_unchanged()
        return labels

    def row_ids(self, start: int, stop: int) -> Int64Array:
        """Position of rows ``start:stop`` in the user's own input, counted from 0."""
        self._check_range(start, stop)
        return np.arange(start, stop, dtype=np.int64)

    @contextmanager
    def limited(self, check: Callable[[], None] | None) -> Iterator[None]:
        """Call `check`, in any thread, before each read within; it raises to end the work."""
        before, self._check_time = self._check_time, check
        try:
            yield
        finally:
            self._check_time = before

    def check_unchanged(self) -> None:
        """Raise InputError when the file behind the rows is no longer the one that was opened."""
        if self._stamp is not None:
            self._stamp.check()

    def own(self, release: Callable[[], object]) -> None:
        """Call `release` when the source is closed."""
        self._resources.callback(release)

    def close(self) -> None:
        """Close the files that this source opened; objects of the caller stay open."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process receives the way to open the file there, never rows or handles.
        if self.reopen is None:
            raise TypeError(f"{self!r} cannot be sent to another process; open it from a path")
        return _call, (self.reopen,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.n_rows} x {self.n_features}>"

    def _rows_in(self, n_bytes: int) -> int:
        """Average number of rows, at least 1, that take `n_bytes` in RAM."""
        return max(1, n_bytes * self.n_rows // max(1, self.decoded_bytes))

    def _check_range(self, start: int, stop: int) -> None:
        """Check before every read that the rows exist and that there is time to read them."""
        if self._check_time is not None:
            self._check_time()
        if not 0 <= start <= stop <= self.n_rows:
            raise IndexError(f"rows {start}:{stop} of {self.name}, which has {self.n_rows}")

    def _count(self, n_rows: int, n_bytes: int) -> None:
        with self._counting:  # several threads read from one source
            self._rows_read += n_rows
            self._bytes_read += n_bytes

    def reopen_by(
        self, opener: Callable[..., RowSource], arguments: tuple[Any, ...], *, with_labels: bool
    ) -> None:
        """Let other processes open the same file, and no other that may have its name by then.

        They call `opener`, a function of a module, with these hashable arguments. Labels that do
        not belong to the file are left out.
        """
        stamp = None if self._stamp is None else self._stamp.seen
        self.reopen = functools.partial(_open_once, opener, arguments, stamp, with_labels)


@functools.lru_cache(maxsize=16)
def _open_once(
    opener: Callable[..., RowSource],
    arguments: tuple[Any, ...],
    stamp: tuple[int, int] | None,
    with_labels: bool,
) -> RowSource:
    """One open source per file and process, shared by all tasks that were sent there."""
    source = opener(*arguments)
    found = None if source._stamp is None else source._stamp.seen
    if found != stamp:
        source.close()
        raise InputError(
            f"{source.name} is not the file it was when the work began (size or time of change "
            f"differ); start again, and let all machines see one file, or copies with equal "
            f"times (cp -p)"
        )
    if not with_labels:
        source._labels = None
    source.reopen_by(opener, arguments, with_labels=with_labels)
    return source


def _call(reopen: Callable[[], RowSource]) -> RowSource:
    return reopen()


def block_slices(
    source: RowSource, start: int, stop: int, max_bytes: int = 2 * CHUNK_BYTES
) -> list[tuple[int, int]]:
    """Cut rows ``start:stop`` into ranges of about `max_bytes` decoded bytes each."""
    step = max(1, max_bytes * source.n_rows // max(1, source.decoded_bytes))
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def iter_blocks(
    source: RowSource, start: int, stop: int, max_bytes: int = 2 * CHUNK_BYTES
) -> Iterator[tuple[int, Rows]]:
    """Yield the ranges of `block_slices`, each as its first row number and its rows."""
    for first, last in block_slices(source, start, stop, max_bytes):
        yield first, source.read(first, last)


def split_spans(indices: Int64Array, max_gap: int, span_rows: int) -> list[Int64Array]:
    """Cut increasing row numbers into groups, each to be read as one contiguous span.

    Neighbours at most `max_gap` apart share a span. No span crosses a multiple of `span_rows`,
    which bounds the memory of one read.
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
