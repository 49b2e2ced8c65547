"""Input that is cut, changed or replaced before or during a run, and rows of no use."""

import os
import shutil

import h5py
import numpy as np
import pytest

from ooc_fw.convert import writer as writer_module
from ooc_fw.data import converted as checksums
from ooc_fw.model.record import load_model
from ooc_fw.solver.surroundings import Checkpoint
from tests.support.files import write_dense, write_sparse
from tests.support.methods import grid


@pytest.fixture
def model(model_file, tmp_path):
    """A model that a failing run must leave as it is."""
    path = tmp_path / "m.h5"
    shutil.copy(model_file, path)
    return path


@pytest.fixture
def refused(ooc_fw, model):
    """Run a command that has to fail with one sentence and leave the model alone."""
    before = model.read_bytes()

    def run(command, *arguments, says=()):
        out = ("-o", model, "--quiet") if command == "train" else ()
        ooc_fw(command, *arguments, *out).assert_refused(*map(str, says))
        assert model.read_bytes() == before
        assert not list(model.parent.glob(".*"))

    return run


KINDS = "dense", "sparse", "npy"


@pytest.fixture(params=grid(KINDS, quick=1))
def data(request, ooc_fw, table, text_file, tmp_path, monkeypatch):
    """A tiny file in several chunks of several stretches, and the arguments it is trained with."""
    if request.param == "npy":
        np.save(tmp_path / "data.npy", table.X)
        np.save(tmp_path / "y.npy", table.y)
        return tmp_path / "data.npy", ("--labels", tmp_path / "y.npy")
    monkeypatch.setattr(checksums, "STRETCH_BYTES", 200)
    monkeypatch.setattr(writer_module, "CHUNK_BYTES", 800)
    path = tmp_path / "data.h5"
    ooc_fw("convert", text_file, path, f"--{request.param}", "--quiet").done()
    return path, ()


# -- before a run --------------------------------------------------------------------------------


def test_cut_before_the_run(refused, data):
    path, options = data
    whole = path.read_bytes()
    for length in [*range(0, len(whole), len(whole) // 6), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refused("train", path, *options, says=[path])


@pytest.mark.parametrize("data", grid(["dense", "sparse"], quick=1), indirect=True)
def test_a_bit_changed_before_the_run(ooc_fw, data, model):
    """Found, or it was none of the numbers; there is nothing to compare .npy files with."""
    path, options = data
    whole = path.read_bytes()
    train = "train", path, *options, "--max-iter", 20
    ooc_fw(*train, "-o", model, "--quiet").done()
    expected = model.read_bytes()
    rng = np.random.default_rng(0)
    n_found = 0
    for place in rng.integers(len(whole), size=25).tolist():
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        outcome = ooc_fw(*train, "-o", model, "--quiet")
        assert model.read_bytes() == expected
        if outcome.status != 0:
            outcome.assert_refused(str(path))
            n_found += 1
    assert n_found > 0


# -- during a run --------------------------------------------------------------------------------


def cut(path):
    os.truncate(path, path.stat().st_size * 2 // 3)


def rot(path):
    """Flip a bit of a number; size and time of change stay as they are."""
    with h5py.File(path) as file:
        values = file["X"] if isinstance(file["X"], h5py.Dataset) else file["X/data"]
        begin = values.id.get_chunk_info(values.id.get_num_chunks() - 1).byte_offset
    stamps = path.stat()
    with open(path, "r+b") as file:
        file.seek(begin + 9)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))
    os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))


def replace(path):
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    os.replace(copy, path)


def another_writer(path):
    with open(path, "r+b") as file:
        file.seek(700)
        file.write(b"other")


FW = ("--method", "fw", "--lmo", "sampled", "--max-iter", 20, "--quiet")


CHANGES = [(cut, True), (rot, True), (rot, False), (replace, False), (os.unlink, True)]
CHANGES.append((another_writer, False))


@pytest.mark.parametrize(
    ("data", "change", "first"),
    grid(
        # There is nothing to compare .npy files with.
        [(kind, *one) for kind in KINDS for one in CHANGES if (kind, one[0]) != ("npy", rot)],
        quick=len(CHANGES),
    ),
    indirect=["data"],
)
def test_changed_during_the_run(ooc_fw, data, model, tmp_path, monkeypatch, change, first):
    """After the first checkpoint or before the last pass: an error, and the checkpoint is good."""
    path, options = data
    whole, before, stamps = path.read_bytes(), model.read_bytes(), path.stat()
    train = "train", path, *options, *FW
    saving = "--checkpoint", tmp_path / "run.ckpt", "--checkpoint-every", 0.0001
    fresh, resumed = tmp_path / "fresh.h5", tmp_path / "resumed.h5"
    ooc_fw(*train, "-o", fresh).done()
    save, iterations = Checkpoint.save, []

    def saving_and_changing(self, weights, draws):
        save(self, weights, draws)
        iterations.append(draws.iteration)
        if len(iterations) == 1 if first else iterations.count(20) == 1:
            change(path)

    monkeypatch.setattr(Checkpoint, "save", saving_and_changing)
    outcome = ooc_fw(*train, *saving, "-o", model)
    outcome.assert_refused(f"{path} is damaged: X" if change is rot else str(path))
    assert model.read_bytes() == before
    path.write_bytes(whole)  # as it was, including its time of change
    os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    ooc_fw(*train, "--resume", tmp_path / "run.ckpt", "-o", resumed).done()
    assert load_model(resumed).status == load_model(fresh).status


# -- rows that are of no use ---------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_dense, write_sparse])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite(refused, table, tmp_path, write, value):
    for row in (0, 97, 199):
        X = table.X.copy()
        X[row, 2] = value
        path = write(tmp_path / "data.h5", X, table.y)
        refused("train", path, says=[f"{path}: row {row} holds a value in column 2"])


@pytest.mark.process
def test_a_compression_that_is_not_installed(nursery, table, tmp_path, model):
    path = write_dense(tmp_path / "data.h5", table.X, table.y)
    with h5py.File(path, "a") as file:
        del file["X"]
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_chunk(table.X.shape)
        made.set_filter(40_000, h5py.h5z.FLAG_OPTIONAL, (1,))
        space = h5py.h5s.create_simple(table.X.shape)
        h5py.h5d.create(file.id, b"X", h5py.h5t.IEEE_F32LE, space, made)
        file["X"].id.write_direct_chunk((0, 0), b"packed", filter_mask=0)
    before = model.read_bytes()
    for command in (("train", path, "-o", model, "--quiet"), ("info", path)):
        nursery.run(*command).assert_failed(str(path), "plugin")
    assert model.read_bytes() == before
