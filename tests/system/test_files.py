from __future__ import annotations

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from ooc_fw.system import files
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import (
    Output,
    atomic_path,
    check_outputs,
    is_stream,
    open_growing,
    write_atomic,
    write_output,
)


@pytest.mark.parametrize("name", ["model.h5", "x" * 255])
def test_write_atomic_creates_and_replaces(tmp_path, name):
    path = tmp_path / name
    for data in (b"old", b"new and longer"):
        write_atomic(path, data)
        assert path.read_bytes() == data
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_new_files_have_usual_permissions_and_replaced_ones_keep_theirs(tmp_path, mode):
    (tmp_path / "plain").write_bytes(b"")
    write_atomic(tmp_path / "atomic", b"")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic")]
    assert modes[0] == modes[1]
    (tmp_path / "atomic").chmod(mode)
    write_atomic(tmp_path / "atomic", b"new")
    assert stat.S_IMODE((tmp_path / "atomic").stat().st_mode) == mode


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_the_old_file_stays_until_the_end_and_after_an_error(tmp_path, error):
    path = tmp_path / "out"
    path.write_bytes(b"before")

    def write() -> None:
        with atomic_path(path) as temporary:
            assert temporary.parent == tmp_path
            temporary.write_bytes(b"after")
            assert path.read_bytes() == b"before"
            if error is not None:
                raise error

    if error is None:
        write()
    else:
        with pytest.raises(error):
            write()
    assert path.read_bytes() == (b"after" if error is None else b"before")
    assert os.listdir(tmp_path) == ["out"]


def test_the_target_of_symbolic_links_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to("other")
    (tmp_path / "other").symlink_to("target")
    for data in (b"new", b"replaced"):
        write_output(tmp_path / "link", data)
        assert (tmp_path / "target").read_bytes() == data
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "other").is_symlink()


def test_paths_that_lead_nowhere_are_os_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "missing" / "out", b"")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        write_atomic(tmp_path / "a", b"data")


def test_long_files_leave_the_page_cache_as_they_grow(monkeypatch):
    monkeypatch.setattr(files, "KEPT_BYTES", 100)
    monkeypatch.setattr(files, "STEP_BYTES", 10)
    monkeypatch.setattr(files, "WINDOW_BYTES", 30)
    calls = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda _, start, length, advice: calls.append((start, start + length))
    )
    behind = files.DropBehind(-1)
    for end in range(0, 200, 5):
        behind.wrote(end)
    assert min(start for start, _ in calls) == 100  # the beginning stays
    begun, dropped = calls[::2], calls[1::2]
    assert begun == [(start, start + 10) for start in range(100, 190, 10)]
    assert {(start, start + 10) for start in range(100, 160, 10)} <= set(dropped)


def test_dropping_pages_is_only_a_hint(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "KEPT_BYTES", 0)
    monkeypatch.setattr(files, "STEP_BYTES", 1)
    files.DropBehind(-1).wrote(10)  # no such descriptor, no error
    path = tmp_path / "some"
    with path.open("wb", buffering=0) as out:
        behind = files.DropBehind(out.fileno())
        for k in range(50):
            out.write(bytes([k]) * 5000)
            behind.wrote(out.tell())
    assert path.read_bytes() == b"".join(bytes([k]) * 5000 for k in range(50))


def test_only_temporary_files_of_killed_processes_are_removed(tmp_path):
    path = tmp_path / "out"
    others = {".out.0123456.tmp", ".other.01234567.tmp", "out.01234567.tmp", ".out.0123456z.tmp"}
    for name in {*others, ".out.01234567.tmp"}:
        (tmp_path / name).write_bytes(b"half")
    with atomic_path(path) as first:
        write_atomic(path, b"second")
        assert first.exists()  # its process is alive
        first.write_bytes(b"first")
    assert path.read_bytes() == b"first"
    assert set(os.listdir(tmp_path)) == {*others, "out"}


def test_a_temporary_file_that_was_removed_before_its_lock_is_created_again(tmp_path, monkeypatch):
    locks = []

    def flock(file, how):
        if not locks:
            (name,) = os.listdir(tmp_path)
            (tmp_path / name).unlink()
        locks.append(how)

    monkeypatch.setattr(files.fcntl, "flock", flock)
    write_atomic(tmp_path / "out", b"data")
    assert len(locks) == 2
    assert os.listdir(tmp_path) == ["out"]


