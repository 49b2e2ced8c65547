"""Byte budgets: the only place that says how much memory a part of a run may take.

Owns the plan that divides a limit on the process's peak resident memory among the parts of a run,
and what is known of the memory there is. The plan is a pure function of sizes: the same command on
the same data has the same plan, whatever else is in memory and however many threads there are, so
that it takes the same course.
"""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from ooc_fw.system.errors import InputError

PROGRAM_BYTES = 320 << 20
"""What the interpreter, libraries and compiled code take.

A run on 300 rows peaks at 171 to 175 MiB, dense or sparse, with 1 or 8 threads, and at 283 to 292
MiB where it has to compile its functions first. The rest is margin.
"""

_DEFAULT_SHARE = 0.5  # of all memory there is, for a run without a limit
_CACHE_BYTES = 256 << 20  # rows, or kernel columns, of a small file that are kept where they fit
_CACHE_SHARE = 0.25  # of what a limit leaves, for each of these caches
_VERTEX_SHARE = 0.4  # of what it leaves then, at most, for the vertices beside their kernel rows
_THREADS_SHARE = 0.125  # of what it leaves, for the scratch of threads
_ROW_NUMBERS = 64  # bytes a row of the file: label, class, margin, bounds of the screen, a sweep's
_FULL_NUMBERS = 32  # bytes a row for the gradient of a full oracle, before and now
_FEATURE_NUMBERS = 64  # bytes a column: its mean and sums, made one block of rows at a time
_VERTEX_NUMBERS = 256  # bytes a vertex: weight, gradient, label, slot, place and their kind
_VERTEX_COPIES = 6  # of a vertex's row: as read, centred, growing, for products in two precisions
_BLOCK_COPIES = 6  # of a block of rows under way from the file to the kernel
_THREAD_BYTES = 6 << 20  # tiles of products, scratch for sparse vertices
_THREAD_FEATURE_BYTES = 4  # for each column of sparse rows: its place in that scratch
_MOST_THREADS = 64  # that a plan has scratch for
_LEAST_KERNEL_ROWS = 4 << 20
_LEAST_VERTICES = 500
_SIZE_DIGITS = 18  # of a size in bytes; more would not fit a float or a machine
_ROW_PADDING = 16 << 10  # bytes that a kernel row may take beside its values
_ADDRESS_SPACE = 2 << 30  # reserved by libraries and threads, most of it never used
_RESERVED = 8  # times what kernel rows take that is reserved for them
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True)
class Workload:
    """The sizes that memory depends on.

    Parameters
    ----------
    n_rows : int
        Rows of the source.
    decoded_bytes : int
        Bytes of all rows as held in RAM.
    block_bytes : int
        Bytes of the largest block of rows that is read at once.
    n_features : int
        Columns of the source.
    read_bytes : int
        Bytes that reading takes beside the rows: `RowSource.read_bytes`.
    held_bytes : int
        Bytes of rows that the caller holds in RAM, whatever the run does.
    sparse : bool
        Whether rows are stored as sparse ones.
    cacheable : bool
        Whether rows come from a file, so that keeping them in RAM is an option.
    full_oracle : bool
        Whether the gradient of every row is kept.
    """

    n_rows: int
    decoded_bytes: int
    block_bytes: int
    n_features: int = 1
    read_bytes: int = 0
    held_bytes: int = 0
    sparse: bool = False
    cacheable: bool = True
    full_oracle: bool = False


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes for each part of a run.

    Parameters
    ----------
    program : int
        Interpreter, libraries and compiled code, and rows that the caller holds.
    row_numbers : int
        Numbers kept for each row and each column of the source.
    buffers : int
        Blocks of rows being read.
    scratch : int
        Tiles of all threads.
    row_cache : int
        Rows of the source kept in RAM; all or none.
    column_cache : int
        Kernel columns over all rows, for a full oracle.
    vertices : int
        Rows and numbers of the active set.
    kernel_rows : int
        Kernel values between vertices.
    max_vertices : int
        Largest number of vertices.
    max_threads : int
        Threads that there is scratch for.
    limit : int or None
        What the parts may add up to; None where no limit was given.
    """

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
    limit: int | None

    def terms(self) -> dict[str, int]:
        """The parts by name, in bytes."""
        return {
            "program": self.program,
            "numbers for each row of the file": self.row_numbers,
            "read buffers": self.buffers,
            "tiles of threads": self.scratch,
            "rows kept in memory": self.row_cache,
            "kernel columns kept": self.column_cache,
            "active rows": self.vertices,
            "kernel values between active rows": self.kernel_rows,
        }

    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.terms().values())

    def __str__(self) -> str:
        """All parts, at most so many vertices and threads, and the limit, in one line."""
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.terms().items())
        limit = "no limit given" if self.limit is None else f"limit {format_bytes(self.limit)}"
        most = f"at most {self.max_vertices} vertices, {self.max_threads} threads"
        return f"{parts}; {most}; {limit}"


def plan_memory(work: Workload, limit: int | None, available: int) -> MemoryPlan:
    """Divide memory among the parts of a run.

    Parameters
    ----------
    work : Workload
        Sizes of the run.
    limit : int or None
        Largest peak of resident memory in bytes. None: half of what is available, or the least that
        a run can do with where that is more.
    available : int
        All memory there is, in bytes: `memory_total`. Of no effect where a limit is given.

    Returns
    -------
    MemoryPlan
        Its terms add up to no more than the limit.

    Raises
    ------
    InputError
        When the limit cannot be met; names the largest term and the smallest limit that would do.
    """
    row_bytes = -(-work.decoded_bytes // max(1, work.n_rows))
    vertex_bytes = _VERTEX_COPIES * row_bytes + _VERTEX_NUMBERS
    full = work.full_oracle
    fixed = {
        "program": PROGRAM_BYTES + work.held_bytes,
        "row_numbers": work.n_rows * (_ROW_NUMBERS + (_FULL_NUMBERS if full else 0))
        + work.n_features * _FEATURE_NUMBERS,
        "buffers": _BLOCK_COPIES * work.block_bytes + work.read_bytes,
    }
    thread_bytes = _THREAD_BYTES + work.sparse * _THREAD_FEATURE_BYTES * work.n_features
    # A full oracle keeps a copy of its own, made ready for products.
    cache = work.decoded_bytes * (int(work.cacheable) + int(full))
    column = 4 * work.n_rows if full else 0
    least = {
        **fixed,
        "scratch": thread_bytes,
        "column_cache": 2 * column,
        "vertices": min(work.n_rows, _LEAST_VERTICES) * vertex_bytes,
        "kernel_rows": _LEAST_KERNEL_ROWS,
    }
    needed = sum(least.values())
    if limit is not None and limit < needed:
        raise InputError(_too_small(limit, least))
    rest = (max(needed, int(_DEFAULT_SHARE * available)) if limit is None else limit) - needed
    keeps_rows = work.decoded_bytes <= _CACHE_BYTES and cache <= _CACHE_SHARE * rest
    more_columns = min(_CACHE_BYTES, int(_CACHE_SHARE * rest)) if full else 0
    max_threads = 1 + min(_MOST_THREADS - 1, int(_THREADS_SHARE * rest) // thread_bytes)
    rest -= keeps_rows * cache + more_columns + (max_threads - 1) * thread_bytes
    rest += least["vertices"] + least["kernel_rows"]
    max_vertices = min(work.n_rows, max(_LEAST_VERTICES, int(_VERTEX_SHARE * rest) // vertex_bytes))
    vertices = max_vertices * vertex_bytes
    most_kernel_rows = max(_LEAST_KERNEL_ROWS, max_vertices * (4 * max_vertices + _ROW_PADDING))
    return MemoryPlan(
        **fixed,
        scratch=max_threads * thread_bytes,
        row_cache=keeps_rows * cache,
        column_cache=2 * column + more_columns,
        vertices=vertices,
        kernel_rows=min(rest - vertices, most_kernel_rows),
        max_vertices=max_vertices,
        max_threads=max_threads,
        limit=limit,
    )


def _too_small(limit: int, least: dict[str, int]) -> str:
    plan = MemoryPlan(**least, row_cache=0, max_vertices=0, max_threads=1, limit=limit)
    name, size = max(plan.terms().items(), key=lambda term: term[1])
    needed = -(-sum(least.values()) // (1 << 20))
    return (
        f"a memory limit of {format_bytes(limit)} cannot be met: the largest part, {name}, takes "
        f"{format_bytes(size)} alone; the smallest limit that would do is {needed}MiB"
    )


def parse_bytes(text: str) -> int:
    """Bytes of a size such as "1GiB", "600MiB", "2g" or "1000000"; units are powers of 1024.

    Raises
    ------
    InputError
        When it is no size.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if match is None or len(match[1]) > _SIZE_DIGITS:
        raise InputError(f"{text!r} is no size in bytes; write for example 600MiB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2]])


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
    """Bytes of memory that this process may ever have, as far as the system says.

    That of the machine, or what control groups (of Linux, either version) or `ulimit -v` leave of
    it, whichever is least. What other processes, or pages of files that can be given back, take of
    it at the moment does not count.

    Parameters
    ----------
    root : str
        Folder under which ``proc`` and ``sys`` are looked for.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sizes = [total, *_group_limits(Path(root))]
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        sizes.append(max(0, addresses - _ADDRESS_SPACE) // _RESERVED)
    return min(sizes)


def _group_limits(root: Path) -> list[int]:
    """Limits of the control groups that this process is in, and of the groups around them.

    A container often sees its own group as the uppermost one while ``/proc/self/cgroup`` has its
    name on the host: a folder that is not there is left out, and its parents are looked at.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            mounts, name = ["sys/fs/cgroup", "sys/fs/cgroup/unified"], "memory.max"
        elif "memory" in controllers.split(","):
            mounts, name = [f"sys/fs/cgroup/{controllers}"], "memory.limit_in_bytes"
        else:
            continue
        for mount in mounts:
            place = root / mount / group.lstrip("/")
            for folder in (place, *place.parents):
                if folder.is_relative_to(root / mount):
                    limits += _number_in(folder / name)
    return limits


def _number_in(path: Path) -> list[int]:
    """The number that a file holds; none where it holds none ("max") or cannot be read."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() else []


def rss_bytes() -> int:
    """Resident memory of this process now; the largest so far where only that is known."""
    return _status_bytes("VmRSS:") or peak_rss_bytes()


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far, interpreter and libraries included.

    Linux keeps it per program; the portable number may include what the parent held at the fork.
    """
    return _status_bytes("VmHWM:") or _peak_of_usage()


def _status_bytes(name: str) -> int | None:
    """A size that Linux states of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None


def _peak_of_usage() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
