"""Specs, one real cross of sets and solvers on tiny data, and the report made from it."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from bench import report, run
from bench.datasets import DATASETS, Dataset
from bench.solvers import SOLVERS, Problem, child, parse_spec, tuned
from tests.support.files import write_dense


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        ("nystroem:components=30", {"components": 30, "alpha": 0.0}),
        ("tune:max-time=2m", {"max-time": "2m"}),
        ("ooc-fw:sample_size=59,no-certify", {"sample-size": "59", "no-certify": ""}),
        ("libsvm", "'libsvm'"),
        ("subsample:row=3", "'row'.*rows"),
        ("subsample:rows=few", "subsample:rows=few"),
    ],
)
def test_specs(spec, parameters):
    if isinstance(parameters, dict):
        assert parse_spec(spec) == (SOLVERS[spec.partition(":")[0]], parameters)
    else:
        with pytest.raises(ValueError, match=parameters):
            parse_spec(spec)


@pytest.mark.parametrize("option", ["--sets", "--solvers"])
def test_bad_names_end_the_command(capsys, option):
    assert run.main([option, "nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err


@pytest.mark.process
def test_a_solver_that_fails_or_hangs_is_a_status(data_file):
    problem = Problem(str(data_file), str(data_file), C=5.0, gamma=1.0, timeout_s=0.01)
    solver, parameters = parse_spec("ooc-fw:method=none")
    assert run.run_once(solver, problem, {})["status"] == "timeout"
    failed = run.run_once(solver, replace(problem, timeout_s=60), parameters)
    assert failed["status"] == "failed"
    assert "method" in failed["error"]


SPECS = "ooc-fw", "sklearn-svc", "subsample:rows=50", "hist-boosting", "tune:C=5,metric=auc"


@pytest.fixture(scope="module")
def records_file(tmp_path_factory, text_file):
    """One counted run of ours and of peers, with gaps by brute force."""
    folder = tmp_path_factory.mktemp("bench")
    arguments = ["--sets", "tiny", "--solvers", *SPECS]
    arguments += ["--repeat", "1", "--verify", "--work", str(folder)]
    cpus = os.sched_getaffinity(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "tiny", Dataset("tiny", lambda *_: (text_file, text_file), C=5))
        assert run.main(arguments) == 0
        assert run.main([*arguments, "--resume"]) == 0  # there is nothing left to do
    os.sched_setaffinity(0, cpus)
    return folder / "standard.jsonl"


@pytest.mark.long
def test_records_are_flat_and_complete(records_file):
    records = [json.loads(line) for line in records_file.read_text().splitlines()]
    assert len(records) == 2 * len(SPECS)
    for record in records:
        assert not any(isinstance(value, dict | list) for value in record.values())
        assert 0.5 < record["accuracy"] <= record["roc_auc"] <= 1
        assert all(0.5 < record[name] <= 1 for name in ("balanced_accuracy", "average_precision"))
        assert record["seconds"] > 0
        assert record["peak_rss_bytes"] > 1 << 20
    ours, svc, subsample = records[:3]
    assert ours["status"] == "converged"
    assert ours["verified_gap"] == pytest.approx(ours["certified_gap"], rel=0.01, abs=1e-6)
    assert svc["verified_pair_gap"] <= 1.001e-3
    assert "verified_pair_gap" not in subsample
    assert "verified_gap" not in records[len(SPECS)]  # the brute force runs once
    assert records[-1]["seconds"] > 0 < records[-1]["certified_gap"] < 1e-3


def test_medians_leave_warm_ups_out():
    base = {"dataset": "d", "solver": "s", "spec": "s", "status": "fitted", "accuracy": 0.5}
    records = [base | {"warm_up": False, "seconds": seconds} for seconds in (1.0, 3.0, 2.0)]
    warm_up = base | {"warm_up": True, "seconds": 100.0, "verified_gap": 7}
    (summary,) = report.summarise([warm_up, *records])
    assert summary.median_seconds == 2.0
    assert summary.seconds == [1.0, 3.0, 2.0]
    assert summary.medians == {"accuracy": 0.5, "verified_gap": 7}


@pytest.fixture
def ring(tmp_path):
    """A ring of ordinary rows with others in its middle, to train on and to test."""
    rng = np.random.default_rng(0)
    for name, n in (("train", 300), ("test", 200)):
        X = rng.normal(size=(n, 2))
        y = np.where(rng.random(n) < 0.7, 1.0, 0.0)
        X[y == 1] *= 4 / np.linalg.norm(X[y == 1], axis=1)[:, None]
        write_dense(tmp_path / f"{name}.h5", X.astype(np.float32), y)
    return Problem(str(tmp_path / "train.h5"), str(tmp_path / "test.h5"), C=1.0, gamma=1.0)


@pytest.mark.parametrize("config", ["novelty", "regression"])
def test_tasks_choose_by_one_part_and_score_on_another(ring, config):
    """Ours and scikit-learn's agree on what is easy, or solve nearly the same problem."""
    problem = replace(ring, target=1 if config == "novelty" else 0)
    scores = {}
    for spec in run.CONFIGS[config].specs:
        solver, parameters = parse_spec(spec)
        scores[spec] = child.run(solver, problem, parameters)["score"]
    if config == "novelty":
        assert min(scores.values()) > 0.95
    else:
        assert scores["svr:epsilon=0"] == pytest.approx(scores["kernel-ridge"], abs=0.1)
        parts = tuned.regression_parts(problem)
        assert [len(part[1]) for part in parts] == [210, 45, 45]
        assert np.abs(parts.train[0].mean(axis=0)).max() < 1e-6
