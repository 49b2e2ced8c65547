"""kill -9 at random moments: a file is there whole or as it was, and the next run is well."""

import random
import signal
import time

import pytest

from ooc_fw import load_model
from ooc_fw.conversion.verify import verify_file

RUNS = {
    "convert": "convert {text} {out} --dense --quiet",
    "train": "train {data} -o {out} --method fw --tol 0.1 --quiet",
}
LONG = [pytest.param(kind, 50, marks=pytest.mark.long) for kind in RUNS]


def assert_complete(kind, out):
    if kind == "train":
        assert load_model(out).status == "converged"
    else:
        verify_file(out)


@pytest.mark.process
@pytest.mark.parametrize(("kind", "n_trials"), [("convert", 3), ("train", 3), *LONG])
def test_killed_at_random_moments(nursery, long_text, data_file, tmp_path, kind, n_trials):
    draw = random.Random(n_trials)
    folder = tmp_path / "here"
    folder.mkdir()
    out = folder / "out.h5"
    run = RUNS[kind].format(text=long_text, data=data_file, out=out).split()
    assert nursery.run(*run).status == 0  # compiles
    started = time.monotonic()
    assert nursery.run(*run).status == 0
    whole = time.monotonic() - started
    n_killed = 0
    for trial in range(n_trials):
        if trial % 2 == 0:
            out.unlink()
        ended = nursery.run(*run, kill_after=draw.random() * whole)
        n_killed += ended.status == -signal.SIGKILL
        assert out.exists() or trial % 2 == 0
        if out.exists():
            assert_complete(kind, out)
        assert nursery.run(*run).status == 0
        assert_complete(kind, out)
        hidden = {*folder.glob(".out.h5.*.tmp")}  # which nobody is left to remove
        assert {out} == {*folder.iterdir()} - hidden
    assert n_killed > 0
