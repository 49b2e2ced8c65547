"""One ordered map over parts of a file, in this process or by Dask on threads, processes, machines.

Owns where tasks run and in which order their results come back: that of the items, whoever was
first. What a task computes may depend on its item alone, never on the workers, and results are
merged in the order of the items, so that every way of running gives the same bits. Knows nothing of
what is mapped. Dask is imported here alone, and only when asked for.

A task for another process is a function of an importable module. What all tasks of a map need is
given as `Shared`: it travels as a recipe and is made once in each process. A mistake of the user's
that a task finds comes back as the same `InputError`.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast
from weakref import WeakValueDictionary

from ooc_fw.system.errors import InputError

Result = TypeVar("Result")
Value = TypeVar("Value")

TASKS_AHEAD = 4
"""Tasks handed to Dask for each worker; their results wait in RAM until it is their turn."""

_LARGEST_GROUP = 16  # items sent to a process together, since what they share is sent with them
_BATCHES = 8  # waits for all processes in a map, each a chance to show progress or to stop
_KEPT = 3  # shared objects that a process keeps after the tasks that used them
_CONNECT_SECONDS = 10


class Workers(Protocol):
    """Where tasks run; make one with `borrow_workers`."""

    @property
    def remote(self) -> bool:
        """Whether tasks run in other processes, which see files but no arrays of this one."""

    def map(
        self, task: Callable[..., Result], items: Sequence[tuple[Any, ...]], *common: Any
    ) -> Generator[Result, None, None]:
        """Yield ``task(*common, *item)`` for each item, in order; close it to stop early.

        Raises
        ------
        InputError
            As a task raised it.
        ChildProcessError
            A worker died and nobody can take its place.
        """

    def close(self) -> None:
        """Release the workers."""


@contextmanager
def borrow_workers(dask: Any, threads: int) -> Iterator[Workers]:
    """Workers to run tasks on, closed afterwards unless they are the caller's.

    Parameters
    ----------
    dask : None, {"threads", "processes"}, str, distributed.Client or Workers
        None runs tasks in this process without Dask; a name picks a scheduler of this machine; any
        other text is the address of a `distributed` scheduler, ``tcp://host:8786``. A client or
        workers are used and left open.
    threads : int
        Tasks at a time, where the workers belong to this run. A cluster has its own number.

    Raises
    ------
    InputError
        No such scheduler, nobody answers at the address, or `distributed` is not installed.
    """
    if hasattr(dask, "map") and hasattr(dask, "remote"):
        yield cast(Workers, dask)
        return
    with closing(_open_workers(dask, threads)) as workers:
        yield workers


def _open_workers(dask: Any, threads: int) -> Workers:
    if dask is None:
        return LocalWorkers(threads)
    if dask in ("threads", "processes"):
        return _SchedulerWorkers(dask, threads)
    if isinstance(dask, str):
        return _ClusterWorkers(_connect(dask), own=True)
    if hasattr(dask, "submit") and hasattr(dask, "nthreads"):
        return _ClusterWorkers(dask, own=False)
    raise InputError(f"dask must be threads, processes or the address of a cluster, not {dask!r}")


def merge_tree(
    n: int, results: Iterator[Result], merge: Callable[[Result, Result], Result]
) -> Result:
    """Merge results in a tree that depends on their number only.

    Parameters
    ----------
    n : int
        How many to take of `results`, at least 1.
    results : iterator
        Used in order; one a level of the tree is held.
    merge : callable
        Takes two results of neighbouring parts, the earlier first.

    Returns
    -------
    object
        The one result left; sums in floating point have the same bits wherever their parts were
        made.

    Examples
    --------
    >>> merge_tree(3, iter([1, 2, 3]), lambda earlier, later: (earlier, later))
    (1, (2, 3))
    """
    if n == 1:
        return next(results)
    earlier = merge_tree(n // 2, results, merge)
    return merge(earlier, merge_tree(n - n // 2, results, merge))


def row_slices(n_rows: int, length: int) -> list[tuple[int, int]]:
    """Cut ``0:n_rows`` into ranges of `length` rows, the last one perhaps shorter."""
    return [(start, min(start + length, n_rows)) for start in range(0, n_rows, length)]


# -- what tasks have in common -------------------------------------------------------------------


class Shared(Generic[Value]):
    """An object that tasks use: itself in this process, made anew once in every other one.

    Parameters
    ----------
    value : object
        What `get` returns in this process.
    recipe : callable or None
        Called without arguments in another process to make an object as good; what it needs travels
        with it. None where the object stays here.
    """

    def __init__(self, value: Value | None, recipe: Callable[[], Value] | None) -> None:
        self._value = value
        self._recipe = recipe
        self._making = threading.Lock()
        self._token = uuid.uuid4().hex
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
        return _arrive, (self._token, self._recipe)


_known: WeakValueDictionary[str, Shared[Any]] = WeakValueDictionary()
_kept: deque[Shared[Any]] = deque(maxlen=_KEPT)
_arriving = threading.Lock()


def _arrive(token: str, recipe: Callable[[], Value]) -> Shared[Value]:
    """What was sent, as this process knows it already or will make it."""
    with _arriving:
        found = _known.get(token)
        if found is None:
            found = Shared(None, recipe)
            found._token = token
            _known[token] = found
            _kept.append(found)
        return found


@dataclass(frozen=True)
class _Refusal:
    """An `InputError` on its way from a task to the caller.

    Schedulers would log it, try again, or add a traceback to its sentence.
    """

    message: str


def _run(task: Callable[..., Result], common: tuple[Any, ...], item: Any) -> Result | _Refusal:
    try:
        return task(*common, *item)
    except InputError as error:
        return _Refusal(str(error))


def _run_group(
    task: Callable[..., Result], common: tuple[Any, ...], items: Sequence[Any]
) -> list[Result | _Refusal]:
    return [_run(task, common, item) for item in items]


def _accept(result: Result | _Refusal) -> Result:
    if isinstance(result, _Refusal):
        raise InputError(result.message)
    return result


def shared_source(source: Any, workers: Workers) -> Shared[Any]:
    """`source` for tasks, which open its file themselves where they run in other processes.

    Raises
    ------
    InputError
        Other processes would not see the rows.
    """
    if workers.remote and source.reopen is None:
        raise InputError(
            f"other processes cannot read the rows of this {source.name}, which are in the memory "
            f"of this one; run without dask, with dask threads, or give the path of a file"
        )
    return Shared(source, source.reopen)


# -- the ways to run -----------------------------------------------------------------------------


class LocalWorkers:
    """Tasks in this process, without Dask: in turn, or on threads.

    Parameters
    ----------
    threads : int
        Tasks at a time.
    """

    remote = False

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def map(
        self, task: Callable[..., Result], items: Sequence[tuple[Any, ...]], *common: Any
    ) -> Generator[Result, None, None]:
        """See `Workers.map`."""
        if self._threads == 1 or len(items) < 2:
            for item in items:
                yield task(*common, *item)
            return
        pool = ThreadPoolExecutor(self._threads)
        try:
            futures = (pool.submit(task, *common, *item) for item in items)
            for future in _ahead(futures, 2 * self._threads):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Nothing to release."""


