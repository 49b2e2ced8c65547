"""How ``--memory`` is divided among the parts of a run, and how much memory there is.

The plan is a pure function of sizes: the same command on the same data has the same plan, whatever
else is in memory and however many threads there are, so that it takes the same course.
"""

from __future__ import annotations

import bisect
import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from ooc_fw.system.errors import InputError
from ooc_fw.system.groups import group_limits, read_text

PROGRAM_BYTES = 320 << 20
"""Bytes of interpreter, libraries and compiled code, with a margin.

A run on 300 rows peaks at 171 to 175 MiB, and at 283 to 292 MiB when it has to compile its
functions first.
"""

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
_FULL_ORACLE_BYTES = 32  # in addition for a full oracle: its gradient, and the one before
_FEATURE_BYTES = 64  # for each column: mean and sums
_VERTEX_BYTES = 256  # for each vertex beside its row: weight, gradient, label, slot, position
_LARGE_CHUNK = 8 << 20  # ooc-fw convert writes smaller ones
_KERNEL_ROW_PADDING = 16 << 10  # for each kernel row beside its values, at most

# Counts.
_VERTEX_COPIES = 6  # of a vertex's row: as read, centred, growing, for products in two precisions
_BLOCK_COPIES = 6  # of a block of rows on its way from the file to the kernel
_MOST_THREADS = 64
_LEAST_VERTICES = 500

# Of a landmark model. Rows of the sample for each landmark, fewer where rows are wide; bytes.
_SAMPLE_ROWS, _LEAST_SAMPLE_ROWS, _MOST_SAMPLE_ROWS = 20, 4, 80
_SAMPLE_BYTES = 64 << 20  # of a sample of wide rows, or those of a matrix if these are more
_CHEAP_BYTES = 32 << 20  # of a sample that may have more rows
_SPAN_ROW_BYTES = 8  # for each row of the file: class; and of the sample
_PENALTY_BYTES = 8  # in addition where rows have weights, and for each row of the sample
_SPAN_DECISION_BYTES = 14  # in addition for each classifier: sign, decision values of three points
_LANDMARK_BYTES = 5 << 10  # for each landmark: a block of products on its way to the Hessian
_LANDMARK_THREAD_BYTES = 2 << 10  # for each landmark and thread: columns of the Hessian
_STRIP_BYTES = 4 << 20  # for each thread: a strip of products
_MOST_LOADED = 8 << 20  # for each thread: landmarks that stay loaded, all columns counted

# Of a limit on addresses (``ulimit -v``).
_ADDRESS_SPACE = 2 << 30  # bytes that libraries and threads reserve, most of them never used
_RESERVED = 8  # addresses reserved for kernel rows, as a multiple of what they take

_SIZE_DIGITS = 18  # of a size in bytes; more do not fit into 64 bits


@dataclass(frozen=True)
class Workload:
    """The sizes that memory depends on."""

    n_rows: int
    decoded_bytes: int  # of all rows in memory
    block_bytes: int  # of the largest block of rows that is read at once
    n_features: int = 1
    read_bytes: int = 0  # that reading takes besides the rows: `RowSource.read_bytes`
    chunk_bytes: int = 0  # of the rows that the storage reads together
    held_bytes: int = 0  # of rows that the caller holds in memory anyway
    sparse: bool = False
    cacheable: bool = True  # whether rows come from a file, so that keeping them is an option
    full_oracle: bool = False  # whether the gradient of every row is kept
    weighted: bool = False  # whether rows have weights of their own


