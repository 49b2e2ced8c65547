import copy
import dataclasses
import pickle
import time

import anndata
import dask.array
import h5py
import numpy as np
import polars
import pyarrow
import pytest
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    check_sample_weight_equivalence_on_sparse_data,
    parametrize_with_checks,
)

from ooc_fw import (
    FrankWolfeOneClass,
    FrankWolfeSVC,
    FrankWolfeSVR,
    InputError,
    load_model,
    open_dataset,
)
from ooc_fw.model.file import content_of
from ooc_fw.report.progress import Progress
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.testing import EXPECTED_FAILED_CHECKS, EXPECTED_FAILED_CHECKS_WITH_PROBABILITY
from tests.support.contracts import to_dense
from tests.support.methods import grid
from tests.support.reference import SmallProblem, kernel_values

try:
    import zarr
except ImportError:
    zarr = None

CLASSES = [-7, 3]


@pytest.mark.grid
@parametrize_with_checks(
    [FrankWolfeSVC()], expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_weights_of_rows_are_copies():
    """Checks that are expected to fail pass with a small tolerance and a number for gamma."""
    for check in (
        check_sample_weight_equivalence_on_dense_data,
        check_sample_weight_equivalence_on_sparse_data,
    ):
        check("FrankWolfeSVC", FrankWolfeSVC(tol=1e-9, gamma=0.2))


@pytest.mark.long
@parametrize_with_checks(
    [FrankWolfeSVC(probability=True)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS_WITH_PROBABILITY,
)
def test_scikit_learn_checks_with_probabilities(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def fitted(table):
    return FrankWolfeSVC(C=5, random_state=0).fit(*table)


@pytest.fixture(scope="module")
def thirds(table):
    """Names of three thirds of the rows, by a column."""
    return np.array(["low", "mid", "top"])[np.argsort(np.argsort(table.X[:, 0])) * 3 // 200]


@pytest.fixture(scope="module")
def weights():
    """Weights of rows over an order of magnitude, some of them 0."""
    rng = np.random.default_rng(3)
    return np.exp(rng.normal(size=200)) * (rng.random(200) < 0.8)


def test_weights_of_one_size_and_probabilities_change_no_classifier(fitted, table):
    for options, weight in (({"probability": True}, None), ({"C": 2.5}, np.full(200, 2))):
        again = FrankWolfeSVC(**{"C": 5, "random_state": 0} | options)
        again.fit(*table, sample_weight=weight)
        np.testing.assert_array_equal(again.dual_coef_, fitted.dual_coef_)
    assert fitted.model_.penalties is None


def test_integer_random_state_is_the_seed_of_the_command(ooc_fw, data_file, tmp_path):
    ooc_fw("train", data_file, "-o", tmp_path / "a.h5", "--seed", 4, "--C", 5)
    FrankWolfeSVC(C=5, random_state=4).fit(data_file).save(tmp_path / "b.h5")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_not_converging_warns_and_verbose_shows_progress(table, capsys, monkeypatch):
    monkeypatch.setattr("ooc_fw.report.progress.LINE_SECONDS", 0.01)
    show = Progress._show

    def show_for_a_while(progress, state):
        show(progress, state)
        time.sleep(0.05)

    monkeypatch.setattr(Progress, "_show", show_for_a_while)
    estimator = FrankWolfeSVC(method="fw", max_iter=1, verbose=1)
    with pytest.warns(
        ConvergenceWarning, match="stopped by the limit of iterations before the relative gap"
    ):
        estimator.fit(*table)
    assert estimator.n_iter_ == estimator.fit_status_ == 1
    assert "support vectors" in capsys.readouterr().err
    assert FrankWolfeSVC(certify=False).fit(*table).model_.status == "sampled"  # no warning


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kernel": "cubic"}, "kernel must be one of"),
        ({"gamma": "wide"}, "or a positive number, not 'wide'"),
        ({"method": "newton"}, "newton"),
        ({"C": -1}, "C must be a positive number"),
        ({"n_jobs": 0}, "n_jobs must be"),
        ({"max_time": "a"}, "max_time must be a positive number of seconds, not 'a'"),
        ({"random_state": -1}, "seed must be a whole number of at least 0"),
        ({"tol": "a"}, "tol must be a number, not 'a'"),
        ({"max_iter": "a"}, "max_iter must be a number, not 'a'"),
        ({"class_weight": [1, 2]}, r"must be 'balanced' or a weight .*, not \[1, 2\]"),
        ({"memory_limit": "1MiB"}, "limit of 1 MiB"),
        ({"kernel": lambda X, Z: X @ Z.T}, "kernel must be one of"),
    ],
)
def test_unusable_parameter(table, parameters, message):
    with pytest.raises(InputError, match=message):
        FrankWolfeSVC(**parameters).fit(*table)


LARGE = np.array([2**53, 2**53 + 1])


@pytest.mark.parametrize(
    ("classes", "options", "weights", "message"),
    [
        ([1, 1], {}, None, "have the label 1; .* one class"),
        (CLASSES, {}, [1, 0], "one class"),
        (CLASSES, {"max_time": "1e-9s"}, None, "before there was a model"),
        (LARGE, {}, None, "is a whole number"),
        (LARGE.astype(np.uint64), {}, None, "is a whole number"),
    ],
)
def test_unusable_labels(table, classes, options, weights, message):
    positive = (table.y == 3).astype(int)
    weights = None if weights is None else np.array(weights)[positive]
    y = np.asarray(classes)[positive]
    with pytest.raises((InputError, OutOfTimeError), match=message):
        FrankWolfeSVC(**options).fit(table.X, y, sample_weight=weights)


# -- sources and weights -------------------------------------------------------------------------


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
    if zarr is not None:
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
        fitted.fit(X, y, sample_weight=weights)
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
        assert truth.gap <= fitted.certified_gap_ <= 1e-6, name
        assert own.rho / 2 == pytest.approx(problem.optimum.objective, rel=1e-5), name
    assert len(scores) == 1


# -- going on, copies, company -------------------------------------------------------------------


def pickled(estimator):
    return pickle.loads(pickle.dumps(estimator))


@pytest.mark.parametrize(
    ("copied", "convert", "several"),
    [
        *((pickled, np.asarray, False), (pickled, scipy.sparse.csr_matrix, True)),
        *((copy.deepcopy, np.asarray, True), (copy.deepcopy, scipy.sparse.csr_matrix, False)),
    ],
)
def test_copies_are_the_same(table, thirds, several, convert, copied):
    X, y = convert(table.X), thirds if several else table.y
    fitted = FrankWolfeSVC(C=5, class_weight="balanced").fit(X, y)
    again = copied(fitted)
    assert vars(again).keys() == vars(fitted).keys()
    assert again.get_params() == fitted.get_params()
    assert content_of(again.model_) == content_of(fitted.model_)
    for name in ("classes_", "support_", "dual_coef_", "intercept_", "n_iter_", "certified_gap_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(fitted, name))
    for one, other in zip(again.pairs_, fitted.pairs_, strict=True):
        assert (one.negative, one.positive) == (other.negative, other.positive)
        for field in dataclasses.fields(one.solution):
            values = [getattr(side.solution, field.name) for side in (one, other)]
            assert type(values[0]) is type(values[1])
            if field.name == "support_vectors":
                values = [to_dense(rows) for rows in values]
            np.testing.assert_array_equal(*values)
    assert not hasattr(copied(FrankWolfeSVC(C=3)), "model_")


def test_files_of_a_run_that_are_refused(table, tmp_path):
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    FrankWolfeSVC(C=5).fit(*table, checkpoint=checkpoint)
    for options, message in (
        ({"log": log, "checkpoint": log}, "would both be"),
        ({"resume": checkpoint}, "made with other options: C 5"),
        (
            {"checkpoint": checkpoint, "checkpoint_every": "soon"},
            "must be a positive number",
        ),
    ):
        with pytest.raises(InputError, match=message):
            FrankWolfeSVC(C=4).fit(*table, **options)
    with pytest.raises(InputError, match="would replace the input"):
        FrankWolfeSVC().fit(checkpoint, log=checkpoint)
    FrankWolfeSVC(C=4).fit(*table, checkpoint=checkpoint, log=log)
    assert {path.name for path in tmp_path.iterdir()} == {"log", "checkpoint"}


# -- names of features ---------------------------------------------------------------------------


def frame(X):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(X, columns=["a", "b", "c", "d"])


def reordered(X):
    """Frames with the columns of `X` in another order, of every type."""
    pandas = pytest.importorskip("pandas")
    found = X[["d", "b", "a", "c"]]
    yield from (found.astype(kind) for kind in ("float64", "Float32", "object"))
    yield found.astype({"a": "float64", "c": "category"})
    yield found.set_axis(pandas.CategoricalIndex(found.columns), axis=1)
    yield found.rename(columns=str.encode)
    yield found.assign(more=1)
    yield polars.from_pandas(found)
    yield pyarrow.Table.from_pandas(found)


@pytest.mark.parametrize("kind", [FrankWolfeSVC, FrankWolfeOneClass, FrankWolfeSVR])
def test_columns_of_frames_are_found_by_name(tmp_path, table, kind, caplog):
    """By models and by estimators that were fitted on anything but a frame."""
    X, path = frame(table.X), tmp_path / "named.h5ad"
    named = anndata.AnnData(table.X, obs={"y": table.y})
    named.var_names = X.columns
    named.write_h5ad(path)
    own = kind(random_state=0).fit(path, None if kind is FrankWolfeOneClass else "y")
    own.save(tmp_path / "m.h5")
    estimators = own, pickled(own), load_model(tmp_path / "m.h5")
    methods = "predict", "decision_function", "score_samples"
    calls = [getattr(each, name) for each in estimators for name in methods if hasattr(each, name)]
    for call in calls:
        expected = call(X)
        for other in reordered(X):
            np.testing.assert_array_equal(call(other), expected)
        for lacking in (X.drop(columns="b"), X.rename(columns={"b": "z"})):
            with pytest.raises(InputError, match="lacks the feature 'b'"):
                call(lacking)
        with pytest.raises(InputError, match="has a name twice"):
            call(X[["b", "a", "a", "c", "d"]])
    own.model_.predict(table.X)
    assert "array or the training data name no features" in caplog.text
    assert own.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        own.predict(table.X)
    if kind is not FrankWolfeOneClass:
        assert own.score(X[["d", "b", "a", "c"]], table.y) == own.score(X, table.y)


@pytest.mark.parametrize("kind", [FrankWolfeSVC, FrankWolfeOneClass, FrankWolfeSVR])
def test_models_know_the_columns_of_frames(table, data_file, kind, caplog):
    X, y = frame(table.X), table.y
    own = kind(random_state=0).fit(X, y)
    assert own.model_.columns == tuple(pickled(own).feature_names_in_) == ("a", "b", "c", "d")
    expected = own.predict(X)
    for other in reordered(X):
        np.testing.assert_array_equal(own.model_.predict(other), own.model_.predict(X))
    with pytest.raises(ValueError, match="feature names should match"):  # as scikit-learn demands
        own.predict(X[["d", "b", "a", "c"]])
    numbered = X.set_axis(range(4), axis=1)
    own.fit(numbered, y)
    np.testing.assert_array_equal(own.predict(numbered[[2, 0, 3, 1]]), expected)
    assert "name no features" not in caplog.text
    own.fit(table.X, y).model_.predict(X)
    assert "array or the training data name no features" in caplog.text
    assert not hasattr(own.fit(X, y).fit(data_file), "feature_names_in_")


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


# -- several classes, linear models, landmarks, functions as kernels -------------------------------


def test_attributes_of_an_svc(table, thirds, tmp_path):
    X = table.X.astype(np.float64)
    options = {"C": 3, "class_weight": {"low": 2.0, "top": 0.5}}
    fitted = FrankWolfeSVC("linear", **options).fit(X, thirds)
    assert fitted.classes_.tolist() == ["low", "mid", "top"]
    np.testing.assert_array_equal(fitted.class_weight_, [2.0, 1.0, 0.5])
    expected = [np.count_nonzero(thirds[fitted.support_] == name) for name in fitted.classes_]
    np.testing.assert_array_equal(fitted.n_support_, expected)
    np.testing.assert_array_equal(fitted.support_vectors_, X[fitted.support_])
    assert fitted.fit_status_ == 0
    assert fitted.certified_gap_ <= 1e-3
    assert fitted.score(X, thirds) > 0.9
    of_pairs = fitted.model_.decision_function(X)
    values = kernel_values(fitted.model_.kernel, X, fitted.support_vectors_) @ fitted.dual_coef_.T
    np.testing.assert_allclose(of_pairs, values + fitted.intercept_, atol=1e-4)
    np.testing.assert_allclose(of_pairs, X @ fitted.coef_.T + fitted.intercept_, atol=1e-4)
    sparse = FrankWolfeSVC("linear", **options).fit(scipy.sparse.csr_array(X), thirds)
    np.testing.assert_allclose(sparse.coef_, fitted.coef_, atol=1e-5)
    scores = fitted.decision_function(X)
    assert scores.shape == (200, 3)
    assert fitted.classes_[scores.argmax(axis=1)].tolist() == fitted.predict(X).tolist()
    fitted.save(tmp_path / "m.h5")
    assert load_model(tmp_path / "m.h5").predict(X).tolist() == fitted.predict(X).tolist()
    assert not hasattr(FrankWolfeSVC().fit(X, thirds), "coef_")


@pytest.mark.parametrize("several", [False, True])
def test_landmark_models(table, thirds, several):
    X, y = table.X, thirds if several else table.y
    weights = np.where(np.arange(len(y)) % 5 == 0, 0, 2)
    fitted = FrankWolfeSVC(C=5, landmarks=30, probability=True, class_weight="balanced")
    fitted.fit(X, y, sample_weight=weights)
    assert (fitted.model_.kind, fitted.gap_scope_, fitted.pairs_) == ("landmarks", "span", [])
    assert fitted.certified_gap_ <= 2e-3
    assert fitted.n_iter_ > 0
    assert weights[fitted.support_].all()
    np.testing.assert_array_equal(fitted.support_vectors_, X[fitted.support_])
    K = kernel_values(fitted.model_.kernel, X, fitted.support_vectors_)
    values = K @ fitted.dual_coef_.T + fitted.intercept_
    decisions = fitted.decision_function(X)
    assert decisions.shape == ((len(X), 3) if several else (len(X),))
    np.testing.assert_allclose(decisions.reshape(len(X), -1), values, atol=1e-5)
    best = decisions.argmax(axis=1) if several else (decisions > 0).astype(int)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[best])
    assert fitted.score(X, y) > 0.75
    np.testing.assert_allclose(fitted.predict_proba(X).sum(axis=1), 1)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), fitted.predict_proba(X))
    np.testing.assert_array_equal(pickled(fitted).decision_function(X), decisions)
    with pytest.raises(InputError, match="cannot continue"):
        fitted.partial_fit(X, y)
    fitted.set_params(probability=False)
    assert fitted.set_params(landmarks=None).fit(X, y).model_.kind == "exact"
    assert fitted.set_params(landmarks="auto").fit(X, y).model_.kind == "exact"
    with pytest.raises(InputError, match="contradict each other"):
        fitted.set_params(landmarks=25, exact=True).fit(X, y)


