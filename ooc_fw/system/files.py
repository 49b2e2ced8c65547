"""Where results go: every output of every command and of the Python API is opened here.

A regular file appears whole or not at all, even after a power cut, and replaces the target of a
symbolic link, not the link. Devices, pipes and standard streams (``/dev/stdout``) are never
replaced: text and figures go into them as a stream; HDF5, which is not written in order, cannot.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from ooc_fw.system.errors import InputError, printable
from ooc_fw.system.interrupt import TEMPORARY

_LONGEST_STEM = 241  # bytes of a file's name in that of its temporary file, which has 255 at most

ZARR_METADATA = ("zarr.json", ".zgroup", ".zarray")  # one of them is in the folder of a store

_FULL = errno.ENOSPC, errno.EDQUOT  # a failure of the disk, not a wrong name

_TO_LOCK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_SCRATCH = "ooc-fw-scratch-"  # with which the names of temporary directories begin

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFREG: "the file of a standard stream",
}

StrPath = str | os.PathLike[str]


class Output(NamedTuple):
    """A place that a command will write to."""

    what: str  # what messages call it
    path: StrPath
    streamed: bool = False  # whether it is written from front to back, so that a pipe will do
    # Of a name that was not given with -o: whether a file there is one that the command writes.
    is_own: Callable[[Path], bool] | None = None


class _Place(NamedTuple):
    """Where a path leads: the end of its symbolic links, which need not exist, and its status."""

    target: Path
    status: os.stat_result | None

    @property
    def descriptor(self) -> int | None:
        """Number of the standard stream that this is, as /dev/stdout is."""
        for number in (1, 2):
            with contextlib.suppress(OSError):
                if self.status and os.path.samestat(self.status, os.fstat(number)):
                    return number
        return None

    @property
    def kind(self) -> int:
        """`stat.S_IFMT` of what is there, 0 for nothing."""
        return 0 if self.status is None else stat.S_IFMT(self.status.st_mode)

    @property
    def is_stream(self) -> bool:
        """Whether it can only be written from front to back."""
        return self.descriptor is not None or self.kind in (stat.S_IFCHR, stat.S_IFIFO)

    def is_same(self, other: _Place) -> bool:
        """Whether both are one file."""
        here, there = self.status, other.status
        return self.target == other.target or bool(here and there and os.path.samestat(here, there))

    def is_input(self, name: str) -> bool:
        """Whether this is an input, or in a folder that is one; a terminal may be both."""
        if self.kind == stat.S_IFCHR:
            return False
        with contextlib.suppress(OSError):
            if name != "-" and Path(os.path.realpath(name)) in self.target.parents:
                return os.path.isdir(name)
            return self.status is not None and self._is_read(name, self.status)
        return False

    @staticmethod
    def _is_read(name: str, status: os.stat_result) -> bool:
        """Whether the file of this status is an input; links in a folder may lead to it."""
        if name == "-" or not os.path.isdir(name):
            return os.path.samestat(status, os.stat(0 if name == "-" else name))
        paths = (os.path.join(place, file) for place, _, files in os.walk(name) for file in files)
        return any(
            os.path.samestat(status, os.stat(path)) for path in filter(os.path.isfile, paths)
        )


def check_outputs(outputs: Sequence[Output], inputs: Iterable[StrPath | None]) -> None:
    """Raise InputError unless each output can be written to a file of its own, which is no input.

    The input "-" is standard input. No output is opened: a pipe need not have a reader yet.
    """
    names = [os.fspath(name) for name in inputs if name is not None]
    places: list[tuple[str, _Place]] = []
    for what, path, streamed, is_own in outputs:
        place = _locate(path, streamed=streamed)
        for name in names:
            if place.is_input(name):
                read = "standard input" if name == "-" else name
                raise InputError(
                    f"the output {path} would replace the input {read}, or a part of it; give "
                    f"another name"
                )
        if is_own is not None and place.kind == stat.S_IFREG and not is_own(place.target):
            raise InputError(
                f"{path} exists, and this command writes no such files; give -o {path} to replace "
                f"it, or another name"
            )
        _check_writable(os.fspath(path), place)
        for other, taken in places:
            if place.is_same(taken):
                raise InputError(f"{other} and {what} would both be {path}; give two names")
        places.append((what, place))


@contextlib.contextmanager
def reserved(outputs: Sequence[Output], inputs: Iterable[StrPath | None]) -> Iterator[None]:
    """Check outputs as `check_outputs` does, and keep them from other runs within the block."""
    check_outputs(outputs, inputs)
    with contextlib.ExitStack() as locks:
        for output in outputs:
            place = _locate(output.path, streamed=True)
            if not place.is_stream:
                locks.enter_context(_locked(output.path, place.target))
        yield


@contextlib.contextmanager
def _locked(path: StrPath, target: Path) -> Iterator[None]:
    """Lock a file beside an output; the next run takes over that of a run that was killed."""
    lock = target.with_name(f".{_stem(target)}.lock")
    try:
        _, descriptor = create_locked(lambda: lock, _TO_LOCK | os.O_CREAT, wait=False)
    except BlockingIOError:
        raise InputError(
            f"{path} is being written by another run; wait for its end, or give another name"
        ) from None
    except OSError:  # the file is that of another user
        yield
        return
    TEMPORARY.add(lock)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may be gone
            lock.unlink()
        TEMPORARY.discard(lock)
        os.close(descriptor)


def is_stream(path: StrPath) -> bool:
    """Whether an output at `path` is a device, a pipe or a standard stream, and not replaced."""
    return _locate(path, streamed=True).is_stream


def _check_writable(path: str, place: _Place) -> None:
    """Raise InputError unless the file system lets this process write there."""
    folder = place.target.parent if os.path.islink(path) else Path(path).parent
    if not place.is_stream and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        reason = "cannot be written to; give"
        if not folder.is_dir():
            reason = (
                "is not a directory; give"
                if folder.exists()
                else "does not exist; make it, or give"
            )
        raise InputError(f"the directory {folder} {reason} another place for {path}")
    for above in place.target.parents:
        if any((above / name).is_file() for name in ZARR_METADATA):
            raise InputError(f"{path} would be in the zarr store {above}; give another place")
    if place.kind and not os.access(place.target, os.W_OK):
        raise InputError(
            f"{path} is protected from being written to; give another name, or change its "
            f"permissions"
        )
    if not place.is_stream:
        _try_to_write(path, _temporary(place.target))


def _try_to_write(path: str, temporary: Path) -> None:
    """Make a temporary file of an output: limits of names and of folders show only then."""
    try:
        temporary.touch(0o600, exist_ok=False)
    except OSError as error:
        if error.errno in _FULL:
            error.filename = path
            raise
        raise InputError(
            f"{path} cannot be written ({error.strerror}); give another name"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _locate(path: StrPath, *, streamed: bool) -> _Place:
    """Follow symbolic links; InputError where such an output cannot be written."""
    name = os.fspath(path)
    if name in ("", "-") or name.endswith(os.sep):
        raise InputError(f"the output {name!r} must be a file; give the name of one")
    try:
        place = _Place(Path(os.path.realpath(name)), _status(name))
    except OSError as error:  # links that are a circle, a name that is too long
        raise InputError(
            f"{name} cannot be written ({error.strerror}); give another name"
        ) from None
    if place.is_stream:  # whose real path may be the number of a pipe
        place = place._replace(target=Path(name))
    if place.kind == stat.S_IFDIR or not (place.is_stream or place.kind in (0, stat.S_IFREG)):
        raise InputError(f"{name} is {_KINDS[place.kind]}; give the name of a file")
    if place.is_stream and not streamed:
        raise InputError(
            f"{name} is {_KINDS[place.kind]}, and what goes there has to be a regular file, since "
            f"it is not written from front to back; give another name"
        )
    return place


def _status(path: StrPath) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EBADF):
            return None
        raise


@contextlib.contextmanager
def naming(path: StrPath) -> Iterator[None]:
    """Name the file in an error of the system that names none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


