import shlex

import numpy as np
import pytest

from ooc_fw import load_model


def test_the_best_candidate_is_marked_and_trained_on_all_rows(ooc_fw, here):
    outcome = ooc_fw("tune", "d.h5", "--gamma", "auto", "--C", "1,8", "-o", "new.h5").done()
    lines = outcome.out.splitlines()
    (best,) = (line.split() for line in lines if line.startswith("*"))
    assert load_model("new.h5").C == float(best[2])
    assert "trained on 200 of 200 rows" in lines
    assert lines[-1] == "new.h5"
    assert outcome.err.count(": error ") == 4  # a line for each candidate and stage
    ooc_fw("certify", "new.h5", "d.h5").done()


def test_candidates_and_metric_are_those_asked_for(ooc_fw, here):
    grid = "--C", "1,4,16", "--gamma", "auto,0.5", "--metric", "auc", "--landmarks", 30
    values = ooc_fw("tune", "d.h5", *grid, "-o", "new.h5", "--json").json()
    assert {point["C"] for point in values["points"]} == {1, 4, 16}
    assert (values["metric"], values["best"]["n_validated"]) == ("auc", 200)
    refit = values["refit"]
    assert (refit["status"], refit["gap_scope"]) == ("converged", "span")
    assert refit["n_support"] == len(load_model("new.h5").support_vectors) <= 30


@pytest.mark.parametrize(
    "options",
    [
        ("--metric", "balanced_accuracy", "--kernel", "laplacian"),
        ("--landmarks", 30),
        ("--labels", "gaps.npy", "--missing-labels", "drop"),
        ("--task", "novelty", "--contamination", "0.05", "--ordinary", "3"),
    ],
)
def test_the_printed_command_trains_the_same_model(ooc_fw, here, write_text, options):
    """It has weights of classes, landmarks, labels and ordinary rows."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(400) < 0.2, 3, -7)
    X = rng.normal(size=(400, 4)) + (y == 3)[:, None]
    ooc_fw("convert", write_text(X, y), "new.h5", "--scale", "minmax").done()
    np.save("gaps.npy", np.where(np.arange(400) < 9, np.nan, y))
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


def test_what_a_linear_model_reaches_is_said_and_kept(ooc_fw, here):
    options = "--kernel", "rbf,linear", "--C", "1,8", "-o", "new.h5"
    outcome = ooc_fw("tune", "d.h5", *options).done()
    linear = load_model("new.h5").origin["linear"]
    assert linear.startswith("a linear model is ")
    assert linear in outcome.words
    assert ooc_fw("info", "new.h5", "--json").json()["linear"] == linear
    found = ooc_fw("tune", "d.h5", *options, "--json").json()
    assert ("is as good" in linear) == found["linear"]["as_good"]
    gammas = {point["kernel"]: point["gamma"] for point in found["points"]}
    assert gammas["rbf"] > 0
    assert gammas["linear"] is None


def test_a_linear_run_has_no_gamma(ooc_fw, here):
    outcome = ooc_fw("tune", "d.h5", "--kernel", "linear", "--C", "1", "-o", "new.h5").done()
    lines = outcome.out.splitlines()
    command = shlex.split(lines[lines.index("next:") + 1])
    words = ooc_fw(*command[1:]).done().err
    assert "linear kernel, C 1\n" in words
    assert "gamma " not in lines[-1] + words + " ".join(command)
    assert "gamma" not in ooc_fw("info", "new.h5").done().out
