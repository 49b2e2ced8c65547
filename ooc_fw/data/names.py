"""Names and other text in files, and columns that are found by their names.

Text in attributes of HDF5 is stored as UTF-8 of a fixed length, in the attribute itself. Strings of
variable length lie in a heap of the file that has no checksum, and one changed bit there can keep
the HDF5 library in an endless loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ooc_fw.data.rows import Int64Array
from ooc_fw.system.errors import InputError

logger = logging.getLogger(__name__)

_SHOWN = 3  # names in a message

# Attribute of the labels of a data file: the words that their values 0, 1, ... stand for.
LABEL_NAMES = "label_names"
# Attribute of a data file: whether its labels are targets of a regression, not classes.
TARGETS = "targets"
# Attribute of a data file: the names of its features.
COLUMNS = "columns"
# Attribute of a data file: how the columns of a table became its features, as JSON.
RECORD = "table"


def as_text(value: Any) -> str:
    """Text that HDF5 holds, as bytes or not; it may be a file name that is not UTF-8."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def put_text(attributes: Any, name: str, text: str) -> None:
    """Store `text` in HDF5 attributes."""
    attributes[name] = np.bytes_(text.encode("utf-8", "surrogateescape"))


def get_text(attributes: Any, name: str) -> str:
    """Read text that `put_text` or another tool stored; KeyError when there is none."""
    return as_text(attributes[name])


def put_texts(attributes: Any, name: str, texts: Sequence[str]) -> None:
    """Store several texts as an array of one fixed length, in attributes or as a data set."""
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    attributes[name] = np.array(encoded, dtype=np.bytes_)


def get_texts(attributes: Any, name: str) -> list[str] | None:
    """Read what `put_texts` or another tool stored; None when there is nothing."""
    if name not in attributes:
        return None
    return [as_text(text) for text in np.ravel(attributes[name]).tolist()]


# -- features by name ----------------------------------------------------------------------------


def feature_places(
    own: Sequence[str] | None,
    features: Sequence[str] | None,
    name: str,
    warn: Callable[..., object] = logger.warning,
) -> Int64Array | None:
    """Columns of the rows `name`, called `own`, that are `features`, in the order of these.

    None where the columns are to be taken as they are: because the names are equal, or because only
    one side has names, which is said by `warn`. Where no name is common, numbers from 0 on are no
    names. Columns that are no features are left out, which is said, too. InputError is raised for
    features that are missing, and for names that occur twice in another order.
    """
    if own is None or features is None or not {*own} & {*features}:
        own, features = _unless_numbers(own), _unless_numbers(features)
    if own is None and features is None:
        return None
    if own is None or features is None:
        sides = (name, "the training data") if own is None else ("the training data", name)
        warn(
            "no names of features in %s, unlike %s (%s): columns are matched by their position",
            *sides,
            _some(features or own or ()),
        )
        return None
    own, features = tuple(own), tuple(features)
    if own == features:
        return None
    counts = Counter(own)
    missing = [feature for feature in features if feature not in counts]
    if missing:
        raise InputError(
            f"{name} lacks {len(missing)} of the {len(features)} features of the training data "
            f"({_some(missing)}); give rows with all of them, under the same names"
        )
    known = Counter(features)
    repeated = [feature for feature in known if max(known[feature], counts[feature]) > 1]
    if repeated:
        first = next(k for k, pair in enumerate(zip_longest(own, features)) if len({*pair}) > 1)
        raise InputError(
            f"{name} has other features than the training data from column {first} on, and they "
            f"cannot be found by name, since some names occur twice ({_some(repeated)}); put the "
            f"columns in the order of the training data"
        )
    extra = [feature for feature in own if feature not in known]
    if extra:
        warn(
            "%s has %d features that the training data do not have (%s); they are left out",
            name,
            len(extra),
            _some(extra),
        )
    place = {feature: k for k, feature in enumerate(own)}
    return np.array([place[feature] for feature in features], dtype=np.int64)


def are_numbers(names: Sequence[str]) -> bool:
    """Whether names only number the columns, as for a table without a header."""
    return all(name == str(k) for k, name in enumerate(names))


def _unless_numbers(names: Sequence[str] | None) -> Sequence[str] | None:
    return None if names is None or are_numbers(names) else names


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:_SHOWN], *["..."] * (len(names) > _SHOWN)])
