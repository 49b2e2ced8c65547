"""Byte budgets: the only place that says how much memory a part of a run may take.

Owns the plan that divides a limit on the process's peak resident memory among the parts of a run.
A pure function of sizes: it looks at no file and allocates nothing.
"""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from ooc_fw.errors import InputError

_CACHE_BYTES = 256 << 20  # rows, or kernel columns, of a small file that are kept where they fit
_FREE_SHARE = 0.5  # of the memory free at the start, for kernel rows where there is no limit
_CACHE_SHARE = 0.25  # of what a limit leaves, for each of these caches
_VERTEX_SHARE = 0.4  # of what it leaves then, at most, for the vertices beside their kernel rows
_PROGRAM_MORE = 40 << 20  # what the interpreter and libraries still load and allocate
_ROW_NUMBERS = 40  # bytes a row of the file: label, margin, bounds of the screen, flags, a sweep's
_FULL_NUMBERS = 32  # bytes a row for the gradient of a full oracle, before and now
_VERTEX_NUMBERS = 256  # bytes a vertex: weight, gradient, label, slot, place and their kind
_VERTEX_COPIES = 6  # of a vertex's row: as read, centred, growing, for products in two precisions
_BLOCK_COPIES = 6  # of a block of rows under way from the file to the kernel
_THREAD_BYTES = 6 << 20  # tiles of products, scratch for sparse vertices
_LEAST_KERNEL_ROWS = 4 << 20
_LEAST_VERTICES = 500
_SIZE_DIGITS = 18  # of a size in bytes; more would not fit a float or a machine
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
    threads : int
        Threads of the engine.
    cacheable : bool
        Whether rows come from a file, so that keeping them in RAM is an option.
    full_oracle : bool
        Whether the gradient of every row is kept.
    """

    n_rows: int
    decoded_bytes: int
    block_bytes: int
    threads: int
    cacheable: bool = True
    full_oracle: bool = False


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes for each part of a run.

    Parameters
    ----------
    program : int
        Interpreter, libraries and compiled code.
    row_numbers : int
        Numbers kept for each row of the source.
    buffers : int
        Blocks of rows being read, and tiles of every thread.
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
    limit : int or None
        What the parts may add up to; None where no limit was given.
    """

    program: int
    row_numbers: int
    buffers: int
    row_cache: int
    column_cache: int
    vertices: int
    kernel_rows: int
    max_vertices: int
    limit: int | None

    def terms(self) -> dict[str, int]:
        """The parts by name, in bytes."""
        return {
            "program": self.program,
            "numbers for each row of the file": self.row_numbers,
            "read buffers and tiles": self.buffers,
            "rows kept in memory": self.row_cache,
            "kernel columns kept": self.column_cache,
            "active rows": self.vertices,
            "kernel values between active rows": self.kernel_rows,
        }

    def __str__(self) -> str:
        """All parts, at most so many vertices, and the limit, in one line."""
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.terms().items())
        limit = "no limit" if self.limit is None else f"limit {format_bytes(self.limit)}"
        return f"{parts}; at most {self.max_vertices} vertices; {limit}"


def plan_memory(work: Workload, limit: int | None, program: int) -> MemoryPlan:
    """Divide a limit among the parts of a run.

    Parameters
    ----------
    work : Workload
        Sizes of the run.
    limit : int or None
        Largest peak of resident memory in bytes. None: caches of fixed size, and half of the memory
        that is free for kernel rows.
    program : int
        Resident bytes of the process so far.

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
        "program": program + _PROGRAM_MORE,
        "row_numbers": work.n_rows * (_ROW_NUMBERS + (_FULL_NUMBERS if full else 0)),
        "buffers": _BLOCK_COPIES * work.block_bytes + work.threads * _THREAD_BYTES,
    }
    # A full oracle keeps a copy of its own, made ready for products.
    cache = work.decoded_bytes * (int(work.cacheable) + int(full))
    column = 4 * work.n_rows if full else 0
    if limit is None:
        return MemoryPlan(
            **fixed,
            row_cache=cache if work.decoded_bytes <= _CACHE_BYTES else 0,
            column_cache=max(_CACHE_BYTES, 2 * column) if full else 0,
            vertices=0,
            kernel_rows=kernel_rows_budget(),
            max_vertices=work.n_rows,
            limit=None,
        )
    least = {
        **fixed,
        "column_cache": 2 * column,
        "vertices": min(work.n_rows, _LEAST_VERTICES) * vertex_bytes,
        "kernel_rows": _LEAST_KERNEL_ROWS,
    }
    rest = limit - sum(least.values())
    if rest < 0:
        raise InputError(_too_small(limit, least))
    row_cache = cache if cache <= min(_CACHE_BYTES, int(_CACHE_SHARE * rest)) else 0
    more_columns = min(_CACHE_BYTES, int(_CACHE_SHARE * rest)) if full else 0
    rest -= row_cache + more_columns
    rest += least["vertices"] + least["kernel_rows"]
    max_vertices = min(work.n_rows, max(_LEAST_VERTICES, int(_VERTEX_SHARE * rest) // vertex_bytes))
    vertices = max_vertices * vertex_bytes
    return MemoryPlan(
        **fixed,
        row_cache=row_cache,
        column_cache=2 * column + more_columns,
        vertices=vertices,
        kernel_rows=rest - vertices,
        max_vertices=max_vertices,
        limit=limit,
    )


def _too_small(limit: int, least: dict[str, int]) -> str:
    plan = MemoryPlan(**least, row_cache=0, max_vertices=0, limit=limit)
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
    """Bytes for kernel rows where no limit is given: a share of the memory that is free."""
    return int(_FREE_SHARE * _free_bytes())


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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
