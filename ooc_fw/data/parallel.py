"""Readings by blocks of rows: on threads of this process, in other processes, or on a cluster.

The result for a block depends only on the block. Everything that other processes need is pickled: a
source travels as the way to open it there, and work as a function of an importable module.
"""

from __future__ import annotations

import logging
import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from ooc_fw.data.sources import RowSource
from ooc_fw.system.errors import InputError

Block = TypeVar("Block")
Result = TypeVar("Result")

_CONNECT_SECONDS = 10


@dataclass(frozen=True)
class Workers:
    """Threads of this process, or the cluster of a Dask `client`, which work on blocks."""

    threads: int
    client: Any = None

    def over(
        self, source: RowSource, work: Callable[..., Result], blocks: Sequence[Block], *common: Any
    ) -> Generator[tuple[Block, Result], None, None]:
        """Yield each block, in order, with the result of ``work(source, block, *common)``.

        Close the generator to stop early.
        """
        shared: Any = (source, *common)
        if self.client is None and (self.threads == 1 or len(blocks) < 2):
            for block in blocks:
                yield block, _work(work, shared, block)
            return
        n_workers = self.threads
        with ExitStack() as stack:
            if self.client is None:
                pool = ThreadPoolExecutor(self.threads)
                stack.callback(pool.shutdown, cancel_futures=True)
                submit = pool.submit
            else:
                n_workers = max(1, sum(self.client.nthreads().values()))
                submit = partial(self.client.submit, pure=False)
                # A separate task instead of scattered data: the scheduler can repeat it if the
                # workers with its result die. The source is unpickled in the work on a block: Dask
                # would repeat an error during transfer between workers for ever.
                shared = submit(partial(tuple, (pickle.dumps(source), *common)))
            futures = (submit(_work, work, shared, block) for block in blocks)
            for block, future in zip(blocks, _begun(futures, 4 * n_workers), strict=True):
                yield block, future.result()
                source.check_time()


def _begun(futures: Iterable[Any], number: int) -> Iterator[Any]:
    """Yield futures in order; `number` of them are made before the first result is awaited."""
    following = iter(futures)
    pending = deque(islice(following, number))
    while pending:
        yield pending.popleft()
        pending.extend(islice(following, 1))


def row_slices(n_rows: int, length: int) -> list[tuple[int, int]]:
    """Cut ``0:n_rows`` into ranges of `length` rows; the last one may be shorter."""
    return [(start, min(start + length, n_rows)) for start in range(0, n_rows, length)]


def _work(work: Callable[..., Result], shared: tuple[Any, ...], block: Any) -> Result:
    """Work on a block; `shared` holds the source, or its pickle from another process."""
    source, *common = shared
    if isinstance(source, bytes):
        source = _opened(source)
    return work(source, block, *common)


@lru_cache(maxsize=2)
def _opened(image: bytes) -> RowSource:
    """Open the source that another process has sent as a pickle."""
    return pickle.loads(image)  # type: ignore[no-any-return]


@contextmanager
def borrow_workers(dask: Any, threads: int, here: int | None = None) -> Iterator[Workers]:
    """Workers for readings, closed afterwards unless they belong to the caller.

    In `dask`, None and "threads" mean threads of this process, "processes" means a
    `distributed.LocalCluster`, and other text is the address of a scheduler, ``tcp://host:8786``.
    `threads` blocks are in work at a time; for None only `here`, if several threads share a block.
    """
    if isinstance(dask, Workers):
        yield dask
    elif dask in (None, "threads"):
        yield Workers(threads if dask or here is None else here)
    elif isinstance(dask, str) and (dask == "processes" or ":" in dask):
        with _connected(dask, threads) as client:
            from dask.config import set as configured
            from distributed import CancelledError, KilledWorker

            try:
                # All tasks share a model on purpose; distributed would warn of its size.
                with configured({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
                    yield Workers(threads, client)
            except (KilledWorker, CancelledError) as error:
                raise ChildProcessError(
                    f"the cluster gave a task up ({error}); its workers may have run out of memory"
                ) from error
    else:
        raise InputError(
            f"dask must be threads, processes or the address tcp://HOST:PORT of a scheduler, not "
            f"{dask!r}"
        )


@contextmanager
def _connected(where: str, threads: int) -> Iterator[Any]:
    """Client of the cluster at an address, or of a new cluster of local processes."""
    try:
        import distributed
    except ModuleNotFoundError:
        raise InputError(
            f"dask {where} needs the package distributed; try: pip install 'ooc-fw[cluster]'"
        ) from None
    cluster: Any = nullcontext(where)
    if where == "processes":
        # A terminal sends Ctrl-C to all processes. Workers inherit a blocked signal from the thread
        # that starts them, so that this process decides. A start of the tracker would unblock it.
        resource_tracker.ensure_running()
        blocked: Any = signal.pthread_sigmask, (signal.SIG_BLOCK, [signal.SIGINT])
        pool = ThreadPoolExecutor(1, "cluster", *blocked)
        starts = pool.submit(
            distributed.LocalCluster,
            n_workers=threads,
            threads_per_worker=1,
            memory_limit=0,  # no worker is killed for its use of memory
            dashboard_address="127.0.0.1:0",  # a free port; it shows no page
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,  # errors are raised in this process
        )
        pool.shutdown(wait=False)
        try:
            cluster = starts.result()
        except KeyboardInterrupt:
            starts.result().close()
            raise
        except (OSError, RuntimeError) as error:
            first: BaseException = error
            while first.__context__ is not None:
                first = first.__context__
            raise ChildProcessError(
                f"the processes of a cluster cannot start ({first}); they need memory, and room in "
                f"/dev/shm; leave out --dask or dask=, or make room"
            ) from error
    with cluster as address:
        try:
            client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(f"no Dask scheduler answers at {where} ({error})") from None
        with client:
            if not client.nthreads():
                raise InputError(f"the Dask cluster at {where} has no workers; start: dask worker")
            yield client
