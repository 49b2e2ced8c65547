"""What all inputs share: a reader hands out blocks of rows, and threads parse them in order.

A block of a table becomes `Cells`: numbers, and words of which each different one is written once.
`ooc_fw.convert.tables` makes features of them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

from ooc_fw.data.labels import (
    MISSING_LABELS,
    LabelMap,
    inexact_label,
    inexact_labels,
    is_exact_label,
    is_label_number,
    plain_word,
)
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Int32Array, Int64Array
from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import cpu_count

if TYPE_CHECKING:
    from ooc_fw.convert.encoding import TargetEncoding

BLOCK_BYTES = 4 << 20  # bytes of text, or of cells as float64, that are read at once
WIDE_ROWS, WIDE_BYTES = 64, 16 << 20  # rows of wide tables that are read at once, and their bytes
MAX_BLOCK_ROWS = 1 << 16  # rows of a table that are read at once, however narrow they are
MAX_COLUMNS = 1 << 20  # each takes some 500 bytes before the first row is read
MAX_NAME = 4096  # letters of a name of a column, of a category or of a label
MAX_ROW_BYTES = 64 << 20  # a row is parsed whole, and memory must not depend on the input
MAX_LISTED = 12  # columns that a message lists
EXAMPLES = 3  # skipped lines of a block that are reported word for word
# As a number; of categories, only the empty cell is missing.
MISSING = (*sorted(MISSING_LABELS), "-")
SPARSE = ""  # name of the rows in a block of a table that is one array of sparse rows
NUMBERS, BOOLEANS, WORDS, TEXT = USABLE = ("numbers", "booleans", "words", "text")
"""What a column holds. Text may turn out to be numbers or words; a label is read as words."""
NULLS = "null"  # what a column of Arrow holds if all of its values are missing

Place = Callable[[int], str]  # the input and the place there of a row of a block


class Reader(ExitStack, ABC):
    """An open input, and the stack of what it opened. `size` is that of a file, in bytes."""

    compressed = False  # whether the content takes much more room than the file

    def __init__(self, name: str, size: int | None = None) -> None:
        super().__init__()
        self.name = name
        self.size = size
        self.text_bytes = 0  # content handed out so far

    @property
    @abstractmethod
    def bytes_read(self) -> int:
        """Bytes of the file that were read so far."""

    @abstractmethod
    def blocks(self) -> Iterator[Any]:
        """Read the input block by block; for one thread."""


@dataclass(frozen=True, slots=True)
class Words:
    """A column of words, each different one written once."""

    codes: Int64Array  # position of each row's word in `values`; -1 where it is missing
    values: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: AnyArray) -> Words:
        return Words(self.codes[rows], self.values)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns to read."""

    label: str | None  # None makes all labels 0
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()  # columns of dates, which become numbers, too

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


class TableReader(Reader):
    """An open table, whose blocks are the arguments of `cells` unless it has its own `parse`."""

    # What each column holds: NUMBERS, WORDS, TEXT, or another type, which is of no use.
    kinds: Mapping[str, str] = MappingProxyType({})
    own_label: str | None = None  # column that holds the labels because of its name
    index: frozenset[str] = frozenset()  # columns that only number or name the rows: no features
    header = True  # whether the columns have names of their own
    label_names: tuple[str, ...] = ()  # what else could hold the labels, but is no column
    sparse = False  # whether the numbers arrive as `CSRRows`
    feature_names: Sequence[str] | None = None  # of rows in one array; None: nothing says them
    takes_label_file = False  # whether labels may come from a file of their own
    wanted: Wanted  # the columns to read, which `choose` tells
    n_rows = 0  # where it is known before the table is read
    row = 0  # number of the next row

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

    def differences(self, columns: Iterable[str]) -> Iterable[str]:
        """Sentences about files of a folder in which one of the columns is unlike the others."""
        return ()

    @property
    def bytes_read(self) -> int:
        """Share of the file that belongs to the rows read."""
        return (self.size or 0) * self.row // max(1, self.n_rows)

    def parse(self, block: Any) -> Cells:
        """Wanted cells of a block, for any thread; InputError where one cannot be read."""
        return self.cells(*block)

    def cells(self, columns: Mapping[str, Any], n_rows: int, place: Place) -> Cells:
        """Wanted cells of columns of numpy or Arrow; those of `SPARSE` are `CSRRows`."""
        wanted = self.wanted
        labels: Float64Array | Words = np.zeros(n_rows)
        if wanted.label is not None:
            column = columns[wanted.label]
            if self.kinds[wanted.label] != NUMBERS:
                labels = _words_of(column, place)
            else:
                if (found := _inexact_label(column)) is not None:
                    raise inexact_label(found[1], f"{place(found[0])}: ")
                # Compiled code knows writable arrays only; those of Arrow are not.
                labels = np.require(_floats(column), requirements="W")
        if SPARSE in columns:
            sparse = columns[SPARSE]
            numbers: Any = replace(sparse, data=sparse.data.astype(np.float64))
        else:
            numbers = np.empty((n_rows, len(wanted.numbers) + len(wanted.dates)))
            for j, name in enumerate(wanted.numbers):
                numbers[:, j] = _floats(columns[name])
            for j, name in enumerate(wanted.dates, len(wanted.numbers)):
                numbers[:, j] = _seconds_of(columns[name], place)
        words = tuple(_words_of(columns[name], place) for name in wanted.words)
        return Cells(labels, numbers, words, place)


