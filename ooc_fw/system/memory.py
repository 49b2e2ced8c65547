"""How ``--memory`` is divided among the parts of a run, and how much memory there is.

The plan follows from the sizes of the data and from what the process takes when it is made.
"""

from __future__ import annotations

import bisect
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

MUCH_BYTES = 1 << 30
"""Bytes beyond the least limit, for which a better kind of model is not advised."""

# Shares. The rest is what a limit leaves after everything that a run must have.
_DEFAULT_SHARE = 0.5  # of all memory, for a run without a limit
_CACHE_SHARE = 0.25  # of the rest, at most, for rows and again for kernel columns,
_FREE_COLUMN_SHARE = 0.5  # which may take more where there is no limit
_THREADS_SHARE = 0.125  # of the rest, at most, for working memory of threads beyond the first
_VERTEX_SHARE = 0.4  # of the rest without these, at most, for vertices; kernel rows take the others

# Bytes.
_CACHE_BYTES = 256 << 20  # a file up to this size is kept in memory, for a full oracle any
_LEAST_KERNEL_ROWS = 4 << 20
_THREAD_BYTES = 6 << 20  # working memory of a thread: tiles of products, sparse vertices
_SPARSE_THREAD_BYTES = 3 << 20  # in addition, for tiles of sparse rows,
_THREAD_FEATURE_BYTES = 4  # and for each of their columns
_ROW_BYTES = 64  # for each row of the file: label, class, margin, bounds of screening and of a pass
_FEW_ROW_BYTES = 20  # of many rows, with two classes, without weights or a checkpoint,
_ONE_NORM_BYTES = 4  # less where all rows have the same norm
_FULL_ORACLE_BYTES = 56  # in addition for a full oracle: two gradients, places, labels
_ORDER_BYTES = 8  # in addition where rows are set apart by class
_PARTS_BYTES = 32 << 20  # for reading these from files, beside row pointers
_FEATURE_BYTES = 64  # for each column: mean and sums
_VERTEX_BYTES = 256  # for each vertex beside its row: weight, gradient, label, slot, position
_KERNEL_ROW_PADDING = 16 << 10  # for each kernel row beside its values, at most

# Counts.
_VERTEX_COPIES = 6  # of a vertex's row: as read, centred, growing, for products in two precisions
_BLOCK_COPIES = 6  # of a block of rows on its way from the file to the kernel
_SPARSE_COPIES = 4
_MOST_THREADS = 64
_MANY_ROWS = 1 << 24
_LEAST_VERTICES = 2_000
_ENOUGH_VERTICES = 40_000  # that an exact model has at most

