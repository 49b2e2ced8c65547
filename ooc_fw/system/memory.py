"""How ``--memory`` is divided, and how much memory there is.

A `Workload` has the sizes of a run. From these and a limit follow how many rows a block has, how
large the caches are, and how many vertices or landmarks fit. Margins are generous. Where the
process is larger than planned all the same, caches give memory back (`bytes_above`).
"""

from __future__ import annotations

import bisect
import mmap
import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import group_limits, read_text

_program: int | None = None  # what `program_bytes` has measured
_STEP = 16 << 20  # to which it is rounded up, so that the same command has the same plan
_LOADED_BYTES = 28 << 20  # of libraries and compiled code that a run loads after its plan
_COMPILER_BYTES = 144 << 20  # of the compiler, where code has to be compiled first
_ADVISED_BYTES = 16 << 20  # by which a limit that is named exceeds what is needed at the moment
_NEAR = 4 << 20  # bytes below a limit at which caches give memory back

MUCH_BYTES = 1 << 30
"""Bytes beyond the least limit, for which a better kind of model is not advised."""

# Shares of what a limit leaves after everything that an exact run must have. Kernel rows take what
# the others do not use.
_CACHE_SHARE = _BLOCK_SHARE = _VERTEX_SHARE = 1 / 4
_COLUMN_SHARE = _THREADS_SHARE = 1 / 8

_CACHE_BYTES = 256 << 20  # a file up to this size is kept in memory, for a full oracle any
_LEAST_KERNEL_ROWS = 4 << 20
_LEAST_VERTICES = 2_000
_ENOUGH_VERTICES = 40_000  # that an exact model has at most
_MOST_THREADS = 64
_MANY_ROWS = 1 << 24  # of which numbers are counted without a margin, if they are few for each

_VERTEX_COPIES = 6  # of a vertex's row: as read, centred, growing, for products in two precisions
_BLOCK_COPIES = 6  # of a block of rows on its way from the file to the kernel
_VERTEX_BYTES = 256  # for each vertex or landmark beside its row: weight, gradient, label, place
_FEATURE_BYTES = 64  # for each column: mean and sums
_THREAD_BYTES = 6 << 20  # working memory of a thread: tiles of products

_LANDMARK_BYTES = 5 << 10  # for each landmark in addition: products on their way to the Hessian
_LANDMARK_THREAD_BYTES = 6 << 20  # of a thread in addition: strips of values
_MOST_LOADED = 8 << 20  # the same: a tile of landmarks
_LANDMARK_THREADS = 2  # that more landmarks than the fewest leave room for
_SMALL_RUN_BYTES = 1 << 30  # of a run that is begun without a limit, whatever is available
# Rows of the sample for each landmark, fewer where rows are wide; bytes.
_SAMPLE_ROWS, _LEAST_SAMPLE_ROWS, _MOST_SAMPLE_ROWS = 20, 4, 80
_SAMPLE_BYTES = 64 << 20  # of a sample of wide rows, or those of a matrix if these are more
_CHEAP_BYTES = 32 << 20  # of a sample that may have more rows

# Of a limit on addresses (``ulimit -v``).
_ADDRESS_SPACE = 2 << 30  # bytes that libraries and threads reserve, most of them never used
_RESERVED = 8  # addresses reserved for kernel rows, as a multiple of what they take

_SIZE_DIGITS = 18  # of a size in bytes; more do not fit into 64 bits


