"""Labels of rows: how they are read and checked, and the classes that they name.

Labels keep the value and the type that they were given. Only text has rules (`label_number`): if
all words of a file are numbers, the labels are these numbers. Otherwise all of them are words as
they are written, without blanks around them. In every storage, `MISSING_LABELS` are missing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.arrays import ReadArray
from ooc_fw.data.formats import as_text
from ooc_fw.data.rows import AnyArray, Codes, Float64Array, Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.options import split_pairs
from ooc_fw.system.errors import DamageError, InputError, format_label, format_labels, format_words

LABEL_ROWS = 1 << 14  # rows whose labels are read together
# Most classes of a model: each has weights for all landmarks, and a decision value for each row.
MAX_CLASSES = 10_000
# With more different labels that are no whole numbers, a file surely has targets of a regression.
_MAX_FRACTIONS = 256
# From here on, float64 merges neighbouring whole numbers, and would merge two classes.
LARGEST_LABEL = 2**53
# Words for a missing label in tables, frames and arrays. "-" counts as a label, since it may be the
# opposite of "+".
MISSING_LABELS = frozenset(
    ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "-nan", "null", "NULL", "None", "?")
    + ("<NA>", "NaT")
)
# Text with a superfluous leading 0 is a code rather than a number: 007 is not 7.
_NUMBER = re.compile(r"[+-]?(?!0\d)(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
# Words that a model file would change, or other programs could not read.
_UNSTORABLE = re.compile("\0\\Z|[\ud800-\udfff]")


def label_number(word: str) -> float | None:
    """The number that a label in text is; None for words, codes, and what float64 may merge."""
    number = float(word) if _NUMBER.fullmatch(word) else np.inf
    return number if abs(number) < LARGEST_LABEL else None


@dataclass(frozen=True)
class Classes:
    """Different labels in increasing order, as they were given; the code of a label is its place.

    If words meet numbers, since one of them comes from text, a label is the class of equal name,
    or else the only class that is the same number.
    """

    values: AnyArray  # words, or numbers of any type

    def __len__(self) -> int:
        return len(self.values)

    @property
    def are_words(self) -> bool:
        """Whether the classes are words."""
        return self.values.dtype.kind not in "biuf"

    @property
    def names(self) -> list[str]:
        """The classes as they are printed."""
        return [format_label(value) for value in self.values.tolist()]

    @property
    def numbers(self) -> Float64Array | None:
        """The classes as float64; None if they are words, truth values, or too large for it."""
        is_whole = self.values.dtype.kind in "iu"
        large = is_whole and any(abs(value) >= LARGEST_LABEL for value in self.values.tolist())
        is_number = (is_whole and not large) or self.values.dtype.kind == "f"
        return self.values.astype(np.float64) if is_number else None

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {value: place for place, value in enumerate(self.values.tolist())}

    @cached_property
    def _named(self) -> dict[Any, int]:
        """Place of each name, and of each number that only one class is."""
        numbers = [label_number(name) for name in self.names]
        counts = Counter(numbers)
        counts[None] = 0
        once = {number: k for k, number in enumerate(numbers) if counts[number] == 1}
        return once | self._places | {name: place for place, name in enumerate(self.names)}

    def of(self, labels: npt.ArrayLike) -> Int64Array:
        """Code of each label; -1 if it is none of the classes."""
        given = np.asarray(labels)
        if given.dtype.kind == self.values.dtype.kind and given.dtype.kind in "biuf":
            places = np.minimum(np.searchsorted(self.values, given), len(self.values) - 1)
            return np.where(self.values[places] == given, places, -1)
        return np.array([self.place(label) for label in given.tolist()], dtype=np.int64)

    def place(self, label: Any) -> int:
        """Code of one label; -1 if it is none of the classes."""
        if label in self._places or isinstance(label, str) == self.are_words:
            return self._places.get(label, -1)
        name = format_label(label)
        return self._named.get(name, self._named.get(label_number(name), -1))

    def codes(self, labels: AnyArray, name: str, first_row: int = 0) -> Int64Array:
        """Code of each label; if a label has none, InputError names its row of `name`."""
        found = self.of(labels)
        for row in np.flatnonzero(found < 0)[:1].tolist():
            raise InputError(
                f"row {first_row + row} of {name} has the label {format_label(labels[row])}, but "
                f"the classes are {format_labels(self.values)}; rename the label (convert "
                f"--labels-as), or leave such rows out: make their labels missing, and add "
                f"--missing-labels drop"
            )
        return found


def typed(labels: Any, name: str) -> AnyArray:
    """Labels as an array of one type: words (bytes become text), or numbers of a type of numpy.

    InputError if they are of several types: numpy would make words of a list, or round numbers. If
    some labels of an array of objects are missing, the others stay objects.
    """
    array = np.asarray(labels)
    if array.dtype.kind not in "SOT" and not isinstance(labels, list | tuple):
        return array
    objects = np.asarray(labels, dtype=object).ravel().tolist()
    types = {*map(type, objects)}
    if types == {str}:
        return array if array.dtype.kind in "UO" else _words(objects)
    if types <= {str, bytes}:  # a file has many rows and few words
        texts = {label: as_text(label) for label in {*objects}}
        return _words([texts[label] for label in objects]).reshape(array.shape)
    given = [as_text(label) if isinstance(label, bytes) else label for label in objects]
    known = [label for label in given if not _is_missing(label)]
    kinds = sorted({*map(_kind_of, known)})
    if len(kinds) > 1 or kinds == ["other objects"]:
        raise InputError(
            f"the labels in {name} are {' and '.join(kinds)}; give all of them as words, or all as "
            f"numbers"
        )
    if array.dtype.kind in "SOT":
        is_whole = kinds != ["words"] and len(known) == len(given) > 0
        array = (np.array(given) if is_whole else _words(given)).reshape(array.shape)
    largest = max((abs(label) for label in known if isinstance(label, int)), default=0)
    if largest >= 2**63 and array.dtype.kind not in "iu":
        raise InputError(f"the labels in {name} exceed 64 bits; give them as words")
    return array


def _words(values: Sequence[object]) -> AnyArray:
    """Words as objects, since those of numpy all take the room of the longest."""
    return np.array(values, dtype=object)


def _kind_of(label: object) -> str:
    kinds: dict[str, Any] = {"truth values": bool | np.bool_, "words": str, "numbers": Real}
    return next((name for name, kind in kinds.items() if isinstance(label, kind)), "other objects")


def _is_missing(label: object) -> bool:
    return as_text(label).strip() in MISSING_LABELS


def unknown_labels(classes: Classes, found: Sequence[Any], name: str, way: str = "") -> InputError:
    """Error for labels of `name` of which none is a class."""
    known = format_words(classes.values.tolist())
    way = way or "name other labels, or rename them (convert --labels-as)"
    return InputError(
        f"no label in {name} is a class of the model (known: {known}; found: "
        f"{format_words(found)}); {way}"
    )


def coded_labels(codes: Any, values: AnyArray, name: str) -> ReadArray:
    """Labels from an array of places in `values`, which may be in a file; -1 is a missing label."""
    values = typed(values, name)
    with_none = _words([*values.tolist(), None])

    def read(start: int, stop: int) -> AnyArray:
        stored = np.asarray(codes[start:stop])
        places = stored.astype(np.int64)
        if np.any(places != stored) or np.any((places < -1) | (places >= len(values))):
            raise DamageError(f"{name} has codes outside its categories; write it again")
        return (with_none if np.any(places < 0) else values)[places]

    return ReadArray((len(codes),), values.dtype, read)


def label_map(text: str) -> dict[str, str]:
    """Parse ``LABEL=NEW,...``: a new label for each old one; ``*`` stands for all other labels."""
    pairs = split_pairs(text)
    new = dict(pairs)
    if len(new) < len(pairs) or "" in new or MISSING_LABELS & {*new.values()}:
        raise InputError(
            f"--labels-as must be LABEL=NEW,... with each label once, * for all others, and no new "
            f"name that means a missing label, not {text!r}"
        )
    return new


def new_label(old: str, new: Mapping[str, str]) -> str | None:
    """New word for a label; None if the map lacks it, or leaves unclear if it is new already."""
    name = old_name(old, new)
    if name != "*":
        return new[name]
    word = old if new.get("*") == "*" else new.get("*")
    return None if old != word and old in new.values() else word


def old_name(old: str, new: Mapping[str, str]) -> str:
    """The name of a label in the map, as it is written or by its number; else ``*``."""
    number = label_number(old)
    place = Classes(_words([*new])).place(old if old in new or number is None else number)
    return "*" if place < 0 else [*new][place]


def renamed(labels: Any, text: str) -> ReadArray:
    """Labels, perhaps in a file, renamed as those of the training rows were (`label_map`).

    Labels that are new words already, or that the map does not name, stay.
    """
    new = label_map(text)

    def rename(label: Any) -> Any:  # a word, since new labels are words
        word = format_label(label)
        return label if _is_missing(label) else new_label(word, new) or word

    def read(start: int, stop: int) -> AnyArray:
        given = typed(labels[start:stop], "the file").tolist()
        found = {label: rename(label) for label in {*given}}
        return _words([found[label] for label in given])

    array = ReadArray((len(labels),), object, read)
    array.kept_bytes = getattr(labels, "kept_bytes", 0)
    return array


def are_missing(labels: AnyArray) -> npt.NDArray[np.bool_]:
    """Which labels are missing."""
    if labels.dtype.kind == "f":
        return np.isnan(labels)
    if labels.dtype.kind in "SUOT":
        missing = {*filter(_is_missing, {*labels.tolist()})}
        return np.array([label in missing for label in labels.tolist()], dtype=bool)
    return np.zeros(len(labels), dtype=bool)


def check_labels(labels: AnyArray, start: int, name: str, *, targets: bool = False) -> None:
    """Raise InputError for a label that is missing or infinite, or that no file can hold.

    If the labels may be `targets`, only missing ones are wrong.
    """
    what = "is missing; leave such rows out (--missing-labels drop, or in Python "
    wrong = {what + "open_dataset(..., missing_labels='drop'))": are_missing(labels)}
    if not targets and labels.dtype.kind == "f":
        wrong["is infinite; remove the row"] = np.isinf(labels)
    if labels.dtype.kind in "UOT":
        lost = {*filter(_UNSTORABLE.search, map(as_text, {*labels.tolist()}))}
        where = np.array([as_text(label) in lost for label in labels.tolist() if lost], dtype=bool)
        wrong["ends with NUL or is not UTF-8, which no file can hold; rename it"] = where
    for what, where in wrong.items():
        if where.any():
            raise InputError(f"the label of row {start + where.argmax()} of {name} {what}")


def iter_labels(source: RowSource) -> Iterator[tuple[int, AnyArray]]:
    """Yield the labels of `LABEL_ROWS` rows at a time, each time with the first row."""
    for start in range(0, source.n_rows, LABEL_ROWS):
        labels = source.labels(start, min(start + LABEL_ROWS, source.n_rows))
        yield start, typed(labels, source.name)


def encode_labels(source: RowSource, least: int = 1) -> tuple[Classes, Codes]:
    """Return `read_classes`, and the code of each row's label."""
    classes = read_classes(source, least)
    codes = np.empty(source.n_rows, dtype=np.int16)
    for start, labels in iter_labels(source):
        codes[start : start + len(labels)] = classes.of(labels)
    return classes, codes


