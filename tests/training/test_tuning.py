"""Choosing C and gamma: errors are those of single trainings, and time limits are kept."""

import time

import numpy as np
import pytest
from sklearn import metrics

import ooc_fw
from ooc_fw import make_kernel, open_dataset, solve, tune
from ooc_fw.data.views import draw_parts
from ooc_fw.options import TrainOptions
from ooc_fw.problem import row_penalties
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.training import choice, tasks, tuning
from tests.support.reference import SmallProblem


def rings(n, seed=0, noise=0.3):
    """Two classes that no line separates, with overlap."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    far = (X[:, :2] ** 2).sum(axis=1) + noise * rng.normal(size=n) > 1.4
    return X, np.where(far, 4.0, 1.0)


@pytest.fixture(scope="module")
def data():
    return rings(600)


@pytest.fixture(scope="module")
def thirds():
    """Three classes by angle, with words for labels, and some noise."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(450, 2)).astype(np.float32)
    angle = np.arctan2(X[:, 1], X[:, 0]) + 0.2 * rng.normal(size=450)
    return X, np.array(["east", "north", "west"])[(np.abs(angle) / np.pi * 2.99).astype(int) % 3]


def test_best_has_the_least_error_and_is_trained_on_all_rows(data):
    X, y = data
    result, again = (tune(X, y, Cs=[1, 8, 64], gammas=[0.2, 1.0], seed=3) for _ in range(2))
    points = [(gamma, C) for gamma in (0.2, 1.0) for C in (1, 8, 64)]
    assert [(point.gamma, point.C) for point in result.points] == points
    last = [point for point in result.points if point.stage == result.best.stage]
    assert result.best.error == min(point.error for point in last) < 0.2
    assert result.best.n_validated == 600  # each row once, in four parts
    model, (own,) = result.model, result.model.classifiers
    assert (model.C, model.kernel.gamma) == (result.best.C, result.best.gamma)
    signs = np.where(y > 2, 1, -1).astype(np.int8)
    gap = SmallProblem(model.kernel, X, signs, model.C).truth(model.rows, own.alpha).gap
    assert gap <= own.certified_gap <= 1e-3
    np.testing.assert_array_equal(model.classes, [1, 4])
    assert [point.error for point in result.points] == [point.error for point in again.points]
    np.testing.assert_array_equal(own.alpha, again.model.classifiers[0].alpha)


def test_errors_are_those_of_single_trainings(data):
    """On the rows that are left, up to one row, since the classifiers have a larger gap."""
    X, y = data
    result = tune(X, y, Cs=[8], gammas=[1.0], seed=3)
    codes = (y > 2).astype(int)
    parts = draw_parts(600, [150] * 4, False, np.random.default_rng(3), codes)
    wrong = 0
    for held in parts:
        rest = np.setdiff1d(np.arange(600), held)
        model = ooc_fw.FrankWolfeSVC(C=8, gamma=1.0, tol=1e-4).fit(X[rest], y[rest])
        wrong += (model.predict(X[held]) != y[held]).sum()
    assert abs(600 * result.best.error - wrong) <= 4


def test_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=200)
    places = np.where(rng.random(200) < 0.7, truth, rng.integers(3, size=200))
    values = np.round(rng.normal(size=200), 1)
    two = (truth > 0).astype(int)
    for metric, *given, expected in (
        ("accuracy", truth, places, metrics.accuracy_score),
        ("balanced_accuracy", truth, places, metrics.balanced_accuracy_score),
        ("auc", two, values + two, metrics.roc_auc_score),
        ("r2", values, values + rng.normal(size=200), metrics.r2_score),
    ):
        assert tuning.score(metric, *given) == pytest.approx(expected(*given))


def test_balanced_accuracy_counts_all_classes_the_same():
    """Few rows are positive."""
    X, y = rings(900, noise=1.0)
    keep = (y == 1) | (np.arange(900) % 9 == 0)
    found = tune(X[keep], y[keep], metric="balanced_accuracy", Cs=[0.3, 300], gammas=[0.5])
    assert found.metric == "balanced_accuracy"
    of_all = row_penalties(found.best.C, *np.unique(y[keep], return_inverse=True), "balanced")
    np.testing.assert_allclose(found.model.penalties, of_all[found.model.rows])
    predicted = found.model.predict(X[keep])
    assert metrics.balanced_accuracy_score(y[keep], predicted) > 0.6


