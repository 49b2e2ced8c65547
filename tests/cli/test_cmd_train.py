import json

import h5py
import numpy as np
import pytest

from ooc_fw.kernels.functions import KERNELS
from ooc_fw.model.record import load_model
from ooc_fw.solver.steps import STEP_RULES
from tests.support.reference import SmallProblem

KEYS = {
    *("status", "task", "method", "lmo", "kernel", "gamma", "C", "tol", "stopping", "n_rows"),
    *(
        "n_features",
        "n_support",
        "objective",
        "rho",
        "sampled_gap",
        "certified_gap",
        "pair_gap",
    ),
    *("iterations", "kernel_evaluations", "passes", "rows_read", "bytes_read", "seconds"),
    *("peak_rss_bytes", "model", "kind", "gap_scope", "primal", "dual", "choice"),
}


def test_json_log_and_model_agree(ooc_fw, data_file, tmp_path):
    path, log = tmp_path / "m.h5", tmp_path / "log.jsonl"
    result = ooc_fw("train", data_file, "-o", path, "--json", "--C", 5, "--log", log).json()
    assert set(result) == KEYS
    assert (result["status"], result["n_rows"], result["model"]) == ("converged", 200, str(path))
    assert 0 <= result["certified_gap"] <= result["tol"]
    assert result["peak_rss_bytes"] > 10_000_000
    assert all(result[name] > 0 for name in ("gamma", "rho", "passes", "iterations", "rows_read"))
    start, *_, end = (json.loads(line) for line in log.read_text().splitlines())
    assert (start["event"], start["options"]["tol"]) == ("start", 1e-3)
    assert end == {"event": "end", **result}
    model = load_model(path)
    (classifier,) = model.classifiers
    assert len(classifier.alpha) == result["n_support"]
    assert (classifier.rho, classifier.certified_gap) == (result["rho"], result["certified_gap"])
    assert (model.kernel.gamma, model.C, model.scaling.kind) == (result["gamma"], 5, "minmax")
    assert model.classes.tolist() == [-7, 3]
    with h5py.File(data_file) as file:
        expected = file["X"][...][model.rows]
        labels = np.where(file["y"][...][model.rows] == 3, 1, -1)
    assert np.array_equal(model.support_vectors[classifier.sv], expected)
    assert np.array_equal(classifier.labels, labels)


@pytest.mark.parametrize(
    ("options", "status", "gap", "said"),
    [
        ((), "converged", True, ["converged: relative gap", "certified over all rows"]),
        (
            ("--method", "fw", "--max-iter", 1),
            "max_iter",
            True,
            ["exact: method fw", "warning: stopped by the limit of iterations"],
        ),
        (
            ("--lmo", "sampled", "--no-certify"),
            "sampled",
            False,
            ["over the rows drawn last, not certified"],
        ),
        (
            ("--verbose",),
            "converged",
            True,
            [
                *("train.h5: 200 rows, 4 features", "exact: there are 200 rows"),
                *("method corrective", "memory plan: "),
                "converged: relative gap",
            ],
        ),
    ],
)
def test_what_is_said_of_a_run(ooc_fw, data_file, tmp_path, options, status, gap, said):
    data, path = tmp_path / "set.h5", tmp_path / "set.model.h5"
    data.write_bytes(data_file.read_bytes())
    (tmp_path / "train.h5").symlink_to(data)
    outcome = ooc_fw("train", tmp_path / "train.h5", *options, "-o", path)
    assert (outcome.status, outcome.out) == (0, f"{path}\n")
    places = [outcome.err.index(words) for words in said]
    assert places == sorted(places)
    assert ("warning" in outcome.err) is (status == "max_iter")
    model = load_model(path)
    assert (model.status, model.certified_gap is not None) == (status, gap)
    if not options:
        assert ooc_fw("train", data, "--quiet") == (0, f"{path}\n", "")


