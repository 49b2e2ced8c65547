"""The memory budget: how ``--memory`` is divided, and how much memory there is.

A `Workload` has the sizes of a run. Together with a limit they determine the rows in a block, the
sizes of caches, and the number of vertices or landmarks. Margins are generous. If the process
still becomes larger than planned, caches give memory back (`bytes_above`).
"""

from __future__ import annotations

import bisect
import math
import mmap
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import group_limits

if sys.platform != "win32":
    import resource
if sys.platform != "linux":
    import psutil

_NEAR_BYTES = 24 << 20  # nearer to the limit, caches give memory back; compiling may need it
_CACHE_BYTES = 256 << 20  # most bytes of rows from a file that are kept in memory
_LEAST_KERNEL_BYTES = 4 << 20  # fewest bytes of kernel values with which an exact run can work
_LEAST_VERTICES = 2_000  # every exact run has room for so many vertices
_COPIES = 6  # copies of the rows of a block: as read, centred, for products
_CODE_BYTES = 72 << 20  # code that the first run of a process loads or compiles
_MORE_CODE_BYTES = 40 << 20  # code that a later run of another kind loads or compiles
_THREAD_BYTES = 6 << 20  # working memory of a thread: tiles of products

LARGEST_FACTOR = 512
"""Most weights of a linear classifier for which its preconditioner is a Cholesky factor."""

LARGEST_SYSTEM = 2048
"""Most free vertices whose weights a linear system gives: 0.3 s on one core."""

SYSTEM_COPIES = 3
"""Copies of a matrix, float64, that a linear system takes while it is solved."""

_program: int | None = None  # the measurement of `program_bytes`


