"""Decoded chunks kept for the next read.

Owns which chunks of an array are kept and for how long, so that a pass in order decodes each chunk
once, whatever the blocks in which it reads. How rows are decoded is told by the callers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from ooc_fw.data.rows import Int64Array
from ooc_fw.data.sources.base import AnyArray

KEPT_BYTES = 32 << 20
"""Decoded bytes kept of one array, or two chunks where these are larger."""


class DecodedChunks:
    """An array in compressed chunks, or in parts to be computed, that is read in any blocks.

    A read decodes the chunks it touches in one piece. Those of which it takes a part only, the
    first and the last, are kept for whoever takes the rest. Several threads may read at once: one
    of them decodes such a chunk, the others wait for it.

    Parameters
    ----------
    ends : ndarray of int64, shape (n_chunks,)
        Row behind each chunk, increasing.
    decode : callable
        Gives the rows ``start:stop`` of consecutive chunks as they are stored.
    row_bytes : int
        Bytes of a decoded row.

    Attributes
    ----------
    kept_bytes : int
        Largest number of bytes kept between two reads.
    """

    def __init__(
        self, ends: Int64Array, decode: Callable[[int, int], AnyArray], row_bytes: int
    ) -> None:
        self._borders = np.concatenate([np.zeros(1, dtype=np.int64), ends])
        self._lengths = np.diff(self._borders)
        self._decode = decode
        self._row_bytes = row_bytes
        largest = 2 * int(self._lengths.max(initial=0)) * row_bytes
        self.kept_bytes = min(max(KEPT_BYTES, largest), int(self._borders[-1]) * row_bytes)
        self._kept: OrderedDict[int, Future[AnyArray]] = OrderedDict()
        self._choosing = threading.Lock()

    def read(self, start: int, stop: int) -> AnyArray:
        """Rows ``start:stop``; a view of what is kept where they lie in one chunk."""
        if stop <= start:
            return self._decode(start, start)
        first = int(np.searchsorted(self._borders, start, side="right")) - 1
        last = int(np.searchsorted(self._borders, stop, side="left")) - 1
        begin, end = int(self._borders[first]), int(self._borders[last + 1])
        shared = {first} if start > begin else set()
        shared |= {last} if stop < end else set()
        with self._choosing:
            known = {chunk: self._kept[chunk] for chunk in shared if chunk in self._kept}
            mine = {chunk: Future[AnyArray]() for chunk in shared - set(known)}
            self._kept.update(mine)
            for chunk in known:
                self._kept.move_to_end(chunk)
        low = int(self._borders[first + 1]) if first in known else begin
        high = int(self._borders[last]) if last in known else end
        rows = self._decode_and_keep(low, high, mine) if low < high else None
        pieces = []
        if first in known:
            pieces.append(known[first].result()[start - begin : stop - begin])
        if rows is not None:
            pieces.append(rows[max(0, start - low) : stop - low])
        if last in known and last != first:
            pieces.append(known[last].result()[: stop - int(self._borders[last])])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _decode_and_keep(self, low: int, high: int, mine: dict[int, Future[AnyArray]]) -> AnyArray:
        """Rows of whole chunks, some of which were promised to others."""
        try:
            rows = self._decode(low, high)
        except BaseException as error:
            with self._choosing:
                for chunk in mine:
                    self._kept.pop(chunk, None)
            for promise in mine.values():
                promise.set_exception(error)
            raise
        for chunk, promise in mine.items():
            begin, end = int(self._borders[chunk]) - low, int(self._borders[chunk + 1]) - low
            # A copy, so that nothing else of a longer piece is kept.
            promise.set_result(rows if len(rows) == end - begin else rows[begin:end].copy())
        with self._choosing:
            self._make_room()
        return rows

    def _make_room(self) -> None:
        """Forget the chunks that were not used for longest, until the others fit."""
        held = sum(int(self._lengths[chunk]) for chunk in self._kept) * self._row_bytes
        for chunk in list(self._kept):
            if held <= self.kept_bytes:
                return
            if self._kept[chunk].done():
                del self._kept[chunk]
                held -= int(self._lengths[chunk]) * self._row_bytes


def equal_chunks(n_rows: int, length: int) -> Int64Array:
    """Row behind each chunk of `length` rows; the last one may have fewer."""
    return np.minimum(np.arange(1, -(-n_rows // length) + 1, dtype=np.int64) * length, n_rows)
