"""Tables as named columns, in blocks of rows: what all readers share, CSV and Parquet.

Owns telling the formats apart, what columns are called, and how cells become numbers and words in
bounded memory. CSV and Parquet are read by pyarrow, which is imported late; arrays are read by
`ooc_fw.convert.arrays`. What becomes of the columns (features, categories, labels) is
`ooc_fw.convert.tables`.

A reader has the attributes of `ooc_fw.convert.text.TextInput` that the converter uses: `name`,
`size`, `compressed`, `text_bytes`, `bytes_read` and `blocks`.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Self

import h5py
import numpy as np

from ooc_fw.convert.missing import MISSING
from ooc_fw.convert.text import TextBlock, TextInput
from ooc_fw.data.labels import is_exact_label
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Int64Array, take_rows
from ooc_fw.system.errors import InputError

BLOCK_BYTES = 4 << 20
"""Cells read at once, as float64."""

MAX_BLOCK_ROWS = 1 << 16
"""Rows read at once, however narrow."""

FORMATS = ("libsvm", "csv", "parquet", "npy", "npz", "hdf5")

DELIMITERS = ",\t;|"

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_SNIFF_BYTES = 4096
_SHOWN = 40
_CSV_NAME = re.compile(r"\.(csv|tsv|tab)(\.(gz|bz2|xz))?$", re.IGNORECASE)
_FOREIGN_NUMBER = re.compile(r"[+-]?\d+(?:[.,' ]\d{3})*(?:[.,]\d*)?(?:[eE][+-]?\d+)?")
_PAIR = re.compile(r"(^|\s)\d+:")


# --- cells ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Words:
    """A column of words, each different one written once.

    Parameters
    ----------
    codes : ndarray of int64, shape (n_rows,)
        Position of each row's word in `values`; -1 where it is missing.
    values : tuple of str
        The different words.
    """

    codes: Int64Array
    values: tuple[str, ...]

    def __getitem__(self, rows: AnyArray) -> Words:
        return Words(self.codes[rows], self.values)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns to read.

    Parameters
    ----------
    label : str or None
        Column of the labels; None leaves them 0.
    numbers, words : tuple of str
        Columns to be read as numbers, and as words.
    skip : bool
        Whether rows that cannot be read are left out rather than refused.
    """

    label: str | None
    numbers: tuple[str, ...]
    words: tuple[str, ...]
    skip: bool = False


@dataclass(frozen=True, slots=True)
class Cells:
    """Some rows of a table.

    Parameters
    ----------
    name : str
        The input, for messages.
    labels : ndarray of float64 or Words
        One a row; missing ones are NaN or -1.
    numbers : ndarray of float64, shape (n_rows, n_numbers), or CSRRows of float64
        Missing ones are NaN.
    words : tuple of Words
        One for each column of words.
    place : callable
        Says where a row of this block is, as "row 17" or "line 19".
    skipped : tuple of str
        What was wrong with rows that were left out.
    """

    name: str
    labels: Float64Array | Words
    numbers: Float64Array | CSRRows
    words: tuple[Words, ...]
    place: Callable[[int], str]
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels.codes if isinstance(self.labels, Words) else self.labels)

    def take(self, rows: Int64Array) -> Cells:
        """Some of the rows."""
        place, numbers = self.place, self.numbers
        taken: Any = take_rows(numbers, rows) if isinstance(numbers, CSRRows) else numbers[rows]
        return replace(
            self,
            labels=self.labels[rows],
            numbers=taken,
            words=tuple(column[rows] for column in self.words),
            place=lambda row: place(int(rows[row])),
        )


def word_of(value: object) -> str:
    """Write a value of a column of words: numbers in their shortest form, NaN as nothing.

    Blanks around a word do not count: many tables have some after each comma.
    """
    if value is None:
        return ""
    if isinstance(value, (float, np.floating)):
        return "" if np.isnan(value) else repr(float(value)).removesuffix(".0")
    if isinstance(value, bytes):
        return value.decode("utf-8").strip()
    return str(value).strip()