@dataclass(frozen=True)
class Workload:
    """The sizes on which the memory of a run depends."""

    n_rows: int
    decoded_bytes: int  # bytes of all rows in memory
    block_bytes: int  # most bytes in a block of rows of a reading
    block_rows: int = 0  # number of rows in one look of a step
    least_rows: int = 0  # fewest rows in a look if memory is short
    n_features: int = 1
    read_bytes: int = 0  # bytes that a read takes besides its rows: `RowSource.read_bytes`
    held_bytes: int = 0  # bytes of rows, and of numbers for them, that are in memory anyway
    sparse: bool = False
    cacheable: bool = True  # whether rows come from a file, and can be kept in memory
    weighted: bool = False  # whether each row has its own weight, target or gradient
    n_classifiers: int = 1  # classifiers of a landmark model: one for each class, or one for two
    in_unit: bool = False  # whether kernel values are in [0, 1], so that 16 bits can hold them

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory, rounded up."""
        return -(-self.decoded_bytes // max(1, self.n_rows))

    @property
    def vertex_bytes(self) -> int:
        """Bytes for a vertex or a landmark: its row, also for checkpoints, and a few numbers."""
        return (_COPIES + 3) * self.row_bytes + 256

    def thread_bytes(self, landmarks: int = 0) -> int:
        """Bytes of working memory for a thread, in a run with this number of landmarks."""
        own = _THREAD_BYTES + self.sparse * (_THREAD_BYTES // 2 + 4 * self.n_features)
        if landmarks > 0:  # strips of values, a tile of landmarks, columns of the Hessian
            own += _THREAD_BYTES + min(8 << 20, 8 * self.n_features * landmarks) + 2048 * landmarks
            own += 24 * landmarks * self.n_classifiers  # sums over the rows of a strip
        return own

    def _shared(self, each: int, block_rows: int = 1) -> int:
        """Bytes that every run needs: program, buffers, and numbers (`each` bytes for a row)."""
        block = max(self.block_bytes, self.row_bytes * block_rows)
        program = program_bytes(self.held_bytes) + self.held_bytes
        numbers = self.n_rows * each + self.n_features * 64
        return program + numbers + _COPIES * block + self.read_bytes

    def exact(self, vertices: int, block_rows: int, threads: int = 1) -> int:
        """Bytes of an exact run with the fewest kernel values with which it can work."""
        several = self.n_classifiers > 1
        each = 72 if self.weighted or several else 13  # labels, margins, numbers of near rows
        apart = 0
        if several:  # rows of each class are copied together, in memory or on disk
            apart = (32 << 20) + 8 * self.n_rows * self.sparse
            apart = apart if self.cacheable else self.decoded_bytes
        active = min(self.n_rows, vertices) * self.vertex_bytes + _LEAST_KERNEL_BYTES
        return self._shared(each, block_rows) + apart + threads * self.thread_bytes() + active

    def span(self, landmarks: int, threads: int = 1) -> int:
        """Bytes of a run with landmarks, without a cache of kernel values.

        There are two N x N matrices: values between landmarks with their factor, and the Hessian
        with the factor of the preconditioner. The first one of the pilot, for half of the
        landmarks, stays until the weights of all are better.
        """
        # The class; for each classifier, a sign and decision values at three points.
        each = 2 + 14 * self.n_classifiers + 30 * self.weighted
        # A sample has 4 to 20 rows for each landmark, and at most 800 n_rows / landmarks if this is
        # more than 4; the pool has a third of all rows, and both have the landmarks.
        most = sample_rows(landmarks, self.row_bytes)
        drawn = min(20 * landmarks, max(4 * landmarks, int(127 * math.sqrt(self.n_rows))))
        n_sample = min(self.n_rows, most, drawn) + min(most, self.n_rows // 3) + landmarks
        sample = n_sample * (self.row_bytes + 6 * self.n_classifiers + 32)
        # Rows, and 5 KiB for each while the Hessian is computed. A run has about 24 vectors of
        # numbers for each landmark and classifier.
        rows = landmarks * (self.vertex_bytes + (5 << 10) + 192 * self.n_classifiers)
        working = threads * self.thread_bytes(landmarks)
        matrices = matrix_bytes(landmarks) + matrix_bytes(landmarks // 2) // 2
        return self._shared(each) + working + sample + rows + matrices

    def columns(self, threads: int = 1) -> int:
        """Bytes of a linear run: weights of all columns take the place of landmarks."""
        width = self.n_features + 1
        each = 2 + 14 * self.n_classifiers + 30 * self.weighted
        n_sample = column_sample(self.n_rows, self.n_features, self.row_bytes)
        # The sample, its squares in float64, and what a step needs of both.
        sample = n_sample * (4 * self.row_bytes + 10 * self.n_classifiers + each + 8)
        factors = (matrix_bytes(width) + 4096 * width) * (width <= LARGEST_FACTOR)
        # Steps take about twenty vectors of weights, and each thread has sums of its own.
        vectors = 8 * self.n_classifiers * width * (20 + 4 * threads)
        return self._shared(each) + threads * self.thread_bytes() + sample + factors + vectors


def matrix_bytes(landmarks: int) -> int:
    """Bytes of the matrices between so many landmarks."""
    return 16 * landmarks**2


def sample_rows(n_landmarks: int, row_bytes: float) -> int:
    """Number of rows in the sample of a run with landmarks: 4 to 80 for each landmark."""
    affordable = int((64 << 20) / max(1.0, row_bytes))
    return min(max(4 * n_landmarks, affordable), 80 * n_landmarks)


def column_sample(n_rows: int, n_features: int, row_bytes: float) -> int:
    """Number of rows in the sample of a linear run: an eighth of all, or 20 for each column."""
    wanted = max(n_rows // 8, 20 * min(n_features, LARGEST_FACTOR), 1_000)
    return min(n_rows, wanted, max(100, int((16 << 20) / max(1.0, row_bytes))))


class OverLimitError(InputError):
    """A memory limit cannot be met; `needed` is the smallest possible limit in bytes."""

    def __init__(self, limit: int | None, needed: int) -> None:
        self.needed = needed
        given = "half of all memory" if limit is None else f"a limit of {format_bytes(limit)}"
        enough = -(-(needed + (16 << 20)) >> 20)  # the next process may need a little more
        super().__init__(f"{given} cannot be met; a limit that would do is {enough}MiB")


@dataclass(frozen=True)
class MemoryPlan:
    """A division of memory: bytes of caches, and largest numbers of threads, vertices and rows."""

    work: Workload  # the sizes from which it was made
    planned: int  # bytes of the whole run
    limit: int | None  # most bytes of the process; None if no limit was given
    max_threads: int
    max_vertices: int = 0  # most vertices of an exact model
    max_block: int = 1 << 14  # most rows in one look of a step of an exact model
    landmarks: int = 0  # number of landmarks; 0 for an exact model
    kernel_values: int = 0  # bytes of kernel values between vertices, or with landmarks
    row_cache: int = 0  # bytes of rows that are kept in memory


def plan_memory(work: Workload, limit: int | None, available: int) -> MemoryPlan:
    """Divide memory among the parts of an exact run, which together keep the limit.

    The `limit` is for the peak of resident memory. Without one it is half of the `available` memory
    (`memory_total`), or the least that the run needs if this is more. OverLimitError is raised if
    the limit cannot be met. The memory above the least is divided: blocks of rows and rows kept in
    memory get up to a quarter each, and threads an eighth. Kernel values and further vertices share
    the rest; vertices get up to a half.
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
    # Further vertices take their memory from the kernel values when they are added.
    vertices = min(work.n_rows, _LEAST_VERTICES + 2 * quarter // work.vertex_bytes)
    others = work.exact(_LEAST_VERTICES, rows, threads) + row_cache
    systems = SYSTEM_COPIES * 8 * min(vertices, LARGEST_SYSTEM) ** 2  # bytes
    more = min(budget - others, 4 * vertices * (vertices + 4096) + systems)
    values = _LEAST_KERNEL_BYTES + more
    return MemoryPlan(work, others + more, limit, threads, vertices, rows, 0, values, row_cache)


def least_bytes(work: Workload) -> int:
    """The smallest limit for `plan_memory`."""
    return work.exact(_LEAST_VERTICES, work.least_rows)


def plan_landmarks(
    work: Workload, limit: int | None, available: int, fewest: int, most: int, threads: int = 1
) -> MemoryPlan:
    """Plan the memory of a run with as many landmarks as fit, from `fewest` to `most`.

    At most `threads` threads start, as many as fit; with more than the fewest landmarks, two fit.
    Without a limit, the run takes at most half of the available memory, or up to 1 GiB if the
    fewest landmarks need more. OverLimitError is raised if the fewest do not fit.
    """
    needed = work.span(fewest)
    budget = max(available // 2, min(needed, 1 << 30)) if limit is None else limit
    if needed > budget:
        raise OverLimitError(limit, needed)
    more = range(fewest + 1, most + 1)
    landmarks = fewest + bisect.bisect_left(more, True, key=lambda n: work.span(n, 2) > budget)
    threads = min(threads, 1 + (budget - work.span(landmarks)) // work.thread_bytes(landmarks))
    others = work.span(landmarks, threads)
    values = min(budget - others, 2 * work.n_rows * landmarks * work.in_unit)  # in 16 bits
    return MemoryPlan(work, others + values, limit, threads, 0, 0, landmarks, values)


def plan_columns(work: Workload, limit: int | None, available: int, threads: int) -> MemoryPlan:
    """Plan the memory of a linear run, with up to `threads` threads; OverLimitError."""
    needed = work.columns()
    budget = max(available // 2, min(needed, 1 << 30)) if limit is None else limit
    if needed > budget:
        raise OverLimitError(limit, needed)
    each = work.columns(2) - needed
    threads = min(threads, 1 + (budget - needed) // each)
    others = work.columns(threads)
    # A run takes a hundred readings or more, so that it keeps all rows if they fit.
    row_cache = work.cacheable * work.decoded_bytes
    if row_cache > budget - others:
        row_cache = 0
    width = work.n_features + 1
    return MemoryPlan(work, others + row_cache, limit, threads, 0, 0, width, 0, row_cache)


def parse_bytes(text: str) -> int:
    """Parse a size: 1GB is 10^9, and 1GiB and 1G are 2^30; also with k, M and T, in any case."""
    match = re.fullmatch(r"\s*(\d{1,18}|\d{1,9}\.\d{1,9})\s*([kmgt]?)(i?b?)\s*", text.lower())
    if match is None or not text.isascii():
        raise InputError(f"{text!r} is no size in bytes; write for example 600MiB or 2GiB")
    number, prefix, unit = match.groups()
    return int(float(number) * (1000 if unit == "b" else 1024) ** " kmgt".index(prefix or " "))


def format_bytes(n: int) -> str:
    """A size as text for people."""
    return f"{n / 2**20:,.0f} MiB"


def program_bytes(held: int = 0) -> int:
    """Bytes of interpreter, libraries, code and what else the process has in memory.

    The `held` bytes of rows are left out. All calls of a run agree, see `measure_program`.
    """
    return measure_program(held) if _program is None else _program


def measure_program(held: int) -> int:
    """Measure `program_bytes` for a run that begins, as its process may have grown or shrunk.

    Resident memory counts in steps of 16 MiB, so that the same command has the same plan. To it
    comes memory for code that is loaded or compiled later, less of it after the first run.
    """
    global _program
    step = 16 << 20
    later = _CODE_BYTES if _program is None else _MORE_CODE_BYTES
    _program = -(-max(0, _resident(held)) // step) * step + later
    return _program


def _resident(held: int) -> int:
    return rss_bytes() - held


def memory_total(root: str = "/") -> int:
    """Most bytes that this process may use: the memory of the machine, or a limit of its groups.

    The use by other processes does not count. `root` is the folder of ``proc`` and ``sys``.
    """
    files = (["memory.max"], ["memory.limit_in_bytes"])
    limits = [limit for (limit,) in group_limits(files, 1, Path(root))]
    if sys.platform != "linux":
        return int(psutil.virtual_memory().total)
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits])


def address_limit() -> int:
    """Bytes of addresses that ``ulimit -v`` or ``ulimit -d`` allows; 0 without such a limit."""
    if sys.platform == "win32":
        return 0
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=0)


def lazy_pages(n_bytes: int) -> mmap.mmap:
    """Zeros, whose pages take memory when they are first written, one by one: none is huge."""
    if sys.platform == "win32":
        return mmap.mmap(-1, n_bytes)
    # MAP_NORESERVE: without it, Linux might refuse many pages although few of them are used.
    no_reserve = 0x4000 if sys.platform == "linux" else 0
    pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return pages


def bytes_above(limit: int | None) -> int:
    """Bytes that should be given back because the process is near its limit; else 0 or less."""
    return 0 if limit is None else rss_bytes() - (limit - _NEAR_BYTES)


def rss_bytes() -> int:
    """Resident memory of this process in bytes."""
    if sys.platform != "linux":
        return int(psutil.Process().memory_info().rss)
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far, interpreter and libraries included."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, _, kibibytes = Path("/proc/self/status").read_text().partition("VmHWM:")
    return int(kibibytes.split()[0]) << 10  # getrusage might give the peak of the parent
