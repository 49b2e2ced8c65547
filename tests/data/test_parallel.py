"""Passes over blocks, wherever they are worked on."""

import os
import signal
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data.opening import open_source
from ooc_fw.data.parallel import Workers, borrow_workers, over_blocks, row_slices
from ooc_fw.system.errors import InputError
from tests.support.files import write_dense

ways = pytest.mark.parametrize(("dask", "threads"), [(None, 1), (None, 3), ("threads", 3)])


@pytest.fixture
def source():
    return open_source(np.eye(3))


def nested(left, right):
    return (left, right)


def flat(value):
    return [leaf for part in value for leaf in flat(part)] if isinstance(value, tuple) else [value]


def itself(source, block):
    return block


@pytest.mark.parametrize(("n", "threads"), [(1, 3), (2, 1), (3, 3), (33, 1), (257, 3)])
def test_over_blocks_merges_in_their_order(source, n, threads):
    seen, workers = [], Workers(threads)
    blocks = row_slices(10 * n, 10)
    found = over_blocks(source, itself, nested, blocks, workers, seen.append)
    assert flat(found) == [row for block in blocks for row in block]
    assert seen == sorted(seen)
    assert seen[-1] == 10 * n

    def fail(source, block):
        raise InputError(f"block {block[0]}")

    with pytest.raises(InputError, match=r"^block \d+$"):
        over_blocks(source, fail, nested, blocks, workers)


@ways
def test_results_come_in_the_order_of_the_blocks(source, dask, threads, monkeypatch):
    """Without Dask, which graphs need; few of them wait, and errors come through."""
    monkeypatch.setitem(sys.modules, "dask", None)
    begun = []

    def work(rows, block, factor):
        assert rows is source
        begun.append(block)
        time.sleep(0.002 * (block % 3))
        return factor * block

    def fail(source, start, error):
        raise error(f"row {start}")

    with borrow_workers(dask, threads) as workers:
        for n in (0, 1, 2, 29):
            found = list(workers.over(source, work, list(range(n)), 10))
            assert found == [(block, 10 * block) for block in range(n)]
        begun.clear()
        results = workers.over(source, work, list(range(200)), 10)
        next(results)
        results.close()
        assert len(begun) <= 5 * threads
        for error in (InputError, KeyError):
            with pytest.raises(error, match="row 0"):
                list(workers.over(source, fail, [0, 1], error))


@given(n_rows=st.integers(1, 100), length=st.integers(1, 120))
def test_slices_cover_all_rows(n_rows, length):
    slices = row_slices(n_rows, length)
    assert [row for start, stop in slices for row in range(start, stop)] == list(range(n_rows))
    assert all(0 < stop - start <= length for start, stop in slices)


def test_places_to_run(monkeypatch):
    with borrow_workers("threads", 2, here=1) as workers, borrow_workers(workers, 7) as same:
        assert same is workers
        assert same.threads == 2
    with borrow_workers(None, 2, here=1) as workers:
        assert workers.threads == 1
    monkeypatch.setitem(sys.modules, "distributed", None)
    is_none, is_missing = "must be threads, processes, the address", "needs the package distribut"
    messages = dict.fromkeys(("thread", "localhost", 3, ""), is_none)
    messages |= dict.fromkeys(("processes", "tcp://127.0.0.1:9"), is_missing)
    for dask, message in messages.items():
        with pytest.raises(InputError, match=message), borrow_workers(dask, 1):
            pass


def _identity_of(source, block, values):
    return os.getpid(), values.tolist()


def _square(source, k, base):
    if k == 13:
        raise InputError("thirteen")
    if k == 14:
        os._exit(1)
    return base + k * k


@pytest.mark.process
def test_processes(source, tmp_path):
    path = write_dense(tmp_path / "x.h5", np.eye(3), np.ones(3))
    with borrow_workers("processes", 2) as workers, open_source(path) as file:
        with pytest.raises(InputError, match=r"in the memory of this one; .* give a file's path"):
            workers.check_travels(source)
        blocks = list(range(12)) * 3
        found = list(workers.over(file, _square, blocks, 5))
        assert found == [(k, 5 + k * k) for k in blocks]
        with pytest.raises(InputError, match=r"^thirteen$"):
            list(workers.over(file, _square, list(range(14)), 5))

        values = np.array([2])
        identities = [found for _, found in workers.over(file, _identity_of, blocks, values)]
        pids = {pid for pid, _ in identities}
        assert os.getpid() not in pids
        assert identities[0][1] == [2]
        # Ctrl-C reaches all processes of a terminal; workers leave it to the one that decides.
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
        after = {pid for _, (pid, _) in workers.over(file, _identity_of, blocks, values)}
        assert after <= pids


@pytest.mark.process
def test_a_task_that_workers_die_of_is_given_up(tmp_path):
    path = write_dense(tmp_path / "x.h5", np.eye(3), np.ones(3))
    with (
        pytest.raises(ChildProcessError, match="the cluster gave a task up"),
        borrow_workers("processes", 1) as workers,
        open_source(path) as file,
    ):
        list(workers.over(file, _square, [14], 5))


def test_a_cluster_or_a_client_is_taken_and_stays_open():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(1, processes=False, dashboard_address=None) as cluster:
        with borrow_workers(cluster, 1) as workers:
            assert workers.client.scheduler.address == cluster.scheduler_address
        with distributed.Client(cluster, set_as_default=False) as client:
            with borrow_workers(client, 1) as workers:
                assert workers.client is client
            assert client.status == "running"
        assert str(cluster.status) == "Status.running"
