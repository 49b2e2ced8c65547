"""Growth with the rows, on tiny sizes."""

import json

import pytest

from bench import growth


def test_an_exponent_is_that_of_the_largest_sizes():
    seconds = {1: 50.0, 10: 10.0, 100: 100.0, 1000: 1000.0}
    records = [
        {"dataset": "noisy", "spec": "a", "n_rows": n, "seconds": s, "status": "converged"}
        for n, s in seconds.items()
    ]
    failed = records[-1] | {"seconds": 1e9, "status": "timeout"}
    ((key, points),) = growth.series([*records, failed]).items()
    assert key == ("noisy", "a", "seconds")
    assert growth.exponent(points) == pytest.approx(1)


@pytest.mark.process
def test_records_and_figure(tmp_path, capsys):
    output = tmp_path / "growth.jsonl"
    arguments = ["--kinds", "noisy", "--rows", "300", "600", "--work", str(tmp_path)]
    solvers = ["ooc-fw:tol=1e-2", "sklearn-svc", "ooc-fw:method=none"]
    status = growth.main([*arguments, "--solvers", *solvers, "--output", str(output)])
    assert status == 0
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(one["spec"], one["n_rows"]) for one in records if one["status"] != "failed"] == [
        (spec, n_rows) for n_rows in (300, 600) for spec in solvers[:2]
    ]
    assert records[0]["certified_gap"] <= 1e-2
    assert not list(tmp_path.glob("noisy-*"))
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "| noisy | ooc-fw:tol=1e-2 | seconds |" in capsys.readouterr().out
