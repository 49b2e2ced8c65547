"""Labels of passes over many rows, by few of the support vectors and by all of them."""

import pickle
from itertools import combinations

import numpy as np
import pytest
from scipy.sparse import csr_array

from ooc_fw import Model, make_kernel
from ooc_fw.data.sources import ArraySource, CSRSource
from ooc_fw.model.pairs import BinaryClassifier, LandmarkClassifier
from ooc_fw.model.prediction import Predictor, Wanted, iter_decisions
from tests.support.low_rank import few_vertices
from tests.support.reference import kernel_values, to_csr

N_VECTORS = 60
UNKNOWN = {"certified_gap": None, "sampled_gap": None}


def vectors_and_rows():
    """Support vectors with repeats, and rows near few centres: all vectors and zeros among them."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 4))
    X = centres[rng.integers(0, 6, 700)] + 0.2 * rng.normal(size=(700, 4))
    X[:N_VECTORS:10] = X[1]
    X[-5:] = 0
    return X[:N_VECTORS].astype(np.float32), X.astype(np.float32)


def make_model(kind, vectors, kernel, sparse):
    rng, n, offset = np.random.default_rng(1), len(vectors), None
    n_classes = 3 if kind in ("pairs", "landmarks") else 2
    classes = np.array([-1.0, 1.0]) if n_classes == 2 else np.arange(3.0)
    classifiers = []
    if kind == "landmarks":
        numbers = {"primal": 3.0, "dual": 2.5, "jitter": 1e-6, **UNKNOWN}
        places = {"landmarks": np.arange(n), "rows": np.arange(n)}
        classifiers = [
            LandmarkClassifier(
                beta=rng.normal(size=n), positive=label, negative="rest", **places, **numbers
            )
            for label in classes.tolist()
        ]
    for negative, positive in combinations(classes.tolist(), 2) if not classifiers else ():
        places = rng.permutation(n)[: n - 9 if kind == "pairs" else n]
        alpha, labels = rng.dirichlet(np.ones(len(places))), np.where(vectors[places, 0] > 0, 1, -1)
        for label in (-1, 1):  # so that the bias decides nothing
            alpha[labels == label] /= 2 * alpha[labels == label].sum()
        labels *= rng.choice([-1, 1])
        if kind == "novelty":
            labels[:] = 1
            values = kernel_values(kernel, vectors, vectors[places]) @ alpha
            offset = float(np.quantile(values.astype(np.float64), 0.3))
        own = {"alpha": alpha, "labels": labels.astype(np.int8), "sv": places, "rows": places}
        ends = {"positive": positive, "negative": negative, "rho": 0.01, "objective": 0.005}
        classifiers.append(BinaryClassifier(**own, **ends, **UNKNOWN))
    vectors = to_csr(vectors) if sparse else vectors
    fields = {"kernel": kernel, "C": 1.0, "scaling": None, "status": "converged", "offset": offset}
    return Model(classes=classes, support_vectors=vectors, classifiers=classifiers, **fields)


def places(model, rows, source_of=ArraySource):
    source = source_of(rows, np.zeros(len(rows)))
    parts = iter_decisions(model, source, Wanted(True), threads=2)
    return model.class_places(np.concatenate([values for _, values in parts]))


def near_the_borders(model, X):
    """Rows on either side of where the label changes, as near as float32 allows."""
    labels = places(model, X)
    low, high = (X[labels == label][:20].astype(np.float64) for label in (0, 1))
    for _ in range(30):
        middle = (low + high) / 2
        is_low = places(model, middle.astype(np.float32)) == 0
        low[is_low], high[~is_low] = middle[is_low], middle[~is_low]
    return np.concatenate([low, high]).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "kernel", "sparse"),
    [
        ("two", "rbf", False),
        ("two", "poly", True),
        ("pairs", "laplacian", False),
        ("novelty", "rbf", True),
        ("landmarks", "rbf", False),
    ],
)
def test_labels_by_few_vectors_are_those_by_all(kind, kernel, sparse):
    """Here and in other processes, to which the few are passed on: their values have the same bits.

    The rows include those whose labels no float32 value decides.
    """
    vectors, X = vectors_and_rows()
    model = make_model(kind, vectors, make_kernel(kernel, gamma=0.1, coef0=1.0), sparse)
    source_of = (lambda X, y: CSRSource(csr_array(X), y)) if sparse else ArraySource
    with few_vertices(None):
        X = np.concatenate([X, near_the_borders(model, X)])
        expected = places(model, X, source_of)
    assert len(np.unique(expected)) > 1
    with few_vertices(5):
        np.testing.assert_array_equal(places(model, X, source_of), expected)
        with model.engine() as engine:
            predictor = Predictor(model, Wanted(True), engine)
            predictor.prepare_for(source_of(X, np.zeros(len(X))))
            compression = predictor.function.compression
            assert compression is not None
            assert len(compression.places) > 10
            there = pickle.loads(pickle.dumps(predictor))
            rows = X[:300]
            of_few = [
                one.function.approximate(
                    rows, is_open=lambda values, _: np.zeros(len(values), bool)
                )
                for one in (predictor, there)
            ]
            np.testing.assert_array_equal(of_few[0].values, of_few[1].values)
            np.testing.assert_array_equal(of_few[0].bound, of_few[1].bound)
            np.testing.assert_array_equal(predictor(rows).values, there(rows).values)
