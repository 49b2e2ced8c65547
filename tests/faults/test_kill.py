"""kill -9 at random moments: a file is there whole or as it was, and the next run is well."""

import random
import shutil
import signal

import pytest
from harness import arrays

from ooc_fw import load_model
from ooc_fw.convert.verify import verify_file

pytestmark = pytest.mark.process

LONG = [pytest.param(kind, 50, marks=pytest.mark.long) for kind in ("--dense", "--sparse", "train")]


def assert_complete(path, expected):
    if path.name == "model.h5":
        assert load_model(path).status == "converged"
    else:
        assert arrays(path) == arrays(expected)
        assert verify_file(path) == []


@pytest.mark.parametrize(("kind", "n_trials"), [("--dense", 2), ("train", 2), *LONG])
def test_killed_at_random_moments(nursery, long_text, data_file, tmp_path, kind, n_trials):
    """From the first moment on, through checkpoints and the writing of the output."""
    draw = random.Random(n_trials)
    expected, folder = tmp_path / "expected.h5", tmp_path / "here"
    folder.mkdir()
    checkpoint = folder / "run.ckpt"
    if kind == "train":
        out, saving = folder / "model.h5", ("--checkpoint", checkpoint, "--checkpoint-every", 0.005)
        run = "train", data_file, "--method", "fw", "--tol", 0.1, "--quiet", "-o"
    else:
        out, saving = folder / "data.h5", ()
        run = "convert", kind, long_text
    assert nursery.run(*run, expected).status == 0  # compiles and caches
    whole = nursery.run(*run, out, *saving).seconds
    n_killed = 0
    for trial in range(n_trials):
        for path in folder.iterdir():
            path.unlink()
        older = trial % 2 == 1
        if older:
            shutil.copy(expected, out)
        # A third of the moments are near the end of the run, when the output is written.
        share = draw.random() if trial % 3 else 0.8 + 0.2 * draw.random()
        ended = nursery.run(*run, out, *saving, kill_after=share * whole)
        n_killed += ended.status == -signal.SIGKILL
        assert out.exists() or not older
        if out.exists():
            assert_complete(out, expected)
        again = ("--resume", checkpoint) if checkpoint.exists() else ()
        assert nursery.run(*run, out, *saving, *again).status == 0
        assert_complete(out, expected)
        assert {path.name for path in folder.iterdir()} <= {out.name, "run.ckpt"}
    assert n_killed >= n_trials // 4
