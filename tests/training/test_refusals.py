"""What training and estimators refuse: one clear error, and nothing is changed."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import ooc_fw
from ooc_fw.system.errors import OutOfTimeError

CASES = """
SVC(kernel=lambda X, Z: X @ Z.T).fit(X, y) => kernel must be text
SVC(n_jobs=0).fit(X, y) => n_jobs must be
SVC(max_time="1e-9s").fit(X, y) => before there was a model
SVC(memory_limit="1MiB").fit(X, y) => limit of 1 MiB
SVC().fit(X, ones) => have the label 1, .* two classes
SVC().fit(X, targets) => continuous
SVC().fit(X, y, checkpoint="f", checkpoint_every="soon") => must be a positive number
SVC(class_weight=[1, 2]).fit(X, y) => must be 'balanced' or a weight .*, not \\[1, 2\\]
SVC(class_weight={3: np.nan}).fit(X, y) => the weight of class 3 must be a positive number
SVC(class_weight={3: True}).fit(X, y) => the weight of class 3 must be a positive number
SVC(random_state=5.5).fit(X, y) => random_state must be a whole number
SVC(n_jobs=1.5).fit(X, y) => n_jobs must be a whole number
SVC(probability="no").fit(X, y) => probability must be True or False
SVC(gamma=1e-320).fit(X, y) => gamma must be .* a positive number of at least 1e-100
SVC(memory_limit=True).fit(X, y) => memory_limit must be a whole number
SVC(C=1e20, class_weight={3: 1e90}).fit(X, y, ones) => C times class_weight times sample_weight must
SVC().fit(X, y, positive) => two classes
SVC().fit(X, y, ones[:2]) => array has 60 rows but 2 weights
SVC().fit(X, y, but(ones, 2, np.nan)) => must not be negative, but that of row 2 is nan
SVC().fit(X, y, 0 * ones) => all sample weights are zero; give a positive weight
SVC().fit(X, y, 2.0) => array has 60 rows but one value as weights; give one
SVC().fit(X, y, ["much"] * 60) => sample weights must be numbers, one for each row
SVC().fit(X, y, but(ones, 2, 1e308)) => is 1e\\+308 for row 2
SVC().fit(X, y, 1e-310 * ones) => sample_weight times C must be from 1e-100 to
SVR().fit(X, y, 1e-310 * ones) => sample_weight times C
OneClass().fit(X, None, 1e-310 * ones) => sample_weight times C
OneClass(contamination=0.6).fit(X) => contamination must be a positive number
OneClass("poly", 1.0, 3, 0.0, C=1e20).fit([[1.0, 2], [-1, -2]]) => below the rounding of kernel
SVR().fit(X, 1e-160 * targets) => the targets of array reach .* too small
SVR().fit(X, 1e300 * targets) => the targets of array reach .* too large
SVR().fit(X, but(targets, 59, np.nan)) => row 59 of y is missing
SVR().fit(open_dataset(X, but(targets, 59, np.nan))) => row 59 of array is nan
SVR(epsilon=1000.0).fit(X, targets) => epsilon 1000 is so large
SVR(epsilon=None).fit(X, targets) => epsilon must be a number.*, not None

SVC().partial_fit(X, y) => classes must be given in the first call
SVC().partial_fit(X, y, [1, 2, 3]) => has the label -7, but the classes are 1, 2, 3
SVC().partial_fit(X, y, [3]) => two classes or more, not 3
SVC().partial_fit(X, y, [-7, 3, np.nan]) => the label of row 2 of classes is missing
SVC().partial_fit(X[:1], y[:1], [-7, 3]) => gamma as a number
SVC(class_weight="balanced").partial_fit(X, y, [-7, 3]) => takes no weights of rows or
SVC(landmarks=30).fit(X, y).set_params(landmarks=None, exact=True).partial_fit(X, y) => exact
SVC(kernel="linear").fit(X, y).partial_fit(X, y) => cannot continue a linear model
SVC().fit(X, y).set_params(landmarks=30).partial_fit(X, y) => continue an exact model with landma
SVC().fit(X, y, ones + positive).partial_fit(X, y) => takes no weights
taught.partial_fit(but(X, (17, 1), np.inf), y) => row 17 holds a value in column 1
taught.partial_fit(csr_matrix(but(X, (17, 1), np.nan)), y) => row 17 holds a value
taught.partial_fit(but(X, (17, 1), 1e38), y) => too large
taught.partial_fit(X[:, :3], y) => X has 3 features, but FrankWolfeSVC is expecting 4
taught.partial_fit(open_dataset(X[:, :3], y)) => has 3 features but the model was
taught.partial_fit(X, but(y, 5, 8)) => row 5 of the chunk has the label
taught.partial_fit(X, but(y, 5, np.nan)) => label of row 5 of y is missing
taught.partial_fit(X, y[:-1]) => inconsistent numbers of samples
taught.partial_fit(X, y, [-7, 4]) => differ from those of earlier calls
SVC(probability=True).partial_fit(X, y, [-7, 3]).predict_proba(X) => gives no probabilities
taught.predict(but(X, 3, np.nan)) => NaN

