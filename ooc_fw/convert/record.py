"""Which columns of a table become which features: chosen by options, recorded in the output.

By the record, a test file gets the features of its training file (``--like``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.convert.tables import (
    BOOLEANS,
    NULLS,
    NUMBERS,
    TEXT,
    USABLE,
    WORDS,
    Table,
    Wanted,
    listed,
    may_be_dates,
)
from ooc_fw.data import formats
from ooc_fw.data.converted import LABELS_AS
from ooc_fw.data.encoded import Encoding
from ooc_fw.data.hdf5 import open_file, structure_errors
from ooc_fw.data.labels import are_numbers
from ooc_fw.data.opening import open_source
from ooc_fw.data.rows import Int64Array
from ooc_fw.data.scaling import Scaling
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import DamageError, InputError


@dataclass(frozen=True)
class TableRecord:
    """How the columns of a table become features."""

    label: str  # column of the labels
    columns: tuple[str, ...]  # columns that are used, in order
    # Categories of each column, sorted; None for a column of numbers.
    categories: tuple[tuple[str, ...] | None, ...]
    # What a missing number of each column becomes (0 for categories); None when it is an error.
    means: tuple[float, ...] | None = None
    header: bool = True  # whether the columns had names of their own
    dates: tuple[str, ...] = ()  # columns of dates, the last of those of numbers
    encodings: Mapping[str, Encoding] = field(default_factory=dict)  # of more columns
    width: int | None = None  # columns of the table, which have no names

    @cached_property
    def is_hot(self) -> npt.NDArray[np.bool_]:
        """Which columns are of categories."""
        return np.array([words is not None for words in self.categories], dtype=bool)

    @property
    def hot(self) -> tuple[str, ...]:
        """Columns of categories."""
        return tuple(compress(self.columns, self.is_hot))

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns of numbers, the dates among them."""
        return tuple(compress(self.columns, ~self.is_hot))

    @cached_property
    def widths(self) -> Int64Array:
        """Features of each column, and of each feature of the columns that are target-encoded."""
        widths = [1 if words is None else len(words) for words in self.categories]
        n_encoded = sum(len(one["features"]) for one in self.encodings.values())
        return np.array([*widths, *[1] * n_encoded], dtype=np.int64)

    @property
    def columns_of_features(self) -> list[tuple[str, str]]:
        """Name of each feature, and its column; those that are target-encoded are the last."""
        pairs = zip(self.columns, self.categories, strict=True)
        found = [
            (column if word is None else f"{column}={word}", column)
            for column, words in pairs
            for word in ((None,) if words is None else words)
        ]
        encodings = self.encodings.items()
        return found + [(name, column) for column, one in encodings for name in one["features"]]

    @property
    def features(self) -> list[str]:
        """Name of each feature."""
        return [name for name, _ in self.columns_of_features]

    def to_json(self) -> str:
        """Write the record."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(
        text: str, name: str, features: Sequence[str] | None, n_features: int
    ) -> TableRecord:
        """Read the JSON of a record in the file `name`; DamageError if it makes other features."""
        try:
            stored = {"header": True, **json.loads(text)}
            for part in ("columns", "dates", "means"):
                if stored.get(part) is not None:
                    stored[part] = tuple(stored[part])
            words = stored["categories"]
            stored["categories"] = tuple(None if one is None else tuple(one) for one in words)
            record = TableRecord(**stored)
            np.array(record.means or (), dtype=np.float64)
            if not {*record.dates} <= {*record.columns}:
                raise ValueError("dates are in other columns")
            named = record.features if features is None else list(features)
            if record.features != named or len(named) != n_features:
                raise ValueError("the features are others")
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DamageError(
                f"{name} is damaged: what it says of the columns of its table makes no sense "
                f"({error}); restore a copy or write it again"
            ) from None
        return record

    def wanted(self, table: Table, label: str | None, first: str, like: str = "") -> Wanted:
        """Columns to read from a table; InputError if it lacks some, or they have other types.

        Messages name the table `first`, or the training file or model `like`.
        """
        self._check_width(table, label, like or first)
        needed = [*self.columns, *self.encodings, *(() if label is None else (label,))]
        if missing := [repr(name) for name in needed if name not in table.kinds]:
            other = f"{like} needs" if like else f"{first} has"
            raise InputError(
                f"{table.name} lacks column{'s' * (len(missing) > 1)} {listed(missing)}, which "
                f"{other}; it has {listed(table.columns)}: add or rename what is missing"
            )
        numbers = self.numbers[: len(self.numbers) - len(self.dates)]
        wanted = Wanted(label, numbers, (*self.hot, *self.encodings), self.dates)
        for what, names in (("numbers", numbers), ("words", wanted.words), ("dates", self.dates)):
            for name in names:
                _check_kind(table, name, what, like)
        return wanted

    def _check_width(self, table: Table, label: str | None, first: str) -> None:
        """Raise InputError for more or fewer columns than those of a training file without names.

        New rows may lack a last column of labels.
        """
        places = [name for name in table.columns if name != table.own_label]
        if self.width is None or not are_numbers(places):
            return
        n_wanted = self.width
        if self.label == str(n_wanted - 1):
            is_apart = label is not None and label == table.own_label
            n_wanted -= is_apart or (label is None and len(places) == n_wanted - 1)
        if len(places) != n_wanted:
            raise InputError(
                f"{table.name} has {len(places)} columns and {first} has {n_wanted}; without names "
                f"they are known by their place: give rows with as many, in the same order"
            )


def _check_kind(table: Table, name: str, what: str, like: str) -> None:
    """Raise InputError unless a column can be read as numbers, words or dates."""
    kind = table.kinds[name]
    if like and kind == NULLS:  # all of its values are missing
        return
    fitting = {"numbers": (NUMBERS, BOOLEANS, TEXT), "words": USABLE, "dates": ()}
    if kind in fitting[what] or (what == "dates" and may_be_dates(kind)):
        return
    ways = [f"leave it out with --drop {name}"]
    if what == "numbers" and may_be_dates(kind):
        ways.insert(0, f"give --dates {name} for seconds since 1970")
    if what == "numbers" and kind == WORDS:
        ways.insert(0, f"give --one-hot {name} for categories")
    if "<" in kind:
        ways.insert(0, "give each element or field a column of its own")
    way = f"{like} needs {what} there" if like else ", or ".join(ways)
    raise InputError(f"column {name!r} of {table.name} holds {kind}, not {what}; {way}")


def find_column(table: Table, name: str, option: str) -> str:
    """Column by its name or number; negative numbers count from the last, without an index."""
    if name in table.kinds:
        return name
    try:
        place = int(name)
        return (table.proper_columns if place < 0 else table.columns)[place]
    except (ValueError, IndexError):
        known = listed((*table.label_names, *table.columns)) or "no columns with names"
        raise InputError(f"{option}: {table.name} has no column {name!r}; it has {known}") from None


def find_label(table: Table, wanted: str | None) -> str:
    """Column of the labels; InputError if there is none, or it cannot hold labels."""
    label = table.own_label if wanted is None else find_column(table, wanted, "--label")
    if label is None:
        hint = " or --labels FILE.npy" if table.takes_label_file else ""
        raise InputError(
            f"{table.name} is a table: name the column of its labels with --label{hint} (it has "
            f"{listed(table.label_names or table.proper_columns) or 'none'})"
        )
    if table.kinds[label] not in USABLE:
        raise InputError(
            f"the labels in column {label!r} of {table.name} are of type {table.kinds[label]}; "
            f"write them as numbers or words"
        )
    return label


def choose_columns(table: Table, options: ConvertOptions) -> TableRecord:
    """Features of a table by the options alone, before its categories and means are known."""
    label = find_label(table, options.label)
    uses = dict.fromkeys(table.index, "index")
    uses |= dict.fromkeys([find_column(table, name, "--drop") for name in options.drop], "--drop")
    if table.own_label is not None:
        uses[table.own_label] = "--drop"
    uses[label] = "--label"
    for option, names in (
        ("--one-hot", options.one_hot),
        ("--target-encode", options.target_encode),
        ("--dates", options.dates),
    ):
        for name in [find_column(table, name, option) for name in names]:
            if uses.get(name, "index") not in ("index", option):
                raise InputError(
                    f"column {name!r} is named by {option} and by {uses[name]}; choose one"
                )
            uses[name] = option
    dates = tuple(name for name in table.columns if uses.get(name) == "--dates")
    columns = tuple(name for name in table.columns if uses.get(name) in (None, "--one-hot"))
    columns = (*columns, *dates)
    encoded = [name for name in table.columns if uses.get(name) == "--target-encode"]
    if not (columns or encoded):
        raise InputError(f"{table.name} has no column left for features; drop fewer")
    empty: Encoding = {"words": (), "features": {}}
    return TableRecord(
        label,
        columns,
        tuple(() if uses.get(name) == "--one-hot" else None for name in columns),
        None if options.impute is None else (0.0,) * len(columns),
        table.header,
        dates,
        dict.fromkeys(encoded, empty),
        None if table.header else len(table.columns),
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


def read_like(path: str) -> TrainingFile:
    """Read a converted file, or another HDF5 file with rows; InputError if it is damaged."""
    if not (os.path.isfile(path) and formats.is_hdf5(path)):
        raise InputError(
            f"{path} does not exist, is damaged, or is neither a converted file nor a model; "
            f"--like takes what ooc-fw convert and train make"
        )
    with structure_errors(path), open_file(path) as file:
        labels = file.get("y")
        attributes = labels.attrs if isinstance(labels, h5py.Dataset) else {}
        maps = formats.get_texts(attributes, LABELS_AS) or (None,)
        names: Any = formats.get_texts(attributes, formats.LABEL_NAMES)
        if names is None and "class_names" in file.attrs:
            names = file.attrs["class_names"].tolist()
    with open_source(path) as source:
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