def test_array_file_with_labels(ooc_fw, table, tmp_path):
    np.save(tmp_path / "X.npy", table.X)
    np.save(tmp_path / "y.npy", table.y)
    kernel = "--kernel", "poly", "--gamma", 0.5, "--degree", 3, "--coef0", 1
    outcome = ooc_fw("train", tmp_path / "X.npy", "--labels", tmp_path / "y.npy", *kernel)
    assert (outcome.status, outcome.out) == (0, f"{tmp_path / 'X.model.h5'}\n")
    model = load_model(tmp_path / "X.model.h5")
    assert model.kernel.to_dict() == {"name": "poly", "gamma": 0.5, "degree": 3, "coef0": 1}
    assert model.scaling is None


def test_help_names_every_kernel_and_step_rule(ooc_fw):
    words = ooc_fw("train", "--help").out.replace(",", " ").split()
    assert {*KERNELS, *STEP_RULES} <= set(words)


def test_three_classes_from_training_to_certificate(ooc_fw, table, tmp_path):
    """With labels that are words, which every command reads and writes."""
    words = np.array(["groß", "klein", "mittel"])
    y = words[np.argsort(np.argsort(table.X[:, 0])) * 3 // len(table.X)]
    np.save(tmp_path / "X.npy", table.X)
    np.save(tmp_path / "y.npy", y)
    data = [tmp_path / "X.npy", "--labels", tmp_path / "y.npy"]
    outcome = ooc_fw("train", *data, "-o", tmp_path / "m.h5", "--C", 10, "--json")
    result = outcome.json()
    assert result["status"] == "converged"
    assert [(each["negative"], each["positive"]) for each in result["classifiers"]] == [
        ("groß", "klein"), ("groß", "mittel"), ("klein", "mittel"),
    ]  # fmt: skip
    gaps = [each["certified_gap"] for each in result["classifiers"]]
    assert result["certified_gap"] == max(gaps) <= 1e-3

    certified = ooc_fw("certify", tmp_path / "m.h5", *data, "--json").json()["classifiers"]
    again = [each["certified_gap"] for each in certified]
    assert again == pytest.approx(gaps, rel=1e-3, abs=1e-7)

    predicted = ooc_fw("predict", tmp_path / "m.h5", tmp_path / "X.npy").out.split()
    outcome = ooc_fw("evaluate", tmp_path / "m.h5", *data, "--json")
    assert outcome.json()["accuracy"] == (np.array(predicted) == y).mean() > 0.9
    lines = ooc_fw("predict", "--decision", tmp_path / "m.h5", tmp_path / "X.npy").out.splitlines()
    assert {len(line.split()) for line in lines} == {3}


# -- class weights -------------------------------------------------------------------------------


def test_balanced_class_weights(ooc_fw, table, tmp_path):
    """Of a file whose arrays have names of their own."""
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["rows"], file["target"] = table
    names = "--x-name", "rows", "--label", "target"
    ooc_fw("train", tmp_path / "d.h5", *names, "--class-weight", "balanced").done()
    model = load_model(tmp_path / "d.model.h5")
    (classifier,) = model.classifiers
    counts = [np.sum(table.y == label) for label in (-7, 3)]
    expected = 100 / np.where(classifier.labels > 0, counts[1], counts[0])
    np.testing.assert_allclose(model.penalties, expected)


def test_class_weights_are_in_the_model_and_its_certificate(ooc_fw, data_file, tmp_path):
    path = tmp_path / "m.h5"
    ooc_fw("train", data_file, "-o", path, "--C", 2, "--class-weight=-7=0.5,3=4").done()
    model = load_model(path)
    (classifier,) = model.classifiers
    np.testing.assert_array_equal(model.penalties, np.where(classifier.labels > 0, 8.0, 1.0))
    assert model.C == 2
    with h5py.File(data_file) as file:
        X, y = file["X"][...], np.where(file["y"][...] == 3, 1, -1).astype(np.int8)
    problem = SmallProblem(model.kernel, X, y, 2 * np.where(y > 0, 4.0, 0.5))
    truth = problem.truth(model.rows, classifier.alpha)
    result = ooc_fw("certify", path, data_file, "--json").json()
    assert truth.gap <= result["certified_gap"] <= min(1e-3, truth.gap + 1e-6)

    ooc_fw("train", data_file, "-o", tmp_path / "plain.h5", "--C", 2)
    plain = load_model(tmp_path / "plain.h5")
    found = [(own.predict(X)[y > 0] == 3).mean() for own in (plain, model)]
    assert found[1] > found[0], "a weight favours its class"
