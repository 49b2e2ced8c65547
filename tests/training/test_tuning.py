"""Choosing C and gamma: errors are those of single trainings, points are given up rightly."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

import ooc_fw
from ooc_fw import InputError, TrainOptions, make_kernel, open_dataset, solve, tune
from ooc_fw.data.labels import encode_labels
from ooc_fw.data.statistics import sigma2
from ooc_fw.data.views import SubsetSource, complement, draw_parts
from ooc_fw.model.metrics import METRICS, Estimate
from ooc_fw.problem import BinaryProblem, ClassificationProblem
from ooc_fw.solver.loop import Path
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.training import tuning
from ooc_fw.training.classification import landmark_fit
from ooc_fw.training.fit import fit, make_plan, open_landmark_path
from ooc_fw.training.points import PATH_TOL, PRESETS, Point
from tests.support.files import write_dense, write_sparse
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
def result(data):
    return tune(*data, Cs=[1, 8, 64], gammas=[0.2, 1.0], options=TrainOptions(seed=3))


@pytest.fixture(scope="module")
def thirds():
    """Three classes by angle, with words for labels, and some noise."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(450, 2)).astype(np.float32)
    angle = np.arctan2(X[:, 1], X[:, 0]) + 0.2 * rng.normal(size=450)
    return X, np.array(["east", "north", "west"])[(np.abs(angle) / np.pi * 2.99).astype(int) % 3]


def parts_of(X, y, seed):
    """The rows that a search trains on, and those that it holds out."""
    n, codes = len(X), np.unique(y, return_inverse=True)[1]
    (ranges,) = draw_parts(n, [round(0.3 * n)], False, np.random.default_rng(seed), codes)
    whole = open_dataset(X, y)
    return SubsetSource(whole, complement(ranges, n)), SubsetSource(whole, ranges)


def problem_of(source, gamma):
    classes, codes = encode_labels(source)
    return ClassificationProblem(source, codes, make_kernel("rbf", gamma=gamma), None, classes)


def assert_errors_are_those_of_single_trainings(X, y, result):
    """Up to one row, since the classifiers of the search have a larger gap."""
    train, held_out = parts_of(X, y, result.seed)
    truth = held_out.labels(0, held_out.n_rows)
    for point in result.points:
        model = fit(problem_of(train, point.gamma), TrainOptions(C=point.C, tol=1e-4)).model
        assert point.n_validated == result.n_validation == len(truth) == round(0.3 * len(X))
        assert abs(point.n_errors - (model.predict(held_out) != truth).sum()) <= 1
        assert point.kernel_evaluations > 0


def test_best_has_the_least_error_and_is_trained_on_all_rows(data, result):
    X, y = data
    assert_errors_are_those_of_single_trainings(X, y, result)
    assert result.best.n_errors == min(point.n_errors for point in result.points)
    assert [(p.gamma, p.C) for p in result.points] == [(g, C) for g in (0.2, 1) for C in (1, 8, 64)]
    model, (own,) = result.model, result.model.classifiers
    assert (model.C, model.kernel.gamma) == (result.best.C, result.best.gamma)
    assert model.status == "converged"
    signs = np.where(y > 2, 1, -1).astype(np.int8)
    gap = SmallProblem(model.kernel, X, signs, model.C).truth(own.rows, own.alpha).gap
    assert gap <= own.certified_gap <= 1e-3
    np.testing.assert_array_equal(model.classes, [1, 4])
    at_border = result.best.C in (1, 64) or result.best.gamma in (0.2, 1.0)
    advice = result.advice() or ""
    assert ("border" in advice) == at_border == ("ones, with --kernel rbf --" in advice)


def test_several_classes(thirds):
    X, y = thirds
    result = tune(X, y, Cs=[1, 4, 16], gammas=[0.7])
    assert_errors_are_those_of_single_trainings(X, y, result)
    refit = result.refit()
    assert (refit["status"], refit["certified_gap"] <= 1e-3) == ("converged", True)
    assert len(result.fitted.pairs) == len(result.model.classifiers) == 3
    assert (result.model.predict(X) == y).mean() > 0.8
    rare = np.where(np.arange(450) == 7, "south", y)
    with pytest.raises(InputError, match="no rows of one class"):
        tune(X, rare, Cs=[1], gammas=[1.0], folds=5)


