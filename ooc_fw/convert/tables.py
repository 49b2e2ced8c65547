"""Tables: what they hold, which columns become which features, and the record of it.

A block of a table becomes columns of numbers, and of words of which each different one is written
once. By the record, a test file gets the features of its training file (``--like``).
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.convert.readers import Place, Reader, Words
from ooc_fw.data import formats
from ooc_fw.data.containers import open_file
from ooc_fw.data.converted import LABELS_AS
from ooc_fw.data.encoded import Encoding
from ooc_fw.data.labels import MISSING_LABELS, plain_word
from ooc_fw.data.opening import open_source
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array
from ooc_fw.data.scaling import Scaling
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import DamageError, InputError

MAX_LISTED = 12  # columns that a message lists
# As a number; of categories, only the empty cell is missing.
MISSING = (*sorted(MISSING_LABELS), "-")
NUMBERS, DATES, WORDS, TEXT = ("numbers", "dates", "words", "text")
"""What a column holds. Text may turn out to be any of them; a label is read as words."""
_HOLDS = {  # what is read as numbers, dates or words
    "numbers": (NUMBERS, TEXT),
    "dates": (DATES, WORDS, TEXT),
    "words": (NUMBERS, WORDS, TEXT),
}


# A block of a table: its wanted columns, of numbers (missing ones are NaN) or words, and where its
# rows are.
Cells: TypeAlias = tuple[Mapping[str, Float64Array | Words], Place]


class Table(Reader):
    """An open table."""

    # What each column holds: NUMBERS, DATES, WORDS, TEXT, or another type, which is of no use.
    # Columns that only number or name the rows, as an index of pandas, are left out.
    kinds: Mapping[str, str] = MappingProxyType({})
    header = True  # whether the columns have names of their own
    # Columns to read, which `choose` tells, as "numbers", "dates" (as numbers, too) or "words".
    wanted: Mapping[str, str]

    def choose(self, wanted: Mapping[str, str]) -> None:
        """Leave out what is not wanted, in blocks as well; before the first of them."""
        self.wanted = wanted

    @abstractmethod
    def cells(self, block: Any) -> Cells:
        """Wanted cells of a block, for any thread; InputError for one that cannot be read."""


def place_from(name: str, first: int) -> Place:
    """Places of rows of a block that begins at row `first` of a file."""
    return lambda row: f"{name}, row {first + row}"


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


def seconds_in(word: str) -> float:
    """Seconds since 1970 of a date or time of ISO 8601, in UTC unless it has a zone; else inf."""
    if word in MISSING:
        return np.nan
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        return np.inf
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def collect_words(values: Sequence[Any], codes: AnyArray, place: Place) -> Words:
    """Words of a column of different values, given the position of each row's value in them.

    A word is written by the rule of `plain_word`; missing values are no words.
    """
    names: dict[str, int] = {}
    places = np.full(len(values) + 1, -1)
    for code, value in enumerate(values):
        if value is None or value != value:  # NaN
            continue
        if isinstance(value, Decimal):
            value = str(value)  # float64 may not hold it
        try:
            word = plain_word(value.decode("utf-8") if isinstance(value, bytes) else value)
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
    columns: Sequence[str]  # columns that are used, in order
    # Categories of each column, sorted; None for a column of numbers.
    categories: Sequence[Sequence[str] | None]
    # What a missing number of each column becomes (0 for categories); None when it is an error.
    means: Sequence[float] | None = None
    header: bool = True  # whether the columns had names of their own
    dates: Sequence[str] = ()  # columns of dates, the last of those of numbers
    encodings: Mapping[str, Encoding] = field(default_factory=dict)  # of more columns
    width: int | None = None  # columns of the table, which have no names

    @cached_property
    def is_hot(self) -> npt.NDArray[np.bool_]:
        """Which columns are of categories."""
        return np.array([words is not None for words in self.categories], dtype=bool)

    @cached_property
    def widths(self) -> Int64Array:
        """Features of each column, and of each feature of the columns that are target-encoded."""
        widths = [1 if words is None else len(words) for words in self.categories]
        n_encoded = sum(len(one["features"]) for one in self.encodings.values())
        return np.array([*widths, *[1] * n_encoded], dtype=np.int64)

    @property
    def columns_of_features(self) -> list[tuple[str, str]]:
        """Name of each feature, and its column; those that are target-encoded are the last."""
        found = [
            (column if word is None else f"{column}={word}", column)
            for column, words in zip(self.columns, self.categories, strict=True)
            for word in ((None,) if words is None else words)
        ]
        encodings = self.encodings.items()
        return found + [(name, column) for column, one in encodings for name in one["features"]]

    @staticmethod
    def from_json(
        text: str, name: str, features: Sequence[str] | None, n_features: int
    ) -> TableRecord:
        """Read the JSON of a record in the file `name`; DamageError if it makes other features."""
        try:
            stored = json.loads(text)
            record = TableRecord(**stored)
            np.array(record.means or (), dtype=np.float64)
            if not {*record.dates} <= {*record.columns}:
                raise ValueError("dates are in other columns")
            found = [name for name, _ in record.columns_of_features]
            if len(found) != n_features or found != list(features or found):
                raise ValueError("the features are others")
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DamageError(
                f"{name} is damaged: what it says of the columns of its table makes no sense "
                f"({error}); restore a copy or write it again"
            ) from None
        return record

    def wanted(self, table: Table, label: str | None, of: str, *, targets: bool) -> dict[str, str]:
        """What to read from columns of a table, see `Table.wanted`; InputError if it cannot be.

        Messages name the table, training file or model `of` which this is the record.
        """
        lacks_label = label is None and self.label == str(len(table.kinds))
        if self.width not in (None, len(table.kinds) + lacks_label):
            raise InputError(
                f"{table.name} has {len(table.kinds)} columns and {of} has {self.width}; without "
                f"names they are known by their place: give rows with as many, in the same order"
            )
        are_hot = zip(self.columns, self.is_hot.tolist(), strict=True)
        uses = {name: "words" if is_hot else "numbers" for name, is_hot in are_hot}
        uses |= dict.fromkeys(self.dates, "dates") | dict.fromkeys(self.encodings, "words")
        if label in uses:
            raise InputError(f"column {label!r} of {table.name} is a feature of {of}, not a label")
        if label is not None:
            uses[label] = "numbers" if targets else "words"
        check_columns(table, uses, of)
        for name, what in uses.items():
            kind = table.kinds[name]
            if kind not in _HOLDS[what]:
                raise InputError(
                    f"column {name!r} of {table.name} holds {kind}, not {what}; write it anew, or "
                    f"train with --one-hot {name}, --dates {name} or --drop {name}"
                )
        return uses


def check_columns(table: Table, names: Iterable[str], of: str) -> None:
    """Raise InputError unless a table has the columns of a training file, or of an option."""
    if missing := [repr(name) for name in names if name not in table.kinds]:
        raise InputError(
            f"{table.name} lacks column{'s' * (len(missing) > 1)} {listed(missing)}, which "
            f"{of} needs; it has {listed([*table.kinds])}: add or rename what is missing"
        )


def choose_columns(table: Table, options: ConvertOptions) -> TableRecord:
    """Features of a table by the options alone, before its categories and means are known."""
    if options.label is None:
        raise InputError(
            f"{table.name} is a table: name the column of its labels with --label (it has "
            f"{listed([*table.kinds])})"
        )
    named = {
        "--label": (options.label,),
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
    )


@dataclass(frozen=True)
class TrainingFile:
    """What is known of training rows."""

    name: str  # the file, for messages
    n_features: int  # its width
    sparse: bool  # whether its rows are sparse
    scaling: Scaling  # what was done to its values
    classes: tuple[Any, ...] | None = None  # its labels; None where they are unknown
    columns: Sequence[str] | None = None  # names of its features
    table: str | None = None  # how a table became its features, as JSON
    targets: bool = False  # whether its labels are targets of a regression
    labels_as: str | None = None  # map that made its labels

    @property
    def words(self) -> tuple[str, ...]:
        """Labels that are words."""
        return tuple(name for name in self.classes or () if isinstance(name, str))

    @property
    def record(self) -> TableRecord | None:
        """How the columns of a table became its features."""
        if self.table is None:
            return None
        return TableRecord.from_json(self.table, self.name, self.columns, self.n_features)


def read_like(path: str) -> TrainingFile:
    """Read a converted file, or another HDF5 file with rows; InputError if it is damaged."""
    with open_source(path) as source, open_file(path) as file, formats.reading(path):
        labels = file.get("y")
        attributes = labels.attrs if isinstance(labels, h5py.Dataset) else {}
        maps = formats.get_texts(attributes, LABELS_AS) or (None,)
        names: Any = formats.get_texts(attributes, formats.LABEL_NAMES)
        if names is None and "class_names" in file.attrs:
            names = file.attrs["class_names"].tolist()
        return TrainingFile(
            path,
            source.n_features,
            source.sparse,
            source.scaling or Scaling(),
            None if names is None or source.targets else tuple(names),
            source.columns,
            source.table,
            bool(source.targets),
            maps[0],
        )
