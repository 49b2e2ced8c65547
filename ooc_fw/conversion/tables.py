"""Tables: the content of their columns, and the record of how columns become features.

A block of a table becomes columns of numbers and columns of words, as codes of different words.
With the record, a test file gets the same features as its training file (``--like``).
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from numbers import Integral
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw.conversion.readers import Place, Reader, Words
from ooc_fw.data.encoded import Encoding
from ooc_fw.data.labels import MISSING_LABELS, label_number
from ooc_fw.data.opening import open_dataset
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array
from ooc_fw.data.scaling import Scaling
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError, format_label, format_words

MAX_LISTED = 12  # most columns of a table that a message lists
# Cells without a number. In a column of categories, only an empty cell is missing.
MISSING = (*sorted(MISSING_LABELS), "-")
NUMBERS, DATES, WORDS, TEXT = ("numbers", "dates", "words", "text")
"""The content of a column. Text may be any of the others; a label is read as words."""
_HOLDS = {  # kinds of columns that can be read as numbers, dates or words
    "numbers": (NUMBERS, TEXT),
    "dates": (DATES, WORDS, TEXT),
    "words": (NUMBERS, WORDS, TEXT),
    "labels": (NUMBERS, WORDS, TEXT),
}


# A block of a table: its wanted columns, as numbers (NaN if they are missing) or words, and the
# places of its rows.
Cells: TypeAlias = tuple[Mapping[str, Float64Array | Words], Place]


class Table(Reader):
    """An open table."""

    # Content of each column: NUMBERS, DATES, WORDS, TEXT, or the name of a type that cannot be
    # used. A column that only numbers or names the rows is left out, such as an index of pandas.
    kinds: Mapping[str, str] = MappingProxyType({})
    header = True  # whether the table has names for its columns
    # Columns to read, set before the first block: as "numbers", "dates" (seconds), "words" or
    # "labels".
    wanted: Mapping[str, str]

    @abstractmethod
    def cells(self, block: Any) -> Cells:
        """Wanted cells of a block; InputError if one cannot be read; for any thread."""


def place_from(name: str, first: int) -> Place:
    """Places of the rows of a block that begins at row `first` of a file."""
    return lambda row: f"{name}, row {first + row}"


def parse_number(text: str) -> float | None:
    """Read the number in a cell: NaN if it is missing, None if the text is not a number.

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


def seconds_in(word: str) -> float:
    """Seconds from 1970 to an ISO 8601 date or time (UTC without a zone); inf for other text."""
    if word in MISSING:
        return np.nan
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        return np.inf
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def plain_word(value: object) -> str:
    """A category as a word that is the same for all equal values.

    Numbers get their shortest form: 1, 1.0, "1" and "1.0" become one word, and so do True and
    "true".
    """
    word = format_label(value).strip()
    if word.lower() in ("true", "false"):
        return word.capitalize()
    number = None if isinstance(value, Integral) else label_number(word)
    return word if number is None else format_label(number)


def collect_words(
    values: Sequence[Any],
    codes: AnyArray,
    place: Place,
    word_of: Callable[[Any], str] = format_label,
) -> Words:
    """Words of a column from its different values and the code of each row's value.

    `word_of` makes words of values; missing values have none.
    """
    names: dict[str, int] = {}
    places = np.full(len(values) + 1, -1)
    for code, value in enumerate(values):
        if value is None or value != value:  # NaN
            continue
        if isinstance(value, Decimal):
            value = str(value)  # float64 might round it
        try:
            word = word_of(value.decode("utf-8") if isinstance(value, bytes) else value)
            word.encode("utf-8")
        except UnicodeError:
            row = int((codes == code).argmax())
            raise InputError(
                f"{place(row)}: {value!r} is not UTF-8 text; write the file again in UTF-8"
            ) from None
        if word:
            places[code] = names.setdefault(word, len(names))
    return Words(places[codes], tuple(names))


