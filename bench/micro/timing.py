"""The clock of the micro benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable

REPEATS = 5


def best_seconds(action: Callable[[], object], repeats: int = REPEATS) -> float:
    """Least wall time of a few calls, after one that compiles and warms up.

    The least, not the median: whatever else runs on the machine only ever adds time.
    """
    action()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)
