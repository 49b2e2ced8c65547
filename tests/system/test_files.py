"""Outputs: whole or not at all, never in place of an input, a device or another run's output."""

import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import nullcontext

import pytest

from ooc_fw.system.errors import InputError
from ooc_fw.system.files import (
    Output,
    atomic_path,
    check_outputs,
    open_growing,
    scratch_directory,
    write_atomic,
)


@pytest.mark.parametrize(("name", "mode"), [("model.h5", 0o600), ("x" * 255, 0o664)])
def test_files_are_created_with_usual_permissions_and_replaced_with_their_own(tmp_path, name, mode):
    (tmp_path / "plain").write_bytes(b"")
    path = tmp_path / name
    write_atomic(path, b"old")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    path.chmod(mode)
    write_atomic(path, b"new and longer")
    assert path.read_bytes() == b"new and longer"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert set(os.listdir(tmp_path)) == {"plain", name}


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_the_old_file_stays_until_the_end_and_after_an_error(tmp_path, error):
    path = tmp_path / "out"
    path.write_bytes(b"before")
    with nullcontext() if error is None else pytest.raises(error), atomic_path(path) as temporary:
        temporary.write_bytes(b"after")
        assert path.read_bytes() == b"before"
        if error is not None:
            raise error
    assert path.read_bytes() == (b"after" if error is None else b"before")
    assert os.listdir(tmp_path) == ["out"]


def test_the_target_of_symbolic_links_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to("other")
    (tmp_path / "other").symlink_to("target")
    for data in (b"new", b"replaced"):
        write_atomic(tmp_path / "link", data)
        assert (tmp_path / "target").read_bytes() == data
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "other").is_symlink()


def test_paths_that_lead_nowhere_are_named_as_they_were_given(tmp_path):
    missing = tmp_path / "missing" / "out"
    with pytest.raises(FileNotFoundError) as raised:
        write_atomic(missing, b"")
    assert raised.value.filename == str(missing)
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for name in (tmp_path / "a", tmp_path / ("x" * 300)):
        with pytest.raises(InputError, match=f"{name} cannot be written"):
            write_atomic(name, b"data")
    for empty in ("", "-", f"{tmp_path}/"):
        with pytest.raises(InputError, match="must be a file"):
            write_atomic(empty, b"data")


@pytest.mark.parametrize("append", [False, True])
def test_a_growing_file_is_emptied_or_goes_on(tmp_path, append):
    path = tmp_path / "log"
    with open_growing(path) as first:
        print("first", file=first)
        print("second", file=first)
    assert path.read_text() == "first\nsecond\n"
    with open_growing(path, append=append) as again:
        print("third", file=again)
    assert path.read_text() == ("first\nsecond\nthird\n" if append else "third\n")


def test_errors_of_the_system_name_the_output(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output") as raised:
        write_atomic(tmp_path / "out", b"bytes")
    assert raised.value.filename == str(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# -- what is not a regular file ------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", ["character device", "pipe", "socket", "directory"])
def test_only_regular_files_are_replaced(tmp_path, kind):
    node, link = tmp_path / "node", tmp_path / "link"
    make_special(node, kind)
    link.symlink_to("node")
    before = node.lstat()
    for path in (node, link):
        with pytest.raises(InputError, match=f"{path} is a folder, a device or a stream"):
            write_atomic(path, b"data")
        with pytest.raises(InputError, match=f"{path} is a folder, a device or a stream"):
            check_outputs([Output("model", path)], [])
    assert (node.lstat().st_mode, node.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert link.is_symlink()
    assert len(os.listdir(tmp_path)) == 2


def test_what_appears_while_a_file_is_written_is_not_replaced(tmp_path):
    path = tmp_path / "out"
    with pytest.raises(InputError, match="is a folder, a device or a stream"), atomic_path(path):
        os.mkfifo(path)
    assert path.is_fifo()
    assert os.listdir(tmp_path) == ["out"]


def test_standard_streams_are_not_replaced(tmp_path):
    """As by ``ooc-fw predict -o /dev/stdout > file``."""
    path, link = tmp_path / "log", tmp_path / "link"
    link.symlink_to("/dev/stdout")
    code = "import sys; from ooc_fw.system.files import write_atomic\n"
    code += "print('before', flush=True); write_atomic(sys.argv[1], b'data')"
    with path.open("w") as file:
        command = [sys.executable, "-c", code, str(link)]
        done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True)
    assert "is a folder, a device or a stream; give the name of a file" in done.stderr
    assert path.read_text() == "before\n"


def test_outputs_are_checked_before_any_work(tmp_path):
    data, link, new = tmp_path / "data", tmp_path / "link", tmp_path / "new"
    data.write_bytes(b"rows")
    link.symlink_to("new")
    model = Output("model", new)
    check_outputs([model, Output("log", tmp_path / "log")], [data, None, "-", "no such file"])
    for outputs, inputs, says in (
        ([model, Output("log", link)], [data], "model and log would both be"),
        ([Output("model", data), Output("log", data)], [data], "replace the input"),
        ([Output("model", tmp_path / "none" / "m.h5")], [data], "No such file or directory"),
        ([model], [tmp_path], "replace the input"),
    ):
        with pytest.raises(InputError, match=says):
            check_outputs(outputs, inputs)
    assert set(os.listdir(tmp_path)) == {"data", "link"}


def test_standard_input_is_an_input_too(tmp_path):
    """As in ``ooc-fw convert - data.txt < data.txt``."""
    path = tmp_path / "data.txt"
    path.write_bytes(b"rows")
    code = "import sys; from ooc_fw.system.files import Output, check_outputs as check\n"
    code += "check([Output('output', sys.argv[1])], ['-'])"
    with path.open() as file:
        command = [sys.executable, "-c", code, str(path)]
        done = subprocess.run(command, stdin=file, capture_output=True, text=True)
    assert "would replace the input standard input" in done.stderr


def test_a_scratch_directory_is_private_and_goes_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_directory() as path:
        assert path.parent == tmp_path
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "rows.h5").write_bytes(b"0")
    assert list(tmp_path.iterdir()) == []
