"""Passes over blocks of rows: on threads of this process, in others, or on a Dask cluster.

What is found in a block depends on the block alone. `Workers.over` yields it in the order of the
blocks, and `over_blocks` merges it in that order. Work for another process is a function of an
importable module.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar, cast
from uuid import uuid4

from ooc_fw.data.sources import RowSource
from ooc_fw.system.errors import InputError

Block = TypeVar("Block")
Result = TypeVar("Result")
Value = TypeVar("Value")

_AHEAD, _CLUSTER_AHEAD = 2, 4  # blocks that wait for each thread, or worker of a cluster
_PARTS = 32  # parts of a graph on a cluster, after each of which progress is told
_CONNECT_SECONDS = 10  # time limit for the connection to a cluster
# A terminal sends Ctrl-C to all processes; workers leave it to the one that decides.
_IGNORE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


class Counts(NamedTuple):
    """What a block took, for the counters of this process if another one did the work."""

    rows: int
    n_bytes: int
    evaluations: int = 0


@dataclass
class Shared(Generic[Value]):
    """An object that blocks need, which its `recipe` makes anew in every other process."""

    value: Value | None
    recipe: Callable[[], Value]

    def get(self) -> Value:
        """The object, made by the first block that asks for it."""
        if self.value is None:
            self.value = self.recipe()
        return self.value

    def __reduce__(self) -> tuple[Any, ...]:
        return Shared, (None, self.recipe)


@dataclass(frozen=True)
class Workers:
    """Where blocks are worked on: threads of this process, or the cluster of a Dask `client`."""

    threads: int
    client: Any = None

    def share(self, source: RowSource) -> Shared[RowSource]:
        """A source of rows for all blocks; InputError where other processes cannot open it."""
        if self.client is not None and source.reopen is None:
            raise InputError(
                f"other processes cannot read the rows of this {source.name}, which are in the "
                f"memory of this one; use dask threads, or give a file's path"
            )
        return Shared(source, cast(Any, source.reopen))

    def over(
        self,
        source: RowSource,
        work: Callable[..., tuple[Result, Counts]],
        blocks: Sequence[Block],
        *common: Any,
        count: Callable[[int], None] | None = None,
    ) -> Generator[tuple[Block, Result], None, None]:
        """Yield each block and what is found there, in order; close it to stop early.

        ``work(source, block, *common)`` gives what it finds and the `Counts`; common objects that
        are `Shared` arrive as their values. `count` is told the evaluations of another process.
        """
        shared: Any = (self.share(source), *common)
        if self.client is None and (self.threads == 1 or len(blocks) < 2):
            for block in blocks:
                yield block, _work(work, shared, block)[0]
            return
        with ExitStack() as stack:
            if self.client is None:
                pool = ThreadPoolExecutor(self.threads)
                stack.callback(pool.shutdown, cancel_futures=True)
                submit, ahead = pool.submit, _AHEAD * self.threads
            else:
                submit = partial(self.client.submit, pure=False)
                # A task of its own instead of scattered data: the scheduler can repeat it when the
                # workers that hold its result die.
                shared = submit(partial(tuple, shared))
                ahead = _CLUSTER_AHEAD * max(1, sum(self.client.nthreads().values()))
            futures = _ahead((submit(_work, work, shared, block) for block in blocks), ahead)
            for block, future in zip(blocks, futures, strict=True):
                found, counts = future.result()
                if self.client is not None:
                    source.count(counts.rows, counts.n_bytes)
                    if count is not None:
                        count(counts.evaluations)
                yield block, found


def over_blocks(
    source: RowSource,
    work: Callable[[RowSource, Block], tuple[Result, Counts]],
    merge: Callable[[Result, Result], Result],
    blocks: Sequence[Block],
    workers: Workers,
    on_rows: Callable[[int], None] | None = None,
) -> Result:
    """Merge what ``work(source, block)`` finds in blocks of rows, by one Dask graph.

    `merge` takes what was found in neighbouring blocks and modifies neither. `on_rows` is told the
    number of rows read so far. A single block needs no Dask.
    """
    source.check_unchanged()
    before, shared, join = source.rows_read, (workers.share(source),), partial(_join, merge)

    def tell(*_: object) -> None:
        if on_rows is not None:
            on_rows(source.rows_read - before)

    if workers.client is None and len(blocks) == 1:
        total, _ = _work(work, shared, blocks[0])
        tell()
    else:
        from dask import delayed

        common = delayed(partial(tuple, shared), pure=False)()
        # Dask orders equal tasks by name: without these, blocks would be visited at random.
        names = map(f"{uuid4().hex}-{{:09}}".format, count())

        def later(function: Callable[..., Any]) -> Callable[..., Any]:
            task = delayed(function, pure=False)
            return lambda *values: task(*values, dask_key_name=next(names))

        visit, delayed_join = later(partial(_work, work)), later(join)
        leaves = [visit(common, block) for block in blocks]
        length = len(leaves) if workers.client is None else -(-len(leaves) // _PARTS)
        parts = [leaves[i:j] for i, j in row_slices(len(leaves), length)]
        graphs = [_joined(part, delayed_join) for part in parts]
        total, _ = reduce(join, _compute(graphs, workers, source, tell))
    source.check_unchanged()
    return total


def _compute(
    graphs: list[Any], workers: Workers, source: RowSource, tell: Callable[..., None]
) -> Iterator[Any]:
    """What graphs make, in order; `tell` is called when more rows have been counted."""
    import dask
    from dask.callbacks import Callback

    if workers.client is None:
        with ThreadPoolExecutor(workers.threads) as pool, Callback(posttask=tell):
            yield from dask.compute(*graphs, scheduler="threads", pool=pool, optimize_graph=False)
        return
    futures = deque(workers.client.compute(graphs, optimize_graph=False))
    while futures:
        found, counts = futures.popleft().result()
        source.count(counts.rows, counts.n_bytes)
        tell()
        yield found, counts


def _joined(leaves: list[Any], join: Callable[..., Any]) -> Any:
    """One task that joins leaves in order; Dask copies the graph so far with each call of `join`.

    Joining short runs of leaves first keeps the copies small.
    """
    runs = row_slices(len(leaves), math.isqrt(len(leaves)))
    return reduce(join, [reduce(join, leaves[start:stop]) for start, stop in runs])


def row_slices(n_rows: int, length: int) -> list[tuple[int, int]]:
    """Cut ``0:n_rows`` into ranges of `length` rows; the last one may be shorter."""
    return [(start, min(start + length, n_rows)) for start in range(0, n_rows, length)]


def _work(
    work: Callable[..., tuple[Result, Counts]], common: tuple[Any, ...], block: Any
) -> tuple[Result, Counts]:
    """Do the work of a block, in a file that is still the one that the pass began with."""
    source, *others = (item.get() if isinstance(item, Shared) else item for item in common)
    found = work(source, block, *others)
    source.check_unchanged()
    return found


def _join(
    merge: Callable[..., Result], one: tuple[Result, Counts], other: tuple[Result, Counts]
) -> tuple[Result, Counts]:
    return merge(one[0], other[0]), Counts(*map(sum, zip(one[1], other[1], strict=True)))


def _ahead(futures: Iterable[Any], number: int) -> Iterator[Any]:
    """Futures in order, `number` of them made before the first one is needed."""
    pending: deque[Any] = deque()
    for future in futures:
        pending.append(future)
        if len(pending) >= number:
            yield pending.popleft()
    yield from pending


@contextmanager
def borrow_workers(dask: Any, threads: int, here: int | None = None) -> Iterator[Workers]:
    """Workers for passes, closed afterwards unless they belong to the caller.

    For `dask`, None and "threads" are threads of this process, "processes" a
    `distributed.LocalCluster`; any other text is the address of a scheduler, ``tcp://host:8786``.
    A `distributed.Client` or a cluster of Dask is taken, too, and stays open.
    `threads` are the blocks at a time, and `here` those for None if several threads work on each.
    """
    if not hasattr(dask, "submit"):  # it is not a client
        dask = getattr(dask, "scheduler_address", dask)
    is_place = isinstance(dask, str) and (dask == "processes" or ":" in dask)
    if isinstance(dask, Workers):
        yield dask
    elif dask in (None, "threads"):
        yield Workers(threads if dask or here is None else here)
    elif is_place or hasattr(dask, "submit"):
        with _explained(_connected(dask, threads) if is_place else nullcontext(dask)) as client:
            yield Workers(threads, client)
    else:
        raise InputError(
            f"dask must be threads, processes, the address tcp://HOST:PORT, or in Python a client "
            f"or a cluster, not {dask!r}"
        )


@contextmanager
def _connected(where: str, threads: int) -> Iterator[Any]:
    """Client of the cluster at an address, or of one of processes that are started here."""
    try:
        import distributed
    except ModuleNotFoundError:
        raise InputError(
            f"dask {where} needs the package distributed; try: pip install 'ooc-fw[cluster]'"
        ) from None
    cluster: Any = nullcontext(where)
    if where == "processes":
        cluster = distributed.LocalCluster(
            n_workers=threads,
            threads_per_worker=1,
            memory_limit=0,  # workers are not ended for what they need
            dashboard_address="127.0.0.1:0",  # a free port, without a page to look at
            scheduler_kwargs={"dashboard": False},
            preload=_IGNORE_INTERRUPTS,
            silence_logs=logging.CRITICAL,  # errors are raised in this process
        )
    with cluster as address:
        try:
            client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(f"no Dask scheduler answers at {where} ({error})") from None
        with client:
            if not client.nthreads():
                raise InputError(f"the Dask cluster at {where} has no workers; start: dask worker")
            yield client


@contextmanager
def _explained(connection: AbstractContextManager[Any]) -> Iterator[Any]:
    """Say why a cluster gives up; nothing is said of large graphs."""
    with connection as client:
        import dask
        from distributed import CancelledError, KilledWorker

        try:
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
                yield client
        except (KilledWorker, CancelledError) as error:
            raise ChildProcessError(
                f"the cluster gave a task up ({error}); its workers may have died of lack of memory"
            ) from error
