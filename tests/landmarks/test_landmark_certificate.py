"""The bound of the exact kernel on what weights of landmarks lack, against brute force."""

import numpy as np
import pytest

from ooc_fw import make_kernel, open_dataset
from ooc_fw.data.sources import CSRSource
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks.certificate import exact_dual
from ooc_fw.landmarks.passes import SpanProblem
from tests.support.reference import kernel_values, to_csr


def make_case(kernel, sparse=False, bias=1, inside=1.0):
    rng, n_rows, k = np.random.default_rng(0), 300, 2
    X = rng.normal(size=(n_rows, 4)).astype(np.float32)
    source = CSRSource(to_csr(X)) if sparse else open_dataset(X)
    signs = rng.choice([-1, 1], (n_rows, k)).astype(np.int8)
    problem = SpanProblem(source, signs, rng.uniform(0.5, 5, n_rows), bias=bias)
    decisions = (signs * rng.uniform(inside - 1, 2, (n_rows, k))).astype(np.float32)
    return X, problem, decisions, make_kernel(kernel, gamma=0.3, degree=2, coef0=1.0)


def dual_by_definition(X, problem, decisions, kernel):
    """D of the best multiple of beta, in extended precision."""
    y, C = problem.targets, problem.penalties[:, None]
    beta = C * np.maximum(0, 1 - y * decisions.astype(np.longdouble))
    v = ((beta * y) * ((kernel_values(kernel, X, X) + problem.bias) @ (beta * y))).sum(axis=0)
    return beta.sum(axis=0) ** 2 / (v + (beta**2 / C).sum(axis=0)) / 2


@pytest.mark.parametrize(
    ("kernel", "sparse", "part_rows", "bias"),
    [
        *(("rbf", False, 17, 1), ("rbf", True, 8192, 0), ("poly", True, 17, 1)),
        *(("laplacian", False, 8192, 1), ("poly", False, 17, 0)),
    ],
)
def test_bound_is_close_below_the_dual_objective(kernel, sparse, part_rows, bias, monkeypatch):
    monkeypatch.setattr("ooc_fw.landmarks.certificate._PART_ROWS", part_rows)
    X, problem, decisions, own = make_case(kernel, sparse, bias)
    expected = dual_by_definition(X, problem, decisions, own)
    with Engine(own, 2) as engine:
        found = exact_dual(problem, decisions, engine)
        inside = np.count_nonzero((problem.targets * decisions < 1).any(axis=1))
        assert inside * (inside + 1) // 2 <= engine.evaluations <= inside**2
    assert (found <= expected).all()
    np.testing.assert_allclose(found, expected.astype(float), rtol=1e-3)


def test_no_row_inside_the_margin_is_no_bound():
    _, problem, decisions, own = make_case("rbf", inside=3.0)
    with Engine(own) as engine:
        assert exact_dual(problem, decisions, engine).tolist() == [0, 0]
