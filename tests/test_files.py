from __future__ import annotations

import os
import stat

import pytest

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