@dataclass(frozen=True)
class Workload:
    """The sizes that memory depends on."""

    n_rows: int
    decoded_bytes: int  # of all rows in memory
    block_bytes: int  # of a block of rows of a pass, at most
    block_rows: int = 0  # that a step looks at together, and
    least_rows: int = 0  # the fewest that will do where memory is short
    n_features: int = 1
    read_bytes: int = 0  # that reading takes besides the rows: `RowSource.read_bytes`
    held_bytes: int = 0  # of rows, and of numbers for them, that are in memory anyway
    sparse: bool = False
    cacheable: bool = True  # whether rows come from a file, so that keeping them is an option
    full_oracle: bool = False  # whether the gradient of every row is kept
    saved: bool = False  # whether a checkpoint, which is made in memory, holds numbers of all rows
    weighted: bool = False  # whether rows have weights of their own
    targets: bool = False  # whether they have targets of a regression
    n_classifiers: int = 1  # of a landmark model: one of each class, but one of two
    in_unit: bool = False  # whether kernel values lie in [0, 1], so that 16 bits can hold them

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory, rounded up."""
        return -(-self.decoded_bytes // max(1, self.n_rows))

    @property
    def program(self) -> int:
        """Bytes of the process, with rows that the caller holds."""
        return program_bytes(self.held_bytes) + self.held_bytes

    @property
    def thread(self) -> int:
        """Bytes that a thread works with."""
        return _THREAD_BYTES + self.sparse * (_THREAD_BYTES // 2 + 4 * self.n_features)

    def numbers(self, each: int) -> int:
        """Bytes for all rows and columns, with so many for each row."""
        return self.n_rows * each + self.n_features * _FEATURE_BYTES

    def buffers(self, rows: int) -> int:
        """Bytes of read buffers where so many rows are looked at together."""
        block = max(self.block_bytes, self.row_bytes, rows * self.decoded_bytes // self.n_rows)
        return _BLOCK_COPIES * block + self.read_bytes


class OverLimitError(InputError):
    """A memory limit cannot be met; `needed` is the smallest that can, in bytes."""

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


@dataclass(frozen=True)
class MemoryPlan:
    """What fits into memory: caches in bytes, and the largest numbers."""

    work: Workload  # the sizes that it follows from
    held: dict[str, int]  # bytes of what such a run must hold, by what people are told they are
    limit: int | None  # of the process; None where none was given
    max_threads: int
    max_vertices: int = 0  # of an exact model
    max_block: int = 1 << 14  # rows that a step of an exact model looks at together, at most
    landmarks: int = 0  # of an exact model none
    kernel_values: int = 0  # between active rows, or with landmarks
    row_cache: int = 0  # of rows kept in memory
    column_cache: int = 0  # of kernel columns over all rows, for a full oracle

    def terms(self) -> dict[str, int]:
        """All bytes, as people know them."""
        kept = "kernel values", "rows kept in memory", "kernel columns kept"
        caches = self.kernel_values, self.row_cache, self.column_cache
        return self.held | dict(zip(kept, caches, strict=True))

    def total(self) -> int:
        """Bytes in all."""
        return sum(self.terms().values())

    def __str__(self) -> str:
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in self.terms().items())


def program_bytes(held: int = 0) -> int:
    """Bytes of interpreter, libraries and code, without the rows that are `held` anyway.

    They are what is resident when the first plan of the process is made, and a margin.
    """
    global _program
    if _program is None:
        resident = max(0, rss_bytes() - held)
        _program = -(-resident // _STEP) * _STEP + _LOADED_BYTES
    return _program


def plan_memory(work: Workload, limit: int | None, available: int) -> MemoryPlan:
    """Divide memory among the parts of an exact run, which add up to no more than the limit.

    Without a `limit` on the peak of resident memory it is half of what is `available` in all
    (`memory_total`), or the least that the run needs if that is more. OverLimitError where the
    limit cannot be met.
    """
    held, needed = _least(work), least_bytes(work)
    if limit is not None and limit < needed:
        raise _over_limit(limit, held, needed, exact_bytes(work, _ENOUGH_VERTICES))
    budget = max(needed, available // 2) if limit is None else limit
    compiler = _for_compiler(limit, needed)
    rest = budget - needed - compiler
    held["program"] += compiler
    max_block, more_buffers = _block(work, int(_BLOCK_SHARE * rest))
    more_threads = min(_MOST_THREADS - 1, int(_THREADS_SHARE * rest) // work.thread)
    more_vertices = int(_VERTEX_SHARE * rest) // _vertex_bytes(work)
    max_vertices = min(work.n_rows, _LEAST_VERTICES + more_vertices)
    held["read buffers"] += more_buffers
    held["working memory of threads"] += more_threads * work.thread
    held["active rows"] = max_vertices * _vertex_bytes(work)
    columns = work.full_oracle * min(4 * work.n_rows**2, int(_COLUMN_SHARE * rest))
    row_cache = _row_cache(work)
    if row_cache > _CACHE_SHARE * rest:
        row_cache = 0
    left = budget - sum(held.values()) - columns - row_cache
    return MemoryPlan(
        work,
        held,
        limit,
        1 + more_threads,
        max_vertices,
        max_block,
        kernel_values=min(left, max(_LEAST_KERNEL_ROWS, max_vertices * (4 * max_vertices + 16384))),
        row_cache=row_cache,
        column_cache=columns,
    )


def _block(work: Workload, room: int) -> tuple[int, int]:
    """Rows of a block, and bytes of its buffers beside the least, which have so much room."""
    least = work.buffers(work.least_rows)
    more = work.buffers(work.block_rows) - least
    if more <= room:
        return work.block_rows, more
    block = (least + room - work.read_bytes) // _BLOCK_COPIES
    return max(work.least_rows, block * work.n_rows // work.decoded_bytes), room


def _row_cache(work: Workload) -> int:
    """Bytes of all rows in memory, if they are worth keeping, and of copies for products."""
    if work.full_oracle:  # reads all rows for each new vertex
        return work.decoded_bytes * (work.cacheable + (4 if work.sparse else 1))
    return work.decoded_bytes * work.cacheable if work.decoded_bytes <= _CACHE_BYTES else 0


def least_bytes(work: Workload) -> int:
    """The smallest limit that `plan_memory` takes."""
    return sum(_least(work).values()) + _LEAST_KERNEL_ROWS


def exact_bytes(work: Workload, n_vertices: int) -> int:
    """A limit that has room for an exact model with so many vertices."""
    more = max(0, min(work.n_rows, n_vertices) - _LEAST_VERTICES) * _vertex_bytes(work)
    return least_bytes(work) + int(more / _VERTEX_SHARE) + _COMPILER_BYTES + _ADVISED_BYTES


def landmark_bytes(work: Workload, n_landmarks: int) -> int:
    """A limit that has room for so many landmarks."""
    terms = landmark_terms(work, n_landmarks, _LANDMARK_THREADS)
    return sum(terms.values()) + _COMPILER_BYTES + _ADVISED_BYTES


def _for_compiler(limit: int | None, needed: int) -> int:
    """Bytes that are kept for the compiler: half of what a limit leaves, or all that it takes."""
    return 0 if limit is None else min(_COMPILER_BYTES, (limit - needed) // 2)


def _least(work: Workload) -> dict[str, int]:
    """The fewest bytes of each part of an exact run, beside kernel rows."""
    buffers, each = work.buffers(work.least_rows), 20 - 4 * work.in_unit  # labels, bounds, norms
    if work.n_classifiers > 1:  # rows are set apart by class
        parts = (32 << 20) + work.sparse * 8 * work.n_rows
        buffers += parts if work.cacheable else work.decoded_bytes
    heavy = work.saved or work.weighted or work.targets or work.n_classifiers > 1
    if heavy or work.n_rows <= _MANY_ROWS:
        each = 72
    if work.full_oracle:  # gradients, places, and two kernel columns
        each = 136
    return {
        "program": work.program,
        "numbers for each row of the file": work.numbers(each),
        "read buffers": buffers,
        "working memory of threads": work.thread,
        "active rows": min(work.n_rows, _LEAST_VERTICES) * _vertex_bytes(work),
    }


def _vertex_bytes(work: Workload) -> int:
    return _VERTEX_COPIES * work.row_bytes + _VERTEX_BYTES


def sample_rows(n_landmarks: int, row_bytes: float) -> int:
    """Rows of the sample that a run with landmarks holds in memory, where the data have as many."""
    affordable = int(max(_SAMPLE_BYTES, 8 * n_landmarks**2) / max(1.0, row_bytes))
    cheap = int(_CHEAP_BYTES / max(1.0, row_bytes))
    return max(
        min(_SAMPLE_ROWS * n_landmarks, max(_LEAST_SAMPLE_ROWS * n_landmarks, affordable)),
        min(_MOST_SAMPLE_ROWS * n_landmarks, cheap),
    )


def landmark_terms(work: Workload, n_landmarks: int, threads: int = 1) -> dict[str, int]:
    """Bytes that a run with landmarks takes at most, part by part.

    Of the N x N matrices there are one of the landmarks, and one for each classifier: its Hessian
    in one triangle and the factor of the preconditioner in the other.
    """
    each = 2 + 14 * work.n_classifiers  # class; sign and decision values of three points
    of_row = each + 30 * (work.weighted or work.targets)
    n_sample = sample_rows(n_landmarks, work.row_bytes) + _SAMPLE_ROWS * n_landmarks
    of_landmark = _vertex_bytes(work) + _LANDMARK_BYTES
    return {
        "program": work.program,
        "numbers for each row of the file": work.numbers(of_row),
        "read buffers": work.buffers(0),
        "working memory of threads": threads * _landmark_thread(work, n_landmarks),
        "rows of the sample": min(work.n_rows, n_sample) * (work.row_bytes + each + 8),
        "matrices between landmarks": n_landmarks * of_landmark
        + 8 * n_landmarks**2 * (1 + work.n_classifiers),
    }


def _landmark_thread(work: Workload, n_landmarks: int) -> int:
    columns = 2 << 10  # bytes of the Hessian for each landmark
    loaded = min(_MOST_LOADED, 8 * work.n_features * n_landmarks)
    return work.thread + _LANDMARK_THREAD_BYTES + loaded + columns * n_landmarks


def plan_landmarks(
    work: Workload, limit: int | None, available: int, fewest: int, most: int, threads: int = 1
) -> MemoryPlan:
    """Memory of a run with as many landmarks as fit, from `fewest` to `most`.

    How many they are does not depend on `threads`, of which as many start as fit beside them.
    Without a limit, half of what is available is not exceeded, except by the `fewest` where they
    take little. OverLimitError where there is no room for the fewest.
    """
    held = landmark_terms(work, fewest)
    needed = sum(held.values())
    budget = max(available // 2, min(needed, _SMALL_RUN_BYTES)) if limit is None else limit
    if needed > budget:
        raise _over_limit(limit, held, needed, landmark_bytes(work, most))
    compiler = _for_compiler(limit, needed)
    budget -= compiler

    def over(n_landmarks: int) -> bool:
        return sum(landmark_terms(work, n_landmarks, _LANDMARK_THREADS).values()) > budget

    n_landmarks = fewest + bisect.bisect_left(range(fewest + 1, most + 1), True, key=over)
    rest = budget - sum(landmark_terms(work, n_landmarks).values())
    threads = min(threads, 1 + rest // _landmark_thread(work, n_landmarks))
    held = landmark_terms(work, n_landmarks, threads)
    rest = budget - sum(held.values())
    held["program"] += compiler
    row_cache = work.cacheable * min(_CACHE_BYTES, rest)
    kernel_values = 2 * work.n_rows * n_landmarks * work.in_unit  # in 16 bits
    return MemoryPlan(
        work,
        held,
        limit,
        threads,
        landmarks=n_landmarks,
        kernel_values=min(kernel_values, rest - row_cache),
        row_cache=row_cache,
    )


def _over_limit(limit: int | None, held: dict[str, int], needed: int, good: int) -> OverLimitError:
    """The error for a limit below what is `needed`, if a `good` one may be far larger."""
    part = max(held, key=lambda name: held[name])
    more = " (ooc-fw convert writes the rows in small chunks)" if part == "read buffers" else ""
    given = "half of all memory" if limit is None else f"a memory limit of {format_bytes(limit)}"
    if good > needed + MUCH_BYTES:
        good = needed + _ADVISED_BYTES
    return OverLimitError(
        f"{given} cannot be met: the largest part, {part}, takes "
        f"{format_bytes(held[part])} alone{more}; a limit that would do is {-(-good >> 20)}MiB",
        needed,
    )


def parse_bytes(text: str) -> int:
    """Bytes of a size: 1GB is 10^9, 1GiB and 1G are 2^30; likewise k, M and T, in any case."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)\s*", text.lower(), re.ASCII)
    if match is None or len(match[1]) > _SIZE_DIGITS:
        raise InputError(f"{text!r} is no size in bytes; write for example 600MiB or 2GiB")
    number, prefix, unit = match.groups()
    return int(float(number) * (1000 if unit == "b" else 1024) ** " kmgt".index(prefix or " "))


