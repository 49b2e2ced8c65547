"""Tables as Arrow record batches, of Parquet and Arrow files, and arrays that `open_source` opens.

A block of a table becomes `Cells`: numbers, and words of which each different one is written once.
`ooc_fw.convert.features` makes features of them.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_fw.convert import readers
from ooc_fw.convert.readers import MAX_NAME, Place, Reader, Words
from ooc_fw.data.formats import check_parts, file_system, is_url, open_bytes, remote_errors
from ooc_fw.data.labels import MISSING_LABELS, inexact_label, inexact_labels, plain_word
from ooc_fw.data.opening import open_source
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array
from ooc_fw.data.sources import RowSource, block_slices
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

MAX_COLUMNS = 1 << 16  # each takes pyarrow some 10 kB in a block
MAX_BLOCK_ROWS = 1 << 16  # rows of a table that are read at once, however narrow they are
MAX_LISTED = 12  # columns that a message lists
# As a number; of categories, only the empty cell is missing.
MISSING = (*sorted(MISSING_LABELS), "-")
NUMBERS, BOOLEANS, WORDS, TEXT = USABLE = ("numbers", "booleans", "words", "text")
"""What a column holds. Text may turn out to be numbers or words; a label is read as words."""
NULLS = "null"  # what a column of Arrow holds if all of its values are missing


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns to read."""

    label: str | None  # None makes all labels 0
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()  # columns of dates, which become numbers, too
    targets: bool = False  # whether labels are targets of a regression

    @property
    def texts(self) -> tuple[str, ...]:
        """Those of words and dates, and that of the labels."""
        return (*self.words, *self.dates, *(() if self.label is None else (self.label,)))

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.numbers, *self.texts)


@dataclass(frozen=True, slots=True)
class Cells:
    """Some rows of a table."""

    labels: Float64Array | Words  # missing ones are NaN or -1
    numbers: Float64Array | CSRRows  # (n_rows, n_numbers), of float64; missing ones are NaN
    words: tuple[Words, ...]  # one for each column of words
    place: Place
    skipped: tuple[str, ...] = ()  # what was wrong with rows that were left out


class Table(Reader):
    """An open table."""

    # What each column holds: NUMBERS, WORDS, TEXT, or another type, which is of no use.
    kinds: Mapping[str, str] = MappingProxyType({})
    own_label: str | None = None  # column that holds the labels because of its name
    index: frozenset[str] = frozenset()  # columns that only number or name the rows: no features
    header = True  # whether the columns have names of their own
    label_names: Sequence[str] = ()  # what else could hold the labels, but is no column
    sparse = False  # whether the numbers arrive as `CSRRows`, of all columns
    feature_names: Sequence[str] | None = None  # of rows in one array; None: nothing says them
    takes_label_file = False  # whether labels may come from a file of their own
    n_unlabelled = 0  # rows without a label that were left out when it was opened
    wanted: Wanted  # the columns to read, which `choose` tells

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.kinds)

    @property
    def proper_columns(self) -> tuple[str, ...]:
        """Columns that are not the index."""
        return tuple(name for name in self.kinds if name not in self.index)

    def choose(self, wanted: Wanted) -> None:
        """Leave out what is not wanted, in blocks as well; before the first of them."""
        self.wanted = wanted

    @abstractmethod
    def cells(self, block: Any) -> Cells:
        """Wanted cells of a block, for any thread; InputError for one that cannot be read."""

    def _cells_of(self, columns: Mapping[str, Any], n_rows: int, place: Place) -> Cells:
        """Wanted cells of columns of Arrow."""
        wanted = self.wanted
        labels: Float64Array | Words = np.zeros(n_rows)
        if wanted.label is not None:
            are_numbers = wanted.targets and self.kinds[wanted.label] == NUMBERS
            labels = (numbers_of if are_numbers else words_of)(columns[wanted.label], place)
        numbers = np.empty((n_rows, len(wanted.numbers) + len(wanted.dates)))
        for j, name in enumerate(wanted.numbers):
            numbers[:, j] = numbers_of(columns[name])
        for j, name in enumerate(wanted.dates, len(wanted.numbers)):
            numbers[:, j] = _seconds_of(columns[name], place)
        words = tuple(words_of(columns[name], place) for name in wanted.words)
        return Cells(labels, numbers, words, place)


