"""Results of rows, put back into the order of the user's input in bounded memory.

Owns the temporary table of results that come in another order. Those that come in order pass
through.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    from ooc_fw.cli.common import AppliedRows
    from ooc_fw.data.rows import Float64Array, Int64Array

BUCKET_BYTES = 16 << 20
"""Results that are put in order at once in RAM; a table of more goes to disk."""

_RECORDS = np.float64  # of a row's number, exact up to 2^53, and its decision values


def in_order(
    blocks: Iterable[AppliedRows],
    name: str,
    folder: Path | None = None,
    bucket_bytes: int | None = None,
) -> Iterator[Float64Array]:
    """Decision values in the order of the user's rows.

    Parameters
    ----------
    blocks : iterable of AppliedRows
        In any order; all rows of the input, each once.
    name : str
        Input, for messages.
    folder : Path or None
        Where results wait that do not fit in RAM: 8 bytes a row, and 8 more for each of its
        values. None is the usual place for temporary files.
    bucket_bytes : int or None
        Results in RAM; None for `BUCKET_BYTES`.

    Yields
    ------
    ndarray of float64, shape (n,) or (n, n_machines)
        Blocks of consecutive rows, from row 0 on.

    Raises
    ------
    InputError
        The row numbers are not 0 to n_rows - 1, each once.
    OSError
        The disk of `folder` is full.
    """
    bucket_bytes = BUCKET_BYTES if bucket_bytes is None else bucket_bytes
    done = 0  # rows that came in order, which wait for nothing
    table: _Table | None = None
    try:
        for block in blocks:
            ids = block.row_ids
            if table is None and np.array_equal(ids, np.arange(done, done + len(ids))):
                yield block.values
                done += len(ids)
                continue
            if table is None:
                assert block.n_rows is not None
                shape = block.n_rows - done, *block.values.shape[1:]
                table = _Table(shape, name, folder, bucket_bytes)
            table.put(ids - done, block.values)
        if table is not None:
            yield from table.buckets()
    finally:
        if table is not None:
            table.close()


class _Table:
    """Results by row, each in the bucket of its row number.

    A bucket is a range of rows that has its place in a file and is filled from the front, in the
    order in which results come; it is sorted when it is read.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        name: str,
        folder: Path | None,
        bucket_bytes: int,
    ) -> None:
        self._shape = shape
        self._name = name
        self._width = 1 + int(np.prod(shape[1:]))
        self._bucket_rows = max(1, bucket_bytes // (8 * self._width))
        self._filled = np.zeros(-(-shape[0] // self._bucket_rows), dtype=np.int64)
        self._file = tempfile.SpooledTemporaryFile(dir=None if folder is None else str(folder))
        if len(self._filled) > 1:
            self._file.rollover()  # from RAM, where one bucket stays, to disk

    def put(self, rows: Int64Array, values: Float64Array) -> None:
        """Add results of some rows."""
        if rows.min() < 0 or rows.max() >= self._shape[0]:
            raise self._wrong()
        records = np.empty((len(rows), self._width), dtype=_RECORDS)
        records[:, 0] = rows
        records[:, 1:] = values.reshape(len(rows), -1)
        buckets = rows // self._bucket_rows
        order = np.argsort(buckets, kind="stable")
        records, buckets = records[order], buckets[order]
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(buckets)) + 1):
            bucket = int(buckets[part[0]])
            if self._filled[bucket] + len(part) > self._rows_of(bucket):
                raise self._wrong()
            self._seek(bucket, int(self._filled[bucket]))
            self._file.write(records[part[0] : part[-1] + 1].tobytes())
            self._filled[bucket] += len(part)

    def buckets(self) -> Iterator[Float64Array]:
        """Values of the rows of each bucket, in order."""
        for bucket in range(len(self._filled)):
            n_rows = self._rows_of(bucket)
            self._seek(bucket, 0)
            data = self._file.read(8 * self._width * int(self._filled[bucket]))
            records = np.frombuffer(data, dtype=_RECORDS).reshape(-1, self._width)
            place = records[:, 0].astype(np.int64) - bucket * self._bucket_rows
            if (np.bincount(place, minlength=n_rows) != 1).any():
                raise self._wrong()
            values = np.empty((n_rows, self._width - 1))
            values[place] = records[:, 1:]
            yield values.reshape(n_rows, *self._shape[1:])

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def _rows_of(self, bucket: int) -> int:
        return min(self._bucket_rows, self._shape[0] - bucket * self._bucket_rows)

    def _seek(self, bucket: int, row: int) -> None:
        self._file.seek(8 * self._width * (bucket * self._bucket_rows + row))

    def _wrong(self) -> InputError:
        return InputError(
            f"the row numbers stored in {self._name} do not name each of its rows once; write it "
            f"again with ooc-fw convert"
        )