def row_place(name: str, first: int, row: int) -> str:
    """Place of a row of a block that begins at row `first` of a file."""
    return f"{name}, row {first + row}"


def _floats(column: Any) -> Float64Array:
    """Numbers of a column, missing ones as NaN."""
    if not isinstance(column, np.ndarray):
        column = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(column, dtype=np.float64)


def spreading(kind: str, name: str) -> str:
    """How columns of lists or of fields become columns of numbers; "" for other kinds."""
    if kind.startswith(("struct", "map")):
        return "give each field a column, as pyarrow's table.flatten() does, or "
    if "list" in kind.partition("<")[0]:
        return (
            f"give each element a column, as by pandas: table.join(pandas.DataFrame("
            f"table.pop({name!r}).tolist()).add_prefix({name!r})), or "
        )
    return ""


def may_be_dates(kind: str) -> bool:
    """Whether a column of this kind holds dates and times, or text that may be some."""
    return kind in (WORDS, TEXT) or kind.startswith(("timestamp", "date"))


def _seconds_of(column: Any, place: Place) -> Float64Array:
    """Seconds since 1970 of dates: NaN where they are missing, infinite where text is no date."""
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":
        seconds: Float64Array = column.astype("M8[us]").astype(np.int64) / 1e6
        return np.where(np.isnat(column), np.nan, seconds)
    if not isinstance(column, np.ndarray) and str(column.type).startswith(("timestamp", "date")):
        return _floats(column.cast("timestamp[us]", safe=False).cast("int64")) / 1e6
    words = _words_of(column, place)
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


def _words_of(column: Any, place: Place) -> Words:
    if not isinstance(column, np.ndarray):
        column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
        codes = encoded.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
        return collect_words(encoded.dictionary.to_pylist(), codes, place)
    if column.dtype.kind == "O":
        return collect_words(column.tolist(), place=place)
    values, codes = np.unique(column, return_inverse=True)
    return collect_words(values.tolist(), codes.reshape(-1), place)


def _inexact_label(column: Any) -> tuple[int, Any] | None:
    """Row and value of the first whole number that float64 does not hold exactly."""
    if isinstance(column, np.ndarray):
        rows = np.flatnonzero(inexact_labels(column))
        return (int(rows[0]), column[rows[0]]) if len(rows) else None
    if not str(column.type).startswith(("int64", "uint64", "decimal")):
        return None
    for value in column.unique().to_pylist():
        if value is not None and not is_exact_label(str(value)):
            return column.to_pylist().index(value), value
    return None


