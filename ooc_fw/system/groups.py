"""Control groups of Linux, by which containers limit memory and processors.

Libraries do not replace it: psutil reports those of the machine, and joblib, which knows quotas of
processors, imports NumPy, for which ``ooc-fw --help`` cannot wait.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def cpu_count(root: str = "/") -> int:
    """Processors that this process may use: its affinity, and the quotas of its control groups.

    `root` is the folder in which ``proc`` and ``sys`` are looked up.
    """
    count = len(os.sched_getaffinity(0))
    for folder, is_version_2 in group_folders("cpu", Path(root)):
        names = ["cpu.max"] if is_version_2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        words = " ".join(read_text(folder / name) for name in names).split()
        if len(words) == 2 and all(word.isdigit() for word in words):  # neither "max" nor -1
            quota, period = map(int, words)
            count = min(count, math.ceil(quota / max(1, period)))
    return max(1, count)


def group_folders(controller: str, root: Path) -> Iterator[tuple[Path, bool]]:
    """Folders of the groups of this process, and of the groups around them.

    A container often sees its own group as the uppermost one, while ``/proc/self/cgroup`` has the
    group's name on the host: folders may not exist, and their parents are given, too.

    Yields
    ------
    folder : Path
    is_version_2 : bool
        Version of control groups, which have different files.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [f"sys/fs/cgroup/{controllers}"]
        else:
            continue
        for mount in (root / mount for mount in mounts):
            place = mount / group.lstrip("/")
            for folder in (place, *place.parents):
                if folder.is_relative_to(mount):
                    yield folder, controllers == ""


def read_text(path: Path) -> str:
    """Text of a file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
