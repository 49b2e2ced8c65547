"""Passes give the same numbers without Dask, on its threads, its processes and a cluster."""

import errno
import os
import signal
import sys
import time
import warnings
from functools import partial

import numpy as np
import pytest
from distributed import LocalCluster

from ooc_fw import FrankWolfeSVC
from ooc_fw.data.opening import open_dataset
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.statistics import sigma2
from ooc_fw.data.views import ScaledSource
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import atomic_path
from tests.support.files import write_dense


def work(source, block, base=0):
    if block == 13:
        raise InputError("thirteen")
    if block == 14:
        os._exit(1)
    return base + block * block


@pytest.mark.parametrize(("dask", "threads"), [(None, 1), (None, 3), ("threads", 3)])
def test_results_come_in_the_order_of_the_blocks(dask, threads, monkeypatch):
    """Few blocks are begun before they are needed, and threads do without Dask."""
    monkeypatch.setitem(sys.modules, "dask", None)
    source, begun = open_dataset(np.eye(3)), []

    def late(rows, block, factor):
        assert rows is source
        begun.append(block)
        time.sleep(0.002 * (block % 3))
        return factor * block

    with borrow_workers(dask, threads) as workers:
        found = list(workers.over(source, late, list(range(29)), 10))
        assert found == [(block, 10 * block) for block in range(29)]
        begun.clear()
        results = workers.over(source, late, list(range(200)), 10)
        next(results)
        time.sleep(0.1)
        results.close()
        assert len(begun) <= 5 * threads
        with pytest.raises(InputError, match="thirteen"):
            list(workers.over(source, work, list(range(14))))


def pid_of(source, block):
    return os.getpid()


@pytest.mark.process
def test_processes(path):
    """Ctrl-C reaches all processes of a terminal, and workers leave it to this one."""
    blocks = list(range(12))
    with open_dataset(path) as file, borrow_workers("processes", 2) as workers:
        assert list(workers.over(file, work, blocks, 5)) == [(k, 5 + k * k) for k in blocks]
        with pytest.raises(InputError, match=r"^thirteen$"):
            list(workers.over(file, work, [*blocks, 13], 5))
        pids = {pid for _, pid in workers.over(file, pid_of, blocks)}
        assert os.getpid() not in pids
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
        assert {pid for _, pid in workers.over(file, pid_of, blocks)} <= pids


def test_processes_that_cannot_start(monkeypatch, tmp_path):
    """The first error tells why, also while an output is open."""

    def full(**options):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            raise RuntimeError("Nanny failed to start.") from None

    monkeypatch.setattr("distributed.LocalCluster", full)
    said = r"^the processes of a cluster cannot start \(.*No space left on device\); "
    with (
        pytest.raises(ChildProcessError, match=said),
        atomic_path(tmp_path / "out"),
        borrow_workers("processes", 2),
    ):
        raise AssertionError


@pytest.mark.long
def test_a_task_that_kills_its_workers_is_given_up(path):
    with (
        open_dataset(path) as file,
        pytest.raises(ChildProcessError, match="the cluster gave a task up"),
        borrow_workers("processes", 1) as workers,
    ):
        list(workers.over(file, work, [14], 5))


N_ROWS, N_FEATURES = 60_000, 40  # 9.6 MB: three blocks of a pass


@pytest.fixture(scope="module")
def cluster():
    """Two workers for all tests. A worker that is killed gets a successor."""
    options = {"processes": True, "dashboard_address": ":0", "silence_logs": 50}
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def table():
    """Rows, and labels that follow from them with noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_FEATURES)).astype(np.float32)
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=N_ROWS) > 0, 3.0, -7.0)
    return X, y


@pytest.fixture
def path(table, tmp_path):
    return write_dense(tmp_path / "dense.h5", *table)


OPTIONS = {"tol": 0.1, "C": 0.1, "gamma": 0.02, "random_state": 0}


@pytest.fixture(scope="module")
def model(table):
    few_steps = {"landmarks": "none", "method": "fw", "lmo": "sampled", "max_iter": 100}
    with warnings.catch_warnings(action="ignore"):
        return FrankWolfeSVC(**OPTIONS, **few_steps).fit(*table).model_


def statistics_of(model, path, dask, **options):
    with open_dataset(path) as source:
        scaled = ScaledSource(source, Scaling("maxabs", False, *np.ones((2, N_FEATURES))))
        return sigma2(scaled, 2, dask=dask, **options)


def certificate_of(model, path, dask, **options):
    (numbers,) = model.certify(path, threads=2, dask=dask, **options).classifiers
    return [*numbers.values()]


agree = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)


@pytest.mark.process
@pytest.mark.parametrize("work", [statistics_of, certificate_of])
def test_passes_on_a_cluster_find_the_same(model, cluster, path, work):
    seen = []
    found = work(model, path, cluster.scheduler_address, on_rows=seen.append)
    agree(found, work(model, path, None))
    assert seen == sorted(seen)
    assert len(seen) > 2
    assert seen[-1] == N_ROWS


@pytest.mark.process
@pytest.mark.parametrize("landmarks", [None, 20])
def test_an_estimator_trains_the_same_model(tmp_path, table, cluster, landmarks):
    path = write_dense(tmp_path / "small.h5", table[0][:3000], table[1][:3000])
    how = OPTIONS | {"landmarks": landmarks}
    expected = FrankWolfeSVC(**how).fit(path)
    found = FrankWolfeSVC(**how, dask=cluster.scheduler_address).fit(path)
    agree(found.dual_coef_, expected.dual_coef_)
    agree(found.certified_gap_, expected.certified_gap_)
    with pytest.raises(InputError, match=r"in the memory of this one; .* give a file's path"):
        found.fit(*table)


@pytest.mark.process
@pytest.mark.parametrize("n_killed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_workers_killed_amid_their_work_change_nothing(model, cluster, path, n_killed):
    """If all are killed, their successors make anew what the tasks share."""
    cluster.wait_for_workers(2)
    pids = [worker.pid for worker in cluster.workers.values()][:n_killed]

    def kill(rows_seen):
        while pids:
            os.kill(pids.pop(), signal.SIGKILL)

    found = certificate_of(model, path, cluster.scheduler_address, on_rows=kill)
    agree(found, certificate_of(model, path, None))
    assert pids == []


@pytest.mark.process
def test_a_file_that_is_replaced_is_refused_and_then_read_anew(
    model, table, cluster, path, tmp_path
):
    """The file is replaced during a pass or before it. Workers may hold the older file open."""
    X, y = table
    address = cluster.scheduler_address

    def replace(rows_seen, factor=1):
        write_dense(tmp_path / "other.h5", factor * X, y).replace(path)

    refusal = r"was changed while|is not the file it was when the work began"
    for dask in (None, address):
        with pytest.raises(InputError, match=refusal):
            certificate_of(model, path, dask, on_rows=replace)
    before = model.decision_function(path, dask=address)
    agree(before, model.decision_function(path))
    with open_dataset(path) as source:
        replace(0, factor=-1)
        with pytest.raises(InputError, match=refusal):
            model.decision_function(source, dask=address)
    after = model.decision_function(path, dask=address)
    agree(after, model.decision_function(path))
    assert not np.allclose(after, before)
