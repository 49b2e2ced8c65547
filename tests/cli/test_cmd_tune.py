"""`ooc-fw tune`: a table, JSON and a model."""

import shlex
import shutil
import signal

import numpy as np
import pytest

from ooc_fw.model.record import load_model


def test_table_and_model(ooc_fw, data_file, tmp_path):
    model = tmp_path / "best.h5"
    outcome = ooc_fw("tune", data_file, "--gamma", "auto", "--C", "1,8", "-o", model).done()
    lines = outcome.out.splitlines()
    assert lines[0].split()[:6] == ["kernel", "C", "gamma", "1", "-", "accuracy"]
    assert lines[-2].startswith(f"  ooc-fw train {data_file} --kernel=rbf --C=")
    assert sum(line.startswith("*") for line in lines) == 1
    assert "validation error " in outcome.out
    assert "trained on 200 of 200 rows\nconverged: relative gap " in outcome.out
    assert ", certified over all rows\n" in outcome.out
    assert max(map(len, lines[: lines.index("next:")])) <= 80
    assert lines[-1] == str(model)
    assert outcome.err.count(": error ") == 4  # a line for each candidate and stage
    assert load_model(model).C in (1, 8)
    ooc_fw("certify", model, data_file).done()


def test_json(ooc_fw, data_file, tmp_path):
    model = tmp_path / "m.h5"
    outcome = ooc_fw(
        *("tune", data_file, "--C", "1,4,16", "--gamma", "auto,0.5", "--metric", "auc"),
        *("--json", "--quiet", "-o", model, "--landmarks", 30),
    )
    assert (outcome.status, outcome.err) == (0, "")
    values = outcome.json()
    assert {point["C"] for point in values["points"]} == {1, 4, 16}
    assert values["best"]["n_validated"] == 200
    refit = values["refit"]
    assert (refit["status"], refit["gap_scope"]) == ("converged", "span")
    assert refit["n_support"] == len(load_model(model).support_vectors) <= 30
    assert (values["metric"], values["model"]) == ("auc", str(model))


@pytest.mark.parametrize(
    "options",
    [
        ("--metric", "balanced_accuracy", "--kernel", "laplacian"),
        ("--landmarks", 30),
        ("--task", "novelty", "--contamination", "0.05", "--ordinary", "3"),
    ],
)
def test_the_printed_command_trains_the_same_model(ooc_fw, tmp_path, write_text, options):
    """Weights of classes, landmarks and ordinary rows are part of it."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(400) < 0.2, 3, -7)
    X = rng.normal(size=(400, 4)) + (y == 3)[:, None]
    data, model, again = (tmp_path / name for name in ("d.h5", "m.h5", "again.h5"))
    ooc_fw("convert", write_text(X, y), data, "--scale", "minmax").done()
    grid = "--gamma", "auto", "--C", "1,8"
    lines = ooc_fw("tune", data, *options, *grid, "-o", model).done().out.splitlines()
    command = shlex.split(lines[lines.index("next:") + 1])
    assert command[:3] == ["ooc-fw", "train", str(data)]
    ooc_fw(*command[1:-1], again).done()
    one, other = load_model(model), load_model(again)
    assert (one.status, other.status) == ("converged", "converged")
    assert (one.kernel, one.C) == (other.kernel, other.C)
    values = one.decision_function(data)
    scale = np.abs(values).max()
    np.testing.assert_allclose(other.decision_function(data), values, atol=0.02 * scale)


@pytest.mark.parametrize("at", ["first", "training", "validation", "refit", "within", "late"])
def test_the_model_after_a_signal(ooc_fw, data_file, model_file, tmp_path, monkeypatch, at):
    """Before anything is known there is a word; from then on there is what is known.

    The model that stood at the output stays in any case.
    """
    from ooc_fw.training import tuning

    fit, score, scored = tuning.fit, tuning.score, []

    def interrupted(problem, options, session, *others):
        last = problem.source.n_rows == 200
        if at == "first" or (at, len(scored)) == ("training", 1) or (at == "refit" and last):
            signal.raise_signal(signal.SIGINT)

        def raise_late(state):
            phase = {"within": "train", "late": "certify"}.get(at)
            if last and state.phase == phase:
                signal.raise_signal(signal.SIGINT)

        session = tuning.Session([raise_late])
        return fit(problem, options, session, *others)

    def validated(*arguments):
        scored.append(arguments)
        if (at, len(scored)) == ("validation", 2):
            signal.raise_signal(signal.SIGINT)
        return score(*arguments)

    monkeypatch.setattr(tuning, "fit", interrupted)
    monkeypatch.setattr(tuning, "score", validated)
    model, unfinished = tmp_path / "m.h5", tmp_path / "m.unfinished.h5"
    shutil.copy(model_file, model)
    outcome = ooc_fw("tune", data_file, "--gamma", "auto", "--C", "1,2", "-o", model, "--quiet")
    assert outcome.status == 130
    assert model.read_bytes() == model_file.read_bytes()
    assert unfinished.exists() == (at != "first")
    if at == "first":
        assert outcome.out == ""
        assert outcome.err == "ooc-fw: interrupted\n"
    else:
        assert "best: rbf, C" in outcome.out
        n_rows = 200 if at in ("within", "late") else 150
        assert f"trained on {n_rows} of 200 rows\ninterrupted: relative gap " in outcome.out
        assert load_model(unfinished).status == "interrupted"
