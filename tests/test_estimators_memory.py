"""Memory of fits: arrays on disk are not loaded whole, and what a fit worked with is freed."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from ooc_fw import FrankWolfeOneClass, FrankWolfeSVC, FrankWolfeSVR

WIDTH, BLOCK = 250, 5000  # features, and rows that come again and again

SCRIPT = """
import sys
import numpy as np
from ooc_fw import FrankWolfeSVC
from ooc_fw.system.memory import peak_rss_bytes

def fit(folder):
    X, y = np.load(f"{folder}/X.npy", mmap_mode="r"), np.load(f"{folder}/y.npy")
    fitted = FrankWolfeSVC(C=1000, gamma=0.2, tol=1e-2, random_state=0).fit(X, y)
    assert fitted.certified_gap_ <= 1e-2
    assert fitted.score(X, y) == 1

small, large = sys.argv[1:]
fit(small)  # imports, compiles and fills what is kept of any data
before = peak_rss_bytes()
fit(large)
print(peak_rss_bytes() - before)
"""


def write(folder, n_rows):
    """The same separable rows again and again."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    y = np.where(rng.random(BLOCK) < 0.5, 1.0, -1.0)
    block = 0.05 * rng.standard_normal((BLOCK, WIDTH), dtype=np.float32)
    block[:, 0] += y
    np.save(folder / "y.npy", np.resize(y, n_rows))
    X = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float32, (n_rows, WIDTH))
    for start in range(0, n_rows, BLOCK):
        X[start : start + BLOCK] = block


@pytest.mark.process
def test_growth_does_not_depend_on_the_size_of_the_data(tmp_path):
    """Beside labels and what else goes by rows, about 60 bytes for each.

    The rows of the large map, 300 MB, are above the size up to which rows are kept.
    """
    folders = [tmp_path / "small", tmp_path / "large"]
    for folder, n_rows in zip(folders, (8 * BLOCK, 300_000), strict=True):
        write(folder, n_rows)
    run = [sys.executable, "-c", SCRIPT, *map(str, folders)]
    # Left to itself, the allocator of glibc comes to keep freed arrays of up to 32 MiB.
    returning = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=returning)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60e6


@pytest.mark.process
@pytest.mark.parametrize(
    "estimator",
    [
        FrankWolfeSVC(exact=True),
        pytest.param(FrankWolfeSVC(method="fw", lmo="full", max_time=0.2), marks=pytest.mark.grid),
        FrankWolfeSVC(landmarks=30),
        pytest.param(FrankWolfeSVR(landmarks=30), marks=pytest.mark.grid),
        pytest.param(FrankWolfeOneClass(), marks=pytest.mark.grid),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_a_fit_worked_with_is_freed_at_once(estimator):
    """References in circles would keep gigabytes until the garbage collector comes by."""
    X = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    y = X[:, 0] if isinstance(estimator, FrankWolfeSVR) else X[:, 0] * X[:, 1] > 0
    estimator.fit(X, y)  # imports and compiles
    gc.collect()
    gc.disable()
    try:
        estimator.fit(X, y)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = {type(each).__name__ for each in gc.garbage if "ooc_fw" in type(each).__module__}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == set()