class _SchedulerWorkers:
    """Tasks on a Dask scheduler of this machine.

    Parameters
    ----------
    scheduler : {"threads", "processes"}
        Which one.
    number : int
        Tasks at a time.
    """

    def __init__(self, scheduler: str, number: int) -> None:
        import dask  # noqa: F401  (late, and before work begins)

        self.remote = scheduler == "processes"
        self._number = number
        self._options: dict[str, Any] = {"scheduler": scheduler, "num_workers": number}
        self._pool: ProcessPoolExecutor | None = None
        if self.remote:
            # One pool for all maps of a run: a process takes a second to start. A forked one would
            # inherit locks that other threads hold.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(number, context, _ignore_interrupts)
            self._options |= {"pool": self._pool, "chunksize": 1}

    def map(
        self, task: Callable[..., Result], items: Sequence[tuple[Any, ...]], *common: Any
    ) -> Generator[Result, None, None]:
        """See `Workers.map`."""
        import dask

        ahead = TASKS_AHEAD * self._number
        length = max(1, len(items) // (_BATCHES * ahead)) if self.remote else 1
        length = min(length, _LARGEST_GROUP)
        for first in range(0, len(items), ahead * length):
            groups = [
                items[start : start + length]
                for start in range(first, min(first + ahead * length, len(items)), length)
            ]
            # pure=False: names of tasks are drawn, not hashed from what they hold.
            lazy = [
                dask.delayed(partial(_run_group, task, common, group), pure=False)()
                for group in groups
            ]
            try:
                done = dask.compute(*lazy, optimize_graph=False, **self._options)
            except BrokenProcessPool:
                raise ChildProcessError(
                    "a worker process died, perhaps for want of memory; start again with fewer "
                    "threads, or with a cluster, which replaces workers (a script that uses "
                    "processes must start its work under if __name__ == '__main__')"
                ) from None
            for results in done:
                yield from map(_accept, results)

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class _ClusterWorkers:
    """Tasks on a `distributed` cluster, which runs those of a worker that died once more.

    Parameters
    ----------
    client : distributed.Client
        Connected to the scheduler.
    own : bool
        Whether to close it.
    """

    remote = True

    def __init__(self, client: Any, *, own: bool) -> None:
        self._client = client
        self._own = own

    def map(
        self, task: Callable[..., Result], items: Sequence[tuple[Any, ...]], *common: Any
    ) -> Generator[Result, None, None]:
        """See `Workers.map`."""
        import dask
        from distributed import CancelledError, KilledWorker

        client = self._client
        ahead = TASKS_AHEAD * max(1, sum(client.nthreads().values()))
        # A task of its own rather than scattered: the scheduler can make it again when the workers
        # that hold it die.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
            held = client.submit(partial(_give, common), pure=False)
        futures = (client.submit(_run, task, held, item, pure=False) for item in items)
        pending = _ahead(futures, ahead)
        try:
            for future in pending:
                result = future.result()
                future.release()
                yield _accept(result)
        except (KilledWorker, CancelledError) as error:
            raise ChildProcessError(
                f"the cluster gave a task up ({error}); see the logs of its workers"
            ) from error
        finally:
            pending.close()
            held.release()

    def close(self) -> None:
        """Take leave of the cluster; its workers go on."""
        if self._own:
            self._client.close()


def _give(common: tuple[Any, ...]) -> tuple[Any, ...]:
    return common


def _ahead(futures: Iterable[Any], number: int) -> Generator[Any, None, None]:
    """Futures in order, `number` of them made before the first one is wanted.

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


def _ignore_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to all processes, to the one that decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