def collect_words(
    codes: AnyArray, values: Iterable[object], place: Callable[[int], str] = str
) -> Words:
    """Words of a column whose different values may be written alike, or be missing.

    Parameters
    ----------
    codes : ndarray of int
        Position of each row's value; negative where it is missing.
    values : iterable
        The different values.
    place : callable
        Says which file and row a row of this column is.

    Raises
    ------
    InputError
        A value is text in another encoding than UTF-8.
    """
    names: dict[str, int] = {}
    places: list[int] = []
    for value in values:
        try:
            word = word_of(value)
        except UnicodeDecodeError:
            row = int(np.flatnonzero(codes == len(places))[0])
            raise InputError(
                f"{place(row)}: {value!r} is not UTF-8 text; write the file again in UTF-8"
            ) from None
        places.append(names.setdefault(word, len(names)) if word else -1)
    # The last place stands for the code -1.
    return Words(np.array([*places, -1], dtype=np.int64)[codes], tuple(names))


# --- what all readers share ----------------------------------------------------------------------


@dataclass(frozen=True)
class ReadOptions:
    """How a table is read; parameters are those of `ooc_fw.convert.tables.TableOptions`."""

    format: str = "auto"
    header: bool | None = None
    delimiter: str | None = None
    labels: str | os.PathLike[str] | None = None
    x_name: str = "X"
    y_name: str = "y"
    label: str | None = None
    missing_labels: str = "refuse"


