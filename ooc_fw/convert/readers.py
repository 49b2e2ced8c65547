"""What all inputs share: a reader hands out blocks of rows, and threads parse them in order."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ooc_fw.data.labels import is_label_number, new_labels, plain_word
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Int32Array, Int64Array
from ooc_fw.data.scaling import Scaling
from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import cpu_count

if TYPE_CHECKING:
    from ooc_fw.data.statistics import ColumnRanges  # loads compiled code

BLOCK_BYTES = 4 << 20  # bytes of text, or of cells as float64, that are read at once
MAX_ROW_BYTES = 64 << 20  # a row is parsed whole, and memory must not depend on the input
MAX_CLASSES = 4096  # different labels; more of them are targets of a regression
MAX_NAME = 4096  # letters of a name of a column, of a category or of a label
THREADS_NAME = "ooc-fw-prep"

Place = Callable[[int], str]  # the input and the place there of a row of a block
Progress: TypeAlias = Callable[[int, int | None], None]  # told bytes done, and in all if known


class Reader(ExitStack, ABC):
    """An open input, and the stack of what it opened."""

    def __init__(self, name: str, size: int | None = None) -> None:
        super().__init__()
        self.name = name
        self.size = size  # of the file, in bytes; None if it is unknown
        self.text_bytes = 0  # content handed out so far

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that were read so far, or of its content."""
        return self.text_bytes

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
class ParsedBlock:
    """Rows of one block. Rows of a table have a value for each column, not for each feature."""

    labels: Float64Array  # labels, or codes of labels that are words
    rows: CSRRows  # of float64; the width of text is the least that holds them
    width: int  # 1 + largest column met, columns left out and explicit zeros included
    words: Sequence[Any] = ()  # `Words` of columns that are target-encoded
    counts: Mapping[str, int] = field(default_factory=dict)  # of what notes say
    sums: Float64Array | None = None  # of each column of numbers, and how many are missing


def are_wrong(values: AnyArray, log1p: bool) -> AnyArray:
    """Which values float32 cannot hold, or have no logarithm if that is wanted."""
    wrong: AnyArray = ~(np.abs(values) <= np.finfo(np.float32).max)
    return wrong | ~(values > -1) if log1p else wrong


class WordCodes:
    """Codes of words in the order in which they come, or of given words alone.

    InputError for a column, `what`, with more than `most` words.
    """

    def __init__(self, words: Iterable[str], grows: bool, most: int, what: str) -> None:
        self._codes = {word: code for code, word in enumerate(words)}
        self._grows = grows
        self._most = most
        self._what = what
        self._lock = threading.Lock()

    @property
    def words(self) -> list[str]:
        """All words in the order of their codes."""
        return list(self._codes)

    def of(self, column: Words) -> Int64Array:
        """Code of the word of each row; -1 for one that is missing or, unless codes grow, new."""
        used = np.flatnonzero(np.bincount(column.codes + 1)[1:]).tolist()
        with self._lock:
            for word in (column.values[code] for code in used if self._grows):
                self._codes.setdefault(word, len(self._codes))
                if len(self._codes) > self._most or len(word) > MAX_NAME:
                    raise InputError(
                        f"{self._what} has more than {self._most} different words, or one of more "
                        f"than {MAX_NAME} letters; name another, or leave it out with --drop"
                    )
            codes = [self._codes.get(word, -1) for word in column.values]
        # The code -1 of missing words takes the last of these places.
        return np.array([*codes, -1], dtype=np.int64)[column.codes]


