"""Micro benchmarks: every table is made, from very little data."""

from bench.micro import inner, kernels, pairs, parser, reads


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
