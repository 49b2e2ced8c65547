"""Temporary files and directories; those that a killed process left are removed by the next one.

Each is locked as long as it is in use. The system releases the lock however the process ends;
process ids would not do, since they are reused and differ between containers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

_PREFIX = "ooc-fw-scratch-"


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a new directory under TMPDIR, private to this user; it is removed afterwards."""
    remove_abandoned()
    path, descriptor = create_locked(lambda: Path(tempfile.mkdtemp(prefix=_PREFIX)))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned() -> None:
    """Remove the scratch directories of this user whose process has died."""
    with contextlib.suppress(OSError):  # a read-only container has no folder for temporary files
        remove_unlocked(Path(tempfile.gettempdir()), rf"{_PREFIX}\w{{8}}", _remove_own_directory)


def _remove_own_directory(path: Path) -> None:
    status = path.stat()
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700:
        shutil.rmtree(path, ignore_errors=True)


def create_locked(create: Callable[[], Path]) -> tuple[Path, int]:
    """Lock the new file or directory that `create` makes, until the descriptor is closed."""
    while True:
        path = create()
        with contextlib.suppress(FileNotFoundError):  # removed by another process before the lock
            descriptor = _open(path)
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                return path, descriptor
            os.close(descriptor)


def remove_unlocked(folder: Path, pattern: str, remove: Callable[[Path], None]) -> None:
    """Remove what is named as `pattern` and not locked; leave symbolic links alone."""
    with contextlib.suppress(OSError):
        for name in filter(re.compile(pattern).fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):
                descriptor = _open(folder / name)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(folder / name)
                finally:
                    os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
