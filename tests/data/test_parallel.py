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
from ooc_fw.data.parallel import borrow_workers, row_slices
from ooc_fw.system.errors import InputError
from tests.support.files import write_dense


@pytest.fixture
def source():
    return open_source(np.eye(3))


def work(source, block, base=0):
    if block == 13:
        raise InputError("thirteen")
    if block == 14:
        os._exit(1)
    return base + block * block


@pytest.mark.parametrize(("dask", "threads"), [(None, 1), (None, 3), ("threads", 3)])
def test_results_come_in_the_order_of_the_blocks(source, dask, threads, monkeypatch):
    """Without Dask; few of them wait, and errors come through."""
    monkeypatch.setitem(sys.modules, "dask", None)
    begun = []

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
    is_none, is_missing = "must be threads, processes or the address", "needs the package distribut"
    messages = dict.fromkeys(("thread", "localhost", 3, ""), is_none)
    messages |= dict.fromkeys(("processes", "tcp://127.0.0.1:9"), is_missing)
    for dask, message in messages.items():
        with pytest.raises(InputError, match=message), borrow_workers(dask, 1):
            pass


def pid_of(source, block, values):
    return os.getpid()


@pytest.mark.process
def test_processes(source, tmp_path):
    path = write_dense(tmp_path / "x.h5", np.eye(3), np.ones(3))
    with open_source(path) as file, borrow_workers("processes", 2) as workers:
        with pytest.raises(InputError, match=r"in the memory of this one; .* give a file's path"):
            next(workers.over(source, work, [1]))
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
    with (
        pytest.raises(ChildProcessError, match="the cluster gave a task up"),
        open_source(path) as file,
        borrow_workers("processes", 1) as workers,
    ):
        list(workers.over(file, work, [14], 5))
