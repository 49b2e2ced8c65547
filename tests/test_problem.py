"""Gaps, stopping tests and penalties of rows, by their formulas."""

import numpy as np
import pytest

from ooc_fw.kernels.functions import make_kernel
from ooc_fw.problem import StoppingTest, check_signs, pair_gap, relative_gap, row_penalties
from ooc_fw.system.errors import InputError
from tests.support.reference import make_problem


def test_gaps_on_the_scale_of_rho_are_never_negative():
    assert [relative_gap(2.0, least) for least in (1.5, -1.0)] == [0.25, 1.5]
    assert relative_gap(np.inf, np.inf) == np.inf
    assert pair_gap(2.5, 1.5, 2.0) == 0.5
    assert relative_gap(2.0, 2.0 + 1e-15) == pair_gap(2.0, 2.0 + 1e-15, 2.0) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_gap_bounds_the_distance_from_the_optimum(seed):
    """D >= f - f*, and f* >= f (1 - d)^2 where min g > 0."""
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=30, seed=seed)
    rng = np.random.default_rng(seed)
    least = problem.optimum.objective
    for concentration in (0.1, 1.0, 100.0):
        alpha = rng.dirichlet(np.full(30, concentration))
        for weights in (alpha, 0.01 * alpha + 0.99 * problem.optimum.alpha):
            g = problem.dual_matrix @ weights
            f, d = weights @ g / 2, relative_gap(weights @ g, g.min())
            assert 0 <= f - least <= d * 2 * f + 1e-15
            if g.min() > 0:
                assert least >= f * (1 - d) ** 2 - 1e-15


def test_stopping_tests_are_those_of_the_papers():
    assert StoppingTest("relative", 0.01, None).relative_tolerance(1e-5) == 0.01
    absolute = StoppingTest("absolute", 1e-4, None)
    assert absolute.relative_tolerance(0.02) * 0.02 == pytest.approx(1e-4)
    # 2 D <= (2 e + e^2)(Delta^2 - alpha'K alpha), the K of the paper being Q.
    eps, delta2, rho = 0.1, 2.5, 0.3
    bound = (2 * eps + eps**2) * (delta2 - rho)
    meb = StoppingTest("meb", eps, delta2)
    assert 2 * meb.relative_tolerance(rho) * rho == pytest.approx(bound)


def test_meb_without_a_constant_diagonal_is_refused():
    with pytest.raises(InputError, match=r"'meb' needs a kernel whose .* use stopping 'relative'"):
        StoppingTest("meb", 1e-3, None)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 1, 0], "must be -1 or .1, but that of row 0 is 0"),
        ([2, -2, 2, -2], "row 0 is 2"),
        ([1, -1, np.nan, 1], "row 2 is nan"),
        ([1, -1, 1.5, 1], r"row 2 is 1\.5"),
        (["1", "-1", "1", "-1"], "must be -1 or"),
        ([1, -1, 1], r"4 rows need as many labels, not an array of shape \(3,\)"),
        ([[1, -1, 1, -1]], r"shape \(1, 4\)"),
        ([1, 1, 1, 1], "all 4 labels are .1; give rows of both classes"),
        ([-1, -1, -1, -1], "all 4 labels are -1"),
    ],
)
def test_labels_of_a_binary_problem(labels, message):
    with pytest.raises(InputError, match=message):
        check_signs(labels, 4)


def test_labels_are_taken_in_any_type():
    signs = check_signs([1.0, -1.0, 1.0], 3)
    assert signs.dtype == np.int8
    assert signs.tolist() == [1, -1, 1]
    assert check_signs([1, 1], 2, both=False).tolist() == [1, 1]


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
def test_weights_of_rows_and_classes_multiply(class_weight, rows, penalties):
    names, codes = np.array(["ham", "spam"]), np.array([0, 0, 0, 1])
    rows = None if rows is None else np.array(rows)
    np.testing.assert_allclose(row_penalties(2.0, names, codes, class_weight, rows), penalties)
    assert row_penalties(2.0, names, codes) is None