class LabelNumbers:
    """Labels as numbers: themselves, or codes of words; `new` has other labels for them.

    If those of the training file are `words`, all are, even numbers.
    """

    def __init__(
        self, words: Sequence[str] = (), new: Mapping[str, str] | None = None, name: str = "it"
    ) -> None:
        what = f"the column of the labels in {name} (give --task regression if these are targets)"
        self._codes = WordCodes(words, True, MAX_CLASSES, what)
        self._spelled = {plain_word(word): word for word in words}  # as the training file has them
        self._are_coded = False
        self.new = new

    @property
    def words(self) -> list[str] | None:
        """Word of each code; None if labels are numbers."""
        return self._codes.words if self._are_coded else None

    def of(self, labels: Float64Array | Words, place: Place) -> Float64Array:
        """Number of each label; `place` says where row k is."""
        if not isinstance(labels, Words):
            if self.new is None and not self._spelled:
                return labels
            numbers, codes = np.unique(labels, return_inverse=True)
            labels = Words(codes, tuple(map(plain_word, numbers.tolist())))
        names = list(labels.values)
        if self.new is not None:
            used, rows = np.unique(labels.codes, return_index=True)
            for code, row in zip(used.tolist(), rows.tolist(), strict=True):
                (names[code],) = new_labels([names[code]], self.new, place(row))
        self._are_coded = True
        names = [self._spelled.get(word, word) for word in names]
        return self._codes.of(Words(labels.codes, tuple(names))).astype(np.float64)

    def values(self) -> tuple[Float64Array | None, tuple[str, ...] | None]:
        """Value of each code, None if labels are values; words of the values, if any.

        Words that are numbers, which float64 holds exactly, are the values. Others are numbered.
        """
        words = self.words
        if words is None:
            return None, None
        if not self._spelled and all(map(is_label_number, words)):
            return np.array([float(word) for word in words]), None
        names = sorted(words)
        places = {word: place for place, word in enumerate(names)}
        return np.array([places[word] for word in words], dtype=np.float64), tuple(names)


class Encoder(ABC):
    """Makes labels and rows of the blocks of all inputs."""

    table: str | None = None  # how the columns of a table become the features, as JSON
    columns: Sequence[str] | None = None  # names of the features
    n_encoded = 0  # columns of categories whose labels are added up
    labelled = True  # whether there are labels
    labels: LabelNumbers

    @abstractmethod
    def parse(self, reader: Reader, block: Any) -> ParsedBlock:
        """Rows of a block of an input; for any thread."""

    @abstractmethod
    def column_name(self, column: int) -> str:
        """What a user calls a column of parsed rows."""

    def measured(self, rows: CSRRows, scaling: Scaling) -> tuple[CSRRows, CSRRows]:
        """Parsed rows with the logarithms that are asked for, and those without missing values."""
        rows = replace(rows, data=scaling.log_values(rows.data))
        return rows, rows

    def learn(self, block: ParsedBlock, keys: AnyArray | None) -> Int32Array | None:
        """Take note of a block; for one thread, in the order of the rows.

        Returns the categories of its rows that are encoded by labels, if any. Random `keys` of the
        rows, uint64, are given if there are such columns.
        """
        return None

    def end_learning(self, ranges: ColumnRanges, log: Scaling, n_columns: int) -> Int64Array:
        """Complete what is learned from all rows; returns the number of features of each column."""
        return np.ones(n_columns, dtype=np.int64)

    def kept(self, n_columns: int) -> AnyArray | None:
        """Which columns are not scaled; None if all are."""
        return None

    def features(self, rows: CSRRows, cells: Int32Array | None, scaling: Scaling) -> CSRRows:
        """Rows of features, not yet scaled, of `measured` rows and the categories beside them."""
        return rows

    def notes(self) -> Iterator[str]:
        """What a user may not expect, one sentence each; when all is parsed."""
        return iter(())


Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None
) -> Iterator[Result]:
    """Yield ``function(item)`` in the order of `items`, computed by several threads.

    The thread of the caller advances `items`, at most ``threads + 1`` ahead of the result in use.
    An exception in `function` is raised where its result would be.
    """
    threads = threads or min(4, cpu_count())  # more wait for the one that reads and writes
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix=THREADS_NAME)
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:  # no name for a future: it would keep the frames of its exception
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
