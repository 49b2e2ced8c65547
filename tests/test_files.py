from __future__ import annotations

import os
import stat

import pytest

from ooc_fw import files
from ooc_fw.files import atomic_path, write_atomic


def test_write_atomic_creates_and_replaces(tmp_path):
    path = tmp_path / "model.h5"
    for data in (b"old", b"new and longer"):
        write_atomic(path, data)
        assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["model.h5"]


def test_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_atomic(tmp_path / "atomic", b"")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_changes_after_an_error(tmp_path, error):
    path = tmp_path / "out"
    path.write_bytes(b"before")

    def fail() -> None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["out"]


def test_old_file_is_there_until_the_end(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"before")
    with atomic_path(path) as temporary:
        assert temporary.parent == tmp_path
        temporary.write_bytes(b"after")
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"


def test_symbolic_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    write_atomic(link, b"data")
    assert link.is_symlink()
    assert target.read_bytes() == b"data"


def test_missing_directory_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "missing" / "out", b"")


def test_long_files_leave_the_page_cache_as_they_grow(tmp_path, monkeypatch):
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


def test_dropping_is_only_a_hint(tmp_path, monkeypatch):
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


def test_what_the_dead_left_is_removed_and_nothing_else(tmp_path):
    path = tmp_path / "out"
    others = {".out.0123456.tmp", ".other.01234567.tmp", "out.01234567.tmp", ".out.0123456z.tmp"}
    for name in {*others, ".out.01234567.tmp"}:
        (tmp_path / name).write_bytes(b"half")
    with atomic_path(path) as first:
        write_atomic(path, b"second")
        assert first.exists()  # its writer lives
        first.write_bytes(b"first")
    assert path.read_bytes() == b"first"
    assert set(os.listdir(tmp_path)) == {*others, "out"}


def test_a_file_taken_for_abandoned_is_created_again(tmp_path, monkeypatch):
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
