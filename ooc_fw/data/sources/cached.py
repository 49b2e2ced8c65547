"""Decoded rows that stay in RAM if all of them fit."""

from __future__ import annotations

from ooc_fw.data.rows import Int64Array, Rows, concat_rows
from ooc_fw.data.sources.base import CHUNK_BYTES, RowSource
from ooc_fw.data.sources.wrapped import WrappedSource


class CachedSource(WrappedSource):
    """A source whose rows are read from storage at most once, if all of them fit in `max_bytes`.

    Rows are fetched in blocks of whole chunks when they are first asked for. Opening costs nothing,
    and a run that needs a few rows reads only their chunks. The wrapped source is closed with this
    one.
    """

    def __init__(self, source: RowSource, max_bytes: int) -> None:
        super().__init__(source, decoded_bytes=source.decoded_bytes)
        self.keeps = not source.in_memory and source.decoded_bytes <= max_bytes
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
        block = self._blocks.get(number)
        if block is None:
            start = number * self._block_rows
            block = self.source.read(start, min(start + self._block_rows, self.n_rows))
            self._blocks[number] = block
        return block

    def _take(self, indices: Int64Array) -> tuple[Rows, int]:
        return super()._take(indices) if self.keeps else (self.source.take(indices), 0)
