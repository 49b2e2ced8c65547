"""Events of training runs that never took place."""

START = {
    "event": "start",
    "data": "d.h5",
    "kernel": {"name": "rbf", "gamma": 0.5},
    "options": {"tol": 1e-3, "stopping": "relative", "memory_limit": 400 << 20, "C": 1.0},
}


def make_event(elapsed, **changes):
    """A progress event after some seconds, with counts that grow evenly."""
    event = {
        "event": "progress",
        "phase": "train",
        "iteration": int(10 * elapsed),
        "objective": 0.5,
        "sampled_gap": 0.1,
        "certified_gap": None,
        "n_support": int(5 * elapsed),
        "rows_read": int(100 * elapsed),
        "kernel_evaluations": int(1000 * elapsed),
        "elapsed_s": elapsed,
        "steps": {"toward": int(7 * elapsed), "away": int(3 * elapsed), "drop": int(elapsed)},
        "rss_bytes": 200 << 20,
        "peak_rss_bytes": 210 << 20,
    }
    return event | changes
