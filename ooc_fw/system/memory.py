"""One budget: how ``--memory`` is divided, and how much memory there is.

A `Workload` has the sizes of a run. From these and a limit follow how many rows a block has, how
large the caches are, and how many vertices or landmarks fit. Margins are generous. If the process
is larger than planned all the same, caches give memory back (`bytes_above`).
"""

from __future__ import annotations

import bisect
import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import group_limits

_NEAR_BYTES = 24 << 20  # below a limit at which caches give memory back, as the compiler may come
_CACHE_BYTES = 256 << 20  # of a file that is kept in memory, at most
_LEAST_KERNEL_BYTES = 4 << 20  # of kernel values, that an exact run can work with
_LEAST_VERTICES = 2_000  # that an exact run has room for
_COPIES = 6  # of the rows of a block: as read, centred, for products
_THREAD_BYTES = 6 << 20  # working memory of a thread: tiles of products

_program: int | None = None  # what `program_bytes` has measured


@dataclass(frozen=True)
class Workload:
    """The sizes that memory depends on."""

    n_rows: int
    decoded_bytes: int  # of all rows in memory
    block_bytes: int  # of a block of rows of a pass, at most
    block_rows: int = 0  # that a step looks at together, and
    least_rows: int = 0  # the fewest that will do if memory is short
    n_features: int = 1
    read_bytes: int = 0  # that reading takes besides the rows: `RowSource.read_bytes`
    held_bytes: int = 0  # of rows, and of numbers for them, that are in memory anyway
    sparse: bool = False
    cacheable: bool = True  # whether rows come from a file, so that keeping them is an option
    weighted: bool = False  # whether rows have weights, targets or gradients of their own
    n_classifiers: int = 1  # of a landmark model: one of each class, but one of two
    in_unit: bool = False  # whether kernel values lie in [0, 1], so that 16 bits can hold them

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory, rounded up."""
        return -(-self.decoded_bytes // max(1, self.n_rows))

    @property
    def vertex_bytes(self) -> int:
        """Bytes of a vertex or a landmark: its row, also in checkpoints, and a few numbers."""
        return (_COPIES + 3) * self.row_bytes + 256

    def thread_bytes(self, landmarks: int = 0) -> int:
        """Bytes that a thread works with, if there are so many landmarks."""
        own = _THREAD_BYTES + self.sparse * (_THREAD_BYTES // 2 + 4 * self.n_features)
        if landmarks > 0:  # strips of values, a tile of landmarks, columns of the Hessian
            own += _THREAD_BYTES + min(8 << 20, 8 * self.n_features * landmarks) + 2048 * landmarks
        return own

    def _shared(self, each: int, block_rows: int = 1) -> int:
        """Bytes of any run, with `each` for each row of the file: program, numbers, buffers."""
        block = max(self.block_bytes, self.row_bytes * block_rows)
        program = program_bytes(self.held_bytes) + self.held_bytes
        numbers = self.n_rows * each + self.n_features * 64
        return program + numbers + _COPIES * block + self.read_bytes

    def exact(self, vertices: int, block_rows: int, threads: int = 1) -> int:
        """Bytes of an exact run, with the fewest kernel values that it can work with."""
        several = self.n_classifiers > 1
        each = 72 if self.weighted or several else 20 - 4 * self.in_unit  # labels, bounds, norms
        apart = 0
        if several:  # rows are set apart by class, in memory or on disk
            apart = (32 << 20) + 8 * self.n_rows * self.sparse
            apart = apart if self.cacheable else self.decoded_bytes
        active = min(self.n_rows, vertices) * self.vertex_bytes + _LEAST_KERNEL_BYTES
        return self._shared(each, block_rows) + apart + threads * self.thread_bytes() + active

    def span(self, landmarks: int, threads: int = 1) -> int:
        """Bytes of a run with landmarks, without kernel values that are kept.

        Of the N x N matrices there are one of the landmarks, and one for each classifier: its
        Hessian in one triangle and the factor of the preconditioner in the other.
        """
        # Class; sign and decision values of three points.
        each = 2 + 14 * self.n_classifiers + 30 * self.weighted
        n_sample = min(self.n_rows, sample_rows(landmarks, self.row_bytes) + 20 * landmarks)
        sample = n_sample * (self.row_bytes + each + 8)
        # Rows, and 5 KiB of each on their way to the Hessian.
        rows = landmarks * (self.vertex_bytes + (5 << 10))
        matrices = 8 * landmarks**2 * (1 + self.n_classifiers)
        working = threads * self.thread_bytes(landmarks)
        return self._shared(each) + working + sample + rows + matrices


def sample_rows(n_landmarks: int, row_bytes: float) -> int:
    """Rows that a run with landmarks samples, if the data have as many: 4 to 80 for each."""
    affordable = int((64 << 20) / max(1.0, row_bytes))
    return min(max(4 * n_landmarks, affordable), 80 * n_landmarks)


class OverLimitError(InputError):
    """A memory limit cannot be met; `needed` is the smallest that can, in bytes."""

    def __init__(self, limit: int | None, needed: int) -> None:
        self.needed = needed
        given = "half of all memory" if limit is None else f"a limit of {format_bytes(limit)}"
        enough = -(-(needed + (16 << 20)) >> 20)  # what is needed may grow a little
        super().__init__(f"{given} cannot be met; a limit that would do is {enough}MiB")


@dataclass(frozen=True)
class MemoryPlan:
    """What fits into memory: caches in bytes, and the largest numbers."""

    work: Workload  # the sizes that it follows from
    planned: int  # bytes of all that such a run holds
    limit: int | None  # of the process; None if none was given
    max_threads: int
    max_vertices: int = 0  # of an exact model
    max_block: int = 1 << 14  # rows that a step of an exact model looks at together, at most
    landmarks: int = 0  # of an exact model none
    kernel_values: int = 0  # between active rows, or with landmarks
    row_cache: int = 0  # of rows kept in memory


def plan_memory(work: Workload, limit: int | None, available: int) -> MemoryPlan:
    """Divide memory among the parts of an exact run, which add up to no more than the limit.

    Without a `limit` on the peak of resident memory it is half of what is `available` in all
    (`memory_total`), or the least that the run needs if that is more. OverLimitError if the limit
    cannot be met. Of what the least run leaves, vertices, blocks of rows and rows kept in memory
    may have a quarter each, threads an eighth; kernel values take the rest. Vertices may take half,
    from the kernel values.
    """
    needed = least_bytes(work)
    budget = max(needed, available // 2) if limit is None else limit
    if needed > budget:
        raise OverLimitError(limit, needed)
    quarter = (budget - needed) // 4
    rows = min(work.block_rows, work.least_rows + quarter // (_COPIES * max(1, work.row_bytes)))
    threads = min(64, 1 + quarter // (2 * work.thread_bytes()))
    row_cache = work.decoded_bytes * work.cacheable
    if row_cache > min(quarter, _CACHE_BYTES):
        row_cache = 0
    # Kernel values give way to more vertices than the fewest, when these come.
    vertices = min(work.n_rows, _LEAST_VERTICES + 2 * quarter // work.vertex_bytes)
    others = work.exact(_LEAST_VERTICES, rows, threads) + row_cache
    more = min(budget - others, 4 * vertices * (vertices + 4096))
    values = _LEAST_KERNEL_BYTES + more
    return MemoryPlan(work, others + more, limit, threads, vertices, rows, 0, values, row_cache)


def least_bytes(work: Workload) -> int:
    """The smallest limit that `plan_memory` takes."""
    return work.exact(_LEAST_VERTICES, work.least_rows)


def plan_landmarks(
    work: Workload, limit: int | None, available: int, fewest: int, most: int, threads: int = 1
) -> MemoryPlan:
    """Memory of a run with as many landmarks as fit, from `fewest` to `most`.

    As many `threads` start as fit beside them: more landmarks than the fewest leave room for two.
    Without a limit, half of what is available is not exceeded, except by the `fewest` if they take
    little. OverLimitError if there is no room for the fewest.
    """
    needed = work.span(fewest)
    budget = max(available // 2, min(needed, 1 << 30)) if limit is None else limit
    if needed > budget:
        raise OverLimitError(limit, needed)
    more = range(fewest + 1, most + 1)
    landmarks = fewest + bisect.bisect_left(more, True, key=lambda n: work.span(n, 2) > budget)
    threads = min(threads, 1 + (budget - work.span(landmarks)) // work.thread_bytes(landmarks))
    others = work.span(landmarks, threads)
    row_cache = work.cacheable * min(_CACHE_BYTES, budget - others)
    others += row_cache
    values = min(budget - others, 2 * work.n_rows * landmarks * work.in_unit)  # in 16 bits
    return MemoryPlan(work, others + values, limit, threads, 0, 0, landmarks, values, row_cache)


def parse_bytes(text: str) -> int:
    """Bytes of a size: 1GB is 10^9, 1GiB and 1G are 2^30; likewise k, M and T, in any case."""
    match = re.fullmatch(r"\s*(\d{1,18}|\d{1,9}\.\d{1,9})\s*([kmgt]?)(i?b?)\s*", text.lower())
    if match is None or not text.isascii():
        raise InputError(f"{text!r} is no size in bytes; write for example 600MiB or 2GiB")
    number, prefix, unit = match.groups()
    return int(float(number) * (1000 if unit == "b" else 1024) ** " kmgt".index(prefix or " "))


def format_bytes(n: int) -> str:
    """A size for people."""
    return f"{n / 2**20:,.0f} MiB"


def program_bytes(held: int = 0) -> int:
    """Bytes of interpreter, libraries and code, without the rows that are `held` anyway.

    They are what is resident at the first call, in steps of 16 MiB so that the same command has the
    same plan, and 72 MiB for what a run loads and compiles later: all plans of a process agree.
    """
    global _program
    if _program is None:
        step = 16 << 20
        _program = -(-max(0, rss_bytes() - held) // step) * step + (72 << 20)
    return _program


def memory_total(root: str = "/") -> int:
    """Bytes of memory that this process may ever use: those of the machine, or of its groups.

    What others take at the moment does not count. `root` holds ``proc`` and ``sys``.
    """
    files = (["memory.max"], ["memory.limit_in_bytes"])
    limits = [limit for (limit,) in group_limits(files, 1, Path(root))]
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits])


def bytes_above(limit: int | None) -> int:
    """Bytes by which this process is nearly above a limit; 0 or less if it is not."""
    return 0 if limit is None else rss_bytes() - (limit - _NEAR_BYTES)


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far, interpreter and libraries included."""
    _, _, kibibytes = Path("/proc/self/status").read_text().partition("VmHWM:")
    return int(kibibytes.split()[0]) << 10  # unlike that of getrusage without the parent's
