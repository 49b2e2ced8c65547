"""Byte budgets: the only place that says how much memory a part of a run may take."""

from __future__ import annotations

import os
import resource
from pathlib import Path

ROWS_CACHE_BYTES = 256 << 20
"""Decoded rows of a small file that are kept in RAM."""

COLUMN_CACHE_BYTES = 256 << 20
"""Kernel columns over all rows that the full oracle keeps."""

_BLOCK_SHARE = 0.5  # of the memory free at the start, for the kernel block of the active set


def kernel_rows_budget() -> int:
    """Bytes for kernel rows where no limit is given: a share of the memory that is free."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(_BLOCK_SHARE * available)


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far, interpreter and libraries included.

    Linux keeps it per program; the portable number may include what the parent held at the fork.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