# Of a landmark model. Landmarks that may be asked for, at least.
_LEAST_LANDMARKS = 20
# Rows of the sample for each landmark, fewer where rows are wide; bytes.
_SAMPLE_ROWS, _LEAST_SAMPLE_ROWS, _MOST_SAMPLE_ROWS = 20, 4, 80
_SAMPLE_BYTES = 64 << 20  # of a sample of wide rows, or those of a matrix if these are more
_CHEAP_BYTES = 32 << 20  # of a sample that may have more rows
_SPAN_ROW_BYTES = 2  # for each row of the file: class; and of the sample
_PENALTY_BYTES = 8  # in addition where rows have weights, and for each row of the sample
_TARGET_BYTES = 22  # in addition: a target in units of the spread, its residual, more for its class
_SPAN_DECISION_BYTES = 14  # in addition for each classifier: sign, decision values of three points
_LANDMARK_BYTES = 5 << 10  # for each landmark: a block of products on its way to the Hessian
_LANDMARK_THREAD_BYTES = 2 << 10  # for each landmark and thread: columns of the Hessian
_SMALL_RUN_BYTES = 1 << 30  # of a run that is begun without a limit, whatever is available
_LANDMARK_THREADS = 2  # that more landmarks than the fewest leave room for
_STRIP_BYTES = 6 << 20  # for each thread: a strip of products, and one of kernel values
_MOST_LOADED = 8 << 20  # for each thread: a tile of landmarks, all columns counted

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

    def buffers(self, rows: int) -> int:
        """Bytes of read buffers where so many rows are looked at together."""
        block = max(self.block_bytes, self.row_bytes, rows * self.decoded_bytes // self.n_rows)
        return _BLOCK_COPIES * block + self.read_bytes


class OverLimitError(InputError):
    """A memory limit cannot be met; `needed` is the smallest that can, in bytes."""

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


_TERMS = {
    "program": "program",  # with rows that the caller holds
    "row_numbers": "numbers for each row of the file",  # and for each column
    "buffers": "read buffers",
    "scratch": "working memory of threads",
    "row_cache": "rows kept in memory",  # all or none
    "column_cache": "kernel columns kept",  # over all rows, for a full oracle
    "vertices": "active rows",
    "kernel_rows": "kernel values between active rows",
    "sample": "rows of the sample",  # this and the next ones are of a landmark model
    "landmarks": "landmarks",
    "matrices": "matrices between landmarks",
    "kernel_values": "kernel values with landmarks",
}
"""Parts of a `MemoryPlan`, and what people are told they are."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes for each part of a run, and the largest numbers that fit."""

    work: Workload  # the sizes that it follows from
    parts: dict[str, int]  # bytes by their name in `_TERMS`
    limit: int | None  # of the sum of the parts; None where none was given
    max_threads: int
    max_vertices: int = 0  # of an exact model
    max_block: int = 1 << 14  # rows that a step of an exact model looks at together, at most
    landmarks: int = 0  # of an exact model none
    spare: int = 0  # bytes beside the parts that a landmark model may keep rows in

    @property
    def row_cache(self) -> int:
        """Bytes for rows that are kept in memory."""
        return self.parts.get("row_cache", self.spare)

    def terms(self) -> dict[str, int]:
        """The parts as people know them, in bytes."""
        return {_TERMS[name]: size for name, size in self.parts.items()}

    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        """Parts, largest numbers of vertices and threads, and limit, in one line."""
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.terms().items())
        limit = "no limit given" if self.limit is None else f"limit {format_bytes(self.limit)}"
        most = f"at most {self.max_vertices} vertices, {self.max_threads} threads"
        return f"{parts}; {most}; {limit}"


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
    parts = _least(work)
    needed = sum(parts.values())
    if limit is not None and limit < needed:
        raise _over_limit(limit, parts, good=_good_bytes(work))
    parts["program"] += _for_compiler(limit, needed)
    needed = sum(parts.values())
    full, vertex_bytes, thread_bytes = int(work.full_oracle), _vertex_bytes(work), parts["scratch"]
    # A full oracle keeps a copy of the rows that is prepared for products, and of sparse ones one
    # column by column, in which frequent columns are dense.
    cache = work.decoded_bytes * (
        int(work.cacheable) + full * (_SPARSE_COPIES if work.sparse else 1)
    )
    rest = max(needed, _budget(limit, available)) - needed
    buffers, max_block = work.buffers(work.least_rows), work.block_rows
    more_buffers = work.buffers(work.block_rows) - buffers
    if more_buffers > rest:
        more_buffers = rest // 2
        block = (buffers + more_buffers - work.read_bytes) // _BLOCK_COPIES
        max_block = max(work.least_rows, block * work.n_rows // work.decoded_bytes)
    rest -= more_buffers
    # A full oracle reads all rows for each new vertex.
    wanted = work.full_oracle or work.decoded_bytes <= _CACHE_BYTES
    keeps_rows = wanted and cache <= _CACHE_SHARE * rest
    column_share = _FREE_COLUMN_SHARE if limit is None else _CACHE_SHARE
    more_columns = full * min(4 * work.n_rows**2, int(column_share * rest))
    max_threads = 1 + min(_MOST_THREADS - 1, int(_THREADS_SHARE * rest) // thread_bytes)
    rest -= keeps_rows * cache + more_columns + (max_threads - 1) * thread_bytes
    rest += parts["vertices"] + parts["kernel_rows"]
    least_vertices = parts["vertices"] // vertex_bytes
    max_vertices = min(work.n_rows, max(least_vertices, int(_VERTEX_SHARE * rest) // vertex_bytes))
    vertices = max_vertices * vertex_bytes
    all_kernel_rows = max_vertices * (4 * max_vertices + _KERNEL_ROW_PADDING)
    parts["buffers"] += more_buffers
    parts["scratch"] *= max_threads
    parts["row_cache"] = keeps_rows * cache
    parts["column_cache"] += more_columns
    parts["vertices"] = vertices
    parts["kernel_rows"] = min(rest - vertices, max(_LEAST_KERNEL_ROWS, all_kernel_rows))
    return MemoryPlan(work, parts, limit, max_threads, max_vertices, max_block)


def least_bytes(work: Workload) -> int:
    """The smallest limit that `plan_memory` takes."""
    return sum(_least(work).values())


def exact_bytes(work: Workload, n_vertices: int) -> int:
    """A limit that has room for an exact model with so many vertices."""
    more = max(0, min(work.n_rows, n_vertices) * _vertex_bytes(work) - _least(work)["vertices"])
    rest = int(more / _VERTEX_SHARE / (1 - _CACHE_SHARE - _THREADS_SHARE))
    return least_bytes(work) + rest + min(rest, _COMPILER_BYTES) + _ADVISED_BYTES


def _good_bytes(work: Workload) -> int:
    """A limit for the model that there is without one, or the least if that takes far more."""
    good = exact_bytes(work, _ENOUGH_VERTICES)
    return good if good <= least_bytes(work) + MUCH_BYTES else 0


def landmark_bytes(work: Workload, n_landmarks: int) -> int:
    """A limit that has room for so many landmarks."""
    terms = landmark_terms(work, n_landmarks, _LANDMARK_THREADS)
    return sum(terms.values()) + _COMPILER_BYTES + _ADVISED_BYTES


def _for_compiler(limit: int | None, needed: int) -> int:
    """Bytes that are kept for the compiler: half of what a limit leaves, or all that it takes."""
    return 0 if limit is None else min(_COMPILER_BYTES, (limit - needed) // 2)


def _budget(limit: int | None, available: int) -> int:
    """The limit, or the share of all memory that is taken without one."""
    return int(_DEFAULT_SHARE * available) if limit is None else limit


def _most_landmarks(work: Workload, budget: int, fewest: int, most: int, threads: int = 1) -> int:
    """How many landmarks, from `fewest` to `most`, there is room for beside so many threads."""

    def over(n_landmarks: int) -> bool:
        return sum(landmark_terms(work, n_landmarks, threads).values()) > budget

    return fewest + bisect.bisect_left(range(fewest + 1, most + 1), True, key=over)


def _least(work: Workload) -> dict[str, int]:
    """The fewest bytes of each part of a run, but of rows that are kept."""
    full, parted = int(work.full_oracle), int(work.n_classifiers > 1)
    # Of fewer rows a checkpoint does not change the plan, and with it the course.
    plain = not (full or parted or work.saved or work.weighted or work.targets)
    row_numbers = _ROW_BYTES + full * _FULL_ORACLE_BYTES + parted * _ORDER_BYTES
    if plain and work.n_rows > _MANY_ROWS:
        row_numbers = _FEW_ROW_BYTES - work.in_unit * _ONE_NORM_BYTES
    parts = _PARTS_BYTES + work.sparse * 8 * work.n_rows if work.cacheable else work.decoded_bytes
    return {
        "program": program_bytes(work.held_bytes) + work.held_bytes,
        "row_numbers": work.n_rows * row_numbers + work.n_features * _FEATURE_BYTES,
        "buffers": work.buffers(work.least_rows) + parted * parts,
        "scratch": _THREAD_BYTES + _sparse_thread_bytes(work),
        "row_cache": 0,
        "column_cache": 2 * 4 * full * work.n_rows,
        "vertices": min(work.n_rows, _LEAST_VERTICES) * _vertex_bytes(work),
        "kernel_rows": _LEAST_KERNEL_ROWS,
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


def _sparse_thread_bytes(work: Workload) -> int:
    """What a thread takes for sparse rows beyond what dense ones take."""
    return work.sparse * (_SPARSE_THREAD_BYTES + _THREAD_FEATURE_BYTES * work.n_features)


def landmark_terms(work: Workload, n_landmarks: int, threads: int = 1) -> dict[str, int]:
    """Bytes that a run with landmarks takes at most, part by part.

    Of the N x N matrices there are one of the landmarks, and one for each classifier: its Hessian
    in one triangle and the factor of the preconditioner in the other.
    """
    numbers = _SPAN_ROW_BYTES + work.n_classifiers * _SPAN_DECISION_BYTES
    n_sample = min(work.n_rows, sample_rows(n_landmarks, work.row_bytes))
    if n_sample > _SAMPLE_ROWS * n_landmarks:  # so many of them are held a second time
        n_sample += _SAMPLE_ROWS * n_landmarks
    row_numbers = numbers + work.weighted * _PENALTY_BYTES + work.targets * _TARGET_BYTES
    return {
        "program": program_bytes(work.held_bytes) + work.held_bytes,
        "row_numbers": work.n_rows * row_numbers + work.n_features * _FEATURE_BYTES,
        "buffers": work.buffers(0),
        "scratch": threads * _landmark_thread_bytes(work, n_landmarks),
        "sample": n_sample * (work.row_bytes + numbers + _PENALTY_BYTES),
        "landmarks": n_landmarks * (_VERTEX_COPIES * work.row_bytes + _LANDMARK_BYTES),
        "matrices": 8 * n_landmarks**2 * (1 + work.n_classifiers),
    }


def _landmark_thread_bytes(work: Workload, n_landmarks: int) -> int:
    loaded = min(_MOST_LOADED, 8 * work.n_features * n_landmarks)
    scratch = _THREAD_BYTES + _sparse_thread_bytes(work)
    return scratch + _STRIP_BYTES + loaded + _LANDMARK_THREAD_BYTES * n_landmarks


def plan_landmarks(
    work: Workload,
    limit: int | None,
    available: int,
    fewest: int,
    wanted: int | None = None,
    threads: int = 1,
    advised: int = 0,
) -> MemoryPlan:
    """Memory of a run with as many landmarks as fit, from `fewest` to `wanted`.

    How many they are does not depend on `threads`, of which as many start as fit beside them.
    Without a limit, half of what is available is not exceeded, except by the `fewest` alone where
    they take little: such a run is asked for. OverLimitError where there is no room for the fewest;
    it names a limit for those `advised`.
    """
    parts, budget, n_landmarks = landmark_terms(work, fewest), _budget(limit, available), fewest
    needed = sum(parts.values())
    if limit is None and wanted is None:
        budget = max(budget, min(needed, _SMALL_RUN_BYTES))
    if needed > budget:
        good = landmark_bytes(work, advised) if advised > fewest else 0
        raise _over_limit(limit, parts, _most_landmarks(work, budget, 0, fewest), good)
    compiler = _for_compiler(limit, needed)
    budget -= compiler
    if wanted is not None:
        n_landmarks = _most_landmarks(work, budget, fewest, wanted, _LANDMARK_THREADS)
    rest = budget - sum(landmark_terms(work, n_landmarks).values())
    threads = min(threads, 1 + rest // _landmark_thread_bytes(work, n_landmarks))
    parts = landmark_terms(work, n_landmarks, threads)
    rest = budget - sum(parts.values())
    parts["program"] += compiler
    spare = work.cacheable * min(_CACHE_BYTES, rest)
    kernel_values = 2 * work.n_rows * n_landmarks * work.in_unit  # in 16 bits
    parts["kernel_values"] = min(kernel_values, rest - spare)
    return MemoryPlan(work, parts, limit, threads, landmarks=n_landmarks, spare=spare)


def _over_limit(
    limit: int | None, parts: dict[str, int], landmarks: int = 0, good: int = 0
) -> OverLimitError:
    """The error for a limit below the sum of the parts, beside which so many `landmarks` fit."""
    part = max(parts, key=lambda name: parts[name])
    needed = sum(parts.values())
    more = " (ooc-fw convert writes the rows in small chunks)" if part == "buffers" else ""
    fewer = f"; --landmarks {landmarks} would fit" if landmarks >= _LEAST_LANDMARKS else ""
    given = "half of all memory" if limit is None else f"a memory limit of {format_bytes(limit)}"
    return OverLimitError(
        f"{given} cannot be met: the largest part, {_TERMS[part]}, takes "
        f"{format_bytes(parts[part])} alone{more}{fewer}; a limit that would do is "
        f"{-(-max(good, needed + _ADVISED_BYTES) >> 20)}MiB",
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
    return max(_LEAST_KERNEL_ROWS, int(_DEFAULT_SHARE * memory_total()) - program_bytes())


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


def rss_bytes() -> int:
    """Resident memory of this process; its peak where the system does not tell."""
    return _status_bytes("VmRSS")


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far, interpreter and libraries included."""
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    for line in read_text(Path("/proc/self/status")).splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    # Where /proc is not there; this may include what the parent process held at the fork.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
