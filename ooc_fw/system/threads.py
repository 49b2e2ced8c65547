"""Processors of this process, and the threads of an engine, with BLAS held to one thread.

Containers limit processors by control groups of Linux. joblib reads the quotas of the uppermost
group only and imports NumPy, for which ``ooc-fw --help`` cannot wait.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

SMALL_WORK = 100_000
"""Kernel values that one thread computes sooner than several."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def cpu_count(root: str = "/") -> int:
    """Processors that this process may use: its affinity, and the quotas of its control groups.

    `root` is the folder in which ``proc`` and ``sys`` are looked up.
    """
    files = {"": ["cpu.max"], "cpu": ["cpu.cfs_quota_us", "cpu.cfs_period_us"]}
    quotas = [quota / max(1, period) for quota, period in group_limits(files, 2, Path(root))]
    return max(1, min([len(os.sched_getaffinity(0)), *map(math.ceil, quotas)]))


def group_limits(
    files: Mapping[str, Sequence[str]], n_numbers: int, root: Path
) -> Iterator[list[int]]:
    """Limits, of so many numbers, that the groups of this process state and those around them.

    A container often sees its own group as the uppermost one, while ``/proc/self/cgroup`` has its
    name on the host: folders may not exist. `files` are those that hold the numbers together, by
    controller of version 1; "" stands for version 2.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        mounts = [controllers] if controllers else ["", "unified"]
        for controller in files.keys() & controllers.split(","):
            for mount in (root / "sys/fs/cgroup" / name for name in mounts):
                place = mount / group.lstrip("/")
                folders = [path for path in (place, *place.parents) if path.is_relative_to(mount)]
                for folder in folders:
                    words = " ".join(read_text(folder / file) for file in files[controller]).split()
                    numbers = [int(word) for word in words if word.isdecimal()]
                    if len(numbers) == n_numbers:  # "max" or -1 where there is no limit
                        yield numbers


def read_text(path: Path) -> str:
    """Text of a file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


class Threads:
    """Worker threads on which no result depends, while BLAS has a single one.

    One thread is that of the caller.
    """

    def __init__(self, n_threads: int) -> None:
        self._n_threads, self._pool = n_threads, None
        if n_threads > 1:
            self._pool = ThreadPoolExecutor(n_threads, initializer=limit_this_thread)
        self._release_blas = _hold_blas(self)

    def close(self) -> None:
        """Release the threads and give BLAS its own back."""
        try:
            if self._pool is not None:
                self._pool.shutdown()
        finally:
            self._release_blas()

    @contextmanager
    def reopened(self) -> Iterator[None]:
        """Hold BLAS to one thread within, after `close`; in any number of threads at a time."""
        release = _hold_blas(self)
        try:
            yield
        finally:
            release()

    def share(self, n: int, work: int, run: Callable[[slice], None], least: int = 16) -> None:
        """Call `run`, which releases the GIL where it matters, on ranges that make up range(n).

        Each range has its thread, and `least` items at least but for the last. A single one takes
        little `work`, the count of numbers computed or moved in all: waking another costs as much
        as some ten thousand of them.
        """
        parts = self._n_threads if work > SMALL_WORK else 1
        step = max(least, -(-n // (parts * 16)) * 16)  # multiples of 16 but for the last range
        ranges = [slice(start, min(start + step, n)) for start in range(0, n, step)]
        if self._pool is None or len(ranges) == 1:
            for part in ranges:
                run(part)
        else:
            list(self._pool.map(run, ranges))

    def map(self, run: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results of `run` for all items, in their order, computed on all threads."""
        return map(run, items) if self._pool is None else self._pool.map(run, items)


# Threads may overlap, in any order, so that the nested context managers of threadpoolctl do not
# suffice: the first that open set the number of BLAS threads of the process to one, the last that
# close restore it.
_lock = threading.RLock()  # reentrant: the garbage collector may close an engine at any moment
_holders = 0
_before: list[tuple[Any, int]] = []  # BLAS libraries, and their threads before the first holder
_known: tuple[int, list[Any]] = (0, [])  # BLAS libraries, when so many modules were imported


def _hold_blas(holder: object) -> weakref.finalize[[], Any]:
    """Limit BLAS to one thread until the returned value is called or `holder` is collected."""
    global _holders, _known
    with _lock:
        _holders += 1
        if _holders == 1:
            if _known[0] != len(sys.modules):  # the search takes milliseconds
                from threadpoolctl import ThreadpoolController  # for which --help cannot wait

                controller = ThreadpoolController().select(user_api="blas")
                _known = len(sys.modules), list(controller.lib_controllers)
            _before[:] = [(library, library.num_threads) for library in _known[1]]
        limit_this_thread()
    return weakref.finalize(holder, _release_blas)


def limit_this_thread() -> None:
    """Limit the libraries that have a number of threads for each calling thread (OpenMP)."""
    _set_threads((library, 1) for library, _ in _before)


def _set_threads(wanted: Iterable[tuple[Any, int]]) -> None:
    for library, n_threads in wanted:
        # Newer versions accept a number only from the thread that set it first, unless cleared.
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)
        library.set_num_threads(n_threads)


def _release_blas() -> None:
    global _holders
    with _lock:
        _holders -= 1
        if _holders == 0:
            _set_threads(_before)
            _before.clear()
