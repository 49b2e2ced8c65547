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

_MARGIN_BYTES = 16 << 20  # by which a limit that is named exceeds what is needed at the moment
_LOADED_BYTES = 72 << 20  # of libraries and compiled code that a run loads after its plan
_NEAR_BYTES = 24 << 20  # below a limit at which caches give memory back, as the compiler may come
_CACHE_BYTES = 256 << 20  # of a file that is kept in memory, at most
_LEAST_KERNEL_BYTES = 4 << 20  # of kernel values, that an exact run can work with
_SMALL_RUN_BYTES = 1 << 30  # of a run that is begun without a limit, whatever is available
_LEAST_VERTICES = 2_000  # that an exact run has room for
_COPIES = 6  # of the rows of a block, or of vertices: as read, centred, for products
_THREAD_BYTES = 6 << 20  # working memory of a thread: tiles of products
_SAMPLE_BYTES = 64 << 20  # of a pool of wide rows that landmarks are chosen from

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
        """Bytes of a vertex or a landmark: its row in all copies, and a few numbers."""
        return (_COPIES + 3 * self.saved) * self.row_bytes + 256

    def thread_bytes(self, landmarks: int = 0) -> int:
        """Bytes that a thread works with, if there are so many landmarks."""
        own = _THREAD_BYTES + self.sparse * (_THREAD_BYTES // 2 + 4 * self.n_features)
        if landmarks > 0:  # strips of values, a tile of landmarks, columns of the Hessian
            own += _THREAD_BYTES + min(8 << 20, 8 * self.n_features * landmarks) + 2048 * landmarks
        return own

    def parts(
        self, vertices: int = 0, landmarks: int = 0, rows: int = 0, threads: int = 1
    ) -> dict[str, int]:
        """Bytes of a run beside its caches, by what people are told they are.

        It has so many vertices, or landmarks, and `rows` that are looked at together. Of the N x N
        matrices there are one of the landmarks, and one for each classifier: its Hessian in one
        triangle and the factor of the preconditioner in the other.
        """
        each = 20 - 4 * self.in_unit  # labels, bounds, norms
        if self.weighted or self.full_oracle or self.n_classifiers > 1:
            each = 72
        if landmarks > 0:  # class; sign and decision values of three points
            each = 2 + 14 * self.n_classifiers + 30 * self.weighted
        block = self.row_bytes * max(1, rows)
        parts = {
            "program": program_bytes(self.held_bytes) + self.held_bytes,
            "numbers for each row of the file": self.n_rows * each + self.n_features * 64,
            "read buffers": _COPIES * max(self.block_bytes, block) + self.read_bytes,
            "working memory of threads": threads * self.thread_bytes(landmarks),
        }
        if landmarks > 0:
            n_sample = sample_rows(landmarks, self.row_bytes) + 20 * landmarks
            parts["rows of the sample"] = min(self.n_rows, n_sample) * (self.row_bytes + each + 8)
            matrices = 8 * landmarks**2 * (1 + self.n_classifiers)
            products = 5 << 10  # bytes on their way to the Hessian
            rows_bytes = landmarks * (self.vertex_bytes + products)
            parts["matrices between landmarks"] = matrices + rows_bytes
            return parts
        parts["active rows"] = min(self.n_rows, vertices) * self.vertex_bytes
        if self.n_classifiers > 1:  # rows are set apart by class, in memory or on disk
            apart = (32 << 20) + self.sparse * 8 * self.n_rows
            parts["read buffers"] += apart if self.cacheable else self.decoded_bytes
        return parts


def sample_rows(n_landmarks: int, row_bytes: float) -> int:
    """Rows that a run with landmarks samples, if the data have as many: 4 to 80 for each."""
    affordable = int(_SAMPLE_BYTES / max(1.0, row_bytes))
    return min(max(4 * n_landmarks, affordable), 80 * n_landmarks)


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
            f"{-(-(self.needed + _MARGIN_BYTES) >> 20)}MiB"
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
        caches = {"kernel values": self.kernel_values, "rows kept in memory": self.row_cache}
        return self.parts | caches


def _least(work: Workload) -> dict[str, int]:
    parts = work.parts(vertices=_LEAST_VERTICES, rows=work.least_rows)
    return parts | {"kernel values": _LEAST_KERNEL_BYTES}


def plan_memory(work: Workload, limit: int | None, available: int) -> MemoryPlan:
    """Divide memory among the parts of an exact run, which add up to no more than the limit.

    Without a `limit` on the peak of resident memory it is half of what is `available` in all
    (`memory_total`), or the least that the run needs if that is more. OverLimitError if the limit
    cannot be met. Of what the least run leaves, vertices, blocks of rows and rows kept in memory
    may have a quarter each, threads an eighth; kernel values take the rest.
    """
    needed = least_bytes(work)
    if limit is not None and limit < needed:
        raise OverLimitError(limit, _least(work))
    budget = max(needed, available // 2) if limit is None else limit
    quarter = (budget - needed) // 4
    more_rows = quarter // (_COPIES * max(1, work.row_bytes))
    rows = min(work.block_rows, work.least_rows + more_rows)
    threads = min(64, 1 + quarter // (2 * work.thread_bytes()))
    vertices = min(work.n_rows, _LEAST_VERTICES + quarter // work.vertex_bytes)
    parts = work.parts(vertices=vertices, rows=rows, threads=threads)
    row_cache = work.decoded_bytes * work.cacheable
    if row_cache > min(quarter, _CACHE_BYTES):
        row_cache = 0
    kernel_values = min(
        budget - sum(parts.values()) - row_cache,
        4 * vertices * (vertices + 4096) + _LEAST_KERNEL_BYTES,
    )
    return MemoryPlan(
        work,
        parts,
        limit,
        threads,
        vertices,
        rows,
        kernel_values=kernel_values,
        row_cache=row_cache,
    )


def least_bytes(work: Workload) -> int:
    """The smallest limit that `plan_memory` takes."""
    return sum(_least(work).values())


def exact_bytes(work: Workload, n_vertices: int) -> int:
    """A limit that has room for an exact model with so many vertices."""
    more = max(0, min(work.n_rows, n_vertices) - _LEAST_VERTICES) * work.vertex_bytes
    return least_bytes(work) + 4 * more + _MARGIN_BYTES


def plan_landmarks(
    work: Workload, limit: int | None, available: int, fewest: int, most: int, threads: int = 1
) -> MemoryPlan:
    """Memory of a run with as many landmarks as fit, from `fewest` to `most`.

    How many they are does not depend on `threads`, of which as many start as fit beside them: more
    landmarks than the fewest leave room for two. Without a limit, half of what is available is not
    exceeded, except by the `fewest` if they take little. OverLimitError if there is no room for the
    fewest.
    """
    least = work.parts(landmarks=fewest)
    needed = sum(least.values())
    budget = max(available // 2, min(needed, _SMALL_RUN_BYTES)) if limit is None else limit
    if needed > budget:
        raise OverLimitError(limit, least)

    def over(n_landmarks: int) -> bool:
        return sum(work.parts(landmarks=n_landmarks, threads=2).values()) > budget

    n_landmarks = fewest + bisect.bisect_left(range(fewest + 1, most + 1), True, key=over)
    rest = budget - sum(work.parts(landmarks=n_landmarks).values())
    threads = min(threads, 1 + rest // work.thread_bytes(n_landmarks))
    parts = work.parts(landmarks=n_landmarks, threads=threads)
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
