"""Tables that pyarrow reads: Parquet, Arrow IPC, and CSV.

Where pyarrow fails on a block of CSV, it is read row by row, which finds the line and the column.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import Any, NamedTuple

import numpy as np

from ooc_fw._core import text as scanning
from ooc_fw.convert import readers
from ooc_fw.convert.readers import MISSING, NUMBERS, TEXT, WORDS, Cells, Wanted
from ooc_fw.convert.text import TextBlock, TextInput
from ooc_fw.data.formats import check_parts, file_system, is_url, open_bytes, remote_errors
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError, unreadable

DELIMITERS = ",\t;|"

csv.field_size_limit(readers.MAX_ROW_BYTES)  # cells of text that is left out may be long, too
_NO_UTF_8 = "not UTF-8 text; convert it, as by iconv -f latin1 -t utf-8, or -f utf-16"
_SHOWN = 40
_TEXT_BYTES = 16 << 20  # bytes of text of a Parquet file, as stored, that are read at once
_WIDE = 100  # columns for each row of a block from which pyarrow, at 10 kB a column, takes too much
_FOREIGN_NUMBER = re.compile(r"[+-]?\d+(?:[.,' ]\d{3})*(?:[.,]\d*)?(?:[eE][+-]?\d+)?")


def _import_pyarrow(purpose: str) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise InputError(f"{purpose} needs pyarrow: pip install 'ooc-fw[tables]'") from None
    return pyarrow


def write_arrow(table: Any, path: str) -> None:
    """Write a frame of pandas or polars, or an Arrow table, as an Arrow file."""
    pa = _import_pyarrow("Frames")
    if hasattr(table, "to_arrow"):  # of polars
        table = table.to_arrow()
    elif not hasattr(table, "column_names"):
        table = pa.Table.from_pandas(table, preserve_index=False)
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


class _Part(NamedTuple):
    path: str
    keys: Mapping[str, Any]  # column -> its value in this file, which the name of a folder tells
    schema: Any  # of the file itself


class PartsReader(readers.TableReader):
    """Parquet or Arrow IPC: a file, or all files of a folder in the order of their names.

    Where names of folders are like ``year=2024``, ``year`` is a column, too.
    """

    compressed = True

    def __init__(self, path: str, kind: str) -> None:
        self._pa = _import_pyarrow(kind.capitalize())
        super().__init__(path, 0)
        self._is_parquet = kind == "parquet"
        self._key_types: dict[str, Any] = {}
        try:
            with remote_errors(path) if is_url(path) else nullcontext():
                self._find_parts(path)
        except (self._pa.ArrowException, OSError) as error:
            raise InputError(
                f"{path} cannot be read as {kind.capitalize()} ({error}); write it again"
            ) from None

    def _find_parts(self, path: str) -> None:
        from pyarrow import dataset, fs

        if is_url(path):
            system, place = file_system(path)
            self._files = fs.PyFileSystem(fs.FSSpecHandler(system))
        else:
            if not os.path.isdir(path):
                open_bytes(path).close()
            check_parts(path)
            self._files, place = fs.LocalFileSystem(), path
        form = "parquet" if self._is_parquet else "ipc"
        found = dataset.dataset(place, format=form, filesystem=self._files, partitioning="hive")
        files = sorted(found.get_fragments(), key=lambda one: one.path)
        keys_of = dataset.get_partition_keys
        self._parts = [
            _Part(one.path, keys_of(one.partition_expression), one.physical_schema) for one in files
        ]
        infos = self._files.get_file_info([part.path for part in self._parts])
        self.size = sum(info.size or 0 for info in infos)
        self.n_rows = sum(one.count_rows() for one in files)
        types = dict(zip(found.schema.names, found.schema.types, strict=True))
        readers.name_columns(path, found.schema.names)  # some may be alike
        for part in self._parts:
            self._key_types |= {name: types[name] for name in part.keys}
            for field in part.schema:
                if self._pa.types.is_null(types.setdefault(field.name, field.type)):
                    types[field.name] = field.type
        names = readers.name_columns(path, list(types))
        self._stored = dict(zip(names, types, strict=True))
        self.kinds = {name: _kind(types[stored]) for name, stored in self._stored.items()}
        self.index = _pandas_index(found.schema.metadata) & frozenset(self.kinds)

    def choose(self, wanted: Wanted) -> None:
        """Raise InputError where a part lacks a column, or has one of another type."""
        super().choose(wanted)
        for sentence in self.differences(wanted.columns):
            raise InputError(sentence)

    def differences(self, columns: Iterable[str]) -> Iterator[str]:
        """Parts that lack one of the columns, or have it of another type."""
        for part, name in product(self._parts, columns):
            stored = self._stored[name]
            if stored in part.keys:
                continue
            if stored not in part.schema.names:
                yield (
                    f"{part.path} lacks column {name!r} of the other files of {self.name}; leave "
                    f"the column out, write the file again, or move it elsewhere"
                )
                continue
            kind = part.schema.field(stored).type
            if _kind(kind) != self.kinds[name] and not self._pa.types.is_null(kind):
                yield (
                    f"column {name!r} of {part.path} is of type {kind}, unlike that of the other "
                    f"files of {self.name}; write them with one type"
                )

    def blocks(self) -> Iterator[tuple[Any, ...]]:  # noqa: D102
        for part in self._parts:
            first = 0
            try:
                for batch in self._batches(part):
                    n_rows = batch.num_rows
                    self.row += n_rows
                    self.text_bytes += batch.nbytes
                    names = self.wanted.columns
                    columns = {name: self._column(part, batch, name) for name in names}
                    yield columns, n_rows, partial(readers.row_place, part.path, first)
                    first += n_rows
            except MemoryError:
                raise
            except (self._pa.ArrowException, OSError) as error:
                raise unreadable(part.path, error) or InputError(
                    f"{part.path} is damaged after row {first} ({error}); fetch it again"
                ) from error

    def _batches(self, part: _Part) -> Iterator[Any]:
        """Record batches or tables of a part, of bounded size, with the columns to be read."""
        from pyarrow import ipc, parquet

        inside = {*part.schema.names} - {*part.keys}
        size = readers.block_rows(8 * sum(kind in readers.USABLE for kind in self.kinds.values()))
        stored = [
            name for name in map(self._stored.__getitem__, self.wanted.columns) if name in inside
        ]
        with self._files.open_input_file(part.path) as file:
            if not self._is_parquet:
                places = [part.schema.get_field_index(name) for name in stored]
                batches = ipc.open_file(file, options=ipc.IpcReadOptions(included_fields=places))
                for number in range(batches.num_record_batches):
                    batch = batches.get_batch(number)
                    for start in range(0, batch.num_rows, size):
                        yield batch.slice(start, size)
                return
            # A text that many rows share is stored once, and stays so in a dictionary.
            texts = {name for name in stored if _is_text(part.schema.field(name).type)}
            # Pages are streamed: a whole row group need not fit the memory.
            pages = parquet.ParquetFile(
                file, buffer_size=1 << 20, pre_buffer=False, read_dictionary=list(texts)
            )
            size = min(size, max(1, _TEXT_BYTES // _row_bytes(pages.metadata, texts)))
            begun: list[Any] = []  # batches end where dictionaries do
            for batch in pages.iter_batches(size, columns=stored, use_threads=False):
                begun.append(batch)
                if not texts or sum(one.num_rows for one in begun) >= size:
                    yield self._pa.Table.from_batches(begun)
                    begun = []
            if begun:
                yield self._pa.Table.from_batches(begun)

    def _column(self, part: _Part, rows: Any, name: str) -> Any:
        """A column of some rows of a part, which may have it by its folder or not at all."""
        stored = self._stored[name]
        if stored in part.keys:
            value = self._pa.scalar(part.keys[stored], self._key_types[stored])
            return self._pa.repeat(value, rows.num_rows)
        known = stored in part.schema.names
        column = rows.column(stored) if known else self._pa.nulls(rows.num_rows)
        if self._pa.types.is_null(column.type):
            return column.cast("float64" if self.kinds[name] == NUMBERS else "string")
        if self._is_parquet and _is_text(part.schema.field(stored).type):
            return _used_words(column)
        return column


def _is_text(kind: Any) -> bool:
    """Whether a column of this type holds text that is not stored as codes."""
    return not hasattr(kind, "value_type") and _kind(kind) == WORDS


def _row_bytes(metadata: Any, names: Collection[str]) -> int:
    """Most bytes that the columns with these names take for a row, in one of the row groups."""
    most = 1
    for number in range(metadata.num_row_groups if names else 0):
        group = metadata.row_group(number)
        columns = map(group.column, range(group.num_columns))
        n_bytes = sum(one.total_uncompressed_size for one in columns if one.path_in_schema in names)
        most = max(most, n_bytes // max(1, group.num_rows))
    return most


def _used_words(column: Any) -> Any:
    """A column of codes without the words that none of its rows has."""
    import pyarrow as pa
    from pyarrow import compute

    column = column.combine_chunks()
    used = column.indices.drop_null().unique()
    codes = compute.index_in(column.indices, value_set=used)
    return pa.DictionaryArray.from_arrays(codes, column.dictionary.take(used))


def _pandas_index(metadata: Mapping[bytes, bytes] | None) -> frozenset[str]:
    """Columns in which pandas stored its index, by the metadata of a schema."""
    try:
        stored = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
    except (ValueError, KeyError, TypeError):
        return frozenset()
    # A range index is stored as a record, without a column.
    return frozenset(name for name in stored if isinstance(name, str))


def _kind(kind: Any) -> str:
    from pyarrow import types as t

    if any(test(kind) for test in (t.is_integer, t.is_floating, t.is_decimal, t.is_boolean)):
        return NUMBERS
    value = kind.value_type if t.is_dictionary(kind) else kind
    texts = (t.is_string, t.is_large_string, t.is_string_view, t.is_binary)
    return WORDS if any(test(value) for test in texts) else str(kind)


class CSVReader(TextInput, readers.TableReader):
    """A CSV table, in blocks of whole rows, whose quoted cells may hold line breaks."""

    _long_row_hint = "does a quote begin here that never ends?"

    def __init__(self, path: str, options: ConvertOptions) -> None:
        _import_pyarrow("CSV")
        if options.labels is not None:
            raise InputError(f"{path} has its labels in a column: name it with --label")
        super().__init__(path)
        self._delimiter = options.delimiter or ""
        self._skip = options.on_error == "skip"  # leave out rows that cannot be read
        self._like = options.like  # fixes what the columns hold, if it is there
        self._quoting = scanning.BEGIN  # at the end of what was read
        try:
            wrong = self._delimiter in ('"', "\r", "\n") or not self._delimiter.isascii()
            if wrong or len(self._delimiter) > 1:
                raise InputError(
                    f"the delimiter must be one character of ASCII, not {self._delimiter!r}"
                )
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
        start, end = _header_bounds(block.text)
        header = block.text[start:end]
        line = header.decode("utf-8", "replace").rstrip("\r\n")
        if not {"\0", "\ufffd"}.isdisjoint(line):
            raise InputError(f"the first line of {self.name} is {_NO_UTF_8}")
        if "\r" in line.replace("\r\n", ""):
            raise InputError(
                f"the lines of {self.name} end in carriage returns alone; convert it by tr '\\r' "
                f"'\\n'"
            )
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
        self.kinds = dict.fromkeys(readers.name_columns(self.name, names, hint), TEXT)
        if len(names) > 1 and not names[0] and all(names[1:]):
            self.index = frozenset(self.columns[:1])  # data frames write names of rows like this
        n_above = block.text.count(b"\n", 0, end)
        self._first = TextBlock(block.name, block.text[end:], block.first_line + n_above)

    def blocks(self) -> Iterator[TextBlock]:  # noqa: D102
        if self._first is not None and self._first.text:
            yield self._first
        self._first = None
        yield from self._rest

    def _last_row_end(self, data: bytes) -> int:
        """Place after the last line end that is not inside quotes."""
        if not self._delimiter:
            self._delimiter = _likely_delimiter(data)
        self._quoting, end, _ = self._scan(data, self._quoting)
        return end

    def _scan(self, text: bytes, state: int = scanning.BEGIN) -> tuple[int, int, int]:
        """State at the end, place after the last end of a row, number of rows that end."""
        found: tuple[int, int, int] = scanning.scan_rows(
            np.frombuffer(text, dtype=np.uint8), ord(self._delimiter), state
        )
        return found

    def _rows(self, block: TextBlock) -> Iterator[tuple[int, bytes]]:
        """Rows of a block that are not empty, and the number of the line where each begins."""
        begun, first, state = b"", block.first_line, scanning.BEGIN
        for number, line in enumerate(io.BytesIO(block.text), block.first_line):
            if not begun:
                first = number
            begun += line
            if b'"' in line or state == scanning.QUOTED:
                state, _, _ = self._scan(line, state)
            if state != scanning.QUOTED:
                if begun.rstrip(b"\r\n"):
                    yield first, begun
                begun, state = b"", scanning.BEGIN
        if begun:
            yield first, begun

    def parse(self, block: TextBlock) -> Cells:
        """Wanted cells of a block of rows."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        wanted = self.wanted
        if len(self.columns) > _WIDE * block.n_lines:
            return self.parse_by_line(block)
        words = pa.dictionary(pa.int32(), pa.string())
        types = dict.fromkeys(wanted.numbers, pa.float64())
        types |= dict.fromkeys(wanted.texts, words)
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(block.text),
                read_options=arrow_csv.ReadOptions(
                    column_names=self.columns, use_threads=False, block_size=len(block.text) + 1
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=self._delimiter, newlines_in_values=b'"' in block.text
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=types,
                    include_columns=list(types),
                    null_values=list(MISSING),
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            return self.parse_by_line(block)
        n_rows = table.num_rows
        if n_rows != block.n_lines and n_rows != self._scan(block.text)[2]:
            return self.parse_by_line(block)  # a quote that never ends took rows with it

        def place(row: int) -> str:
            line, _ = next(islice(self._rows(block), row, None))
            return f"{self.name}, line {line}"

        return self.cells({name: table.column(name) for name in types}, n_rows, place)

    def parse_by_line(self, block: TextBlock) -> Cells:
        """As `parse`, to the same result; names or skips what cannot be read."""
        wanted = self.wanted
        place = {name: j for j, name in enumerate(self.columns)}
        columns: dict[str, list[Any]] = {name: [] for name in wanted.columns}
        places: list[str] = []
        skipped: list[str] = []
        for line, raw in self._rows(block):
            where = f"{self.name}, line {line}"
            try:
                cells = self._read_line(raw)
                values: dict[str, Any] = {name: cells[place[name]] for name in wanted.columns}
                numbers = {name: parse_number(values[name]) for name in wanted.numbers}
                if bad := {name: values[name] for name, x in numbers.items() if x is None}:
                    raise InputError(_words_error(bad, self._like))
            except InputError as error:
                skipped.append(f"{where}: {error}")
                if not self._skip:
                    raise InputError(skipped[-1]) from None
                continue
            places.append(where)
            for name, value in (values | numbers).items():
                columns[name].append(value)
        arrays = {
            name: np.array(column, np.float64 if name in wanted.numbers else object)
            for name, column in columns.items()
        }
        found = self.cells(arrays, len(places), places.__getitem__)
        return replace(found, skipped=tuple(skipped))

    def _read_line(self, raw: bytes) -> list[str]:
        try:
            text = raw.decode("utf-8").rstrip("\r\n")
            cells = next(csv.reader([text], delimiter=self._delimiter, strict=True))
        except UnicodeDecodeError:
            raise InputError(f"it is {_NO_UTF_8}") from None
        except csv.Error as error:
            raise InputError(f"{error}; a quoted cell ends in a quote") from None
        if len(cells) != len(self.columns):
            raise InputError(
                f"it has {len(cells)} cells for {len(self.columns)} columns; quote cells that hold "
                f"a {self._delimiter!r} or a line break"
            )
        return cells


def _header_bounds(text: bytes) -> tuple[int, int]:
    """Begin and end of the first line that is not empty, with line breaks inside quotes."""
    start = len(text) - len(text.lstrip(b"\r\n"))
    first = end = text.find(b"\n", start) + 1
    while end and text.count(b'"', start, end) % 2:
        end = text.find(b"\n", end) + 1
    return start, end or first or len(text)


def _likely_delimiter(text: bytes) -> str:
    """The delimiter that the first line of a table has most of outside quotes."""
    start, end = _header_bounds(text)
    unquoted = re.sub(rb'"[^"]*"', b"", text[start:end])
    return max(DELIMITERS, key=lambda delimiter: unquoted.count(delimiter.encode()))


def _words_error(found: Mapping[str, str], like: object) -> str:
    """Message about columns that hold words where numbers are wanted; column -> first word."""
    (name, word), *others = found.items()
    shown = word if len(word) <= _SHOWN else word[:_SHOWN] + "..."
    begin = f"column {name!r} does not hold a number but {shown!r}"
    if is_foreign_number(word):
        return f"{begin}; write numbers with decimal points and without separators of thousands"
    if np.isfinite(readers.seconds_in(word)) and not like:
        return f"{begin}; give --dates {name} for seconds since 1970, or --drop {name}"
    if others:
        begin += f" (nor do {', '.join(repr(other) for other, _ in others)})"
    if like:
        return f"{begin}, as {like} needs; correct the row"
    names = ",".join(found)
    return f"{begin}; give --one-hot {names} for categories, or leave out with --drop {names}"


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
