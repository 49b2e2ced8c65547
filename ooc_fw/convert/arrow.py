"""Tables that pyarrow reads: Parquet, Arrow IPC, and CSV.

Where pyarrow fails on a block of CSV, it is read row by row, which finds the line and the column.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw._core import text as scanning
from ooc_fw.convert import readers
from ooc_fw.convert.readers import BOOLEANS, MISSING, NUMBERS, TEXT, WORDS, Cells, Wanted
from ooc_fw.convert.text import TextBlock, TextInput
from ooc_fw.data.formats import check_parts, file_system, is_url, open_bytes, remote_errors
from ooc_fw.data.rows import Float64Array
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
    except ModuleNotFoundError:
        raise InputError(f"{purpose} needs pyarrow: pip install 'ooc-fw[tables]'") from None
    return pyarrow


def write_arrow(table: Any, path: str) -> None:
    """Write a frame of pandas or polars, or an Arrow table, as an Arrow file."""
    pa = _import_pyarrow("Frames")
    kind = type(table).__name__
    try:
        if hasattr(table, "to_arrow"):  # of polars
            table = table.to_arrow()
        elif isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        elif not hasattr(table, "column_names"):
            table = pa.Table.from_pandas(table, preserve_index=False)
    except (ValueError, TypeError) as error:  # columns of several types, or with one name
        raise InputError(f"this {kind} is no table for Arrow ({error}); correct it") from None
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


class _Part(NamedTuple):
    path: str
    types: Mapping[str, Any]  # of the columns in the file itself
    keys: Mapping[str, Any]  # column -> its value in this file, which the name of a folder tells


class PartsReader(readers.TableReader):
    """Parquet or Arrow IPC: a file, or all files of a folder in the order of their names.

    Where names of folders below it are like ``year=2024``, ``year`` is a column, too.
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
            self._files, place = fs.LocalFileSystem(), path
        check_parts(path)
        form = "parquet" if self._is_parquet else "ipc"
        is_file = self._files.get_file_info(place).is_file
        where: dict[str, Any] = {"format": form, "filesystem": self._files}
        if not is_file:
            where |= {"partitioning": "hive", "partition_base_dir": place}
        try:
            found = dataset.dataset(place, **where)
        except self._pa.ArrowInvalid:
            for one in dataset.dataset(place, self._pa.schema([]), **where).get_fragments():
                readers.name_columns(one.path, one.physical_schema.names)  # two may be alike
            raise
        files = sorted(found.get_fragments(), key=lambda one: one.path)
        types: dict[str, Any] = {}
        self._parts = []
        for one in files:
            schema = one.physical_schema
            keys = dataset.get_partition_keys(one.partition_expression)
            own = dict(zip(schema.names, schema.types, strict=True))
            self._parts.append(_Part(one.path, own, keys))
            for name, kind in own.items():
                if self._pa.types.is_null(types.setdefault(name, kind)):
                    types[name] = kind
        for name in dict.fromkeys(name for part in self._parts for name in part.keys):
            types[name] = self._key_types[name] = found.schema.field(name).type
        infos = self._files.get_file_info([part.path for part in self._parts])
        self.size = sum(info.size or 0 for info in infos)
        self.n_rows = sum(one.count_rows() for one in files)
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
            if stored not in part.types:
                yield (
                    f"{part.path} lacks column {name!r} of the other files of {self.name}; leave "
                    f"the column out, write the file again, or move it elsewhere"
                )
                continue
            kind = part.types[stored]
            if _kind(kind) != self.kinds[name] and not self._pa.types.is_null(kind):
                yield (
                    f"column {name!r} of {part.path} is of type {kind}, unlike that of the other "
                    f"files of {self.name}; write them with one type"
                )

    def blocks(self) -> Iterator[tuple[Any, ...]]:  # noqa: D102
        for part in self._parts:
            first = 0
            wanted = {name: self._column(part, name) for name in self.wanted.columns}
            try:
                for batch in self._batches(part):
                    n_rows = batch.num_rows
                    self.row += n_rows
                    self.text_bytes += batch.nbytes
                    # A column is found by its name in a dict: a schema looks at all of them.
                    stored = dict(zip(batch.schema.names, batch.columns, strict=True))
                    columns = {name: read(stored, n_rows) for name, read in wanted.items()}
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

        size = readers.block_rows(8 * sum(kind in readers.USABLE for kind in self.kinds.values()))
        wanted = map(self._stored.__getitem__, self.wanted.columns)
        stored = [name for name in wanted if name in part.types and name not in part.keys]
        with self._files.open_input_file(part.path) as file:
            if not self._is_parquet:
                places = {name: place for place, name in enumerate(part.types)}
                options = ipc.IpcReadOptions(included_fields=[places[name] for name in stored])
                batches = ipc.open_file(file, options=options)
                for number in range(batches.num_record_batches):
                    batch = batches.get_batch(number)
                    for start in range(0, batch.num_rows, size):
                        yield batch.slice(start, size)
                return
            # A text that many rows share is stored once, and stays so in a dictionary.
            texts = {name for name in stored if _is_text(part.types[name])}
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

    def _column(self, part: _Part, name: str) -> Callable[[Mapping[str, Any], int], Any]:
        """What finds a column of a part, given the stored columns of some rows and their number.

        The part may have it by its folder or not at all.
        """
        own = self._stored[name]
        if own in part.keys:
            key = self._pa.scalar(part.keys[own], self._key_types[own])
            return lambda _, n_rows: self._pa.repeat(key, n_rows)
        kind = part.types.get(own, self._pa.null())
        if self._pa.types.is_null(kind):
            type_name = "float64" if self.kinds[name] in (NUMBERS, BOOLEANS) else "string"
            return lambda _, n_rows: self._pa.nulls(n_rows, type_name)
        if self._is_parquet and _is_text(kind):
            return lambda stored, _: _used_words(stored[own])
        if _value_type(kind) == kind and self.kinds[name] in (NUMBERS, BOOLEANS):
            return lambda stored, _: stored[own]
        return lambda stored, _: _decoded(stored[own])


