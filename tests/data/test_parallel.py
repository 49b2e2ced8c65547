"""Passes give the same numbers without Dask, on its threads, its processes and a cluster."""

import os
import signal
import sys
import time
from functools import cache, partial

import numpy as np
import pytest
from distributed import LocalCluster

from ooc_fw import FrankWolfeSVC
from ooc_fw.certificate.screening import Screen
from ooc_fw.certificate.sweep import Search, SupportWeights, certify
from ooc_fw.data.opening import open_source
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.statistics import sigma2
from ooc_fw.data.views import ScaledSource
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.problem import BinaryProblem
from ooc_fw.system.errors import InputError
from tests.support.files import write_dense, write_sparse

# -- blocks, their order and errors in them --------------------------------------------------------


def work(source, block, base=0):
    if block == 13:
        raise InputError("thirteen")
    if block == 14:
        os._exit(1)
    return base + block * block


@pytest.mark.parametrize(("dask", "threads"), [(None, 1), (None, 3), ("threads", 3)])
def test_results_come_in_the_order_of_the_blocks(dask, threads, monkeypatch):
    """Without Dask; few of them wait, and errors come through."""
    monkeypatch.setitem(sys.modules, "dask", None)
    source, begun = open_source(np.eye(3)), []

    def late(rows, block, factor):
        assert rows is source
        begun.append(block)
        time.sleep(0.002 * (block % 3))
        return factor * block

    with borrow_workers(dask, threads) as workers:
        for n in (0, 1, 2, 29):
            found = list(workers.over(source, late, list(range(n)), 10))
            assert found == [(block, 10 * block) for block in range(n)]
        begun.clear()
        results = workers.over(source, late, list(range(200)), 10)
        next(results)
        results.close()
        assert len(begun) <= 5 * threads
        with pytest.raises(InputError, match="thirteen"):
            list(workers.over(source, work, list(range(14))))


def pid_of(source, block, values):
    return os.getpid()


@pytest.mark.process
def test_processes(tmp_path):
    path = write_dense(tmp_path / "x.h5", np.eye(3), np.ones(3))
    with open_source(path) as file, borrow_workers("processes", 2) as workers:
        with pytest.raises(InputError, match=r"in the memory of this one; .* give a file's path"):
            next(workers.over(open_source(np.eye(3)), work, [1]))
        blocks = list(range(12)) * 3
        assert list(workers.over(file, work, blocks, 5)) == [(k, 5 + k * k) for k in blocks]
        with pytest.raises(InputError, match=r"^thirteen$"):
            list(workers.over(file, work, list(range(14)), 5))
        # Ctrl-C reaches all processes of a terminal; workers leave it to the one that decides.
        pids = {pid for _, pid in workers.over(file, pid_of, blocks, np.eye(2))}
        assert os.getpid() not in pids
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
        assert {pid for _, pid in workers.over(file, pid_of, blocks, np.eye(2))} <= pids


@pytest.mark.long
def test_a_task_that_kills_its_workers_is_given_up(tmp_path):
    def lose_workers():
        with open_source(path) as file, borrow_workers("processes", 1) as workers:
            list(workers.over(file, work, [14], 5))

    path = write_dense(tmp_path / "x.h5", np.eye(3), np.ones(3))
    with pytest.raises(ChildProcessError, match="the cluster gave a task up"):
        lose_workers()


# -- a pass on a cluster ---------------------------------------------------------------------------

N_ROWS, N_FEATURES = 60_000, 40  # 9.6 MB: three blocks of a sweep
SUPPORT = np.sort(np.random.default_rng(1).permutation(N_ROWS)[:150])
SUSPECTS = np.arange(5, N_ROWS, 2)


@pytest.fixture(scope="module")
def cluster():
    """Two workers for all tests; those that are killed get successors."""
    options = {"processes": True, "dashboard_address": ":0", "silence_logs": 50}
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        yield cluster


@pytest.fixture
def address(cluster):
    return cluster.scheduler_address