class PartsTable(Table):
    """Parquet or Arrow IPC: a file, or all files of a folder in the order of their names.

    If names of folders below it are like ``year=2024``, ``year`` is a column, too.
    """

    def __init__(self, path: str, kind: str) -> None:
        import pyarrow as pa

        super().__init__(path, 0)
        self._is_parquet = kind == "parquet"
        self._row = 0  # number of the next row
        try:
            with remote_errors(path) if is_url(path) else nullcontext():
                self._find_parts(path)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{path} cannot be read as {kind.capitalize()} ({error}); write it again"
            ) from None

    def _find_parts(self, path: str) -> None:
        from pyarrow import dataset, fs

        self._files = fs.LocalFileSystem()
        place = path
        if is_url(path):
            system, place = file_system(path)
            self._files = fs.PyFileSystem(fs.FSSpecHandler(system))
        elif not os.path.isdir(path):
            open_bytes(path).close()
        check_parts(path)
        where: dict[str, Any] = {"format": "parquet" if self._is_parquet else "ipc"}
        if not self._files.get_file_info(place).is_file:
            where |= {"partitioning": "hive", "partition_base_dir": place}
        found = dataset.dataset(place, filesystem=self._files, **where)
        self._parts = sorted(found.get_fragments(), key=lambda one: one.path)
        # Columns that names of folders tell, and their values there.
        self._keys = [dataset.get_partition_keys(one.partition_expression) for one in self._parts]
        types: dict[str, Any] = {}
        for part in self._parts:
            for column in part.physical_schema:
                if _kind(types.setdefault(column.name, column.type)) == NULLS:
                    types[column.name] = column.type
        for name in dict.fromkeys(name for keys in self._keys for name in keys):
            types[name] = found.schema.field(name).type
        self._types = types
        infos = self._files.get_file_info([part.path for part in self._parts])
        self.size = sum(info.size or 0 for info in infos)
        self._n_rows = sum(part.count_rows() for part in self._parts)
        self._stored = dict(zip(name_columns(path, list(types)), types, strict=True))
        self.kinds = {name: _kind(types[stored]) for name, stored in self._stored.items()}
        named = (found.schema.pandas_metadata or {}).get("index_columns", ())
        # A range index is stored as a record, without a column.
        self.index = frozenset(one for one in named if isinstance(one, str) and one in self.kinds)

    @property
    def bytes_read(self) -> int:
        """Share of the files that belongs to the rows read."""
        return int((self.size or 0) * self._row // max(1, self._n_rows))

    def choose(self, wanted: Wanted) -> None:
        """Raise InputError where a part lacks a column, or has one of another type."""
        super().choose(wanted)
        for part, keys in zip(self._parts, self._keys, strict=True):
            own = {column.name: column.type for column in part.physical_schema}
            for name in wanted.columns:
                stored = self._stored[name]
                if stored in keys:
                    continue
                if stored not in own:
                    raise InputError(
                        f"{part.path} lacks column {name!r} of the other files of {self.name}; "
                        f"leave the column out, write the file again, or move it elsewhere"
                    )
                if _kind(own[stored]) not in (NULLS, self.kinds[name]):
                    raise InputError(
                        f"column {name!r} of {part.path} is of type {own[stored]}, unlike that of "
                        f"the other files of {self.name}; write them with one type"
                    )

    def blocks(self) -> Iterator[tuple[Mapping[str, Any], int, Place]]:  # noqa: D102
        import pyarrow as pa

        for part, keys in zip(self._parts, self._keys, strict=True):
            first = 0
            try:
                for batch in self._batches(part, keys):
                    self._row += batch.num_rows
                    self.text_bytes += batch.nbytes
                    # A column is found by its name in a dict: a schema looks at all of them.
                    stored = dict(zip(batch.schema.names, batch.columns, strict=True))
                    columns = {
                        name: self._column(self._stored[name], stored, keys, batch.num_rows)
                        for name in self.wanted.columns
                    }
                    yield columns, batch.num_rows, _place_from(part.path, first)
                    first += batch.num_rows
            except MemoryError:
                raise
            except (pa.ArrowException, OSError) as error:
                raise unreadable(part.path, error) or InputError(
                    f"{part.path} is damaged after row {first} ({error}); fetch it again"
                ) from error

    def cells(self, block: tuple[Mapping[str, Any], int, Place]) -> Cells:  # noqa: D102
        return self._cells_of(*block)

    def _column(
        self, name: str, stored: Mapping[str, pa.Array], keys: Mapping[str, Any], n_rows: int
    ) -> pa.Array:
        """A column of some rows, of which a part may hold no value at all."""
        import pyarrow as pa

        if name in keys:
            return pa.repeat(pa.scalar(keys[name], self._types[name]), n_rows)
        if _kind(stored[name].type) == NULLS:
            return pa.nulls(n_rows, _value_type(self._types[name]))
        return _decoded(stored[name])

    def _batches(self, part: Any, keys: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """Record batches of a part, of bounded size, with the columns to be read."""
        from pyarrow import parquet

        stored = [self._stored[name] for name in self.wanted.columns]
        stored = [name for name in stored if name not in keys]
        size = _block_rows(8 * len(stored))
        if not self._is_parquet:
            for batch in part.to_batches(columns=stored, use_threads=False):
                for start in range(0, batch.num_rows, size):
                    yield batch.slice(start, size)
            return
        # Pages are streamed: a whole row group need not fit the memory. A text that many rows share
        # is stored once, and stays so in a dictionary.
        texts = [name for name in stored if _kind(self._types[name]) == WORDS]
        with self._files.open_input_file(part.path) as file:
            pages = parquet.ParquetFile(
                file, buffer_size=1 << 20, pre_buffer=False, read_dictionary=texts
            )
            groups = map(pages.metadata.row_group, range(pages.metadata.num_row_groups))
            most = max((one.total_byte_size // max(1, one.num_rows) for one in groups), default=1)
            size = min(size, _block_rows(most))
            yield from pages.iter_batches(size, columns=stored, use_threads=False)


def _place_from(name: str, first: int) -> Place:
    """Places of rows of a block that begins at row `first` of a file."""
    return lambda row: f"{name}, row {first + row}"


def _block_rows(row_bytes: int) -> int:
    """Rows of a table that are read at once."""
    return min(MAX_BLOCK_ROWS, max(64, readers.BLOCK_BYTES // max(1, row_bytes)))


class ArrayTable(Table):
    """Rows and labels that `open_source` finds in a file; the columns of dense rows are its own."""

    takes_label_file = True

    def __init__(self, path: str, options: ConvertOptions) -> None:
        super().__init__(path)
        source, label = _open_array(path, options)
        self._source = self.enter_context(source)
        if source.scaling is not None:
            self.close()
            raise InputError(f"{self.name} is a converted file already: use it as it is")
        self.size = source.decoded_bytes
        self._row = 0
        self.sparse = source.sparse
        self.feature_names = source.columns
        self.label_names = source.label_columns
        self.n_unlabelled = getattr(source, "source", source).n_rows - source.n_rows
        names = source.columns or [str(j) for j in range(source.n_features)]
        self._places = {} if self.sparse else {name: j for j, name in enumerate(names)}
        self.kinds = dict.fromkeys(self._places, NUMBERS)
        if source.has_labels:
            kind = source.labels(0, 1).dtype.kind
            self.own_label = label
            self.kinds[self.own_label] = NUMBERS if kind in "biuf" else WORDS

    @property
    def bytes_read(self) -> int:
        """Share of the file that belongs to the rows read."""
        return int((self.size or 0) * self._row // self._source.n_rows)

    def blocks(self) -> Iterator[tuple[Any, Any, int]]:  # noqa: D102
        source = self._source
        for start, stop in block_slices(source, 0, source.n_rows, readers.BLOCK_BYTES):
            rows: Any = source.read_unchecked(start, stop)
            is_own = self.wanted.label is not None and self.wanted.label == self.own_label
            labels = source.labels(start, stop) if is_own else np.zeros(stop - start)
            self._row = stop
            self.text_bytes += (rows.data if self.sparse else rows).nbytes
            yield rows, labels, start

    def cells(self, block: tuple[Any, Any, int]) -> Cells:  # noqa: D102
        rows, labels, start = block
        wanted, place = self.wanted, _place_from(self.name, start)
        if wanted.label in self._places and wanted.label != self.own_label:
            labels = rows[:, self._places[wanted.label]]
        if labels.dtype.kind in "biuf":
            for row in np.flatnonzero(inexact_labels(labels))[:1].tolist():
                raise inexact_label(labels[row], f"{place(row)}: ")
            found: Any = np.ascontiguousarray(labels, dtype=np.float64)
        else:
            values, codes = np.unique(labels, return_inverse=True)
            found = _collect(values.tolist(), codes, place)
        if self.sparse:
            data = np.ascontiguousarray(rows.data, dtype=np.float64)
            numbers: Any = CSRRows(data, rows.indices, rows.indptr, rows.n_features)
            return Cells(found, numbers, (), place)
        places = [self._places[name] for name in wanted.numbers]
        return Cells(found, np.asarray(rows[:, places], dtype=np.float64), (), place)


def _open_array(path: str, options: ConvertOptions) -> tuple[RowSource, str]:
    """Rows of an array and the name of their labels, which may be in one of the columns."""
    label = options.label or "y"
    names = {"x_name": options.x_name, "missing_labels": options.missing_labels}
    try:
        return open_source(path, options.labels, label=label, **names), label
    except InputError:
        if options.label is None:
            raise
        source = open_source(path, **names)
        if label in (source.columns or ()) or label.removeprefix("-").isdigit():
            return source, "y"
        source.close()
        raise


def name_columns(reader: str, names: Sequence[str], hint: str = "") -> tuple[str, ...]:
    """Names of columns, numbers in place of empty names; InputError where two are alike."""
    if len(names) > MAX_COLUMNS:
        raise InputError(
            f"{reader} has {len(names)} columns, and tables may have {MAX_COLUMNS}; write its rows "
            f"as LIBSVM text, or as an array"
        )
    longest = max(names, key=len, default="")
    if len(longest) > MAX_NAME:
        raise InputError(
            f"{reader} has a column whose name is {len(longest)} letters long "
            f"({longest[:MAX_LISTED]!r}...); give it a name of at most {MAX_NAME}{hint}"
        )
    filled = tuple(
        name or (f"unnamed {place}" if str(place) in names else str(place))
        for place, name in enumerate(names)
    )
    for name, count in Counter(filled).most_common(1):
        if count > 1:
            raise InputError(f"{reader} has two columns {name!r}; rename one of them{hint}")
    return filled


def listed(names: Sequence[str]) -> str:
    """Names with commas between, the first few of many."""
    shown = ", ".join(names[:MAX_LISTED])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > MAX_LISTED else shown


def _kind(kind: Any) -> str:
    """What a column of a type of Arrow holds."""
    from pyarrow import types as t

    value = _value_type(kind)
    if t.is_boolean(value):
        return BOOLEANS
    if any(test(value) for test in (t.is_integer, t.is_floating, t.is_decimal)):
        return NUMBERS
    texts = [t.is_string, t.is_large_string, t.is_binary, t.is_large_binary]
    texts += [t.is_string_view, t.is_binary_view, t.is_fixed_size_binary]
    return WORDS if any(test(value) for test in texts) else str(value)


def _value_type(kind: Any) -> Any:
    """Type of the values in a column that may be of codes."""
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind


def _decoded(column: pa.Array) -> pa.Array:
    """A column with its values in the place of views, and of codes of numbers."""
    from pyarrow import types

    if types.is_dictionary(column.type):
        return column if _kind(column.type) == WORDS else column.dictionary_decode()
    plain = {"string_view": "string", "binary_view": "binary"}
    kind = str(column.type)
    return column.cast(plain[kind]) if kind in plain else column


def numbers_of(column: Any, _place: Place = str) -> Float64Array:
    """Numbers of a column of Arrow, missing ones as NaN."""
    found = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
    # Compiled code knows writable arrays only; those of Arrow are not.
    return np.require(found, requirements="W")


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
    return _collect(coded.dictionary.take(used).to_pylist(), places[codes], place)


def _collect(values: Sequence[Any], codes: AnyArray, place: Place) -> Words:
    """Words of a column of different values, given the position of each row's value in them."""
    names: dict[str, int] = {}
    places = np.full(len(values) + 1, -1)
    for code, value in enumerate(values):
        try:
            word = _word_of(value)
            word.encode("utf-8")
        except UnicodeError:
            shown = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
            raise InputError(
                f"{place(int((codes == code).argmax()))}: {shown!r} is not UTF-8 text; write the "
                f"file again in UTF-8"
            ) from None
        places[code] = names.setdefault(word, len(names)) if word else -1
    return Words(places[codes], tuple(names))


def _word_of(value: object) -> str:
    """Write a value as a word, by the rule of `plain_word`; missing ones as nothing."""
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        value = str(value)  # float64 may not hold it
    return plain_word(value.decode("utf-8") if isinstance(value, bytes) else value)


def write_arrow(frame: Any, path: str) -> None:
    """Write a frame of pandas or polars, or an Arrow table, as an Arrow file."""
    import pyarrow as pa

    try:
        is_pandas = hasattr(frame, "iloc")
        table = pa.Table.from_pandas(frame, preserve_index=False) if is_pandas else pa.table(frame)
    except (ValueError, TypeError) as error:  # columns of several types, or with one name
        kind = type(frame).__name__
        raise InputError(f"this {kind} is no table for Arrow ({error}); correct it") from None
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def may_be_dates(kind: str) -> bool:
    """Whether a column of this kind holds dates and times, or text that may be some."""
    return kind in (WORDS, TEXT) or kind.startswith(("timestamp", "date"))


def _seconds_of(column: Any, place: Place) -> Float64Array:
    """Seconds since 1970 of dates: NaN where they are missing, infinite where text is no date."""
    if str(column.type).startswith(("timestamp", "date")):
        return numbers_of(column.cast("timestamp[us]", safe=False).cast("int64")) / 1e6
    words = words_of(column, place)
    return np.array([*map(seconds_in, words.values), np.nan])[words.codes]


def seconds_in(word: str) -> float:
    """Seconds since 1970 of a date or time of ISO 8601, which is in UTC unless it has a zone."""
    if word in MISSING:
        return np.nan
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        return np.inf
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
