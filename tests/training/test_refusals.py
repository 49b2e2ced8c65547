"""What training and estimators refuse: one clear error, and nothing is changed."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

from ooc_fw import (
    FrankWolfeOneClass,
    FrankWolfeSVC,
    FrankWolfeSVR,
    InputError,
    TrainOptions,
    make_kernel,
    open_dataset,
    solve,
    tune,
)
from ooc_fw.system.errors import OutOfTimeError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
POSITIVE = X[:, 0] > 0
Y = np.where(POSITIVE, 3.0, -7.0)
CLASSES = [-7, 3]
ONES = np.ones(60)
TARGETS = 50 + X[:, 1].astype(float)
LARGE = np.array([2**53, 2**53 + 1])[POSITIVE.astype(int)]
SVC, ONE_CLASS, SVR = FrankWolfeSVC, FrankWolfeOneClass, FrankWolfeSVR


def changed(values, place, value):
    values = np.array(values, dtype=float)
    values[place] = value
    return values


def labelled(negative, positive):
    return np.where(POSITIVE, positive, negative)


FITS = [
    (SVC, {"kernel": "cubic"}, {}, "kernel must be one of"),
    (SVC, {"kernel": lambda X, Z: X @ Z.T}, {}, "kernel must be one of"),
    (SVC, {"gamma": "wide"}, {}, "or a positive number, not 'wide'"),
    (SVC, {"method": "newton"}, {}, "newton"),
    (SVC, {"C": -1}, {}, "C must be a positive number"),
    (SVC, {"n_jobs": 0}, {}, "n_jobs must be"),
    (SVC, {"max_time": "a"}, {}, "max_time must be a positive number of seconds, not 'a'"),
    (SVC, {"max_time": "1e-9s"}, {}, "before there was a model"),
    (SVC, {"random_state": -1}, {}, "seed must be a whole number of at least 0"),
    (SVC, {"tol": "a"}, {}, "tol must be a number, not 'a'"),
    (SVC, {"max_iter": "a"}, {}, "max_iter must be a number, not 'a'"),
    (SVC, {"memory_limit": "1MiB"}, {}, "limit of 1 MiB"),
    (SVC, {"memory_limit": "100MiB"}, {"y": np.arange(60) % 3}, "limit of 100 MiB"),
    (SVC, {"landmarks": 25, "exact": True}, {}, "contradict each other"),
    (SVC, {}, {"y": labelled(1, 1)}, "have the label 1; .* one class"),
    (SVC, {}, {"y": LARGE}, "is a whole number"),
    (SVC, {}, {"y": LARGE.astype(np.uint64)}, "is a whole number"),
    (SVC, {}, {"y": TARGETS}, "continuous"),
    (SVC, {"probability": True}, {"y": changed(Y, 7, 8)}, "the class 8 has one only"),
    (SVC, {"class_weight": [1, 2]}, {}, r"must be 'balanced' or a weight .*, not \[1, 2\]"),
    (SVC, {"class_weight": "equal"}, {}, "class_weight must be 'balanced'"),
    (SVC, {"class_weight": {5: 2.0}}, {}, "for 5, which is no label; labels are"),
    (SVC, {"class_weight": {3: 0}}, {}, "the weight of class 3 must be a positive number"),
    (SVC, {"class_weight": {3: np.nan}}, {}, "the weight of class 3 must be a positive number"),
    (SVC, {"class_weight": {3: 1e300}}, {}, "C times class_weight must be from"),
    (
        SVC,
        {"class_weight": {3: 1e300}},
        {"sample_weight": ONES},
        "C times class_weight times sample_weight must be from",
    ),
    (SVC, {}, {"sample_weight": labelled(0, 1)}, "one class"),
    (SVC, {}, {"sample_weight": ONES[:2]}, "60 rows need as many sample weights, not an array of"),
    (SVC, {}, {"sample_weight": changed(ONES, 1, -1)}, "not be negative, but that of row 1 is -1"),
    (SVC, {}, {"sample_weight": changed(ONES, 2, np.nan)}, "but that of row 2 is nan"),
    (SVC, {}, {"sample_weight": 0 * ONES}, "all sample weights are zero; give a positive weight"),
    (SVC, {}, {"sample_weight": changed(ONES, 2, 1e308)}, "is 1e\\+308 for row 2"),
    (SVC, {"C": 1e-99}, {"sample_weight": 0.01 * ONES}, "sample_weight times C"),
    (SVC, {}, {"sample_weight": 1e-310 * ONES}, "sample_weight times C must be from 1e-100 to"),
    (SVR, {}, {"sample_weight": 1e-310 * ONES}, "sample_weight times C"),
    (ONE_CLASS, {}, {"sample_weight": 1e-310 * ONES}, "sample_weight times C"),
    (SVC, {}, {"log": "f", "checkpoint": "f"}, "would both be"),
    (SVC, {}, {"checkpoint": "f", "checkpoint_every": "soon"}, "must be a positive number"),
    (SVC, {}, {"checkpoint": "f", "checkpoint_every": -1.0}, "must be a positive number"),
    (SVC, {}, {"resume": "none.ckpt"}, "there is no model file none.ckpt"),
    (ONE_CLASS, {"contamination": 0}, {}, "contamination must be a positive number"),
    (ONE_CLASS, {"contamination": 0.6}, {}, "contamination must be a positive number"),
    (ONE_CLASS, {"contamination": "auto"}, {}, "contamination must be a (positive )?number"),
    (
        ONE_CLASS,
        {"kernel": "poly", "degree": 3, "gamma": 1.0, "coef0": 0.0, "C": 1e20},
        {"X": [[1.0, 2.0], [-1.0, -2.0]], "y": None},  # whose images cancel
        "below the rounding of kernel values .* smaller gamma",
    ),
    (SVR, {}, {"y": 1e-160 * TARGETS}, "the targets of array reach .* too little"),
    (SVR, {}, {"y": 1e300 * TARGETS}, "the targets of array reach .* too large"),
    (SVR, {}, {"y": changed(TARGETS, 59, np.nan)}, "row 59 of y is missing"),
    (
        SVR,
        {},
        {"X": open_dataset(X, changed(TARGETS, 59, np.nan)), "y": None},
        "row 59 of array is nan",
    ),
    (SVR, {"epsilon": 1000.0}, {"y": TARGETS}, "epsilon 1000 is so large"),
    (SVR, {"epsilon": -1}, {}, "epsilon must be a number of at least 0, not -1"),
    (SVR, {"epsilon": None}, {}, "epsilon must be a number.*, not None"),
    (SVR, {"epsilon": "0.1"}, {}, "epsilon must be a number.*, not '0.1'"),
]


@pytest.mark.parametrize(("kind", "parameters", "given", "message"), FITS)
def test_a_fit(kind, parameters, given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    estimator = kind(**parameters)
    with pytest.raises((ValueError, InputError, OutOfTimeError), match=message):
        estimator.fit(**{"X": X, "y": Y} | given)
    assert not hasattr(estimator, "model_")
    assert list(tmp_path.iterdir()) == []


def spoilt(value):
    return changed(X, (17, 1), value)


CHUNKS = [  # whether others came before
    (False, {}, {}, "classes must be given in the first call"),
    (False, {}, {"classes": [1, 2, 3]}, r"has the label -7, but the classes are 1, 2, 3"),
    (False, {}, {"classes": [3]}, "two classes or more, not 3"),
    (False, {}, {"classes": [-7, 3, np.nan]}, "the label of row 2 of classes is missing"),
    (False, {}, {"y": LARGE, "classes": np.unique(LARGE)}, "is a whole number"),
    (False, {}, {"X": X[:1], "y": Y[:1], "classes": CLASSES}, "gamma as a number"),
    (False, {"class_weight": "balanced"}, {"classes": CLASSES}, "takes no weights of rows or"),
    (False, {"landmarks": 30}, {"classes": CLASSES}, "trains no landmark models"),
    (True, {}, {"X": spoilt(np.inf)}, "row 17 holds a value in column 1"),
    (True, {}, {"X": scipy.sparse.csr_matrix(spoilt(np.nan))}, "row 17 holds a value"),
    (True, {}, {"X": spoilt(1e38)}, "too large"),
    (True, {}, {"X": X[:, :3]}, "X has 3 features, but FrankWolfeSVC is expecting 4"),
    (True, {}, {"X": open_dataset(X[:, :3], Y), "y": None}, "has 3 features but the model was"),
    (True, {}, {"y": changed(Y, 5, 8)}, "row 5 of the chunk has the label"),
    (True, {}, {"y": changed(Y, 5, np.nan)}, "row 5 of the chunk"),
    (True, {}, {"y": Y[:-1]}, "inconsistent numbers of samples"),
    (True, {}, {"X": X[:0], "y": Y[:0]}, "0 sample"),
    (True, {}, {"classes": [-7, 4]}, "differ from those of earlier calls"),
]


@pytest.mark.parametrize(("taught", "parameters", "given", "message"), CHUNKS)
def test_a_chunk(taught, parameters, given, message):
    estimator, untouched = SVC(**parameters), SVC(**parameters)
    if taught:
        for each in (estimator, untouched):
            each.partial_fit(X[:40], Y[:40], classes=CLASSES)
    with pytest.raises(ValueError, match=message):
        estimator.partial_fit(**{"X": X, "y": Y} | given)
    if not taught:
        with pytest.raises(NotFittedError):
            estimator.predict(X)
        return
    for each in (estimator, untouched):
        each.partial_fit(X, Y)
    np.testing.assert_array_equal(estimator.dual_coef_, untouched.dual_coef_)


@pytest.mark.parametrize(
    ("parameters", "given", "message"),
    [
        ({"landmarks": 30}, {}, "cannot continue"),
        ({}, {"sample_weight": ONES + POSITIVE}, "takes no weights"),
    ],
)
def test_a_chunk_after_a_fit(parameters, given, message):
    estimator = SVC(**parameters).fit(X, Y, **given).set_params(landmarks=None)
    with pytest.raises(InputError, match=message):
        estimator.partial_fit(X, Y)


def test_rows_to_predict():
    model = SVC().fit(X, Y)
    for rows, message in (
        (X[:, :2], "2 features"),
        (np.full((2, 4), np.nan), "NaN"),
        (np.full((2, 4), np.inf), "infinity"),
        (X[:0], "0 sample"),
        (X[0], "1D array"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(rows)


THIRDS = np.array(["a", "b", "c"])[np.arange(60) % 3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"Cs": []}, "nothing to try"),
        ({"Cs": [0.0, 1]}, "C must be a positive number"),
        ({"gammas": ["wide"]}, "gamma must be"),
        ({"metric": "f1"}, "f1 is not for classification; choose by accuracy or"),
        ({"metric": "r2"}, "metric r2 is not for classification"),
        ({"metric": "auc"}, r"auc is for two classes, and .* has 3; use balanced"),
        ({"epsilon": 1.0}, "epsilon is for the task regression"),
        ({"ordinary": "a"}, "ordinary is for the task novelty"),
        ({"task": "ranking"}, "task must be one of classification, novelty, regression"),
        ({"task": "novelty"}, r"3 different labels.*--ordinary LABEL"),
        ({"task": "novelty", "ordinary": 7}, "has the label 7"),
        ({"labels": np.where(np.arange(60) == 7, "d", THIRDS)}, "no rows of one class"),
        ({"max_tim": 1}, "max_tim"),
    ],
)
def test_a_search(given, message):
    with pytest.raises((InputError, TypeError), match=message):
        tune(X, **{"labels": THIRDS, "Cs": [1], "gammas": ["auto"]} | given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(
            ({"penalties": changed(ONES, 7, value)}, "that of row 7 is")
            for value in (0, -1, np.nan)
        ),
        ({"penalties": ONES[:3]}, "60 rows need as many penalties"),
        ({"warm": ([0, 0], [1, 1])}, "warm"),
        ({"warm": ([0, 60], [1, 1])}, "warm"),
        ({"warm": ([-1, 2], [1, 1])}, "warm"),
        ({"warm": ([0, 1], [1, -1])}, "warm"),
        ({"warm": ([0, 1], [0, 0])}, "warm"),
        ({"warm": ([0, 1], [1])}, "warm"),
        ({"warm": ([0, 1], [1, np.nan])}, "warm"),
    ],
)
def test_penalties_and_warm_starts(given, message):
    if "warm" in given:
        rows, alpha = given["warm"]
        given = {"warm": (np.array(rows), np.array(alpha, float))}
    signs = np.where(POSITIVE, 1, -1).astype(np.int8)
    with pytest.raises(InputError, match=message):
        solve(open_dataset(X), signs, make_kernel("linear"), TrainOptions(), **given)
