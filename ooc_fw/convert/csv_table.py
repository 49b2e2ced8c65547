"""CSV tables: blocks of whole rows, which pyarrow parses; what is wrong is told by its line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from ooc_fw._core import text as scanning
from ooc_fw.convert import readers
from ooc_fw.convert.arrow import ArrowTable
from ooc_fw.convert.tables import (
    MISSING,
    TEXT,
    Cells,
    is_foreign_number,
    name_columns,
    parse_number,
    seconds_in,
)
from ooc_fw.convert.text import TextBlock, TextInput
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

DELIMITERS = ",\t;|"
_NO_UTF_8 = "not UTF-8 text; convert it, as by iconv -f latin1 -t utf-8, or -f utf-16"
_SHOWN = 40  # letters of a wrong cell

csv.field_size_limit(readers.MAX_ROW_BYTES)  # cells of text that is left out may be long, too


class CSVTable(TextInput, ArrowTable):
    """A CSV table, in blocks of whole rows, whose quoted cells may hold line breaks."""

    _long_row_hint = "does a quote begin here that never ends?"

    def __init__(self, path: str, options: ConvertOptions) -> None:
        if options.labels is not None:
            raise InputError(f"{path} has its labels in a column: name it with --label")
        super().__init__(path)
        self._delimiter = options.delimiter or ""
        self._skip = options.on_error == "skip"  # leave out rows that cannot be read
        self._like = options.like  # fixes what the columns hold, if it is there
        self._quoting = scanning.BEGIN  # at the end of what was read
        self._by_word: set[str] = set()  # columns of numbers that pyarrow does not take for some
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
        line = block.text[start:end].decode("utf-8", "replace").rstrip("\r\n")
        if not {"\0", "\ufffd"}.isdisjoint(line):
            raise InputError(f"the first line of {self.name} is {_NO_UTF_8}")
        if "\r" in line.replace("\r\n", ""):
            raise InputError(
                f"the lines of {self.name} end in carriage returns alone; convert it by tr '\\r' "
                f"'\\n'"
            )
        names = [cell.strip() for cell in next(csv.reader([line], delimiter=self._delimiter))]
        if options.header is False:
            self.header = False
            self.kinds = {str(j): TEXT for j in range(len(names))}
            return
        number = None if options.header else _number_among_names(names)
        hint = "give --no-header if its first line is a row"
        if options.like is not None:
            hint = "put the line of names first that the training file has"
        if number is not None:
            also = "" if options.like else f", or --header if {number!r} is a name"
            raise InputError(
                f"the first line of {self.name} holds numbers, not names of columns; {hint}{also}"
            )
        self.kinds = dict.fromkeys(name_columns(self.name, names, f", or {hint}"), TEXT)
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

    def _check_end(self, line: int) -> None:
        if self._quoting == scanning.QUOTED:
            raise InputError(
                f"{self.name}, line {line}: a quote in the row that begins here never ends; a "
                f"quoted cell ends in a quote"
            )

    def _scan(self, text: bytes, state: int = scanning.BEGIN) -> tuple[int, int, int]:
        """State at the end, place after the last end of a row, number of rows that end."""
        found: tuple[int, int, int] = scanning.scan_rows(
            np.frombuffer(text, dtype=np.uint8), ord(self._delimiter), state
        )
        return found

    def cells(self, block: TextBlock) -> Cells:
        """Wanted cells of a block, of which rows that cannot be read are left out or an error."""
        types = {
            name: pa.binary() if name in self._by_word else pa.float64()
            for name in self.wanted.numbers
        }
        types |= dict.fromkeys(self.wanted.texts, pa.dictionary(pa.int32(), pa.string()))
        try:
            table, errors = self._parse(block, types)
        except pa.ArrowInvalid:  # which names one cell only: find all rows that are wrong
            table, errors = self._parse(block, dict.fromkeys(types, pa.binary()))
        lines = cache(lambda: self._lines(block))
        rows = np.delete(np.arange(table.num_rows + len(errors)), [*errors])
        table, wrong = self._converted(table)
        errors |= {int(rows[row]): _words_error(found, self._like) for row, found in wrong.items()}
        messages = [f"{self.name}, line {lines()[row]}: {errors[row]}" for row in sorted(errors)]
        if messages and not self._skip:
            raise InputError(messages[0])
        kept = np.delete(np.arange(table.num_rows), [*wrong])
        if wrong:
            table = table.take(pa.array(kept))

        def place(row: int) -> str:
            return f"{self.name}, line {lines()[rows[kept[row]]]}"

        columns = dict(zip(table.column_names, table.columns, strict=True))
        found = self._cells_of(columns, table.num_rows, place)
        return Cells(found.labels, found.numbers, found.words, place, tuple(messages))

    def _parse(self, block: TextBlock, types: Mapping[str, Any]) -> tuple[pa.Table, dict[int, str]]:
        """Columns of these types, without rows of another width, which are told by their number."""
        errors: dict[int, str] = {}

        def leave_out(row: Any) -> str:
            errors[row.number - 1] = (
                f"it has {row.actual_columns} cells for {row.expected_columns} columns; quote "
                f"cells that hold a {self._delimiter!r} or a line break"
            )
            return "skip"

        table = arrow_csv.read_csv(
            pa.BufferReader(block.text),
            read_options=arrow_csv.ReadOptions(
                column_names=self.columns, use_threads=False, block_size=len(block.text) + 1
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self._delimiter,
                newlines_in_values=b'"' in block.text,
                invalid_row_handler=leave_out,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=list(MISSING),
                strings_can_be_null=False,
            ),
        )
        n_rows = table.num_rows + len(errors)
        if types and n_rows != block.n_lines and n_rows != self._scan(block.text)[2]:
            raise InputError(
                f"{self.name}, line {block.first_line} or below: a carriage return stands alone in "
                f"a cell; remove it, as by tr -d '\\r', or quote the cell"
            )
        return table, errors

    def _converted(self, table: pa.Table) -> tuple[pa.Table, dict[int, dict[str, str | None]]]:
        """A table with numbers and words for bytes; of rows that hold others, column -> word."""
        wrong: dict[int, dict[str, str | None]] = {}
        for j, name in enumerate(table.column_names):
            if table.column(j).type != pa.binary():
                continue
            coded = table.column(j).combine_chunks().dictionary_encode()
            texts = [_utf_8(value) for value in coded.dictionary.to_pylist()]
            values: list[Any] = [*texts]
            kind = pa.string()
            if name in self.wanted.numbers:
                kind = pa.float64()
                values = [None if text is None else parse_number(text) for text in texts]
                if not {"true", "false"}.isdisjoint(str(text).strip().lower() for text in texts):
                    self._by_word.add(name)
            codes = coded.indices.to_numpy()
            is_wrong = np.array([value is None for value in values], dtype=bool)[codes]
            for row in np.flatnonzero(is_wrong).tolist():
                wrong.setdefault(row, {})[name] = texts[codes[row]]
            column = pa.array(values, kind, from_pandas=False).take(coded.indices)
            table = table.set_column(j, name, column)
        return table, wrong

    def _lines(self, block: TextBlock) -> list[int]:
        """Number of the line on which each row of a block begins."""
        text = io.StringIO(block.text.decode("latin-1"), newline="")
        rows = csv.reader(text, delimiter=self._delimiter)
        lines: list[int] = []
        line = block.first_line
        for cells in rows:
            if cells:
                lines.append(line)
            line = block.first_line + rows.line_num
        return lines


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


def _number_among_names(names: Sequence[str]) -> str | None:
    """First number in a line that should hold names of columns; None where these are names.

    Tools number columns without names from 0 or 1. Next to words, such numbers count as names if
    there are at least three: a row may begin with 0 or 1, too.
    """
    numbers = [name for name in names if name[-1:].isdigit() and parse_number(name) is not None]
    counting = any(numbers == [str(k + first) for k in range(len(numbers))] for first in (0, 1))
    alone = len(numbers) == sum(map(bool, names))
    return None if not numbers or (counting and (alone or len(numbers) > 2)) else numbers[0]


def _words_error(found: Mapping[str, str | None], like: object) -> str:
    """Message about columns that hold words where numbers are wanted; column -> its word."""
    name, word = next(iter(found.items()))
    if word is None:
        return f"it is {_NO_UTF_8}"
    names = ",".join(found)
    way = f"give --one-hot {names} for categories, or leave out with --drop {names}"
    if like:
        way = f"correct the row, as {like} needs numbers there"
    elif is_foreign_number(word):
        way = "write numbers with decimal points and without separators of thousands"
    elif np.isfinite(seconds_in(word)):
        way = f"give --dates {name} for seconds since 1970, or --drop {name}"
    others = f" (nor do {', '.join(map(repr, [*found][1:]))})" if len(found) > 1 else ""
    shown = word if len(word) <= _SHOWN else word[:_SHOWN] + "..."
    return f"column {name!r} does not hold a number but {shown!r}{others}; {way}"


def _utf_8(value: bytes) -> str | None:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
