"""Directories for temporary files of a run; those of a killed run are removed by the next one.

A directory is in use as long as its lock is held. The system releases the lock however the process
ends; process ids would not do, since they are reused and differ between containers.
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
    """Yield a new directory under TMPDIR, private to this user; it is removed afterwards."""
    remove_abandoned()
    path, descriptor = _create()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned() -> None:
    """Remove the scratch directories of this user whose process has died.

    Symbolic links, directories of others and those on file systems without locks are left alone.
    There may be no directory for temporary files at all (a container that is read-only).
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
    """Create a directory that is locked as long as its descriptor is open."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with contextlib.suppress(
            FileNotFoundError
        ):  # another process removed it before it was locked
            descriptor = _open(path)
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                return path, descriptor
            os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
