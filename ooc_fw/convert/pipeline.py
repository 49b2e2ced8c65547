"""Work in threads that keeps its order and bounds what is in flight, and reports its progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias, TypeVar, cast

from ooc_fw.system.threads import cpu_count

Item = TypeVar("Item")
Result = TypeVar("Result")

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with (bytes done, bytes in all or None); each byte of input counts once per pass."""

THREADS_NAME = "ooc-fw-prep"

MAX_THREADS = 4
"""With more threads, the one thread that reads and writes is the bottleneck."""


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None
) -> Iterator[Result]:
    """Yield ``function(item)`` in the order of `items`, computed by several threads.

    The thread of the caller advances `items`, at most ``threads + 1`` ahead of the result in use.
    An exception in `function` is raised where its result would be.
    """
    threads = threads or min(MAX_THREADS, cpu_count())
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix=THREADS_NAME) as pool:
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
    """Yield `items`, of which another thread makes the next one while one is used."""
    end = object()
    iterator: Iterator[Item | object] = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix=THREADS_NAME) as pool:
        upcoming = pool.submit(next, iterator, end)
        while (item := upcoming.result()) is not end:
            upcoming = pool.submit(next, iterator, end)
            yield cast(Item, item)


class Meter:
    """Reports bytes done to a progress function, pass after pass of `pass_bytes` each, if known."""

    def __init__(self, progress: Progress | None, pass_bytes: int | None, n_passes: int = 1):
        self._progress = progress
        self._n_passes = n_passes
        self._passed = 0
        self.pass_bytes = pass_bytes

    def next_pass(self) -> None:
        """Begin another pass."""
        self._passed += self.pass_bytes or 0

    def at(self, done: int, passed: int = 0) -> None:
        """Report the bytes done of this pass, or of a part of it that begins at `passed`."""
        if self._progress is not None:
            size = self.pass_bytes
            total = None if size is None else size * self._n_passes
            self._progress(self._passed + passed + done, total)
