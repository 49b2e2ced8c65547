"""Outputs that cannot be written: one sentence with the file, and what was there stays there."""

import os
import shutil
import subprocess
import sys

import pytest

from ooc_fw import load_model

FULL = "File too large"  # what a limit on the size of files is called
NO_SPACE = "No space left on device"
OOC_FW = (sys.executable, "-m", "ooc_fw")


def test_a_directory_that_cannot_be_written_to(ooc_fw, tmp_path, data_file, model_file, text_file):
    """It is refused before a run."""
    folder, before = tmp_path / "folder", model_file.read_bytes()
    folder.mkdir()
    out = folder / "old.h5"
    shutil.copy(model_file, out)
    lock = ["chattr", "+i", str(folder)]  # permissions mean nothing to root
    if shutil.which("chattr") is None or subprocess.run(lock, capture_output=True).returncode:
        pytest.skip("chattr +i is not possible here")
    try:
        for command in (
            ("train", data_file, "-o", out, "--quiet"),
            ("train", data_file, "-o", model_file, "--checkpoint", folder / "run.ckpt", "--quiet"),
            ("train", data_file, "-o", model_file, "--log", folder / "run.log", "--quiet"),
            ("predict", model_file, data_file, "-o", folder / "labels.txt"),
            ("convert", text_file, folder / "new.h5"),
        ):
            ooc_fw(*command).assert_refused("cannot be written (", str(folder))
            assert out.read_bytes() == model_file.read_bytes() == before
            assert list(folder.iterdir()) == [out]
    finally:
        subprocess.run(["chattr", "-i", str(folder)], check=True)


@pytest.mark.process
@pytest.mark.parametrize(
    "command",
    [
        "train {data} --C 5 -o {out}",
        "predict {model} {text} -o {out}",
        "convert {text} {out}",
        "convert {text} {out} --sparse --no-shuffle",
    ],
)
def test_a_disk_that_is_full_at_some_byte(
    nursery, data_file, model_file, text_file, tmp_path, command
):
    """At the first one, amid them, and at the last."""
    out = tmp_path / "out"
    files = {"data": data_file, "model": model_file, "text": text_file, "out": out}
    run = [*command.format(**files).split(), "--quiet"]
    assert nursery.run(*run).status == 0
    older = out.read_bytes()
    for n_bytes in (0, len(older) // 2, len(older) - 1):
        nursery.run(*run, file_bytes=n_bytes).assert_failed(f"{out}: {FULL}", status=(3,))
        assert out.read_bytes() == older
    out.unlink()
    nursery.run(*run, file_bytes=len(older) // 2).assert_failed(f"{out}: {FULL}", status=(3,))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_log_on_a_full_disk(nursery, data_file, tmp_path, small_disk):
    """The run goes on without it."""
    out, log = tmp_path / "m.h5", small_disk(4096) / "log"
    log.with_name("other").write_bytes(bytes(4096))
    ended = nursery.run("train", data_file, "-o", out, "--log", log, "--quiet")
    assert (ended.status, ended.err.count("\n")) == (0, 1)
    assert f"the log {log} cannot be written ({NO_SPACE})" in ended.err
    load_model(out)


@pytest.mark.process
def test_training_on_a_full_disk(nursery, data_file, small_disk, tmp_path):
    """The model is kept elsewhere, and what the disk holds stays as it is."""
    folder, kept = small_disk(1 << 20), tmp_path / "kept"
    kept.mkdir()
    out = folder / "m.h5"
    train = "train", data_file, "-o", out, "--C", 5, "--quiet"
    assert nursery.run(*train).status == 0
    before = out.read_bytes()
    filler = folder / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(folder).free))
    elsewhere = f"import tempfile; tempfile.tempdir = {str(kept)!r}"
    ended = nursery.run(*train, prelude=elsewhere)
    (other,) = kept.rglob("m.h5")
    assert ended.status == 3
    assert f"{out} cannot be written ({NO_SPACE}); the model is in {other}" in ended.err
    assert other.read_bytes() == out.read_bytes() == before


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "unbuffered"), [("info {model}", ""), ("info {model}", "1"), ("--help", "")]
)
def test_a_full_disk_under_standard_output_is_named(model_file, full_device, unbuffered, arguments):
    with full_device.open("w") as full:
        program = subprocess.run(
            [*OOC_FW, *arguments.format(model=model_file).split()],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
        )
    assert (program.returncode, program.stderr) == (3, f"ooc-fw: standard output: {NO_SPACE}\n")
