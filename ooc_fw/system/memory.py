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
import resource
from dataclasses import dataclass
from pathlib import Path

from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import group_limits, read_text

MARGIN_BYTES = 16 << 20
"""By which a limit that is named to users exceeds what is needed at the moment."""

_LOADED_BYTES = 72 << 20  # of libraries and compiled code that a run loads after its plan
_NEAR_BYTES = 4 << 20  # below a limit at which caches give memory back
_CACHE_BYTES = 256 << 20  # a file up to this size is kept in memory, for a full oracle any
_LEAST_KERNEL_BYTES = 4 << 20  # of kernel values, the least that an exact run can work with
_SMALL_RUN_BYTES = 1 << 30  # of a run that is begun without a limit, whatever is available
_LEAST_VERTICES = 2_000  # that an exact run has room for
_MOST_THREADS = 64
_COPIES = 6  # of the rows of a block, or of vertices: as read, centred, for products
_VERTEX_BYTES = 256  # for each vertex or landmark beside its row: weight, gradient, label, place
_THREAD_BYTES = 6 << 20  # working memory of a thread: tiles of products
_LANDMARK_BYTES = 5 << 10  # for each landmark in addition: products on their way to the Hessian
_SAMPLE_BYTES = 64 << 20  # of a pool of wide rows

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
    full_oracle: bool = False  # whether the gradient of every row is known
    weighted: bool = False  # whether rows have weights of their own, or targets of a regression
    saved: bool = False  # whether checkpoints copy vertices: in a model, its image and its bytes
    n_classifiers: int = 1  # of a landmark model: one of each class, but one of two
    in_unit: bool = False  # whether kernel values lie in [0, 1], so that 16 bits can hold them

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory, rounded up."""
        return -(-self.decoded_bytes // max(1, self.n_rows))

    @property
    def vertex_bytes(self) -> int:
        """Bytes of a vertex or a landmark, in all copies."""
        return (_COPIES + 3 * self.saved) * self.row_bytes + _VERTEX_BYTES

    @property
    def thread_bytes(self) -> int:
        """Bytes that a thread works with."""
        return _THREAD_BYTES + self.sparse * (_THREAD_BYTES // 2 + 4 * self.n_features)

    def parts(self, each: int, rows: int) -> dict[str, int]:
        """Bytes of any run: `each` for a row of the file, `rows` that are looked at together."""
        block = max(self.block_bytes, self.row_bytes, rows * self.row_bytes)
        return {
            "program": program_bytes(self.held_bytes) + self.held_bytes,
            "numbers for each row of the file": self.n_rows * each + self.n_features * 64,
            "read buffers": _COPIES * block + self.read_bytes,
        }


class OverLimitError(InputError):
    """A memory limit cannot be met; `needed` is the smallest that can, in bytes."""

    def __init__(self, limit: int | None, parts: dict[str, int]) -> None:
        self.needed = sum(parts.values())
        largest = max(parts, key=lambda name: parts[name])
        more = " (ooc-fw convert writes the rows in small chunks)" * (largest == "read buffers")
        given = "half of all memory" if limit is None else f"a limit of {format_bytes(limit)}"
        super().__init__(
            f"{given} cannot be met: the largest part, {largest}, takes "
            f"{format_bytes(parts[largest])} alone{more}; a limit that would do is "
            f"{-(-(self.needed + MARGIN_BYTES) >> 20)}MiB"
        )


@dataclass(frozen=True)
class MemoryPlan:
    """What fits into memory: caches in bytes, and the largest numbers."""

    work: Workload  # the sizes that it follows from
    parts: dict[str, int]  # bytes of what such a run must hold, by what people are told they are
    limit: int | None  # of the process; None if none was given
    max_threads: int
    max_vertices: int = 0  # of an exact model
    max_block: int = 1 << 14  # rows that a step of an exact model looks at together, at most
    landmarks: int = 0  # of an exact model none
    kernel_values: int = 0  # between active rows, or with landmarks
    row_cache: int = 0  # of rows kept in memory

    def terms(self) -> dict[str, int]:
        """All bytes, as people know them."""
        return self.parts | {
            "kernel values": self.kernel_values,
            "rows kept in memory": self.row_cache,
        }

    def total(self) -> int:
        """Bytes in all."""
        return sum(self.terms().values())


# -- exact models --------------------------------------------------------------------------------


def _exact_parts(
    work: Workload, rows: int, threads: int = 1, vertices: int = _LEAST_VERTICES
) -> dict[str, int]:
    """Bytes that an exact run holds beside its caches."""
    each = 20 - 4 * work.in_unit  # labels, bounds, norms
    if work.weighted or work.full_oracle or work.n_classifiers > 1:
        each = 72
    parts = work.parts(each, rows)
    if work.n_classifiers > 1:  # rows are set apart by class, in memory or on disk
        apart = (32 << 20) + work.sparse * 8 * work.n_rows
        parts["read buffers"] += apart if work.cacheable else work.decoded_bytes
    parts["working memory of threads"] = threads * work.thread_bytes
    parts["active rows"] = min(work.n_rows, vertices) * work.vertex_bytes
    return parts


def least_bytes(work: Workload) -> int:
    """The smallest limit that `plan_memory` takes."""
    return sum(_exact_parts(work, work.least_rows).values()) + _LEAST_KERNEL_BYTES


def exact_bytes(work: Workload, n_vertices: int) -> int:
    """A limit that has room for an exact model with so many vertices."""
    more = max(0, min(work.n_rows, n_vertices) - _LEAST_VERTICES) * work.vertex_bytes
    return least_bytes(work) + 4 * more + MARGIN_BYTES


def plan_memory(work: Workload, limit: int | None, available: int) -> MemoryPlan:
    """Divide memory among the parts of an exact run, which add up to no more than the limit.

    Without a `limit` on the peak of resident memory it is half of what is `available` in all
    (`memory_total`), or the least that the run needs if that is more. OverLimitError if the limit
    cannot be met. Of what the least run leaves, vertices, blocks of rows and rows kept in memory
    may have a quarter each, threads an eighth; kernel values take the rest.
    """
    needed = least_bytes(work)
    if limit is not None and limit < needed:
        least = _exact_parts(work, work.least_rows) | {"kernel values": _LEAST_KERNEL_BYTES}
        raise OverLimitError(limit, least)
    budget = max(needed, available // 2) if limit is None else limit
    quarter = (budget - needed) // 4
    more_rows = quarter // (_COPIES * max(1, work.row_bytes))
    block_rows = min(work.block_rows, work.least_rows + more_rows)
    threads = min(_MOST_THREADS, 1 + quarter // (2 * work.thread_bytes))
    vertices = min(work.n_rows, _LEAST_VERTICES + quarter // work.vertex_bytes)
    parts = _exact_parts(work, block_rows, threads, vertices)
    row_cache = work.decoded_bytes if work.cacheable else 0
    if row_cache > min(quarter, _CACHE_BYTES):
        row_cache = 0
    left = budget - sum(parts.values()) - row_cache
    return MemoryPlan(
        work,
        parts,
        limit,
        threads,
        vertices,
        block_rows,
        kernel_values=min(left, 4 * vertices * (vertices + 4096) + _LEAST_KERNEL_BYTES),
        row_cache=row_cache,
    )


# -- landmark models -----------------------------------------------------------------------------


def sample_rows(n_landmarks: int, row_bytes: float) -> int:
    """Rows that a run with landmarks samples, if the data have as many: 4 to 80 for each."""
    affordable = int(_SAMPLE_BYTES / max(1.0, row_bytes))
    return min(max(4 * n_landmarks, affordable), 80 * n_landmarks)


def landmark_parts(work: Workload, n_landmarks: int, threads: int = 1) -> dict[str, int]:
    """Bytes that a run with landmarks takes at most.

    Of the N x N matrices there are one of the landmarks, and one for each classifier: its Hessian
    in one triangle and the factor of the preconditioner in the other.
    """
    each = 2 + 14 * work.n_classifiers  # class; sign and decision values of three points
    parts = work.parts(each + 30 * work.weighted, 0)
    n_sample = min(work.n_rows, sample_rows(n_landmarks, work.row_bytes) + 20 * n_landmarks)
    matrices = 8 * n_landmarks**2 * (1 + work.n_classifiers)
    rows = n_landmarks * (work.vertex_bytes + _LANDMARK_BYTES)
    parts["working memory of threads"] = threads * _landmark_thread(work, n_landmarks)
    parts["rows of the sample"] = n_sample * (work.row_bytes + each + 8)
    parts["matrices between landmarks"] = matrices + rows
    return parts


def _landmark_thread(work: Workload, n_landmarks: int) -> int:
    tile = min(8 << 20, 8 * work.n_features * n_landmarks)  # of landmarks
    return work.thread_bytes + _THREAD_BYTES + tile + 2048 * n_landmarks


def landmark_bytes(work: Workload, n_landmarks: int) -> int:
    """A limit that has room for so many landmarks."""
    return sum(landmark_parts(work, n_landmarks, 2).values()) + MARGIN_BYTES


def plan_landmarks(
    work: Workload, limit: int | None, available: int, fewest: int, most: int, threads: int = 1
) -> MemoryPlan:
    """Memory of a run with as many landmarks as fit, from `fewest` to `most`.

    How many they are does not depend on `threads`, of which as many start as fit beside them: more
    landmarks than the fewest leave room for two. Without a limit, half of what is available is not
    exceeded, except by the `fewest` if they take little. OverLimitError if there is no room for the
    fewest.
    """
    least = landmark_parts(work, fewest)
    budget = limit
    if budget is None:
        budget = max(available // 2, min(sum(least.values()), _SMALL_RUN_BYTES))
    if sum(least.values()) > budget:
        raise OverLimitError(limit, least)

    def over(n_landmarks: int) -> bool:
        return sum(landmark_parts(work, n_landmarks, 2).values()) > budget

    n_landmarks = fewest + bisect.bisect_left(range(fewest + 1, most + 1), True, key=over)
    rest = budget - sum(landmark_parts(work, n_landmarks).values())
    threads = min(threads, 1 + rest // _landmark_thread(work, n_landmarks))
    parts = landmark_parts(work, n_landmarks, threads)
    rest = budget - sum(parts.values())
    row_cache = work.cacheable * min(_CACHE_BYTES, rest)
    kernel_values = 2 * work.n_rows * n_landmarks * work.in_unit  # in 16 bits
    return MemoryPlan(
        work,
        parts,
        limit,
        threads,
        landmarks=n_landmarks,
        kernel_values=min(kernel_values, rest - row_cache),
        row_cache=row_cache,
    )


# -- how much there is ---------------------------------------------------------------------------


def parse_bytes(text: str) -> int:
    """Bytes of a size: 1GB is 10^9, 1GiB and 1G are 2^30; likewise k, M and T, in any case."""
    match = re.fullmatch(r"\s*(\d{1,18}|\d{1,9}\.\d{1,9})\s*([kmgt]?)(i?b?)\s*", text.lower())
    if match is None or not text.isascii():
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


def program_bytes(held: int = 0) -> int:
    """Bytes of interpreter, libraries and code, without the rows that are `held` anyway.

    They are what is resident at the first call, and a margin: all plans of a process agree.
    """
    global _program
    if _program is None:
        step = 16 << 20  # so that the same command has the same plan
        _program = -(-max(0, rss_bytes() - held) // step) * step + _LOADED_BYTES
    return _program


def kernel_rows_budget() -> int:
    """Bytes for the kernel rows of a stream, which has no limit: half of the memory there is."""
    return max(_LEAST_KERNEL_BYTES, memory_total() // 2 - program_bytes())


def memory_total(root: str = "/") -> int:
    """Bytes of memory that this process may ever use.

    The least of the memory of the machine, the limits of control groups and what ``ulimit -v`` and
    ``-d`` allow. What others take at the moment does not count. `root` holds ``proc`` and ``sys``.
    """
    files = (["memory.max"], ["memory.limit_in_bytes"])
    sizes = [limit for (limit,) in group_limits(files, 1, Path(root))]
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        addresses, _ = resource.getrlimit(limit)
        if addresses != resource.RLIM_INFINITY:  # kernel rows and libraries reserve far more
            sizes.append(max(0, addresses - (2 << 30)) // 8)
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *sizes])


def bytes_above(limit: int | None) -> int:
    """Bytes by which this process is nearly above a limit; 0 or less if it is not."""
    return 0 if limit is None else rss_bytes() - (limit - _NEAR_BYTES)


def rss_bytes() -> int:
    """Resident memory of this process; its peak if the system does not tell."""
    pages = read_text(Path("/proc/self/statm")).split()
    return int(pages[1]) * mmap.PAGESIZE if pages else peak_rss_bytes()


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far, interpreter and libraries included."""
    for line in read_text(Path("/proc/self/status")).splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    # Without /proc; this may include what the parent process held at the fork.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
