"""A disk that is full at any moment: one sentence with the file, and what was there stays there."""

import os
import shutil
import subprocess
import sys

import pytest

from ooc_fw.model.record import load_model

pytestmark = pytest.mark.process

FULL = "File too large"  # what a limit on the size of files is called
NO_SPACE = "No space left on device"
OOC_FW = (sys.executable, "-m", "ooc_fw")


def files_in(folder):
    return {path.name for path in folder.iterdir()}


def test_model(nursery, data_file, model_file, tmp_path):
    out = tmp_path / "m.h5"
    train = "train", data_file, "-o", out, "--C", 5, "--quiet"
    size = model_file.stat().st_size
    for limit, older in ((0, False), (size - 1, False), (size - 1, True)):
        if older:
            shutil.copy(model_file, out)
        nursery.run(*train, file_bytes=limit).assert_failed(f"{out}: {FULL}", status=(3,))
        assert files_in(tmp_path) == ({"m.h5"} if older else set())
    assert out.read_bytes() == model_file.read_bytes()
    assert nursery.run(*train, file_bytes=size).status == 0
    load_model(out)


def test_predictions(nursery, data_file, text_file, model_file, tmp_path):
    out = tmp_path / "predictions"
    for data in (text_file, data_file):
        ended = nursery.run("predict", model_file, data, "-o", out, "--quiet", file_bytes=20)
        ended.assert_failed(f"{out}: {FULL}", status=(3,))
        assert files_in(tmp_path) == set()


def test_log(nursery, data_file, tmp_path, small_disk):
    """The run goes on without it."""
    out, log = tmp_path / "m.h5", small_disk(4096) / "log"
    log.with_name("other").write_bytes(bytes(4096))
    ended = nursery.run("train", data_file, "-o", out, "--log", log, "--quiet")
    assert ended.status == 0
    assert ended.err.count("\n") == 1
    assert f"the log {log} cannot be written ({NO_SPACE})" in ended.err
    load_model(out)


@pytest.mark.parametrize("options", [(), ("--sparse", "--no-shuffle")])
def test_conversion(nursery, short_text, tmp_path, options):
    """At the first byte set aside, amid them, and at any part of the output."""
    out, expected = tmp_path / "out.h5", tmp_path / "expected.h5"
    assert nursery.run("convert", short_text, expected, "--quiet", *options).status == 0
    older = expected.read_bytes()
    for limit in (0, len(older) // 2, len(older) - 1):
        out.write_bytes(older)
        ended = nursery.run("convert", short_text, out, *options, file_bytes=limit)
        ended.assert_failed(f"{out}: {FULL}", status=(3,))
        assert out.read_bytes() == older
        assert files_in(tmp_path) == {"out.h5", "expected.h5"}


def test_training_on_a_full_disk(nursery, data_file, small_disk, tmp_path):
    """The model is kept elsewhere, and what the disk holds stays as it is."""
    folder, kept = small_disk(1 << 20), tmp_path / "kept"
    kept.mkdir()
    data, out, checkpoint = folder / "d.h5", folder / "m.h5", folder / "run.ckpt"
    shutil.copyfile(data_file, data)
    train = "train", data, "-o", out, "--method", "fw", "--max-iter", 300, "--quiet"
    saving = "--checkpoint", checkpoint, "--checkpoint-every", 0.001
    assert nursery.run(*train, *saving).status == 0
    before = out.read_bytes(), checkpoint.read_bytes()
    filler = folder / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(folder).free))
    elsewhere = f"import tempfile; tempfile.tempdir = {str(kept)!r}"
    ended = nursery.run(*train, *saving, prelude=elsewhere)
    (other,) = kept.rglob("m.h5")
    assert ended.status == 3
    assert f"{out} cannot be written ({NO_SPACE}); the model is in {other}" in ended.err
    assert ended.err.count(f"the checkpoint {checkpoint} cannot be written ({NO_SPACE})") == 1
    assert other.read_bytes() == before[0]
    assert (out.read_bytes(), checkpoint.read_bytes()) == before
    filler.unlink()
    assert nursery.run(*train, "--resume", checkpoint).status == 0


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


def test_a_full_disk_under_messages_costs_no_model(data_file, tmp_path, full_device):
    output = tmp_path / "m.h5"
    train = [*OOC_FW, "train", data_file, "-o", output]
    with full_device.open("w") as full:
        program = subprocess.run(train, stdout=subprocess.PIPE, stderr=full, text=True)
    assert (program.returncode, program.stdout) == (0, f"{output}\n")
    assert output.exists()
