"""The rows of two classes as one source."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Int64Array, Rows, concat_rows, take_rows
from ooc_fw.data.sources.base import RowSource


class PairSource(RowSource):
    """Rows of two sources, evenly interleaved: each holds one class, in random order if `shuffled`.

    Of the first k rows, floor(k n_first / n) come from `first`. Any stretch of rows therefore holds
    both classes in the proportion of all rows, contiguous rows are contiguous in both sources, and
    random samples of both are a random sample here. The sources stay open when this one is closed.
    """

    def __init__(
        self, first: RowSource, second: RowSource, *, name: str, shuffled: bool | None
    ) -> None:
        super().__init__(
            name,
            (first.n_rows + second.n_rows, first.n_features),
            chunk_rows=first.chunk_rows + second.chunk_rows,
            decoded_bytes=first.decoded_bytes + second.decoded_bytes,
        )
        self.first, self.second = first, second
        self.sparse = first.sparse
        self.in_memory = first.in_memory and second.in_memory
        self.shuffled = shuffled
        self.scaling = first.scaling
        self.cache_bytes = first.cache_bytes + second.cache_bytes

    def is_first(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether each of these rows comes from `first`."""
        return self._before(rows + 1) > self._before(rows)

    def origin(self, rows: Int64Array) -> Int64Array:
        """Row number in `first` or `second` of each of these rows."""
        before = self._before(rows)
        return np.where(self.is_first(rows), before, rows - before)

    def place(self, origin: Int64Array, is_first: npt.NDArray[np.bool_]) -> Int64Array:
        """Inverse of `origin` and `is_first`: the rows here."""
        in_first = -(-(origin + 1) * self.n_rows // self.first.n_rows) - 1
        in_second = origin * self.n_rows // self.second.n_rows
        return np.where(is_first, in_first, in_second)

    def _before(self, rows: Int64Array) -> Int64Array:
        """How many of the first `rows` rows come from `first`."""
        return rows * self.first.n_rows // self.n_rows

    def _fetch(self, start: int, stop: int) -> tuple[Rows, int]:
        begin, end = (int(count) for count in self._before(np.array([start, stop])))
        parts = [self.first.read(begin, end), self.second.read(start - begin, stop - end)]
        return self._merge(parts, self.is_first(np.arange(start, stop))), 0

    def _take(self, indices: Int64Array) -> tuple[Rows, int]:
        is_first, origin = self.is_first(indices), self.origin(indices)
        parts = [self.first.take(origin[is_first]), self.second.take(origin[~is_first])]
        return self._merge(parts, is_first), 0

    @staticmethod
    def _merge(parts: list[Rows], is_first: npt.NDArray[np.bool_]) -> Rows:
        places = np.concatenate([np.flatnonzero(is_first), np.flatnonzero(~is_first)])
        return take_rows(concat_rows(parts), np.argsort(places))

    @property
    def read_bytes(self) -> int:
        """Bytes that reading takes at most, here and by both sources."""
        return super().read_bytes + self.first.read_bytes + self.second.read_bytes

    @property
    def bytes_read(self) -> int:
        """Bytes that both sources fetched from their storage so far."""
        return self.first.bytes_read + self.second.bytes_read

    def check_unchanged(self) -> None:
        """Raise InputError when a file behind the rows is not as it was when opened."""
        self.first.check_unchanged()
        self.second.check_unchanged()
