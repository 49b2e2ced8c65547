"""Which columns of some rows are given features: by name, where both have names."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np

from ooc_fw.data.rows import Int64Array
from ooc_fw.system.errors import InputError

logger = logging.getLogger(__name__)

_SHOWN = 3  # names in a message


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