class TableReader(ABC):
    """A table, opened; a context manager.

    Attributes
    ----------
    name : str
        The input, for messages.
    columns : tuple of str
        Names of its columns.
    words : frozenset of str
        Columns known to hold words.
    words_everywhere : bool
        Whether nothing is known of columns, so that labels are read as words whatever they are.
    unusable : dict
        Columns that hold neither, and what they hold.
    own_label : str or None
        Column that holds the labels by its very name.
    index : frozenset of str
        Columns that only number or name the rows, by what the file says: no features.
    header : bool
        Whether the columns have names of their own.
    label_names : tuple of str
        What else could hold the labels, but is no column.
    sparse : bool
        Whether the numbers come as `CSRRows`.
    size : int or None
        Bytes on disk, None where there is no file with a size.
    compressed : bool
        Whether the cells take much more room than the file.
    text_bytes : int
        Bytes of input handed out so far.
    """

    words: frozenset[str] = frozenset()
    words_everywhere: bool = False
    own_label: str | None = None
    index: frozenset[str] = frozenset()
    header: bool = True
    label_names: tuple[str, ...] = ()
    sparse: bool = False
    compressed: bool = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.size: int | None = None
        self.text_bytes = 0
        self.columns: tuple[str, ...] = ()
        self.unusable: dict[str, str] = {}
        self._resources = ExitStack()

    @property
    def proper_columns(self) -> tuple[str, ...]:
        """Columns that are not the index."""
        return tuple(name for name in self.columns if name not in self.index)

    @property
    @abstractmethod
    def bytes_read(self) -> int:
        """Bytes of the file taken so far."""

    @abstractmethod
    def blocks(self) -> Iterator[Any]:
        """Blocks of rows as read; for one thread."""

    @abstractmethod
    def parse(self, block: Any, wanted: Wanted) -> Cells:
        """Cells of a block; for any thread.

        Raises
        ------
        InputError
            A row cannot be read, or a cell is no number.
        """

    def close(self) -> None:
        """Release what was opened."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def detect_format(path: str, options: ReadOptions, *, is_table: bool) -> str:
    """Tell the format of an input by its first bytes and its name.

    Parameters
    ----------
    path : str
        A file, or "-".
    options : ReadOptions
        Whose format, unless "auto", is taken as it is.
    is_table : bool
        Whether an option was given that only tables have, so that text is CSV.

    Returns
    -------
    str
        One of FORMATS. Text is CSV by its name, or when its first line has separators but no
        INDEX:VALUE.
    """
    if options.format != "auto":
        if options.format not in FORMATS:
            raise InputError(
                f"the format must be auto or one of {', '.join(FORMATS)}, not {options.format!r}"
            )
        return options.format
    if path == "-" or (os.path.exists(path) and not os.path.isfile(path)):
        return "csv" if is_table else "libsvm"  # a pipe gives its first bytes only once
    check_readable(path)
    with open(path, "rb") as file:
        head = file.read(_SNIFF_BYTES)
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"PK\x03\x04"):
        return "npz" if path.endswith(".npz") or _is_npz(path) else "libsvm"
    if h5py.is_hdf5(path):
        return "hdf5"
    if is_table or _CSV_NAME.search(path):
        return "csv"
    first = head.lstrip().split(b"\n", 1)[0].split(b"#", 1)[0].decode("latin-1")
    looks_like = re.search(r"\S[,;|]\S", first) is not None and b"\0" not in head
    return "csv" if looks_like and not _PAIR.search(first) else "libsvm"


def _is_npz(path: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def check_readable(path: str) -> None:
    """Raise InputError unless a file can be opened."""
    if os.path.isdir(path):
        raise InputError(f"{path} is a directory; name the files in it")
    try:
        with open(path, "rb"):
            pass
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the name of the input") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def _pyarrow(kind: str) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise InputError(f"{kind} needs pyarrow: pip install 'ooc-fw[tables]'") from None
    return pyarrow


def _unique_names(name: str, names: Sequence[str], hint: str = "") -> tuple[str, ...]:
    """Names of columns, a number where there is none; InputError where two are alike."""
    taken = {*names}
    filled = [
        text or (str(place) if str(place) not in taken else f"unnamed {place}")
        for place, text in enumerate(names)
    ]
    seen: set[str] = set()
    for text in filled:
        if text in seen:
            raise InputError(f"{name} has two columns {text!r}; rename one of them{hint}")
        seen.add(text)
    return tuple(filled)


# --- CSV -----------------------------------------------------------------------------------------


class CSVReader(TableReader):
    """Text with a separator between cells, plain or compressed; a cell holds no line break.

    Blocks of whole lines are cut as those of LIBSVM text are, so that any thread parses any block.

    Parameters
    ----------
    path : str
        A file, or "-" for standard input.
    options : ReadOptions
        Header and delimiter.
    """

    words_everywhere = True

    def __init__(self, path: str, options: ReadOptions) -> None:
        _pyarrow("CSV")
        if options.labels is not None:
            raise InputError(f"{path} has its labels in a column: name it with --label")
        self._text = TextInput(path)
        super().__init__(self._text.name)
        self._resources.callback(self._text.close)
        self.size, self.compressed = self._text.size, self._text.compressed
        try:
            self._stream = self._text.blocks()
            self._first = next(self._stream, None)
            self._read_header(options)
        except BaseException:
            self.close()
            raise

    def _read_header(self, options: ReadOptions) -> None:
        if self._first is None or not self._first.text.strip():
            raise InputError(f"{self.name} is empty; give a table with rows in it")
        block = self._first
        start = len(block.text) - len(block.text.lstrip(b"\r\n"))
        end = block.text.index(b"\n", start) + 1
        if block.text.startswith(_UTF_16):
            raise InputError(f"{self.name} is UTF-16 text; convert it by iconv -f utf-16 -t utf-8")
        line = block.text[start:end].decode("utf-8", "replace").rstrip("\r\n")
        if "\r" in line:
            raise InputError(
                f"the lines of {self.name} end in carriage returns alone; convert it by tr '\\r' "
                f"'\\n'"
            )
        self._delimiter = options.delimiter or _find_delimiter(line)
        if len(self._delimiter) != 1 or self._delimiter in '"\r\n':
            raise InputError(f"the delimiter must be one character, not {options.delimiter!r}")
        cells = next(csv.reader([line], delimiter=self._delimiter))
        if options.header is False:
            self.header = False
            self.columns = tuple(map(str, range(len(cells))))
            return
        names = [cell.strip() for cell in cells]
        number = None if options.header else _number_among_names(names)
        if number is not None:
            raise InputError(
                f"the first line of {self.name} holds numbers, not names of columns; give "
                f"--no-header if it is a row, or --header if {number!r} is a name"
            )
        hint = ", or give --no-header if its first line is a row"
        self.columns = _unique_names(self.name, names, hint)
        if len(names) > 1 and not names[0] and all(names[1:]):
            self.index = frozenset(self.columns[:1])  # names of rows, as data frames write them
        lines = block.text.count(b"\n", 0, end)
        self._first = TextBlock(
            block.name, block.text[end:], block.first_line + lines, block.n_lines - lines
        )

    @property
    def bytes_read(self) -> int:
        """Bytes taken from disk so far; for standard input, bytes of text."""
        return self._text.bytes_read

    def blocks(self) -> Iterator[TextBlock]:
        """Blocks of whole lines."""
        if self._first is not None and self._first.text:
            yield self._first
        self._first = None
        for block in self._stream:
            yield block
            self.text_bytes = self._text.text_bytes
        self.text_bytes = self._text.text_bytes

    def parse(self, block: TextBlock, wanted: Wanted) -> Cells:
        """Cells of a block of lines; the line and column of what is wrong are found apart."""
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
            return self._parse_slowly(block, wanted)
        if table.num_rows != block.n_lines and table.num_rows != _count_filled(block.text):
            return self._parse_slowly(block, wanted)  # a line break inside of quotes
        return Cells(
            self.name,
            np.zeros(table.num_rows)
            if wanted.label is None
            else _arrow_words(table.column(wanted.label)),
            _arrow_numbers([table.column(name) for name in wanted.numbers], table.num_rows),
            tuple(_arrow_words(table.column(name)) for name in wanted.words),
            lambda row: f"line {self._line_of(block, row)}",
        )

    def _line_of(self, block: TextBlock, row: int) -> int:
        """Line number of a row: empty lines are none."""
        for number, line in enumerate(io.BytesIO(block.text), block.first_line):
            if line.rstrip(b"\r\n"):
                if row == 0:
                    return number
                row -= 1
        raise AssertionError("a block has fewer lines than rows")

    def _parse_slowly(self, block: TextBlock, wanted: Wanted) -> Cells:
        """Parse line by line: names the line and the columns that cannot be read, or skips it."""
        place = {name: j for j, name in enumerate(self.columns)}
        columns = [place[name] for name in wanted.numbers]
        kept: list[list[str]] = []
        lines: list[int] = []
        numbers: list[list[float]] = []
        skipped: list[str] = []
        for number, raw in enumerate(io.BytesIO(block.text), block.first_line):
            if not raw.rstrip(b"\r\n"):
                continue
            reason, cells, values = self._read_line(raw, columns)
            if reason is None:
                kept.append(cells)
                lines.append(number)
                numbers.append(values)
            elif wanted.skip:
                skipped.append(f"{self.name}, line {number}: {reason}")
            else:
                raise InputError(f"{self.name}, line {number}: {reason}")

        def words(name: str) -> Words:
            column = [cells[place[name]] for cells in kept]
            values = {word: code for code, word in enumerate(dict.fromkeys(column))}
            return collect_words(np.array([values[word] for word in column], np.int64), values)

        return Cells(
            self.name,
            np.zeros(len(kept)) if wanted.label is None else words(wanted.label),
            np.array(numbers, dtype=np.float64).reshape(len(kept), len(columns)),
            tuple(map(words, wanted.words)),
            lambda row: f"line {lines[row]}",
            tuple(skipped),
        )

    def _read_line(
        self, raw: bytes, columns: Sequence[int]
    ) -> tuple[str | None, list[str], list[float]]:
        """What is wrong with a line, its cells, and the numbers in some columns."""
        try:
            text = raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            return "it is not UTF-8 text; convert it, as by iconv -f latin1 -t utf-8", [], []
        try:
            cells = next(csv.reader([text], delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            return f"{error}; a quoted cell must end on its line", [], []
        if len(cells) != len(self.columns):
            counts = f"it has {len(cells)} cells for {len(self.columns)} columns"
            hint = f"quote cells that hold a {self._delimiter!r}, and keep a row on one line"
            return f"{counts}; {hint}", [], []
        values = [parse_number(cells[j]) for j in columns]
        bad = [j for j, value in zip(columns, values, strict=True) if value is None]
        if not bad:
            return None, cells, [value for value in values if value is not None]
        return (
            words_error({self.columns[j]: cells[j] for j in bad}),
            cells,
            [],
        )


def _count_filled(text: bytes) -> int:
    """Lines that are not empty."""
    return sum(1 for line in io.BytesIO(text) if line.rstrip(b"\r\n"))


def words_error(found: Mapping[str, str]) -> str:
    """Word that columns hold words where numbers are wanted, and the ways out."""
    (name, word), *others = found.items()
    names = ",".join(found)
    if is_foreign_number(word):
        return (
            f"column {name!r} does not hold a number but {_shorten(word)!r}; write numbers with "
            f"decimal points and without separators of thousands"
        )
    also = f" (nor do {', '.join(repr(other) for other, _ in others)})" if others else ""
    return (
        f"column {name!r} does not hold a number but {_shorten(word)!r}{also}; give "
        f"--one-hot {names} for categories, or leave out with --drop {names}"
    )


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def is_foreign_number(text: str) -> bool:
    """Whether a cell holds a number with a decimal comma or separators of thousands."""
    return _FOREIGN_NUMBER.fullmatch(text.strip()) is not None


def parse_number(text: str) -> float | None:
    """Read the number in a cell, NaN where it is missing, None where it is none."""
    text = text.strip(" \t")
    if text in MISSING:
        return np.nan
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _find_delimiter(line: str) -> str:
    """Most frequent separator of a line outside of quotes."""
    bare = re.sub(r'"[^"]*"', "", line)
    return max(DELIMITERS, key=bare.count)


def _number_among_names(names: Sequence[str]) -> str | None:
    """First number where names of columns are expected; None where these are names.

    Numbers that count up from 0 or 1 are what tools call columns without names. Beside words there
    must be a few of them: a row may begin with 0 or 1, too.
    """
    numbers = [name for name in names if name and parse_number(name) is not None]
    counting = any(numbers == [str(k + first) for k in range(len(numbers))] for first in (0, 1))
    alone = len(numbers) == sum(map(bool, names))
    return None if not numbers or (counting and (alone or len(numbers) > 2)) else numbers[0]


# --- Parquet -------------------------------------------------------------------------------------


class ParquetReader(TableReader):
    """A Parquet file, read page by page.

    Parameters
    ----------
    path : str
        File to open.
    """

    compressed = True

    def __init__(self, path: str) -> None:
        pa = _pyarrow("Parquet")
        from pyarrow import parquet

        super().__init__(path)
        try:
            # Streams of pages: a whole row group need not fit the memory.
            self._file = parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(
                f"{path} cannot be read as Parquet ({error}); write it again"
            ) from None
        self._resources.callback(self._file.close)
        self.size = os.path.getsize(path)
        schema = self._file.schema_arrow
        self.columns = _unique_names(path, schema.names)
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
        """First row and record batch."""
        import pyarrow as pa

        usable = [name for name in self.columns if name not in self.unusable]
        rows = min(MAX_BLOCK_ROWS, max(1, BLOCK_BYTES // (8 * max(1, len(usable)))))
        try:
            for batch in self._file.iter_batches(rows, columns=usable, use_threads=False):
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
                labels = _arrow_words(column, place)
            else:
                _check_whole_labels(column, place)
                labels = _arrow_numbers([column], batch.num_rows)[:, 0]
        return Cells(
            self.name,
            labels,
            _arrow_numbers([batch.column(name) for name in wanted.numbers], batch.num_rows),
            tuple(_arrow_words(batch.column(name), place) for name in wanted.words),
            lambda row: f"row {start + row}",
        )


def _pandas_index(metadata: Mapping[bytes, bytes] | None) -> frozenset[str]:
    """Columns that pandas kept its index in, by the metadata of a schema."""
    try:
        stored = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
    except (ValueError, KeyError, TypeError):
        return frozenset()
    # A range is written as a record, and has no column.
    return frozenset(name for name in stored if isinstance(name, str))


def label_not_exact(place: str, label: object) -> InputError:
    """Build the error for a label that would become one with another."""
    return InputError(
        f"{place}: label {label} is a whole number that float64 does not tell from its neighbours; "
        f"write the labels as words, or number the classes anew"
    )


def _check_whole_labels(column: Any, place: Callable[[int], str]) -> None:
    """Refuse whole numbers that float64 does not hold, of Arrow's integers and decimals."""
    from pyarrow import types

    if not (types.is_integer(column.type) and column.type.bit_width > 32) and not types.is_decimal(
        column.type
    ):
        return
    for value in column.unique().to_pylist():
        if value is not None and not is_exact_label(str(value)):
            raise label_not_exact(place(column.to_pylist().index(value)), value)


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_boolean(kind)
    )


def _is_words(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_words(kind.value_type)
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_binary(kind)
    )


def _arrow_numbers(columns: Sequence[Any], n_rows: int) -> Float64Array:
    """Columns of Arrow numbers side by side, nulls as NaN."""
    import pyarrow as pa

    numbers = np.empty((n_rows, len(columns)))
    for j, column in enumerate(columns):
        cast = column if column.type == pa.float64() else column.cast(pa.float64(), safe=False)
        numbers[:, j] = (
            cast.to_numpy(zero_copy_only=False) if isinstance(cast, pa.Array) else (cast.to_numpy())
        )
    return numbers


def _arrow_words(column: Any, place: Callable[[int], str] = str) -> Words:
    """Column of any Arrow type as words."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return collect_words(codes.astype(np.int64), encoded.dictionary.to_pylist(), place)
