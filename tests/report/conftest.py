"""Logs of training runs that never took place."""

import json

import pytest
from run_events import START, make_event

from ooc_fw.report.runlog import read_runs


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
    """A run of some binary classifiers, each of n events of which the last is of a pass."""

    def make(name="run", n=20, *, classifiers=1, pace=1.0, end=True, **options):
        events = [START | {"options": START["options"] | options}]
        for classifier in range(classifiers):
            for k in range(n):
                gap = {"sampled_gap": 0.5**k, "phase": "train" if k < n - 1 else "certify"}
                place = {"classifier": classifier, "n_classifiers": classifiers}
                events.append(make_event(pace * k, **gap, **place))
        if end:
            events.append({"event": "end", "status": "converged", "certified_gap": 5e-4})
        return read(*events, name=name)

    return make
