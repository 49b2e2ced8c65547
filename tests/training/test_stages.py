"""Stages of exact classifiers: same certificate, and a useful model at any stop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import Status, TrainOptions, load_model
from ooc_fw.model.partition import partition_classes
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.surroundings import Checkpoint
from ooc_fw.training.checkpoint import load_resumed
from ooc_fw.training.fit import fit
from ooc_fw.training.means import ClassMeans
from ooc_fw.training.stages import stages_of
from tests.support.reference import SmallProblem
from tests.support.strategies import SEEDS
from tests.training.test_pairs import KERNELS, SAMPLED, assert_optimal, make_classes

COUNTS = 120, 90, 60, 33


@pytest.fixture(autouse=True)
def small_stages(monkeypatch):
    monkeypatch.setattr("ooc_fw.training.stages._FIRST_ROWS", 8)
    monkeypatch.setattr("ooc_fw.training.stages._ROWS_OF_CLASS", 2)


@pytest.mark.parametrize("shuffled", [False, True])
def test_each_stage_has_a_share_of_each_class_and_the_rows_before(shuffled):
    _, problem = make_classes(0, counts=COUNTS)
    problem.source.shuffled = shuffled
    known = np.array([0, 7, 300])
    *parts, last = stages_of(problem, plan_exact(problem, TrainOptions()), known)
    assert [stage.number for stage in (*parts, last)] == [1, 2, 3]
    assert last.last
    before = known
    for stage, size in zip(parts, (8, 50), strict=True):
        assert np.isin(before, stage.rows).all()
        assert (np.diff(stage.rows) > 0).all()
        here = np.bincount(problem.codes[stage.rows])
        wanted = np.maximum(np.ceil(size * np.array(COUNTS) / sum(COUNTS)), 2)
        assert (here >= wanted).all()
        assert here.sum() <= wanted.sum() + len(known)
        before = stage.rows


@given(
    SEEDS, st.sampled_from(KERNELS), st.booleans(), st.booleans(), st.sampled_from([{}, SAMPLED])
)
def test_the_last_stage_is_certified_as_a_run_without_stages(
    seed, kernel, sparse, weighted, options
):
    X, problem = make_classes(seed, COUNTS[1:], kernel, sparse, weighted)
    for pair in fit(problem, TrainOptions(C=3.0, threads=2, exact=True, **options)).pairs:
        assert_optimal(pair, X, problem, 3.0, 1e-3)


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=str)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
def test_a_run_that_stops_keeps_the_stage_before_and_goes_on(options, share, tmp_path):
    """Its file resumes: no objective rises, and the end is that of a run without a stop."""
    X, problem = make_classes(3, counts=COUNTS)
    options = TrainOptions(C=3.0, **options)
    calls = []
    fit(problem, options, Session([lambda state: calls.append(state.stage)]))
    assert {*calls} == {1, 2, 3}
    left = iter(range(int(share * len(calls))))
    session = Session(
        [lambda state: next(left, None) is not None],
        checkpoint=Checkpoint(tmp_path / "c.h5", every_s=0.0),
    )
    stopped = fit(problem, options, session)
    assert stopped.model.status == Status.STOPPED
    for pair in stopped.pairs:
        assert pair.solution.alpha.sum() == pytest.approx(1)
        assert {*problem.codes[pair.solution.rows]} == {pair.negative, pair.positive}
    if share > 0.5:
        largest = max(COUNTS) / sum(COUNTS)
        assert np.mean(stopped.model.predict(X) == problem.codes) > largest + 0.1
    saved = load_model(tmp_path / "c.h5")
    assert (saved.status, len(saved.classifiers)) == (Status.RUNNING, 6)
    resumed = fit(problem, options, resumed=load_resumed(tmp_path / "c.h5"))
    for before, after in zip(saved.classifiers, resumed.pairs, strict=True):
        assert_optimal(after, X, problem, 3.0, 1e-3)
        assert after.solution.rho <= before.rho * (1 + 1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_means_of_classes_are_the_best_of_two_vertices(weighted):
    X, problem = make_classes(1, counts=(20, 12, 30), weighted=weighted)
    plan = plan_exact(problem, TrainOptions(C=2.0))
    with partition_classes(problem, plan) as partition:
        means = ClassMeans(partition, plan)
        one = means.solution(0, 2, Status.STOPPED)
    here = np.flatnonzero(problem.codes != 1)
    y = np.where(problem.codes[here] == 2, 1, -1).astype(np.int8)
    own = problem.penalties[here] if weighted else 2.0
    brute = SmallProblem(problem.kernel, X[here], y, own)
    places = np.searchsorted(here, one.rows)
    np.testing.assert_array_equal(here[places], one.rows)
    alpha = np.zeros(len(here))
    alpha[places] = one.alpha
    assert one.rho == pytest.approx(float(alpha @ brute.dual_matrix @ alpha), rel=1e-6)
    for share in (0.05, -0.05):
        moved = alpha * np.where(
            y < 0, 1 + share, 1 - share * alpha[y < 0].sum() / alpha[y > 0].sum()
        )
        assert moved.sum() == pytest.approx(1)
        assert moved @ brute.dual_matrix @ moved >= one.rho * (1 - 1e-9)


def test_rows_of_a_class_in_any_order_of_classes(tmp_path):
    """Classes that follow each other in the file have their shares, too."""
    X, problem = make_classes(2, counts=COUNTS)
    order = np.argsort(problem.codes, kind="stable")
    source = type(problem.source)(X[order])
    other = ClassificationProblem(source, problem.codes[order], problem.kernel)
    for pair in fit(other, TrainOptions(C=3.0)).pairs:
        assert_optimal(pair, X[order], other, 3.0, 1e-3)