@pytest.mark.parametrize("write", [write_dense, write_sparse])
def test_a_shuffled_file_gives_a_contiguous_part(data, tmp_path, write):
    X, y = data
    path = write(tmp_path / "data.h5", X, y)
    result = tune(path, Cs=[4], gammas=[1.0], refit=False)
    assert result.model is None
    assert result.n_validation == 180
    (ranges,) = draw_parts(600, [180], True, np.random.default_rng(0), (y > 2).astype(int))
    assert len(ranges) <= 60
    assert 0 <= result.best.error < 0.3


def test_folds_validate_every_row_once(data):
    result = tune(*data, Cs=[4, 8], gammas=[0.5], folds=4, refit=False)
    assert result.folds == 4
    assert result.best.n_validated == 600
    assert all(len(point.wrong) == 4 or point.status == "abandoned" for point in result.points)


def test_the_same_seed_gives_the_same_search(data):
    a, b = (
        tune(*data, Cs=[1, 16], gammas=[0.5], options=TrainOptions(seed=5, threads=t))
        for t in (1, 2)
    )
    assert [p.n_errors for p in a.points] == [p.n_errors for p in b.points]
    np.testing.assert_array_equal(a.model.classifiers[0].alpha, b.model.classifiers[0].alpha)


@pytest.fixture
def search(data, monkeypatch):
    """A search at which trainings get given numbers of rows wrong, and no longer matter."""

    def run(n_wrong, n_Cs, losses=None, **options):
        estimates = [loss and Estimate(loss, 1e-4) for loss in losses or [None] * len(n_wrong)]
        scores = iter(zip(n_wrong, estimates, strict=True))

        def score(model, part, codes, *others):
            n, estimate = next(scores)
            return np.arange(len(codes)) < n, estimate

        monkeypatch.setattr(tuning, "score_point", score)
        options = {"gammas": [0.5], "path_tol": 0.5, "refit": False} | options
        return tune(*data, Cs=[2.0**k for k in range(n_Cs)], **options)

    return run


@pytest.mark.parametrize(
    ("n_wrong", "errors", "n_left"),
    [
        # Rising after the second C, beyond chance from the third on: two in a row end the path.
        ([30, 10, 40, 41, 0], [30, 10, 40, 41, 0, 0], 4),
        # Far from the best, but falling: no reason to stop.
        ([10, 90, 80, 70, 60], [10, 90, 80, 70, 60], 5),
    ],
)
def test_two_hopeless_points_end_a_path(search, n_wrong, errors, n_left):
    result = search(n_wrong, len(errors))
    assert [point.n_errors for point in result.points] == errors
    expected = ["tried"] * n_left + ["abandoned"] * (len(errors) - n_left)
    assert [point.status for point in result.points] == expected
    assert result.best.n_errors == 10
    for point in result.points[n_left:]:
        assert "worse than rbf, C 2, gamma 0.5 beyond chance" in point.note
        assert point.note in result.table()


def test_what_is_left_out_and_what_is_best(search):
    result = search([40, 10, 12, 11, 12, 10], 3, folds=2)
    assert [point.n_errors for point in result.points] == [40, 21, 24]
    assert [point.status for point in result.points] == ["abandoned", "tried", "tried"]
    assert "after 1 fold" in result.points[0].note
    assert result.best.C == 2
    equal = search([7] * 4, 2, gammas=[1.0, 0.5])
    assert (equal.best.C, equal.best.gamma) == (1, 0.5)
    # Errors are independent: 3 standard errors of a difference are hypot(0.01, 0.01) times 3.
    losses = [0.3, 0.1, 0.13, 0.145, 0.146, 0.0]
    other = search([1] * 6, 6, losses=losses, metric="balanced_accuracy")
    assert [point.status for point in other.points] == ["tried"] * 5 + ["abandoned"]
    assert other.best.C == 2
    assert other.best.standard_error == pytest.approx(0.01)