# -- partial_fit ---------------------------------------------------------------------------------


def teach(data, *, classes=CLASSES, chunk=60, epochs=1, form=np.asarray, **options):
    """Train by chunks."""
    own, (X, y) = FrankWolfeSVC(**{"C": 5, "gamma": 0.1} | options), data
    for start in [*range(0, len(y), chunk)] * epochs:
        part = slice(start, start + chunk)
        own.partial_fit(form(X[part]), y[part], classes=classes)
    return own


def test_what_partial_fit_says_of_itself(table, tmp_path):
    taught = teach(table)
    assert taught.solution_.status == taught.model_.status == "streamed"
    assert taught.certified_gap_ is None
    assert 0 <= taught.solution_.sampled_gap <= taught.tol
    assert taught.classes_.tolist() == CLASSES
    assert taught.n_features_in_ == 4
    assert taught.score(*table) > 0.8
    np.testing.assert_array_equal(taught.support_vectors_, table.X[taught.support_])
    taught.save(tmp_path / "m.h5")
    loaded = load_model(tmp_path / "m.h5")
    assert loaded.status == "streamed"
    assert np.array_equal(loaded.predict(table.X), taught.predict(table.X))


@pytest.mark.parametrize("several", [False, True])
def test_chunks_that_come_again_give_the_classifier_of_fit(table, thirds, several):
    """Chunks may lack classes."""
    data, classes = table, CLASSES
    options = {"C": 5, "gamma": 0.2, "tol": 1e-5}
    if several:
        order, classes = np.argsort(thirds, kind="stable"), ["low", "mid", "top"]
        data = table.X[order], thirds[order]
        first = teach((data[0][:40], data[1][:40]), classes=classes)
        assert set(first.predict(table.X)) == {"low"}  # no other was seen
    expected = FrankWolfeSVC(**options).fit(*data)
    taught = teach(data, classes=classes, chunk=40, epochs=4, **options)
    values = [each.model_.decision_function(table.X) for each in (expected, taught)]
    np.testing.assert_allclose(*values, atol=1e-3)
    assert taught.n_support_.sum() == len(taught.support_)
    for again in (expected, pickled(taught)):
        again.partial_fit(*data)
        found = again.model_.decision_function(table.X)
        np.testing.assert_allclose(found, values[1], atol=1e-3)


