"""Problems that several tests of the solver train on."""

import pytest

from ooc_fw.kernels.functions import make_kernel
from tests.support.reference import SmallProblem, make_problem


@pytest.fixture
def rare_violator():
    """Two well separated clouds, and row 1234, positive, in the midst of the negative cloud."""
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=1500, overlap=0.1)
    X, y = problem.X.copy(), problem.y
    X[1234] = X[y == -1].mean(axis=0)
    y[1234] = 1
    return SmallProblem(problem.kernel, X, y, problem.C)
