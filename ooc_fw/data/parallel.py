"""An ordered map over parts of a file: on threads, in other processes, or on a Dask cluster.

A task depends on its item alone, and results are merged in a fixed tree, so that every way of
running gives the same bits. A task for another process is a function of an importable module;
objects that all tasks need are sent as `Shared`. Dask is imported only for a cluster.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from ooc_fw.system.errors import InputError

Result = TypeVar("Result")
Value = TypeVar("Value")

_AHEAD = 2  # tasks, or groups of them, that wait for each thread or process
_CLUSTER_AHEAD = 4  # tasks that wait for each worker of a cluster, which is further away
_LARGEST_GROUP = 16  # items sent to a process together, because what they share is sent with them
_GROUPS = 32  # least number of groups per process in a map of many items: none waits long
_KEPT = 3  # shared objects that a process keeps after the tasks that used them
_CONNECT_SECONDS = 10  # time limit for the connection to a cluster


class Workers(ABC):
    """Where tasks run. If `remote`, they see files but no arrays of this process."""

    remote: bool

    @abstractmethod
    def map(
        self, task: Callable[..., Result], items: Sequence[tuple[Any, ...]], *common: Any
    ) -> Generator[Result, None, None]:
        """Yield ``task(*common, *item)`` for each item, in order; close it to stop early.

        InputError comes through as a task raised it; ChildProcessError is raised when a worker died
        and nobody can take its place.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the workers."""


@contextmanager
def borrow_workers(dask: Any, threads: int) -> Iterator[Workers]:
    """Workers to run tasks on, closed afterwards unless they belong to the caller.

    Parameters
    ----------
    dask : None, {"threads", "processes"}, str, distributed.Client or Workers
        None and "threads" run tasks on threads of this process, "processes" in processes of this
        machine; any other text is the address of a `distributed` scheduler, ``tcp://host:8786``.
        InputError is raised for another value, and if no scheduler answers.
    threads : int
        Tasks at a time. A cluster has its own number.
    """
    if isinstance(dask, Workers):
        yield dask
        return
    workers: Workers
    if dask in (None, "threads", "processes"):
        workers = LocalWorkers(threads, processes=dask == "processes")
    elif isinstance(dask, str):
        workers = _ClusterWorkers(_connect(dask), own=True)
    elif hasattr(dask, "submit") and hasattr(dask, "nthreads"):
        workers = _ClusterWorkers(dask, own=False)
    else:
        raise InputError(
            f"dask must be threads, processes or the address of a cluster, not {dask!r}"
        )
    with closing(workers):
        yield workers


def merge_tree(
    n: int, results: Iterator[Result], merge: Callable[[Result, Result], Result]
) -> Result:
    """Merge `n` results of neighbouring parts in a tree that depends on their number only.

    Results are used in order, and one per level of the tree is held. Sums in floating point have
    the same bits wherever their parts were computed.

    >>> merge_tree(3, iter([1, 2, 3]), lambda earlier, later: (earlier, later))
    (1, (2, 3))
    """
    if n == 1:
        return next(results)
    earlier = merge_tree(n // 2, results, merge)
    return merge(earlier, merge_tree(n - n // 2, results, merge))


def row_slices(n_rows: int, length: int) -> list[tuple[int, int]]:
    """Cut ``0:n_rows`` into ranges of `length` rows; the last one may be shorter."""
    return [(start, min(start + length, n_rows)) for start in range(0, n_rows, length)]


# -- what tasks have in common -------------------------------------------------------------------


class Shared(Generic[Value]):
    """An object that tasks use: itself in this process, made once in every other process.

    The `recipe` is called without arguments there to make an equal object. It is None if the object
    must stay in this process.
    """

    def __init__(
        self, value: Value | None, recipe: Callable[[], Value] | None, token: str | None = None
    ) -> None:
        self._value, self._recipe = value, recipe
        self._token = token or uuid.uuid4().hex
        self._making = threading.Lock()
        _known[self._token] = self

    def get(self) -> Value:
        """The object, made by the first task that asks for it."""
        with self._making:
            if self._value is None:
                assert self._recipe is not None
                self._value = self._recipe()
            return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        if self._recipe is None:
            raise TypeError(f"{self._value!r} cannot be sent to another process")
        return _arrive, (self._recipe, self._token)


_known: WeakValueDictionary[str, Shared[Any]] = WeakValueDictionary()
_kept: deque[Shared[Any]] = deque(maxlen=_KEPT)
_arriving = threading.Lock()


def _arrive(recipe: Callable[[], Value], token: str) -> Shared[Value]:
    """The shared object that was sent, which this process may have already."""
    with _arriving:
        found = _known.get(token)
        if found is None:
            found = Shared(None, recipe, token)
            _kept.append(found)
        return found


def shared_source(source: Any, workers: Workers) -> Shared[Any]:
    """A source of rows for tasks; those in other processes open its file themselves."""
    if workers.remote and source.reopen is None:
        raise InputError(
            f"other processes cannot read the rows of this {source.name}, which are in the memory "
            f"of this one; run without dask, with dask threads, or give the path of a file"
        )
    return Shared(source, source.reopen)


# -- the ways to run -----------------------------------------------------------------------------


def _ahead(futures: Iterable[Any], number: int) -> Generator[Any, None, None]:
    """Futures in order, `number` of them made before the first one is needed.

    Those made and not yielded are cancelled when it is closed.
    """
    pending: deque[Any] = deque()
    try:
        for future in futures:
            pending.append(future)
            if len(pending) >= number:
                yield pending.popleft()
        while pending:
            yield pending.popleft()
    finally:
        for future in pending:
            future.cancel()


class LocalWorkers(Workers):
    """A number of tasks at a time on this machine: on threads, or in processes of their own."""

    def __init__(self, number: int, *, processes: bool = False) -> None:
        self.remote, self._number = processes, number
        self._processes: ProcessPoolExecutor | None = None
        if processes:
            # One pool for all maps, because a process takes a second to start. A forked process
            # would inherit locks that other threads hold. Ctrl-C, which a terminal sends to all
            # processes, is left to the main one.
            context = multiprocessing.get_context("spawn")
            ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
            self._processes = ProcessPoolExecutor(number, context, ignore)

    def map(
        self, task: Callable[..., Result], items: Sequence[tuple[Any, ...]], *common: Any
    ) -> Generator[Result, None, None]:
        """See `Workers.map`."""
        if not self.remote and (self._number == 1 or len(items) < 2):
            for item in items:
                yield task(*common, *item)
            return
        length = 1
        if self.remote:
            length = min(_LARGEST_GROUP, max(1, len(items) // (_GROUPS * self._number)))
        groups = [items[start:stop] for start, stop in row_slices(len(items), length)]
        pool: Executor = self._processes or ThreadPoolExecutor(self._number)
        futures = (pool.submit(_run_group, task, common, group) for group in groups)
        try:
            with closing(_ahead(futures, _AHEAD * self._number)) as pending:
                for future in pending:
                    yield from future.result()
        except BrokenProcessPool:
            raise ChildProcessError(
                "a worker process died, perhaps for want of memory; start again with fewer "
                "threads, or with a cluster, which replaces workers (a script that uses "
                "processes must start its work under if __name__ == '__main__')"
            ) from None
        finally:
            if not self.remote:
                pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.shutdown(cancel_futures=True)


def _run_group(
    task: Callable[..., Result], common: tuple[Any, ...], items: Sequence[tuple[Any, ...]]
) -> list[Result]:
    return [task(*common, *item) for item in items]


class _ClusterWorkers(Workers):
    """Tasks on a `distributed` cluster, which repeats those of a worker that died."""

    remote = True

    def __init__(self, client: Any, *, own: bool) -> None:
        self._client, self._own = client, own

    def map(
        self, task: Callable[..., Result], items: Sequence[tuple[Any, ...]], *common: Any
    ) -> Generator[Result, None, None]:
        """See `Workers.map`."""
        import dask
        from distributed import CancelledError, KilledWorker

        client = self._client
        # A task of its own instead of scattered data: the scheduler can repeat it when the workers
        # that hold its result die.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
            held = client.submit(partial(tuple, common), pure=False)
        futures = (client.submit(_run, task, held, item, pure=False) for item in items)
        number = max(1, sum(client.nthreads().values()))
        try:
            with closing(_ahead(futures, _CLUSTER_AHEAD * number)) as pending:
                for future in pending:
                    result, refusal = future.result()
                    future.release()
                    if refusal is not None:
                        raise InputError(refusal)
                    yield result
        except (KilledWorker, CancelledError) as error:
            raise ChildProcessError(
                f"the cluster gave a task up ({error}); see the logs of its workers"
            ) from error
        finally:
            held.release()

    def close(self) -> None:
        """Disconnect; the workers of the cluster stay."""
        if self._own:
            self._client.close()


def _run(
    task: Callable[..., Result], common: tuple[Any, ...], item: Any
) -> tuple[Result | None, str | None]:
    """Result of a task and the message of its `InputError`, which a scheduler would try again."""
    try:
        return task(*common, *item), None
    except InputError as error:
        return None, str(error)


def _connect(address: str) -> Any:
    """Client of the cluster at `address`."""
    if ":" not in address:
        raise InputError(
            f"dask must be threads, processes or the address of a cluster such as "
            f"tcp://host:8786, not {address!r}"
        )
    try:
        import distributed
    except ImportError:
        raise InputError(
            "a Dask cluster needs the package distributed; try: pip install 'ooc-fw[cluster]'"
        ) from None
    try:
        client: Any = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address} ({error})") from None
    if not client.nthreads():
        client.close()
        raise InputError(f"the Dask cluster at {address} has no workers; start one: dask worker")
    return client
