"""All methods and oracles on some rows of real sets reach the same objective."""

import io
import lzma
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_svmlight_file

from ooc_fw.data.statistics import sigma2
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.options import TrainOptions
from ooc_fw.solver.loop import solve
from ooc_fw.solver.state import Status
from tests.support.methods import IN_TURN, LMOS, SLOW
from tests.support.reference import SmallProblem

DATA = Path(__file__).parents[3] / "shared" / "data"
FILES = {"a8a": (DATA / "a9a" / "a8a.xz", 123), "w7a": (DATA / "w8a" / "w7a.xz", 300)}
N_ROWS = 400

TOL = 1e-3
LOOSE = {**dict.fromkeys(SLOW, 0.1), "mfw": 0.01, "swap": 0.01}

pytestmark = pytest.mark.data


def read_problem(name):
    """The first rows of a set, gamma as "auto" gives it, C 1."""
    path, n_features = FILES[name]
    if not path.exists():
        pytest.skip(f"{path} is absent")
    with lzma.open(path) as text:
        lines = b"".join(islice(text, N_ROWS))
    X, y = load_svmlight_file(io.BytesIO(lines), n_features=n_features, dtype=np.float32)
    X, y = X.toarray(), y.astype(np.int8)
    found = SmallProblem(make_kernel("rbf", gamma=1.0), X, y, 1.0)
    gamma = 1 / (2 * sigma2(found.source(sparse=True)))
    return SmallProblem(make_kernel("rbf", gamma=gamma), X, y, 1.0)


@pytest.mark.parametrize("name", FILES)
def test_every_method_and_oracle(name):
    """Certified gaps are those of brute force, and objectives differ by no more than they allow."""
    problem = read_problem(name)
    # In float64, from squared distances of binary rows that are exact.
    exact = problem.X.astype(np.float64)
    squares = (exact**2).sum(axis=1)
    distances = np.add.outer(squares, squares) - 2 * exact @ exact.T
    Q = np.multiply.outer(problem.y, problem.y) * (np.exp(-problem.kernel.gamma * distances) + 1)
    Q[np.diag_indices(N_ROWS)] += 1 / problem.C
    lowest, highest = -np.inf, np.inf  # of the optimum: f - D <= f* <= f
    swapped = LMOS[::-1] if name == "w7a" else LMOS  # each method with either oracle
    pairs = [(method, swapped[LMOS.index(lmo)]) for method, lmo, _ in IN_TURN]
    for method, lmo in pairs:
        tol = LOOSE.get(method, TOL)
        options = TrainOptions(C=problem.C, method=method, lmo=lmo, tol=tol, sample_size=59)
        solution = solve(problem.source(sparse=True), problem.y, problem.kernel, options)
        assert solution.status is Status.CONVERGED
        assert solution.certified_gap <= tol
        gradient = Q[:, solution.rows] @ solution.alpha
        rho = solution.alpha @ gradient[solution.rows]
        gap = 1 - gradient.min() / rho
        assert gap <= solution.certified_gap * (1 + 1e-9) + 1e-12
        assert solution.certified_gap <= gap * 1.01 + 1e-6
        assert solution.sampled_gap <= gap + 1e-12
        lowest = max(lowest, solution.objective - solution.certified_gap * solution.rho)
        highest = min(highest, solution.objective)
        assert lowest <= highest