_TERMS = {
    "program": "program",  # with rows that the caller holds
    "row_numbers": "numbers for each row of the file",  # and for each column
    "buffers": "read buffers",
    "scratch": "working memory of threads",
    "row_cache": "rows kept in memory",  # all or none
    "column_cache": "kernel columns kept",  # over all rows, for a full oracle
    "vertices": "active rows",
    "kernel_rows": "kernel values between active rows",
}
"""Parts of a `MemoryPlan`, and what people are told they are."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes for each part of a run, and the largest numbers of vertices and threads."""

    program: int
    row_numbers: int
    buffers: int
    scratch: int
    row_cache: int
    column_cache: int
    vertices: int
    kernel_rows: int
    max_vertices: int
    max_threads: int
    limit: int | None  # of the sum of the parts; None where none was given

    def terms(self) -> dict[str, int]:
        """The parts by name, in bytes."""
        return {text: getattr(self, name) for name, text in _TERMS.items()}

    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.terms().values())

    def __str__(self) -> str:
        """Parts, largest numbers of vertices and threads, and limit, in one line."""
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.terms().items())
        limit = "no limit given" if self.limit is None else f"limit {format_bytes(self.limit)}"
        most = f"at most {self.max_vertices} vertices, {self.max_threads} threads"
        return f"{parts}; {most}; {limit}"


