"""Decoded chunks that are kept for the next read."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from ooc_fw.data.rows import AnyArray, Int64Array

KEPT_BYTES = 32 << 20
"""Decoded bytes that are kept of one array, or two chunks if these are larger."""


class DecodedChunks:
    """An array in compressed chunks, or in parts to be computed, that is read in any blocks.

    The first and the last chunk of a read are kept if it uses only a part of them, so that a pass
    in order decodes each chunk once, whatever its blocks are. At most `kept_bytes` stay between two
    reads. When several threads need a chunk at the same time, one decodes it and the others wait.

    Parameters
    ----------
    ends : ndarray of int64, shape (n_chunks,)
        Row after the last of each chunk, increasing.
    decode : callable
        Returns the rows ``start:stop`` of consecutive chunks as they are stored.
    row_bytes : int
        Bytes of a decoded row.
    """

    def __init__(
        self, ends: Int64Array, decode: Callable[[int, int], AnyArray], row_bytes: int
    ) -> None:
        self._borders = [0, *ends.tolist()]
        self._decode = decode
        self._row_bytes = row_bytes
        two_chunks = 2 * int(np.diff(ends, prepend=0).max(initial=0)) * row_bytes
        self.kept_bytes = min(max(KEPT_BYTES, two_chunks), self._borders[-1] * row_bytes)
        self._kept: OrderedDict[int, Future[AnyArray]] = OrderedDict()
        self._choosing = threading.Lock()

    def read(self, start: int, stop: int) -> AnyArray:
        """Rows ``start:stop``; a view of a kept chunk if they all lie in it."""
        if stop <= start:
            return self._decode(start, start)
        first = bisect_right(self._borders, start) - 1
        last = bisect_left(self._borders, stop) - 1
        begin, end = self._borders[first], self._borders[last + 1]
        head = start > begin or (first == last and stop < end)
        tail = stop < end and last != first
        low = self._borders[first + 1] if head else begin
        high = self._borders[last] if tail else end
        pieces = []
        if head:
            pieces.append(self._chunk(first)[start - begin : stop - begin])
        if low < high:
            pieces.append(self._decode(low, high))
        if tail:
            pieces.append(self._chunk(last)[: stop - high])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _chunk(self, number: int) -> AnyArray:
        """A chunk, which is kept."""
        with self._choosing:
            mine = number not in self._kept
            promise = self._kept.setdefault(number, Future())
            self._kept.move_to_end(number)
        if mine:
            try:
                promise.set_result(self._decode(self._borders[number], self._borders[number + 1]))
            except BaseException as error:
                with self._choosing:
                    del self._kept[number]
                promise.set_exception(error)
            else:
                self._evict()
        return promise.result()

    def _evict(self) -> None:
        """Drop the chunks that were not used for longest until the others fit."""
        with self._choosing:
            done = {k: kept.result() for k, kept in self._kept.items() if kept.done()}
            held = sum(len(rows) for rows in done.values()) * self._row_bytes
            for number, rows in done.items():
                if held <= self.kept_bytes:
                    return
                del self._kept[number]
                held -= len(rows) * self._row_bytes


def equal_chunks(n_rows: int, length: int) -> Int64Array:
    """Row after the last of each chunk of `length` rows; the last chunk may be shorter."""
    return np.minimum(np.arange(1, -(-n_rows // length) + 1, dtype=np.int64) * length, n_rows)
