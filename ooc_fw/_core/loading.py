"""How a command loads numba: without what no compiled function here needs."""

from __future__ import annotations

import sys


def load_numba_alone() -> None:
    """Import numba without scipy.linalg, which would double the time its types take to load.

    numba looks there for the BLAS that a compiled `np.dot` would call; no function here does. For
    processes that are only a command: whoever compiles `np.dot` later in one would miss it.
    """
    if "scipy.linalg" in sys.modules or "numba" in sys.modules:
        return
    sys.modules["scipy.linalg"] = None  # type: ignore[assignment]  # importing it fails from here
    try:
        import numba.np.arraymath  # noqa: F401
    finally:
        del sys.modules["scipy.linalg"]
