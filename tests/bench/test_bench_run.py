"""Specs, one real cross of sets and solvers on tiny data, and the records made from it."""

import os
from dataclasses import replace

import numpy as np
import pytest

from bench import configs, datasets, published, run
from bench.solvers import SOLVERS, Problem, child, parse_spec
from tests.support.files import write_dense


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        ("nystroem:components=30", {"components": 30, "alpha": 0.0}),
        ("tune:max-time=2m", {"max-time": "2m"}),
        ("ooc-fw:sample_size=59,no-certify", {"sample-size": "59", "no-certify": ""}),
    ],
)
def test_specs(spec, parameters):
    assert parse_spec(spec) == (SOLVERS[spec.partition(":")[0]], parameters)


def test_configurations_name_sets_solvers_and_tables_that_exist():
    for runs in (runs for groups in configs.CONFIGS.values() for runs in groups):
        assert set(runs.sets) <= set(datasets.DATASETS)
        assert runs.table in published.TABLES
        for spec in runs.specs:
            parse_spec(spec)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sets", "nothing"], "'nothing'"),
        (["--solvers", "nothing"], "'nothing'"),
        (["--solvers", "subsample:row=3"], "'row'"),
        (["--solvers", "subsample:rows=few"], "subsample:rows=few"),
        (["--sets", "usps"], "readme has no set usps"),
        (["--publish", "--thin", "9"], "--publish"),
    ],
)
def test_bad_arguments_end_the_command(capsys, arguments, words):
    with pytest.raises(SystemExit):
        run.main(arguments)
    assert words in capsys.readouterr().err


@pytest.mark.process
def test_a_solver_that_fails_or_hangs_is_a_status(data_file):
    problem = Problem(str(data_file), str(data_file), C=5.0, gamma=1.0, timeout_s=0.01)
    solver, parameters = parse_spec("ooc-fw:method=none")
    assert run.run_once(solver, problem, {})["status"] == "timeout"
    failed = run.run_once(solver, replace(problem, timeout_s=60), parameters)
    assert failed["status"] == "failed"
    assert "method" in failed["error"]


SPECS = "ooc-fw", "sklearn-svc", "hist-boosting", "tune:C=5,max-time=5s"


@pytest.mark.process
def test_records_are_flat_and_complete(tmp_path, text_file, monkeypatch):
    cpus = os.sched_getaffinity(0)
    tiny = datasets.Dataset("tiny", lambda *_: (text_file, text_file), C=5)
    monkeypatch.setitem(datasets.DATASETS, "tiny", tiny)
    options = ["--verify", "--work", str(tmp_path), "--data", str(tmp_path), "--thin", "1"]
    assert run.main([*options, "--sets", "w7a", "tiny", "--solvers", *SPECS]) == 1
    os.sched_setaffinity(0, cpus)
    records = published.read_lines(tmp_path / "readme.jsonl")
    assert [one["spec"] for one in records] == [*SPECS]
    for record in records:
        assert not any(isinstance(value, dict | list) for value in record.values())
        assert 0.5 < record["accuracy"] <= record["roc_auc"] <= 1
        assert record["seconds"] > 0 < record["peak_rss_bytes"]
    ours, svc, _, searched = records
    assert (ours["status"], ours["C"]) == ("converged", 5)
    assert ours["verified_gap"] == pytest.approx(ours["certified_gap"], rel=0.01, abs=1e-6)
    assert svc["verified_pair_gap"] <= 1.001e-3
    assert searched["certified_gap"] < 0.1  # that of the objective is within the tolerance
    assert published.markdown("runs", records).count("| tiny-1in1 |") == len(SPECS)


def test_a_published_record_has_the_median_time_and_replaces_earlier_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    first, second = configs.CONFIGS["methods"][0].specs[:2]
    base = {"table": "methods", "dataset": "a1a", "spec": second, "status": "fitted"}
    records = [base | {"seconds": seconds} for seconds in (1.0, 3.0, 2.0)]
    records[0]["verified_gap"] = 7
    chosen = run.median([*records, {"status": "failed"}])
    for one in (base | {"seconds": 9}, base | {"spec": "gone"}, base | {"spec": first}, chosen):
        run.publish("methods", [one])
    (_, found) = published.read_lines(tmp_path / "methods.jsonl")
    assert (found["seconds"], found["verified_gap"], found["median_of"]) == (2.0, 7, 3)
    assert (found["seconds_least"], found["seconds_most"]) == (1.0, 3.0)


@pytest.fixture
def ring(tmp_path):
    """A ring of ordinary rows with others in its middle, to train on and to test."""
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        X, y = rng.normal(size=(300, 2)), (rng.random(300) < 0.7).astype(float)
        X[y == 1] *= 4 / np.linalg.norm(X[y == 1], axis=1)[:, None]
        write_dense(tmp_path / name, X.astype(np.float32), y)
    return Problem(str(tmp_path / "train"), str(tmp_path / "test"), C=1.0, gamma=1.0)


@pytest.mark.parametrize("config", ["novelty", "regression"])
def test_tasks_choose_by_one_part_and_score_on_another(ring, config):
    problem = replace(ring, target=1 if config == "novelty" else 0)
    scores = {}
    for spec in configs.CONFIGS[config][0].specs:
        solver, parameters = parse_spec(spec)
        scores[spec] = child.run(solver, problem, parameters)["score"]
    if config == "novelty":
        assert min(scores.values()) > 0.95
    else:
        assert scores["svr:epsilon=0"] == pytest.approx(scores["kernel-ridge"], abs=0.1)
