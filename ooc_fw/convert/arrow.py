"""Tables that pyarrow reads: Parquet, and CSV, which is text with a separator between cells.

Where pyarrow fails on a block of CSV, it is read line by line, which finds the line and the column
for the message.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ooc_fw.convert.readers import (
    MISSING,
    NUMBERS,
    TEXT,
    USABLE,
    WORDS,
    Cells,
    Place,
    TableReader,
    TypedReader,
    Wanted,
    Words,
    block_rows,
    collect_words,
    name_columns,
    number_values,
)
from ooc_fw.convert.text import TextBlock, TextInput
from ooc_fw.data.labels import is_exact_label
from ooc_fw.data.rows import Float64Array
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

DELIMITERS = ",\t;|"

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_SHOWN = 40
_FOREIGN_NUMBER = re.compile(r"[+-]?\d+(?:[.,' ]\d{3})*(?:[.,]\d*)?(?:[eE][+-]?\d+)?")


def _import_pyarrow(purpose: str) -> Any:
    """Import pyarrow; InputError if it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise InputError(f"{purpose} needs pyarrow: pip install 'ooc-fw[tables]'") from None
    return pyarrow


class ArrowColumns(TableReader):
    """A table whose parts are Arrow's tables or record batches."""

    def _column(self, part: Any, name: str) -> Any:
        return part.column(name)

    def _floats(self, column: Any) -> Float64Array:
        import pyarrow as pa

        found: Float64Array = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return found

    def _words_of(self, column: Any, place: Place) -> Words:
        import pyarrow as pa

        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return collect_words(codes.astype(np.int64), encoded.dictionary.to_pylist(), place)

    def _inexact_label(self, column: Any) -> tuple[int, Any] | None:
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
        pa = _import_pyarrow("Parquet")
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
        kinds = map(_kind, schema.types)
        self.kinds = dict(zip(name_columns(path, schema.names), kinds, strict=True))
        self.index = _pandas_index(schema.metadata) & frozenset(self.kinds)
        self.n_rows = self._file.metadata.num_rows

    def blocks(self) -> Iterator[tuple[int, int, Any]]:
        """Read record batches."""
        import pyarrow as pa

        usable = [name for name, kind in self.kinds.items() if kind in USABLE]
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


def _kind(kind: Any) -> str:
    """What a column of this type holds."""
    from pyarrow import types as t

    if any(test(kind) for test in (t.is_integer, t.is_floating, t.is_decimal, t.is_boolean)):
        return NUMBERS
    value = kind.value_type if t.is_dictionary(kind) else kind
    texts = (t.is_string, t.is_large_string, t.is_string_view, t.is_binary)
    return WORDS if any(test(value) for test in texts) else str(kind)


