"""Directories for rows that a run sets aside, removed at its end or, if it was killed, by the next.

Owns their names and their locks. A directory belongs to a living process for as long as its lock is
held: the system releases it whatever ends the process, and process ids, which come again and differ
between containers, do not count.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "ooc-fw-scratch-"


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a new directory under TMPDIR, which only this user can enter; removed afterwards.

    Raises
    ------
    OSError
        When it cannot be created.
    """
    remove_abandoned()
    path, descriptor = _create()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned() -> None:
    """Remove the scratch directories of this user whose process has died.

    Neither symbolic links nor directories of others are touched, nor those of which the file system
    cannot tell whether somebody holds their lock. Nothing is done where there is no directory for
    temporary files, as in a container that is read-only.
    """
    with contextlib.suppress(OSError):
        root = Path(tempfile.gettempdir())
        for name in os.listdir(root):
            if re.fullmatch(rf"{_PREFIX}\w{{8}}", name):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(root / name)


def _remove_if_abandoned(path: Path) -> None:
    descriptor = _open(path)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _create() -> tuple[Path, int]:
    """Create a directory, locked for as long as its descriptor is open."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with contextlib.suppress(FileNotFoundError):  # taken for abandoned before it was locked
            descriptor = _open(path)
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                return path, descriptor
            os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
