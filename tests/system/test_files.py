"""Outputs: whole or not at all, never in place of an input, a device or another run's output."""

import os
import stat
import tempfile
from contextlib import contextmanager, nullcontext

import pytest

from ooc_fw.system.errors import InputError
from ooc_fw.system.files import (
    Output,
    _temporary,
    atomic_path,
    check_outputs,
    open_growing,
    scratch_directory,
    write_atomic,
)

NO_FILE = "is a folder, a device or a stream"


def output(path):
    """An output that may replace any file."""
    return Output("model", path, is_own=bool)


@pytest.mark.parametrize(("name", "mode"), [("model.h5", 0o600), ("x" * 255, 0o664)])
def test_a_new_file_has_usual_permissions_and_keeps_those_it_is_given(tmp_path, name, mode):
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
    fails = nullcontext() if error is None else pytest.raises(error)
    with path.open("rb") as reader:
        with fails, atomic_path(path) as temporary:
            temporary.write_bytes(b"after")
            assert path.read_bytes() == b"before"
            if error is not None:
                raise error
        assert reader.read() == b"before"  # whoever reads the old file has all of it
    assert path.read_bytes() == (b"after" if error is None else b"before")
    assert os.listdir(tmp_path) == ["out"]


def test_content_is_on_the_disk_before_its_name_is_and_then_the_name(tmp_path, monkeypatch):
    """Else a power cut could leave an empty file under the name of the old one."""
    path, done, replace = tmp_path / "out", [], os.replace

    def fsync(descriptor):
        at_folder = os.path.samestat(os.fstat(descriptor), tmp_path.stat())
        done.append("folder" if at_folder else os.pread(descriptor, 99, 0))

    def replace_noted(*names):
        done.append("replace")
        replace(*names)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace_noted)
    write_atomic(path, b"content")
    assert done == [b"content", "replace", "folder"]


def test_the_target_of_symbolic_links_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to("target")
    for data in (b"new", b"replaced"):
        write_atomic(tmp_path / "link", data)
        assert (tmp_path / "target").read_bytes() == data
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_regular_files_are_replaced(tmp_path, make):
    node, link, late = tmp_path / "node", tmp_path / "link", tmp_path / "late"
    make(node)
    link.symlink_to("node")
    before = node.lstat()
    for path in (node, link):
        with pytest.raises(InputError, match=f"{path} {NO_FILE}"):
            write_atomic(path, b"data")
        with pytest.raises(InputError, match=f"{path} {NO_FILE}"):
            check_outputs([output(path)], [])
    with pytest.raises(InputError, match=NO_FILE), atomic_path(late):
        make(late)  # while the output is written
    assert (node.lstat().st_mode, node.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert set(os.listdir(tmp_path)) == {"node", "link", "late"}


@contextmanager
def as_stream(number, path):
    """Let a standard stream be a file."""
    before = os.dup(number)
    try:
        with path.open("a+") as file:
            os.dup2(file.fileno(), number)
        yield
    finally:
        os.dup2(before, number)
        os.close(before)


def test_files_behind_standard_streams_are_not_replaced(tmp_path):
    """As by ``predict -o data > data`` and ``convert - data < data``."""
    path = tmp_path / "data"
    with as_stream(1, path), pytest.raises(InputError, match=NO_FILE):
        write_atomic(path, b"labels")
    words = "would replace the input standard input"
    with as_stream(0, path), pytest.raises(InputError, match=words):
        check_outputs([output(path)], ["-"])


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_files_in_a_folder_are_inputs(tmp_path, link):
    rows, folder = tmp_path / "rows", tmp_path / "folder"
    (folder / "part").mkdir(parents=True)
    rows.write_bytes(b"rows")
    link(rows, folder / "part" / "0")
    (folder / "part" / "again").symlink_to(folder)
    with pytest.raises(InputError, match=f"{rows} would replace the input {folder}/part/0"):
        check_outputs([output(rows)], [folder])
    check_outputs([output(rows)], [])


def test_what_killed_processes_left_is_removed_and_what_others_write_stays(tmp_path):
    for name in "x[1]", "y", "z" * 255:
        path = tmp_path / name
        left, other = _temporary(path), tmp_path / ".w.00000000.tmp"
        left.write_bytes(b"half")
        other.write_bytes(b"half")
        with atomic_path(path) as temporary:
            check_outputs([output(path)], [])
            assert temporary.exists()
            assert (left.exists(), other.exists()) == (False, True)


def test_a_file_that_grows_has_one_writer(tmp_path):
    with open_growing(tmp_path / "log"):
        with pytest.raises(OSError, match="another run is writing it"):
            open_growing(tmp_path / "log", append=True)
    open_growing(tmp_path / "log").close()


def test_a_scratch_directory_is_private_and_goes_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_directory() as path:
        assert path.parent == tmp_path
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "rows.h5").write_bytes(b"0")
    assert list(tmp_path.iterdir()) == []