def plan_memory(work: Workload, limit: int | None, available: int) -> MemoryPlan:
    """Divide memory among the parts of a run, which add up to no more than the limit.

    Parameters
    ----------
    work : Workload
    limit : int or None
        Largest peak of resident memory in bytes. None stands for half of what is available, or for
        the least that the run needs if that is more.
    available : int
        All memory there is, in bytes (`memory_total`); unused if there is a limit.

    Raises
    ------
    InputError
        When the limit cannot be met; names the largest part and the smallest sufficient limit.
    """
    row_bytes = -(-work.decoded_bytes // max(1, work.n_rows))
    vertex_bytes = _VERTEX_COPIES * row_bytes + _VERTEX_BYTES
    full = int(work.full_oracle)
    row_numbers = work.n_rows * (_ROW_BYTES + full * _FULL_ORACLE_BYTES)
    fixed = {
        "program": PROGRAM_BYTES + work.held_bytes,
        "row_numbers": row_numbers + work.n_features * _FEATURE_BYTES,
        "buffers": _BLOCK_COPIES * work.block_bytes + work.read_bytes,
    }
    thread_bytes = _THREAD_BYTES + _sparse_thread_bytes(work)
    # A full oracle keeps a copy of the rows that is prepared for products.
    cache = work.decoded_bytes * (int(work.cacheable) + full)
    columns = 2 * 4 * full * work.n_rows
    least = {
        **fixed,
        "scratch": thread_bytes,
        "column_cache": columns,
        "vertices": min(work.n_rows, _LEAST_VERTICES) * vertex_bytes,
        "kernel_rows": _LEAST_KERNEL_ROWS,
    }
    needed = sum(least.values())
    if limit is not None and limit < needed:
        raise InputError(_too_small(limit, least, work.chunk_bytes))
    rest = (max(needed, int(_DEFAULT_SHARE * available)) if limit is None else limit) - needed
    # A full oracle reads all rows for each new vertex.
    wanted = work.full_oracle or work.decoded_bytes <= _CACHE_BYTES
    keeps_rows = wanted and cache <= _CACHE_SHARE * rest
    column_share = _FREE_COLUMN_SHARE if limit is None else _CACHE_SHARE
    more_columns = full * min(4 * work.n_rows**2, int(column_share * rest))
    max_threads = 1 + min(_MOST_THREADS - 1, int(_THREADS_SHARE * rest) // thread_bytes)
    rest -= keeps_rows * cache + more_columns + (max_threads - 1) * thread_bytes
    rest += least["vertices"] + least["kernel_rows"]
    max_vertices = min(work.n_rows, max(_LEAST_VERTICES, int(_VERTEX_SHARE * rest) // vertex_bytes))
    vertices = max_vertices * vertex_bytes
    all_kernel_rows = max_vertices * (4 * max_vertices + _KERNEL_ROW_PADDING)
    return MemoryPlan(
        **fixed,
        scratch=max_threads * thread_bytes,
        row_cache=keeps_rows * cache,
        column_cache=columns + more_columns,
        vertices=vertices,
        kernel_rows=min(rest - vertices, max(_LEAST_KERNEL_ROWS, all_kernel_rows)),
        max_vertices=max_vertices,
        max_threads=max_threads,
        limit=limit,
    )


_SPAN_TERMS = {
    "program": "program",
    "row_numbers": "numbers for each row of the file",
    "buffers": "read buffers",
    "scratch": "working memory of threads",
    "sample": "rows of the sample",
    "landmarks": "landmarks",
    "matrices": "matrices between landmarks",
}
"""Parts of the memory of a landmark model, and what people are told they are."""


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


def landmark_terms(
    work: Workload, n_classifiers: int, n_landmarks: int, threads: int = 1
) -> dict[str, int]:
    """Bytes that a run with landmarks takes at most, part by part.

    Of the N x N matrices there are one of the landmarks, and one for each classifier: its Hessian
    in one triangle and the factor of the preconditioner in the other.
    """
    row_bytes = -(-work.decoded_bytes // max(1, work.n_rows))
    numbers = _SPAN_ROW_BYTES + n_classifiers * _SPAN_DECISION_BYTES
    loaded = min(_MOST_LOADED, 8 * work.n_features * n_landmarks)
    n_sample = min(work.n_rows, sample_rows(n_landmarks, row_bytes))
    if n_sample > _SAMPLE_ROWS * n_landmarks:  # so many of them are held a second time
        n_sample += _SAMPLE_ROWS * n_landmarks
    thread_bytes = _THREAD_BYTES + _sparse_thread_bytes(work)
    thread_bytes += _STRIP_BYTES + loaded + _LANDMARK_THREAD_BYTES * n_landmarks
    sizes = {
        "program": PROGRAM_BYTES + work.held_bytes,
        "row_numbers": work.n_rows * (numbers + work.weighted * _PENALTY_BYTES)
        + work.n_features * _FEATURE_BYTES,
        "buffers": _BLOCK_COPIES * work.block_bytes + work.read_bytes,
        "scratch": threads * thread_bytes,
        "sample": n_sample * (row_bytes + numbers + _PENALTY_BYTES),
        "landmarks": n_landmarks * (_VERTEX_COPIES * row_bytes + _LANDMARK_BYTES),
        "matrices": 8 * n_landmarks**2 * (1 + n_classifiers),
    }
    return {text: sizes[name] for name, text in _SPAN_TERMS.items()}


def landmarks_that_fit(
    work: Workload, n_classifiers: int, limit: int | None, available: int, threads: int = 1
) -> int:
    """Largest number of landmarks whose `landmark_terms` add up to no more than the limit.

    `solve_landmarks` takes no more than these. The limit is as for `plan_memory`: None stands for
    half of what is available. 0 where not even one landmark fits.
    """
    budget = int(_DEFAULT_SHARE * available) if limit is None else limit

    def fits(n_landmarks: int) -> bool:
        return sum(landmark_terms(work, n_classifiers, n_landmarks, threads).values()) <= budget

    return bisect.bisect_left(range(1, work.n_rows + 1), True, key=lambda n: not fits(n))


def _too_small(limit: int, least: dict[str, int], chunk_bytes: int) -> str:
    largest = max(least, key=lambda name: least[name])
    needed = -(-sum(least.values()) // (1 << 20))
    chunks = ""
    if largest == "buffers" and chunk_bytes > _LARGE_CHUNK:
        chunks = (
            f" (the rows are stored in chunks of {format_bytes(chunk_bytes)}; ooc-fw convert "
            f"writes smaller ones)"
        )
    return (
        f"a memory limit of {format_bytes(limit)} cannot be met: the largest part, "
        f"{_TERMS[largest]}, takes {format_bytes(least[largest])} alone{chunks}; the smallest "
        f"limit that would do is {needed}MiB"
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
    return max(_LEAST_KERNEL_ROWS, int(_DEFAULT_SHARE * memory_total()) - PROGRAM_BYTES)


def memory_total(root: str = "/") -> int:
    """Bytes of memory that this process may ever use.

    The least of the memory of the machine, the limits of control groups and what ``ulimit -v``
    allows. What other processes and the page cache take at the moment does not count. `root` is
    the folder in which ``proc`` and ``sys`` are looked up.
    """
    files = {"": ["memory.max"], "memory": ["memory.limit_in_bytes"]}
    sizes = [limit for (limit,) in group_limits(files, 1, Path(root))]
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
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
