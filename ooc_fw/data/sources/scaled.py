"""Rows scaled as they are read.

Owns nothing but the wrapping: the formula is `ooc_fw.data.scaling`, the numbers come from
`ooc_fw.data.statistics.fit_scaling` or from a model. The file stays as it is, so that no second
copy of it is needed, and every process that reads scales its own part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ooc_fw.data.rows import Rows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources.base import RowSource, WrappedSource
from ooc_fw.system.errors import InputError


def check_raw(source: RowSource) -> None:
    """Raise InputError when the rows are scaled already."""
    before = source.scaling
    if before is not None and not before.is_identity:
        raise InputError(f"{source.name} is scaled already ({before.kind}); use it as it is")


class ScaledSource(WrappedSource):
    """Raw rows, given out scaled.

    Parameters
    ----------
    source : RowSource
        Where the raw rows come from; closed with the wrapper.
    scaling : Scaling
        What to do to them; as wide as the rows, where it has a width.

    Raises
    ------
    InputError
        The rows are scaled already, or the scaling is of another width.
    """

    def __init__(self, source: RowSource, scaling: Scaling) -> None:
        check_raw(source)
        if scaling.offset is not None and len(scaling.offset) != source.n_features:
            raise InputError(
                f"the scaling is for {len(scaling.offset)} features, and {source.name} has "
                f"{source.n_features}; give the file that it was made for"
            )
        sparse = source.sparse and not scaling.moves_zero
        super().__init__(source, decoded_bytes=source.decoded_bytes if sparse else None)
        self.scaling = scaling
        self.sparse = sparse
        if source.reopen is not None:
            self.reopen = partial(_reopen_scaled, source.reopen, scaling)

    def _fetch(self, start: int, stop: int) -> tuple[Rows, int]:
        rows = self.source.read_exact(start, stop)
        assert self.scaling is not None
        return self.scaling.apply(rows, self.n_features), 0


def _reopen_scaled(reopen: Callable[[], RowSource], scaling: Scaling) -> RowSource:
    return ScaledSource(reopen(), scaling)
