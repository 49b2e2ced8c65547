"""What holds for every task: from a source to a description, by one door."""

import json

import numpy as np
import pytest

from ooc_fw.data.opening import open_source
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.options import TaskOptions, TrainOptions
from ooc_fw.solver.plan import Plan
from ooc_fw.solver.state import Status
from ooc_fw.system.memory import OverLimitError
from ooc_fw.training.fit import TASKS, describe, fit, make_plan, task_of

KERNEL = make_kernel("rbf", gamma=0.5)
COMMON = {"status", "kind", "gap_scope", "kernel", "gamma", "C", "tol", "n_rows", "n_features"}
COMMON |= {"n_support", "certified_gap", "sampled_gap", "iterations", "passes", "choice"}


@pytest.fixture
def source():
    X = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    return open_source(X, np.where(X[:, 0] > 0, 1.0, -1.0))


@pytest.mark.parametrize("name", TASKS)
def test_a_plan_is_made_once_and_a_model_is_as_planned(source, name):
    task, options = task_of(name), TrainOptions(C=3.0)
    answers, threads = task.read(source, options)
    assert threads == 1
    problem = task.problem(source=source, kernel=KERNEL, **answers)
    assert problem.task == name
    assert len(problem.row_classes) == source.n_rows
    plan = make_plan(problem, options)
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


@pytest.mark.parametrize("name", TASKS)
def test_a_limit_is_refused_before_labels_are_read(source, name):
    with pytest.raises(OverLimitError, match="the smallest limit that would do is"):
        task_of(name).read(source, TrainOptions(memory_limit=1))


@pytest.mark.parametrize("name", TASKS)
def test_a_run_that_ends_early_says_why(source, name):
    task, options = task_of(name), TrainOptions(C=3.0, max_iter=0, certify=False)
    answers, _ = task.read(source, options)
    fitted = fit(task.problem(source=source, kernel=KERNEL, **answers), options)
    if not Status(fitted.model.status).reached:
        assert "before" in fitted.why_inexact() or "iterations" in fitted.why_inexact()


def test_options_of_tasks_belong_to_one_task():
    fields = [field for name in TASKS for field in task_of(name).fields]
    assert sorted(fields) == sorted(TaskOptions.__dataclass_fields__)
