"""Estimators: any source, weights of rows, copies, names of columns and chunks."""

import copy
import pickle
import zlib
from functools import partial

import anndata
import dask.array
import h5py
import numpy as np
import pandas
import polars
import pyarrow
import pytest
import scipy.sparse
import zarr
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC

from ooc_fw import (
    FrankWolfeOneClass,
    FrankWolfeSVC,
    FrankWolfeSVR,
    InputError,
    load_model,
    open_dataset,
    train_test_split,
)
from ooc_fw.model.file import content_of
from tests.support.contracts import to_dense
from tests.support.files import write_dense, write_sparse
from tests.support.reference import SmallProblem, kernel_values

CLASSES = [-7, 3]


@pytest.fixture(scope="module")
def thirds(table):
    """Names of three thirds of the rows, by a column."""
    return np.array(["low", "mid", "top"])[np.argsort(np.argsort(table.X[:, 0])) * 3 // 200]


@pytest.fixture(scope="module")
def weights():
    """Weights of rows over an order of magnitude, some of them 0."""
    rng = np.random.default_rng(3)
    return np.exp(rng.normal(size=200)) * (rng.random(200) < 0.8)


def pickled(estimator):
    return pickle.loads(pickle.dumps(estimator))


KINDS = pytest.mark.parametrize(
    "own",
    [
        FrankWolfeSVC(C=5, exact=True, random_state=0),
        FrankWolfeOneClass(contamination=0.1, random_state=0),
        FrankWolfeSVR(landmarks=60, gamma=0.3, random_state=0),
    ],
    ids=lambda own: type(own).__name__,
)


@KINDS
def test_files_and_copies_of_an_estimator_predict_the_same(own, table, tmp_path):
    X, y = table
    own = clone(own).fit(X, y)
    own.save(tmp_path / "m.h5")
    again = pickled(own)
    assert vars(again).keys() == vars(own).keys()
    assert again.get_params() == own.get_params()
    assert content_of(again.model_) == content_of(own.model_)
    for other in (load_model(tmp_path / "m.h5"), copy.deepcopy(own), again):
        np.testing.assert_array_equal(other.predict(X), own.predict(X))
    for name in ("support_", "dual_coef_", "intercept_", "n_iter_", "certified_gap_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(own, name))
    data = write_dense(tmp_path / "d.h5", X, y, chunks=(50, 4), compression="gzip")
    of_file = clone(own).fit(data)
    assert of_file.certified_gap_ <= 2e-3
    values = own.model_.decision_function(X)
    for rows, expected in ((X, values), (data, values[::-1])):  # in the order of its /row
        found = of_file.model_.decision_function(rows)
        np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(y).max())


def test_not_converging_is_a_warning(table):
    estimator = FrankWolfeSVC(method="fw", max_iter=1)
    with pytest.warns(ConvergenceWarning, match="stopped by the limit of iterations before the"):
        estimator.fit(*table)
    assert estimator.n_iter_ == estimator.fit_status_ == 1
    assert FrankWolfeSVC(certify=False).fit(*table).model_.status == "sampled"  # no warning


def test_integer_random_state_is_the_seed_of_the_command(ooc_fw, data_file, tmp_path):
    ooc_fw("train", data_file, "-o", tmp_path / "a.h5", "--seed", 4, "--C", 5)
    FrankWolfeSVC(C=5, random_state=4).fit(data_file).save(tmp_path / "b.h5")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def sources(table, folder):
    """The same rows in every form that is taken, with their labels."""
    X, y = table
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    with h5py.File(folder / "d.h5", "w") as file:
        file["X"], file["y"] = X, y
        yield "h5py", file["X"], y
    yield "float64", X.astype(float), y
    yield "list", X.tolist(), y.tolist()
    yield "scipy", scipy.sparse.csr_matrix(X), y
    yield "npy", str(folder / "X.npy"), str(folder / "y.npy")
    yield "npy and array", folder / "X.npy", y
    yield "memmap", np.load(folder / "X.npy", mmap_mode="r"), np.load(folder / "y.npy")
    yield "hdf5", folder / "d.h5", None
    yield "chunks", write_dense(folder / "37.h5", X, y, chunks=(37, 4)), None
    yield "csr file", write_sparse(folder / "csr.h5", X, y, chunks=(7,)), None
    yield "zarr", zarr.create_array(str(folder / "X.zarr"), data=X, chunks=(64, 4)), y
    yield "dask", dask.array.from_array(X, chunks=(64, 4)), y
    yield "source", open_dataset(X, y), None
    columns = {name: X[:, k] for k, name in enumerate("abcd")}
    yield "polars", polars.DataFrame(columns), polars.Series(y)
    yield "arrow", pyarrow.table(columns), pyarrow.chunked_array([y[:70], y[70:]])


def test_every_source_gives_the_optimum_by_brute_force(table, weights, tmp_path):
    """Rows have weights, and those of weight 0 count as removed."""
    rows = np.flatnonzero(weights)
    penalties = 5 * weights * np.where(table.y == 3, 2.0, 0.5)
    scores = set()
    for name, X, y in sources(table, tmp_path):
        fitted = FrankWolfeSVC(C=5, tol=1e-6, class_weight={-7: 0.5, 3: 2.0})
        is_reversed = name in ("chunks", "csr file")  # by their row numbers in the input
        fitted.fit(X, y, sample_weight=weights[::-1] if is_reversed else weights)
        scores.add(fitted.score(X, y))
        assert fitted.classes_.tolist() == CLASSES, name
        assert (weights[fitted.support_] > 0).all(), name
        vectors = to_dense(fitted.support_vectors_)
        np.testing.assert_array_equal(vectors, table.X[fitted.support_])
        (own,) = fitted.model_.classifiers
        np.testing.assert_allclose(fitted.model_.penalties, penalties[fitted.model_.rows])
        signs = np.where(table.y[rows] == 3, 1, -1).astype(np.int8)
        problem = SmallProblem(fitted.model_.kernel, table.X[rows], signs, penalties[rows])
        truth = problem.truth(np.searchsorted(rows, fitted.model_.rows), own.alpha)
        assert truth.gap <= fitted.certified_gap_, name
        assert fitted.objective_gap_ <= 2e-6, name
        assert own.rho / 2 == pytest.approx(problem.optimum.objective, rel=1e-5), name
    assert len(scores) == 1


def part_of(path, table, rows):
    """A file of some rows of the table, in this order."""
    write_dense(path, table.X[rows], table.y[rows])
    with h5py.File(path, "r+") as file:
        file["row"][:] = rows
        file["checksums/row"][:] = zlib.crc32(rows)
        file.attrs["n_input"] = 200
    return path


def test_labels_and_weights_beside_a_file_are_those_of_its_input(table, weights, tmp_path):
    """The file is shuffled or a part; the order of arrays is that of the input."""
    X, y = table
    order = np.random.default_rng(0).permutation(200)
    path = part_of(tmp_path / "d.h5", table, order)
    given = {"sample_weight": weights}
    known = FrankWolfeSVC(tol=1e-10).fit(X, y, **given)
    own = FrankWolfeSVC(tol=1e-10).fit(path, y, **given)
    assert sorted(order[own.support_]) == sorted(known.support_)
    assert own.score(path, y, **given) == own.score(path, **given) == own.score(X, y, **given)
    assert own.model_.certify(path, y).certified_gap <= own.certified_gap_ * 1.01
    chunks = clone(own).partial_fit(path, y, classes=np.unique(y))
    assert chunks.score(path, y) > 0.85
    targets = FrankWolfeSVR().fit(path, X[:, 0])
    assert targets.score(path, X[:, 0]) == pytest.approx(targets.score(X, X[:, 0]))
    assert targets.score(path, X[:, 0]) > 0.9
    marks = clone(own).set_params(landmarks=30, tol=0.1)
    marks.fit(path, y, sample_weight=weights + 0.5)
    penalties = marks.C * (weights + 0.5)
    found = marks.model_.certify(path, y, penalties=penalties)
    assert found.certified_gap == pytest.approx(marks.certified_gap_, rel=1e-6)
    _, test = train_test_split(path)
    assert own.score(test, test.labels(0, 60)) == own.score(test)
    some = order[140:]
    part = part_of(tmp_path / "part.h5", table, some)
    assert own.score(part, y) == own.score(part)
    with pytest.raises(InputError, match="60 rows of an input of 200 but 60 labels"):
        own.score(part, y[some])
    with pytest.raises(InputError, match="60 rows of an input of 200 but 60 weights"):
        own.score(part, y, sample_weight=weights[some])
    with h5py.File(path) as file, pytest.raises(InputError, match="itself; give their name"):
        own.score(file, file["y"])


def frame(X):
    return pandas.DataFrame(X, columns=["a", "b", "c", "d"])


@KINDS
def test_names_of_columns_are_those_of_scikit_learn(tmp_path, table, own):
    """An estimator that was fitted on anything but a frame finds columns by their names, too."""
    X = frame(table.X)
    other = X[["d", "b", "a", "c"]]
    named = anndata.AnnData(table.X, obs={"y": table.y})
    named.var_names = X.columns
    named.layers["turned"] = -table.X
    named.write_h5ad(tmp_path / "named.h5ad")
    y = None if isinstance(own, FrankWolfeOneClass) else "y"
    of_file, of_frame = clone(own).fit(tmp_path / "named.h5ad", y), clone(own).fit(X, table.y)
    for each in (of_file, pickled(of_file), of_frame.model_):
        np.testing.assert_array_equal(each.predict(other), each.predict(X))
    turned = clone(own).fit(tmp_path / "named.h5ad", y, x_name="layers/turned")
    for x_name, rows in ((None, -X), ("X", X)):
        found = turned.predict(tmp_path / "named.h5ad", x_name=x_name)
        np.testing.assert_array_equal(found, turned.predict(rows))
    for each in (of_file, pickled(of_frame)):
        assert each.feature_names_in_.tolist() == ["a", "b", "c", "d"]
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            each.predict(table.X)
    with pytest.raises(ValueError, match="feature names should match"):  # as scikit-learn demands
        of_frame.predict(other)
    assert not hasattr(of_frame.fit(table.X, table.y), "feature_names_in_")


@pytest.mark.parametrize("form", [pandas.DataFrame, polars.DataFrame, pyarrow.table, "cells"])
def test_a_name_selects_labels_and_scores_leave_out_rows_without(table, form):
    frame = pandas.DataFrame(table.X, columns=[*"abcd"])
    y = np.where(table.y > 0, "yes", "no").astype(object)
    gaps = np.where(np.arange(200) < 7, None, y)

    def data(labels):
        if form == "cells":
            return anndata.AnnData(frame.rename(index=str), {"kind": labels})
        return form(frame.assign(kind=labels))

    model = FrankWolfeSVC(C=10).fit(data(y), "kind")
    assert model.score(data(gaps), "kind") == model.score(data(y)[7:], "kind")
    first = FrankWolfeSVC().partial_fit(data(y), "kind", ["yes", "no"])
    assert first.score(data(y), "kind") > 0.8
    assert train_test_split(data(y), labels="kind", stratify=True)[1].n_rows == 60
    with pytest.raises(InputError, match="labels='kind'"):
        train_test_split(data(y), "kind")
    with pytest.raises(InputError, match=r"is missing; .* missing_labels='drop'"):
        FrankWolfeSVC().fit(data(gaps), "kind")
    with pytest.raises(InputError, match="neither a file of labels nor a name"):
        FrankWolfeSVC().fit(table.X, "kind")


def test_chunks_are_put_together_by_name(table):
    X, y = frame(table.X), table.y
    anything = anndata.AnnData(X[["d", "b", "a", "c"]].to_numpy())
    anything.var_names = ["d", "b", "a", "c"]
    models = []
    for second in (X[100:], anything[100:].copy()):
        own = FrankWolfeSVC(random_state=0).partial_fit(X[:100], y[:100], classes=CLASSES)
        models.append(content_of(own.partial_fit(second, y[100:]).model_))
    assert models[0] == models[1]
    own = FrankWolfeSVC(random_state=0).partial_fit(anything, y, classes=CLASSES)
    assert own.partial_fit(X, y).score(X, y) == own.score(anything, y)


def test_attributes_of_an_svc(table, thirds):
    X = table.X.astype(np.float64)
    options = {"C": 3, "class_weight": {"low": 2.0, "top": 0.5}, "exact": True}
    fitted = FrankWolfeSVC("linear", **options).fit(X, thirds)
    assert fitted.classes_.tolist() == ["low", "mid", "top"]
    np.testing.assert_array_equal(fitted.class_weight_, [2.0, 1.0, 0.5])
    expected = [np.count_nonzero(thirds[fitted.support_] == name) for name in fitted.classes_]
    np.testing.assert_array_equal(fitted.n_support_, expected)
    np.testing.assert_array_equal(fitted.support_vectors_, X[fitted.support_])
    assert fitted.certified_gap_ <= 1e-3
    assert fitted.score(X, thirds) > 0.9
    of_pairs = fitted.model_.decision_function(X)
    values = kernel_values(fitted.model_.kernel, X, fitted.support_vectors_) @ fitted.dual_coef_.T
    np.testing.assert_allclose(of_pairs, values + fitted.intercept_, atol=1e-4)
    np.testing.assert_allclose(of_pairs, X @ fitted.coef_.T + fitted.intercept_, atol=1e-4)
    sparse = FrankWolfeSVC("linear", **options).fit(scipy.sparse.csr_array(X), thirds)
    np.testing.assert_allclose(sparse.coef_, fitted.coef_, atol=1e-5)
    scores = fitted.decision_function(X)
    assert fitted.classes_[scores.argmax(axis=1)].tolist() == fitted.predict(X).tolist()
    of_rbf = FrankWolfeSVC(gamma=0.5).fit(X, thirds)
    assert of_rbf.gamma_ == 0.5
    assert not hasattr(of_rbf, "coef_")
    expected = of_rbf.model_.importance(X[of_rbf.support_]).values
    np.testing.assert_allclose(of_rbf.feature_importances_, expected, rtol=1e-5)


@pytest.mark.parametrize("several", [False, True])
def test_landmark_models(table, thirds, several):
    X, y = table.X, thirds if several else table.y
    weights = np.where(np.arange(len(y)) % 5 == 0, 0, 2)
    fitted = FrankWolfeSVC(C=5, landmarks=30, probability=True, class_weight="balanced")
    fitted.fit(X, y, sample_weight=weights)
    assert (fitted.model_.kind, fitted.gap_scope_, fitted.pairs_) == ("landmarks", "span", [])
    assert fitted.certified_gap_ <= 2e-3
    assert weights[fitted.support_].all()
    np.testing.assert_array_equal(fitted.support_vectors_, X[fitted.support_])
    K = kernel_values(fitted.model_.kernel, X, fitted.support_vectors_)
    values = K @ fitted.dual_coef_.T + fitted.intercept_
    decisions = fitted.decision_function(X)
    np.testing.assert_allclose(decisions.reshape(len(X), -1), values, atol=1e-5)
    best = decisions.argmax(axis=1) if several else (decisions > 0).astype(int)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[best])
    assert fitted.score(X, y) > 0.75
    np.testing.assert_allclose(fitted.predict_proba(X).sum(axis=1), 1)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), fitted.predict_proba(X))