class CSVReader(TextInput, ArrowColumns):
    """A CSV table; a cell holds no line break, so that any thread parses any block of lines."""

    def __init__(self, path: str, options: ConvertOptions) -> None:
        _import_pyarrow("CSV")
        if options.labels is not None:
            raise InputError(f"{path} has its labels in a column: name it with --label")
        super().__init__(path)
        try:
            self._rest = super().blocks()
            self._first = next(self._rest, None)
            self._read_header(options)
        except BaseException:
            self.close()
            raise

    def _read_header(self, options: ConvertOptions) -> None:
        """Find the delimiter and the names of the columns; the first block then begins below."""
        if self._first is None or not self._first.text.strip():
            raise InputError(f"{self.name} is empty; give a table with rows in it")
        block = self._first
        if block.text.startswith(_UTF_16):
            raise InputError(f"{self.name} is UTF-16 text; convert it by iconv -f utf-16 -t utf-8")
        start = len(block.text) - len(block.text.lstrip(b"\r\n"))
        end = block.text.index(b"\n", start) + 1
        line = block.text[start:end].decode("utf-8", "replace").rstrip("\r\n")
        if "\r" in line:
            raise InputError(
                f"the lines of {self.name} end in carriage returns alone; convert it by tr '\\r' "
                f"'\\n'"
            )
        unquoted = re.sub(r'"[^"]*"', "", line)
        self._delimiter = options.delimiter or max(DELIMITERS, key=unquoted.count)
        if len(self._delimiter) != 1 or self._delimiter in '"\r\n':
            raise InputError(f"the delimiter must be one character, not {options.delimiter!r}")
        cells = next(csv.reader([line], delimiter=self._delimiter))
        if options.header is False:
            self.header = False
            self.kinds = {str(j): TEXT for j in range(len(cells))}
            return
        names = [cell.strip() for cell in cells]
        number = None if options.header else _number_among_names(names)
        if number is not None:
            raise InputError(
                f"the first line of {self.name} holds numbers, not names of columns; give "
                f"--no-header if it is a row, or --header if {number!r} is a name"
            )
        hint = ", or give --no-header if its first line is a row"
        self.kinds = dict.fromkeys(name_columns(self.name, names, hint), TEXT)
        if len(names) > 1 and not names[0] and all(names[1:]):
            self.index = frozenset(self.columns[:1])  # data frames write names of rows like this
        n_above = block.text.count(b"\n", 0, end)
        self._first = TextBlock(
            block.name, block.text[end:], block.first_line + n_above, block.n_lines - n_above
        )

    def blocks(self, block_bytes: int | None = None) -> Iterator[TextBlock]:
        """Read blocks of whole lines below the header; their size was chosen at the first."""
        if self._first is not None and self._first.text:
            yield self._first
        self._first = None
        yield from self._rest

    def parse(self, block: TextBlock, wanted: Wanted) -> Cells:
        """Cells of a block of lines."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        words = pa.dictionary(pa.int32(), pa.string())
        types = dict.fromkeys(wanted.numbers, pa.float64())
        types |= dict.fromkeys(wanted.words, words)
        if wanted.label is not None:
            types[wanted.label] = words
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(block.text),
                read_options=arrow_csv.ReadOptions(
                    column_names=self.columns,
                    use_threads=False,
                    block_size=len(block.text) + 1,
                ),
                parse_options=arrow_csv.ParseOptions(delimiter=self._delimiter),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=types,
                    include_columns=list(types),
                    null_values=list(MISSING),
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            return self.parse_by_line(block, wanted)
        n_rows = table.num_rows
        if n_rows != block.n_lines and n_rows != sum(1 for _ in _filled_lines(block)):
            return self.parse_by_line(block, wanted)  # there is a line break inside quotes

        def place(row: int) -> str:
            line, _ = next(islice(_filled_lines(block), row, None))
            return f"{self.name}, line {line}"

        return self._cells(table, n_rows, wanted, place)

    def parse_by_line(self, block: TextBlock, wanted: Wanted) -> Cells:
        """Cells of a block of lines, to the same result; names or skips what cannot be read."""
        place = {name: j for j, name in enumerate(self.columns)}
        kept: list[list[str]] = []
        places: list[str] = []
        numbers: list[list[float | None]] = []
        skipped: list[str] = []
        for line, raw in _filled_lines(block):
            where = f"{self.name}, line {line}"
            try:
                cells = self._read_line(raw)
                found = {name: parse_number(cells[place[name]]) for name in wanted.numbers}
                bad = {name: cells[place[name]] for name, x in found.items() if x is None}
                if bad:
                    raise InputError(_words_error(bad))
            except InputError as error:
                message = f"{where}: {error}"
                if not wanted.skip:
                    raise InputError(message) from None
                skipped.append(message)
                continue
            kept.append(cells)
            places.append(where)
            numbers.append(list(found.values()))

        def words(name: str) -> Words:
            return collect_words(*number_values([cells[place[name]] for cells in kept]))

        return Cells(
            np.zeros(len(kept)) if wanted.label is None else words(wanted.label),
            np.array(numbers, dtype=np.float64).reshape(len(kept), len(wanted.numbers)),
            tuple(map(words, wanted.words)),
            places.__getitem__,
            tuple(skipped),
        )

    def _read_line(self, raw: bytes) -> list[str]:
        try:
            text = raw.decode("utf-8").rstrip("\r\n")
            cells = next(csv.reader([text], delimiter=self._delimiter, strict=True))
        except UnicodeDecodeError:
            raise InputError(
                "it is not UTF-8 text; convert it, as by iconv -f latin1 -t utf-8"
            ) from None
        except csv.Error as error:
            raise InputError(f"{error}; a quoted cell must end on its line") from None
        if len(cells) != len(self.columns):
            raise InputError(
                f"it has {len(cells)} cells for {len(self.columns)} columns; quote cells that hold "
                f"a {self._delimiter!r}, and keep a row on one line"
            )
        return cells


def _filled_lines(block: TextBlock) -> Iterator[tuple[int, bytes]]:
    """Lines of a block that are not empty, and their numbers."""
    for number, line in enumerate(io.BytesIO(block.text), block.first_line):
        if line.rstrip(b"\r\n"):
            yield number, line


def _words_error(found: Mapping[str, str]) -> str:
    """Message about columns that hold words where numbers are wanted; column -> first word."""
    (name, word), *others = found.items()
    shown = word if len(word) <= _SHOWN else word[:_SHOWN] + "..."
    begin = f"column {name!r} does not hold a number but {shown!r}"
    if is_foreign_number(word):
        return f"{begin}; write numbers with decimal points and without separators of thousands"
    names = ",".join(found)
    also = f" (nor do {', '.join(repr(other) for other, _ in others)})" if others else ""
    return f"{begin}{also}; give --one-hot {names} for categories, or leave out with --drop {names}"


def is_foreign_number(text: str) -> bool:
    """Whether a cell holds a number with a decimal comma or separators of thousands."""
    return _FOREIGN_NUMBER.fullmatch(text.strip()) is not None


def parse_number(text: str) -> float | None:
    """Read the number in a cell: NaN where it is missing, None where there is no number."""
    text = text.strip(" \t")
    if text in MISSING:
        return np.nan
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _number_among_names(names: Sequence[str]) -> str | None:
    """First number in a line that should hold names of columns; None where these are names.

    Tools number columns without names from 0 or 1. Next to words, such numbers count as names if
    there are at least three: a row may begin with 0 or 1, too.
    """
    numbers = [name for name in names if name and parse_number(name) is not None]
    counting = any(numbers == [str(k + first) for k in range(len(numbers))] for first in (0, 1))
    alone = len(numbers) == sum(map(bool, names))
    return None if not numbers or (counting and (alone or len(numbers) > 2)) else numbers[0]