def test_chunks_of_files_and_sparse_ones(table, data_file):
    taught, expected = teach(table, form=scipy.sparse.csr_matrix), teach(table)
    assert taught.solution_.objective == pytest.approx(expected.solution_.objective, rel=1e-3)
    from_file = FrankWolfeSVC(C=5).partial_fit(data_file, classes=CLASSES)
    assert from_file.model_.scaling.kind == "minmax"
    assert from_file.score(data_file) > 0.8


def test_partial_fit_goes_on_from_a_fit_and_fit_starts_anew(table):
    """Gamma is that of the first chunk, and no model with weights is gone on from."""
    taught = teach(table, gamma="auto", chunk=150)
    gamma = FrankWolfeSVC().fit(table.X[:150], table.y[:150]).model_.kernel.gamma
    assert taught.model_.kernel.gamma == gamma
    taught.fit(table.X[:100], table.y[:100])
    assert taught.solution_.status == "converged"
    taught.partial_fit(table.X[100:], table.y[100:])
    np.testing.assert_array_equal(taught.support_vectors_, table.X[taught.support_])
    assert taught.score(*table) > 0.75
    taught.fit(*table, sample_weight=np.arange(200) + 1)
    with pytest.raises(InputError, match="takes no weights"):
        taught.partial_fit(*table)


