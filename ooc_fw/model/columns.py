"""Which columns of a source are the features of a model: by name, where both have names."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ooc_fw.data.sources import ColumnSource, RowSource
from ooc_fw.system.errors import InputError

logger = logging.getLogger(__name__)

_SHOWN = 3  # names in a message


def with_columns(source: RowSource, columns: tuple[str, ...] | None) -> RowSource:
    """Rows of `source` with the features `columns` in their order; itself where no names are known.

    Other features are left out, which a warning says. InputError is raised for features that are
    missing, and for names that occur twice in another order.
    """
    if columns is None or source.columns is None:
        return source
    own = tuple(source.columns)
    if own == columns:
        return source
    counts = Counter(own)
    missing = [name for name in columns if name not in counts]
    if missing:
        raise InputError(
            f"{source.name} lacks {len(missing)} of the {len(columns)} features that the model was "
            f"trained on ({_some(missing)}); give rows with all of them, under the same names"
        )
    known = Counter(columns)
    repeated = [name for name in known if max(known[name], counts[name]) > 1]
    if repeated:
        first = next(k for k, name in enumerate(columns) if k >= len(own) or own[k] != name)
        raise InputError(
            f"{source.name} has other features than the model from column {first} on, which should "
            f"be {columns[first]!r}, and they cannot be found by name, since some names occur "
            f"twice ({_some(repeated)}); put the columns in the order of the training data"
        )
    extra = [name for name in own if name not in known]
    if extra:
        logger.warning(
            "%s has %d features that the model does not know (%s); they are left out",
            source.name,
            len(extra),
            _some(extra),
        )
    place = {name: k for k, name in enumerate(own)}
    return ColumnSource(source, np.array([place[name] for name in columns], dtype=np.int64))


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:_SHOWN], *["..."] * (len(names) > _SHOWN)])