class Stream:
    """An open file that is written from front to back.

    Its errors name it or, where it has no name, are ignored: a command fails if its results are
    lost, and continues if its messages are; the model is worth more. With `escapes`, text from data
    cannot give orders to a terminal.
    """

    def __init__(self, stream: IO[Any], name: str | None, *, escapes: bool = False) -> None:
        self.stream, self.name, self._escapes = stream, name, escapes

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.stream, attribute)

    def write(self, text: Any) -> int:
        """Write all of the text or bytes."""
        shown = "\n".join(map(printable, text.split("\n"))) if self._escapes else text
        self._try(self.stream.write, shown)
        return len(text)

    def flush(self) -> None:
        """Send what was written on its way."""
        self._try(self.stream.flush)

    def _try(self, write: Callable[..., Any], *text: Any) -> None:
        try:
            write(*text)
        except OSError as error:
            if self.name is not None:
                error.filename = self.name
                raise


def exact(stream: Any) -> Any:
    """A standard stream without escapes: for bars, and for predictions that a program reads."""
    return Stream(exact(stream.stream), stream.name) if isinstance(stream, Stream) else stream


def _stem(target: Path) -> str:
    return os.fsdecode(os.fsencode(target.name)[:_LONGEST_STEM])


def _temporary(target: Path) -> Path:
    return target.with_name(f".{_stem(target)}.{os.urandom(4).hex()}.tmp")


