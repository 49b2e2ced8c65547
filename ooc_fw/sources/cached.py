"""Decoded rows kept in RAM when all of them fit.

Owns the choice between keeping and passing through. The wrapped source does the reading; whoever
uses the wrapper can tell the difference only by its speed and by `bytes_read`.
"""

from __future__ import annotations

from ooc_fw.rows import Int64Array, Rows, concat_rows
from ooc_fw.sources.base import CHUNK_BYTES, AnyArray, RowSource, SourceBase


class CachedSource(SourceBase):
    """A source whose rows are read from storage at most once, if they fit.

    Rows are fetched in blocks of whole chunks when they are first asked for, so that opening costs
    nothing and a run that looks at a few rows reads only their chunks.

    Parameters
    ----------
    source : RowSource
        Where the rows come from; closed with the wrapper.
    max_bytes : int
        Keep the rows only when ``source.decoded_bytes`` is at most this.
    """

    def __init__(self, source: RowSource, max_bytes: int) -> None:
        super().__init__(
            source.name,
            (source.n_rows, source.n_features),
            chunk_rows=source.chunk_rows,
            decoded_bytes=source.decoded_bytes,
        )
        self.source = source
        self.keeps = not source.in_memory and source.decoded_bytes <= max_bytes
        self.sparse = source.sparse
        self.in_memory = source.in_memory
        self.shuffled = source.shuffled
        self.scaling = source.scaling
        self.statistics = source.statistics
        self._block_rows = max(source.chunk_rows, self._rows_in(CHUNK_BYTES))
        self.max_gap = self.span_rows = self._block_rows
        self._blocks: dict[int, Rows] = {}
        self.own(source.close)
        self.own(self._blocks.clear)

    def _fetch(self, start: int, stop: int) -> tuple[Rows, int]:
        if not self.keeps or start == stop:
            return self.source.read(start, stop), 0
        length = self._block_rows
        pieces = []
        for number in range(start // length, (stop - 1) // length + 1):
            first = number * length
            pieces.append(self._block(number)[max(start - first, 0) : stop - first])
        return concat_rows(pieces), 0

    def _block(self, number: int) -> Rows:
        """Block of rows from RAM, read now if it is not there."""
        block = self._blocks.get(number)
        if block is None:
            start = number * self._block_rows
            block = self.source.read(start, min(start + self._block_rows, self.n_rows))
            self._blocks[number] = block
        return block

    def take(self, indices: Int64Array) -> Rows:
        """Rows at `indices`; see `RowSource.take`."""
        if self.keeps:
            return super().take(indices)
        rows = self.source.take(indices)
        self._count(len(indices), 0)
        return rows

    @property
    def bytes_read(self) -> int:
        """Bytes that the wrapped source fetched from its storage so far."""
        return self.source.bytes_read

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
