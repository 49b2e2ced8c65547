import shlex
import shutil
import signal

import numpy as np
import pytest

from ooc_fw import load_model


def test_table_and_model(ooc_fw, here):
    outcome = ooc_fw("tune", "d.h5", "--gamma", "auto", "--C", "1,8", "-o", "new.h5").done()
    lines = outcome.out.splitlines()
    assert lines[0].split()[:6] == ["kernel", "C", "gamma", "1", "-", "accuracy"]
    assert lines[-2].startswith("  ooc-fw train d.h5 --kernel=rbf --C=")
    assert sum(line.startswith("*") for line in lines) == 1
    assert "trained on 200 of 200 rows\nconverged: relative gap " in outcome.out
    assert ", certified over all rows\n" in outcome.out
    assert max(map(len, lines[: lines.index("next:")])) <= 80
    assert lines[-1] == "new.h5"
    assert outcome.err.count(": error ") == 4  # a line for each candidate and stage
    assert load_model("new.h5").C in (1, 8)
    ooc_fw("certify", "new.h5", "d.h5").done()


def test_candidates_and_metric_are_those_asked_for(ooc_fw, here):
    grid = "--C", "1,4,16", "--gamma", "auto,0.5", "--metric", "auc", "--landmarks", 30
    values = ooc_fw("tune", "d.h5", *grid, "-o", "new.h5", "--json").json()
    assert {point["C"] for point in values["points"]} == {1, 4, 16}
    assert values["best"]["n_validated"] == 200
    refit = values["refit"]
    assert (refit["status"], refit["gap_scope"]) == ("converged", "span")
    assert refit["n_support"] == len(load_model("new.h5").support_vectors) <= 30
    assert (values["metric"], values["model"]) == ("auc", "new.h5")


@pytest.mark.parametrize(
    "options",
    [
        ("--metric", "balanced_accuracy", "--kernel", "laplacian"),
        ("--landmarks", 30),
        ("--task", "novelty", "--contamination", "0.05", "--ordinary", "3"),
    ],
)
def test_the_printed_command_trains_the_same_model(ooc_fw, here, write_text, options):
    """It has weights of classes, landmarks and ordinary rows."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(400) < 0.2, 3, -7)
    X = rng.normal(size=(400, 4)) + (y == 3)[:, None]
    ooc_fw("convert", write_text(X, y), "new.h5", "--scale", "minmax").done()
    tune = "tune", "new.h5", *options, "--gamma", "auto", "--C", "1,8", "-o", "a.h5"
    lines = ooc_fw(*tune).done().out.splitlines()
    command = shlex.split(lines[lines.index("next:") + 1])
    assert command[:3] == ["ooc-fw", "train", "new.h5"]
    ooc_fw(*command[1:-1], "b.h5").done()
    one, other = load_model("a.h5"), load_model("b.h5")
    assert (one.status, other.status) == ("converged", "converged")
    assert (one.kernel, one.C) == (other.kernel, other.C)
    values = one.decision_function("new.h5")
    scale = np.abs(values).max()
    np.testing.assert_allclose(other.decision_function("new.h5"), values, atol=0.02 * scale)


def test_a_signal_in_the_last_training_leaves_what_is_known(ooc_fw, here, monkeypatch):
    """The model that stood at the output stays, and the unfinished one has another name."""
    from ooc_fw.training import tuning

    def interrupted(problem, *others):
        if problem.source.n_rows == 200:
            signal.raise_signal(signal.SIGINT)
        return fit(problem, *others)

    fit = tuning.fit
    monkeypatch.setattr(tuning, "fit", interrupted)
    shutil.copy("m.h5", "new.h5")
    before = (here / "new.h5").read_bytes()
    outcome = ooc_fw("tune", "d.h5", "--gamma", "auto", "--C", "1,2", "-o", "new.h5", "--quiet")
    assert outcome.status == 130
    assert "best: rbf, C" in outcome.out
    assert "trained on 150 of 200 rows\ninterrupted: relative gap " in outcome.out
    assert (here / "new.h5").read_bytes() == before
    assert load_model("new.unfinished.h5").status == "interrupted"
