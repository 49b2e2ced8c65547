"""Columns of Arrow as cells, and tables in files of Parquet and Arrow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import dataset, fs, parquet, types

from ooc_fw.convert import readers
from ooc_fw.convert.readers import Place, Words
from ooc_fw.convert.tables import (
    NUMBERS,
    TEXT,
    WORDS,
    Cells,
    Table,
    collect_words,
    place_from,
    seconds_in,
)
from ooc_fw.data.rows import Float64Array
from ooc_fw.system.errors import InputError, unreadable

MAX_BLOCK_ROWS = 1 << 16  # rows of a table that are read at once, however narrow they are

Block: TypeAlias = tuple[Mapping[str, Any], int, Place]  # columns, number of rows, their places


class ArrowTable(Table):
    """Parquet or Arrow IPC: a file, or all files of a folder in the order of their names.

    If names of folders below it are like ``year=2024``, ``year`` is a column, too.
    """

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(path, 0)
        self._is_parquet = kind == "parquet"
        self._row = 0  # number of the next row
        try:
            self._find_parts(path)
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            raise InputError(
                f"{path} cannot be read as {kind.capitalize()} ({error}); write it again, with one "
                f"type for each column in all files"
            ) from None
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path} cannot be read ({error}); write it again") from None

    def _find_parts(self, path: str) -> None:
        self._files = fs.LocalFileSystem()
        where: dict[str, Any] = {"format": "parquet" if self._is_parquet else "ipc"}
        if not os.path.isfile(path):
            where |= {"partitioning": "hive", "partition_base_dir": path}
        found = dataset.dataset(path, filesystem=self._files, **where)
        self._parts = sorted(found.get_fragments(), key=lambda one: one.path)
        schemas = [part.physical_schema for part in self._parts]
        schema = pa.unify_schemas([*schemas, found.schema], promote_options="permissive")
        self._types = {column.name: column.type for column in schema}
        self.kinds = {name: _kind(kind) for name, kind in self._types.items()}
        self.size = sum(info.size for info in self._files.get_file_info(found.files))
        self._n_rows = sum(part.count_rows() for part in self._parts)
        named = (found.schema.pandas_metadata or {}).get("index_columns", ())
        # A range index is stored as a record, without a column.
        self.index = frozenset(one for one in named if isinstance(one, str) and one in self.kinds)

    @property
    def bytes_read(self) -> int:
        """Share of the files that belongs to the rows read."""
        return int((self.size or 0) * self._row // max(1, self._n_rows))

    def blocks(self) -> Iterator[Block]:  # noqa: D102
        for part in self._parts:
            # Columns that names of folders tell, and their values there.
            keys = dataset.get_partition_keys(part.partition_expression)
            stored = [name for name in self.wanted if name not in keys]
            if lacking := {*stored} - {*part.physical_schema.names}:
                raise InputError(
                    f"{part.path} lacks column {min(lacking)!r} of the other files of {self.name}; "
                    f"leave the column out, write the file again, or move it elsewhere"
                )
            told = {name: pa.scalar(keys[name], self._types[name]) for name in keys}
            first = 0
            try:
                for batch in self._batches(part, stored):
                    n_rows = batch.num_rows
                    self._row += n_rows
                    self.text_bytes += batch.nbytes
                    # A column is found by its name in a dict: a schema looks at all of them.
                    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                    columns |= {name: pa.repeat(value, n_rows) for name, value in told.items()}
                    yield columns, n_rows, place_from(part.path, first)
                    first += n_rows
            except MemoryError:
                raise
            except (pa.ArrowException, OSError) as error:
                raise unreadable(part.path, error) or InputError(
                    f"{part.path} is damaged after row {first} ({error}); fetch it again"
                ) from error

    def cells(self, block: Block) -> Cells:  # noqa: D102
        return cells_of(*block, self.wanted)

    def _batches(self, part: Any, stored: list[str]) -> Iterator[pa.RecordBatch]:
        """Record batches of a part, of bounded size, with some columns."""
        size = _block_rows(8 * len(stored))
        if not self._is_parquet:
            for batch in part.to_batches(columns=stored, use_threads=False):
                for start in range(0, batch.num_rows, size):
                    yield batch.slice(start, size)
            return
        # Pages are streamed: a whole row group need not fit the memory. A text that many rows share
        # is stored once, and stays so in a dictionary.
        texts = [name for name in stored if self.kinds[name] == WORDS]
        with self._files.open_input_file(part.path) as file:
            pages = parquet.ParquetFile(
                file, buffer_size=1 << 20, pre_buffer=False, read_dictionary=texts
            )
            groups = map(pages.metadata.row_group, range(pages.metadata.num_row_groups))
            most = max((one.total_byte_size // max(1, one.num_rows) for one in groups), default=1)
            size = min(size, _block_rows(most))
            yield from pages.iter_batches(size, columns=stored, use_threads=False)


def _block_rows(row_bytes: int) -> int:
    """Rows of a table that are read at once."""
    return min(MAX_BLOCK_ROWS, max(64, readers.BLOCK_BYTES // max(1, row_bytes)))


def _kind(kind: Any) -> str:
    """What a column of a type of Arrow holds."""
    value = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_null(value):
        return TEXT
    if types.is_boolean(value) or types.is_primitive(value) or types.is_decimal(value):
        return str(value) if types.is_temporal(value) else NUMBERS
    return WORDS if "string" in str(value) or "binary" in str(value) else str(value)


def cells_of(
    columns: Mapping[str, Any], n_rows: int, place: Place, wanted: Mapping[str, str]
) -> Cells:
    """Wanted cells of columns of Arrow."""
    labels: Float64Array | Words = np.zeros(n_rows)
    words = []
    floats = [name for name, what in wanted.items() if what in ("numbers", "dates")]
    numbers = np.empty((n_rows, len(floats)))
    for j, name in enumerate(floats):
        column = columns[name]
        is_date = wanted[name] == "dates"
        numbers[:, j] = _seconds(column, place) if is_date else numbers_of(column)
    for name, what in wanted.items():
        if what == "words":
            words.append(words_of(columns[name], place))
        elif what == "labels":
            labels = words_of(columns[name], place)
        elif what == "targets":
            labels = numbers_of(columns[name]).copy()  # compiled code takes writable arrays only
    return Cells(labels, numbers, tuple(words), place)


def numbers_of(column: Any) -> Float64Array:
    """Numbers of a column of Arrow, missing ones as NaN."""
    found: Float64Array = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
    return found


def words_of(column: Any, place: Place) -> Words:
    """Words of a column of Arrow: equal values are one word, empty ones are missing."""
    if hasattr(column, "chunks"):
        column = column.combine_chunks()
    coded = column if hasattr(column, "dictionary") else column.dictionary_encode()
    codes = coded.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
    # A block may lack words that are in the dictionary of its file.
    used = np.flatnonzero(np.bincount(codes + 1)[1:])
    places = np.full(len(coded.dictionary) + 1, -1)  # of used codes; -1 takes the last of them
    places[used] = np.arange(len(used))
    values = [coded.dictionary[code].as_py() for code in used.tolist()]
    return collect_words(values, places[codes], place)


def _seconds(column: Any, place: Place) -> Float64Array:
    """Seconds since 1970 of dates: NaN where they are missing, infinite where text is no date."""
    if str(column.type).startswith(("timestamp", "date")):
        return numbers_of(column.cast("timestamp[us]", safe=False).cast("int64")) / 1e6
    words = words_of(column, place)
    return np.array([*map(seconds_in, words.values), np.nan])[words.codes]


def write_arrow(frame: Any, path: str) -> None:
    """Write a frame of pandas or polars, or an Arrow table, as an Arrow file."""
    try:
        is_pandas = hasattr(frame, "iloc")
        table = pa.Table.from_pandas(frame, preserve_index=False) if is_pandas else pa.table(frame)
    except (ValueError, TypeError) as error:  # columns of several types, or with one name
        kind = type(frame).__name__
        raise InputError(f"this {kind} is no table for Arrow ({error}); correct it") from None
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
