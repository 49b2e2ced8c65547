"""Tables in CSV, Parquet and Arrow files: pyarrow reads their columns, which become cells."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import dataset, parquet, types

from ooc_fw._core import text as scanning
from ooc_fw.conversion import readers, tables
from ooc_fw.conversion.readers import Place, Words
from ooc_fw.conversion.tables import DATES, NUMBERS, TEXT, WORDS, Cells, Table
from ooc_fw.conversion.text import TextBlock, TextInput
from ooc_fw.data.formats import check_no_log
from ooc_fw.data.rows import Float64Array
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError, format_label, format_words, unreadable

MAX_BLOCK_ROWS = 1 << 16  # most rows of a table that are read at once

csv.field_size_limit(readers.MAX_ROW_BYTES)  # columns that are left out may have long cells


class ArrowTable(Table):
    """Parquet or Arrow IPC: a file, or all files of a folder in the order of their names.

    If folders below it have names such as ``year=2024``, ``year`` is a column, too. A frame of
    pandas or polars, or a table of Arrow, is read like a file.
    """

    def __init__(self, given: Any, kind: str) -> None:
        path = given if isinstance(given, str) else f"this {type(given).__name__}"
        super().__init__(path, 0)
        where: dict[str, Any] = {"format": "parquet" if kind == "parquet" else "ipc"}
        if os.path.isdir(path):
            check_no_log(path)
            where |= {"partitioning": "hive", "partition_base_dir": path}
        try:
            if given is path:
                found = dataset.dataset(path, **where)
            else:
                found = dataset.dataset(pa.table(given))
            self._parts = sorted(found.get_fragments(), key=self._name_of)
            schemas = [part.physical_schema for part in self._parts]
            schema = pa.unify_schemas([*schemas, found.schema], promote_options="permissive")
            self._n_rows = sum(part.count_rows() for part in self._parts)
            self.size = sum(map(os.path.getsize, getattr(found, "files", ())))
            # The index of pandas may be a column; if it is a range, there is none.
            index = (found.schema.pandas_metadata or {}).get("index_columns", ())
        # ValueError: JSON of pandas, or columns of one name. TypeError: a column of several types.
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise unreadable(path, error) or InputError(
                f"{path} cannot be read as {kind.capitalize()} ({error}); write it again, with one "
                f"type for each column in all files"
            ) from None
        self._is_parquet = kind == "parquet"
        self._row = 0  # number of the next row
        self.kinds = {one.name: _kind(one.type) for one in schema if one.name not in index}

    @property
    def bytes_read(self) -> int:
        """Bytes of the files, in proportion to the rows read so far."""
        return int((self.size or 0) * self._row // max(1, self._n_rows))

    def _name_of(self, part: Any) -> str:
        """Path of a part; a frame has none."""
        return getattr(part, "path", self.name)

    def blocks(self) -> Iterator[tuple[Mapping[str, Any], Place]]:
        """Yield columns of Arrow, and the places of their rows."""
        for part in self._parts:
            path = self._name_of(part)
            # Columns in the names of folders, with their values.
            keys = dataset.get_partition_keys(part.partition_expression)
            stored = [name for name in self.wanted if name not in keys]
            if lacking := {*stored} - {*part.physical_schema.names}:
                raise InputError(
                    f"{path} lacks column {min(lacking)!r} of the other files of {self.name}; "
                    f"leave the column out, write the file again, or move it elsewhere"
                )
            first = 0
            try:
                for batch in self._batches(part, stored):
                    n_rows = batch.num_rows
                    self._row += n_rows
                    self.text_bytes += batch.nbytes
                    # A dict finds a column by its name; a schema would search through all.
                    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                    columns |= {name: pa.repeat(value, n_rows) for name, value in keys.items()}
                    yield columns, tables.place_from(path, first)
                    first += n_rows
            except MemoryError:
                raise
            except (pa.ArrowException, OSError) as error:
                raise unreadable(path, error) or InputError(
                    f"{path} is damaged after row {first} ({error}); fetch it again"
                ) from error

    def _batches(self, part: Any, stored: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of bounded size from a part, with the `stored` columns."""
        size = _block_rows(8 * len(stored))
        if not self._is_parquet:
            for batch in part.to_batches(columns=stored, use_threads=False):
                for start in range(0, batch.num_rows, size):
                    yield batch.slice(start, size)
            return
        # Pages are streamed, since a whole row group might not fit the memory. Parquet stores equal
        # texts once, and a dictionary keeps them so.
        texts = [name for name in stored if self.kinds[name] == WORDS]
        with parquet.ParquetFile(
            part.path,
            buffer_size=1 << 20,
            pre_buffer=False,
            read_dictionary=texts,
            page_checksum_verification=True,  # of pages that have a checksum
        ) as pages:
            groups = map(pages.metadata.row_group, range(pages.metadata.num_row_groups))
            most = max((one.total_byte_size // max(1, one.num_rows) for one in groups), default=1)
            size = min(size, _block_rows(most))
            yield from pages.iter_batches(size, columns=stored, use_threads=False)

    def cells(self, block: tuple[Mapping[str, Any], Place]) -> Cells:  # noqa: D102
        return _cells_of(*block, self.wanted, format_label)


def _block_rows(row_bytes: int) -> int:
    """Number of rows of a table that are read at once, if a row has `row_bytes`."""
    return min(MAX_BLOCK_ROWS, max(64, readers.BLOCK_BYTES // max(1, row_bytes)))


def _kind(kind: Any) -> str:
    """Content of a column with an Arrow type, as in `Table.kinds`."""
    value = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_null(value):
        return TEXT
    if types.is_timestamp(value) or types.is_date(value):
        return DATES
    if types.is_boolean(value) or types.is_primitive(value) or types.is_decimal(value):
        return str(value) if types.is_temporal(value) else NUMBERS
    return WORDS if str(value) in ("string", "large_string", "string_view") else str(value)


class CSVTable(TextInput, Table):
    """A CSV table, in blocks of whole rows; quoted cells may hold line breaks."""

    def __init__(self, path: str, options: ConvertOptions, *, live: bool = False) -> None:
        super().__init__(path, live=live)
        self._delimiter = options.delimiter or ""
        self._given = options.names  # names of a table whose file has none
        self._is_later = options.like is not None  # such rows may lack the last columns
        self._names: list[str] = []  # names of all columns, in order
        self._quoting = scanning.BEGIN  # state of quotes at the end of the text read so far
        try:
            if len(self._delimiter) > 1 or not self._delimiter.isascii():
                raise InputError(
                    f"the delimiter must be one ASCII character, not {self._delimiter!r}"
                )
            rest = super().blocks()
            first = self._read_header(next(rest, None), options.header)
            self._blocks = filter(lambda block: block.text, chain([first], rest))
        except BaseException:
            self.close()
            raise

    def _read_header(self, block: TextBlock | None, header: bool | None) -> TextBlock:
        """Find the names of the columns in the first block; return the rows below them."""
        if block is None or not block.text.strip():
            raise InputError(f"{self.name} is empty; give a table with rows in it")
        _, end, cells = next(self._rows(block))
        names = [name.strip() for name in cells]
        given = [*self._given]
        nameless: list[str] | None = None
        if given and not {*names} <= {*given}:  # else the first line has these names
            others = [name for name in names if name not in given]
            if 2 * len(others) < len(names):
                raise InputError(
                    f"the first line of {self.name} names the columns, but {format_words(others)} "
                    f"is not among the names that are given (--names, or those of training); "
                    f"correct it"
                )
            if len(names) > len(given) or (len(names) < len(given) and not self._is_later):
                raise InputError(
                    f"{self.name} has {len(names)} columns without names, and {len(given)} names "
                    f"are given ({format_words(given)}); give one name a column, or a file that "
                    f"has them"
                )
            nameless = given[: len(names)]
        elif header is False and not given:
            nameless = [str(place) for place in range(len(cells))]
        if nameless is not None:
            self.header = False
            self._names = nameless
            self.kinds = dict.fromkeys(self._names, TEXT)
            return block
        numbers = [
            name for name in names if name[-1:].isdigit() and tables.parse_number(name) is not None
        ]
        if numbers and not header:
            raise InputError(
                f"the first line of {self.name} holds numbers, not names of columns "
                f"({numbers[0]}); give --names or write a line of names above it, or convert with "
                f"--no-header if it is a row, with --header if it has the names"
            )
        self._names = [  # a nameless column gets its place as a name, unless another has it
            name or f"{'unnamed ' * (str(place) in names)}{place}"
            for place, name in enumerate(names)
        ]
        if len({*self._names}) < len(names) or max(map(len, names)) > readers.MAX_NAME:
            raise InputError(
                f"{self.name} has two columns of one name, or a name of more than "
                f"{readers.MAX_NAME} letters; rename it, or convert with --no-header if "
                f"there are no names"
            )
        # Data frames write the names of their rows into a nameless first column.
        has_index = len(names) > 1 and not names[0] and all(names[1:])
        self.kinds = dict.fromkeys(self._names[has_index:], TEXT)
        rest = block.text.split(b"\n", end - block.first_line)[-1]
        return TextBlock(block.name, rest, end)

    def blocks(self) -> Iterator[TextBlock]:  # noqa: D102
        return self._blocks

    def _last_row_end(self, data: bytes) -> int:
        """Place after the last line end outside quotes."""
        if not self._delimiter:  # the most frequent one in the first line, outside quotes
            line = re.sub(rb'"[^"]*"', b"", data.lstrip()).partition(b"\n")[0]
            self._delimiter = max(",\t;|", key=lambda one: line.count(one.encode()))
        text = np.frombuffer(data, dtype=np.uint8)
        self._quoting, end = scanning.scan_rows(text, ord(self._delimiter), self._quoting)
        return int(end)

    def _check_end(self, line: int) -> None:
        if self._quoting == scanning.QUOTED:
            raise InputError(
                f"{self.name}, line {line}: a quote in the row that begins here never ends; a "
                f"quoted cell ends in a quote"
            )

    def cells(self, block: TextBlock) -> Cells:  # noqa: D102
        floats = [name for name, what in self.wanted.items() if what == "numbers"]
        # Pyarrow ends a row at a single carriage return, although it may be part of a cell.
        if b"\r" in block.text and block.text.count(b"\r") > block.text.count(b"\r\n"):
            self._check_rows(block)
        try:
            columns = self._parse(block.text, floats)
        except pa.ArrowInvalid:  # pyarrow refuses True and False, too, which count as 1 and 0
            columns = self._parse_by_words(block, floats)
        return _cells_of(columns, lambda row: self._place(block, row), self.wanted, str.strip)

    def _parse_by_words(self, block: TextBlock, floats: Sequence[str]) -> dict[str, Any]:
        """Parse wanted columns by `parse_number`; InputError for the first unreadable row."""
        self._check_rows(block)
        columns = self._parse(block.text, ())
        for name in floats:
            codes = columns[name].indices
            words = columns[name].dictionary.to_pylist()
            numbers = [tables.parse_number(word) for word in words]
            if None in numbers:
                code = numbers.index(None)
                shown = words[code] if len(words[code]) <= 40 else words[code][:40] + "..."
                row = codes.index(code).as_py()
                way = f"correct the row, or convert with --one-hot {name}, --dates {name} or "
                way += f"--drop {name}"
                if self._is_later:
                    way = "correct or delete the row"
                if self._is_later and not self.header:
                    way += f", or see if one of the {len(self._names)} columns is out of place: "
                    way += "without a header, they are those of training in the same order"
                _, _, cells = next(self._rows(block))
                are_words = {*map(tables.parse_number, cells)} == {None}
                if are_words and block.first_line + row == 1 and not self.header:
                    way = f"delete the line if it names the columns; else {way}"
                raise InputError(
                    f"{self._place(block, row)}: column {name!r} does not hold a number but "
                    f"{shown!r}; {way}"
                )
            columns[name] = pa.array(numbers, pa.float64()).take(codes)
        return columns

    def _parse(self, text: bytes, floats: Sequence[str]) -> dict[str, Any]:
        """Parse wanted columns as words, except that `floats` become numbers."""
        words = pa.dictionary(pa.int32(), pa.string())
        table = arrow_csv.read_csv(
            pa.BufferReader(text),
            read_options=arrow_csv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=len(text) + 1
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=b'"' in text
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(self.wanted, words)
                | dict.fromkeys(floats, pa.float64()),
                include_columns=[*self.wanted],
                null_values=[*tables.MISSING],
                strings_can_be_null=False,
            ),
        )
        return {name: table[name].combine_chunks() for name in self.wanted}

    def _place(self, block: TextBlock, row: int) -> str:
        line, _, _ = next(islice(self._rows(block), row, None))
        return f"{self.name}, line {line}"

    def _check_rows(self, block: TextBlock) -> None:
        for _ in self._rows(block):
            pass

    def _rows(self, block: TextBlock) -> Iterator[tuple[int, int, list[str]]]:
        """Yield the line of each row, the line after it, and its cells.

        This parser is slow and exact. InputError is raised for a row that cannot be read.
        """
        line = block.first_line
        text = io.StringIO(block.text.decode("utf-8", "surrogateescape"), newline="\n")
        rows = csv.reader(text, delimiter=self._delimiter)
        try:
            for cells in rows:
                end = block.first_line + rows.line_num
                "".join(cells).encode()
                n_columns = len(self._names or cells)
                if cells and len(cells) != n_columns:
                    way = f"quote cells that hold a {self._delimiter!r} or a line break"
                    if len(cells) < n_columns:
                        way = "complete the row, or delete it"
                    raise InputError(
                        f"{self.name}, line {line}: it has {len(cells)} cells for {n_columns} "
                        f"columns; {way}"
                    )
                if cells:
                    yield line, end, cells
                line = end
        except (UnicodeEncodeError, csv.Error) as error:
            way = "it is not UTF-8 text; convert it, as by iconv -f latin1 -t utf-8"
            if isinstance(error, csv.Error):
                way = "a carriage return stands alone; quote the cell, or write it as a line end"
            raise InputError(f"{self.name}, line {line}: {way}") from None


def _cells_of(
    columns: Mapping[str, Any],
    place: Place,
    wanted: Mapping[str, str],
    label_of: Callable[[Any], str],
) -> Cells:
    """Turn columns of Arrow into the wanted cells; `label_of` makes words of labels."""
    found: dict[str, Float64Array | Words] = {}
    for name, what in wanted.items():
        if what in ("words", "labels"):
            word_of = label_of if what == "labels" else tables.plain_word
            found[name] = _words_of(columns[name], place, word_of)
        else:
            read = _seconds if what == "dates" else _numbers_of
            found[name] = read(columns[name])
    return found, place


def _numbers_of(column: Any) -> Float64Array:
    """Numbers in a column of Arrow, with NaN for missing ones."""
    found: Float64Array = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
    return found


def _words_of(column: Any, place: Place, word_of: Callable[[Any], str]) -> Words:
    """Words in a column of Arrow: equal values become one word, empty ones are missing."""
    if types.is_float16(column.type):  # pyarrow before 26 has no dictionaries of these
        column = column.cast("float32")
    coded = column if hasattr(column, "dictionary") else column.dictionary_encode()
    codes = coded.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
    # The dictionary of a file may have words that the block lacks.
    used = np.flatnonzero(np.bincount(codes + 1)[1:])
    places = np.full(len(coded.dictionary) + 1, -1)  # code -1 takes the last of these places
    places[used] = np.arange(len(used))
    values = [coded.dictionary[code].as_py() for code in used.tolist()]
    return tables.collect_words(values, places[codes], place, word_of)


def _seconds(column: Any) -> Float64Array:
    """Seconds from 1970 to each date: NaN if it is missing, infinite if the text is not a date."""
    if _kind(column.type) == DATES:
        return _numbers_of(column.cast("timestamp[us]", safe=False).cast("int64")) / 1e6
    coded = column if hasattr(column, "dictionary") else column.dictionary_encode()
    seconds = [tables.seconds_in((word or "").strip()) for word in coded.dictionary.to_pylist()]
    return _numbers_of(pa.array(seconds, pa.float64()).take(coded.indices))
