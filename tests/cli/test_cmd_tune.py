"""`ooc-fw tune`: a table, JSON, a figure and a model; mistakes in one sentence."""

from __future__ import annotations

import json

import pytest

from ooc_fw.cli.tune import _gammas, _values
from ooc_fw.model.record import load_model


def test_table_and_model(ooc_fw, data_file, tmp_path):
    model = tmp_path / "best.h5"
    outcome = ooc_fw("tune", data_file, "--Cs", "1,8", "--model", model)
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert lines[0].split()[:3] == ["C", "gamma", "error"]
    assert sum(line.startswith("*") for line in lines) == 1
    assert "validation error" in outcome.out
    assert "trained on all 200 rows: converged, certified gap" in outcome.out
    assert lines[-1] == str(model)
    assert outcome.err.count("error") == 2  # a line for each point, and no warnings
    assert load_model(model).C in (1, 8)
    assert ooc_fw("certify", model, data_file).status == 0


def test_json_and_files(ooc_fw, data_file, tmp_path):
    pytest.importorskip("matplotlib")
    results, figure, model = (tmp_path / name for name in ("r.json", "f.png", "m.h5"))
    outcome = ooc_fw(
        *("tune", data_file, "--Cs", "2^0..2^4:2", "--gammas", "auto,2^-1", "--folds", 3),
        *("--json", "--quiet", "-o", results, "--figure", figure, "--model", model),
    )
    assert outcome.status == 0
    assert outcome.err == ""
    values = json.loads(outcome.out)
    assert values == json.loads(results.read_text())
    assert {point["C"] for point in values["points"]} == {1, 4, 16}
    assert len(values["points"]) == 6
    assert values["best"]["n_validated"] == 200
    assert values["refit"]["status"] == "converged"
    assert values["model"] == str(model)
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_search_alone(ooc_fw, data_file):
    before = set(data_file.parent.iterdir())
    outcome = ooc_fw("tune", data_file, "--Cs", "1", "--no-refit", "--quiet")
    assert outcome.status == 0
    assert "trained on all" not in outcome.out
    assert set(data_file.parent.iterdir()) == before


def test_an_interrupt_shows_what_is_known(ooc_fw, data_file, tmp_path, monkeypatch):
    from dataclasses import replace

    from ooc_fw.solve.state import Status
    from ooc_fw.training import tuning

    fit = tuning.fit_point

    def interrupted_at_two(machines, C):
        (pair,) = fit(machines, C)
        status = Status.INTERRUPTED if C == 2 else pair.solution.status
        return [replace(pair, solution=replace(pair.solution, status=status))]

    monkeypatch.setattr(tuning, "fit_point", interrupted_at_two)
    outcome = ooc_fw("tune", data_file, "--Cs", "1,2,4", "--model", tmp_path / "m.h5")
    assert outcome.status == 130
    assert outcome.out.count("interrupted") == 2
    assert not (tmp_path / "m.h5").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--Cs", "many"], ["--Cs", "list of values", "many"]),
        (["--Cs", "0,1"], ["--Cs", "above 0"]),
        (["--Cs", "2^4..2^0"], ["--Cs", "list of values"]),
        (["--gammas", "1", "--sigma2s", "1"], ["not allowed with"]),
        (["--kernel", "linear", "--sigma2s", "1"], ["rbf kernel"]),
        (["--preset", "huge"], ["large, small", "huge"]),
        (["--folds", "1"], ["at least 2"]),
        (["--validation", "1.5"], ["1.5"]),
        (["-o", "model.h5"], [".json", "--model"]),
        (["-o", "/nowhere/r.json"], ["/nowhere"]),
        (["--no-refit", "--model", "m.h5"], ["--no-refit"]),
        (["--tol", "-1"], ["tol", "-1"]),
    ],
)
def test_mistakes(ooc_fw, data_file, arguments, parts):
    ooc_fw("tune", data_file, *arguments).assert_refused(*parts)


def test_outputs_that_would_replace_something(ooc_fw, data_file, tmp_path):
    ooc_fw("tune", data_file, "--model", data_file).assert_refused("would replace the input")
    same = tmp_path / "x.json"
    ooc_fw("tune", data_file, "--model", same, "-o", same).assert_refused("would both be")


def test_an_unknown_kind_of_figure(ooc_fw, data_file, tmp_path):
    pytest.importorskip("matplotlib")
    outcome = ooc_fw("tune", data_file, "--figure", tmp_path / "f.doc")
    outcome.assert_refused("f.doc", ".png")


def test_values():
    assert _values("0.5,1,10") == [0.5, 1, 10]
    assert _values("2^-1..2^2") == [0.5, 1, 2, 4]
    assert _values("2^-5..2^-1:2,3") == [2**-5, 2**-3, 2**-1, 3]
    assert _gammas("auto,10^-2..10^0") == ["auto", 0.01, 0.1, 1]
