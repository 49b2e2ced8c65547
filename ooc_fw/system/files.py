"""Where results go: every output of every command and of the Python API is opened here.

An output is a regular file, which appears whole or not at all, even after a power cut, and replaces
the target of a symbolic link, not the link. Folders, devices, pipes and standard streams are
refused.
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

StrPath = str | os.PathLike[str]


class Output(NamedTuple):
    """A file that a command will write."""

    what: str  # what messages call it
    path: StrPath
    # Of a name that was not given with -o: whether a file there is one that the command writes.
    is_own: Callable[[Path], bool] | None = None


def _same(one: StrPath | int, other: StrPath | int) -> bool:
    """Whether two paths, or descriptors, are of one file that exists."""
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False


def _locate(path: StrPath) -> Path:
    """The file that a path leads to, which need not exist; InputError if it cannot be replaced."""
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
    """Raise InputError unless each output can be written to a file of its own, which is no input.

    The input "-" is standard input.
    """
    names = [os.fspath(name) for name in inputs if name is not None]
    taken: dict[Path, str] = {}
    for what, path, is_own in outputs:
        target = _locate(path)
        for name in names:
            is_within = name != "-" and Path(os.path.realpath(name)) in target.parents
            if is_within or _same(target, 0 if name == "-" else name):
                read = "standard input" if name == "-" else name
                raise InputError(f"{path} would replace the input {read}; give another name")
        if is_own is not None and target.is_file() and not is_own(target):
            raise InputError(
                f"{path} exists, and this command writes no such files; give another name"
            )
        try:
            if target.exists() and not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            beside = _temporary(target)  # it shows the limits of its name and folder
            beside.touch(0o600, exist_ok=False)
            beside.unlink()
        except OSError as error:
            raise _refused(path, error) from None
        for place, other in taken.items():
            if target == place or _same(target, place):
                raise InputError(f"{other} and {what} would both be {path}; give two names")
        taken[target] = what


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
    target = _locate(path)
    temporary = _temporary(target)
    with naming(target, temporary):
        try:
            # Not tempfile.mkstemp: its files are for the owner only, whatever the umask says.
            temporary.touch(0o600 if target.exists() else 0o666, exist_ok=False)
            yield temporary
            flush_to_disk(temporary)
            target = _locate(path)  # refuses what has appeared meanwhile
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


def open_growing(path: StrPath, *, append: bool = False) -> IO[str]:
    """Open text that others may read while it grows line by line, emptied unless `append`."""
    return open(_locate(path), "a" if append else "w", encoding="utf-8", buffering=1)


class Stream:
    """Text written to standard output or standard error, whose errors name the stream.

    Without a name there are none: nobody reads what a command says.
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
        """Send what was written on its way."""
        with self._errors():
            self._stream.flush()


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a new directory under TMPDIR, private to this user; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="ooc-fw-", ignore_cleanup_errors=True) as name:
        yield Path(name)
