"""A memory limit that the kernel enforces: a control group for one child.

Pages of files that the child reads count as its memory, too. Version 1 of control groups is tried,
then version 2. Both need the right to make groups, which root has.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_ROOTS = {  # of each version: the folder of groups, and the file of the limit in a group
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}
_ENTER = "import os, sys; open(sys.argv[1], 'w').write('0'); os.execvp(sys.argv[2], sys.argv[2:])"


def parse_bytes(text: str) -> int:
    """The number of bytes of a limit.

    >>> parse_bytes("1.5GiB")
    1610612736
    """
    number, unit = re.fullmatch(r"([\d.]+)([KMG]iB)", text).groups()  # type: ignore[union-attr]
    return int(float(number) * UNITS[unit])


@contextmanager
def limited(command: Sequence[str], n_bytes: int) -> Iterator[tuple[list[str], bool]]:
    """The command that runs another one within a limit, and whether the kernel enforces it."""
    group = _make_group(n_bytes)
    if group is None:
        yield [*command], False
        return
    try:
        yield [sys.executable, "-c", _ENTER, str(group / "cgroup.procs"), *command], True
    finally:
        group.rmdir()


def _make_group(n_bytes: int) -> Path | None:
    """Make a group with a limit; None if there is no way."""
    for root, name in _ROOTS.items():
        group = root / f"ooc-fw-bench-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(n_bytes))
        except OSError:
            group.rmdir()
            continue
        return group
    return None


def forget(path: Path) -> None:
    """Drop the pages of a file from memory, so that whoever reads it next pays for them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
