"""CSV tables: blocks of whole rows, which pyarrow parses; what is wrong is told by its line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
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

csv.field_size_limit(readers.MAX_ROW_BYTES)  # cells of text that is left out may be long, too


class CSVTable(TextInput, Table):
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
        words = pa.dictionary(pa.int32(), pa.string())
        kinds = {
            name: words
            if what != "numbers"
            else pa.float64()
            if name not in self._by_word
            else None
            for name, what in self.wanted.columns.items()
        }
        types = {name: kind or pa.binary() for name, kind in kinds.items()}
        try:
            table, errors = self._parse(block, types)
        except pa.ArrowInvalid:  # which names one cell only: find all rows that are wrong
            table, errors = self._parse(block, dict.fromkeys(types, pa.binary()))
        lines = cache(lambda: self._lines(block))
        rows = np.delete(np.arange(table.num_rows + len(errors)), [*errors])
        table, wrong = self._converted(table)
        errors |= {int(rows[row]): message for row, message in wrong.items()}
        messages = [f"{self.name}, line {lines()[row]}: {errors[row]}" for row in sorted(errors)]
        if messages and not self._skip:
            raise InputError(messages[0])
        if wrong:
            kept = np.delete(np.arange(table.num_rows), [*wrong])
            table = table.take(pa.array(kept))
            rows = rows[kept]

        def place(row: int) -> str:
            return f"{self.name}, line {lines()[rows[row]]}"

        columns = dict(zip(table.column_names, table.columns, strict=True))
        found = cells_of(columns, table.num_rows, place, self.wanted)
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
                column_names=[*self.kinds], use_threads=False, block_size=len(block.text) + 1
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

    def _converted(self, table: pa.Table) -> tuple[pa.Table, dict[int, str]]:
        """A table with numbers and words for bytes, and what is wrong with other rows."""
        wrong: dict[int, str] = {}
        for j, name in enumerate(table.column_names):
            if table.column(j).type != pa.binary():
                continue
            coded = table.column(j).combine_chunks().dictionary_encode()
            texts = [_utf_8(value) for value in coded.dictionary.to_pylist()]
            values: list[Any] = [*texts]
            kind = pa.string()
            if self.wanted.columns[name] == "numbers":
                kind = pa.float64()
                values = [None if text is None else parse_number(text) for text in texts]
                if not {"true", "false"}.isdisjoint(str(text).strip().lower() for text in texts):
                    self._by_word.add(name)
            codes = coded.indices.to_numpy()
            is_wrong = np.array([value is None for value in values], dtype=bool)[codes]
            for row in np.flatnonzero(is_wrong).tolist():
                wrong.setdefault(row, self._reason(name, texts[codes[row]]))
            column = pa.array(values, kind, from_pandas=False).take(coded.indices)
            table = table.set_column(j, name, column)
        return table, wrong

    def _reason(self, name: str, text: str | None) -> str:
        """What is wrong with a cell."""
        if text is None:
            return "it is not UTF-8 text; convert it, as by iconv -f latin1 -t utf-8"
        way = f"give --one-hot {name} for categories, --dates {name}, or --drop {name}"
        if self._like:
            way = f"correct the row, as {self._like} needs numbers there"
        shown = text if len(text) <= 40 else text[:40] + "..."
        return f"column {name!r} does not hold a number but {shown!r}; {way}"

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


def _utf_8(value: bytes) -> str | None:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
