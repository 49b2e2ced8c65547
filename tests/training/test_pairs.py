"""Classifiers for pairs of classes: each is that of its two classes alone, from any storage.

Pairs of few rows are trained on all their kernel values.
"""

import itertools
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import Status, TrainOptions, make_kernel, open_dataset
from ooc_fw.data.sources import ArraySource, CSRSource
from ooc_fw.model.machines import class_pairs, union_of_rows
from ooc_fw.model.partition import partition_classes
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Session
from ooc_fw.training.fit import fit
from tests.support.contracts import to_dense
from tests.support.files import write_dense, write_sparse
from tests.support.reference import SmallProblem, to_csr
from tests.support.solving import ClockedSession
from tests.support.strategies import SEEDS

KERNELS = [
    make_kernel("rbf", gamma=0.5),
    make_kernel("laplacian", gamma=0.3),
    make_kernel("linear"),
    make_kernel("poly", gamma=0.5, degree=3, coef0=1.0),
]
SAMPLED = {"lmo": "sampled"}  # by which pairs of few rows are trained as all others


def make_classes(seed, counts=(20, 20, 20), kernel=KERNELS[0], sparse=False, weighted=False):
    """Blobs that overlap, with some zeros."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    X = (rng.normal(size=(len(codes), 4)) + codes[:, None]).astype(np.float32)
    X[rng.random(X.shape) < 0.3] = 0
    penalties = rng.uniform(0.1, 10, len(codes)) if weighted else None
    source = CSRSource(to_csr(X)) if sparse else ArraySource(X)
    return X, ClassificationProblem(source, codes, kernel, penalties)


def assert_optimal(pair, X, problem, C, tol):
    """The certificate is that of brute force, on the rows of the two classes."""
    solution = pair.solution
    here = np.flatnonzero(np.isin(problem.codes, [pair.negative, pair.positive]))
    y = np.where(problem.codes[here] == pair.positive, 1, -1).astype(np.int8)
    own = C if problem.penalties is None else problem.penalties[here]
    brute = SmallProblem(problem.kernel, X[here], y, own)
    places = np.searchsorted(here, solution.rows)
    np.testing.assert_array_equal(here[places], solution.rows)
    np.testing.assert_array_equal(solution.labels, y[places])
    truth = brute.truth(places, solution.alpha)
    assert truth.gap <= solution.certified_gap
    share = 1 - solution.dual / solution.primal
    assert solution.certified_gap <= tol or share <= 2 * tol
    if solution.pair_gap is not None:  # a model file does not keep it
        assert solution.pair_gap == pytest.approx(float(truth.pair_gap), abs=1e-6)
    assert (solution.alpha > 0).all()
    assert solution.alpha.sum() == pytest.approx(1, abs=1e-12)
    assert solution.objective == pytest.approx(brute.optimum.objective, rel=2e-3)
    if problem.penalties is not None:
        np.testing.assert_array_equal(solution.penalties, own[places])


@given(
    SEEDS,
    st.sampled_from(KERNELS),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.1, 100]),
    st.sampled_from([{}, SAMPLED]),
)
def test_certificates_are_those_of_brute_force(seed, kernel, sparse, weighted, C, options):
    X, problem = make_classes(seed, kernel=kernel, sparse=sparse, weighted=weighted)
    fitted = fit(problem, TrainOptions(C=C, tol=1e-3, threads=2, exact=True, **options))
    assert [(pair.negative, pair.positive) for pair in fitted.pairs] == class_pairs(3)
    for pair in fitted.pairs:
        assert_optimal(pair, X, problem, C, 1e-3)


@pytest.mark.parametrize("in_ram", [True, False])
@pytest.mark.parametrize("write", [write_dense, write_sparse])
def test_rows_of_a_file_are_read_once_and_may_be_held_on_disk(write, in_ram, tmp_path, monkeypatch):
    X, problem = make_classes(0, counts=(30, 50, 40, 20))
    options = TrainOptions(C=10.0)
    if not in_ram:
        monkeypatch.setattr("ooc_fw.model.partition._RAM_BYTES", 0)
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with open_dataset(write(tmp_path / "d.h5", X, problem.codes.astype(float))) as source:
        fitted = fit(replace(problem, source=source), options)
        vectors = union_of_rows(fitted.pairs)
        assert source.rows_read == 140 + len(vectors)
    np.testing.assert_array_equal(to_dense(fitted.model.support_vectors), X[vectors])
    for pair, in_array in zip(fitted.pairs, fit(problem, options).pairs, strict=True):
        assert_optimal(pair, X, problem, 10.0, 1e-3)
        if write is write_dense:  # the same arithmetic
            np.testing.assert_array_equal(pair.solution.rows, in_array.solution.rows)
            np.testing.assert_array_equal(pair.solution.alpha, in_array.solution.alpha)
    assert list(scratch.iterdir()) == []


def test_rows_of_bytes_are_bytes_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("ooc_fw.model.partition._RAM_BYTES", 0)
    X, problem = make_classes(0)
    X = (10 * np.abs(X)).astype(np.uint8)
    np.save(tmp_path / "X.npy", X)
    with (
        open_dataset(tmp_path / "X.npy") as source,
        partition_classes(replace(problem, source=source)) as partition,
    ):
        for rows, own in zip(partition.rows, partition.sources, strict=True):
            assert own.dtype == np.uint8
            np.testing.assert_array_equal(own.read(0, own.n_rows), X[rows])


def test_values_within_a_class_are_computed_once_for_all_its_pairs():
    _, problem = make_classes(6, counts=[60] * 6)
    found = fit(problem, TrainOptions(threads=2)).solutions
    assert sum(each.kernel_evaluations for each in found) == (15 + 6) * 60**2


def test_pairs_that_do_not_reach_the_gap_are_trained_in_another_way():
    _, problem = make_classes(3)
    for pair in fit(problem, TrainOptions(tol=1e-17)).pairs:
        assert (pair.solution.status, pair.solution.lmo) == (Status.ROUNDING, "sampled")
        assert pair.solution.certified_gap < 1e-5
        assert np.isin(problem.codes[pair.solution.rows], [pair.negative, pair.positive]).all()


def test_pairs_of_few_rows_are_trained_so_without_certificates_too():
    """By the same steps, as `tune` trains them; they claim no gap over all rows."""
    _, problem = make_classes(3)
    options = TrainOptions(C=2.0, tol=1e-3, exact=True)
    of_all = [fit(problem, replace(options, certify=certify)) for certify in (True, False)]
    for one, other in zip(*(each.pairs for each in of_all), strict=True):
        np.testing.assert_array_equal(one.solution.alpha, other.solution.alpha)
        assert (other.solution.status, other.solution.certified_gap) == (Status.SAMPLED, None)
    assert of_all[1].model.certified_gap is None


def test_no_time_left_gives_every_pair_a_classifier():
    _, problem = make_classes(4, counts=(20, 20, 20, 20))
    session = ClockedSession([lambda state: session.stop_clock()])
    found = fit(problem, TrainOptions(max_time=1000.0), session).pairs
    assert len(found) == 6
    assert {pair.solution.status for pair in found[1:]} == {Status.TIME_LIMIT}
    assert all(pair.solution.alpha.sum() == pytest.approx(1) for pair in found)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("options", [{}, SAMPLED], ids=str)
def test_callbacks_see_all_classifiers_and_end_training(options, threads):
    _, problem = make_classes(5, counts=(20, 20, 30, 20, 20))
    seen, options = [], TrainOptions(threads=threads, **options)
    told = Session([lambda state: seen.append((state.classifier, state.n_classifiers))])
    fit(problem, options, told)
    in_turn = [k for k, _ in itertools.groupby(seen)] if threads == 1 else {*seen}
    assert sorted(in_turn) == [(k, 10) for k in range(10)]
    found = fit(problem, options, Session([lambda state: state.classifier < 3])).pairs
    statuses = [pair.solution.status for pair in found]
    assert statuses.count(Status.CONVERGED) >= 1
    if threads == 1:  # else some may be far ahead
        assert statuses.count(Status.CONVERGED) >= 2
        assert statuses.count(Status.STOPPED) >= 4
    assert all(len(pair.solution.alpha) > 0 for pair in found)
