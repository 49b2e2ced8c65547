"""Penalties of rows: weights of rows and classes multiply, and the largest decides on precision.

Runs with penalties are compared with brute force in `tests/properties/test_runs.py`.
"""

import numpy as np
import pytest

from ooc_fw import TrainOptions, make_kernel
from ooc_fw.problem import BinaryProblem, row_penalties
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.run import open_state, start
from tests.support.reference import make_problem


@pytest.mark.parametrize(
    ("class_weight", "rows", "penalties"),
    [
        ({"spam": 3.0}, None, [2, 2, 2, 6]),
        ({"spam": 3.0}, [1.0, 2.0, 0.5, 1.0], [2, 4, 1, 6]),
        (None, [1.0, 2.0, 0.5, 1.0], [2, 4, 1, 2]),
        ("balanced", None, [4 / 3, 4 / 3, 4 / 3, 4]),
        ("balanced", [1.0, 1.0, 1.0, 3.0], [2, 2, 2, 6]),
        ({"ham": 1.0, "spam": 2.0, "eggs": 3.0}, None, [2, 2, 2, 4]),
    ],
)
def test_weights_multiply(class_weight, rows, penalties):
    names, codes = np.array(["ham", "spam"]), np.array([0, 0, 0, 1])
    rows = None if rows is None else np.array(rows)
    np.testing.assert_allclose(row_penalties(2.0, names, codes, class_weight, rows), penalties)
    assert row_penalties(2.0, names, codes) is None


def test_one_large_penalty_keeps_kernel_values_exact():
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=200)
    options = TrainOptions(method="corrective", memory_limit=1 << 30)
    for largest, quantised in ((10.0, True), (1e4, False)):
        penalties = np.where(np.arange(200) == 7, largest, 1.0)
        binary = BinaryProblem(problem.source(), problem.y, problem.kernel, penalties)
        with open_state(binary, plan_exact(binary, options), Session()) as state:
            start(state, None)
            assert state.active.quantised is quantised
