"""Penalties of rows: weights of rows and of classes multiply.

Runs with penalties are compared with brute force in `tests/properties/test_runs.py`.
"""

import numpy as np
import pytest

from ooc_fw.problem import row_penalties


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
