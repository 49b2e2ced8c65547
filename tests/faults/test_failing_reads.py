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

from ooc_fw.conversion import text as text_module
from tests.support.files import write_dense, write_sparse
from tests.support.methods import grid


class Faults:
    """Counts reads, of which read `number` fails, is short, or is at the end of the file."""

    def __init__(self, number, kind):
        self.number, self.kind, self.seen = number, kind, 0

    def read(self, read, buffer):
        """Read into a buffer by a function, unless this is the read that is spoiled."""
        self.seen += 1
        if self.seen - 1 != self.number:
            return read(buffer)
        if self.kind == "end":
            return 0
        if self.kind == "short":
            return read(memoryview(buffer)[: max(1, len(buffer) // 3)])
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def spoil_preadv(patch, faults):
    original = os.preadv

    def preadv(descriptor, buffers, offset):
        (buffer,) = buffers
        return faults.read(lambda part: original(descriptor, [part], offset), buffer)

    patch.setattr(os, "preadv", preadv)


def spoil_h5py(patch, faults):
    original = h5py.Dataset.__getitem__

    def getitem(self, *key, **options):
        def read(_):
            return original(self, *key, **options)

        on_disk = self.file.driver == "sec2"  # models are put together in memory
        return faults.read(read, b"") if on_disk else read(b"")

    patch.setattr(h5py.Dataset, "__getitem__", getitem)


def spoil_text(patch, faults):
    class Raw(io.FileIO):
        def readinto(self, buffer):
            return faults.read(super().readinto, buffer)

    patch.setattr(text_module, "open_bytes", lambda path: io.BufferedReader(Raw(path), 256))


def every_read(ooc_fw, monkeypatch, spoil, kind, command, out, said, contents=None):
    """Run a command with read 0, 1, 2 ... spoiled until there are no more reads; how many fail."""
    contents = contents or (lambda path: path.read_bytes())
    ooc_fw(*command).done()
    expected, older = contents(out), out.read_bytes()
    n_failed = 0
    for number in itertools.count():
        faults = Faults(number, kind)
        with monkeypatch.context() as patch:
            spoil(patch, faults)
            outcome = ooc_fw(*command)
        if outcome.status == 0:
            assert contents(out) == expected
            older = out.read_bytes()
            if faults.seen <= number:
                break
        else:
            n_failed += 1
            assert outcome.status in (2, 3), outcome
            assert (outcome.out, outcome.err.count("\n")) == ("", 1), outcome
            assert str(said) in outcome.err
            assert str(out) not in outcome.err
            assert out.read_bytes() == older
    assert number > 0
    assert n_failed == (0 if kind == "short" else number)


@pytest.mark.parametrize(
    ("storage", "spoil", "kind"),
    grid(
        [
            ({"chunks": (7, 4), "compression": "gzip"}, spoil_h5py, "error"),
            ({}, spoil_preadv, "error"),
            ({}, spoil_preadv, "end"),
            ({"chunks": (7, 4)}, spoil_preadv, "short"),
            ("sparse", spoil_preadv, "end"),
            ("sparse", spoil_preadv, "error"),
        ],
        quick=2,
    ),
)
def test_training_and_predictions(ooc_fw, table, tmp_path, monkeypatch, storage, spoil, kind):
    """The data or model that cannot be read is named, not the file that was to be written."""
    data, model, out = (tmp_path / name for name in ("d.h5", "m.h5", "predictions.csv"))
    if storage == "sparse":
        write_sparse(data, table.X[:40], table.y[:40])
    else:
        write_dense(data, table.X[:40], table.y[:40], **storage)
    train = "train", data, "-o", model, "--quiet", "--threads", 1, "--tol", 0.3
    every_read(ooc_fw, monkeypatch, spoil, kind, train, model, data)
    predict = "predict", model, data, "-o", out, "--quiet"
    every_read(ooc_fw, monkeypatch, spoil, kind, predict, out, tmp_path)


def arrays(path):
    """What a converted file holds, but for the time at which it was made."""
    found = []

    def add(_, node):
        if isinstance(node, h5py.Dataset):
            found.append(np.asarray(node[...]).tobytes())

    with h5py.File(path) as file:
        file.visititems(add)
    return found


@pytest.mark.parametrize("kind", ["error", "short"])
def test_text(ooc_fw, table, write_text, model_file, tmp_path, monkeypatch, kind):
    text, out = write_text(table.X[:40], table.y[:40]), tmp_path / "out.h5"
    convert = "convert", text, out, "--quiet"
    every_read(ooc_fw, monkeypatch, spoil_text, kind, convert, out, text, arrays)
    out = tmp_path / "predictions.csv"
    predict = "predict", model_file, text, "-o", out, "--quiet"
    every_read(ooc_fw, monkeypatch, spoil_text, kind, predict, out, text)
