"""Logs of training runs that never took place."""

import json

import pytest

from ooc_fw.report.runlog import read_runs

START = {
    "event": "start",
    "options": {"tol": 1e-3, "stopping": "relative", "memory_limit": 400 << 20, "C": 1.0},
}


def make_event(elapsed, **changes):
    """A progress event after some seconds, with counts that grow evenly."""
    event = {
        "event": "progress",
        "phase": "train",
        "iteration": int(10 * elapsed),
        "sampled_gap": 0.1,
        "certified_gap": None,
        "n_support": int(5 * elapsed),
        "elapsed_s": elapsed,
        "rss_bytes": 200 << 20,
    }
    return event | changes


@pytest.fixture
def read(tmp_path):
    """Write events, and texts as they are, to a log, and read its only run."""

    def read_log(*events, name="run"):
        path = tmp_path / f"{name}.jsonl"
        lines = [e if isinstance(e, str) else json.dumps(e) + "\n" for e in events]
        path.write_text("".join(lines))
        (run,) = read_runs([path])
        return run

    return read_log


@pytest.fixture
def make_run(read):
    """A run of `n` events, of which the last is of a pass."""

    def make(name="run", n=20, *, pace=1.0, end=True, **options):
        events = [START | {"options": START["options"] | options}]
        events += [make_event(pace * k, sampled_gap=0.5**k) for k in range(n)]
        if end:
            events.append({"event": "end", "status": "converged", "certified_gap": 5e-4})
        return read(*events, name=name)

    return make
