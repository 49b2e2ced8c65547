"""Decoded chunks that are kept for the next read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from ooc_fw.data.rows import AnyArray, Int64Array

KEPT_BYTES = 32 << 20
"""Decoded bytes that are kept of one array, or two chunks if these are larger."""


class DecodedChunks:
    """An array in compressed chunks, or in parts to be computed, that is read in any blocks.

    A read decodes all the chunks it touches in one piece. The first and the last of them are kept
    if it uses only a part of them, so that a pass in order decodes each chunk once, whatever its
    blocks are. When several threads read at the same time, one of them decodes a shared chunk and
    the others wait for it.

    Parameters
    ----------
    ends : ndarray of int64, shape (n_chunks,)
        Row after the last of each chunk, increasing.
    decode : callable
        Returns the rows ``start:stop`` of consecutive chunks as they are stored.
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
        two_chunks = 2 * int(self._lengths.max(initial=0)) * row_bytes
        self.kept_bytes = min(max(KEPT_BYTES, two_chunks), int(self._borders[-1]) * row_bytes)
        self._kept: OrderedDict[int, Future[AnyArray]] = OrderedDict()
        self._choosing = threading.Lock()

    def read(self, start: int, stop: int) -> AnyArray:
        """Rows ``start:stop``; a view of a kept chunk if they all lie in it."""
        if stop <= start:
            return self._decode(start, start)
        first = int(np.searchsorted(self._borders, start, side="right")) - 1
        last = int(np.searchsorted(self._borders, stop, side="left")) - 1
        begin, end = int(self._borders[first]), int(self._borders[last + 1])
        used_in_part = {first} if start > begin else set()
        used_in_part |= {last} if stop < end else set()
        with self._choosing:
            known = {chunk: self._kept[chunk] for chunk in used_in_part if chunk in self._kept}
            promised = {chunk: Future[AnyArray]() for chunk in used_in_part - set(known)}
            self._kept.update(promised)
            for chunk in known:
                self._kept.move_to_end(chunk)
        low = int(self._borders[first + 1]) if first in known else begin
        high = int(self._borders[last]) if last in known else end
        rows = self._decode_and_keep(low, high, promised) if low < high else None
        pieces = []
        if first in known:
            pieces.append(known[first].result()[start - begin : stop - begin])
        if rows is not None:
            pieces.append(rows[max(0, start - low) : stop - low])
        if last in known and last != first:
            pieces.append(known[last].result()[: stop - int(self._borders[last])])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _decode_and_keep(
        self, low: int, high: int, promised: dict[int, Future[AnyArray]]
    ) -> AnyArray:
        """Rows of whole chunks; other threads may wait for the promised ones."""
        try:
            rows = self._decode(low, high)
        except BaseException as error:
            with self._choosing:
                for chunk in promised:
                    self._kept.pop(chunk, None)
            for promise in promised.values():
                promise.set_exception(error)
            raise
        for chunk, promise in promised.items():
            begin, end = int(self._borders[chunk]) - low, int(self._borders[chunk + 1]) - low
            # A copy, so that the rest of a longer piece is not kept too.
            promise.set_result(rows if len(rows) == end - begin else rows[begin:end].copy())
        with self._choosing:
            self._evict()
        return rows

    def _evict(self) -> None:
        """Drop the chunks that were not used for longest until the others fit."""
        held = sum(int(self._lengths[chunk]) for chunk in self._kept) * self._row_bytes
        for chunk in list(self._kept):
            if held <= self.kept_bytes:
                return
            if self._kept[chunk].done():
                del self._kept[chunk]
                held -= int(self._lengths[chunk]) * self._row_bytes


def equal_chunks(n_rows: int, length: int) -> Int64Array:
    """Row after the last of each chunk of `length` rows; the last chunk may be shorter."""
    return np.minimum(np.arange(1, -(-n_rows // length) + 1, dtype=np.int64) * length, n_rows)
