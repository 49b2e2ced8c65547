"""What holds for every task: from a source to a description, by one door."""

import copy
import json
import pickle
import warnings

import h5py
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from ooc_fw import (
    FrankWolfeOneClass,
    FrankWolfeSVC,
    FrankWolfeSVR,
    InputError,
    TrainOptions,
    load_model,
    make_kernel,
    open_dataset,
)
from ooc_fw.options import TaskOptions
from ooc_fw.report.runlog import read_runs
from ooc_fw.solver.plan import Plan, Session
from ooc_fw.system.memory import OverLimitError
from ooc_fw.testing import EXPECTED_FAILED_CHECKS
from ooc_fw.training.choice import plan_model
from ooc_fw.training.fit import FIELDS, describe, fit, make_problem, read_answers

KERNEL = make_kernel("rbf", gamma=0.5)
COMMON = {"status", "kind", "gap_scope", "kernel", "gamma", "C", "tol", "n_rows", "n_features"}
COMMON |= {"n_support", "certified_gap", "sampled_gap", "iterations", "passes", "choice"}


@pytest.fixture
def source():
    X = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    return open_dataset(X, np.where(X[:, 0] > 0, 1.0, -1.0))


@pytest.mark.parametrize("name", FIELDS)
def test_a_plan_is_made_once_and_a_model_is_as_planned(source, name):
    options = TrainOptions(C=3.0)
    answers, threads = read_answers(name, source, options)
    assert threads == 1
    problem = make_problem(name, source=source, kernel=KERNEL, **answers)
    assert problem.task == name
    assert len(problem.row_classes) == source.n_rows
    plan = plan_model(problem, options, Session())
    assert isinstance(plan, Plan)
    assert "auto" not in (plan.options.method, plan.options.lmo) or plan.landmarks is not None
    fitted, again = fit(problem, options, plan=plan), fit(problem, options)
    assert fitted.plan.memory == again.plan.memory == plan.memory
    for one, other in zip(fitted.model.classifiers, again.model.classifiers, strict=True):
        np.testing.assert_array_equal(one.alpha, other.alpha)
    assert fitted.why_inexact() is None
    told = json.loads(json.dumps(describe(fitted)))
    assert COMMON <= set(told)
    assert told["certified_gap"] <= 2e-3
    later = fitted.renumbered(1000 + np.arange(200))
    for one, other in zip(later.solutions, fitted.solutions, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows + 1000)


@pytest.mark.parametrize("name", FIELDS)
def test_a_limit_is_refused_before_labels_are_read(source, name):
    with pytest.raises(OverLimitError, match="a limit that would do is"):
        read_answers(name, source, TrainOptions(memory_limit=1))


def test_options_of_tasks_belong_to_one_task():
    fields = [field for names in FIELDS.values() for field in names]
    assert sorted(fields) == sorted(TaskOptions.__dataclass_fields__)


# -- estimators --------------------------------------------------------------------------------

ESTIMATORS = pytest.mark.parametrize(
    "own",
    [
        FrankWolfeSVR(landmarks=60, gamma=0.3),
        FrankWolfeOneClass(contamination=0.1),
        FrankWolfeSVC(C=5, exact=True),
    ],
    ids=str,
)


def labels_for(own, y):
    """Targets, or two classes of them."""
    return y > 50 if isinstance(own, FrankWolfeSVC) else y


@pytest.mark.grid
@parametrize_with_checks(
    [FrankWolfeSVR(), FrankWolfeOneClass()],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def waves():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 3)).astype(np.float32)
    return X, 50 + 10 * (np.sin(2 * X[:, 0]) * X[:, 1] + 0.2 * rng.normal(size=700))


@ESTIMATORS
def test_a_file_gives_the_same_model(own, waves, tmp_path):
    X, y = waves[0], labels_for(own, waves[1])
    own = clone(own).set_params(random_state=0)
    expected = clone(own).fit(X, y).model_.decision_function(X)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(50, 3), compression="gzip")
        file["y"] = y.astype(float)
    found = clone(own).fit(tmp_path / "d.h5")
    assert found.certified_gap_ <= 2e-3
    tolerance = 0.3 * y.std() if found.model_.kind == "landmarks" else 2e-3
    for rows in (X, tmp_path / "d.h5"):
        values = found.model_.decision_function(rows)
        np.testing.assert_allclose(values, expected, atol=tolerance)


@ESTIMATORS
def test_files_and_copies(own, waves, tmp_path):
    X, y = waves
    own = clone(own).fit(X, labels_for(own, y))
    own.save(tmp_path / "m.h5")
    loaded = load_model(tmp_path / "m.h5")
    assert (loaded.task, loaded.epsilon) == (own.model_.task, own.model_.epsilon)
    for other in (loaded, copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        np.testing.assert_array_equal(other.predict(X), own.predict(X))


@ESTIMATORS
def test_a_run_that_is_resumed_converges(own, waves, tmp_path):
    X, y = waves[0], labels_for(own, waves[1])
    own = clone(own).set_params(random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        clone(own).set_params(max_iter=2).fit(X, y, checkpoint=tmp_path / "c")
    assert load_model(tmp_path / "c").predict(X).shape == y.shape
    own = clone(own).set_params(random_state=None)
    again = own.fit(X, y, resume=tmp_path / "c", log=tmp_path / "l")
    assert again.model_.status == "converged"
    assert len(read_runs([tmp_path / "l"])) == 1
    with pytest.raises(InputError, match="other data"):
        own.fit(X + np.float32(0.01), y, resume=tmp_path / "c")