@pytest.mark.parametrize("n_classes", grid([6, 5], quick=1))
def test_classes_that_no_chunk_holds(table, n_classes, tmp_path):
    """They change nothing for the others; a model, its file and its copies hold the same."""
    X, y = table.X, np.where(table.y == 3, n_classes - 1, n_classes - 2)
    y[np.flatnonzero(table.X[:, 0] > 1)] = n_classes - 3
    fewer = teach((X, y), classes=np.unique(y), chunk=100)
    whole = teach((X, y), classes=range(n_classes), chunk=100)
    np.testing.assert_array_equal(whole.predict(X), fewer.predict(X))
    values = whole.model_.decision_function(X)[:, -3:]
    np.testing.assert_allclose(values, fewer.model_.decision_function(X), atol=1e-5)
    np.testing.assert_array_equal(whole.support_vectors_, X[whole.support_])
    np.testing.assert_array_equal(
        whole.n_support_, np.bincount(y[whole.support_], minlength=n_classes)
    )
    whole.save(tmp_path / "m.h5")
    loaded = load_model(tmp_path / "m.h5")
    np.testing.assert_array_equal(whole.model_.penalties, loaded.penalties)
    again = pickled(whole).partial_fit(X[:9], np.arange(9) % n_classes)
    assert again.n_support_.all()
    assert again.pairs_[0].solution.labels.tolist().count(-1) <= 2  # no row of another class


