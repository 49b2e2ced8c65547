"""kill -9 at random moments: a file is there whole or as it was, and the next run is well."""

import random
import shutil
import signal

import pytest

from ooc_fw import load_model
from ooc_fw.conversion.verify import verify_file
from tests.faults.harness import arrays

COMMANDS = {
    "dense": "convert {text} {out} --dense",
    "sparse": "convert {text} {out} --sparse",
    "model": "train {data} -o {out} --method fw --tol 0.1",
}
LONG = [pytest.param(kind, 50, marks=pytest.mark.long) for kind in COMMANDS]


def assert_complete(out, expected, kind):
    if kind == "model":
        assert load_model(out).status == "converged"
    else:
        assert arrays(out) == arrays(expected)
        assert verify_file(out) == []


@pytest.mark.process
@pytest.mark.parametrize(("kind", "n_trials"), [("dense", 2), ("model", 2), *LONG])
def test_killed_at_random_moments(nursery, long_text, data_file, tmp_path, kind, n_trials):
    draw, folder = random.Random(n_trials), tmp_path / "here"
    out, expected = folder / "out.h5", tmp_path / "expected.h5"
    folder.mkdir()
    run = COMMANDS[kind].format(text=long_text, data=data_file, out=out).split()
    assert nursery.run(*run, "--quiet").status == 0  # compiles and caches
    whole = nursery.run(*run, "--quiet").seconds
    shutil.copy(out, expected)
    n_killed = 0
    for trial in range(n_trials):
        if trial % 2 == 0:
            out.unlink()
        # A third of the moments are near the end of the run, when the output is written.
        share = draw.random() if trial % 3 else 0.8 + 0.2 * draw.random()
        ended = nursery.run(*run, "--quiet", kill_after=share * whole)
        n_killed += ended.status == -signal.SIGKILL
        assert out.exists() or trial % 2 == 0
        if out.exists():
            assert_complete(out, expected, kind)
        assert nursery.run(*run, "--quiet").status == 0
        assert_complete(out, expected, kind)
        hidden = set(folder.glob(".out.h5.*.tmp"))  # which nobody is left to remove
        assert {out} == set(folder.iterdir()) - hidden
    assert n_killed >= n_trials // 4
