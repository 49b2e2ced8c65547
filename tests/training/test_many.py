"""The kernel, C and class weights of default models of many classes."""

from dataclasses import replace

import numpy as np
import pytest

from ooc_fw import open_dataset
from ooc_fw.options import ModelOptions
from ooc_fw.problem import row_penalties
from ooc_fw.solver.plan import Session
from ooc_fw.solver.surroundings import Checkpoint
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.training.checkpoint import load_resumed
from ooc_fw.training.choice import Trials, plan_model
from ooc_fw.training.fit import fit
from ooc_fw.training.many import Candidate, draw_trial, search
from ooc_fw.training.prepare import prepare

K = 40


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Landmarks from 2,000 rows of 40 classes on; few of them in trials."""
    monkeypatch.setattr("ooc_fw.training.choice._MANY_SIDES", 1e4)
    monkeypatch.setattr("ooc_fw.training.choice._COMPARED_LANDMARKS", 60)


def directions(n_rows, clusters=1, seed=0):
    """Rows near directions, of which each class has some; later classes have fewer rows."""
    centres = np.random.default_rng(9).normal(size=(K, clusters, 12))
    centres /= np.linalg.norm(centres, axis=2, keepdims=True)
    rng = np.random.default_rng(seed)
    codes = np.sort(rng.integers(K, size=(n_rows, 2)), axis=1)[:, rng.integers(2)]
    codes[:K] = np.arange(K)
    noise = 0.25 if clusters == 1 else 0.1
    X = centres[codes, rng.integers(clusters, size=n_rows)] + noise * rng.normal(size=(n_rows, 12))
    return X.astype(np.float32), codes


def prepared(source, **options):
    options = ModelOptions(**options)
    return prepare(source, "classification", options).problem, options


@pytest.mark.parametrize("clusters", [1, 3])
def test_held_out_rows_choose_weights_of_columns_or_landmarks(clusters):
    X, codes = directions(3000, clusters)
    problem, options = prepared(open_dataset(X, codes))
    plan = plan_model(problem, options, Session())
    assert plan.linear == (clusters == 1)
    assert "new rows of 40 classes" in plan.kind
    new, truth = directions(3000, clusters, seed=1)
    model = fit(problem, options, plan=plan).model
    accuracy = (model.predict(new) == truth).mean()
    before = plan_model(problem, replace(options, gamma="auto"), Session())
    other = fit(problem, options, plan=before).model
    assert not before.linear
    assert accuracy >= (other.predict(new) == truth).mean() - 0.01
    certified = model.certify(open_dataset(X, codes))
    assert certified.certified_gap == pytest.approx(model.certified_gap, rel=1e-3, abs=1e-9)


def test_a_given_c_or_weight_or_gamma_is_kept():
    X, codes = directions(2400)
    source = open_dataset(X, codes)
    problem, options = prepared(source, C=2.0)
    assert plan_model(problem, options, Session()).options.C == 2.0
    problem, options = prepared(source, gamma=0.5)
    assert not plan_model(problem, options, Session()).searched
    problem, options = prepared(source)
    weighted = replace(problem, penalties=np.ones(2400))
    assert not plan_model(weighted, options, Session()).searched


def test_a_resumed_run_has_what_held_out_rows_chose(tmp_path):
    X, codes = directions(3000)
    source = open_dataset(X, codes)
    path = tmp_path / "run.ckpt"
    problem, options = prepared(source)
    first = fit(problem, options, Session(checkpoint=Checkpoint(path, 0.0))).model
    for _ in range(2):  # a resumed run can be resumed, too
        resumed = load_resumed(path)
        options = resumed.options(ModelOptions())
        problem = prepare(source, "classification", options).problem
        session = Session(checkpoint=Checkpoint(path, 0.0))
        model = fit(problem, options, session, resumed).model
        assert (model.kernel, model.C) == (first.kernel, first.C)
        np.testing.assert_array_equal(model.penalties, first.penalties)


def test_few_rows_give_no_trial():
    X, codes = directions(1000)
    problem, _ = prepared(open_dataset(X, codes))
    assert draw_trial(problem, 0, lambda: None) is None


@pytest.mark.parametrize("n_tried", [0, 1, 3])
def test_the_best_before_the_time_was_over_is_known(n_tried):
    X, codes = directions(3000)
    problem, _ = prepared(open_dataset(X, codes))
    trial = draw_trial(problem, 0, lambda: None)
    assert np.isin(trial.judges.codes, trial.sample.codes).all()

    def errors_of(candidate):
        if len(asked) == n_tried:
            raise OutOfTimeError("over")
        asked.append(candidate)
        return np.array([1.0 / len(asked)])

    asked = []
    tried = search(Candidate(problem.kernel, 1.0, balanced=False), trial, errors_of)
    assert list(tried) == asked


def test_balanced_penalties_are_those_of_the_option():
    X, codes = directions(2400)
    problem, _ = prepared(open_dataset(X, codes))
    found = Candidate(problem.kernel, 0.5, balanced=True).applied_to(problem)
    expected = row_penalties(0.5, problem.classes, codes, "balanced")
    np.testing.assert_array_equal(found.penalties, expected)
    assert Candidate(problem.kernel, 0.5, balanced=False).applied_to(problem).penalties is None


def test_without_the_errors_of_landmarks_there_is_no_choice(monkeypatch):
    X, codes = directions(3000)
    problem, options = prepared(open_dataset(X, codes))

    def in_time(self, sample, options):
        if sample.kernel.name != "linear":
            raise OutOfTimeError("over")
        return train(self, sample, options)

    train = Trials._train_span
    monkeypatch.setattr(Trials, "_train_span", in_time)
    plan = plan_model(problem, options, Session())
    assert (plan.linear, plan.searched, plan.options.C) == (False, False, 1.0)
