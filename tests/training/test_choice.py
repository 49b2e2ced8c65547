"""The plan between an exact model and landmarks: each rule, and models as they were chosen."""

import re
import signal
import time
from dataclasses import replace

import numpy as np
import pytest

from ooc_fw import TrainOptions, make_kernel, open_dataset
from ooc_fw.options import ModelOptions
from ooc_fw.problem import ClassificationProblem, RegressionProblem
from ooc_fw.solver.plan import Session, workload
from ooc_fw.solver.surroundings import Checkpoint, Deadline
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.system.memory import OverLimitError, least_bytes
from ooc_fw.training.choice import Trials, plan_model
from ooc_fw.training.fit import fit
from ooc_fw.training.prepare import prepare

KERNEL = make_kernel("rbf", gamma=0.3)
N_ROWS, LIMIT, LANDMARKS = 1200, 300, 60


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Limits for problems of a thousand rows."""
    monkeypatch.setattr("ooc_fw.training.choice.SAMPLE_ROWS", (100, 400))
    monkeypatch.setattr("ooc_fw.training.choice.MOST_SUPPORT", LIMIT)
    monkeypatch.setattr("ooc_fw.training.choice._QUICK_VALUES", 0)
    monkeypatch.setattr("ooc_fw.training.choice._EXACT_VALUES", 0)
    monkeypatch.setattr("ooc_fw.training.choice.LANDMARKS", LANDMARKS)


def rows(n_rows=N_ROWS, n_classes=2, noise=3.0):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 3)).astype(np.float32)
    scores = 3 * X[:, :n_classes] + noise * rng.normal(size=(n_rows, n_classes))
    return X, scores.argmax(axis=1).astype(np.int64)


def plan_of(problem, session=None, **options):
    return plan_model(problem, TrainOptions(**options), session or Session())


@pytest.fixture
def noisy():
    return ClassificationProblem(open_dataset(rows()[0]), rows()[1], KERNEL)


@pytest.fixture
def clean():
    """Rows with a margin between the classes, so that few of them are support vectors."""
    X, codes = rows(noise=0.0)
    X[:, 0] += 8 * (codes == 0)
    return ClassificationProblem(open_dataset(X), codes, KERNEL)


def test_noisy_rows_have_landmarks_and_clean_rows_an_exact_model(noisy, clean):
    plan = plan_of(noisy)
    assert plan.landmarks == LANDMARKS
    support = len(fit(noisy, TrainOptions(exact=True)).model.support_vectors)
    expected = int(re.search(r"about (\d+) are expected", plan.kind)[1])
    assert expected == pytest.approx(support, rel=0.1)
    assert f"more than {LIMIT}; --exact" in plan.kind
    assert plan_of(clean).landmarks is None
    for wish in ({"exact": True}, {"method": "swap"}, {"lmo": "full"}, {"stopping": "absolute"}):
        assert plan_of(noisy, **wish).landmarks is None
    few = noisy.subset(open_dataset(rows()[0][:LIMIT]), np.arange(LIMIT))
    assert (plan_of(few).landmarks, few.source.rows_read) == (None, 0)  # no sample


@pytest.mark.parametrize("seconds", [50.0, 200.0])
def test_an_exact_model_that_is_soon_over_needs_no_trial(noisy, monkeypatch, seconds):
    monkeypatch.setattr("ooc_fw.training.choice._QUICK_PACE", LIMIT**2 / 100)
    few = noisy.subset(open_dataset(rows()[0][:LIMIT]), np.arange(LIMIT))
    plan_of(few, max_time=seconds)
    assert (few.source.rows_read == 0) == (seconds > 100)


@pytest.mark.parametrize("n_classes", [2, 12])
def test_trials_are_told_and_end_in_their_share_of_the_time(local, n_classes):
    codes = np.arange(6000) % n_classes
    problem = ClassificationProblem(open_dataset(local[0]), codes, KERNEL)
    told = []
    trials = Trials(problem, TrainOptions(max_time=1000.0), Session(say=told.append))
    assert trials.deadline.left() == pytest.approx(70.0, abs=5.0)
    assert trials.expect_support(0, 6000) is not None
    assert told == [f"trying an exact model of {n} rows" for n in (100, 400) if n >= 30 * n_classes]
    clock = iter(range(10**6))
    trials.deadline = Deadline(2.0, 0.0, lambda: next(clock))
    assert trials.expect_support(0, 6000) is None
    assert next(clock) == 3  # nothing went on after the end


def test_a_sample_of_few_rows_for_each_class_is_not_tried(local):
    X, _ = local
    codes = np.arange(6000) % 14
    problem = ClassificationProblem(open_dataset(X), codes, KERNEL)
    told = []
    plan = plan_of(problem, Session(say=told.append), max_time=1e3)
    assert plan.landmarks is not None
    assert "a sample says nothing of 14 classes" in plan.kind
    assert told == []


@pytest.mark.parametrize("storage", ["array", "sorted"])
def test_a_class_that_a_sample_may_lack(storage):
    X, _ = rows()
    codes = np.zeros(N_ROWS, dtype=np.int64)
    codes[[5, 600]] = 1, 2
    if storage == "sorted":
        codes.sort()
    problem = ClassificationProblem(open_dataset(X), codes, KERNEL, np.linspace(1, 2, N_ROWS))
    assert Trials(problem, TrainOptions(), Session()).expect_support(0, N_ROWS)[0] <= N_ROWS


def test_no_time_for_a_sample_or_many_landmarks(noisy, monkeypatch):
    monkeypatch.setattr("ooc_fw.training.choice._TRIAL_TIME", 1e-9)
    monkeypatch.setattr("ooc_fw.training.choice._FIRST_VALUES", 100.5 * N_ROWS)
    late = plan_of(noisy, max_time=1e3)
    assert late.landmarks == 100  # of the first model, with 120,000 kernel values in a pass
    assert plan_of(noisy, max_time=1e-9).grows
    monkeypatch.setattr("ooc_fw.training.choice._READING_VALUES", 40.5 * N_ROWS)
    assert plan_of(noisy).landmarks == 40


def test_a_sample_that_seems_to_show_a_late_end_has_another_look(clean, monkeypatch):
    """Support vectors, and so the time, may grow far less than the rows do."""

    def solve(trials, size):
        time.sleep(size / 2000)
        return size, 10 + size // 20

    monkeypatch.setattr(Trials, "_solve_sample", solve)
    plan = plan_of(clean, max_time=4)  # one sample alone: 7 s
    assert plan.landmarks is None
    assert "of 100 rows has 15 support vectors and of 400 rows has 30" in plan.kind


def test_one_limit_is_named_before_labels_are_read_and_with_the_plan():
    codes = np.arange(N_ROWS) % 20
    source = open_dataset(np.pad(rows()[0], ((0, 0), (0, 400))), codes)
    problem, options = ClassificationProblem(source, codes, KERNEL), TrainOptions(memory_limit=1)
    with pytest.raises(OverLimitError) as early:
        prepare(source, "classification", ModelOptions(memory_limit=1))
    with pytest.raises(OverLimitError) as late:
        plan_model(problem, options, Session())
    assert early.value.needed == late.value.needed


def test_without_room_for_an_exact_model_there_are_landmarks():
    """Many rows take fewer numbers each, and no sample is solved."""
    X, codes = rows(3000)
    wide = ClassificationProblem(open_dataset(np.pad(X, ((0, 0), (0, 4000)))), codes, KERNEL)
    limit = least_bytes(workload(wide, TrainOptions(), Session())) - 1
    plan = plan_of(wide, memory_limit=limit)
    assert plan.landmarks >= 20
    assert wide.source.rows_read == 0
    with pytest.raises(OverLimitError):
        plan_of(wide, memory_limit=limit, exact=True)


@pytest.fixture
def hurried(monkeypatch):
    """A first model is small, and there is time for all that may follow."""
    monkeypatch.setattr("ooc_fw.training.choice._FIRST_LANDMARKS", 20)
    return TrainOptions(max_time=300.0)


def test_a_run_that_ends_early_goes_on_with_more_landmarks(noisy, hurried):
    plan = plan_of(noisy, max_time=300.0)
    told = []
    session = Session((lambda state: told.append((state.iteration, state.elapsed_s)),))
    fitted = fit(noisy, hurried, session, plan=plan)
    small = fit(noisy, TrainOptions(landmarks=plan.landmarks))
    assert plan.grows
    assert plan.landmarks == 20
    assert fitted.plan.landmarks == N_ROWS // 4  # the most
    assert fitted.model.status == "converged"
    assert fitted.landmarks.primal.sum() < small.landmarks.primal.sum()
    assert told == sorted(told)  # one run in the eyes of those who look on
    assert fitted.landmarks.iterations == told[-1][0] > small.landmarks.iterations
    assert not plan_of(noisy, max_time=300.0, landmarks=40).grows
    assert not plan_of(noisy).grows
    session = Session(checkpoint=Checkpoint("run.ckpt"))  # which is of one number of landmarks
    assert not plan_of(noisy, session, max_time=300.0).grows


@pytest.mark.parametrize("cause", ["signal", "late", "unwanted"])
def test_the_complete_model_stays_where_a_larger_one_does_not_come_about(noisy, hurried, cause):
    plan = plan_of(noisy, max_time=300.0)
    larger = []

    def stop(state):
        larger.append(state.n_active > plan.landmarks)
        if larger[-1] and cause == "signal":
            signal.raise_signal(signal.SIGINT)
        if larger[-1] and cause == "late":
            raise OutOfTimeError("late")
        return not larger[-1] or cause == "signal"

    fitted = fit(noisy, hurried, Session((stop,)), plan=plan)
    assert larger[-1]
    assert fitted.plan.landmarks == len(fitted.landmarks.rows) == plan.landmarks
    assert fitted.model.status == "converged"
    assert fitted.model.certified_gap <= 2e-3
    assert fitted.signal == (signal.SIGINT if cause == "signal" else None)


def test_a_limit_that_ends_before_there_is_a_model_leaves_a_small_one(noisy, hurried):
    options = replace(hurried, max_time=1e-9)
    fitted = fit(noisy, options, plan=plan_of(noisy, max_time=1e-9))
    assert fitted.model.status == "time_limit"
    assert 0 < fitted.plan.landmarks <= 20
    with pytest.raises(OutOfTimeError):
        fit(noisy, TrainOptions(landmarks=20, max_time=1e-9))


def test_a_small_regression_takes_fewer_landmarks_if_memory_is_short():
    X, _ = rows(3000)
    problem = RegressionProblem(open_dataset(X), X[:, 0].astype(float), KERNEL)
    assert plan_of(problem).landmarks == 3000
    assert 20 <= plan_of(problem, memory_limit=300 << 20).landmarks < 3000
    with pytest.raises(OverLimitError):
        plan_of(problem, memory_limit=300 << 20, exact=True)


@pytest.fixture
def local(monkeypatch):
    """A chessboard, which landmarks and wide kernels cannot tell; many support vectors."""
    monkeypatch.setattr("ooc_fw.training.choice._COMPARED_LANDMARKS", 20)
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(6000, 2)).astype(np.float32)
    codes = (np.floor(6 * X).sum(axis=1) % 2).astype(np.int64)
    return X, np.where(rng.uniform(size=6000) < 0.1, 1 - codes, codes)


@pytest.mark.parametrize(("values", "wanted"), [(1e9, 6000), (9e6, None), (0, 0)])
def test_held_out_rows_choose_an_exact_model_its_gamma_and_its_rows(
    local, monkeypatch, values, wanted
):
    X, codes = local
    monkeypatch.setattr("ooc_fw.training.choice._EXACT_VALUES", values)
    options = ModelOptions(seed=1)
    source = open_dataset(X, codes)
    problem = prepare(source, "classification", options).problem
    plan = plan_model(problem, options, Session())
    if wanted == 0:
        assert plan.landmarks == LANDMARKS
        return
    assert plan.kind.startswith("exact: of ")
    auto = prepare(source, "classification", replace(options, gamma="auto")).problem
    assert plan.kernel.gamma >= 16 * auto.kernel.gamma
    fitted = fit(problem, options, None, None, plan)
    model = fitted.model
    assert model.kernel == plan.kernel
    new = np.random.default_rng(1).uniform(size=(2000, 2)).astype(np.float32)
    right = np.floor(6 * new).sum(axis=1) % 2
    assert (model.predict(new) == right).mean() > 0.85
    certified = model.certify(source)
    assert certified.certified_gap == pytest.approx(model.certified_gap, rel=1e-3)
    if wanted is None:
        assert 2000 < model.n_weighted < 6000
        assert "--exact learns all" in plan.kind
        session = Session(checkpoint=Checkpoint("never", 60.0))
        assert plan_model(problem, options, session).landmarks is not None
    else:
        assert model.n_weighted is None


def test_landmarks_of_more_rows_win_if_the_rule_is_smooth(monkeypatch):
    monkeypatch.setattr("ooc_fw.training.choice._EXACT_VALUES", 1e9)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 3)).astype(np.float32)
    codes = (X[:, 0] + 2 * rng.normal(size=6000) > 0).astype(np.int64)
    options = ModelOptions()
    problem = prepare(open_dataset(X, codes), "classification", options).problem
    plan = plan_model(problem, options, Session())
    assert plan.landmarks == LANDMARKS
    assert "landmarks of 800 rows err on" in plan.kind  # twice those of the exact model
