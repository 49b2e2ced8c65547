"""CSV tables: blocks of whole rows, which pyarrow parses; what is wrong is told by its line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from ooc_fw._core import text as scanning
from ooc_fw.convert import readers
from ooc_fw.convert.arrow import cells_of
from ooc_fw.convert.tables import MISSING, TEXT, Cells, Table, name_columns, parse_number
from ooc_fw.convert.text import TextBlock, TextInput
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

_FLOATS = ("numbers", "targets")

csv.field_size_limit(readers.MAX_ROW_BYTES)  # cells of text that is left out may be long, too


class CSVTable(TextInput, Table):
    """A CSV table, in blocks of whole rows, whose quoted cells may hold line breaks."""

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
            if len(self._delimiter) > 1 or not self._delimiter.isascii():
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
        """Find the names of the columns; the first block then begins below."""
        block = self._first
        if block is None or not block.text.strip():
            raise InputError(f"{self.name} is empty; give a table with rows in it")
        lines = io.TextIOWrapper(io.BytesIO(block.text), "utf-8", "replace", newline="\n")
        rows = csv.reader(lines, delimiter=self._delimiter)
        try:
            names = [cell.strip() for cell in next(filter(None, rows))]
        except csv.Error:  # a carriage return
            names = ["\0"]
        if not {"\0", "\ufffd"}.isdisjoint("".join(names)):
            raise InputError(
                f"the first line of {self.name} is not UTF-8 text, or ends in a carriage return "
                f"alone; convert it (iconv -f latin1 -t utf-8, or -f utf-16; tr '\\r' '\\n')"
            )
        if options.header is False:
            self.header = False
            self.kinds = {str(j): TEXT for j in range(len(names))}
            return
        numbers = [name for name in names if name[-1:].isdigit() and parse_number(name) is not None]
        hint = "give --no-header if its first line is a row, or --header if it names columns"
        if options.like is not None:
            hint = "put the line of names first that the training file has"
        if numbers and not options.header:
            raise InputError(
                f"the first line of {self.name} holds numbers, not names of columns "
                f"({numbers[0]}); {hint}"
            )
        self.kinds = dict.fromkeys(name_columns(self.name, names, f"; {hint}"), TEXT)
        if len(names) > 1 and not names[0] and all(names[1:]):
            self.index = frozenset([*self.kinds][:1])  # data frames write names of rows like this
        rest = block.text.split(b"\n", rows.line_num)[-1]
        self._first = TextBlock(block.name, rest, block.first_line + rows.line_num)

    def blocks(self) -> Iterator[TextBlock]:  # noqa: D102
        if self._first is not None and self._first.text:
            yield self._first
        self._first = None
        yield from self._rest

    def _last_row_end(self, data: bytes) -> int:
        """Place after the last line end that is not inside quotes."""
        if not self._delimiter:  # the one that the first line has most of outside quotes
            line = re.sub(rb'"[^"]*"', b"", data.lstrip()).partition(b"\n")[0]
            self._delimiter = max(",\t;|", key=lambda one: line.count(one.encode()))
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
        """Wanted cells of a block; rows that cannot be read are left out or an error."""
        slow = cache(lambda: self._parse_slowly(block))
        columns = self._parse(block)
        errors: tuple[str, ...] = ()
        if columns is None:
            columns, _, errors = slow()
        if errors and not self._skip:
            raise InputError(errors[0])

        def place(row: int) -> str:
            return f"{self.name}, line {slow()[1][row]}"

        n_rows = max(map(len, columns.values()), default=0)
        found = cells_of(columns, n_rows, place, self.wanted)
        return replace(found, skipped=errors)

    def _parse(self, block: TextBlock) -> dict[str, Any] | None:
        """Wanted columns as pyarrow reads them; None if some row or cell is not as it should be."""
        by_word = tuple(self._by_word)
        words = pa.dictionary(pa.int32(), pa.string())
        types = {
            name: pa.float64() if what in _FLOATS and name not in by_word else words
            for name, what in self.wanted.items()
        }
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(block.text),
                read_options=arrow_csv.ReadOptions(
                    column_names=[*self.kinds], use_threads=False, block_size=len(block.text) + 1
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
            return None
        if table.num_rows != block.n_lines and table.num_rows != self._scan(block.text)[2]:
            return None  # a carriage return stands alone in a cell
        columns = dict(zip(table.column_names, table.columns, strict=True))
        for name in by_word:
            coded = columns[name].combine_chunks()
            numbers = [parse_number(word) for word in coded.dictionary.to_pylist()]
            if None in numbers:
                return None
            columns[name] = pa.array(numbers, pa.float64()).take(coded.indices)
        return columns

    def _parse_slowly(self, block: TextBlock) -> tuple[dict[str, Any], list[int], tuple[str, ...]]:
        """Wanted columns of rows that can be read, their lines, and what is wrong with others."""
        text = io.StringIO(block.text.decode("utf-8", "surrogateescape"), newline="")
        rows = csv.reader(text, delimiter=self._delimiter)
        kept = []
        lines = []
        errors = []
        line = block.first_line
        try:
            for cells in rows:
                values = self._values(cells) if cells else ""
                if isinstance(values, list):
                    kept.append(values)
                    lines.append(line)
                elif values:
                    errors.append(f"{self.name}, line {line}: {values}")
                line = block.first_line + rows.line_num
        except csv.Error:
            raise InputError(
                f"{self.name}, line {line}: a carriage return stands alone in a cell; remove it, "
                f"as by tr -d '\\r', or quote the cell"
            ) from None
        columns = {
            name: pa.array(
                [values[j] for values in kept], pa.float64() if what in _FLOATS else pa.string()
            )
            for j, (name, what) in enumerate(self.wanted.items())
        }
        return columns, lines, tuple(errors)

    def _values(self, cells: list[str]) -> list[Any] | str:
        """Wanted cells of a row, or what is wrong with one."""
        if len(cells) != len(self.kinds):
            return (
                f"it has {len(cells)} cells for {len(self.kinds)} columns; quote cells that hold a "
                f"{self._delimiter!r} or a line break"
            )
        found = dict(zip(self.kinds, cells, strict=True))
        values: list[Any] = []
        for name, what in self.wanted.items():
            cell = found[name]
            value: Any = parse_number(cell) if what in _FLOATS else cell
            if not cell.isascii() and any("\udc80" <= letter <= "\udcff" for letter in cell):
                return "it is not UTF-8 text; convert it, as by iconv -f latin1 -t utf-8"
            if value is None:
                way = f"give --one-hot {name} for categories, --dates {name}, or --drop {name}"
                if self._like:
                    way = f"correct the row, as {self._like} needs numbers there"
                shown = cell if len(cell) <= 40 else cell[:40] + "..."
                return f"column {name!r} does not hold a number but {shown!r}; {way}"
            if what in _FLOATS and cell.strip().lower() in ("true", "false"):
                self._by_word.add(name)
            values.append(value)
        return values
