"""Where results go: every output of every command and of the Python API is opened here.

A regular file appears whole or not at all, even after a power cut, and replaces the target of a
symbolic link, not the link. Devices, pipes and standard streams (``/dev/stdout``) are never
replaced: text and figures go into them as a stream; HDF5, which is not written in order, cannot.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from ooc_fw.system.errors import InputError

ZARR_METADATA = ("zarr.json", ".zgroup", ".zarray")  # one of them is in the folder of a store

StrPath = str | os.PathLike[str]


class Output(NamedTuple):
    """A place that a command will write to."""

    what: str  # what messages call it
    path: StrPath
    streamed: bool = False  # whether it is written from front to back, so that a pipe will do
    # Of a name that was not given with -o: whether a file there is one that the command writes.
    is_own: Callable[[Path], bool] | None = None


def _same(one: StrPath | int, other: StrPath | int) -> bool:
    """Whether two paths, or descriptors, are of one file that exists."""
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False


def _standard_stream(path: StrPath) -> int | None:
    """Number of the standard stream that a path is, as /dev/stdout is."""
    return next((number for number in (1, 2) if _same(path, number)), None)


def is_stream(path: StrPath) -> bool:
    """Whether an output at `path` is a device, a pipe or a standard stream, and not replaced."""
    return _locate(path, streamed=True)[1]


def _locate(path: StrPath, *, streamed: bool = False) -> tuple[Path, bool]:
    """The file that a path leads to, which need not exist, and whether it is a stream.

    InputError if such an output cannot be written.
    """
    name = os.fspath(path)
    if name in ("", "-") or name.endswith(os.sep):
        raise InputError(f"the output {name!r} must be a file; give the name of one")
    try:
        mode = os.stat(name).st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = stat.S_IFREG
    except OSError as error:
        raise _refused(path, error) from None
    stream = stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or _standard_stream(name) is not None
    if not (streamed if stream else stat.S_ISREG(mode)):
        raise InputError(f"{name} is a folder, a device or a stream; give the name of a file")
    return Path(name if stream else os.path.realpath(name)), stream


def _refused(path: StrPath, error: OSError) -> InputError:
    return InputError(f"{path} cannot be written ({error.strerror}); give another name")


def check_outputs(outputs: Sequence[Output], inputs: Iterable[StrPath | None]) -> None:
    """Raise InputError unless each output can be written to a file of its own, which is no input.

    The input "-" is standard input. No output is opened: a pipe need not have a reader yet.
    """
    names = [os.fspath(name) for name in inputs if name is not None]
    taken: list[tuple[str, Path]] = []
    for what, path, streamed, is_own in outputs:
        target, stream = _locate(path, streamed=streamed)
        for name in names:
            is_within = name != "-" and Path(os.path.realpath(name)) in target.parents
            if is_within or (_same(target, 0 if name == "-" else name) and not stream):
                read = "standard input" if name == "-" else name
                raise InputError(f"{path} would replace the input {read}; give another name")
        if is_own is not None and target.is_file() and not is_own(target):
            raise InputError(
                f"{path} exists, and this command writes no such files; give another name"
            )
        try:
            if target.exists() and not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if not stream:  # a file beside it shows the limits of its name and folder
                beside = _temporary(target)
                beside.touch(0o600, exist_ok=False)
                beside.unlink()
        except OSError as error:
            raise _refused(path, error) from None
        for other, place in taken:
            if target == place or _same(target, place):
                raise InputError(f"{other} and {what} would both be {path}; give two names")
        taken.append((what, target))


def _temporary(target: Path) -> Path:
    """A name beside a file; names have 255 bytes at most."""
    stem = os.fsdecode(os.fsencode(target.name)[:241])
    return target.with_name(f".{stem}.{os.urandom(4).hex()}.tmp")


@contextlib.contextmanager
def atomic_path(path: StrPath) -> Iterator[Path]:
    """Yield an empty temporary file that replaces `path` when the block ends without exception.

    After an exception, interrupts included, the temporary file is removed and `path` is unchanged.
    The new file has the permissions of the one that it replaces. InputError if something else than
    a regular file is there. An OSError that names no file names `path`: what is read within the
    block must raise other errors.
    """
    target, _ = _locate(path)
    temporary = _temporary(target)
    with naming(target, temporary):
        try:
            # Not tempfile.mkstemp: its files are for the owner only, whatever the umask says.
            temporary.touch(0o600 if target.exists() else 0o666, exist_ok=False)
            yield temporary
            flush_to_disk(temporary)
            target, _ = _locate(path)  # refuses what has appeared meanwhile
            if target.exists():
                with contextlib.suppress(OSError):  # not every file system has permissions
                    shutil.copymode(target, temporary)
            os.replace(temporary, target)
        finally:
            with contextlib.suppress(OSError):  # it was renamed, or the folder is gone
                temporary.unlink()
        flush_to_disk(target.parent)


def flush_to_disk(path: Path) -> None:
    """Wait until what was written to a file is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming(path: StrPath, temporary: Path | None = None) -> Iterator[None]:
    """Name an output in errors of the system that name none, or its temporary file."""
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(temporary)):
            error.filename = os.fspath(path)
        raise


def write_atomic(path: StrPath, data: bytes | memoryview) -> None:
    """Replace the regular file at `path` by `data`; raises as `atomic_path` does."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def open_output(path: StrPath, mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """Open an output that is written from front to back: a file, atomically, or a stream.

    `mode` and `options` are those of `open`. A stream receives what is written before an exception.
    Raises as `atomic_path` does.
    """
    target, stream = _locate(path, streamed=True)
    with naming(path), contextlib.ExitStack() as opened:
        where = _open_stream(target) if stream else opened.enter_context(atomic_path(path))
        with open(where, mode, **options) as file:
            yield file


def write_output(path: StrPath, data: bytes) -> None:
    """Write `data` to a file, atomically, or to a stream; raises as `open_output` does."""
    with open_output(path, "wb") as file:
        file.write(data)


def open_growing(path: StrPath, *, append: bool = False) -> IO[str]:
    """Open text that others may read while it grows line by line; it is not written atomically.

    A file is emptied unless `append`.
    """
    target, stream = _locate(path, streamed=True)
    where = _open_stream(target) if stream else target
    return open(where, "a" if append and not stream else "w", encoding="utf-8", buffering=1)


def _open_stream(path: Path) -> int:
    """Descriptor of a device, a pipe or a standard stream, which is not truncated."""
    number = _standard_stream(path)
    if number is not None:
        return os.dup(number)  # which keeps its position
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)


class Stream:
    """A standard stream whose errors name it or, for messages without a name, are ignored."""

    def __init__(self, stream: IO[Any], name: str | None = None) -> None:
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
        """Send what was written on its way."""
        with self._errors():
            self._stream.flush()


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a new directory under TMPDIR, private to this user; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="ooc-fw-", ignore_cleanup_errors=True) as name:
        yield Path(name)
