"""kill -9 at random moments: a file is there whole or as it was, and the next run is well."""

import random
import shutil
import signal

import pytest
from harness import contents

from ooc_fw.convert.verify import verify_file
from ooc_fw.model.record import load_model
from ooc_fw.training.checkpoint import load_resumed

pytestmark = pytest.mark.process

LONG = [(kind, 50) for kind in ("--dense", "--sparse", "fw", "corrective")]


TOLS = {"fw": 0.1, "corrective": 1e-6}


def assert_complete(path, expected, kind):
    """A converted file is the same; a run, resumed or not, ends converged."""
    if kind.startswith("--"):
        assert contents(path) == contents(expected)
        assert verify_file(path) == []
    else:
        found = load_model(path)
        assert found.status == "converged"
        assert found.certified_gap <= TOLS[kind]


@pytest.mark.parametrize(
    ("kind", "n_trials"),
    [("--dense", 2), ("fw", 2), *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)],
)
def test_killed_at_random_moments(nursery, long_text, data_file, tmp_path, kind, n_trials):
    """From the first moment on, through checkpoints and the writing of the output."""
    draw = random.Random(n_trials)
    expected, folder = tmp_path / "expected.h5", tmp_path / "here"
    folder.mkdir()
    out, checkpoint = folder / "out.h5", folder / "run.ckpt"
    converts = kind.startswith("--")
    if converts:
        run, saving, files = ("convert", kind, long_text), (), {"out.h5"}
    else:
        options = "--method", kind, "--tol", TOLS[kind], "--quiet"
        run = "train", data_file, *options, "-o"
        saving = "--checkpoint", checkpoint, "--checkpoint-every", 0.005
        files = {"out.h5", "run.ckpt"}
    assert nursery.run(*run, expected).status == 0  # compiles and caches
    whole = nursery.run(*run, out, *saving).seconds
    killed = 0
    for trial in range(n_trials):
        for path in folder.iterdir():
            path.unlink()
        older = trial % 2 == 1
        if older:
            shutil.copy(expected, out)
        # A third of the moments are near the end of the run, when the output is written.
        share = draw.random() if trial % 3 else 0.8 + 0.2 * draw.random()
        ended = nursery.run(*run, out, *saving, kill_after=share * whole)
        killed += ended.status == -signal.SIGKILL
        if out.exists():
            assert_complete(out, expected, kind)
        else:
            assert not older
        again = ()
        if checkpoint.exists():
            load_resumed(checkpoint)
            again = "--resume", checkpoint
        ended = nursery.run(*run, out, *saving, *again)
        assert ended.status == 0
        if not again:
            whole = ended.seconds
        assert_complete(out, expected, kind)
        assert {path.name for path in folder.iterdir()} == files
    assert killed >= n_trials // 4
