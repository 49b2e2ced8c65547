"""All methods and oracles on some rows of real sets reach the same objective."""

import io
import lzma
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_svmlight_file

from ooc_fw import Status, TrainOptions, make_kernel, solve
from ooc_fw.data.statistics import sigma2
from tests.support.methods import IN_TURN, SLOW
from tests.support.reference import SmallProblem

DATA = Path(__file__).parents[3] / "shared" / "data"
FILES = {"a8a": (DATA / "a9a" / "a8a.xz", 123), "w7a": (DATA / "w8a" / "w7a.xz", 300)}
LOOSE = {**dict.fromkeys(SLOW, 0.1), "mfw": 0.01, "swap": 0.01}


@pytest.mark.data
@pytest.mark.parametrize("name", FILES)
def test_every_method(name):
    """Certified gaps are those of brute force, and objectives differ by no more than they allow."""
    path, n_features = FILES[name]
    if not path.exists():
        pytest.skip(f"{path} is absent")
    with lzma.open(path) as text:
        lines = b"".join(islice(text, 400))
    X, y = load_svmlight_file(io.BytesIO(lines), n_features=n_features, dtype=np.float32)
    few = np.concatenate([np.flatnonzero(y > 0)[:30], np.flatnonzero(y < 0)[:90]])
    X, y = X[few].toarray(), y[few].astype(np.int8)
    problem = SmallProblem(make_kernel("rbf", gamma=1.0), X, y, 1.0)
    source = problem.source(sparse=True)
    kernel = make_kernel("rbf", gamma=1 / (2 * sigma2(source)))
    problem = SmallProblem(kernel, problem.X, problem.y, 1.0)
    for method, lmo, _ in IN_TURN:
        tol = LOOSE.get(method, 1e-3)
        options = TrainOptions(C=1.0, method=method, lmo=lmo, tol=tol, sample_size=59)
        solution = solve(source, problem.y, kernel, options)
        truth = problem.truth(solution.rows, solution.alpha)
        assert solution.status is Status.CONVERGED
        assert truth.gap <= solution.certified_gap <= min(tol, truth.gap * 1.01 + 1e-6)
        assert solution.sampled_gap <= truth.gap + 1e-12
        distance = solution.objective - problem.optimum.objective
        assert -1e-12 <= distance <= solution.certified_gap * solution.rho
