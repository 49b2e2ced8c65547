"""Ordered maps over items, wherever the tasks run."""

import multiprocessing
import os
import pickle
import sys
import time
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data.opening import open_source
from ooc_fw.data.parallel import (
    LocalWorkers,
    Shared,
    borrow_workers,
    merge_tree,
    row_slices,
    shared_source,
)
from ooc_fw.system.errors import InputError

ways = pytest.mark.parametrize(("dask", "threads"), [(None, 1), (None, 3), ("threads", 3)])


def nested(left, right):
    return (left, right)


@given(st.integers(1, 40))
def test_the_tree_halves(n):
    def expected(first, last):
        middle = (last - first) // 2
        if middle == 0:
            return first
        return (expected(first, first + middle), expected(first + middle, last))

    assert merge_tree(n, iter(range(n)), nested) == expected(0, n)


@ways
@pytest.mark.parametrize("n_items", [0, 1, 2, 57])
def test_results_come_in_the_order_of_the_items(dask, threads, n_items):
    def task(factor, start, stop):
        time.sleep(0.002 * (start % 3))
        return factor * start, stop

    items = [(k, -k) for k in range(n_items)]
    with borrow_workers(dask, threads) as workers:
        assert not workers.remote
        assert list(workers.map(task, items, 10)) == [(10 * k, -k) for k in range(n_items)]


@ways
def test_few_results_wait_when_the_caller_is_slow(dask, threads):
    begun = []
    with borrow_workers(dask, threads) as workers:
        results = workers.map(begun.append, [(k,) for k in range(200)])
        next(results)
        results.close()
    assert len(begun) <= 4 * threads


@ways
def test_errors_come_through(dask, threads):
    def fail(error, start):
        raise error(f"row {start}")

    with borrow_workers(dask, threads) as workers:
        for error in (InputError, KeyError):
            with pytest.raises(error, match="row 0"):
                list(workers.map(fail, [(0,), (1,)], error))


def test_no_dask_without_a_cluster(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask", None)
    for dask, threads in ((None, 1), (None, 2), ("threads", 2), ("processes", 1)):
        with borrow_workers(dask, threads) as workers:
            assert list(workers.map(nested, [(0, 1), (1, 2)])) == [(0, 1), (1, 2)]


@given(n_rows=st.integers(1, 100), length=st.integers(1, 120))
def test_slices_cover_all_rows(n_rows, length):
    slices = row_slices(n_rows, length)
    assert [row for start, stop in slices for row in range(start, stop)] == list(range(n_rows))
    assert all(0 < stop - start <= length for start, stop in slices)


def test_places_to_run():
    with borrow_workers("threads", 2) as workers, borrow_workers(workers, 7) as same:
        assert same is workers
    for dask in ("thread", "localhost", 3, ""):
        with (
            pytest.raises(InputError, match="must be threads, processes or the address"),
            borrow_workers(dask, 1),
        ):
            pass


# -- shared objects --------------------------------------------------------------------------------


def test_shared_objects_are_themselves_where_they_were_made():
    value = object()
    shared = Shared(value, object)
    assert shared.get() is value
    assert pickle.loads(pickle.dumps(shared)) is shared


def _identity_of(shared):
    return os.getpid(), id(shared.get()), shared.get().tolist()


def test_shared_objects_are_made_once_in_another_process():
    shared = Shared(np.array([1]), partial(np.array, [2]))
    with borrow_workers("processes", 1) as workers:
        found = list(workers.map(_identity_of, [()] * 20, shared))
    assert len(set(map(str, found))) == 1
    assert found[0][0] != os.getpid()
    assert found[0][2] == [2]


def test_rows_in_ram_are_refused_by_other_processes():
    source = open_source(np.eye(3))
    shared = shared_source(source, LocalWorkers(1))
    assert shared.get() is source
    with pytest.raises(TypeError, match="cannot be sent"):
        pickle.dumps(shared)

    with (
        borrow_workers("processes", 1) as workers,
        pytest.raises(InputError, match=r"in the memory of this one; .* give the path of a file"),
    ):
        shared_source(source, workers)


# -- processes -------------------------------------------------------------------------------------


def _square(base, k):
    if k == 13:
        raise InputError("thirteen")
    if k == 14:
        os._exit(1)
    return base + k * k


def test_processes():
    with borrow_workers("processes", 2) as workers:
        assert workers.remote
        items = [(k,) for k in range(12)] * 9
        assert list(workers.map(_square, items, 5)) == [5 + k * k for (k,) in items]
        with pytest.raises(InputError, match=r"^thirteen$"):
            list(workers.map(_square, [(k,) for k in range(14)], 5))
        with pytest.raises(ChildProcessError, match="a worker process died"):
            list(workers.map(_square, [(14,)], 5))
    assert not multiprocessing.active_children()
