"""Outputs: the rules for every file that a command or the Python API writes.

An output is a regular file. It appears whole or not at all, even after a power cut. If its name is
a symbolic link, it replaces the target and keeps the link. Folders, devices, pipes and standard
streams are refused.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import mmap
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from ooc_fw.system.errors import InputError

if sys.platform != "win32":
    import fcntl

StrPath = str | os.PathLike[str]


class Output(NamedTuple):
    """A file that a command will write."""

    what: str  # its name in messages
    path: StrPath | None  # None if nobody asked for it
    is_own: Callable[[Path], bool]  # whether an existing file is of the kind that it may replace
    before: StrPath | None = None  # an input that it may replace


def _same(one: StrPath | int, other: StrPath | int) -> bool:
    """Whether two paths or descriptors belong to the same existing file."""
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False


def _locate(path: StrPath) -> Path:
    """The file at the end of a path, which need not exist; InputError if it cannot be replaced."""
    name = os.fspath(path)
    if name in ("", "-") or name.endswith(os.sep):
        raise InputError(f"the output {name!r} must be a file; give the name of one")
    try:
        is_file = stat.S_ISREG(os.stat(name).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        is_file = True
    except OSError as error:
        raise _refused(path, error) from None
    if not is_file or _same(name, 1) or _same(name, 2):
        raise InputError(f"{name} is a folder, a device or a stream; give the name of a file")
    return Path(os.path.realpath(name))


def _refused(path: StrPath, error: OSError) -> InputError:
    return InputError(f"{path} cannot be written ({error.strerror}); give another name")


def check_outputs(outputs: Sequence[Output], inputs: Iterable[StrPath | None]) -> None:
    """Raise InputError unless each output can be written to a separate file that is not an input.

    The input "-" is standard input. The files in a folder are inputs, too. Temporary files of the
    outputs that killed commands left are removed.
    """
    given = [os.fspath(name) for name in inputs if name is not None]
    names = [*chain.from_iterable(map(with_content, given))]
    taken: dict[Path, str] = {}
    for what, path, is_own, before in outputs:
        if path is None:
            continue
        target = _locate(path)
        for name in names:
            if before is not None and _same(name, before):
                continue
            is_within = name != "-" and Path(os.path.realpath(name)) in target.parents
            if is_within or _same(target, 0 if name == "-" else name):
                read = "standard input" if name == "-" else name
                raise InputError(f"{path} would replace the input {read}; give another name")
        if target.is_file() and target.stat().st_size > 0 and not is_own(target):
            raise InputError(
                f"{path} exists, and this command writes no such files; give another name"
            )
        try:
            if target.exists() and not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            beside = _temporary(target)  # creating it tests the length of the name and the folder
            beside.touch(0o600, exist_ok=False)
            beside.unlink(missing_ok=True)
            _remove_abandoned(target)
        except OSError as error:
            raise _refused(path, error) from None
        for place, other in taken.items():
            if target == place or _same(target, place):
                raise InputError(f"{other} and {what} would both be {path}; give two names")
        taken[target] = what


def with_content(name: str) -> Iterator[str]:
    """A name and, if it is that of a folder, all files in it and behind its links."""
    yield name
    seen = set()
    for place, folders, files in os.walk(name, followlinks=True):
        where = os.path.realpath(place)
        if where in seen:  # a link leads back
            folders.clear()
        seen.add(where)
        yield from (os.path.join(place, file) for file in files)


def _temporary(target: Path, number: str | None = None) -> Path:
    """Name of a temporary file in the folder of `target`, with at most 255 bytes."""
    stem = os.fsdecode(os.fsencode(target.name)[:241])
    return target.with_name(f".{stem}.{number or os.urandom(4).hex()}.tmp")


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files of `target` that nobody has locked, since their process was killed."""
    pattern = _temporary(target.with_name(glob.escape(target.name)), "?" * 8).name
    for path in target.parent.glob(pattern):
        with contextlib.suppress(OSError), path.open("ab") as file:
            _lock(file)
            path.unlink()


def _lock(file: IO[bytes]) -> None:
    """Lock a file until it is closed; OSError if another process has it, or if there are no locks.

    Windows has none that let others read. There, no file of a killed process is removed.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def atomic_path(path: StrPath) -> Iterator[Path]:
    """Yield an empty temporary file that replaces `path` when the block ends without exception.

    After an exception, interrupts included, the temporary file is removed and `path` is unchanged.
    The new file takes the permissions of the old one. InputError is raised if `path` exists and is
    not a regular file. An OSError without a file name gets the name `path`. Reads within the block
    must therefore raise other errors.
    """
    target = _locate(path)
    temporary = _temporary(target)
    with naming(target, temporary):
        try:
            # tempfile.mkstemp would give all permissions to the owner only, and ignore the umask.
            temporary.touch(0o600 if target.exists() else 0o666, exist_ok=False)
            with temporary.open("ab") as held:
                with contextlib.suppress(OSError):  # not every file system has locks
                    _lock(held)
                yield temporary
                flush_to_disk(temporary)
                target = _locate(path)  # a folder or device may have appeared since the check
                if target.exists():
                    with contextlib.suppress(OSError):  # not every file system has permissions
                        shutil.copymode(target, temporary)
                if sys.platform == "win32":  # it renames no open file
                    held.close()
                os.replace(temporary, target)
        finally:
            with contextlib.suppress(OSError):  # it may be renamed already, or its folder is gone
                temporary.unlink()
        flush_to_disk(target.parent)


def flush_to_disk(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming(path: StrPath, temporary: Path | None = None) -> Iterator[None]:
    """Put the name of an output into errors of the system without a name, or with `temporary`."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename = os.fspath(path)
        raise


def write_atomic(path: StrPath, data: bytes | memoryview) -> None:
    """Replace the regular file at `path` by `data`; errors are those of `atomic_path`."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def open_growing(path: StrPath, *, append: bool = False) -> IO[bytes]:
    """Open a file that others may read while it grows; it is emptied unless `append`.

    A last line without an end, which a process left that was killed, is removed. OSError is raised
    if another run has the file open in this way.
    """
    file = open(_locate(path), "a+b", buffering=0)
    try:
        _lock(file)
    except BlockingIOError:
        file.close()
        raise BlockingIOError(errno.EAGAIN, "another run is writing it") from None
    except OSError:  # not every file system has locks
        pass
    end = 0
    if append and file.tell() > 0:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            end = text.rfind(b"\n") + 1
    file.truncate(end)
    return file


_seeking = threading.Lock()


def read_at(file: io.FileIO, out: memoryview, offset: int) -> int:
    """Read bytes from `offset` on into `out`, and return their number; threads share the file."""
    if hasattr(os, "preadv"):
        return os.preadv(file.fileno(), [out], offset)
    with _seeking:  # on Windows
        file.seek(offset)
        return file.readinto(out) or 0


class Stream:
    """Standard output or standard error; an error of a write names the stream.

    Without a name there are no errors, for a command whose messages nobody reads.
    """

    def __init__(self, stream: Any, name: str | None = None) -> None:
        self._stream = stream
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._stream, attribute)

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.suppress(OSError) if self._name is None else naming(self._name)

    def write(self, text: str) -> int:
        """Write all of the text."""
        with self._errors():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._errors():
            self._stream.flush()


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a new directory under TMPDIR, private to this user; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="ooc-fw-", ignore_cleanup_errors=True) as name:
        yield Path(name)
