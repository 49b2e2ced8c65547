"""Logs of training runs that never were, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def make_events(
    n: int = 40, *, machines: int = 1, pace: float = 0.5, gap: float = 1.0, **options: Any
) -> Iterator[dict[str, Any]]:
    """Events of a log without its end.

    Parameters
    ----------
    n : int
        Progress events of each machine; of twenty the last two are of a sweep.
    machines : int
        Machines, one after the other.
    pace : float
        Seconds between two events.
    gap : float
        Sampled gap at the beginning.
    **options
        Options of training.
    """
    yield {
        "event": "start",
        "data": "d.h5",
        "n_rows": 1000,
        "n_features": 3,
        "kernel": {"name": "rbf", "gamma": 0.5, "degree": 2, "coef0": 0.0},
        "options": {"tol": 1e-3, "stopping": "relative", "memory_limit": 400 << 20} | options,
    }
    for machine in range(machines):
        for k in range(n):
            certify = k % 20 >= 18
            yield {
                "event": "progress",
                "machine": machine,
                "n_machines": machines,
                "phase": "certify" if certify else "train",
                "iteration": 10 * k,
                "objective": 1 / (1 + k),
                "sampled_gap": gap * 0.8**k if k else None,
                "certified_gap": gap * 0.7 ** (k - k % 20) if k >= 20 else None,
                "n_support": 3 * k,
                "rows_read": 1000 * k,
                "kernel_evaluations": 1_000_000 * k,
                "elapsed_s": pace * k,
                "sweep_fraction": (k % 20 - 17) / 2 if certify else None,
                "steps": {"toward": 7 * k, "away": 3 * k, "drop": k},
                "rss_bytes": 200 << 20,
                "peak_rss_bytes": 210 << 20,
            }