@pytest.mark.parametrize(
    ("landmarks", "several", "last"),
    [(None, False, 2), (40, False, 2), (None, True, 2), (None, False, 4)],
)
def test_an_interrupt_leaves_what_is_known(data, thirds, landmarks, several, last):
    """Also in a training on the next sample: rows are those of the sample before."""
    said = []

    def goes_on(state):
        return sum(": error" in sentence for sentence in said) < last

    X, y = thirds if several else data
    how = {"landmarks": landmarks, "callbacks": [goes_on], "say": said.append}
    result = tune(X, y, Cs=[1, 2, 4, 8], gammas=[0.5], **how)
    model = result.model
    assert (model.status, model.C, model.certified_gap) == ("interrupted", result.best.C, None)
    assert (model.predict(X) == y).mean() > 0.7
    np.testing.assert_array_equal(model.support_vectors, X[model.rows])
    left = np.unpackbits(model.weighted_rows)[: len(X)]
    assert left.sum() == result.best.n_rows
    assert left[model.rows].all()
    assert [p.stage for p in result.points] == [1] * last + [0] * (4 - last)
    with pytest.raises(KeyboardInterrupt):
        tune(*data, Cs=[1], gammas=[0.5], callbacks=[lambda state: False])


@pytest.fixture
def short(monkeypatch):
    """Stages that tests can afford: of 100 rows, and more; one validation part."""
    monkeypatch.setattr(tuning, "_FIRST_ROWS", 100)
    monkeypatch.setattr(tasks, "MOST_HELD_OUT", 300)


def heavy_tailed(n, seed=0):
    """Two classes, and columns with outliers, which the Laplacian kernel takes best."""
    rng = np.random.default_rng(seed)
    X = rng.standard_cauchy(size=(n, 4)).astype(np.float32)
    far = (np.abs(X) > 1).sum(axis=1) >= 2
    return X, np.where(far ^ (rng.random(n) < 0.05), "in", "out")


def test_stages_take_more_rows_and_fewer_candidates(short):
    X, y = heavy_tailed(2000)
    found = tune(X, y, metric="auc")
    assert (found.best.kernel, found.model.kernel.name) == ("laplacian", "laplacian")
    last = max(point.stage for point in found.points)
    sizes = [{p.n_rows for p in found.points if p.stage == k} for k in range(1, last + 1)]
    assert all(len(size) == 1 for size in sizes)
    assert sizes == sorted(sizes, key=min)
    assert max(sizes[-1]) == 2000 - found.best.n_validated
    assert found.best.error == min(p.error for p in found.points if p.stage == last)
    assert sizes[0] == {100}
    fresh, truth = heavy_tailed(2000, seed=9)
    values = found.model.decision_function(fresh)
    assert metrics.roc_auc_score(truth == "out", values) > 0.85


def test_a_last_model_that_is_late_gives_way_to_the_one_of_the_sample(data, monkeypatch):
    fit = tuning.fit

    def late(problem, options, *others):
        if problem.source.n_rows == 600:
            raise OutOfTimeError("late")
        return fit(problem, options, *others)

    monkeypatch.setattr(tuning, "fit", late)
    result = tune(*data, Cs=[1], gammas=[0.5])
    assert (result.model.status, result.model.certified_gap) == ("sampled", None)
    assert np.unpackbits(result.model.weighted_rows)[:600].sum() == result.best.n_rows == 450


def test_what_each_training_takes_at_least_does_not_grow_with_the_rows(data, short, monkeypatch):
    """As for many pairs of classes: the expected time of all rows leaves room for all of them."""
    fit_part = tuning.fit_part

    def slow(*given):
        time.sleep(0.7)
        return fit_part(*given)

    monkeypatch.setattr(tuning, "fit_part", slow)
    found = tune(*data, Cs=[1], gammas=[0.5], max_time=9)
    assert (found.best.n_rows, found.model.kind) == (420, "exact")


def test_a_last_model_that_seems_late_is_exact_if_samples_of_all_rows_say_so(data, monkeypatch):
    monkeypatch.setattr(tuning, "_REFIT_FACTOR", 1e9)
    monkeypatch.setattr("ooc_fw.training.choice.SAMPLE_ROWS", (100, 400))
    found = tune(*data, Cs=[1], gammas=[0.5], max_time=60)
    assert (found.model.kind, found.model.certified_gap is None) == ("exact", False)


def test_the_time_of_more_rows_grows_with_their_support_vectors(short):
    """Few rows lie between the classes, so that their number hardly grows."""
    X, y = rings(2000, noise=0.01)
    point = tune(X, y, Cs=[100], gammas=[1.0]).best
    assert point.n_rows == 1700
    assert 1.0 < point.growth < 1.7