def format_bytes(n: int) -> str:
    """A size for people: three digits and a binary unit."""
    value, unit = float(n), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}"


def kernel_rows_budget() -> int:
    """Bytes for the kernel rows of a stream, which has no limit: half of the memory there is."""
    return max(_LEAST_KERNEL_ROWS, memory_total() // 2 - program_bytes())


def memory_total(root: str = "/") -> int:
    """Bytes of memory that this process may ever use.

    The least of the memory of the machine, the limits of control groups and what ``ulimit -v`` and
    ``-d`` allow. What others take at the moment does not count. `root` holds ``proc`` and ``sys``.
    """
    files = {"": ["memory.max"], "memory": ["memory.limit_in_bytes"]}
    sizes = [limit for (limit,) in group_limits(files, 1, Path(root))]
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        addresses, _ = resource.getrlimit(limit)
        if addresses != resource.RLIM_INFINITY:
            sizes.append(max(0, addresses - _ADDRESS_SPACE) // _RESERVED)
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *sizes])


def bytes_above(limit: int | None) -> int:
    """Bytes by which this process is nearly above a limit; 0 or less if it is not."""
    return 0 if limit is None else rss_bytes() - (limit - _NEAR)


def rss_bytes() -> int:
    """Resident memory of this process; its peak where the system does not tell."""
    pages = read_text(Path("/proc/self/statm")).split()
    return int(pages[1]) * mmap.PAGESIZE if pages else peak_rss_bytes()


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far, interpreter and libraries included."""
    for line in read_text(Path("/proc/self/status")).splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    # Where /proc is not there; this may include what the parent process held at the fork.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