@pytest.fixture(scope="module")
def table():
    """Rows of which a third are repeats, and labels that follow from them with noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_FEATURES)).astype(np.float32)
    X[rng.random(X.shape) < 0.5] = 0
    X[::3] = X[rng.integers(0, 50, len(X[::3]))]
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=N_ROWS) > 0, 3.0, -7.0)
    return X, y


@pytest.fixture
def path(table, tmp_path):
    return write_dense(tmp_path / "dense.h5", *table, chunks=(1000, N_FEATURES))


def assert_agrees(found, expected):
    """Numbers within the rounding of float32 values or, those of a certificate, of float64."""
    if isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            assert_agrees(one, other)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9)
    else:
        assert repr(found) == repr(expected)


def statistics_of(path, dask, threads=2, on_rows=None):
    with open_source(path) as source:
        scaled = ScaledSource(source, Scaling("maxabs", False, *np.ones((2, N_FEATURES))))
        return sigma2(scaled, threads, dask=dask, on_rows=on_rows)


def sweep_of(path, dask, threads=2, on_rows=None, suspects=None):
    """Parts of the certificate of some weights, and of the screen it fills."""
    with open_source(path) as source:
        y = np.where(source.labels(0, N_ROWS) > 0, 1, -1).astype(np.int8)
        rows = source.take(SUPPORT)
        alpha = np.random.default_rng(2).dirichlet(np.ones(len(SUPPORT)))
        screen = None
        if suspects is None:
            known = {"row_ids": SUPPORT, "alpha": alpha, "plain": np.zeros(len(SUPPORT))}
            screen = Screen.empty(N_ROWS, **known, norm2=1.0, rounding=0.0)
        with Engine(make_kernel("rbf", gamma=0.02), threads) as engine:
            problem = BinaryProblem(source, y, engine.kernel)
            support = SupportWeights(rows, SUPPORT, alpha, 10.0)
            search = Search(1e-3, 100, screen, suspects)
            certificate = certify(problem, engine, support, search, on_rows, dask)
    assert certificate.n_violators > 100
    bounds = [] if screen is None else [*vars(screen).values()]
    return [*vars(certificate).values(), *bounds]


sweep_of_suspects = partial(sweep_of, suspects=SUSPECTS)


@cache
def model():
    X = np.random.default_rng(0).normal(size=(500, N_FEATURES)).astype(np.float32)
    return FrankWolfeSVC(C=1.0, gamma=0.02, tol=0.1).fit(X, X[:, 0] > 0).model_


def predictions_of(path, dask, threads=2, on_rows=None):
    return model().decision_function(path, threads=threads, dask=dask)


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "work", "n_rows"),
    [
        ("dense", statistics_of, N_ROWS),
        ("dense", sweep_of, N_ROWS),
        ("sparse", sweep_of_suspects, len(SUSPECTS)),
        ("dense", predictions_of, None),
    ],
)
def test_work_on_all_rows(table, path, address, tmp_path, kind, work, n_rows):
    if kind == "sparse":
        path = write_sparse(tmp_path / "sparse.h5", *table, chunks=(10_000,))
    expected = work(path, None, threads=1)
    for dask in (None, "threads", address):
        seen = []
        assert_agrees(work(path, dask, 3, seen.append), expected)
        assert seen == sorted(seen)
        assert n_rows is None or (len(seen) > 2 and seen[-1] == n_rows)


@pytest.mark.process
def test_an_estimator_trains_the_same_model(tmp_path, table, address):
    path = write_dense(tmp_path / "small.h5", table[0][:3000], table[1][:3000])
    options = {"tol": 0.1, "C": 0.1, "n_jobs": 2, "random_state": 0}
    expected = FrankWolfeSVC(**options).fit(path)
    found = FrankWolfeSVC(**options, dask=address).fit(path)
    np.testing.assert_allclose(found.dual_coef_, expected.dual_coef_, atol=1e-6)
    assert found.certified_gap_ == pytest.approx(expected.certified_gap_, rel=1e-6)
    with pytest.raises(InputError, match="in the memory of this one"):
        found.fit(*table)
    values = found.decision_function(table[0][:10])  # of rows in RAM: here
    assert_agrees(values, expected.decision_function(table[0][:10]))


@pytest.mark.process
@pytest.mark.parametrize("n_killed", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("work", [statistics_of, sweep_of_suspects])
def test_workers_killed_amid_their_work_change_nothing(cluster, path, work, n_killed):
    """When all are killed, what tasks share is lost too and is made anew on their successors."""
    expected = work(path, None)
    cluster.wait_for_workers(2)
    pids = [worker.pid for worker in cluster.workers.values()][:n_killed]
    seen = []

    def kill(rows_seen):
        seen.append(rows_seen)
        while pids:
            os.kill(pids.pop(), signal.SIGKILL)

    assert_agrees(work(path, cluster.scheduler_address, on_rows=kill), expected)
    assert pids == []
    assert seen[0] < seen[-1]


@pytest.mark.process
def test_a_file_that_is_replaced_amid_a_pass_is_an_error(table, path, address, tmp_path):
    """A worker may open the file for its first block after the change."""

    def replace(rows_seen):
        write_dense(tmp_path / "other.h5", 2 * table[0], table[1]).replace(path)

    for dask in (None, address):
        with pytest.raises(InputError, match=r"was changed while|is not the file it was when"):
            sweep_of_suspects(path, dask, 1, replace)


@pytest.mark.process
def test_workers_do_not_read_a_file_put_there_after_the_start(table, address, tmp_path):
    """Not even one of the same shape, and whatever an earlier run left open on the workers."""
    path = write_dense(tmp_path / "data.h5", table[0][:99], table[1][:99])
    before = predictions_of(path, address)
    with open_source(path) as source:
        write_dense(tmp_path / "other.h5", -table[0][:99], table[1][:99]).replace(path)
        with pytest.raises(InputError, match=r"is not the file it was when the work began|changed"):
            predictions_of(source, address)
    after = predictions_of(path, None)
    assert_agrees(predictions_of(path, address), after)
    assert not np.allclose(after, before)
