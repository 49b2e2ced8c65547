"""Labels of rows and names of features: how they are read, checked and matched.

The same rules hold for every container, converted or not. Blanks around a word are dropped, and
`MISSING_LABELS` are missing. If all other words of a file are numbers, the labels are these
numbers. Files store numbers as float64 and other labels as UTF-8.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
# A file with more different labels probably has targets of a regression. As classes they would need
# a binary classifier for each pair.
MAX_CLASSES = 256
# Above this, float64 merges neighbouring whole numbers, and would merge two classes.
_LARGEST = 2**53
# Words for a missing label in tables, frames and arrays. "-" counts as a label, since it may be the
# opposite of "+".
MISSING_LABELS = frozenset(
    ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "-nan", "null", "NULL", "None", "?")
    + ("<NA>", "NaT")
)


def is_label_number(word: str) -> bool:
    """Whether a word is a finite number that float64 tells from the neighbouring whole numbers."""
    try:
        return abs(float(word)) < _LARGEST and "_" not in word
    except ValueError:
        return False


def plain_word(value: object) -> str:
    """A label or category as a word that is the same for all equal values.

    Numbers get their shortest form: 1, 1.0, "1" and "1.0" become one word, and so do True and
    "true". Text with a superfluous leading 0 is a code rather than a number.
    """
    if isinstance(value, bool | np.bool_):
        return str(value)
    if isinstance(value, int | np.integer):  # float64 may round it to another number
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
def _label_word(value: object) -> str:
    """A label as a word; "" if it is missing."""
    word = plain_word(value)
    return "" if word in MISSING_LABELS else word


def word_labels(words: Any) -> ReadArray:
    """Labels from an array of words, which may be in a file."""
    codes = np.empty(len(words), dtype=np.int32)
    known: dict[object, int] = {}
    for start in range(0, len(words), LABEL_ROWS):
        part = np.asarray(words[start : start + LABEL_ROWS]).tolist()
        codes[start : start + len(part)] = [
            known.setdefault(_label_word(word), len(known)) for word in part
        ]
    labels = coded_labels(codes, known, "the labels")
    labels.kept_bytes = codes.nbytes
    return labels


def coded_labels(codes: Any, words: Iterable[object], name: str) -> ReadArray:
    """Labels from an array of places in `words`, which may be in a file; -1 is a missing label.

    If all words are different numbers, the labels are numbers, and NaN if they are missing.
    """
    names = [*map(_label_word, words), ""]
    used = {*names} - {""}
    values = np.array(names, dtype=np.str_)
    if used and all(map(is_label_number, used)) and len({*map(float, used)}) == len(used):
        values = np.array([float(word or "nan") for word in names])

    def read(start: int, stop: int) -> AnyArray:
        stored = np.asarray(codes[start:stop])
        places = stored.astype(np.int64)
        if np.any(places != stored) or np.any((places < -1) | (places >= len(values) - 1)):
            raise DamageError(f"{name} has codes outside its categories; write it again")
        return values[places]

    return ReadArray((len(codes),), values.dtype, read)


def label_map(text: str) -> dict[str, str]:
    """Parse ``LABEL=NEW,...``: a new label for each old one; ``*`` stands for all other labels."""
    pairs = [part.rpartition("=")[::2] for part in text.split(",")]
    new = {plain_word(old): plain_word(word) for old, word in pairs}
    if len(new) < len(pairs) or "" in new or MISSING_LABELS & {*new.values()}:
        raise InputError(
            f"--labels-as must be LABEL=NEW,... with each label once, * for all others, and no new "
            f"name that means a missing label, not {text!r}"
        )
    return new


def new_labels(labels: Iterable[object], new: Mapping[str, str], name: str) -> list[str]:
    """New words for the labels of `name`; InputError if the map lacks one or leaves it unclear."""
    words = []
    for old in map(plain_word, labels):
        word = new.get(old, new.get("*"))
        if word is None or (old not in new and old != word and old in new.values()):
            raise InputError(f"{name} has the label {old}; name it in --labels-as, as {old}=NEW")
        words.append(word)
    return words


def rename(labels: AnyArray, new: Mapping[str, str]) -> AnyArray:
    """Rename labels as those of the training rows were; one that is new or unknown stays."""
    values, rows = np.unique(labels, return_inverse=True)
    stay = {*new.values(), *MISSING_LABELS}
    words = [plain_word(value) for value in values.tolist()]
    found = [new.get(word, word if word in stay else new.get("*", word)) for word in words]
    of_numbers = all(map(is_label_number, {*found} - MISSING_LABELS))
    named = np.array([float(word or "nan") for word in found] if of_numbers else found)
    return named[rows]


def renamed(labels: Any, text: str) -> ReadArray:
    """Labels, perhaps in a file, after a `rename` that is written as for `label_map`."""
    new = label_map(text)
    dtype = np.float64 if all(map(is_label_number, new.values())) else np.str_
    array = ReadArray((len(labels),), dtype, lambda *part: rename(labels[slice(*part)], new))
    array.kept_bytes = getattr(labels, "kept_bytes", 0)
    return array


def are_missing(labels: AnyArray) -> npt.NDArray[np.bool_]:
    """Which labels are missing."""
    if labels.dtype.kind == "f":
        return np.isnan(labels)
    if labels.dtype.kind in "SUO":
        return np.array([not _label_word(label) for label in labels.tolist()], dtype=bool)
    return np.zeros(len(labels), dtype=bool)


def check_labels(labels: AnyArray, start: int, name: str, *, targets: bool = False) -> None:
    """Raise InputError for a label that is missing, infinite, or merged with others by float64.

    If the labels may be `targets`, only missing ones are wrong.
    """
    what = "is missing; leave such rows out (convert --missing-labels drop, or missing_labels= in "
    wrong = {what + "Python)": are_missing(labels)}
    if not targets and labels.dtype.kind in "iu":
        what = "is a whole number that float64 does not tell from its neighbours; give the labels "
        what += "as words, or number the classes anew"
        wrong[what] = (labels > _LARGEST) | (labels < -_LARGEST)
    if not targets and labels.dtype.kind == "f":
        wrong["is infinite; remove the row"] = np.isinf(labels)
    for what, where in wrong.items():
        if where.any():
            raise InputError(f"the label of row {start + where.argmax()} of {name} {what}")


def iter_labels(source: RowSource) -> Iterator[tuple[int, AnyArray]]:
    """Yield the labels of `LABEL_ROWS` rows at a time, each time with the first row."""
    for start in range(0, source.n_rows, LABEL_ROWS):
        yield start, source.labels(start, min(start + LABEL_ROWS, source.n_rows))


def encode_labels(source: RowSource) -> tuple[AnyArray, Codes]:
    """Return `label_values`, and the place of each row's label in them."""
    classes = label_values(source)
    codes = np.empty(source.n_rows, dtype=np.int16)
    for start, labels in iter_labels(source):
        codes[start : start + len(labels)] = np.searchsorted(classes, labels)
    return classes, codes


