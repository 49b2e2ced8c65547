"""kill -9 at random moments: a file is there whole or as it was, and the next run is well."""

from __future__ import annotations

import random
import shutil
import signal

import numpy as np
import pytest
from harness import contents

from ooc_fw.convert.verify import verify_file
from ooc_fw.model.record import load_model
from ooc_fw.solver.checkpoint import load_checkpoint
from ooc_fw.testing.files import write_dense


def few_or_many(first, second):
    """Two trials of the first kind, and 50 of each in the long run."""
    return [
        (first, 2),
        *(pytest.param(kind, 50, marks=pytest.mark.long) for kind in (first, second)),
    ]


def moment(draw, trial):
    """Share of the run: a third of them near its end, when the output is written."""
    return draw.random() if trial % 3 else 0.8 + 0.2 * draw.random()


@pytest.mark.parametrize(("kind", "n_trials"), few_or_many("--dense", "--sparse"))
def test_converter(nursery, long_text, tmp_path, kind, n_trials):
    draw = random.Random(n_trials)
    expected = tmp_path / "expected.h5"
    assert nursery.run("convert", long_text, expected, kind).status == 0  # compiles and caches
    whole = nursery.run("convert", long_text, expected, kind).seconds
    folder = tmp_path / "here"
    folder.mkdir()
    out = folder / "out.h5"
    killed = 0
    for trial in range(n_trials):
        older = trial % 2 == 1
        if older:
            shutil.copy(expected, out)
        ended = nursery.run("convert", long_text, out, kind, kill_after=moment(draw, trial) * whole)
        killed += ended.status == -signal.SIGKILL
        if out.exists():
            assert verify_file(out).intact
            assert contents(out) == contents(expected)
        else:
            assert not older
        again = nursery.run("convert", long_text, out, kind)
        assert again.status == 0
        whole = again.seconds
        assert contents(out) == contents(expected)
        assert [path.name for path in folder.iterdir()] == ["out.h5"]
        out.unlink()
    assert killed >= n_trials // 4


@pytest.mark.parametrize(("method", "n_trials"), few_or_many("fw", "corrective"))
def test_trainer(nursery, data_file, tmp_path, method, n_trials):
    """From the first moment on, and through checkpoints, the last pass and the model's writing."""
    draw = random.Random(n_trials)
    run = ("train", data_file, "--method", method, "--tol", 1e-9, "--max-iter", 600, "--quiet")
    expected = tmp_path / "expected.h5"
    assert nursery.run(*run, "-o", expected).status == 0
    folder = tmp_path / "here"
    folder.mkdir()
    model, checkpoint = folder / "m.h5", folder / "run.ckpt"
    saving = "--checkpoint", checkpoint, "--checkpoint-every", 0.005
    whole = nursery.run(*run, *saving, "-o", model).seconds
    killed = 0
    for trial in range(n_trials):
        for path in folder.iterdir():
            path.unlink()
        older = trial % 2 == 1
        if older:
            shutil.copy(expected, model)
        kill_after = moment(draw, trial) * whole
        ended = nursery.run(*run, *saving, "-o", model, kill_after=kill_after)
        killed += ended.status == -signal.SIGKILL
        if model.exists():
            assert contents(model) == contents(expected)
            load_model(model)
        else:
            assert not older
        again = ()
        if checkpoint.exists():
            load_checkpoint(checkpoint)
            again = ("--resume", checkpoint)
        ended = nursery.run(*run, *saving, "-o", model, *again)
        assert ended.status == 0
        if not again:
            whole = ended.seconds
        assert model.read_bytes() == expected.read_bytes()
        assert {path.name for path in folder.iterdir()} == {"m.h5", "run.ckpt"}
    assert killed >= n_trials // 4


def test_what_a_killed_run_set_aside_is_removed_by_the_next(nursery, table, data_file, tmp_path):
    data = write_dense(tmp_path / "d.h5", table.X, np.arange(len(table.y)) % 3)
    aside = tmp_path / "aside"
    aside.mkdir()
    here = f"import tempfile; tempfile.tempdir = {str(aside)!r}\n"
    killing = (
        "import os, signal; from ooc_fw.training import fit, partition\n"
        "partition._RAM_BYTES = 0\n"
        "fit.solve_problem = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = ("train", data, "-o", tmp_path / "m.h5", "--quiet")
    assert nursery.run(*run, prelude=here + killing).status == -signal.SIGKILL
    (left,) = aside.iterdir()
    assert list(left.iterdir())
    assert nursery.run("train", data_file, *run[2:], prelude=here).status == 0
    assert not list(aside.iterdir())
