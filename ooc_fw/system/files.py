"""Where results go: every output of every command and of the Python API is opened here.

A regular file appears whole or not at all, even after a power cut: a temporary file in the same
directory, fsync, rename, fsync of the directory. The target of a symbolic link is replaced, never
the link. Anything that is not a regular file is never replaced: text and figures are written into
devices, pipes and open files of a process (``/dev/stdout``) as a stream, and outputs that are not
written from front to back, such as HDF5, are refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from ooc_fw.system.errors import InputError

_MOST_LINKS = 40  # symbolic links that are followed one after the other, as in Linux
_LONGEST_STEM = 241  # bytes of a file's name within the name of its temporary file, of 255

_OPEN_FILES = re.compile(r"/proc/(\d+)(?:/task/\d+)?/fd")
"""Directory of the open files of a process; ``/dev/stdout`` and ``/dev/fd/1`` lead there."""

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


class Output(NamedTuple):
    """A place that a command will write to.

    `what` names the output in messages. `streamed` says that it is written from front to back, so
    that a device or a pipe is allowed.
    """

    what: str
    path: str | os.PathLike[str]
    streamed: bool = False


class _Place(NamedTuple):
    """Where a path leads.

    `target` is the end of its symbolic links and need not exist; `kind` is the `stat.S_IFMT` of
    what is there, 0 for nothing. `is_open_file` says that the path names an open file of a process,
    `descriptor` which one if the process is this one.
    """

    target: Path
    kind: int
    is_open_file: bool
    descriptor: int | None

    @property
    def is_stream(self) -> bool:
        """Whether it can only be written from front to back."""
        return self.is_open_file or self.kind in (stat.S_IFCHR, stat.S_IFIFO)

    def stat(self) -> os.stat_result | None:
        """Status of what is there; None for nothing."""
        try:
            return os.stat(self.target if self.descriptor is None else self.descriptor)
        except OSError:
            return None


# -- before any work -----------------------------------------------------------------------------


def check_outputs(
    outputs: Sequence[Output], inputs: Iterable[str | os.PathLike[str] | None]
) -> None:
    """Raise InputError unless all outputs of a command can be written to.

    Each output needs a file of its own, which is none of the `inputs`; the input "-" is standard
    input. Nothing is opened, so that a pipe need not have a reader yet.
    """
    names = [name for name in inputs if name is not None]
    places: list[tuple[Output, _Place]] = []
    for output in outputs:
        path = os.fspath(output.path)
        place = _locate(path, streamed=output.streamed)
        _check_writable(path, place)
        for name in names:
            if _is_input(place, name):
                read = "standard input" if os.fspath(name) == "-" else os.fspath(name)
                raise InputError(
                    f"the output {path} would replace the input {read}; give another name"
                )
        for other, taken in places:
            if _is_same(place, taken):
                raise InputError(
                    f"{other.what} and {output.what} would both be {path}; give two names"
                )
        places.append((output, place))


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether an output at `path` is a device, a pipe or an open file, and not replaced."""
    return _locate(path, streamed=True).is_stream


def _check_writable(path: str, place: _Place) -> None:
    """Raise InputError unless the file system lets this process write there."""
    if place.descriptor is not None:
        if fcntl.fcntl(place.descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise InputError(f"{path} is open for reading only; give the name of a file")
        return
    folder = place.target.parent if os.path.islink(path) else Path(path).parent
    if not place.is_stream and not os.access(folder, os.W_OK | os.X_OK):
        reason = "cannot be written to" if folder.exists() else "does not exist"
        raise InputError(f"the directory {folder} {reason}; give another place for {path}")
    if place.kind and not os.access(place.target, os.W_OK):
        raise InputError(
            f"{path} is protected from being written to; give another name, or change its "
            f"permissions"
        )


def _is_input(place: _Place, name: str | os.PathLike[str]) -> bool:
    """Whether an output is the file of an input; a device, such as a terminal, may be both."""
    found = place.stat()
    if found is None or place.kind == stat.S_IFCHR:
        return False
    with contextlib.suppress(OSError):
        return os.path.samestat(found, os.stat(0 if os.fspath(name) == "-" else name))
    return False


def _is_same(place: _Place, other: _Place) -> bool:
    found, taken = place.stat(), other.stat()
    if found is None or taken is None:
        return place.target == other.target
    return os.path.samestat(found, taken)


def _locate(path: str | os.PathLike[str], *, streamed: bool) -> _Place:
    """Follow symbolic links; InputError where such an output cannot be written."""
    place = Path(path)
    for _ in range(_MOST_LINKS):
        place = Path(os.path.realpath(place.parent), place.name)
        process = _OPEN_FILES.fullmatch(str(place.parent))
        if process is not None or not place.is_symlink():
            break
        place = place.parent / os.readlink(place)
    else:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    own = process is not None and int(process[1]) == os.getpid() and place.name.isdecimal()
    descriptor = int(place.name) if own else None
    kind = _kind_of(place if descriptor is None else descriptor)
    found = _Place(place, kind, process is not None, descriptor)
    name = os.fspath(path)
    if found.is_open_file and kind == 0:
        raise InputError(f"{name} is not open; give the name of a file")
    regular = kind in (0, stat.S_IFREG)
    if kind == stat.S_IFDIR or not (found.is_stream or regular):
        raise InputError(f"{name} is {_KINDS[kind]}; give the name of a file")
    if found.is_stream and not streamed:
        what = "an open file of a process" if regular else _KINDS[kind]
        raise InputError(
            f"{name} is {what}, and what goes there has to be a regular file, since it is not "
            f"written from front to back; give another name"
        )
    return found


def _kind_of(place: Path | int) -> int:
    try:
        return stat.S_IFMT(os.stat(place).st_mode)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EBADF):
            return 0
        raise


