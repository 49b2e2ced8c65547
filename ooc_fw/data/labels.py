"""Labels of rows and names of features: which a file can hold, and which belong together.

Every container has the same labels, whether it is converted or read as it is: blanks around a word
do not belong to it, `MISSING_LABELS` are missing, and if all other words of a file are numbers, the
labels are these numbers.

Files keep numeric labels as float64 and others as UTF-8. Whole numbers beyond 2**53 may round to a
neighbour, which would merge two classes.
"""

from __future__ import annotations

import decimal
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.arrays import ReadArray
from ooc_fw.data.formats import as_text
from ooc_fw.data.rows import AnyArray, Codes, Float64Array, Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.system.errors import DamageError, InputError, format_label, format_labels

logger = logging.getLogger(__name__)

LABEL_ROWS = 1 << 14  # rows whose labels are read together
# More different labels than these are taken for the targets of a regression: one binary classifier
# is trained for each pair of classes.
MAX_CLASSES = 256
# What is wrong with one of the `inexact_labels`.
INEXACT = (
    "is a whole number that float64 does not tell from its neighbours; give the labels as words, "
    "or number the classes anew"
)
# Words in the place of a label that is not there, in tables, frames and arrays. "-" is none of
# them, since it may be the opposite of "+".
MISSING_LABELS = frozenset(
    ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "-nan", "null", "NULL", "None", "?")
    + ("<NA>", "NaT")
)


def is_exact_label(text: str) -> bool:
    """Whether text is a number that, if it is a whole one, float64 holds exactly."""
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        return False
    if not number.is_finite() or number.adjusted() > 400:
        return not number.is_nan()
    return number != number.to_integral_value() or decimal.Decimal(float(number)) == number


def is_label_number(word: str) -> bool:
    """Whether a word is a finite number that a label can be."""
    try:
        return math.isfinite(float(word)) and "_" not in word and is_exact_label(word)
    except ValueError:
        return False


def plain_word(value: object) -> str:
    """A label or category as the word that all equal values have.

    Numbers have their shortest form: 1, 1.0, "1" and "1.0" are one; so are True and "true". Text
    that begins with a superfluous 0 is a code, not a number.
    """
    if isinstance(value, bool | np.bool_):
        return str(value)
    if isinstance(value, int | np.integer):  # as float64 it may be another one
        word = str(int(value))
    else:
        word = (as_text(value) if isinstance(value, bytes) else format_label(value)).strip()
    if word.lower() in ("true", "false"):
        return word.capitalize()
    if (word[:1] == "0" and word[1:2].isdigit()) or not is_label_number(word):
        return word
    number = float(word)
    return str(int(number)) if number.is_integer() else repr(number)


@lru_cache(maxsize=1 << 12, typed=True)
def label_word(value: object) -> str:
    """A label as a word, "" for one that is missing."""
    word = plain_word(value)
    return "" if word in MISSING_LABELS else word


def as_labels(words: Sequence[str]) -> AnyArray:
    """Words as labels: numbers if all that are not missing are, missing ones then as NaN."""
    used = {*words} - {""}
    if used and all(map(is_label_number, used)):
        return np.array([float(word or "nan") for word in words], dtype=np.float64)
    return np.array(words, dtype=np.str_)


def word_labels(words: Any) -> ReadArray:
    """Labels whose words are in an array, perhaps in a file."""
    codes = np.empty(len(words), dtype=np.int32)
    known: dict[str, int] = {}
    for start in range(0, len(words), LABEL_ROWS):
        part = [label_word(word) for word in np.asarray(words[start : start + LABEL_ROWS]).tolist()]
        codes[start : start + len(part)] = [known.setdefault(word, len(known)) for word in part]
    labels = coded_labels(codes, [*known], "the labels")
    labels.kept_bytes = codes.nbytes
    return labels


def coded_labels(codes: Any, words: Iterable[object], name: str) -> ReadArray:
    """Labels that codes stand for: numbers if all `words` are. -1 is a missing one."""
    return labels_at(codes, as_labels([*map(label_word, words), ""]), name)


def labels_at(codes: Any, values: AnyArray, name: str) -> ReadArray:
    """Labels whose places in `values` are in an array, perhaps in a file; the last is missing."""

    def read(start: int, stop: int) -> AnyArray:
        stored = np.asarray(codes[start:stop])
        places = stored.astype(np.int64)
        if np.any(places != stored) or np.any((places < -1) | (places >= len(values) - 1)):
            raise DamageError(f"{name} has codes that are none of its categories; write it again")
        return values[places]

    return ReadArray((len(codes),), values.dtype, read)