def _is_text(kind: Any) -> bool:
    """Whether a column of this type holds text that Parquet can read as codes of words."""
    from pyarrow import types as t

    tests = (t.is_string, t.is_large_string, t.is_binary, t.is_large_binary)
    return any(test(kind) for test in tests)


def _value_type(kind: Any) -> Any:
    """Type of the values in a column that may be of codes, of runs, or of an extension."""
    from pyarrow import types as t

    while t.is_dictionary(kind) or t.is_run_end_encoded(kind):
        kind = kind.value_type
    return getattr(kind, "storage_type", kind)


def _decoded(column: Any) -> Any:
    """A column with its values in the place of codes, runs and views; codes of words stay."""
    from pyarrow import compute, types

    if hasattr(column.type, "storage_type"):
        column = column.cast(column.type.storage_type)
    if types.is_run_end_encoded(column.type):
        column = compute.run_end_decode(column)
    value = _value_type(column.type)
    if types.is_dictionary(column.type):
        return column if _kind(value) == WORDS else column.cast(value)
    plain = {"string_view": "string", "binary_view": "binary"}
    return column.cast(plain[str(value)]) if str(value) in plain else column


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

    value = _value_type(kind)
    if t.is_boolean(value):
        return BOOLEANS
    if any(test(value) for test in (t.is_integer, t.is_floating, t.is_decimal)):
        return NUMBERS
    texts = (_is_text, t.is_string_view, t.is_binary_view, t.is_fixed_size_binary)
    return WORDS if any(test(value) for test in texts) else str(value)


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
        hint = "give --no-header if its first line is a row"
        if options.like is not None:
            hint = "put the line of names first that the training file has"
        if number is not None:
            also = "" if options.like else f", or --header if {number!r} is a name"
            raise InputError(
                f"the first line of {self.name} holds numbers, not names of columns; {hint}{also}"
            )
        hint = f", or {hint}"
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

        columns = dict(zip(table.column_names, table.columns, strict=True))
        return self.cells(columns, n_rows, place)

    def parse_by_line(self, block: TextBlock) -> Cells:
        """As `parse`, to the same result; names or skips what cannot be read."""
        wanted = self.wanted
        lines: list[int] = []
        rows: list[list[str]] = []
        errors: dict[int, str] = {}
        for line, raw in self._rows(block):
            try:
                rows.append(self._read_line(raw))
                lines.append(line)
            except InputError as error:
                errors[line] = str(error)
        cells = dict(zip(self.columns, zip(*rows, strict=True), strict=bool(rows)))
        columns: dict[str, Any] = {}
        bad: dict[int, dict[str, str]] = {}
        for name in wanted.numbers:
            columns[name], are_words = _numbers_in(cells.get(name, ()))
            for row in np.flatnonzero(are_words).tolist():
                bad.setdefault(row, {})[name] = cells[name][row]
        for row, words in bad.items():
            errors[lines[row]] = _words_error(words, self._like)
        skipped = [f"{self.name}, line {line}: {error}" for line, error in sorted(errors.items())]
        if skipped and not self._skip:
            raise InputError(skipped[0])
        columns |= {name: np.array(cells.get(name, ()), object) for name in wanted.texts}
        kept = np.array([row not in bad for row in range(len(rows))], dtype=bool)
        places = [f"{self.name}, line {lines[row]}" for row in np.flatnonzero(kept).tolist()]
        found = self.cells(
            {name: column[kept] for name, column in columns.items()},
            len(places),
            places.__getitem__,
        )
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
    """Read the number in a cell: NaN where it is missing, None where there is no number.

    True and False are 1 and 0, as in columns of booleans.
    """
    text = text.strip(" \t")
    if text in MISSING:
        return np.nan
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _numbers_in(cells: Sequence[str]) -> tuple[Float64Array, npt.NDArray[np.bool_]]:
    """Numbers in cells, and which cells hold something else."""
    try:
        if not any("_" in cell for cell in cells):  # which Python allows in numbers
            return np.array(cells, dtype=np.float64), np.zeros(len(cells), dtype=bool)
    except ValueError:
        pass
    numbers = [parse_number(cell) for cell in cells]
    are_words = np.array([number is None for number in numbers], dtype=bool)
    return np.array([np.nan if x is None else x for x in numbers]), are_words


def _number_among_names(names: Sequence[str]) -> str | None:
    """First number in a line that should hold names of columns; None where these are names.

    Tools number columns without names from 0 or 1. Next to words, such numbers count as names if
    there are at least three: a row may begin with 0 or 1, too.
    """
    numbers = [name for name in names if name[-1:].isdigit() and parse_number(name) is not None]
    counting = any(numbers == [str(k + first) for k in range(len(numbers))] for first in (0, 1))
    alone = len(numbers) == sum(map(bool, names))
    return None if not numbers or (counting and (alone or len(numbers) > 2)) else numbers[0]