def read_classes(source: RowSource, least: int = 1) -> Classes:
    """All different labels of a source; InputError if they cannot be classes, or are too few."""
    if source.targets:
        raise InputError(
            f"the labels of {source.name} are marked as targets; train with --task regression "
            f"(FrankWolfeSVR in Python), or convert the source again without it"
        )
    classes = None
    for start, labels in iter_labels(source):
        unknown = labels if classes is None else labels[classes.of(labels) < 0]
        if len(unknown) == 0:
            continue
        check_labels(labels, start, source.name)
        known = unknown[:0] if classes is None else classes.values
        classes = Classes(np.union1d(known, unknown))
        numbers = classes.numbers
        whole = numbers is None or not np.any(numbers % 1)
        most = MAX_CLASSES if whole else _MAX_FRACTIONS
        if len(classes) > most:
            raise InputError(
                f"{source.name} has more than {most} different labels; convert and train "
                f"with --task regression (FrankWolfeSVR in Python) if they are targets"
            )
    assert classes is not None  # every source has rows
    if len(classes) < least:
        raise InputError(
            f"all rows of {source.name} have the label {classes.names[0]}, which is one class; "
            f"training needs rows of two classes, except for --task novelty"
        )
    return classes


def read_targets(source: RowSource) -> Float64Array:
    """Labels as targets of a regression; InputError if they are words, missing or infinite."""
    targets = np.empty(source.n_rows)
    for start, labels in iter_labels(source):
        if labels.dtype.kind not in "biuf":
            raise InputError(
                f"the labels of {source.name} are words, and a regression needs numbers; name "
                f"another column"
            )
        targets[start : start + len(labels)] = labels
    for row in np.flatnonzero(~np.isfinite(targets))[:1].tolist():
        raise InputError(
            f"the target of row {row} of {source.name} is {targets[row]}; leave such rows out"
        )
    return targets