def test_partial_fit_goes_on_from_a_fit_and_fit_starts_anew(table):
    """Gamma is that of the first chunk, and rows have numbers of their own."""
    X, y = table
    own = FrankWolfeSVC(C=5)
    for part in (slice(0, 150), slice(150, 200)):
        own.partial_fit(X[part], y[part], classes=CLASSES)
    assert own.model_.kernel == FrankWolfeSVC().fit(X[:150], y[:150]).model_.kernel
    assert own.fit(X[:100], y[:100]).solution_.status == "converged"
    pickled(own.partial_fit(X[100:150], y[100:150])).partial_fit(X[150:], y[150:])
    own.partial_fit(X[150:], y[150:])
    np.testing.assert_array_equal(own.support_vectors_, X[own.support_])
    assert own.score(X, y) > 0.75


LABELS = {  # labels of two classes, and what makes them the user's object
    "digits": (["0", "1"], np.array),
    "truth words": (["false", "true"], list),
    "blanks": (["no ", "no"], np.array),
    "forms": (["1E3", "1000"], np.array),
    "objects": (["1.50", "1.5"], lambda y: np.array(y, dtype=object)),
    "booleans": ([False, True], np.array),
    "short": ([3, 7], lambda y: np.array(y, dtype=np.int8)),
    "beyond float64": ([2**53, 2**53 + 1], np.array),
    "beyond int64": ([2**63, 2**63 + 1], lambda y: np.array(y, dtype=np.uint64)),
    "float32": ([1.0, 2.0], lambda y: np.array(y, dtype=np.float32)),
    "pandas strings": (["a", "b"], lambda y: pandas.Series(y, dtype="string")),
    "categories": (["a", "b"], lambda y: pandas.Series(y, dtype="category")),
    "whole categories": ([5, 6], lambda y: pandas.Series(y, dtype="category")),
    "nullable": ([1, 2], lambda y: pandas.Series(y, dtype="Int64")),
    "arrow": (["a", "b"], pyarrow.array),
    "polars": (["a", "b"], polars.Series),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_keep_value_and_type_as_with_svc(tmp_path, kind):
    """In fit, weights, chunks, scores, certificates and model files."""
    values, of = LABELS[kind]
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = of([values[k] for k in (X[:, 0] > 0).astype(int)])
    known = SVC().fit(X, y)
    own = FrankWolfeSVC(class_weight={values[0]: 2}).fit(X, y)
    assert own.classes_.dtype == known.classes_.dtype
    assert own.classes_.tolist() == known.classes_.tolist()
    assert own.class_weight_[known.classes_.tolist().index(values[0])] == 2
    found = own.predict(X)
    assert found.dtype == known.predict(X).dtype
    assert own.score(X, y) == np.mean(found == np.asarray(y, dtype=found.dtype)) > 0.8
    own.save(tmp_path / "m.h5")
    held = load_model(tmp_path / "m.h5")
    assert held.predict(X).tolist() == found.tolist()
    assert {*map(type, held.classes.tolist())} == {*map(type, known.classes_.tolist())}
    assert held.certify(X, y).reached(1e-3)
    chunks = FrankWolfeSVC().partial_fit(X, y, classes=values).partial_fit(X, y)
    assert chunks.classes_.tolist() == known.classes_.tolist()
    assert chunks.score(X, y) > 0.8


def test_large_nullable_labels_are_not_merged():
    """scikit-learn rounds them to float64."""
    X = np.repeat(np.eye(3), 20, axis=0)
    labels = pandas.Series(np.repeat(2**53 + np.arange(3), 20), dtype="Int64")
    own = FrankWolfeSVC().fit(X, labels)
    assert own.predict(X).tolist() == labels.tolist()
    assert own.partial_fit(X, labels).predict(X).tolist() == labels.tolist()


@pytest.mark.parametrize("word", ["a\0", "\ud800"])
def test_words_that_no_file_can_hold_are_refused_before_training(word):
    classes = np.array(["a", word], dtype=object)
    y = np.repeat(classes, 20)
    for fit in (FrankWolfeSVC().fit, partial(FrankWolfeSVC().partial_fit, classes=[0, 1])):
        with pytest.raises(InputError, match="row 20 of y ends with NUL or is not UTF-8"):
            fit(np.eye(40), y)


def test_fractions_in_a_file_are_classes(tmp_path):
    X = np.repeat(np.eye(2), 20, axis=0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"] = X
        file["y"] = np.repeat([0.5, 1.5], 20)
    own = FrankWolfeSVC().fit(tmp_path / "a.h5")
    assert own.score(tmp_path / "a.h5") == 1
    assert own.score(X, np.repeat([0.5, 7.5], 20)) == 0.5
