"""The processors of this process, and the threads of an engine, which limit BLAS to one thread.

Containers limit processors by control groups of Linux. joblib would read only the quotas of the
uppermost group, and it imports NumPy, which is too slow for ``ooc-fw --help``.
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

SMALL_WORK = 100_000  # one thread computes so many kernel values sooner than several threads

Item = TypeVar("Item")
Result = TypeVar("Result")


def cpu_count(root: str = "/") -> int:
    """Number of processors for this process, by its affinity and the quotas of its groups."""
    files = (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"])
    quotas = [quota / max(1, period) for quota, period in group_limits(files, 2, Path(root))]
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))  # Linux
    return max(1, min([len(affinity(0)), *map(math.ceil, quotas)]))


def group_limits(
    files: Iterable[list[str]], n_numbers: int, root: Path
) -> Iterator[tuple[int, ...]]:
    """Yield the limits of this process's control groups and of the groups around them.

    A limit has `n_numbers` numbers, in the first or the second list of `files` (version 2 or 1 of
    groups). A container often sees its own group as the uppermost one, although
    ``/proc/self/cgroup`` gives another name. `root` is the folder of ``proc`` and ``sys``.
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
    """Worker threads, or only the caller's thread; as long as they exist, BLAS has one thread."""

    def __init__(self, n_threads: int) -> None:
        self._n_threads = n_threads
        self._pool: ThreadPoolExecutor | None = None
        if n_threads > 1:
            self._pool = ThreadPoolExecutor(n_threads, initializer=limit_this_thread)
        with _lock:
            _limits.append(limit_this_thread())
        self._release_blas = weakref.finalize(self, _release_blas)

    def close(self) -> None:
        """Stop the threads, and let BLAS use its own threads again."""
        if self._pool is not None:
            self._pool.shutdown()
        self._release_blas()

    def share(self, n: int, work: int, run: Callable[[slice], None], least: int = 16) -> None:
        """Call `run`, which should release the GIL, on ranges that make up range(n).

        Each thread gets one range, of at least `least` items. One thread does little `work` alone
        (numbers to compute or move), since waking another one costs as much as ten thousand.
        """
        parts = self._n_threads if work > SMALL_WORK else 1
        step = max(least, -(-n // (parts * 16)) * 16)  # a multiple of 16, if `least` is one
        ranges = [slice(start, min(start + step, n)) for start in range(0, n, step)]
        for _ in map(run, ranges) if len(ranges) == 1 else self.map(run, ranges):
            pass

    def map(self, run: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield the results of `run` for all items, in their order, computed on all threads."""
        return map(run, items) if self._pool is None else self._pool.map(run, items)


# Engines may overlap in any order, unlike the nested context managers of threadpoolctl. The first
# engine limits BLAS, and the last one gives it its threads back.
_lock = threading.RLock()  # reentrant: the garbage collector may close an engine at any moment
_limits: list[Any] = []  # one for each engine; the first one restores the threads of BLAS


@functools.lru_cache(1)  # a search takes milliseconds, and only imports change its result
def _blas(n_modules: int) -> Any:
    from threadpoolctl import ThreadpoolController  # too slow to import for --help

    return ThreadpoolController().select(user_api="blas")


def limit_this_thread() -> Any:
    """Limit BLAS to one thread; with OpenMP, each calling thread has its own limit."""
    blas = _blas(len(sys.modules))
    for library in blas.lib_controllers:  # newer versions obey only the first thread that calls
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)
    return blas.limit(limits=1)


def _release_blas() -> None:
    with _lock:
        limit = _limits.pop()
        if not _limits:
            limit_this_thread()  # after this call, this thread may restore the limits
            limit.restore_original_limits()