@pytest.mark.parametrize("metric", ["balanced_accuracy", "auc"])
def test_other_metrics(metric, monkeypatch):
    """Those of scikit-learn, for the same models; few rows are positive."""
    X, y = rings(900, noise=1.0)
    keep = (y == 1) | (np.arange(900) % 9 == 0)
    X, y = X[keep], y[keep]
    expected, score = [], tuning.score_point

    def judge(model, part, codes, *others):
        if metric == "auc":
            expected.append(roc_auc_score(codes, model.decision_function(part)))
        else:
            found = model.predict(part) == model.classes[1]
            expected.append(balanced_accuracy_score(codes, found))
        return score(model, part, codes, *others)

    monkeypatch.setattr(tuning, "score_point", judge)
    search = {"gammas": [0.5], "refit": False}
    found = tune(X, y, metric=metric, Cs=[0.3, 300], **search)
    assert [1 - point.error for point in found.points] == pytest.approx(expected)
    assert all(0 < point.standard_error < 0.2 for point in found.points)
    assert found.best.error == min(point.error for point in found.points)
    assert found.to_dict()["metric"] == metric
    assert METRICS[metric] in found.table().splitlines()[0]
    expected.clear()
    folds = tune(X, y, metric=metric, folds=3, Cs=[300], **search)
    assert 1 - folds.best.error == pytest.approx(np.mean(expected))
    if metric == "balanced_accuracy":
        assert (found.best.C, tune(X, y, Cs=[0.3, 300], **search).best.C) == (300, 0.3)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_landmarks(data, thirds, n_classes):
    """Points are those of one path on the same part, and the model is one of all rows."""
    X, y = data if n_classes == 2 else thirds
    found = tune(X, y, Cs=[1, 16], gammas=[0.5], options=TrainOptions(landmarks=40))
    part, held_out = parts_of(X, y, seed=0)
    problem = problem_of(part, 0.5)
    plan = make_plan(problem, TrainOptions(landmarks=40, tol=PATH_TOL, certify=False))
    with open_landmark_path(problem, plan, Session()) as path:
        models = [landmark_fit(problem, plan, path.solve(p.C), p.C).model for p in found.points]
    for point, model in zip(found.points, models, strict=True):
        wrong = model.predict(held_out) != held_out.labels(0, held_out.n_rows)
        assert point.n_errors == wrong.sum()
        assert point.n_support == len(model.support_vectors) <= 40
        assert point.kernel_evaluations > 0
    assert found.best.n_errors < 0.4 * held_out.n_rows
    assert (found.model.kind, found.refit()["gap_scope"]) == ("landmarks", "span")
    assert found.fitted.pairs == []
    own = fit(problem_of(open_dataset(X, y), 0.5), TrainOptions(C=found.best.C, landmarks=40))
    assert found.refit()["certified_gap"] == own.model.certified_gap <= 2e-3


def test_auc_needs_two_classes(thirds):
    with pytest.raises(InputError, match=r"auc is for two classes, and .* has 3; use balanced"):
        tune(*thirds, Cs=[1], gammas=["auto"], metric="auc")
    assert (
        0
        < tune(*thirds, Cs=[1], gammas=["auto"], metric="balanced_accuracy", refit=False).best.error
        < 0.3
    )
    y = np.where(np.arange(450) < 3, "a", "b")
    with pytest.raises(InputError, match="rows of one class only, which have no AUC"):
        tune(thirds[0], y, Cs=[1], gammas=["auto"], metric="auc", folds=90)


def test_deviations_are_those_of_mcnemar():
    rng = np.random.default_rng(0)
    a, b = rng.random(333) < 0.3, rng.random(333) < 0.2
    first, second = (Point(1, 1, int(c.sum()), 333, wrong=[np.packbits(c)]) for c in (a, b))
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    expected = (only_a - only_b) / np.sqrt(only_a + only_b)
    assert first.deviations(second) == pytest.approx(expected)
    assert first.deviations(first) == 0


