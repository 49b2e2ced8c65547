"""Damage: files of every kind that are cut, flipped or changed are named, or change no answer.

Text that is not compressed has no mark of its end, and `.npy` files have no checksums.
"""

import lzma
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest

from ooc_fw import InputError, Status, TrainOptions, make_kernel, open_dataset
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Session
from ooc_fw.solver.surroundings import Checkpoint
from ooc_fw.training.checkpoint import load_resumed
from ooc_fw.training.fit import fit
from tests.support.methods import grid

FW = "--method fw --lmo sampled --tol 0.1"
EXAMPLES = {  # name, how the file is made if not by the fixture, and how it is read
    "dense": ("d.h5", "convert {text} {path} --dense", "train {path} {FW} -o {out}"),
    "sparse": ("d.h5", "convert {text} {path} --sparse", "train {path} {FW} -o {out}"),
    "npy": ("X.npy", None, "train {path} --labels {y} {FW} -o {out}"),
    "packed text": ("text.xz", None, "predict {model} {path} -o {out}"),
    "model": ("m.h5", "train {data} -o {path}", "predict {path} {data} -o {out}"),
    "checkpoint": (
        "run.ckpt",
        "train {data} {FW} --max-iter 3 -o {out} --checkpoint {path}",
        "train {data} {FW} --resume {path} -o {out}",
    ),
    "log": ("run.log", "train {data} {FW} -o {out} --log {path}", "plot {path} -o {out}"),
}


class Example(NamedTuple):
    """A file of some kind, and a command that reads it and writes another one."""

    path: Path
    command: list[str]
    out: Path
    older: bytes  # what it wrote from the whole file


@pytest.fixture
def example(request, tmp_path, table, text_file, data_file, model_file, ooc_fw):
    name, made, read = EXAMPLES[request.param]
    np.save(tmp_path / "X.npy", table.X)
    np.save(tmp_path / "y.npy", table.y)
    (tmp_path / "text.xz").write_bytes(lzma.compress(text_file.read_bytes()))
    places = {"path": tmp_path / name, "y": tmp_path / "y.npy", "out": tmp_path / "out.png"}
    places |= {"text": text_file, "data": data_file, "model": model_file, "FW": FW}
    if made is not None:
        ooc_fw(*made.format(**places).split(), "--quiet").done()
    quiet = [] if request.param == "log" else ["--quiet"]
    places["out"].unlink(missing_ok=True)
    command = [*read.format(**places).split(), *quiet]
    ooc_fw(*command).done()
    return Example(places["path"], command, places["out"], places["out"].read_bytes())


def assert_found_or_harmless(ooc_fw, example, contents, *, same=True):
    """Run the command with other contents of its input; whether it was refused.

    If it was not, its output is the `same`. If it was, the older output is still there.
    """
    path, command, out, older = example
    path.write_bytes(contents)
    out.write_bytes(older)
    outcome = ooc_fw(*command)
    assert path.read_bytes() == contents
    assert not list(path.parent.glob(".*"))
    if outcome.status == 0:
        assert not same or out.read_bytes() == older
        return False
    outcome.assert_refused(str(path))
    assert out.read_bytes() == older
    return True


CUT = ["dense", "model", "checkpoint", "packed text", "npy", "sparse"]


@pytest.mark.parametrize("example", grid(CUT, quick=3), indirect=True)
def test_a_file_that_is_cut_short_is_refused(example, ooc_fw):
    whole = example.path.read_bytes()
    for length in [*range(0, len(whole), len(whole) // 5), len(whole) - 1]:
        assert assert_found_or_harmless(ooc_fw, example, whole[:length])


FLIPPED = ["dense", "model", "checkpoint", "packed text", "sparse"]


@pytest.mark.parametrize("example", grid(FLIPPED, quick=2), indirect=True)
def test_a_flipped_bit_is_found_or_harmless(example, ooc_fw):
    whole = example.path.read_bytes()
    rng = np.random.default_rng(0)
    n_found = 0
    for place in rng.integers(len(whole), size=15).tolist():
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        n_found += assert_found_or_harmless(ooc_fw, example, bytes(flipped))
    assert n_found > 0


@pytest.mark.parametrize("example", ["log"], indirect=True)
def test_a_log_is_drawn_as_far_as_it_can_be_read(example, ooc_fw):
    whole = example.path.read_bytes()
    start = whole.index(b"\n") + 1
    for length in (0, start // 2, start):  # there is nothing to draw
        assert assert_found_or_harmless(ooc_fw, example, whole[:length])
    garbled = whole[:start] + b"\0" + whole[start + 1 :]
    for readable in (whole[:-5], garbled):
        assert not assert_found_or_harmless(ooc_fw, example, readable, same=False)


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
    shutil.copy(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)


def another_writer(path):
    with open(path, "r+b") as file:
        file.seek(700)
        file.write(b"other")


CHANGES = [(cut, True), (rot, True), (rot, False), (replace, False), (os.unlink, True)]
CHANGES.append((another_writer, False))


@dataclass
class ThenChange(Checkpoint):
    """Changes the data once it has been written, the first time or before the last pass."""

    change: Callable[[], None] | None = None
    early: bool = True

    def save(self, weights):
        super().save(weights)
        if self.change and (self.early or weights().iterations == N_STEPS):
            self.change()
            self.change = None


N_STEPS = 20


@pytest.mark.parametrize(
    ("example", "change", "early"),
    grid(
        [
            (kind, *one)
            for kind in ("dense", "sparse", "npy")
            for one in CHANGES
            if (kind, one[0]) != ("npy", rot)
        ],
        quick=len(CHANGES),
    ),
    indirect=["example"],
)
def test_data_that_change_during_a_run_are_named(example, tmp_path, change, early):
    """The checkpoint of the run is good: it goes on when the data are there again."""
    path, checkpoint = example.path, tmp_path / "run.ckpt"
    whole, stamps = path.read_bytes(), path.stat()
    labels = tmp_path / "y.npy" if path.suffix == ".npy" else None

    def train(n_steps, resumed=None, **session):
        with open_dataset(path, labels) as source:
            codes = (source.labels(0, source.n_rows) > 0).astype(np.int64)
            problem = ClassificationProblem(source, codes, make_kernel("rbf", gamma=1.0))
            options = TrainOptions(method="fw", lmo="sampled", tol=0.1, max_iter=n_steps)
            return fit(problem, options, Session(**session), resumed)

    kept = ThenChange(checkpoint, 0.0, change=partial(change, path), early=early)
    with pytest.raises(InputError) as caught:
        train(N_STEPS, checkpoint=kept)
    assert str(caught.value).startswith(f"{path} is damaged: X" if change is rot else str(path))
    path.write_bytes(whole)
    os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    assert train(None, load_resumed(checkpoint)).model.status == Status.CONVERGED