@pytest.mark.parametrize(
    ("labels", "classes", "options", "message"),
    [
        (CLASSES, None, {}, "classes must be given in the first call"),
        (CLASSES, [1, 2, 3], {}, r"has the label -7, but the classes are 1, 2, 3"),
        (CLASSES, [3], {}, "two classes or more, not 3"),
        (CLASSES, [-7, 3, np.nan], {}, "the label of row 2 of classes is missing"),
        (LARGE, LARGE, {}, "is a whole number"),
        (CLASSES, CLASSES, {"class_weight": "balanced"}, "takes no weights of rows or classes"),
    ],
)
def test_first_chunk_that_is_refused(table, labels, classes, options, message):
    y = np.asarray(labels)[(table.y == 3).astype(int)]
    with pytest.raises(ValueError, match=message):
        FrankWolfeSVC(**options).partial_fit(table.X, y, classes=classes)


def spoilt(X, row, value):
    X = X.astype(float)
    X[row, 1] = value
    return X


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (spoilt(X, 17, np.inf), y), "row 17 holds a value in column 1"),
        (lambda X, y: (scipy.sparse.csr_matrix(spoilt(X, 17, np.nan)), y), "row 17 holds a value"),
        (lambda X, y: (X[:, :3], y), "X has 3 features, but FrankWolfeSVC is expecting 4"),
        (lambda X, y: (X, np.where(np.arange(60) == 5, 8, y)), "row 5 of the chunk has the label"),
        (lambda X, y: (X, np.where(np.arange(60) == 5, np.nan, y)), "row 5 of the chunk"),
        (lambda X, y: (X, y[:-1]), "inconsistent numbers of samples"),
        (lambda X, y: (X[:0], y[:0]), "0 sample"),
        (lambda X, y: (X, y, [-7, 4]), "differ from those of earlier calls"),
        (lambda X, y: (open_dataset(X[:, :3], y), None), "has 3 features but the model was"),
    ],
)
def test_unusable_chunk_changes_nothing(table, change, message):
    taught, untouched = teach(table, chunk=100), teach(table, chunk=100)
    before = dict(vars(taught))
    with pytest.raises(ValueError, match=message):
        taught.partial_fit(*change(table.X[:60], table.y[:60]))
    assert vars(taught).keys() == before.keys()
    for name in ("pairs_", "model_", "classes_", "n_features_in_"):
        assert getattr(taught, name) is before[name], name
    for estimator in (taught, untouched):
        estimator.partial_fit(table.X[:60], table.y[:60])
    assert np.array_equal(taught.dual_coef_, untouched.dual_coef_)