def test_scales_of_the_kernel(data):
    small = PRESETS["small"]
    assert (small.Cs[0], small.Cs[-1], len(small.Cs)) == (2**-5, 2**15, 21)
    assert (small.sigma2s[0], small.sigma2s[-1], small.folds) == (2**-15, 2**5, 10)
    result = tune(*data, Cs=[4], sigma2s=[0.5, 2.0], refit=False)
    assert [point.gamma for point in result.points] == [0.25, 1.0]
    automatic = tune(*data, Cs=[4], gammas=["auto"], refit=False)
    assert automatic.best.gamma == pytest.approx(1 / (2 * sigma2(open_dataset(data[0]))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Cs": []}, "values of C"),
        ({"Cs": [0.0, 1]}, "values of C"),
        ({"preset": "huge"}, "preset must be one of auto, large, small"),
        ({"metric": "f1"}, "metric must be one of auto, accuracy, balanced_accuracy, auc, r2"),
        ({"folds": 1}, "folds must be a whole number of at least 2"),
        ({"folds": 601}, "too few for 601 folds"),
        ({"validation_share": 0.0}, "validation_share must be a positive number"),
        ({"validation_share": 0.999}, "one class only|validation part"),
        ({"sigma2s": [1.0], "gammas": [1.0]}, "in place of gammas"),
        ({"sigma2s": [1.0], "kernel": "linear"}, "widths of the rbf kernel"),
        ({"gammas": ["wide"]}, "gamma must be"),
        ({"epsilon": 1.0}, "epsilon is for the task regression"),
        ({"task": "ranking"}, "task must be one of classification, novelty, regression"),
        ({"metric": "r2"}, "metric r2 is none of classification"),
    ],
)
def test_grids_that_cannot_be_used(data, change, message):
    with pytest.raises(InputError, match=message):
        tune(*data, **{"Cs": [1], "gammas": None if "sigma2s" in change else ["auto"], **change})


@pytest.mark.parametrize(("landmarks", "several"), [(None, False), (40, False), (None, True)])
def test_an_interrupt_leaves_what_is_known(data, thirds, landmarks, several):
    tried, options = [], TrainOptions(landmarks=landmarks)
    told = {"callbacks": [lambda state: len(tried) < 2], "on_point": tried.append}
    rows = thirds if several else data
    result = tune(*rows, Cs=[1, 2, 4, 8], gammas=[0.5], options=options, **told)
    assert result.interrupted
    model = result.model
    assert (model.status, model.C, model.certified_gap) == ("interrupted", result.best.C, None)
    assert all(one.rows.max() < len(rows[0]) for one in model.classifiers)
    assert (model.predict(rows[0]) == rows[1]).mean() > 0.7
    left = np.unpackbits(model.weighted_rows)[: len(rows[0])]
    assert left.sum() == len(rows[0]) - result.n_validation
    assert all(left[one.rows].all() for one in model.classifiers)
    assert [p.status for p in result.points] == ["tried", "tried", "interrupted", "waiting"]
    with pytest.raises(KeyboardInterrupt):
        tune(*data, Cs=[1], gammas=[0.5], callbacks=[lambda state: False])


def test_a_memory_limit_holds_for_all_paths(data):
    """The plan is made once: a later one would count what the first path has taken."""
    limit = ooc_fw.system.memory.peak_rss_bytes() + (400 << 20)
    options = TrainOptions(memory_limit=limit)
    result = tune(*data, Cs=[1, 2000], gammas=[0.5, 1.0], options=options)
    assert result.model.status == "converged"
    assert ooc_fw.system.memory.peak_rss_bytes() <= limit


# -- searches that choose for themselves ---------------------------------------------------------


@pytest.fixture
def short(monkeypatch):
    """Stages that tests can afford: of 300 rows, and more."""
    for name, value in {"_FIRST_ROWS": 300, "_LEAST_ROWS": 50, "_FEW_ROWS": 100}.items():
        monkeypatch.setattr(tuning, name, value)


