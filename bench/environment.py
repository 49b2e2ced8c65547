"""What a figure depends on besides the code under test: commit, versions, machine.

Names the processor and its size, never the host.
"""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata

from bench.process import ROOT

PACKAGES = ("numpy", "numba", "h5py", "scikit-learn", "scikit-learn-intelex", "xgboost")


def environment() -> dict[str, str | int | bool | None]:
    """Flat record of commit, package versions and machine; None for what is not known."""
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", ".", ":!bench/results")
    return {
        "commit": commit,
        "uncommitted_changes": None if changes is None else bool(changes),
        "python": platform.python_version(),
        **{f"version_{name}": _version(name) for name in PACKAGES},
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """Processor as /proc names it, else its architecture."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
