"""Decision values in two stages, against their definition in extended precision."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from scipy.sparse import csr_array

from ooc_fw.data.sources import ArraySource
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.model.machines import class_scores, is_decided
from ooc_fw.model.prediction import DECISION_ACCURACY, decide
from ooc_fw.system.errors import InputError
from tests.support.models import exact_decision, make_model, with_numbers
from tests.support.reference import make_problem, to_csr
from tests.support.strategies import SEEDS, powers_of_ten, raw_tables


def model_of(kernel, vectors, n_classes=2, rho=1e-2, seed=0):
    """Each classifier has weights on all of the vectors, some of them tiny."""
    rng = np.random.default_rng(seed)
    model = make_model(vectors, n_classes, kernel=kernel, rho=rho, classes=np.arange(n_classes))
    size = len(model.classifiers), len(vectors)
    alpha = np.exp(3 * rng.normal(size=size))
    beta = alpha / alpha.sum(axis=1, keepdims=True) * rng.choice([-1, 1], size)
    return with_numbers(model, beta=beta)


def plain_rows(n_rows):
    return make_problem(make_kernel("rbf", gamma=1.0), n_rows=n_rows)


@given(
    X=raw_tables(),
    form=st.sampled_from([np.asarray, to_csr]),
    name=st.sampled_from(sorted(KERNELS)),
    gamma=powers_of_ten(-8, 4),
    n_classes=st.sampled_from([2, 3]),
    rho=powers_of_ten(-6, 0),
    seed=SEEDS,
)
def test_values_are_within_a_ten_thousandth_of_the_margin_and_labels_are_right(
    X, form, name, gamma, n_classes, rho, seed
):
    vectors, X = np.split(X, [len(X) // 2])
    kernel = make_kernel(name, gamma=gamma, degree=2, coef0=1.0)
    model, rows = model_of(kernel, form(vectors), n_classes, rho, seed), form(X)
    with model.engine() as engine:
        try:
            x, z = (engine.prepare(own, exact=True) for own in (rows, model.support_vectors))
        except InputError:  # values of the kernel are beyond float32, which is refused
            reject()
        own = engine.error_bound(x, z) + (len(vectors) + 4) * 2**-53
    exact = exact_decision(model, vectors, X)
    # What float64 leaves, with the division by rho, and the last bit of a large value.
    own = (own / rho * 1.01)[:, None] + 4e-16 * np.abs(exact)
    (values,), (for_labels,) = decide(model, [rows]), decide(model, [rows], labels_only=True)
    error = np.abs(values.reshape(exact.shape) - exact)
    assert (error <= np.maximum(DECISION_ACCURACY, own)).all()
    if n_classes == 2:
        sure, expected = np.abs(exact[:, 0]) > own[:, 0], exact[:, 0] > 0
    else:
        wide = exact.astype(np.float64)
        sure = is_decided(wide, np.broadcast_to(own.astype(np.float64), wide.shape), 3)
        expected = class_scores(wide, 3).argmax(axis=1)
    for found in (values, for_labels):
        np.testing.assert_array_equal(model.class_places(found)[sure], expected[sure])


@pytest.mark.parametrize("form", [np.asarray, to_csr])
@pytest.mark.parametrize("labels_only", [False, True])
def test_labels_change_at_a_threshold_as_they_do_at_0(form, labels_only):
    """Rows around others whose value is the threshold, nearer than float32 can tell."""
    problem = plain_rows(120)
    vectors, rows = np.split(problem.X, 2)
    model = model_of(problem.kernel, form(vectors))
    X = np.repeat(rows[:4], 200, axis=0)
    X *= (1 + 1e-6 * np.random.default_rng(1).normal(size=X.shape)).astype(np.float32)
    exact = exact_decision(model, vectors, X)[:, 0]
    for k in range(0, len(X), 200):
        threshold = float(exact[k]) + 1e-9
        own = replace(model, threshold=threshold)
        (values,) = decide(own, [form(X)], labels_only=labels_only)
        np.testing.assert_array_equal(own.class_places(values), exact > threshold)


@pytest.mark.parametrize(("kernel", "n_classes"), [("rbf", 2), ("laplacian", 3)])
def test_sparse_rows_far_from_the_origin_are_decided_by_differences(kernel, n_classes, caplog):
    """Products lose all digits of their distances, however wide the rows are."""
    X = (3e5 + np.random.default_rng(0).normal(size=(160, 40))).astype(np.float32)
    X[:, ::7] = 0
    model = model_of(make_kernel(kernel, gamma=0.05), to_csr(X[:60]), n_classes)
    (values,) = decide(model, [to_csr(X[60:])])
    exact = exact_decision(model, X[:60], X[60:])
    np.testing.assert_allclose(values.reshape(exact.shape), exact.astype(float), atol=1e-10)
    assert "does not settle" not in caplog.text


@pytest.mark.parametrize(("kernel", "size"), [("linear", 1e-23), ("poly", 1e-12)])
def test_what_float64_does_not_settle_is_said(kernel, size, caplog):
    """Kernel values that float32 takes for 0, and beside which the bias is all rounding."""
    X = (size * np.random.default_rng(0).normal(size=(30, 5))).astype(np.float32)
    model = model_of(make_kernel(kernel, gamma=1.0, degree=2), X[:2])
    model = with_numbers(model, beta=[np.array([-0.5, 0.5])])
    list(decide(model, [X[2:]], labels_only=True))
    assert "28 of 28 rows of the data are so near the boundary" in caplog.text


def test_a_row_too_large_for_float32_has_no_value_and_the_others_have(caplog):
    problem = plain_rows(100)
    model = model_of(problem.kernel, problem.X[:50])
    X = problem.X[50:].copy()
    expected = model.decision_function(X)
    X[7] = 1e19
    for form in (X, ArraySource(X), csr_array(X)):
        caplog.clear()
        values = model.decision_function(form)
        assert np.flatnonzero(np.isnan(values)).tolist() == [7]
        np.testing.assert_array_equal(np.delete(values, 7), np.delete(expected, 7))
        assert "row 7 of " in caplog.text
    with pytest.raises(InputError, match="have no label, first the one at place 7"):
        model.predict(X)
