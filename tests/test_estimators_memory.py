"""Memory of fits: what a fit worked with is freed."""

import gc

import numpy as np
import pytest

from ooc_fw import FrankWolfeOneClass, FrankWolfeSVC, FrankWolfeSVR


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
