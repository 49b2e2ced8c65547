"""Rows that are scaled as they are read.

The file stays as it is, so that no second copy of it is needed. The scaling comes from
`ooc_fw.data.statistics.fit_scaling` or from a model.
"""

from __future__ import annotations

from ooc_fw.data.rows import Rows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources.base import RowSource
from ooc_fw.data.sources.wrapped import WrappedSource
from ooc_fw.system.errors import InputError


def check_raw(source: RowSource) -> None:
    """Raise InputError when the rows are scaled already."""
    before = source.scaling
    if before is not None and not before.is_identity:
        raise InputError(f"{source.name} is scaled already ({before.kind}); use it as it is")


class ScaledSource(WrappedSource):
    """Raw rows of a source, returned scaled; the source is closed with this one.

    InputError is raised for rows that are scaled already, and for a scaling of another width.
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
        self.sparse = sparse
        self.in_memory = False
        self.scaling = self._scaling = scaling
        self.own(source.close)
        self.rewrap_by(scaling)

    def _fetch(self, start: int, stop: int) -> tuple[Rows, int]:
        return self._scaling.apply(self.source.read_exact(start, stop), self.n_features), 0
