"""What a figure depends on besides the code under test: commit, versions, machine.

Names the processor and its size, never the host.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

from bench.process import ROOT

PACKAGES = ("numpy", "numba", "h5py", "scikit-learn", "scikit-learn-intelex", "xgboost")


def environment() -> dict[str, str | int | bool | None]:
    """Flat record of commit, package versions and machine; None for what is not known."""
    changes = _git("status", "--porcelain", ".", ":!bench/results")
    installed = {one.name.lower(): one.version for one in metadata.distributions()}
    info = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    return {
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": None if changes is None else bool(changes),
        "python": platform.python_version(),
        **{f"version_{name}": installed.get(name) for name in PACKAGES},
        "cpu": cpu[1].strip() if cpu else platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }


def _git(*arguments: str) -> str | None:
    try:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
