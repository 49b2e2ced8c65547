"""Specs, one real cross of sets and solvers on tiny data, and the report made from it."""

from __future__ import annotations

import json
import os

import pytest

from bench import report, run
from bench.datasets import DATASETS, Dataset
from bench.solvers import DEFAULT_SPECS, SOLVERS, Problem, parse_spec
from bench.solvers.base import missing_packages


def test_specs_give_parameters_of_the_right_type():
    solver, parameters = parse_spec("nystroem:components=30")
    assert solver is SOLVERS["nystroem"]
    assert parameters == {"components": 30}
    assert parse_spec("ooc-fw:sample_size=59,no-certify")[1] == {
        "sample-size": "59",
        "no-certify": "",
    }
    for spec in DEFAULT_SPECS:
        parse_spec(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("libsvm", "no solver is called 'libsvm'"),
        ("subsample:row=3", "unknown parameter 'row'; known are: rows"),
        ("subsample:rows=few", "subsample:rows=few: invalid literal"),
    ],
)
def test_bad_specs_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_spec(spec)


def test_bad_names_end_the_command(capsys):
    assert run.main(["--sets", "nothing"]) == 2
    assert run.main(["--solvers", "nothing"]) == 2
    errors = capsys.readouterr().err
    assert "no set is called 'nothing'" in errors
    assert "no solver is called 'nothing'" in errors


def test_a_missing_package_leaves_a_solver_out(monkeypatch, capsys):
    monkeypatch.setattr(type(SOLVERS["xgboost"]), "packages", ("no_such_package",))
    assert missing_packages(SOLVERS["xgboost"]) == ["no_such_package"]
    chosen = run._available([(name, *parse_spec(name)) for name in ("xgboost", "ooc-fw")])
    assert [spec for spec, *_ in chosen] == ["ooc-fw"]
    assert "xgboost is left out: no_such_package not installed" in capsys.readouterr().err


def test_a_solver_that_fails_or_hangs_is_a_status(data_file):
    problem = Problem(str(data_file), str(data_file), C=5.0, gamma=1.0, timeout_s=0.01)
    solver, parameters = parse_spec("ooc-fw")
    assert run.run_once(solver, problem, parameters)["status"] == "timeout"
    solver, parameters = parse_spec("ooc-fw:method=none")
    failed = run.run_once(solver, Problem(str(data_file), "", C=5.0, gamma=1.0), parameters)
    assert failed["status"] == "failed"
    assert "method" in failed["error"]


@pytest.fixture(scope="module")
def records_file(tmp_path_factory, text_file):
    """One counted run of ours and of a peer, with gaps by brute force."""
    folder = tmp_path_factory.mktemp("bench")
    tiny = Dataset("tiny", lambda *_: (text_file, text_file), C=5)
    arguments = ["--sets", "tiny", "--solvers", "ooc-fw", "sklearn-svc", "subsample:rows=50"]
    arguments += ["--repeat", "1", "--verify", "--no-report"]
    arguments += ["--work", str(folder / "work"), "--output", str(folder / "out")]
    DATASETS["tiny"] = tiny
    cpus = os.sched_getaffinity(0)
    try:
        assert run.main(arguments) == 0
    finally:
        del DATASETS["tiny"]
        os.sched_setaffinity(0, cpus)
    return folder / "out" / run.RECORDS


def test_records_are_flat_and_complete(records_file):
    records = [json.loads(line) for line in records_file.read_text().splitlines()]
    assert len(records) == 6
    for record in records:
        assert not any(isinstance(value, dict | list) for value in record.values())
        assert record["accuracy"] > 0.5
        assert record["test_error"] == 1 - record["accuracy"]
        assert record["seconds"] > 0
        assert record["peak_rss_bytes"] > 1 << 20
    ours, svc, subsample = records[:3]
    assert ours["status"] == "converged"
    assert ours["verified_gap"] == pytest.approx(ours["certified_gap"], rel=0.01, abs=1e-6)
    assert svc["verified_pair_gap"] <= 1.001e-3
    assert "verified_pair_gap" not in subsample
    assert "verified_gap" not in records[3]  # the brute force runs once


def test_report_names_every_solver(records_file):
    records = report.read_records(records_file)
    text = report.markdown(records, baseline="sklearn-svc")
    assert "## tiny" in text
    for spec in ("ooc-fw", "sklearn-svc", "subsample:rows=50"):
        assert f"| `{spec}` |" in text
    assert "Seconds to reach a certified relative gap" in text
    heads = next(line for line in text.splitlines() if line.startswith("| solver"))
    for line in text.splitlines():
        if line.startswith("| `ooc-fw` | converged"):
            assert line.count("|") == heads.count("|")


def test_report_takes_the_last_session_and_failures(tmp_path, records_file):
    lines = [json.loads(line) for line in records_file.read_text().splitlines()]
    failed = {**lines[0], "session": "later", "status": "failed", "error": "no"}
    for key in ("accuracy", "seconds"):
        del failed[key]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, failed]))
    assert report.read_records(path) == [failed]
    assert "| `ooc-fw` | failed |" in report.markdown([failed], baseline="intelex-svc")
    assert len(report.read_records(path, lines[0]["session"])) == 6
    path.write_text("")
    with pytest.raises(ValueError, match="holds no records"):
        report.read_records(path)


def test_medians_leave_warm_ups_out():
    base = {"dataset": "d", "solver": "s", "spec": "s", "status": "fitted", "accuracy": 0.5}
    runs = [(True, 100.0, 7), (False, 1.0, None), (False, 3.0, None), (False, 2.0, None)]
    records = [
        {**base, "warm_up": warm_up, "seconds": seconds, "verified_gap": gap}
        for warm_up, seconds, gap in runs
    ]
    (summary,) = report.summarise(records)
    assert summary.median_seconds == 2.0
    assert summary.seconds == [1.0, 3.0, 2.0]
    assert summary.medians == {"accuracy": 0.5, "verified_gap": 7}


def test_figure_is_drawn(records_file, tmp_path):
    pytest.importorskip("matplotlib")
    report.draw(report.read_records(records_file), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
