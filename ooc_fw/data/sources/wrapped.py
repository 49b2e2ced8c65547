"""What sources have in common that return the rows of another source."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.data.sources.base import RowSource


class WrappedSource(RowSource):
    """A source that returns the rows of another one in its own way.

    Parameters
    ----------
    source : RowSource
        Where the rows come from.
    decoded_bytes : int or None
        Bytes of all rows as returned; None where they are dense float32.
    n_rows : int or None
        Number of rows returned; None for all.
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
        self.sparse = source.sparse
        self.in_memory = source.in_memory
        self.shuffled = source.shuffled
        self.scaling = source.scaling
        self.cache_bytes = source.cache_bytes

    def rewrap_by(self, *arguments: Any) -> None:
        """Let other processes wrap the reopened source in the same way, if it can be reopened."""
        if self.source.reopen is not None:
            self.reopen = partial(_rewrap, type(self), self.source.reopen, arguments)

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


def _rewrap(
    kind: Callable[..., RowSource], reopen: Callable[[], RowSource], arguments: tuple[Any, ...]
) -> RowSource:
    return kind(reopen(), *arguments)
