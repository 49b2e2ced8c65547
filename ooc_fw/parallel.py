"""One map-and-merge over row ranges, on threads through Dask.

Owns the shape of the merge: a tree that depends on the number of ranges only, so that sums in
floating point have the same bits for any number of threads. Knows nothing of what is mapped. Dask
is imported here alone, and only for more than one thread: that takes longer than reading a small
file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")


def map_reduce(
    task: Callable[[int, int], Result],
    slices: Sequence[tuple[int, int]],
    merge: Callable[[Result, Result], Result],
    *,
    threads: int = 1,
) -> Result:
    """Merge what a task returns for each range of rows.

    Parameters
    ----------
    task : callable
        Takes start and stop of a range. It should return little: sums, not rows.
    slices : sequence of tuple of int
        At least one range.
    merge : callable
        Takes two results of neighbouring ranges, the earlier first.
    threads : int
        Number of tasks at a time.

    Returns
    -------
    object
        The one result left, with the same bits for any number of threads.

    Examples
    --------
    >>> map_reduce(lambda a, b: b - a, [(0, 5), (5, 7), (7, 10)], lambda x, y: x + y)
    10
    """
    result: Result
    if threads == 1:
        result = _tree(slices, task, merge)
        return result
    import dask

    # pure=False: names of tasks are counted, not hashed from a source's contents.
    lazy_task = dask.delayed(task, pure=False)
    lazy_merge = dask.delayed(merge, pure=False)
    root = _tree(slices, lazy_task, lazy_merge)
    (result,) = dask.compute(root, scheduler="threads", num_workers=threads)
    return result


def _tree(
    slices: Sequence[tuple[int, int]], task: Callable[..., Any], merge: Callable[..., Any]
) -> Any:
    """Halve the ranges down to single ones and merge on the way back.

    Given lazy functions it builds Dask's graph; given plain ones it computes, holding one result a
    level.
    """
    if len(slices) == 1:
        return task(*slices[0])
    middle = len(slices) // 2
    return merge(_tree(slices[:middle], task, merge), _tree(slices[middle:], task, merge))


def row_slices(n_rows: int, length: int) -> list[tuple[int, int]]:
    """Cut ``0:n_rows`` into ranges of `length` rows, the last one perhaps shorter."""
    return [(start, min(start + length, n_rows)) for start in range(0, n_rows, length)]