def test_regression_is_searched_by_r2(short):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(900, 3)).astype(np.float32)
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=900)
    result = tune(X, y, task="regression", epsilon=0.05, Cs=[1, 10])
    assert (result.metric, result.model.task, result.model.epsilon) == ("r2", "regression", 0.05)
    assert result.best.error < 0.1
    fresh = rng.normal(size=(500, 3)).astype(np.float32)
    assert np.corrcoef(result.model.predict(fresh), np.sin(2 * fresh[:, 0]))[0, 1] > 0.95


def test_novelty_learns_ordinary_rows_alone():
    """Novel rows are as many as ordinary ones, and a few are enough for validation."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(1000, 3)).astype(np.float32)
    y = np.where(np.arange(1000) < 450, "odd", "usual")
    X[:450] += 4
    one = {"task": "novelty", "Cs": [0.1], "gammas": ["auto"]}
    result = tune(X, y, **one)
    known = (result.metric, result.model.task, result.ordinary)
    assert known == ("balanced_accuracy", "novelty", "usual")
    weighted = np.unpackbits(result.model.weighted_rows)[:1000]
    np.testing.assert_array_equal(weighted, y == "usual")
    np.testing.assert_array_equal(result.model.support_vectors, X[result.model.rows])
    assert metrics.roc_auc_score(y == "usual", result.model.decision_function(X)) > 0.99
    few = tune(X[440:], y[440:], contamination=0.01, **one)
    assert few.best.error < 0.02
    assert np.mean(few.model.predict(X[450:]) < 0) < 0.03
    three = np.where(np.arange(1000) > 990, "rare", y)
    named = tune(X, three, task="novelty", ordinary="odd", gammas=["auto"])
    assert (named.ordinary, named.n_rows) == ("odd", 450)


@pytest.mark.parametrize("contamination", [None, 0.02])
def test_a_novelty_search_is_judged_with_its_threshold(contamination):
    """Two classes that every C separates by rank: the search stops, and new rows are ordinary."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 4)).astype(np.float32)
    X[600:] = 0.5 * X[600:] + 6
    one = {"task": "novelty", "contamination": contamination}
    found = tune(X, np.arange(900) < 600, gammas=["auto"], **one)
    assert found.best.error < 0.06
    assert np.mean(found.model.predict(rng.normal(size=(3000, 4))) < 0) < 0.15
    assert np.mean(found.model.predict(X[600:]) < 0) > 0.99
    first = 300 / 600 * np.array([0.1, 100])
    for point in found.points:
        assert first[0] / 100 <= point.C <= first[1] * 100