@contextlib.contextmanager
def atomic_path(path: StrPath) -> Iterator[Path]:
    """Yield an empty temporary file that replaces `path` when the block ends without exception.

    After an exception, interrupts included, the temporary file is removed and `path` is unchanged.
    The new file has the permissions and, as far as allowed, the owner of the one that it replaces.
    InputError when something else than a regular file is there; an OSError has the name that the
    user knows. Whoever writes to the temporary file names it in errors, see `naming`: reading fails
    in the block, too.
    """
    place = _locate(path, streamed=False)
    target = place.target
    temporary = _temporary(target)
    pattern = rf"\.{re.escape(_stem(target))}\.[0-9a-f]{{8}}\.tmp"
    remove_unlocked(target.parent, pattern, Path.unlink)

    def create() -> Path:
        # Not tempfile.mkstemp: its files are for the owner only, whatever the umask says.
        temporary.touch(0o600 if place.kind else 0o666, exist_ok=False)
        return temporary

    TEMPORARY.add(temporary)
    try:
        _, descriptor = create_locked(create)
        try:
            yield temporary
            flush_to_disk(temporary)
            target = _locate(path, streamed=False).target  # refuses what has appeared meanwhile
            _keep_permissions(temporary, target)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
            os.close(descriptor)
    except OSError as error:
        if error.filename == str(temporary):
            error.filename = str(target)  # the name that the user knows
        raise
    finally:
        TEMPORARY.discard(temporary)
    flush_to_disk(target.parent)


def write_atomic(path: StrPath, data: bytes | memoryview) -> None:
    """Replace the regular file at `path` by `data`; raises as `atomic_path` does."""
    with atomic_path(path) as temporary, naming(temporary):
        temporary.write_bytes(data)


