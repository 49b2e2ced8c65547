"""Labels of passes over many rows, by few of the support vectors and by all of them."""

import dataclasses
import pickle

import numpy as np
import pytest
from scipy.sparse import csr_array

from ooc_fw import make_kernel
from ooc_fw.data.sources import ArraySource, CSRSource
from ooc_fw.model.machines import Classifier
from ooc_fw.model.prediction import Predictor, Wanted, decide
from tests.support.low_rank import few_vertices
from tests.support.models import make_model
from tests.support.reference import kernel_values

N_VECTORS = 60


def vectors_and_rows():
    """Support vectors with repeats, and rows near few centres: all vectors and zeros among them."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 4))
    X = centres[rng.integers(0, 6, 700)] + 0.2 * rng.normal(size=(700, 4))
    X[:N_VECTORS:10] = X[1]
    X[-5:] = 0
    return X[:N_VECTORS].astype(np.float32), X.astype(np.float32)


def made(kind, vectors, kernel, sparse):
    """A model whose bias decides nothing."""
    n_classes = 3 if kind in ("pairs", "landmarks") else 2
    own = {"kernel": kernel, "sparse": sparse, "rho": 0.01, "landmarks": kind == "landmarks"}
    model = make_model(vectors, n_classes, **own)
    if kind == "landmarks":
        return model
    rng, n = np.random.default_rng(1), len(vectors)
    places, betas = [], []
    for _ in range(len(model.classifiers)):
        places.append(rng.permutation(n)[: n - 9 if kind == "pairs" else n])
        labels = np.where(vectors[places[-1], 0] > 0, 1, -1)
        alpha = rng.dirichlet(np.ones(len(labels)))
        for label in (-1, 1):
            alpha[labels == label] /= 2 * alpha[labels == label].sum()
        betas.append(alpha * labels * rng.choice([-1, 1]))
    if kind == "novelty":
        betas[0] = np.abs(betas[0])
    own = [Classifier(*each, 0.01) for each in zip(places, betas, strict=True)]
    model = dataclasses.replace(model, classifiers=own)
    if kind == "novelty":
        values = kernel_values(kernel, vectors, vectors[places[0]]) @ betas[0]
        offset = float(np.quantile(values.astype(np.float64), 0.3))
        model = dataclasses.replace(model, offset=offset, classes=np.array([-1.0, 1.0]))
    return model


def places(model, rows, source_of=ArraySource):
    source = source_of(rows, np.zeros(len(rows)))
    parts = decide(model, source, Wanted(True), threads=2)
    return model.class_places(np.concatenate(list(parts)))


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
    model = made(kind, vectors, make_kernel(kernel, gamma=0.1, coef0=1.0), sparse)
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
            assert len(predictor.function.compressions[-1].places) > 10
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
            np.testing.assert_array_equal(predictor(rows)[0], there(rows)[0])