def block_rows(row_bytes: int) -> int:
    """Rows of a table that are read at once; more of wide ones, as each column takes its time."""
    n_rows = BLOCK_BYTES // max(1, row_bytes)
    of_wide = min(WIDE_ROWS, WIDE_BYTES // max(1, row_bytes))
    return min(MAX_BLOCK_ROWS, max(1, n_rows, of_wide))


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """How blocks become rows."""

    zero_based: bool = False  # whether LIBSVM text calls its first column 0, not 1
    n_features: int | None = None  # columns from this one on are left out and counted
    log1p: bool = False  # whether log1p will be taken, so that values must be above -1
    skip: bool = False  # whether a bad line or row is left out and counted, or is an error


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """Rows of one block."""

    labels: AnyArray  # labels, or codes of labels that are words
    rows: CSRRows  # of float64; the width of text is the least that holds them
    width: int  # 1 + largest column met, columns left out and explicit zeros included
    n_dropped: int  # values left out because of their column
    n_skipped: int  # lines or rows left out because of an error
    skipped: tuple[str, ...]  # what was wrong with the first few of them
    codes: Int32Array | None = None  # categories whose means are not known yet


Parse = Callable[[Any], ParsedBlock]  # makes rows of a block; for any thread


class Encoder(ABC):
    """Makes labels and rows of the blocks of all inputs."""

    table: str | None = None  # how the columns of a table become the features, as JSON
    columns: Sequence[str] | None = None  # names of the features
    encoding: TargetEncoding | None = None  # of categories in tables
    labelled = True  # whether there are labels
    label_map: LabelMap | None = None  # makes them
    hint = ""  # what a row is, for messages

    def __init__(self, words: Iterable[str] = ()) -> None:
        # Codes of labels that are words, in the order in which they are met. If those of the
        # training file are `words`, all are, even numbers.
        self._codes = {word: code for code, word in enumerate(words)}
        self._spelled = {plain_word(word): word for word in words}  # as the training file has them
        self._are_words = bool(self._codes)
        self._has_codes = False
        self._sharing = threading.Lock()  # of codes and counts, for the threads of the parser

    @abstractmethod
    def parser(self, reader: Reader) -> Parse:
        """Parser of the blocks of an input."""

    @abstractmethod
    def feature_name(self, column: int) -> str:
        """What a user calls a feature."""

    def labels(self) -> tuple[Float64Array | None, tuple[str, ...] | None]:
        """Value of each label code, None if labels are values; words of the values, if any.

        Words that are numbers, which float64 holds exactly, are the values. Others are numbered.
        """
        if not self._has_codes:
            return None, None
        words = list(self._codes)
        if not self._are_words and all(map(is_label_number, words)):
            return np.array([float(word) for word in words]), None
        names = sorted(words)
        places = {word: place for place, word in enumerate(names)}
        return np.array([places[word] for word in words], dtype=np.float64), tuple(names)

    def use_map(self, maps: Sequence[str]) -> None:
        """Have labels that maps make of those in the inputs."""
        self.label_map, self._has_codes = LabelMap(maps), True

    def _mapped(self, labels: Float64Array | Words, where: Callable[[int], str]) -> Words:
        """Labels that the map makes; `where` says the place of row k."""
        assert self.label_map is not None
        values: Any
        if isinstance(labels, Words):
            values, codes = labels.values, labels.codes
        else:
            values, codes = np.unique(labels, return_inverse=True)
        used, codes, counts = np.unique(codes, return_inverse=True, return_counts=True)
        words = self.label_map.words(
            [values[k] for k in used.tolist()],
            counts.tolist(),
            lambda k: where(int((codes == k).argmax())),
        )
        return Words(codes, tuple(words))

    def _codes_of(self, labels: Words) -> Float64Array:
        longest = max(labels.values, key=len, default="")
        if len(longest) > MAX_NAME:
            raise InputError(
                f"a label is {len(longest)} letters long ({longest[:12]!r}...), and may "
                f"have {MAX_NAME}; name another column with --label"
            )
        with self._sharing:
            for code in np.unique(labels.codes).tolist():
                self._codes.setdefault(labels.values[code], len(self._codes))
            codes = [self._codes.get(word, -1) for word in labels.values]
        return np.array(codes, dtype=np.float64)[labels.codes]

    def notes(self) -> Iterator[str]:
        """What a user may not expect, one sentence each; when all is parsed."""
        return iter(())


def word_of(value: object) -> str:
    """Write a value as a word, by the rule of `plain_word`; missing ones as nothing."""
    if value is None or value != value:  # NaN
        return ""
    return plain_word(value.decode("utf-8") if isinstance(value, bytes) else value)


def collect_words(
    values: Iterable[Any], codes: AnyArray | None = None, place: Place = str
) -> Words:
    """Words of a column, given the value of each row, or with `codes` its position in the values.

    A negative position is a missing value.
    """
    if codes is None:
        rows = list(values)
        values = {value: code for code, value in enumerate(dict.fromkeys(rows))}
        codes = np.array([values[value] for value in rows], dtype=np.int64)
    names: dict[str, int] = {}
    places: list[int] = []
    for value in values:
        try:
            word = word_of(value)
            word.encode("utf-8")
        except UnicodeError:
            row = int(np.flatnonzero(codes == len(places))[0])
            shown = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
            raise InputError(
                f"{place(row)}: {shown!r} is not UTF-8 text; write the file again in UTF-8"
            ) from None
        places.append(names.setdefault(word, len(names)) if word else -1)
    # Code -1 takes the last of these places.
    return Words(np.array([*places, -1], dtype=np.int64)[codes], tuple(names))


def name_columns(reader: str, names: Sequence[str], hint: str = "") -> tuple[str, ...]:
    """Names of columns, numbers in place of empty names; InputError where two are alike."""
    check_columns(reader, len(names))
    longest = max(names, key=len, default="")
    if len(longest) > MAX_NAME:
        raise InputError(
            f"{reader} has a column whose name is {len(longest)} letters long "
            f"({longest[:MAX_LISTED]!r}...); give it a name of at most {MAX_NAME}{hint}"
        )
    taken = {*names}
    filled = [
        text or (str(place) if str(place) not in taken else f"unnamed {place}")
        for place, text in enumerate(names)
    ]
    text, count = max(Counter(filled).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise InputError(f"{reader} has two columns {text!r}; rename one of them{hint}")
    return tuple(filled)


def check_columns(name: str, n_columns: int) -> None:
    """Raise InputError for a table with more columns than can have names."""
    if n_columns > MAX_COLUMNS:
        raise InputError(
            f"{name} has {n_columns} columns, and tables may have {MAX_COLUMNS}; write its rows as "
            f"LIBSVM text, or as a sparse matrix"
        )


def listed(names: Sequence[str]) -> str:
    """Names with commas between, the first few of many."""
    shown = ", ".join(names[:MAX_LISTED])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > MAX_LISTED else shown


Item = TypeVar("Item")
Result = TypeVar("Result")

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with (bytes done, bytes in all or None); each byte of input counts once per pass."""

THREADS_NAME = "ooc-fw-prep"

MAX_THREADS = 4  # with more threads, the one thread that reads and writes is the bottleneck


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None
) -> Iterator[Result]:
    """Yield ``function(item)`` in the order of `items`, computed by several threads.

    The thread of the caller advances `items`, at most ``threads + 1`` ahead of the result in use.
    An exception in `function` is raised where its result would be.
    """
    threads = threads or min(MAX_THREADS, cpu_count())
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix=THREADS_NAME) as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:  # no name for a future: it would keep the frames of its exception
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def prefetch(items: Iterable[Item]) -> Iterator[Item]:
    """Yield `items`, of which another thread makes the next one while one is used."""
    end = object()
    iterator: Iterator[Item | object] = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix=THREADS_NAME) as pool:
        upcoming = pool.submit(next, iterator, end)
        while (item := upcoming.result()) is not end:
            upcoming = pool.submit(next, iterator, end)
            yield cast(Item, item)


@dataclass
class Meter:
    """Reports bytes done to a progress function, pass after pass of `pass_bytes` each, if known."""

    progress: Progress | None
    pass_bytes: int | None
    n_passes: int = 1
    passed: int = 0  # bytes of what is done already

    def next_pass(self) -> None:
        """Begin another pass."""
        self.passed += self.pass_bytes or 0

    def at(self, done: int) -> None:
        """Report the bytes done after those that are `passed`."""
        if self.progress is not None:
            total = None if self.pass_bytes is None else self.pass_bytes * self.n_passes
            self.progress(self.passed + done, total)