@contextlib.contextmanager
def open_output(path: StrPath, mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """Open an output that is written from front to back: a file, atomically, or a stream.

    `mode` and `options` are those of `open`. A stream receives what is written before an exception.
    Raises as `atomic_path` does; the ``filename`` of an OSError says where.
    """
    place = _locate(path, streamed=True)
    with contextlib.ExitStack() as opened:
        name = path if place.is_stream else opened.enter_context(atomic_path(path))
        with naming(name):
            file = open(_open_stream(place) if place.is_stream else name, mode, **options)
        try:
            escapes = "b" not in mode and file.isatty()
            yield cast("IO[Any]", Stream(file, os.fspath(name), escapes=escapes))
        finally:
            with naming(name):
                file.close()


def write_output(path: StrPath, data: bytes) -> None:
    """Write `data` to a file, atomically, or to a stream; raises as `open_output` does."""
    with open_output(path, "wb") as file:
        file.write(data)


def open_growing(path: StrPath, *, append: bool = False) -> IO[str]:
    """Open text that others may read while it grows line by line; it is not written atomically.

    A file is emptied unless `append`. InputError for one that another process writes to.
    """
    place = _locate(path, streamed=True)
    if place.is_stream:
        return open(_open_stream(place), "w", encoding="utf-8", buffering=1)
    file = open(place.target, "a", encoding="utf-8", buffering=1)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed
    except BlockingIOError:
        file.close()
        raise InputError(f"{path} is being written by another run; give another name") from None
    except OSError:
        pass  # not every file system has locks
    if not append:
        file.truncate(0)
    return file


def _open_stream(place: _Place) -> int:
    """Descriptor of a device, a pipe or a standard stream, which is not truncated."""
    if place.descriptor is not None:
        return os.dup(place.descriptor)  # which keeps its position
    return os.open(place.target, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)


def _keep_permissions(temporary: Path, target: Path) -> None:
    """Give a temporary file the owner and permissions of the file that it will replace."""
    old = _status(target)
    if old is None:
        return
    for owner in ((-1, old.st_gid), (old.st_uid, -1)):
        with contextlib.suppress(OSError):  # only root may give files away
            os.chown(temporary, *owner)
    with contextlib.suppress(OSError):  # not every file system has permissions
        os.chmod(temporary, stat.S_IMODE(old.st_mode))


def flush_to_disk(path: Path) -> None:
    """Wait until what was written to a file is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Each is locked as long as it is in use, and those that a killed process left are removed by the
# next one. The system releases the lock however the process ends; process ids would not do, since
# they are reused and differ between containers.


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a new directory under TMPDIR, private to this user; it is removed afterwards."""
    remove_abandoned()
    path, descriptor = create_locked(lambda: Path(tempfile.mkdtemp(prefix=_SCRATCH)))
    TEMPORARY.add(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        TEMPORARY.discard(path)
        os.close(descriptor)


def remove_abandoned() -> None:
    """Remove the scratch directories of this user whose process has died."""
    with contextlib.suppress(OSError):  # a read-only container has no folder for temporary files
        remove_unlocked(Path(tempfile.gettempdir()), rf"{_SCRATCH}\w{{8}}", _remove_own_directory)


def _remove_own_directory(path: Path) -> None:
    status = path.stat()
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700:
        shutil.rmtree(path, ignore_errors=True)


def create_locked(
    create: Callable[[], Path], flags: int = _TO_LOCK, wait: bool = True
) -> tuple[Path, int]:
    """Lock the file or directory that `create` makes, until the descriptor is closed.

    Unless `wait`, BlockingIOError is raised if another descriptor has the lock.
    """
    while True:
        path = create()
        with contextlib.suppress(FileNotFoundError):  # removed by another process before the lock
            descriptor = os.open(path, flags, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                os.close(descriptor)
                raise
            except OSError:
                pass  # not every file system has locks
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    return path, descriptor
            os.close(descriptor)


def remove_unlocked(folder: Path, pattern: str, remove: Callable[[Path], None]) -> None:
    """Remove what is named as `pattern` and not locked; leave symbolic links alone."""
    with contextlib.suppress(OSError):
        for name in filter(re.compile(pattern).fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):
                descriptor = os.open(folder / name, _TO_LOCK)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(folder / name)
                finally:
                    os.close(descriptor)