taught.model_.decision_function(X, threads=1.5) => threads must be a whole number
taught.model_.certify(X, y, threads=None) => threads must be a whole number
taught.model_.certify(X, y, penalties="auto") => array has 60 rows but one value as penalties
taught.model_.importance(X, rows=-1) => rows must be a whole number of at least 1
taught.model_.importance(X, threads=True) => threads must be a whole number

tune(X, y, Cs="1,2") => C must be a positive number, not '1,2'
tune(X, y, gammas=True) => gamma must be
tune(X, y, kernel=5) => kernel must be text
tune(X, y, Cs=[]) => nothing to try
tune(X, thirds, metric="auc") => auc is for two classes, but .* has 3; use balanced
tune(X, y, epsilon=1.0) => epsilon is for the task regression
tune(X, thirds, task="novelty") => 3 different labels.*--ordinary LABEL
tune(X, but(0 * y, 7, 9), Cs=[1], gammas=["auto"], metric="auc") => one row only.* another metric
tune(X, y, task="novelty", metric="auc") => auc is not for novelty; choose balanced_accuracy
tune(X, y, max_time=1e-9) => time limit

solved(penalties=but(ones, 7, 0)) => that of row 7 is 0
solved(penalties=but(ones, 7, np.nan)) => that of row 7 is nan
solved(penalties=ones[:3]) => 60 rows need as many penalties
solved(warm=warm([0, 0], [1, 1])) => warm
solved(warm=warm([0, 60], [1, 1])) => warm
solved(warm=warm([0, 1], [1, -1])) => warm
solved(warm=warm([0, 1], [0, 0])) => warm
solved(warm=warm([0, 1], [1])) => warm
"""


def names():
    """What the cases are written with."""
    X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    positive = X[:, 0] > 0
    y = np.where(positive, 3.0, -7.0)
    signs = np.where(positive, 1, -1).astype(np.int8)

    def but(values, place, value):
        changed = np.array(values, dtype=float)
        changed[place] = value
        return changed

    def solved(**given):
        source, kernel = ooc_fw.open_dataset(X), ooc_fw.make_kernel("linear")
        return ooc_fw.solve(source, signs, kernel, ooc_fw.TrainOptions(), **given)

    def warm(rows, alpha):
        return np.array(rows), np.array(alpha, dtype=float)

    return locals() | {
        "SVC": ooc_fw.FrankWolfeSVC,
        "SVR": ooc_fw.FrankWolfeSVR,
        "OneClass": ooc_fw.FrankWolfeOneClass,
        "open_dataset": ooc_fw.open_dataset,
        "tune": ooc_fw.tune,
        "csr_matrix": csr_matrix,
        "np": np,
        "ones": np.ones(60),
        "thirds": np.arange(60) % 3,
        "targets": 50 + X[:, 1].astype(float),
        "taught": ooc_fw.FrankWolfeSVC().partial_fit(X, y, [-7, 3]),
    }


@pytest.mark.parametrize("case", [case for case in CASES.splitlines() if case])
def test_one_error_and_nothing_is_changed(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, message = case.split(" => ")
    known = names()
    before = dict(vars(known["taught"]))
    with pytest.raises((ooc_fw.InputError, OutOfTimeError, ValueError, TypeError), match=message):
        eval(call, known)
    assert list(tmp_path.iterdir()) == []
    after = vars(known["taught"])
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
