"""Passes by few vertices where none would be taken, and of rows for which they are."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from ooc_fw.kernels import low_rank


@contextmanager
def few_vertices(step: int | None) -> Iterator[None]:
    """Five rounds of `step` pivots each make every pass, however few rows there are; None: none."""
    effort = None if step is None else low_rank.PivotLimits(step, 5 * step, 2 * step, 1000)
    always = {"_WORTHWHILE": float("inf"), "_OVERHEAD": -1.0}
    with (
        patch.object(low_rank.PivotLimits, "of", lambda *_: effort),
        patch.multiple(low_rank, **always),
    ):
        yield