# -- writing -------------------------------------------------------------------------------------


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty temporary file that replaces `path` when the block ends without exception.

    After an exception, interrupts included, the temporary file is removed and `path` is unchanged.
    The file that a killed process left behind is removed by the next one that writes `path`. The
    new file has the permissions and, as far as allowed, the owner of the one that it replaces.

    Raises
    ------
    InputError
        When something else than a regular file is there.
    OSError
        When the file cannot be created, flushed to disk or renamed.
    """
    place = _locate(path, streamed=False)
    target = place.target
    _remove_abandoned(target)
    temporary, descriptor = _create_temporary(target, 0o600 if place.kind else 0o666)
    try:
        yield temporary
        _flush_to_disk(temporary)
        target = _locate(path, streamed=False).target  # refuses what has appeared there meanwhile
        _keep_permissions(temporary, target)
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
    """Replace the regular file at `path` by `data`; raises as `atomic_path` does."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def open_output(path: str | os.PathLike[str], mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """Open an output that is written from front to back: a file, atomically, or a stream.

    `mode` and `options` are those of `open`. A stream receives what is written before an exception.

    Raises
    ------
    InputError
        When what is there can be neither replaced nor written to.
    OSError
        When it cannot be written; its ``filename`` says where.
    """
    place = _locate(path, streamed=True)
    if not place.is_stream:
        with atomic_path(path) as temporary, open(temporary, mode, **options) as file:
            yield file
        return
    try:
        with open(_open_stream(place), mode, **options) as file:
            yield file
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


def write_output(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to a file, atomically, or to a stream; raises as `open_output` does."""
    with open_output(path, "wb") as file:
        file.write(data)


def open_growing(path: str | os.PathLike[str], *, append: bool = False) -> IO[str]:
    """Open text that others may read while it grows line by line; it is not written atomically.

    A file is emptied unless `append`. Raises as `open_output` does.
    """
    place = _locate(path, streamed=True)
    where: int | Path = _open_stream(place) if place.is_stream else place.target
    mode = "a" if append and not place.is_stream else "w"
    return open(where, mode, encoding="utf-8", buffering=1)


def _open_stream(place: _Place) -> int:
    """Descriptor of a device, a pipe or an open file, which is not truncated."""
    if place.descriptor is not None:
        return os.dup(place.descriptor)  # which keeps its position
    return os.open(place.target, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)


def _create_temporary(target: Path, mode: int) -> tuple[Path, int]:
    """Create an empty file beside `target`, locked as long as its descriptor is open."""
    while True:
        temporary = target.with_name(f".{_stem(target)}.{secrets.token_hex(4)}.tmp")
        # Not tempfile.mkstemp: its files are for the owner only, whatever the umask says.
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, mode=mode)
        except OSError as error:
            error.filename = str(target)  # the name that the user knows
            raise
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink > 0:
            return temporary, descriptor
        os.close(descriptor)  # another process removed the file before it was locked


def _stem(target: Path) -> str:
    """The name of `target`, cut so that the name of a temporary file is not too long."""
    return os.fsdecode(os.fsencode(target.name)[:_LONGEST_STEM])


def _keep_permissions(temporary: Path, target: Path) -> None:
    """Give a temporary file the owner and permissions of the file that it will replace."""
    try:
        old = os.stat(target)
    except FileNotFoundError:
        return
    for owner in ((-1, old.st_gid), (old.st_uid, -1)):
        with contextlib.suppress(OSError):  # only root may give files away
            os.chown(temporary, *owner)
    with contextlib.suppress(OSError):  # not every file system has permissions
        os.chmod(temporary, stat.S_IMODE(old.st_mode))


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files of `target` whose process has died: nobody holds their lock."""
    pattern = re.compile(rf"\.{re.escape(_stem(target))}\.[0-9a-f]{{8}}\.tmp")
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
"""Beginning of a file that stays in the page cache: all of a small one."""

STEP_BYTES = 4 << 20
"""Written bytes that are sent to the disk together."""

WINDOW_BYTES = 32 << 20
"""Written bytes after which those sent are expected to be on the disk."""


class DropBehind:
    """Sends a long file that is written front to back out of the page cache as it grows.

    A file that is larger than memory would push everything else out of the cache, and its own
    beginning before anybody reads it. Reused pages are also much cheaper than fresh ones on virtual
    machines that get each fresh page from their host: there, writing fresh pages took longer than
    the rest of a conversion. If the disk is slower than the writer, pages stay until it has caught
    up; nothing ever waits.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._sent = KEPT_BYTES

    def wrote(self, end: int) -> None:
        """Note that the file has grown to `end` bytes."""
        length = end - self._sent
        if length < STEP_BYTES or not hasattr(os, "posix_fadvise"):
            return
        # The first call for a range begins to write it; a later one drops what has become clean.
        for start in (self._sent, max(KEPT_BYTES, self._sent - WINDOW_BYTES)):
            with contextlib.suppress(OSError):  # it is only a hint
                os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_DONTNEED)
        self._sent = end
