"""Base of all inputs: a reader yields blocks of rows, and threads parse them in order."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ooc_fw.data.labels import label_map, label_number, new_label, old_name
from ooc_fw.data.rows import FLOAT32, AnyArray, CSRRows, Float64Array, Int32Array, Int64Array
from ooc_fw.data.scaling import Scaling
from ooc_fw.system.errors import InputError, format_label, format_words
from ooc_fw.system.threads import cpu_count

if TYPE_CHECKING:
    from ooc_fw.data.statistics import ColumnRanges  # loads compiled code

BLOCK_BYTES = 4 << 20  # bytes of text, or of cells as float64, that are read at once
MAX_ROW_BYTES = 64 << 20  # most bytes of a row, which is parsed whole in limited memory
MAX_CLASSES = 10_000  # most different labels; with more they are probably targets of a regression
MAX_NAME = 4096  # most letters in the name of a column, a category or a label
MAX_SHOWN = 5  # most unknown words of a column that a message shows
THREADS_NAME = "ooc-fw-prep"

Place = Callable[[int], str]  # tells, for a row of a block, the input and the place in it
Progress: TypeAlias = Callable[[int, int | None], None]  # gets the bytes done, and all if known


class Reader(ExitStack, ABC):
    """An open input, which closes its files like an `ExitStack`."""

    def __init__(self, name: str, size: int | None = None) -> None:
        super().__init__()
        self.name = name
        self.size = size  # size of the file in bytes; None if it is unknown
        self.text_bytes = 0  # bytes of content in the blocks so far
        self.drained = False  # whether the next block of a live text has yet to come

    @property
    def bytes_read(self) -> int:
        """Bytes that were read from the file so far, or the bytes of its content."""
        return self.text_bytes

    @abstractmethod
    def blocks(self) -> Iterator[Any]:
        """Read the input block by block, in one thread."""


@dataclass(frozen=True, slots=True)
class Words:
    """A column of words, as codes of its different words."""

    codes: Int64Array  # position of each row's word in `values`; -1 if it is missing
    values: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: AnyArray) -> Words:
        return Words(self.codes[rows], self.values)


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """Rows of one block; those of a table have one value for each column (features come later)."""

    labels: Float64Array  # numeric labels, or codes of words
    rows: CSRRows  # in float64; for text they are as wide as their largest column
    width: int  # 1 + largest column in the block, counting explicit zeros and left-out columns
    words: Sequence[Any] = ()  # `Words` of each target-encoded column
    n_unlabelled: int = 0  # other rows of the block, which are left out
    weights: Float64Array | None = None  # (n_rows,): weight of each row; None: all weigh 1
    sums: Float64Array | None = None  # sum of each column, and the number of its missing values
    kept: Int64Array | None = None  # places of the rows in the block; None if all have labels


def are_wrong(values: AnyArray, log1p: bool) -> AnyArray:
    """Which values float32 cannot hold, or have no logarithm although `log1p` needs one."""
    wrong: AnyArray = ~(np.abs(values) <= np.finfo(np.float32).max)
    return wrong | ~(values > -1) if log1p else wrong


def fault_of(value: float) -> str:
    """A value that is wrong, and why."""
    why = "beyond float32 (3.4e38)" if np.isfinite(value) else "not finite"
    if abs(value) <= np.finfo(np.float32).max:
        why = "not above -1, so that it has no log1p"
    return f"{value:g}: {why}"


class WordCodes:
    """Codes of words: of the given ones and, if it `grows`, of new ones in the order they come.

    InputError calls the column `what` if it has more than `most` words.
    """

    def __init__(self, words: Iterable[str], grows: bool, most: int, what: str) -> None:
        self._codes = {word: code for code, word in enumerate(words)}
        self._grows = grows
        self._most = most
        self._what = what
        self._lock = threading.Lock()
        self.n_rows = 0  # rows so far that have a word
        self.n_unknown = 0  # those of them with an unknown word
        self.unknown: list[str] = []  # some of the unknown words

    @property
    def words(self) -> list[str]:
        """All words, in the order of their codes."""
        return list(self._codes)

    def of(self, column: Words) -> Int64Array:
        """Code of each row's word; -1 if it is missing, or unknown and codes do not grow."""
        counts = np.bincount(column.codes + 1)[1:]
        used = np.flatnonzero(counts).tolist()
        with self._lock:
            for word in (column.values[code] for code in used if self._grows):
                self._codes.setdefault(word, len(self._codes))
                if len(self._codes) > self._most or len(word) > MAX_NAME:
                    raise InputError(
                        f"{self._what} has more than {self._most} different words, or one of more "
                        f"than {MAX_NAME} letters; name another, or leave it out with --drop"
                    )
            codes = [self._codes.get(word, -1) for word in column.values]
            self.n_rows += int(counts.sum())
            for code in used:
                word = column.values[code]
                if codes[code] < 0:
                    self.n_unknown += int(counts[code])
                    if len(self.unknown) <= MAX_SHOWN and word not in self.unknown:
                        self.unknown.append(word)
        # Code -1, for missing words, takes the last of these places.
        return np.array([*codes, -1], dtype=np.int64)[column.codes]


