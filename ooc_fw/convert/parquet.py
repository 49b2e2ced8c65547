"""Parquet files, and Arrow's columns as numbers and words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ooc_fw.convert import readers
from ooc_fw.convert.readers import (
    Cells,
    TableReader,
    Wanted,
    Words,
    collect_words,
    import_pyarrow,
    label_not_exact,
    name_columns,
)
from ooc_fw.data.labels import is_exact_label
from ooc_fw.data.rows import Float64Array
from ooc_fw.system.errors import InputError


class ParquetReader(TableReader):
    """A Parquet file, read page by page."""

    compressed = True

    def __init__(self, path: str) -> None:
        pa = import_pyarrow("Parquet")
        from pyarrow import parquet

        super().__init__(path, os.path.getsize(path))
        try:
            # Pages are streamed: a whole row group need not fit the memory.
            self._file = parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(
                f"{path} cannot be read as Parquet ({error}); write it again"
            ) from None
        self.resources.callback(self._file.close)
        schema = self._file.schema_arrow
        self.columns = name_columns(path, schema.names)
        self.index = _pandas_index(schema.metadata) & frozenset(self.columns)
        kinds = {item.name: item.type for item in schema}
        self.words = frozenset(name for name, kind in kinds.items() if _is_words(kind))
        self.unusable = {
            name: str(kind)
            for name, kind in kinds.items()
            if name not in self.words and not _is_number(kind)
        }
        self._n_rows = self._file.metadata.num_rows
        self._row = 0

    @property
    def bytes_read(self) -> int:
        """Share of the file that belongs to the rows read."""
        return (self.size or 0) * self._row // max(1, int(self._n_rows))

    def blocks(self) -> Iterator[tuple[int, Any]]:
        """Read record batches, with the number of the first row of each."""
        import pyarrow as pa

        usable = [name for name in self.columns if name not in self.unusable]
        n_rows = readers.BLOCK_BYTES // (8 * max(1, len(usable)))
        n_rows = min(readers.MAX_BLOCK_ROWS, max(1, n_rows))
        try:
            for batch in self._file.iter_batches(n_rows, columns=usable, use_threads=False):
                start = self._row
                self._row += batch.num_rows
                self.text_bytes += batch.nbytes
                yield start, batch
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{self.name} is damaged after row {self._row} ({error}); fetch it again"
            ) from error

    def parse(self, block: tuple[int, Any], wanted: Wanted) -> Cells:
        """Cells of a record batch."""
        start, batch = block
        labels: Float64Array | Words = np.zeros(batch.num_rows)

        def place(row: int) -> str:
            return f"{self.name}, row {start + row}"

        if wanted.label is not None:
            column = batch.column(wanted.label)
            if wanted.label in self.words:
                labels = arrow_words(column, place)
            else:
                _check_whole_labels(column, place)
                labels = arrow_numbers([column], batch.num_rows)[:, 0]
        return Cells(
            self.name,
            labels,
            arrow_numbers([batch.column(name) for name in wanted.numbers], batch.num_rows),
            tuple(arrow_words(batch.column(name), place) for name in wanted.words),
            lambda row: f"row {start + row}",
        )


def _pandas_index(metadata: Mapping[bytes, bytes] | None) -> frozenset[str]:
    """Columns in which pandas stored its index, by the metadata of a schema."""
    try:
        stored = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
    except (ValueError, KeyError, TypeError):
        return frozenset()
    # A range index is stored as a record, without a column.
    return frozenset(name for name in stored if isinstance(name, str))


def _check_whole_labels(column: Any, place: Callable[[int], str]) -> None:
    """Refuse whole numbers that float64 does not hold exactly."""
    from pyarrow import types

    kind = column.type
    if types.is_decimal(kind) or (types.is_integer(kind) and kind.bit_width > 32):
        for value in column.unique().to_pylist():
            if value is not None and not is_exact_label(str(value)):
                raise label_not_exact(place(column.to_pylist().index(value)), value)


def _is_number(kind: Any) -> bool:
    from pyarrow import types as t

    tests = (t.is_integer, t.is_floating, t.is_decimal, t.is_boolean)
    return any(test(kind) for test in tests)


def _is_words(kind: Any) -> bool:
    from pyarrow import types as t

    if t.is_dictionary(kind):
        return _is_words(kind.value_type)
    return any(
        test(kind) for test in (t.is_string, t.is_large_string, t.is_string_view, t.is_binary)
    )


def arrow_numbers(columns: Sequence[Any], n_rows: int) -> Float64Array:
    """Columns of Arrow numbers side by side, nulls as NaN."""
    import pyarrow as pa

    numbers = np.empty((n_rows, len(columns)))
    for j, column in enumerate(columns):
        numbers[:, j] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


def arrow_words(column: Any, place: Callable[[int], str] = str) -> Words:
    """Column of any Arrow type as words."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return collect_words(codes.astype(np.int64), encoded.dictionary.to_pylist(), place)
