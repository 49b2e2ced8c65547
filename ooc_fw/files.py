"""Files that appear whole or not at all.

Owns the one way in which ooc_fw writes a file: a temporary file in the same directory, fsync,
rename, fsync of the directory. A reader sees the old file or the new one, even after a power cut.
Knows nothing of what is in the files.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path; what is written there replaces `path` when the block ends well.

    After any exception (an interrupt included) the temporary file is removed and `path` is as
    before. A symbolic link is followed, so that it stays a link.

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
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    # Not tempfile.mkstemp: its files are for the owner only, whatever the umask says.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(target)  # the name that the user knows
        raise
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


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
