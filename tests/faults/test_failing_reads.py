"""The Nth read fails, or ends early, for every N: a sentence with the file, or the same result.

Arrays that are not compressed are read by `os.preadv`, all else in HDF5 files by the library, which
opens files for itself: there the failure is injected into what h5py hands out. Text comes from the
raw file below Python's buffer.
"""

import errno
import io
import itertools
import os

import h5py
import numpy as np
import pytest

from ooc_fw.convert import text as text_module
from ooc_fw.data import formats
from tests.support.files import write_dense, write_sparse
from tests.support.methods import grid


class Faults:
    """Counts reads, of which read `number` is spoiled."""

    def __init__(self, number):
        self.number, self.seen = number, 0

    def next_is_bad(self):
        self.seen += 1
        return self.seen - 1 == self.number


def broken():
    return OSError(errno.EIO, os.strerror(errno.EIO))


def spoil_preadv(patch, faults, kind):
    read = os.preadv

    def preadv(descriptor, buffers, offset):
        if not faults.next_is_bad():
            return read(descriptor, buffers, offset)
        if kind == "error":
            raise broken()
        if kind == "end":
            return 0
        (buffer,) = buffers
        return read(descriptor, [buffer[: max(1, len(buffer) // 3)]], offset)

    patch.setattr(os, "preadv", preadv)


def spoil_h5py(patch, faults, kind):
    read = h5py.Dataset.__getitem__

    def getitem(self, *key, **options):
        on_disk = self.file.driver == "sec2"  # models are put together in memory
        if on_disk and faults.next_is_bad():
            raise OSError("Can't synchronously read data (file read failed: errno = 5)")
        return read(self, *key, **options)

    patch.setattr(h5py.Dataset, "__getitem__", getitem)


def spoil_text(patch, faults, kind):
    class Raw(io.FileIO):
        def readinto(self, buffer):
            if not faults.next_is_bad():
                return super().readinto(buffer)
            if kind == "error":
                raise broken()
            return super().readinto(memoryview(buffer)[: max(1, len(buffer) // 3)])

    patch.setattr(text_module, "open_bytes", lambda path: io.BufferedReader(Raw(path), 256))


def every_read(ooc_fw, monkeypatch, spoil, kind, command, outputs, name):
    """Run a command with read 0, 1, 2 ... spoiled until there are no more reads."""
    for path in outputs:
        path.unlink(missing_ok=True)
    ooc_fw(*command).done()
    expected = [path.read_bytes() for path in outputs]
    n_failed = 0
    for number in itertools.count():
        for path in outputs:
            path.write_bytes(b"older")
        faults = Faults(number)
        with monkeypatch.context() as patch:
            spoil(patch, faults, kind)
            outcome = ooc_fw(*command)
        if outcome.status == 0:
            assert [path.read_bytes() for path in outputs] == expected
            if faults.seen <= number:
                break
        else:
            n_failed += 1
            assert outcome.status in (2, 3), outcome
            assert outcome.err.count("\n") == 1, outcome.err
            assert str(name) in outcome.err
            assert outcome.out == ""
            assert [path.read_bytes() for path in outputs] == [b"older"] * len(outputs)
    assert number > 0
    return number, n_failed


@pytest.fixture
def data(request, table, tmp_path):
    """A tiny file of a kind, the functions its rows are read by, and what messages name."""
    X, y = table.X[:60], table.y[:60]
    path = tmp_path / "data.h5"
    ways = [spoil_preadv, spoil_h5py]
    if request.param == "npy":
        np.save(tmp_path / "data.npy", X)
        np.save(tmp_path / "y.npy", y)
        return [tmp_path / "data.npy", "--labels", tmp_path / "y.npy"], ways[:1], tmp_path
    storage = {"chunked": {"chunks": (7, 4)}, "gzip": {"chunks": (7, 4), "compression": "gzip"}}
    write = write_sparse if request.param == "sparse" else write_dense
    write(path, X, y, **storage.get(request.param, {}))
    return [path], ways if request.param == "gzip" else ways[:1], path


KINDS = pytest.mark.parametrize(
    ("data", "kind"),
    grid(
        [("gzip", "error"), ("npy", "short"), ("sparse", "end"), ("dense", "error")]
        + [("chunked", "short"), ("dense", "end"), ("sparse", "error"), ("gzip", "short")]
        + [("npy", "error"), ("chunked", "end")]
    ),
    indirect=["data"],
)


@KINDS
def test_training(ooc_fw, data, tmp_path, monkeypatch, kind):
    files, ways, name = data
    model = tmp_path / "m.h5"
    train = "train", *files, "-o", model, "--quiet", "--threads", 1, "--max-iter", 5
    for spoil in ways:
        if spoil is spoil_h5py and kind != "error":
            continue  # the library reads until it has all, or fails
        number, n_failed = every_read(ooc_fw, monkeypatch, spoil, kind, train, [model], name)
        assert n_failed == (0 if kind == "short" else number)


@pytest.mark.parametrize("kind", ["error", "short"])
def test_conversion(ooc_fw, table, write_text, tmp_path, monkeypatch, kind):
    text = write_text(table.X[:60], table.y[:60])
    out, held = tmp_path / "out.h5", tmp_path / "arrays"
    convert = "convert", text, out, "--quiet"
    ooc_fw(*convert)

    def run(*arguments):
        """Compare arrays: files hold the time at which they were made."""
        before = out.read_bytes()
        outcome = ooc_fw(*arguments)
        if outcome.status == 0:
            with h5py.File(out) as file:
                arrays = [file[key][...].tobytes() for key in ("X", "y", "row", "mean")]
            held.write_bytes(b"".join(arrays))
        else:
            assert out.read_bytes() == before
        return outcome

    number, n_failed = every_read(run, monkeypatch, spoil_text, kind, convert, [held], text)
    assert n_failed == (number if kind == "error" else 0)


@KINDS
def test_predictions(ooc_fw, data, tmp_path, monkeypatch, kind):
    """The model or data that cannot be read is named, not the file that was to be written."""
    files, ways, _ = data
    model, out = tmp_path / "m.h5", tmp_path / "predictions.csv"
    ooc_fw("train", *files, "-o", model, "--quiet", "--max-iter", 5).done()

    def run(*arguments):
        outcome = ooc_fw(*arguments)
        assert str(out) not in outcome.err
        return outcome

    for spoil in ways:
        if spoil is spoil_h5py and kind != "error":
            continue
        predict = "predict", model, files[0], "-o", out, "--quiet"
        every_read(run, monkeypatch, spoil, kind, predict, [out], tmp_path)


def test_predictions_from_text(ooc_fw, table, write_text, model_file, tmp_path, monkeypatch):
    text, out = write_text(table.X[:60], table.y[:60]), tmp_path / "predictions.csv"
    predict = "predict", model_file, text, "-o", out, "--quiet"
    number, n_failed = every_read(
        ooc_fw, monkeypatch, spoil_text, "error", predict, [out], f"{text} cannot be read (Input"
    )
    assert n_failed == number


@pytest.mark.parametrize("place", ["read_head", "is_hdf5"])
def test_a_look_at_the_format(ooc_fw, data_file, model_file, tmp_path, monkeypatch, place):
    def fail(_):
        raise broken()

    class Raw(io.FileIO):
        readinto = read = readall = lambda *_: fail(_)

    if place == "is_hdf5":
        monkeypatch.setattr(h5py, "is_hdf5", fail)
    else:
        monkeypatch.setattr(formats, "open_bytes", lambda path: io.BufferedReader(Raw(path), 256))
    outcome = ooc_fw("predict", model_file, data_file, "-o", tmp_path / "p.csv")
    outcome.assert_refused(f"{data_file} cannot be read (Inp")