class LabelNumbers:
    """Labels as numbers: unchanged, or codes of words, which `labels_as` renames at the end.

    If the labels of the training file `are_words`, all labels become words, even numbers.
    """

    def __init__(
        self, labels_as: str | None = None, name: str = "it", *, are_words: bool = False
    ) -> None:
        what = f"the column of the labels in {name} (give --task regression if these are targets)"
        self._codes = WordCodes((), True, MAX_CLASSES, what)
        self._are_coded = False
        self._are_words = are_words
        self._name = name
        self.labels_as = labels_as
        self._new = None if labels_as is None else label_map(labels_as)

    def keep_words(self) -> None:
        """Take labels as words that are not from text; new names count as text."""
        self._are_words |= self._new is None

    @property
    def words(self) -> list[str] | None:
        """Word of each code, as in the input; None if labels are numbers."""
        return self._codes.words if self._are_coded else None

    def of(self, labels: Float64Array | Words) -> Float64Array:
        """Number for each label."""
        if not isinstance(labels, Words):
            if self._new is None and not self._are_words:
                return labels
            numbers, codes = np.unique(labels, return_inverse=True)
            labels = Words(codes, tuple(map(format_label, numbers.tolist())))
        self._are_coded = True
        return self._codes.of(labels).astype(np.float64)

    def unused(self, *, partly: bool) -> str:
        """A sentence if no label has any of the names that are renamed, else nothing.

        With `partly`, also if some of these names are unused.
        """
        old = self.words or []
        new = self._new or {}
        names = {*new} - {"*"}
        unused = names - {old_name(word, new) for word in old}
        if not unused or not (partly or unused == names):
            return ""
        return (
            f"no label in {self._name} is {format_words(sorted(unused))}, as --labels-as has it; "
            f"the labels are {format_words(sorted(old))}"
        )

    def values(self) -> tuple[Float64Array | None, tuple[str, ...] | None]:
        """Return the value for each code, and the words for the values; None if not needed.

        Codes of words that got one new name have one value. If all words of text are numbers, these
        are the values, which may be equal, too. Other words are numbered.
        """
        words = self.words
        if words is None:
            return None, None
        if self._new is not None:
            words = [self._renamed(word, self._new) for word in words]
        numbers = [label_number(word) for word in words]
        if not self._are_words and None not in numbers:
            return np.array(numbers, dtype=np.float64), None
        names = sorted({*words})
        places = {word: place for place, word in enumerate(names)}
        return np.array([places[word] for word in words], dtype=np.float64), tuple(names)

    def _renamed(self, old: str, new: Mapping[str, str]) -> str:
        word = new_label(old, new)
        if word is None:
            raise InputError(
                f"{self._name} has the label {old}; name it in --labels-as, as {old}=NEW"
            )
        return word


class Encoder(ABC):
    """Makes labels and rows from the blocks of all inputs."""

    table: str | None = None  # record of how columns of a table become features, as JSON
    columns: Sequence[str] | None = None  # names of the features
    # Type in which the file has the rows; other types than float32 are scaled when they are read.
    dtype = FLOAT32
    n_encoded = 0  # number of target-encoded columns, if their labels have to be added up
    labelled = True  # whether there are labels
    origin: Mapping[str, str] = MappingProxyType({})  # see `RowSource.origin`
    labels: LabelNumbers
    n_unlabelled = 0  # rows so far that are left out, since they have no label

    @abstractmethod
    def parse(self, reader: Reader, block: Any) -> ParsedBlock:
        """Parse a block of an input; for any thread."""

    @abstractmethod
    def column_name(self, column: int) -> str:
        """Name of a column of parsed rows in messages."""

    def measured(self, rows: CSRRows, scaling: Scaling) -> tuple[CSRRows, CSRRows]:
        """Parsed rows, with logarithms if `scaling` has them, and these without missing values."""
        rows = replace(rows, data=scaling.log_values(rows.data))
        return rows, rows

    def learn(self, block: ParsedBlock, keys: AnyArray | None) -> Int32Array | None:
        """Learn from a block; called by one thread, in the order of the rows.

        Returns the cells of target-encoded columns, or None if there are none. If there are some,
        `keys` has a random uint64 for each row.
        """
        self.n_unlabelled += block.n_unlabelled
        return None

    def end_learning(self, ranges: ColumnRanges, log: Scaling, n_columns: int) -> Int64Array:
        """Complete learning after all rows; return the number of features of each column."""
        return np.ones(n_columns, dtype=np.int64)

    def kept(self, n_columns: int) -> AnyArray | None:
        """Which columns stay unscaled; None if all are scaled."""
        return None

    def features(self, rows: CSRRows, cells: Int32Array | None, scaling: Scaling) -> CSRRows:
        """Unscaled features from `measured` rows and the cells of their target-encoded columns."""
        return rows

    def notes(self) -> Iterator[str]:
        """Yield facts that a user may not expect, one sentence each, after all blocks."""
        if self.n_unlabelled:
            yield f"{self.n_unlabelled} rows without a label are left out"


Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    at_once: Callable[[], bool] = lambda: False,
) -> Iterator[Result]:
    """Yield ``function(item)`` in the order of `items`, computed by several threads.

    The caller's thread reads `items`, at most one more than there are threads ahead of the result
    in use, and none ahead of results that are wanted `at_once`. An exception in `function` is
    raised in place of its result.
    """
    threads = min(4, cpu_count())  # more would wait for the thread that reads and writes
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix=THREADS_NAME)
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            while len(pending) > threads or (pending and at_once()):
                yield pending.popleft().result()
        while pending:  # a variable for the future would keep the frames of its exception alive
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