@pytest.mark.parametrize("n_rare", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_rare_class_is_in_every_part(short, n_rare, seed):
    """In the training rows always, and in the held-out rows if it has two rows."""
    X, y = heavy_tailed(2000)
    y[np.random.default_rng(seed).permutation(2000)[:n_rare]] = "few"
    X[y == "few"] = 30
    said = []
    how = {"metric": "balanced_accuracy", "seed": seed, "say": said.append}
    found = tune(X, y, Cs=[10], gammas=["auto"], **how)
    assert found.model.classes.tolist() == ["few", "in", "out"]
    assert found.model.predict(X[y == "few"]).tolist() == ["few"] * n_rare
    assert ("the class few has too few rows" in " ".join(said)) == (n_rare == 1)


def test_a_path_ends_where_single_trainings_do(data):
    X, y = data
    signs = np.where(y > 2, 1, -1).astype(np.int8)
    problem = open_dataset(X), signs, make_kernel("rbf", gamma=0.7)
    start, tol = None, 1e-3
    for C in (2.0, 8.0, 4.0):
        options = TrainOptions(C=C, tol=tol, sample_size=300)
        warm = solve(*problem, options, warm=start)
        start = warm.rows, warm.alpha
        cold = solve(*problem, TrainOptions(C=C, tol=1e-5))
        assert warm.status == "converged"
        share = 1 - warm.dual / warm.primal
        assert warm.certified_gap <= tol or share <= 2 * tol
        # f* >= f (1 - d)^2, both ways
        assert cold.objective * (1 - 1e-5) ** 2 <= warm.objective * (1 + 1e-9)
        assert warm.objective * (1 - tol) ** 2 <= cold.objective
        again = solve(*problem, TrainOptions(C=C), warm=(cold.rows, 3 * cold.alpha))
        assert again.iterations < cold.iterations


def test_groups_judge_no_model_of_their_own_rows(data):
    """Noise labels that a group shares are learned only if its rows are on both sides."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 60, 600)
    X = (rng.normal(size=(60, 3))[groups] + 0.01 * rng.normal(size=(600, 3))).astype(np.float32)
    y = rng.integers(0, 2, 60)[groups]
    one = {"Cs": [10], "gammas": [5.0]}
    assert tune(X, y, **one).best.error < 0.05
    assert tune(X, y, groups=groups, **one).best.error > 0.3
    with pytest.raises(InputError, match="more groups"):
        tune(X, groups == 3, groups=groups, **one)


def half_planes(n, seed=0, noise=0.5):
    """Two classes that a line separates, with overlap."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    return X, np.where(X @ [1.0, -1.0, 0.5, 0.0] + noise * rng.normal(size=n) > 0.2, "in", "out")


@pytest.mark.parametrize("metric", ["accuracy", "auc"])
def test_a_linear_model_is_preferred_if_it_is_as_good(short, metric):
    X, y = half_planes(900)
    found = tune(X, y, metric=metric, seed=1)
    assert found.linear.as_good
    assert (found.best.kernel, found.model.kind, found.model.status) == (
        *("linear", "linear"),
        "converged",
    )
    assert found.linear.error - found.linear.other_error <= found.linear.noise < 0.05
    assert found.linear.n_rows == found.best.n_rows
    assert "is as good" in found.model.origin["linear"]
    fresh, truth = half_planes(3000, seed=9)
    assert (found.model.predict(fresh) == truth).mean() > 0.85


def test_a_linear_model_stays_behind_if_it_is_worse(short):
    X, y = rings(900)
    found = tune(X, y)
    last = [point for point in found.points if point.stage == found.best.stage]
    linear = min((p for p in last if p.kernel == "linear"), key=lambda point: point.error)
    assert found.best.kernel != "linear"
    assert not found.linear.as_good
    assert (found.linear.error, found.linear.other_error) == (linear.error, found.best.error)
    assert "is not as good" in found.model.origin["linear"]


def test_the_noise_is_that_of_differences_on_the_same_rows():
    """Twice the standard error of the share of rows on which only one of both errs."""
    X, y = half_planes(600)
    found = tune(X, y, kernel=["rbf", "linear"], Cs=[1.0], gammas=[3.0])
    parts = draw_parts(600, [150] * 4, False, np.random.default_rng(0), (y == "out").astype(int))
    changes = np.zeros(600)
    for held in parts:
        rest = np.setdiff1d(np.arange(600), held)
        for sign, kernel in ((1, "linear"), (-1, "rbf")):
            own = ooc_fw.FrankWolfeSVC(kernel, gamma=3.0, tol=1e-4).fit(X[rest], y[rest])
            changes[held] += sign * (own.predict(X[held]) != y[held])
    assert found.linear.error - found.linear.other_error == pytest.approx(changes.mean(), abs=0.01)
    assert found.linear.noise == pytest.approx(2 * changes.std() / np.sqrt(600), rel=0.4)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_linear_candidates_have_weights_of_columns(short, task):
    X, y = half_planes(900)
    targets = X[:, 0] if task == "regression" else y
    found = tune(X, targets, task=task, kernel="linear", Cs=[1.0, 10.0])
    assert {point.n_support for point in found.points} == {5}
    assert (found.model.kind, found.linear) == ("linear", None)
    exact = tune(X[:300], y[:300], kernel="linear", Cs=[1.0], exact=True)
    assert exact.model.kind == "exact"


def test_gamma_search_is_refused(data):
    with pytest.raises(InputError, match="leave out gamma"):
        tune(*data, gammas=["search"])


def test_candidates_of_many_classes_have_landmarks_and_enough_rows_of_each(thirds, monkeypatch):
    monkeypatch.setattr(tuning, "_FIRST_ROWS", 100)
    monkeypatch.setattr(tuning, "CLASS_ROWS", 80)
    for module in (tuning, choice):
        monkeypatch.setattr(module, "MANY_CLASSES", 3)
    monkeypatch.setattr(choice, "_MANY_SIDES", 0)
    said = []
    options = {"Cs": [1, 4], "gammas": [0.5], "max_time": 20}
    found = tune(*thirds, **options, say=said.append)
    assert "stage 1: 2 candidates on 240 rows" in said
    assert (found.model.kind, found.best.n_support <= 338) == ("landmarks", True)
    assert (found.model.predict(thirds[0]) == thirds[1]).mean() > 0.8
    assert tune(*thirds, **options, exact=True).model.kind == "exact"
