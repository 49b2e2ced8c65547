"""Parquet files, and Arrow's columns as numbers and words."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ooc_fw.convert.readers import (
    Place,
    TableReader,
    TypedReader,
    Words,
    block_rows,
    collect_words,
    import_pyarrow,
    name_columns,
)
from ooc_fw.data.labels import is_exact_label
from ooc_fw.data.rows import Float64Array
from ooc_fw.system.errors import InputError


class ArrowColumns(TableReader):
    """A table whose parts are Arrow's tables or record batches."""

    def column(self, part: Any, name: str) -> Any:
        """One column of a part."""
        return part.column(name)

    def floats(self, column: Any) -> Float64Array:
        """Numbers of a column, nulls as NaN."""
        import pyarrow as pa

        found: Float64Array = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return found

    def words_of(self, column: Any, place: Place) -> Words:
        """Words of a column of any type."""
        import pyarrow as pa

        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return collect_words(codes.astype(np.int64), encoded.dictionary.to_pylist(), place)

    def inexact_label(self, column: Any) -> tuple[int, Any] | None:
        """Row and value of the first whole number that float64 does not hold exactly."""
        from pyarrow import types

        kind = column.type
        if types.is_decimal(kind) or (types.is_integer(kind) and kind.bit_width > 32):
            for value in column.unique().to_pylist():
                if value is not None and not is_exact_label(str(value)):
                    return column.to_pylist().index(value), value
        return None


class ParquetReader(TypedReader, ArrowColumns):
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
        kinds = dict(zip(name_columns(path, schema.names), schema.types, strict=True))
        self.index = _pandas_index(schema.metadata) & frozenset(kinds)
        words = {name for name, kind in kinds.items() if _is_words(kind)}
        numbers = {name for name, kind in kinds.items() if _is_number(kind)}
        self.set_types(kinds, words, numbers)
        self.n_rows = self._file.metadata.num_rows

    def blocks(self) -> Iterator[tuple[int, int, Any]]:
        """Read record batches."""
        import pyarrow as pa

        usable = [name for name in self.columns if name not in self.unusable]
        size = block_rows(8 * len(usable))
        try:
            for batch in self._file.iter_batches(size, columns=usable, use_threads=False):
                start = self.row
                self.row += batch.num_rows
                self.text_bytes += batch.nbytes
                yield start, self.row, batch
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{self.name} is damaged after row {self.row} ({error}); fetch it again"
            ) from error


def _pandas_index(metadata: Mapping[bytes, bytes] | None) -> frozenset[str]:
    """Columns in which pandas stored its index, by the metadata of a schema."""
    try:
        stored = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
    except (ValueError, KeyError, TypeError):
        return frozenset()
    # A range index is stored as a record, without a column.
    return frozenset(name for name in stored if isinstance(name, str))


def _is_number(kind: Any) -> bool:
    from pyarrow import types as t

    return any(test(kind) for test in (t.is_integer, t.is_floating, t.is_decimal, t.is_boolean))


def _is_words(kind: Any) -> bool:
    from pyarrow import types as t

    if t.is_dictionary(kind):
        return _is_words(kind.value_type)
    return any(
        test(kind) for test in (t.is_string, t.is_large_string, t.is_string_view, t.is_binary)
    )