def label_values(source: RowSource) -> AnyArray:
    """Label values of a source in increasing order; InputError if they cannot be classes."""
    if source.targets:
        raise InputError(
            f"the labels of {source.name} are marked as targets; train with --task regression "
            f"(FrankWolfeSVR in Python), or convert the source again without it"
        )
    classes = source.labels(0, 1)
    check_labels(classes, 0, source.name)
    for start, labels in iter_labels(source):
        _, is_known = _places(labels, classes)
        if not is_known.all():
            check_labels(labels, start, source.name)
            classes = np.union1d(classes, labels[~is_known])
        if len(classes) > MAX_CLASSES:
            raise InputError(
                f"{source.name} has more than {MAX_CLASSES} different labels; convert and train "
                f"with --task regression (FrankWolfeSVR in Python) if they are targets"
            )
    if len(classes) == 1:
        raise InputError(
            f"all rows of {source.name} have the label {format_label(classes[0])}, which is one "
            f"class; training needs rows of two classes"
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
    """Place of each label in the increasing `classes`.

    If a label is not there, InputError names its row, counted from `first_row`.
    """
    places, is_known = _places(like_classes(labels, classes), classes)
    for row in np.flatnonzero(~is_known)[:1].tolist():
        raise InputError(
            f"row {first_row + row} of {name} has the label {format_label(labels[row])}, but the "
            f"classes are {format_labels(classes)}; leave such rows out"
        )
    return places


def like_classes(labels: AnyArray, classes: AnyArray) -> AnyArray:
    """Turn numeric labels into words if the classes are words such as "1"."""
    if classes.dtype.kind != "U" or labels.dtype.kind not in "biuf":
        return labels
    known = {plain_word(word): word for word in classes.tolist()}
    values, rows = np.unique(labels, return_inverse=True)
    words = [known.get(format_label(value), format_label(value)) for value in values.tolist()]
    return np.array(words)[rows]


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


def feature_places(
    columns: Sequence[str] | None,
    features: Sequence[str] | None,
    name: str,
    *,
    fills: bool = False,
) -> Int64Array | None:
    """Places of `features` among the `columns` of the rows `name`; None if the order is the same.

    Numbers from 0 on do not count as names. If only one side has names, columns are taken by their
    position, with a warning. InputError is raised for features that occur twice, and for missing
    ones unless it `fills` them: then their place is -1.
    """
    own = [*(columns or ())]
    wanted = [*(features or ())]
    if own == wanted:
        return None
    if not {*own} & {*wanted} and (are_numbers(own) or are_numbers(wanted)):
        if not (are_numbers(own) and are_numbers(wanted)):
            words = "%s or the training data name no features: columns are taken by position"
            logger.warning(words, name)
        return None
    places = {feature: k for k, feature in enumerate(own)}
    missing = [feature for feature in wanted if feature not in places]
    if len(places) < len(own) or len({*wanted}) < len(wanted):
        what = "has a name twice; give the columns of the training data"
        raise InputError(f"{name} or the model {what}")
    n_known = len(wanted) - len(missing)
    if missing and not (fills and n_known):
        first = ", ".join([*map(repr, missing[:5]), *["..."] * (len(missing) > 5)])
        raise InputError(
            f"{name} lacks {len(missing)} of the {len(wanted)} features of training: {first}; give "
            f"the columns of the training data, or --fill-missing 0 to count them as 0"
        )
    if missing:
        words = "%s: %d of the %d features of training are missing and count as 0"
        logger.warning(words, name, len(missing), len(wanted))
    if len(own) > n_known:
        words = "%s: %d features that training did not have are left out"
        logger.warning(words, name, len(own) - n_known)
    return np.array([places.get(feature, -1) for feature in wanted], dtype=np.int64)


def are_numbers(names: Sequence[str]) -> bool:
    """Whether the names are only numbers from 0 on, as in a table without a header."""
    return all(name == str(k) for k, name in enumerate(names))