# -- what is no regular file ---------------------------------------------------------------------


def make_special(path, kind):
    """A node at `path` that nobody may replace."""
    if kind == "character device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
            path.open("w").close()
        except OSError:
            pytest.skip("devices are not allowed here")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    else:
        path.mkdir()


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("kind", ["character device", "pipe", "socket", "directory"])
def test_only_regular_files_are_replaced(tmp_path, kind, linked):
    node = path = tmp_path / "node"
    make_special(node, kind)
    before = node.lstat()
    if linked:
        path = tmp_path / "link"
        path.symlink_to("node")
    for refused in (
        lambda: write_atomic(path, b"data"),
        lambda: check_outputs([Output("model", path)], []),
    ):
        with pytest.raises(InputError, match=f"{path} is a {kind}"):
            refused()
    assert (node.lstat().st_mode, node.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert path.is_symlink() == linked
    assert len(os.listdir(tmp_path)) == 1 + linked


def test_what_appears_while_a_file_is_written_is_not_replaced(tmp_path):
    path = tmp_path / "out"
    with pytest.raises(InputError, match="is a pipe"), atomic_path(path):
        os.mkfifo(path)
    assert path.is_fifo()
    assert os.listdir(tmp_path) == ["out"]


def write_growing(path, line):
    with open_growing(path) as file:
        print(line, file=file)


def test_text_is_written_into_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_outputs([Output("lines", pipe, streamed=True)], [])  # which waits for no reader
    with ThreadPoolExecutor() as pool:
        for write in (lambda: write_output(pipe, b"one\n"), lambda: write_growing(pipe, "one")):
            text = pool.submit(pipe.read_text)
            write()
            assert text.result(timeout=30) == "one\n"
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_text_is_written_into_a_device(tmp_path):
    node = tmp_path / "null"
    make_special(node, "character device")
    check_outputs([Output("lines", node, streamed=True)], [node])  # a terminal may be both
    write_output(node, b"lost")
    assert stat.S_ISCHR(node.stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}", "/proc/thread-self/fd/{}"])
def test_open_files_are_written_at_their_position(tmp_path, name):
    """As by ``ooc-fw predict -o /dev/stdout >> log``."""
    path = tmp_path / "log"
    with path.open("w") as file:
        print("before", file=file, flush=True)
        link = tmp_path / "link"
        link.symlink_to(name.format(file.fileno()))
        assert is_stream(link)
        write_output(link, b"amid\n")
        write_growing(link, "more")
        print("after", file=file)
        with pytest.raises(InputError, match="open file"):
            write_atomic(link, b"data")
    assert path.read_text() == "before\namid\nmore\nafter\n"
    with pytest.raises(InputError, match="is not open"):
        check_outputs([Output("lines", link, streamed=True)], [])
    with path.open() as file, pytest.raises(InputError, match="for reading only"):
        check_outputs([Output("lines", f"/dev/fd/{file.fileno()}", streamed=True)], [])


# -- before any work -----------------------------------------------------------------------------


def test_outputs_are_checked_before_any_work(tmp_path):
    data, link, new = tmp_path / "data", tmp_path / "link", tmp_path / "new"
    data.write_bytes(b"rows")
    link.symlink_to("new")
    model = Output("model", new)
    check_outputs([model, Output("log", tmp_path / "log")], [data, None, "-", "no such file"])
    for outputs, says in (
        ([model, Output("log", link)], "model and log would both be"),
        ([Output("model", data), Output("log", data)], "replace the input"),
        ([Output("model", tmp_path / "none" / "m.h5")], "none does not exist"),
    ):
        with pytest.raises(InputError, match=says):
            check_outputs(outputs, [data])
    assert set(os.listdir(tmp_path)) == {"data", "link"}


def test_standard_input_is_an_input_too(tmp_path):
    """As in ``ooc-fw convert - data.txt < data.txt``."""
    path = tmp_path / "data.txt"
    path.write_bytes(b"rows")
    before = os.dup(0)
    try:
        with path.open() as file:
            os.dup2(file.fileno(), 0)
            with pytest.raises(InputError, match="would replace the input standard input"):
                check_outputs([Output("output", path)], ["-"])
    finally:
        os.dup2(before, 0)
        os.close(before)
