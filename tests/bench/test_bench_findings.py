"""Findings and micro benchmarks: every table is made, from very little data."""

from __future__ import annotations

import numpy as np
import pytest

from bench import findings
from bench.micro import inner, kernels, pairs, parser, reads


@pytest.fixture(scope="module")
def data(table) -> findings.Data:
    y = np.where(table.y > 0, 1.0, -1.0)
    return findings.Data("tiny", table.X, y, C=5.0, gamma=0.3)


def test_every_finding_gives_a_table(data, monkeypatch):
    monkeypatch.setattr(findings, "TOLERANCE", 1e-2)
    monkeypatch.setattr(findings, "SAMPLED_TOLERANCE", 1e-2)
    monkeypatch.setattr(findings, "DECADES", (1e-1, 1e-2, 1e-3))
    parts = list(findings.page([data], max_iter=500, seeds=2))
    tables = [part for part in parts if part.startswith("|")]
    assert len(tables) == 4
    assert all("tiny" in part for part in tables)


def test_a_method_that_gave_up_is_not_tried_at_a_tighter_tolerance(data, monkeypatch):
    monkeypatch.setattr(findings, "DECADES", (1e-1, 1e-6, 1e-7))
    counts = findings.iterations_by_tolerance(data, ["fw"], max_iter=40)
    assert counts["fw"][1:] == [None, None]
    assert findings.growth([5, 10, 100, None, None]) == 10


def test_micro_benchmarks_run_on_small_inputs(monkeypatch):
    monkeypatch.setattr(kernels, "VERTICES", 64)
    monkeypatch.setattr(kernels, "TILE", 32)
    monkeypatch.setattr("bench.micro.timing.REPEATS", 1)
    for case in kernels.cases(n_rows=128):
        assert kernels.limit_rate(case) > 0
        assert kernels.sum_rate(case) > 0
        assert kernels.sweep_rate(case) > 0
    assert min(inner.seconds_of_parts(50, threads=2, steps=20)) > 0
    assert pairs.classifiers_per_second(3, 10, threads=1) > 0
    for module in (parser, reads):
        assert "|" in "".join(module.tables(size=100_000))
