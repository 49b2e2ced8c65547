"""Rows scaled as they are read.

Owns nothing but the wrapping: the formula is `ooc_fw.scaling`, the numbers come from
`ooc_fw.stats.fit_scaling` or from a model. The file stays as it is, so that no second copy of it is
needed, and every process that reads scales its own part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ooc_fw.errors import InputError
from ooc_fw.rows import Int64Array, Rows
from ooc_fw.scaling import Scaling
from ooc_fw.sources.base import AnyArray, RowSource, SourceBase


class ScaledSource(SourceBase):
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
        before = source.scaling
        if before is not None and (before.kind != "none" or before.log1p):
            raise InputError(f"{source.name} is scaled already ({before.kind}); use it as it is")
        if scaling.offset is not None and len(scaling.offset) != source.n_features:
            raise InputError(
                f"the scaling is for {len(scaling.offset)} features, and {source.name} has "
                f"{source.n_features}; give the file that it was made for"
            )
        sparse = source.sparse and not scaling.moves_zero
        super().__init__(
            source.name,
            (source.n_rows, source.n_features),
            chunk_rows=source.chunk_rows,
            decoded_bytes=source.decoded_bytes if sparse else None,
        )
        self.source = source
        self.scaling = scaling
        self.sparse = sparse
        self.shuffled = source.shuffled
        if source.reopen is not None:
            self.reopen = partial(_reopen_scaled, source.reopen, scaling)
        self.own(source.close)

    def _fetch(self, start: int, stop: int) -> tuple[Rows, int]:
        rows = self.source.read(start, stop)
        assert self.scaling is not None
        return self.scaling.apply(rows, self.n_features), 0

    @property
    def bytes_read(self) -> int:
        """Bytes that the wrapped source fetched from its storage so far."""
        return self.source.bytes_read

    def count(self, n_rows: int, n_bytes: int) -> None:
        """Add what another process read; see `RowSource.count`."""
        self._count(n_rows, 0)
        self.source.count(n_rows, n_bytes)

    @property
    def has_labels(self) -> bool:
        """Whether the wrapped source has labels."""
        return self.source.has_labels

    def labels(self, start: int, stop: int) -> AnyArray:
        """Label values of rows ``start:stop`` as stored."""
        return self.source.labels(start, stop)

    def row_ids(self, start: int, stop: int) -> Int64Array:
        """Position of rows ``start:stop`` in the user's own input, counted from 0."""
        return self.source.row_ids(start, stop)

    def check_unchanged(self) -> None:
        """Raise InputError when the wrapped source's file is not as it was when opened."""
        self.source.check_unchanged()


def _reopen_scaled(reopen: Callable[[], RowSource], scaling: Scaling) -> RowSource:
    return ScaledSource(reopen(), scaling)