def label_map(text: str) -> dict[str, str]:
    """New label for each old one, of ``LABEL=NEW,...``; ``*`` is every label that is not named.

    Numbers are compared as numbers: 1, 1.0 and "1" are one label.
    """
    pairs = [part.rpartition("=")[::2] for part in text.split(",")]
    new = {plain_word(old): plain_word(word) for old, word in pairs}
    if len(new) < len(pairs) or "" in (*new, *new.values()):
        raise InputError(
            f"--labels-as must be LABEL=NEW,... with each label once, and * for all others, not "
            f"{text!r}"
        )
    return new


def new_labels(labels: Iterable[object], new: Mapping[str, str], name: str) -> list[str]:
    """New labels, as words, for those of the rows `name`, once mapped ones not among them."""
    words = []
    for old in map(plain_word, labels):
        word = new.get(old, new.get("*"))
        if word is None or (old not in new and old != word and old in new.values()):
            raise InputError(f"{name} has the label {old}; name it in --labels-as, as {old}=NEW")
        words.append(word)
    return words


def relabelled(labels: AnyArray, new: Mapping[str, str], name: str) -> AnyArray:
    """New labels of the rows `name`, numbers if all in the map are."""
    values, rows = np.unique(labels, return_inverse=True)
    words = new_labels(values.tolist(), new, name)
    return as_labels([*words, *new.values()])[rows]  # one type for all parts of a source


def are_missing(labels: AnyArray) -> npt.NDArray[np.bool_]:
    """Which labels are missing."""
    if labels.dtype.kind == "f":
        return np.isnan(labels)
    if labels.dtype.kind in "SUO":
        return np.array([not label_word(label) for label in labels.tolist()], dtype=bool)
    return np.zeros(len(labels), dtype=bool)


def inexact_labels(labels: AnyArray) -> npt.NDArray[np.bool_]:
    """Which labels are whole numbers, of any type, that float64 does not hold exactly."""
    if labels.dtype.kind not in "iu" or labels.dtype.itemsize < 8:
        return np.zeros(len(labels), dtype=bool)
    inexact = [label for label in np.unique(labels).tolist() if int(float(label)) != label]
    return np.isin(labels, np.array(inexact, dtype=labels.dtype))


def check_labels(labels: AnyArray, start: int, name: str, *, targets: bool = False) -> None:
    """Raise InputError for a label that is missing, infinite, or merged with others by float64.

    Of what may be `targets`, only missing ones are looked for.
    """
    way = "leave such rows out (convert --missing-labels drop, or missing_labels= in Python)"
    wrong = {f"is missing; {way}": are_missing(labels)}
    if not targets:
        wrong[INEXACT] = inexact_labels(labels)
    if not targets and labels.dtype.kind == "f":
        wrong["is infinite; remove the row"] = np.isinf(labels)
    for what, where in wrong.items():
        if where.any():
            raise InputError(f"the label of row {start + where.argmax()} of {name} {what}")


def iter_labels(source: RowSource) -> Iterator[tuple[int, AnyArray]]:
    """All labels as (first row, labels), `LABEL_ROWS` at a time."""
    for start in range(0, source.n_rows, LABEL_ROWS):
        yield start, source.labels(start, min(start + LABEL_ROWS, source.n_rows))


def encode_labels(source: RowSource) -> tuple[AnyArray, Codes]:
    """Values of `label_values`, and the place of each row's label in them."""
    classes = label_values(source)
    codes = np.empty(source.n_rows, dtype=np.int16)
    for start, labels in iter_labels(source):
        codes[start : start + len(labels)] = np.searchsorted(classes, labels)
    return classes, codes


