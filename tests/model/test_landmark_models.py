"""Landmark models: decision values, votes and probabilities by definition, and their file."""

import dataclasses

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ooc_fw.data.converted import CONTENT
from ooc_fw.data.opening import open_source
from ooc_fw.data.sources import CSRSource
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.landmarks import LandmarkSolution
from ooc_fw.model.pairs import LandmarkClassifier
from ooc_fw.model.prediction import DECISION_ACCURACY, class_probabilities, decide, sigmoid
from ooc_fw.model.record import Model, load_model
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError
from tests.support.reference import kernel_values, to_csr

N, D = 12, 3


def make_solution(k, *, size=1.0, **changes):
    """A made-up solution, whose landmarks are rows 0, 3, 6 ..."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(N, D)).astype(np.float32)
    beta = size * rng.normal(size=(k, N))
    beta[:, 0] = 0.0
    fields = {
        **{"status": Status.MAX_ITER, "choice": "", "rows": 3 * np.arange(N), "landmarks": rows},
        **{"beta": beta, "jitter": 2e-6, "primal": np.arange(3.0, 3 + k), "dual": np.full(k, 2.5)},
        **{"certified_gap": None, "sampled_gap": np.full(k, 0.25), "iterations": 7, "passes": 3.0},
        **{"kernel_evaluations": 1, "rows_read": 1, "bytes_read": 1, "seconds": 1.0},
        **{"sweep_seconds": None, "signal": None},
    }
    return LandmarkSolution(**fields | changes)


def make_model(n_classes=2, *, names=False, penalties=None, **changes):
    classes = np.array(["ä", "b", "c", "d"] if names else [-7.0, 3.0, 4.0, 9.0])[:n_classes]
    solution = make_solution(1 if n_classes == 2 else n_classes, **changes)
    kernel = make_kernel("rbf", gamma=0.5)
    return Model.of(solution, None, kernel=kernel, C=2.0, classes=classes, penalties=penalties)


def exact_decisions(model, X):
    """Decision values by definition, in extended precision, shape (n_rows, k)."""
    vectors = model.support_vectors
    return np.stack(
        [
            (kernel_values(model.kernel, X, vectors[own.landmarks]) + 1)
            @ own.beta.astype(np.longdouble)
            for own in model.classifiers
        ],
        axis=1,
    )


# -- decision values, classes, probabilities -------------------------------------------------------


@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize(("n_classes", "sparse"), [(2, False), (3, True)])
def test_decision_values_are_within_their_accuracy_however_large_the_weights(
    size, n_classes, sparse
):
    model = make_model(n_classes, size=size)
    X = np.random.default_rng(5).normal(size=(300, D)).astype(np.float32)
    source = CSRSource(to_csr(X)) if sparse else open_source(X)
    expected = exact_decisions(model, X)
    found = model.decision_function(source, threads=2).reshape(len(X), -1)
    assert np.abs(found - expected).max() <= DECISION_ACCURACY
    places = expected.argmax(axis=1) if n_classes == 3 else (expected[:, 0] > 0).astype(int)
    assert np.array_equal(model.predict(source), model.classes[places])


@pytest.mark.parametrize("labels_only", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("size", [0.1, 1e4])
def test_value_depends_on_the_row_and_the_model_alone(labels_only, sparse, size):
    model = make_model(3, size=size)
    X = np.random.default_rng(6).normal(size=(1000, D)).astype(np.float32)
    rows = to_csr(X) if sparse else X
    (whole,) = decide(model, [rows], threads=2, labels_only=labels_only)
    parts = [rows[start:stop] for start, stop in ((0, 1), (1, 40), (40, 700), (700, 1000))]
    found = np.concatenate(list(decide(model, parts, labels_only=labels_only)))
    assert np.array_equal(found, whole)


@given(arrays(np.float64, (6, 4), elements=st.floats(-1e4, 1e4)))
def test_probabilities_of_classes_against_the_rest_are_normalised(values):
    sigmoids = [(-1.5, 0.2), (-2.0, 0.0), (0.5, -1.0), (-1.0, 3.0)]
    found = class_probabilities(values, sigmoids, 4, "ovr")
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    each = np.stack([sigmoid(values[:, k], a, b) for k, (a, b) in enumerate(sigmoids)], axis=1)
    some = each.sum(axis=1) > 1e-200
    total = each[some].sum(axis=1, keepdims=True)
    # Sigmoids below the least normal number have fewer digits.
    rounding = 1e-9 * found[some] + np.finfo(float).tiny / total
    assert (np.abs(found[some] - each[some] / total) <= rounding).all()


def test_probabilities_of_a_model():
    model, values = make_model(3), np.array([-1.0, 0.5, 2.0])
    with pytest.raises(InputError, match="no probabilities"):
        model.probabilities(values[None])
    sure = model.with_sigmoids([(-1.0, 0.0), (-2.0, 0.5), (-3.0, 1.0)])
    each = 1 / (1 + np.exp(np.array([-1, -2, -3]) * values + [0, 0.5, 1]))
    np.testing.assert_allclose(sure.probabilities(values[None])[0], each / np.sum(each))
    two = make_model().with_sigmoids([(-1.0, 0.0)])
    p = 1 / (1 + np.exp(-values))
    np.testing.assert_allclose(two.probabilities(values), np.stack([1 - p, p], axis=1))


# -- record ----------------------------------------------------------------------------------------


def test_fields_of_a_model():
    penalties = np.arange(1.0, 100.0)
    model = make_model(3, penalties=penalties)
    assert (model.kind, model.decision, model.status) == ("landmarks", "ovr", "max_iter")
    assert (make_model().kind, make_model().decision) == ("landmarks", "ovo")
    assert model.certified_gap is None
    assert model.sampled_gap == 0.25
    assert make_model(3, certified_gap=np.array([0.1, 0.3, 0.2])).certified_gap == 0.3
    for k, own in enumerate(model.classifiers):
        assert (own.positive, own.negative) == (model.classes[k], "rest")
        assert (own.primal, own.dual, own.objective) == (3.0 + k, 2.5, 2.5)
        assert own.C.tolist() == penalties[3 * np.arange(N)].tolist()
        assert own.alpha.sum() == pytest.approx(1)
        np.testing.assert_allclose(own.alpha * own.labels / own.rho, own.beta, rtol=1e-14)
    (own,) = make_model().classifiers
    assert (own.positive, own.negative, own.C) == (3.0, -7.0, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": np.full(N, np.nan)}, "beta must be finite"),
        ({"beta": np.ones(3)}, "must be of one length"),
        ({"jitter": -1.0}, "jitter must be"),
        ({"primal": np.inf}, "primal must be"),
        ({"dual": -1.0}, "dual must be"),
        ({"C": np.zeros(N)}, "C must be positive"),
        ({"landmarks": np.arange(1, N + 1)}, "points outside the 12 vectors"),
        ({"landmarks": np.arange(N)[::-1]}, "have the same landmarks"),
        ({"rows": np.arange(N)}, "have the same landmarks"),
        (None, r"for each of them against the rest, not 3 .* 2 class"),
    ],
)
def test_impossible_models_are_refused(changes, message):
    model = make_model(3)
    first, second, third = model.classifiers

    def change():
        own = [first, third]
        if changes is not None:
            own.insert(1, dataclasses.replace(second, **changes))
        dataclasses.replace(model, classifiers=own)

    with pytest.raises(InputError, match=message):
        change()


# -- file ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_classes", "more"), [(2, False), (2, True), (3, True)])
def test_save_and_load_give_the_model_back(tmp_path, n_classes, more):
    weights = {"penalties": np.arange(1.0, 99.0), "names": True} if more else {"primal": None}
    model = make_model(n_classes, **weights)
    if more:
        model = model.with_sigmoids([(-1.0, 0.25)] * len(model.classifiers))
    model.save(tmp_path / "m.h5")
    loaded = load_model(tmp_path / "m.h5")
    assert loaded.to_bytes() == model.to_bytes()
    assert (loaded.kind, loaded.decision) == (model.kind, model.decision)
    assert (loaded.status, loaded.calibrated) == ("max_iter", more)
    for found, expected in zip(loaded.classifiers, model.classifiers, strict=True):
        assert isinstance(found, LandmarkClassifier)
        for field in dataclasses.fields(expected):
            np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


def test_layout_is_the_documented_one(tmp_path):
    make_model(3, penalties=np.arange(1.0, 99.0)).save(tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5") as file:
        assert file.attrs["format_version"] == 2
        assert file.attrs["decision"] == b"ovr"
        assert file.attrs["status"] == b"max_iter"
        own = file["machines/1"]
        kinds = {"beta": "float64", "landmarks": "int64", "rows": "int64", "C": "float64"}
        assert {name: str(values.dtype) for name, values in own.items()} == kinds
        assert dict(own.attrs) == {
            **{"kind": b"landmarks", "primal": 4.0, "dual": 2.5, "sampled_gap": 0.25},
            **{"jitter": 2e-6, "positive": 3.0, "negative": b"rest"},
        }
    make_model().save(tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5") as file:
        assert file.attrs["decision"] == b"ovo"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f.attrs.__setitem__("decision", "ovo"), "its decision is not 'ovr'"),
        (lambda f: f["machines/0"].attrs.__setitem__("kind", "x"), "of a kind 'x'"),
        (lambda f: f["machines/0"].attrs.__delitem__("kind"), "damaged"),
        (lambda f: f["machines/0"].attrs.__delitem__("jitter"), "damaged"),
        (lambda f: f["machines/0"].__delitem__("beta"), "damaged"),
        (lambda f: f["machines/0/beta"].__setitem__(0, np.inf), "beta must be finite"),
        (lambda f: f["machines/1/landmarks"].__setitem__(0, N), "outside the 12 vectors"),
        (lambda f: f["machines/1/rows"].__setitem__(0, 1), "have the same landmarks"),
    ],
)
def test_damaged_file(tmp_path, edit, message):
    path = tmp_path / "m.h5"
    for keeps_checksum in (False, True):
        make_model(3).save(path)
        with h5py.File(path, "r+") as file:
            edit(file)
            if not keeps_checksum:
                del file.attrs[CONTENT]
        with pytest.raises(InputError, match=f"m.h5.*({message}|checksum)"):
            load_model(path)