@dataclass(frozen=True)
class TableRecord:
    """How the columns of a table become features."""

    label: str  # column of the labels
    columns: Sequence[str]  # columns of numbers, categories and dates, in the order of features
    # Sorted categories of each column; None for a column of numbers.
    categories: Sequence[Sequence[str] | None]
    # For each column, the value in place of missing numbers (0 for categories); None: an error.
    means: Sequence[float] | None = None
    header: bool = True  # whether the table has names for its columns
    dates: Sequence[str] = ()  # columns of dates, which are the last of `columns`
    encodings: Mapping[str, Encoding] = field(default_factory=dict)  # target-encoded columns
    width: int | None = None  # number of columns of a table without names; None with names
    names: Sequence[str] = ()  # names of all columns, if they are given and not in the table

    @cached_property
    def is_hot(self) -> npt.NDArray[np.bool_]:
        """Which columns hold categories."""
        return np.array([words is not None for words in self.categories], dtype=bool)

    @cached_property
    def widths(self) -> Int64Array:
        """Number of features of each column, and then 1 for each target-encoded feature."""
        widths = [1 if words is None else len(words) for words in self.categories]
        n_encoded = sum(len(one["features"]) for one in self.encodings.values())
        return np.array([*widths, *[1] * n_encoded], dtype=np.int64)

    @property
    def columns_of_features(self) -> list[tuple[str, str]]:
        """Name and column of each feature; target-encoded features are the last."""
        found = [
            (column if word is None else f"{column}={word}", column)
            for column, words in zip(self.columns, self.categories, strict=True)
            for word in ((None,) if words is None else words)
        ]
        encodings = self.encodings.items()
        return found + [(name, column) for column, one in encodings for name in one["features"]]

    def options_of(self, options: ConvertOptions) -> ConvertOptions:
        """Options that read a table with a header, or without one, like that of training."""
        names = options.names or (() if options.header else self.names)
        header = options.header if self.header else bool(options.header)
        if names:  # they say by themselves whether the first line has them
            header = None
        return replace(options, header=header, names=names)

    @staticmethod
    def from_json(text: str) -> TableRecord:
        """Read a record from JSON in a data file or a model, whose checksum was compared."""
        return TableRecord(**json.loads(text))

    def wanted(
        self, table: Table, label: str | None, of: str, options: ConvertOptions
    ) -> dict[str, str]:
        """Choose the `Table.wanted` of a table; InputError if the table does not fit the record.

        Messages use `of`, the name of the table, training file or model that has this record.
        """
        are_hot = zip(self.columns, self.is_hot.tolist(), strict=True)
        uses = {name: "words" if is_hot else "numbers" for name, is_hot in are_hot}
        uses |= dict.fromkeys(self.dates, "dates") | dict.fromkeys(self.encodings, "words")
        n = len(table.kinds)
        if self.width not in (None, n) and not table.header:
            # Rows to predict may lack what follows the features, or a label that comes last.
            order = [*(self.names or map(str, range(self.width)))]
            places = {order.index(name) for name in uses}
            others = {*range(self.width)} - places
            may_lack = max(places) < min(n, *others) or order[n:] == [self.label]
            if label is not None or n > self.width or not may_lack:
                raise InputError(
                    f"{table.name} has {n} columns and {of} has {self.width}; without a header "
                    f"they are known by their place: give rows with as many, in the same order"
                )
        if label in uses:
            raise InputError(f"column {label!r} of {table.name} is a feature of {of}, not a label")
        if label is not None:
            uses[label] = "numbers" if options.targets else "labels"
        if options.weight is not None and uses.setdefault(options.weight, "") != "":
            raise InputError(f"--weight {options.weight} is a feature or the label; name another")
        if options.weight is not None:
            uses[options.weight] = "numbers"
        check_columns(table, uses, of)
        for name, what in uses.items():
            kind = table.kinds[name]
            if kind not in _HOLDS[what]:
                raise InputError(
                    f"column {name!r} of {table.name} holds {kind}, not {what}; write it anew, or "
                    f"convert with --one-hot {name}, --dates {name} or --drop {name}"
                )
        return uses


def check_columns(table: Table, names: Iterable[str], of: str) -> None:
    """Raise InputError if a table lacks a column that a training file or an option `of` needs."""
    if missing := [name for name in names if name not in table.kinds]:
        raise InputError(
            f"{table.name} lacks column{'s' * (len(missing) > 1)} {format_words(missing)}, which "
            f"{of} needs; it has {format_words(table.kinds, MAX_LISTED)}: add or rename what is "
            f"missing"
        )


def choose_columns(table: Table, options: ConvertOptions) -> TableRecord:
    """Record of a table by the options, before its categories and means are known."""
    if options.label is None:
        raise InputError(
            f"{table.name} is a table: name the column of its labels with --label (it has "
            f"{format_words(table.kinds, MAX_LISTED)})"
        )
    named = {
        "--label": (options.label,),
        "--weight": () if options.weight is None else (options.weight,),
        "--drop": options.drop,
        "--one-hot": options.one_hot,
        "--target-encode": options.target_encode,
        "--dates": options.dates,
    }
    uses: dict[str, str] = {}
    for option, names in named.items():
        check_columns(table, names, option)
        for name in names:
            if uses.setdefault(name, option) != option:
                raise InputError(
                    f"column {name!r} is named by {option} and by {uses[name]}; choose one"
                )
    dates = [name for name in table.kinds if uses.get(name) == "--dates"]
    columns = [name for name in table.kinds if uses.get(name, "--one-hot") == "--one-hot"]
    columns += dates
    encoded = [name for name in table.kinds if uses.get(name) == "--target-encode"]
    if not (columns or encoded):
        raise InputError(f"{table.name} has no column left for features; drop fewer")
    empty: Encoding = {"words": (), "features": {}}
    return TableRecord(
        options.label,
        columns,
        [() if name in uses and name not in dates else None for name in columns],
        None if options.impute is None else (0.0,) * len(columns),
        table.header,
        dates,
        dict.fromkeys(encoded, empty),
        None if table.header else len(table.kinds),
        options.names,
    )


@dataclass(frozen=True)
class TrainingFile:
    """The facts about training rows that later rows need."""

    name: str  # the file, for messages
    n_features: int
    sparse: bool  # whether its rows are sparse
    scaling: Scaling  # the scaling of its values
    are_words: bool = False  # whether its labels are words
    columns: Sequence[str] | None = None  # names of its features
    table: str | None = None  # `TableRecord` as JSON, if it comes from a table
    targets: bool = False  # whether its labels are targets of a regression
    origin: Mapping[str, str] = field(default_factory=dict)  # see `RowSource.origin`

    @property
    def record(self) -> TableRecord | None:
        """Record of how the columns of a table became its features; None if it had no table."""
        return None if self.table is None else TableRecord.from_json(self.table)


def read_like(path: str) -> TrainingFile:
    """Read the facts in a converted or other HDF5 file with rows; InputError if it is damaged."""
    with open_dataset(path) as source:
        return TrainingFile(
            path,
            source.n_features,
            source.sparse,
            source.scaling or Scaling(),
            source.has_labels and source.labels(0, 0).dtype.kind not in "biuf",
            source.columns,
            source.table,
            bool(source.targets),
            source.origin,
        )