def test_unusable_first_chunk_leaves_nothing(table):
    estimator = FrankWolfeSVC()
    with pytest.raises(InputError, match="row 3 holds"):
        estimator.partial_fit(spoilt(table.X, 3, np.nan), table.y, classes=CLASSES)
    with pytest.raises(InputError, match="gamma as a number"):
        estimator.partial_fit(table.X[:1], table.y[:1], classes=CLASSES)
    with pytest.raises(NotFittedError):
        estimator.predict(table.X)
    estimator.partial_fit(table.X[:, :2], table.y, classes=CLASSES)  # a width of its own
    assert estimator.n_features_in_ == 2


# -- probabilities -------------------------------------------------------------------------------


def test_no_probabilities_without_asking(fitted, table):
    assert not hasattr(fitted, "predict_proba")
    streamed = FrankWolfeSVC(probability=True).partial_fit(*table, classes=CLASSES)
    with pytest.raises(InputError, match="gives no probabilities"):
        streamed.predict_proba(table.X)


def test_rows_that_cannot_be_predicted():
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = FrankWolfeSVC(random_state=0).fit(X, np.where(X[:, 0] > 0, 1, -1))
    for odd, message in (
        (X[:, :2], "2 features"),
        (np.full((2, 3), np.nan), "NaN"),
        (np.full((2, 3), np.inf), "infinity"),
        (X[:0], "0 sample"),
        (X[0], "1D array"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(odd)
