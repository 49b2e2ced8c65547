"""What all inputs share: a reader hands out blocks of rows, and any thread parses a block.

The columns of a table arrive as `Cells`: numbers, and words of which each is written once. What
becomes of the columns is decided in `ooc_fw.convert.tables`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self, TypeAlias

import numpy as np

from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Int64Array, take_rows
from ooc_fw.system.errors import InputError

BLOCK_BYTES = 4 << 20
"""Bytes of text, or of cells as float64, that are read at once."""

MAX_BLOCK_ROWS = 1 << 16
"""Rows of a table that are read at once, however narrow they are."""

MAX_LISTED = 12
"""Columns that a message lists."""

EXAMPLES = 3
"""Skipped lines of a block that are reported word for word."""

_WORDS = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "-nan", "null", "NULL", "None")

MISSING = ("", *_WORDS, "?", "-")
"""Cells that are missing numbers. Of categories, only the empty cell is missing."""

MISSING_LABELS = frozenset(MISSING) - {"-"}
"""Words that are missing labels: "-" may be the opposite of "+"."""


class Reader(ABC):
    """An open input; a context manager.

    Attributes
    ----------
    name : str
        The input, for messages.
    size : int or None
        Bytes on disk; None where there is no file with a size.
    compressed : bool
        Whether the content takes much more room than the file.
    text_bytes : int
        Bytes of content handed out so far.
    """

    compressed = False

    def __init__(self, name: str, size: int | None = None) -> None:
        self.name = name
        self.size = size
        self.text_bytes = 0
        self.resources = ExitStack()

    @property
    @abstractmethod
    def bytes_read(self) -> int:
        """Bytes of the file that were read so far."""

    @abstractmethod
    def blocks(self) -> Iterator[Any]:
        """Read the input block by block; for one thread."""

    def close(self) -> None:
        """Release what was opened."""
        self.resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TableReader(Reader):
    """An open table.

    Attributes
    ----------
    columns : tuple of str
        Names of its columns.
    words : frozenset of str
        Columns that are known to hold words.
    untyped : bool
        Whether the types of the columns are unknown, so that labels are read as words.
    unusable : mapping
        Columns that hold neither numbers nor words, and the type of each.
    own_label : str or None
        Column that holds the labels because of its name.
    index : frozenset of str
        Columns that only number or name the rows; they are no features.
    header : bool
        Whether the columns have names of their own.
    label_names : tuple of str
        What else could hold the labels, but is no column.
    sparse : bool
        Whether the numbers arrive as `CSRRows`.
    takes_label_file : bool
        Whether labels may come from a file of their own.
    """

    columns: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    untyped = False
    unusable: Mapping[str, str] = MappingProxyType({})
    own_label: str | None = None
    index: frozenset[str] = frozenset()
    header = True
    label_names: tuple[str, ...] = ()
    sparse = False
    takes_label_file = False

    @property
    def proper_columns(self) -> tuple[str, ...]:
        """Columns that are not the index."""
        return tuple(name for name in self.columns if name not in self.index)

    @abstractmethod
    def parse(self, block: Any, wanted: Wanted) -> Cells:
        """Cells of a block; for any thread.

        Raises
        ------
        InputError
            A row cannot be read, or a cell is no number.
        """


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

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: AnyArray) -> Words:
        return Words(self.codes[rows], self.values)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns to read.

    Parameters
    ----------
    label : str or None
        Column of the labels; None makes all labels 0.
    numbers, words : tuple of str
        Columns to read as numbers, and as words.
    skip : bool
        Whether rows that cannot be read are left out rather than refused.
    """

    label: str | None
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    skip: bool = False


@dataclass(frozen=True, slots=True)
class Cells:
    """Some rows of a table.

    Parameters
    ----------
    name : str
        The input, for messages.
    labels : ndarray of float64 or Words
        One per row; missing ones are NaN or -1.
    numbers : ndarray of float64, shape (n_rows, n_numbers), or CSRRows of float64
        Missing ones are NaN.
    words : tuple of Words
        One for each column of words.
    place : callable
        Returns where a row of this block is, as "row 17" or "line 19".
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
        return len(self.labels)

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


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """How blocks become rows.

    Parameters
    ----------
    zero_based : bool
        Whether LIBSVM text calls its first column 0, not 1.
    n_features : int or None
        Columns from this one on are left out and counted; None keeps all.
    log1p : bool
        Whether log1p will be taken, so that values must be above -1.
    skip : bool
        Whether a bad line or row is left out and counted, or is an error.
    exact : bool
        Whether values of LIBSVM text stay float64, to be scaled before they are rounded. Those of
        tables always do.
    """

    zero_based: bool = False
    n_features: int | None = None
    log1p: bool = False
    skip: bool = False
    exact: bool = False


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """Rows of one block.

    Parameters
    ----------
    labels : ndarray of float64, shape (n_rows,)
        Labels, or codes of labels that are words.
    rows : CSRRows
        Values; the width of text is the least that holds them.
    width : int
        1 + largest column met, columns left out and explicit zeros included.
    n_dropped : int
        Values left out because of their column.
    n_skipped : int
        Lines or rows left out because of an error.
    skipped : tuple of str
        What was wrong with the first few of them.
    """

    labels: Float64Array
    rows: CSRRows
    width: int
    n_dropped: int
    n_skipped: int
    skipped: tuple[str, ...]


Parse: TypeAlias = Callable[[Any], ParsedBlock]
"""Makes rows of a block; for any thread."""


def word_of(value: object) -> str:
    """Write a value as a word: stripped text, numbers in their shortest form, NaN as nothing."""
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
        Returns the file and row of a row of this column.

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
    # Code -1 takes the last of these places.
    return Words(np.array([*places, -1], dtype=np.int64)[codes], tuple(names))


def keep_stored(rows: CSRRows, kept: AnyArray, n_features: int) -> CSRRows:
    """Rows of some of the stored values, by a mask."""
    if kept.all() and n_features == rows.n_features:
        return rows
    before = np.concatenate([[0], np.cumsum(kept)])
    return CSRRows(rows.data[kept], rows.indices[kept], before[rows.indptr], n_features)


def name_columns(reader: str, names: Sequence[str], hint: str = "") -> tuple[str, ...]:
    """Names of columns, numbers in place of empty names; InputError where two are alike."""
    taken = {*names}
    filled = [
        text or (str(place) if str(place) not in taken else f"unnamed {place}")
        for place, text in enumerate(names)
    ]
    for text, count in Counter(filled).items():
        if count > 1:
            raise InputError(f"{reader} has two columns {text!r}; rename one of them{hint}")
    return tuple(filled)


def label_not_exact(place: str, label: object) -> InputError:
    """Error for a label that float64 would merge with another."""
    return InputError(
        f"{place}: label {label} is a whole number that float64 does not tell from its neighbours; "
        f"write the labels as words, or number the classes anew"
    )


def import_pyarrow(purpose: str) -> Any:
    """Import pyarrow, which is not needed for other formats.

    Raises
    ------
    InputError
        It is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise InputError(f"{purpose} needs pyarrow: pip install 'ooc-fw[tables]'") from None
    return pyarrow


def listed(names: Sequence[str]) -> str:
    """Names with commas between, the first few of many."""
    shown = ", ".join(names[:MAX_LISTED])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > MAX_LISTED else shown
