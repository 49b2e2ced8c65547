"""Processors of this process, and the threads of an engine, with BLAS held to one thread.

Containers limit processors by control groups of Linux. joblib reads the quotas of the uppermost
group only and imports NumPy, for which ``ooc-fw --help`` cannot wait.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

SMALL_WORK = 100_000  # kernel values that one thread computes sooner than several

Item = TypeVar("Item")
Result = TypeVar("Result")


def cpu_count(root: str = "/") -> int:
    """Processors that this process may use: its affinity, and the quotas of its control groups."""
    files = (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"])
    quotas = [quota / max(1, period) for quota, period in group_limits(files, 2, Path(root))]
    return max(1, min([len(os.sched_getaffinity(0)), *map(math.ceil, quotas)]))


def group_limits(
    files: Iterable[list[str]], n_numbers: int, root: Path
) -> Iterator[tuple[int, ...]]:
    """Limits, of so many numbers, that the groups of this process state and those around them.

    `files` hold the numbers together: those of version 2, and those of version 1. A container often
    sees its own group as the uppermost one, under a name that ``/proc/self/cgroup`` does not have.
    `root` is the folder in which ``proc`` and ``sys`` are looked up.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        mount = root / "sys/fs/cgroup" / controllers
        place = mount / group.lstrip("/")
        for folder in (path for path in (place, *place.parents) if path.is_relative_to(mount)):
            for names in files:
                words = " ".join(_text(folder / name) for name in names).split()
                numbers = tuple(int(word) for word in words if word.isdecimal())
                if len(numbers) == n_numbers:  # "max" or -1 if there is no limit
                    yield numbers


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""


class Threads:
    """Worker threads, while BLAS has a single one; one thread is that of the caller."""

    def __init__(self, n_threads: int) -> None:
        self._n_threads = n_threads
        self._pool: ThreadPoolExecutor | None = None
        if n_threads > 1:
            self._pool = ThreadPoolExecutor(n_threads, initializer=limit_this_thread)
        with _lock:
            _limits.append(limit_this_thread())
        self._release_blas = weakref.finalize(self, _release_blas)

    def close(self) -> None:
        """Release the threads and give BLAS its own back."""
        if self._pool is not None:
            self._pool.shutdown()
        self._release_blas()

    def share(self, n: int, work: int, run: Callable[[slice], None], least: int = 16) -> None:
        """Call `run`, which releases the GIL where it matters, on ranges that make up range(n).

        Each thread has one, of `least` items at least. One thread is enough for little `work`, the
        count of numbers computed or moved: waking another costs as much as ten thousand of them.
        """
        parts = self._n_threads if work > SMALL_WORK else 1
        step = max(least, -(-n // (parts * 16)) * 16)  # multiples of 16 but for the last range
        ranges = [slice(start, min(start + step, n)) for start in range(0, n, step)]
        for _ in map(run, ranges) if len(ranges) == 1 else self.map(run, ranges):
            pass

    def map(self, run: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results of `run` for all items, in their order, computed on all threads."""
        return map(run, items) if self._pool is None else self._pool.map(run, items)


# Holders may overlap in any order, so that the nested context managers of threadpoolctl do not do:
# the first holder limits BLAS, and the last one gives it its threads back.
_lock = threading.RLock()  # reentrant: the garbage collector may close an engine at any moment
_limits: list[Any] = []  # one for each holder, of which the first one counts


@functools.lru_cache(1)  # the search takes milliseconds, and finds more only after imports
def _blas(n_modules: int) -> Any:
    from threadpoolctl import ThreadpoolController  # for which --help cannot wait

    return ThreadpoolController().select(user_api="blas")


def limit_this_thread() -> Any:
    """Limit BLAS to one thread; some kinds of it (OpenMP) have a limit for each calling thread."""
    blas = _blas(len(sys.modules))
    for library in blas.lib_controllers:  # newer ones obey the thread alone that was first
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)
    return blas.limit(limits=1)


def _release_blas() -> None:
    with _lock:
        limit = _limits.pop()
        if not _limits:
            limit_this_thread()  # which lets this thread restore the limits
            limit.restore_original_limits()
