"""Directories that cannot be written to, before a run and during one."""

import pkgutil
import shutil
import subprocess

import pytest


@pytest.fixture(params=["read-only file system", "immutable directory"])
def locking(request, tmp_path, small_disk):
    """A directory with something in it, and a function that makes it read-only or writable."""
    if request.param == "read-only file system":
        folder = small_disk(1 << 20)
        on, off = (["mount", "-o", f"remount,{how}", str(folder)] for how in ("ro", "rw"))
    else:  # what permissions do not say to root
        folder = tmp_path / "folder"
        folder.mkdir()
        on, off = (["chattr", flag, str(folder)] for flag in ("+i", "-i"))
        if shutil.which("chattr") is None or subprocess.run(on, capture_output=True).returncode:
            pytest.skip("chattr +i is not possible here")
        subprocess.run(off, check=True)

    def lock(locked=True):
        subprocess.run(on if locked else off, check=True, capture_output=True)

    yield folder, lock
    lock(False)


def test_before_the_run(ooc_fw, locking, data_file, model_file, text_file):
    folder, lock = locking
    out = folder / "old.h5"
    shutil.copy(model_file, out)
    lock()
    commands = [
        ("train", data_file, "-o", out, "--quiet"),
        ("train", data_file, "-o", model_file, "--checkpoint", folder / "run.ckpt", "--quiet"),
        ("train", data_file, "-o", model_file, "--log", folder / "run.log", "--quiet"),
        ("predict", model_file, data_file, "-o", folder / "labels.txt"),
        ("convert", text_file, folder / "new.h5"),
    ]
    before = model_file.read_bytes()
    for command in commands:
        ooc_fw(*command).assert_refused("cannot be written (", str(folder))
        assert out.read_bytes() == model_file.read_bytes() == before
        assert [path.name for path in folder.iterdir()] == ["old.h5"]


@pytest.mark.process
@pytest.mark.parametrize("command", ["train", "convert"])
def test_during_the_run(ooc_fw, locking, data_file, text_file, tmp_path, monkeypatch, command):
    folder, lock = locking
    kept, out = tmp_path / "kept", folder / "out.h5"
    kept.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(kept))
    given, moment = {
        "train": (data_file, "ooc_fw.model.record.write_atomic"),
        "convert": (text_file, "ooc_fw.convert.convert.atomic_path"),
    }[command]
    run = command, given, *(["-o"] if command == "train" else []), out, "--quiet"
    ooc_fw(*run).done()
    before = out.read_bytes()
    original = pkgutil.resolve_name(moment)

    def locked(*arguments):
        try:
            lock()
        except subprocess.CalledProcessError:
            pytest.skip("a file system with open temporary files cannot become read-only")
        return original(*arguments)

    monkeypatch.setattr(moment, locked)
    outcome = ooc_fw(*run)
    assert outcome.status == 3
    if command == "train":
        (other,) = kept.rglob(out.name)
        assert f"{out} cannot be written (" in outcome.err
        assert f"the model is in {other}" in outcome.err
        assert other.read_bytes() == before
    else:
        assert f"ooc-fw: {out}: " in outcome.err
        assert outcome.err.count("\n") == 1
    assert list(folder.iterdir()) == [out]
    assert out.read_bytes() == before
