"""A map in threads that keeps order and bounds what is in flight, and an iterator read ahead.

Owns nothing else. `ooc_fw.data.parallel` merges sums over a file's slices; here results are large,
each is used once, in order, and only a few may exist at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, cast

from ooc_fw.system.groups import cpu_count

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 4
"""Beyond this many, the one thread that reads and writes is the bottleneck."""


def default_threads() -> int:
    """Threads for `ordered_map`: the processors this process may use, a few at most."""
    return min(MAX_THREADS, cpu_count())


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int
) -> Iterator[Result]:
    """Yield ``function(item)`` in the order of `items`, computed by `threads` threads.

    `items` is advanced by the caller's thread, at most ``threads + 1`` ahead of the result being
    used. An exception in `function` is raised where its result would stand.
    """
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="ooc-fw-prep") as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def prefetch(items: Iterable[Item]) -> Iterator[Item]:
    """Yield `items`, the next one being made by another thread while one is used."""
    end = object()
    iterator: Iterator[Item | object] = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="ooc-fw-prep") as pool:
        upcoming = pool.submit(next, iterator, end)
        while (item := upcoming.result()) is not end:
            upcoming = pool.submit(next, iterator, end)
            yield cast(Item, item)