def label_values(source: RowSource) -> AnyArray:
    """Label values of a source in increasing order.

    InputError is raised when a label is missing or cannot be stored, all are equal, or there are
    more than `MAX_CLASSES` different ones.
    """
    way = "train with --task regression (FrankWolfeSVR in Python)"
    if source.targets:
        raise InputError(
            f"the labels of {source.name} are marked as targets; {way}, or convert the source "
            f"again without it"
        )
    classes = source.labels(0, 1)
    check_labels(classes, 0, source.name)
    for start, labels in iter_labels(source):
        _, known = _places(labels, classes)
        if not known.all():
            check_labels(labels, start, source.name)
            classes = np.union1d(classes, labels[~known])
        if len(classes) > MAX_CLASSES:
            raise InputError(
                f"{source.name} has more than {MAX_CLASSES} different labels; if they are "
                f"targets, {way}"
            )
    if len(classes) == 1:
        raise InputError(
            f"all rows of {source.name} have the label {format_label(classes[0])}; training needs "
            f"rows of two classes, not of one class"
        )
    return classes


def _places(labels: AnyArray, classes: AnyArray) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Place of each label in `classes`, and whether it is there."""
    try:
        places = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    except TypeError as error:
        raise InputError(f"labels are of several types ({error}); give numbers or words") from None
    return places, classes[places] == labels


def codes_of(labels: AnyArray, classes: AnyArray, name: str, first_row: int = 0) -> Int64Array:
    """Place of each label in `classes`, in increasing order; InputError for one that is not.

    It names the row, counted from `first_row`.
    """
    places, known = _places(like_classes(labels, classes), classes)
    for row in np.flatnonzero(~known)[:1].tolist():
        raise InputError(
            f"row {first_row + row} of {name} has the label {format_label(labels[row])}, but the "
            f"classes are {format_labels(classes)}; leave such rows out"
        )
    return places


def like_classes(labels: AnyArray, classes: AnyArray) -> AnyArray:
    """Labels that are numbers as words, if the classes are words such as "1"."""
    if classes.dtype.kind != "U" or labels.dtype.kind not in "biuf":
        return labels
    known = {plain_word(word): word for word in classes.tolist()}
    values, rows = np.unique(labels, return_inverse=True)
    words = [known.get(format_label(value), format_label(value)) for value in values.tolist()]
    return np.array(words)[rows]


def are_targets(source: RowSource) -> bool:
    """Whether labels are targets of a regression.

    Converted files say so; of others, numbers with more values than there may be classes are.
    """
    values = np.empty(0)
    for _, labels in iter_labels(source) if source.targets is None else ():
        if labels.dtype.kind not in "biuf" or len(values) > MAX_CLASSES:
            break
        values = np.union1d(values, labels)
    return bool(source.targets) or len(values) > MAX_CLASSES


def read_targets(source: RowSource) -> Float64Array:
    """Labels as targets of a regression; InputError for words and for what is not finite."""
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


def feature_places(
    columns: Sequence[str] | None,
    features: Sequence[str] | None,
    name: str,
    warn: Callable[..., object] = logger.warning,
) -> Int64Array | None:
    """Places of `features` among the `columns` of the rows `name`; None if they are in order.

    Columns are taken by their position, which `warn` says, if only one side has names; numbers from
    0 on are none. InputError is raised for features that are missing or occur twice.
    """
    if columns is None or features is None or not {*columns} & {*features}:
        columns = None if columns is None or are_numbers(columns) else columns
        features = None if features is None or are_numbers(features) else features
    if columns is None or features is None:
        named = columns or features
        if named is not None:
            sides = [name, "the training data"] if columns is None else ["the training data", name]
            said = "columns are matched by their position"
            warn(f"no names of features in %s, unlike %s (%s): {said}", *sides, _some(named))
        return None
    if [*columns] == [*features]:
        return None
    place = {feature: k for k, feature in enumerate(columns)}
    missing = [feature for feature in features if feature not in place]
    if missing:
        raise InputError(
            f"{name} lacks {len(missing)} of the {len(features)} features of the training data "
            f"({_some(missing)}); give its columns"
        )
    twice = {feature for feature, n in (Counter(columns) + Counter(features)).items() if n > 2}
    if twice & {*features}:
        raise InputError(
            f"{name} has names that occur twice ({_some(sorted(twice))}), so that none is found by "
            f"name; give the columns of the training data"
        )
    extra = [column for column in columns if column not in {*features}]
    if extra:
        said = "%s has %d features that the training data do not have (%s); they are left out"
        warn(said, name, len(extra), _some(extra))
    return np.array([place[feature] for feature in features], dtype=np.int64)


def are_numbers(names: Sequence[str]) -> bool:
    """Whether names only number the columns, as for a table without a header."""
    return all(name == str(k) for k, name in enumerate(names))


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], *["..."] * (len(names) > 3)])