def heavy_tailed(n, seed=0):
    """Two classes, and columns with outliers, which the Laplacian kernel takes best."""
    rng = np.random.default_rng(seed)
    X = rng.standard_cauchy(size=(n, 4)).astype(np.float32)
    far = (np.abs(X) > 1).sum(axis=1) >= 2
    return X, np.where(far ^ (rng.random(n) < 0.05), "in", "out")


def same_course(*results):
    """Whether searches tried the same points with the same results, and have the same model."""
    courses = [
        [(p.kernel, p.C, p.gamma, p.stage, p.n_rows, p.status, p.error) for p in result.points]
        for result in results
    ]
    contents = {result.model.to_bytes() for result in results}
    return all(course == courses[0] for course in courses) and len(contents) == 1


def test_stages_take_more_rows_and_fewer_points(short):
    X, y = heavy_tailed(2000)
    said, options = [], [TrainOptions(threads=threads) for threads in (1, 2, 2)]
    a, b, c = (tune(X, y, metric="auc", options=o, on_stage=said.append) for o in options)
    assert same_course(a, b, c)
    assert (a.kernel, a.model.kernel.name, a.folds) == ("laplacian", "laplacian", None)
    last = max(point.stage for point in a.points)
    sizes = [{p.n_rows for p in a.points if p.stage == k and p.n_rows} for k in range(1, last + 1)]
    assert [min(size) for size in sizes] == [max(size) for size in sizes]
    assert sizes == sorted(sizes, key=min)
    assert max(sizes[-1]) == 2000 - a.n_validation
    counts = [sum(point.stage == k for point in a.points) for k in range(1, last + 1)]
    assert counts[0] > counts[-1] >= 2
    assert a.best.error == min(p.error for p in a.points if p.stage == last and p.n_validated)
    assert all(p.stage == last for p in a.points if p.status == "tried")
    assert said[0] == "stage 1: 1 - AUC of 40 points trained on 300 rows, within 600 s in all"
    assert "exact" in said[len(said) // 3 - 1]
    fresh, truth = heavy_tailed(2000, seed=9)
    assert roc_auc_score(truth == "out", a.model.decision_function(fresh)) > 0.85


def test_few_rows_are_validated_by_folds(data):
    result = tune(*data, kernel="rbf", Cs=[1, 10], refit=False)
    assert result.folds == tuning._FOLDS
    assert result.best.n_validated == 600
    assert {point.C for point in result.points} == {1, 10}  # given, while gamma is searched
    assert len({point.gamma for point in result.points}) >= 5


def test_a_time_limit_ends_the_search_and_not_the_model(data, monkeypatch):
    options = TrainOptions(max_time=4.0)
    tried = []

    def late(search, share=1.0):
        return -1.0 if len(tried) >= 8 and share < 1 else 100.0

    monkeypatch.setattr(tuning._Search, "_left", late)
    result = tune(*data, options=options, on_point=tried.append)
    assert "time for the search was over" in result.ended
    assert not result.interrupted
    assert result.model.status == "converged"
    assert result.best in tried
    assert {point.kernel for point in tried} == {"rbf", "laplacian"}
    gammas = sorted({point.gamma for point in result.points if point.kernel == "laplacian"})
    assert {point.gamma for point in tried if point.kernel == "laplacian"} == {gammas[2]}
    n_left = sum(point.status == "waiting" for point in result.points)
    assert n_left > 20
    assert f"{n_left} points were not tried: time for the search was over" in result.table()
    assert len(result.table().splitlines()) == 42 - n_left
    monkeypatch.setattr(tuning._Search, "_left", lambda search, share=1.0: -1.0)
    with pytest.raises(OutOfTimeError, match="before a point was tried"):
        tune(*data, options=options)


@pytest.mark.parametrize(("clock", "seconds"), [(60, 0.8 * 150), (20, 0.8 * 150), (240, 0.8 * 20)])
def test_the_last_model_is_smaller_where_the_machine_is_slower_than_counted(clock, seconds):
    """Of 60 s that were counted, while `clock` went by: the 80 s left are worth 20."""
    began = time.perf_counter() - clock + 0.01
    search = SimpleNamespace(spent=60.0, began=began, _left=lambda: 80.0)
    assert tuning._Search._refit_seconds(search, 150.0) == pytest.approx(seconds, rel=1e-3)


@pytest.fixture
def slow(short, monkeypatch):
    """A machine on which 60 s buy no exact model of 3,000 rows."""
    changes = {"_MOST_EXACT": 100, "_STAGE_LANDMARKS": 60, "_LEAST_ROWS": 20}
    changes |= {"_SPEEDS": {}, "_OTHER_SPEED": (4e5, 1e9)}
    for name, value in changes.items():
        monkeypatch.setattr(tuning, name, value)
    return {"kernel": "laplacian", "Cs": [1, 10], "options": TrainOptions(max_time=60.0)}


@pytest.mark.parametrize("landmarks_are_better", [True, False])
def test_where_time_buys_no_optimum_validation_chooses(slow, monkeypatch, landmarks_are_better):
    X, y = heavy_tailed(3000)
    score, said = tuning.score_point, []

    def judge(model, *others):
        wrong, estimate = score(model, *others)
        if model.kind == "landmarks":
            wrong[:] = not landmarks_are_better
        return wrong, estimate

    monkeypatch.setattr(tuning, "score_point", judge)
    result = tune(X, y, **slow, on_stage=said.append)
    refit, model = result.refit(), result.model
    compared = [point for point in result.points if point.status == "compared"]
    assert [point.note for point in compared] == ["exact", "landmarks"]
    assert compared[0].n_rows < compared[1].n_rows == 2100
    assert result.best not in compared
    if landmarks_are_better:
        assert (refit["gap_scope"], refit["n_rows"], model.n_weighted) == ("span", 3000, None)
        assert 20 < refit["n_support"] <= 3000
        assert "on all 3000 rows: " in said[-1]
        assert model.certified_gap is not None
    else:
        assert (refit["gap_scope"], refit["n_rows"]) == ("all", model.n_weighted)
        assert compared[0].n_rows < refit["n_rows"] < 3000
        assert f"on {refit['n_rows']} of 3000 rows: exact" in said[-1]
        rows = np.flatnonzero(np.unpackbits(model.weighted_rows))
        (own,) = model.classifiers
        assert np.isin(own.rows, rows).all()
        signs, places = np.where(y == "out", 1, -1), np.searchsorted(rows, own.rows)
        problem = SmallProblem(model.kernel, X[rows], signs[rows], model.C)
        assert problem.truth(places, own.alpha).gap <= own.certified_gap <= 1e-3


def test_the_choice_of_the_last_model_is_the_same_again(slow):
    X, y = heavy_tailed(3000)
    options = [replace(slow["options"], threads=threads) for threads in (1, 2, 2)]
    found = [tune(X, y, **slow | {"options": each}, metric="auc") for each in options]
    assert any(point.status == "compared" for point in found[0].points)
    assert same_course(*found)


def test_small_classes_may_weigh_more(short):
    rng = np.random.default_rng(0)
    rare = rng.random(1500) < 0.1
    X, y = (rng.normal(size=(1500, 3)) + 1.2 * rare[:, None]).astype(np.float32), rare.astype(int)
    result = tune(X, y, metric="balanced_accuracy", kernel="rbf")
    weighted = [point for point in result.points if point.class_weight == "balanced"]
    assert result.best in weighted
    plain = min(p.error for p in result.points if p.error is not None and p not in weighted)
    assert result.best.error < plain
    assert balanced_accuracy_score(y, result.model.predict(X)) > 1 - plain
    assert "balanced classes" in result.table()


def test_scales_are_learned_where_that_is_better(short):
    """Two columns of twenty matter; the model takes raw rows, and those of the training file."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(1200, 20)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    grid = {"kernel": "rbf", "Cs": [10], "gammas": ["auto"]}
    plain, found = (tune(X, y, **grid, learn_scales=learn) for learn in (False, True))
    assert (plain.best.learned, plain.model.scaling) == (0, None)
    assert found.best.learned > 0
    assert found.best.error < plain.best.error - 0.05
    factors = found.model.scaling.learned
    assert factors[:2].min() > 2 * factors[2:].max()
    fresh = rng.normal(size=(2000, 20)).astype(np.float32)
    right = found.model.predict(fresh) == (fresh[:, 0] * fresh[:, 1] > 0)
    assert right.mean() > 1 - found.best.error - 0.03
    model, (own,) = found.model, found.model.classifiers
    problem = SmallProblem(model.kernel, X * factors, np.where(y > 0, 1, -1), model.C)
    assert problem.truth(own.rows, own.alpha).gap <= own.certified_gap <= 1e-3


def test_regression_is_searched_by_r2(short):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(900, 3)).astype(np.float32)
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=900)
    result = tune(X, y, task="regression", epsilon=0.05, Cs=[1, 10])
    assert (result.metric, result.model.task, result.model.epsilon) == ("r2", "regression", 0.05)
    assert result.best.error < 0.1
    fresh = rng.normal(size=(500, 3)).astype(np.float32)
    assert np.corrcoef(result.model.predict(fresh), np.sin(2 * fresh[:, 0]))[0, 1] > 0.95


def test_novelty_is_validated_by_labels(short):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(900, 3)).astype(np.float32)
    y = np.where(np.arange(900) < 30, "odd", "usual")
    X[:30] *= 4
    result = tune(X, y, task="novelty", Cs=[0.1, 1])
    assert (result.metric, result.model.task) == ("auc", "novelty")
    scores = result.model.decision_function(X)
    assert roc_auc_score(y == "usual", scores) > 0.9
    free = tune(X, y, task="novelty", gammas=["auto"], refit=False)
    assert {30, 300, 3000, 30000} <= {round(point.C * 900) for point in free.points}
    with pytest.raises(InputError, match="label rows as ordinary or novel"):
        tune(X, rng.integers(3, size=900), task="novelty")
    with pytest.raises(InputError, match="none of novelty"):
        tune(X, y, task="novelty", metric="r2")


# -- warm starts ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problem(data):
    X, y = data
    return open_dataset(X), np.where(y > 2, 1, -1).astype(np.int8), make_kernel("rbf", gamma=0.7)


@pytest.mark.parametrize(
    ("method", "tol"),
    [("corrective", 1e-3), pytest.param("swap", 5e-3, marks=pytest.mark.grid)],
)
def test_a_path_ends_where_single_trainings_do(problem, method, tol):
    options, binary = TrainOptions(method=method, tol=tol, sample_size=300), BinaryProblem(*problem)
    with Path(binary, plan_exact(binary, options)) as path:
        for C in (2.0, 8.0, 4.0):
            warm = path.solve(C)
            cold = solve(*problem, TrainOptions(C=C, tol=1e-5))
            assert warm.status == "converged"
            assert warm.certified_gap <= tol
            # f* >= f (1 - d)^2, both ways
            assert cold.objective * (1 - 1e-5) ** 2 <= warm.objective * (1 + 1e-9)
            assert warm.objective * (1 - tol) ** 2 <= cold.objective
            assert warm.rows_read >= 0
            assert warm.kernel_evaluations > 0
            again = solve(*problem, TrainOptions(C=C), warm=(cold.rows, 3 * cold.alpha))
            assert again.iterations < cold.iterations


@pytest.mark.parametrize(
    ("rows", "alpha"),
    [
        *(([0, 0], [1, 1]), ([0, 600], [1, 1]), ([-1, 2], [1, 1]), ([0, 1], [1, -1])),
        *(([0, 1], [0, 0]), ([0, 1], [1]), ([0, 1], [1, np.nan])),
    ],
)
def test_warm_starts_that_mean_nothing(problem, rows, alpha):
    with pytest.raises(InputError, match="warm"):
        solve(*problem, TrainOptions(), warm=(np.array(rows), np.array(alpha, float)))
