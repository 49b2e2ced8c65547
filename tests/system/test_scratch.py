"""Scratch directories: theirs while they live, gone when they are dead."""

import os
import subprocess
import sys
import tempfile

import pytest

from ooc_fw.system.files import remove_abandoned, scratch_directory

HOLD = (
    "import time; from ooc_fw.system.files import scratch_directory\n"
    "with scratch_directory() as path:\n"
    "    (path / 'rows.h5').write_bytes(b'0' * 100); print(path, flush=True); time.sleep(100)"
)


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_directory_is_private_and_goes_at_the_end(root):
    with scratch_directory() as path:
        assert path.parent == root
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "rows.h5").write_bytes(b"0")
    assert list(root.iterdir()) == []


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(root):
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as other:
        left = other.stdout.readline().strip()
        with scratch_directory() as path:
            assert os.path.exists(left)
            remove_abandoned()
            assert path.exists()
        other.kill()
    assert os.path.exists(left)
    with scratch_directory():
        assert not os.path.exists(left)


def test_what_is_not_ours_is_left_alone(root):
    kept = root / "kept"
    kept.mkdir(mode=0o700)
    (root / "ooc-fw-scratch-linklink").symlink_to(kept)
    (root / "ooc-fw-scratch-12345678").write_bytes(b"a file")
    (root / "ooc-fw-scratch-notes").mkdir(mode=0o700)
    (root / "ooc-fw-scratch-abcdefgh").mkdir()
    (root / "ooc-fw-scratch-abcdefgh").chmod(0o755)
    before = set(root.iterdir())
    remove_abandoned()
    assert set(root.iterdir()) == before
    assert kept.exists()


def test_a_system_without_temporary_files_has_none_that_are_abandoned(monkeypatch):
    def nowhere() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    remove_abandoned()
    with pytest.raises(FileNotFoundError), scratch_directory():
        pass
