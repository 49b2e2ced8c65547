"""Control groups of Linux, by which containers limit memory and processors.

psutil reports those of the whole machine. joblib, which knows quotas of processors, reads those of
the uppermost group only and imports NumPy, for which ``ooc-fw --help`` cannot wait.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


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

    A container often sees its own group as the uppermost one, while ``/proc/self/cgroup`` has the
    group's name on the host: folders may not exist, and those around them are looked at, too.
    `files` are the names of the files that hold the numbers together, by controller of version 1;
    "" stands for version 2.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        mounts = [controllers] if controllers else ["", "unified"]
        for controller in files.keys() & controllers.split(","):
            for folder in _folders([root / "sys/fs/cgroup" / name for name in mounts], group):
                words = " ".join(read_text(folder / file) for file in files[controller]).split()
                numbers = [int(word) for word in words if word.isdecimal()]
                if len(numbers) == n_numbers:  # "max" or -1 where there is no limit
                    yield numbers


def _folders(mounts: Sequence[Path], group: str) -> Iterator[Path]:
    """Where the files of a group and of those around it may be."""
    for mount in mounts:
        place = mount / group.lstrip("/")
        yield from (path for path in (place, *place.parents) if path.is_relative_to(mount))


def read_text(path: Path) -> str:
    """Text of a file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
