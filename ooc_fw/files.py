"""Files that appear whole or not at all, and long ones that leave the page cache as they grow.

Owns the one way in which ooc_fw writes a file: a temporary file in the same directory, fsync,
rename, fsync of the directory. A reader sees the old file or the new one, even after a power cut.
Knows nothing of what is in the files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path; what is written there replaces `path` when the block ends well.

    After any exception (an interrupt included) the temporary file is removed and `path` is as
    before. What a process that was killed left behind is removed by the next one that writes
    `path`. A symbolic link is followed, so that it stays a link.

    Parameters
    ----------
    path : str or PathLike
        Where the file shall appear. Its directory must exist.

    Yields
    ------
    Path
        An empty file in the same directory, with the permissions any new file would get.

    Raises
    ------
    OSError
        When the file cannot be created, flushed to disk or renamed.
    """
    target = Path(os.path.realpath(path))
    _remove_abandoned(target)
    temporary, descriptor = _create_temporary(target)
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(target)  # the name that the user knows
        raise
    finally:
        os.close(descriptor)
    _flush_to_disk(target.parent)


def write_atomic(path: str | os.PathLike[str], data: bytes | memoryview) -> None:
    """Replace the file at `path` by `data`, all of it or not at all.

    Raises
    ------
    OSError
        When the file cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def _create_temporary(target: Path) -> tuple[Path, int]:
    """Create an empty file beside `target`, locked for as long as its descriptor is open."""
    while True:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        # Not tempfile.mkstemp: its files are for the owner only, whatever the umask says.
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, mode=0o666)
        except OSError as error:
            error.filename = str(target)  # the name that the user knows
            raise
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink > 0:
            return temporary, descriptor
        os.close(descriptor)  # taken for abandoned before it was locked


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files of `target` whose process has died: nobody holds their lock."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.tmp")
    with contextlib.suppress(OSError):
        for name in filter(pattern.fullmatch, os.listdir(target.parent)):
            with contextlib.suppress(OSError), open(target.with_name(name), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(file.name)


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


KEPT_BYTES = 64 << 20
"""Beginning of a file that is left in the page cache: all of a small one."""

STEP_BYTES = 4 << 20
"""Written bytes that are sent to the disk together."""

WINDOW_BYTES = 32 << 20
"""Written bytes after which those sent are expected to be on the disk."""


class DropBehind:
    """Sends a long file that is written front to back out of the page cache as it grows.

    A file that may be larger than memory would push everything else out of the cache, and its own
    beginning before anybody reads it. Pages that are used over and over are also much cheaper than
    fresh ones, above all on virtual machines that get each fresh page from their host: there,
    writing fresh pages took longer than all the rest of a conversion. Where the disk is slower than
    the writer the pages stay until it has caught up; nothing ever waits.

    Parameters
    ----------
    descriptor : int
        Of the file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._sent = KEPT_BYTES

    def wrote(self, end: int) -> None:
        """Take note that the file has grown to `end` bytes."""
        length = end - self._sent
        if length < STEP_BYTES or not hasattr(os, "posix_fadvise"):
            return
        # The first call for a range begins to write it; a later one drops what has become clean.
        for start in (self._sent, max(KEPT_BYTES, self._sent - WINDOW_BYTES)):
            with contextlib.suppress(OSError):  # it is a hint, no more
                os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_DONTNEED)
        self._sent = end
