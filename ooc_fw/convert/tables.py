"""Tables: what they hold, which of it is wanted, and arrays that `open_source` opens.

A block of a table becomes `Cells`: numbers, and words of which each different one is written once.
`ooc_fw.convert.features` makes features of them.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_fw.convert import readers
from ooc_fw.convert.readers import MAX_NAME, Place, Reader, Words
from ooc_fw.data.labels import INEXACT, MISSING_LABELS, inexact_labels, plain_word
from ooc_fw.data.opening import open_source
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array
from ooc_fw.data.sources import block_slices
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    pass

MAX_COLUMNS = 1 << 16  # each takes pyarrow some 10 kB in a block
MAX_LISTED = 12  # columns that a message lists
# As a number; of categories, only the empty cell is missing.
MISSING = (*sorted(MISSING_LABELS), "-")
NUMBERS, BOOLEANS, WORDS, TEXT = USABLE = ("numbers", "booleans", "words", "text")
"""What a column holds. Text may turn out to be numbers or words; a label is read as words."""
NULLS = "null"  # what a column of Arrow holds if all of its values are missing

_FOREIGN_NUMBER = re.compile(r"[+-]?\d+(?:[.,' ]\d{3})*(?:[.,]\d*)?(?:[eE][+-]?\d+)?")


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


def place_from(name: str, first: int) -> Place:
    """Places of rows of a block that begins at row `first` of a file."""
    return lambda row: f"{name}, row {first + row}"


class ArrayTable(Table):
    """Rows and labels that `open_source` finds in a file; the columns of dense rows are its own."""

    takes_label_file = True

    def __init__(self, path: str, options: ConvertOptions) -> None:
        super().__init__(path)
        label = options.label or "y"
        if label.removeprefix("-").isdigit():  # a column of the rows
            label = "y"
        source = open_source(
            path,
            options.labels,
            x_name=options.x_name,
            label=label,
            missing_labels=options.missing_labels,
        )
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
        if not self.sparse and len(self._places) < len(names):
            self.close()
            (twice, _), *_ = Counter(names).most_common(1)
            raise InputError(f"{self.name} has two columns {twice!r}; rename one of them")
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
        wanted = self.wanted
        place = place_from(self.name, start)
        if wanted.label in self._places and wanted.label != self.own_label:
            labels = rows[:, self._places[wanted.label]]
        if labels.dtype.kind in "biuf":
            for row in np.flatnonzero(inexact_labels(labels))[:1].tolist():
                raise InputError(f"{place(row)}: the label {INEXACT}")
            found: Any = np.ascontiguousarray(labels, dtype=np.float64)
        else:
            values, codes = np.unique(labels, return_inverse=True)
            found = collect_words(values.tolist(), codes, place)
        if self.sparse:
            data = np.ascontiguousarray(rows.data, dtype=np.float64)
            numbers: Any = CSRRows(data, rows.indices, rows.indptr, rows.n_features)
            return Cells(found, numbers, (), place)
        places = [self._places[name] for name in wanted.numbers]
        return Cells(found, np.asarray(rows[:, places], dtype=np.float64), (), place)


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


def is_foreign_number(text: str) -> bool:
    """Whether a cell holds a number with a decimal comma or separators of thousands."""
    return _FOREIGN_NUMBER.fullmatch(text.strip()) is not None


def collect_words(values: Sequence[Any], codes: AnyArray, place: Place) -> Words:
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


def may_be_dates(kind: str) -> bool:
    """Whether a column of this kind holds dates and times, or text that may be some."""
    return kind in (WORDS, TEXT) or kind.startswith(("timestamp", "date"))


def seconds_in(word: str) -> float:
    """Seconds since 1970 of a date or time of ISO 8601, which is in UTC unless it has a zone."""
    if word in MISSING:
        return np.nan
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        return np.inf
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
