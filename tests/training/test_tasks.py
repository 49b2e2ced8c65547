"""What holds for every task: from a source to a description, by one door."""

import json

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from ooc_fw import (
    FrankWolfeOneClass,
    FrankWolfeSVC,
    FrankWolfeSVR,
    TrainOptions,
    make_kernel,
    open_dataset,
)
from ooc_fw.options import TaskOptions
from ooc_fw.solver.plan import Session
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
    assert (problem.task, len(problem.row_classes)) == (name, source.n_rows)
    plan = plan_model(problem, options, Session())
    assert "auto" not in (plan.options.method, plan.options.lmo) or plan.landmarks is not None
    fitted, again = fit(problem, options, plan=plan), fit(problem, options)
    assert fitted.plan.memory == again.plan.memory == plan.memory
    for one, other in zip(fitted.model.classifiers, again.model.classifiers, strict=True):
        np.testing.assert_array_equal(one.alpha, other.alpha)
    assert fitted.why_inexact() is None
    told = json.loads(json.dumps(describe(fitted)))
    assert set(told) >= COMMON
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


@pytest.mark.grid
@parametrize_with_checks(
    [FrankWolfeSVC(), FrankWolfeSVR(), FrankWolfeOneClass()],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
