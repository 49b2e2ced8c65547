"""Control groups of Linux, by which containers limit memory and processors.

psutil reports those of the whole machine. joblib, which knows quotas of processors, reads those of
the uppermost group only and imports NumPy, for which ``ooc-fw --help`` cannot wait.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path


def cpu_count(root: str = "/") -> int:
    """Processors that this process may use: its affinity, and the quotas of its control groups.

    `root` is the folder in which ``proc`` and ``sys`` are looked up.
    """
    files = {"": ["cpu.max"], "cpu": ["cpu.cfs_quota_us", "cpu.cfs_period_us"]}
    quotas = [quota / max(1, period) for quota, period in group_limits(files, Path(root))]
    return max(1, min([len(os.sched_getaffinity(0)), *map(math.ceil, quotas)]))


def group_limits(files: Mapping[str, Sequence[str]], root: Path) -> Iterator[list[int]]:
    """Limits that the groups of this process state, and the groups around them.

    A container often sees its own group as the uppermost one, while ``/proc/self/cgroup`` has the
    group's name on the host: folders may not exist, and those around them are looked at, too.

    Parameters
    ----------
    files : mapping
        Controller of version 1, or "" for version 2 -> names of the files that hold its numbers.
    root : Path
        As for `cpu_count`.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        mounts = [controllers] if controllers else ["", "unified"]
        for controller in files.keys() & controllers.split(","):
            for mount in (root / "sys/fs/cgroup" / name for name in mounts):
                place = mount / group.lstrip("/")
                for folder in (place, *place.parents):
                    if folder.is_relative_to(mount):
                        yield from _numbers(folder / name for name in files[controller])


def _numbers(paths: Iterable[Path]) -> Iterator[list[int]]:
    """The numbers in some files together; nothing where there is no limit ("max", -1, no file)."""
    words = " ".join(map(read_text, paths)).split()
    if words and all(word.isdigit() for word in words):
        yield [int(word) for word in words]


def read_text(path: Path) -> str:
    """Text of a file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
