"""ONNX graphs against the model, in onnxruntime."""

import json
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import scipy.sparse

from ooc_fw import FrankWolfeOneClass, FrankWolfeSVC, FrankWolfeSVR, InputError, open_dataset
from ooc_fw.data.scaling import Scaling
from ooc_fw.kernels.functions import KERNELS
from ooc_fw.model.onnx import to_onnx
from tests.support.contracts import to_dense
from tests.support.methods import grid
from tests.support.models import exact_decision


def run(model, X):
    """Outputs of the graph of a model, by name."""
    alone = onnxruntime.SessionOptions()
    alone.intra_op_num_threads = 1  # threads that wait for work keep other test processes from it
    session = onnxruntime.InferenceSession(to_onnx(model), alone)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": X}), strict=True))


def rows(n=300, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 5)).astype(np.float32)


def labels(X, n_classes):
    places = np.argsort(np.argsort(X[:, 0] + np.sin(3 * X[:, 1]))) * n_classes // len(X)
    return np.array([f"class {k:02}" for k in range(n_classes)])[places]


def by_definition(model, T):
    found = exact_decision(model, to_dense(model.support_vectors), T).astype(np.float64)
    return found[:, 0] if found.shape[1] == 1 else found


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("n_classes", "landmarks"), [(2, None), (3, 40)])
def test_decisions_and_labels(name, n_classes, landmarks):
    X, T = rows(), rows(200, seed=1)
    T[0] = 0
    options = {"gamma": 0.2, "coef0": 1, "degree": 3, "landmarks": landmarks}
    own = FrankWolfeSVC(name, C=5, **options).fit(X, labels(X, n_classes))
    found = run(own.model_, T.astype(np.float64))
    values = own.model_.decision_function(T)
    scale = max(1.0, float(np.abs(values).max()))
    np.testing.assert_allclose(found["decision"], values, atol=2e-4 * scale)  # of the model's own
    np.testing.assert_allclose(found["decision"], by_definition(own.model_, T), atol=1e-9 * scale)
    clear = np.abs(values.reshape(len(T), -1)).min(axis=1) > 1e-3 * scale
    np.testing.assert_array_equal(found["label"][clear], own.predict(T)[clear])


@pytest.mark.parametrize(("n_classes", "options"), grid([(2, {}), (4, {}), (5, {"landmarks": 40})]))
def test_probabilities(n_classes, options):
    X, T = rows(400), rows(200, seed=1)
    own = FrankWolfeSVC(gamma=0.2, C=5, probability=True, **options).fit(X, labels(X, n_classes))
    found = run(own.model_, T.astype(np.float64))["probabilities"]
    np.testing.assert_allclose(found, own.predict_proba(T), atol=2e-4)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    exact = own.model_.probabilities(by_definition(own.model_, T))
    np.testing.assert_allclose(found, exact, atol=1e-8)


def test_rows_are_scaled_in_the_graph():
    X = np.abs(rows()).astype(np.float64)
    own = FrankWolfeSVC(gamma=0.2).fit(X, X[:, 0] > 0.5)
    tiny = Scaling("standard", True, np.zeros(5), np.full(5, 1e16))
    far = Scaling("standard", False, np.full(5, 1.7e9), np.full(5, 0.1))
    usual = Scaling("standard", True, np.arange(5.0), np.full(5, 0.25))
    for scaling, raw in ((tiny, X * 1e-16), (far, 1.7e9 + 10 * X), (usual, 100 * X)):
        model = replace(own.model_, scaling=scaling, classes=np.array([0.5, 2.5]))
        found = run(model, raw)
        np.testing.assert_allclose(found["decision"], model.decision_function(raw), atol=1e-4)
        assert {*found["label"]} == {0.5, 2.5}


def test_vectors_far_from_each_other_take_differences():
    """Two groups of sparse rows, whose products lose the distances within each."""
    X = rows(200)
    X[::2, 0] += np.float32(3e5)
    own = FrankWolfeSVC(gamma=2.0, C=5).fit(scipy.sparse.csr_array(X), X[:, 1] > 0)
    found = run(own.model_, X.astype(np.float64))
    np.testing.assert_allclose(found["decision"], by_definition(own.model_, X), atol=1e-9)
    assert found["label"].dtype.kind == "i"


def test_metadata_have_the_names_of_features_and_classes():
    frame = pd.DataFrame(rows(), columns=[*"edcba"])
    own = FrankWolfeSVC().fit(frame, labels(rows(), 3))
    graph = onnx.load_from_string(to_onnx(own.model_))
    told = {each.key: each.value for each in graph.metadata_props}
    assert json.loads(told["feature_names"]) == [*"edcba"]
    assert json.loads(told["class_names"]) == ["class 00", "class 01", "class 02"]
    numbers = FrankWolfeSVR().fit(frame, rows()[:, 0]).model_
    graph = onnx.load_from_string(to_onnx(numbers))
    assert [each.key for each in graph.metadata_props] == ["feature_names"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0.5, 1.5], np.float32), [0.5, 1.5]),
        (np.array([0.5, 1.5], np.longdouble), [0.5, 1.5]),
        (np.array([0, 2**64 - 1], np.uint64), ["0", str(2**64 - 1)]),
        (np.array([False, True]), [0, 1]),
    ],
)
def test_classes_of_any_type(values, expected):
    X = np.repeat(np.eye(2), 20, axis=0)
    own = FrankWolfeSVC().fit(open_dataset(X, np.repeat(values, 20)))
    assert run(own.model_, X)["label"].tolist() == [expected[0]] * 20 + [expected[1]] * 20


def test_other_tasks():
    X = rows()
    own = FrankWolfeOneClass(gamma=0.2, contamination=0.1).fit(X)
    found = run(own.model_, X.astype(np.float64))
    np.testing.assert_allclose(found["decision"], own.decision_function(X), atol=1e-5)
    assert (found["label"] == own.predict(X)).mean() > 0.98
    own = FrankWolfeSVR(gamma=0.2, landmarks=50).fit(X, X[:, 0])
    found = run(own.model_, X.astype(np.float64))
    np.testing.assert_allclose(found["prediction"], own.predict(X), atol=2e-4)


def test_models_of_wide_sparse_rows_are_refused_before_they_are_dense():
    """Their support vectors would take 2.4 GB."""
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((60, 5_000_000), density=4e-7, rng=rng, format="csr")
    model = FrankWolfeSVC(random_state=0).fit(X, np.arange(60) % 2).model_
    with pytest.raises(InputError, match="or columns for an ONNX file"):
        to_onnx(model)
