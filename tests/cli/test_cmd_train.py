from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from ooc_fw.kernels.functions import KERNELS
from ooc_fw.model.record import load_model
from ooc_fw.solver.steps import STEP_RULES
from ooc_fw.testing.reference import SmallProblem

KEYS = [
    *("status", "method", "lmo", "kernel", "gamma", "C", "tol", "stopping", "n_rows", "n_features"),
    *("n_classes", "n_support", "objective", "rho", "sampled_gap", "certified_gap", "pair_gap"),
    *("iterations", "steps", "kernel_evaluations", "passes", "rows_read", "bytes_read", "seconds"),
    *("sweep_seconds", "peak_rss_bytes", "model"),
]


def test_json_log_and_model_agree(ooc_fw, data_file, tmp_path):
    log = tmp_path / "log.jsonl"
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--json", "--C", 5, "--log", log)
    assert outcome.status == 0
    result = json.loads(outcome.out)
    assert set(result) == set(KEYS)
    assert result["status"] == "converged"
    assert 0 <= result["certified_gap"] <= result["tol"]
    assert result["n_rows"] == 200
    assert result["model"] == str(tmp_path / "m.h5")
    assert result["peak_rss_bytes"] > 10_000_000
    assert all(result[name] > 0 for name in ("gamma", "rho", "passes", "iterations", "rows_read"))
    assert sum(result["steps"].values()) > 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert events[0]["event"] == "start"
    assert events[0]["options"]["tol"] == 1e-3
    assert events[-1] == {"event": "end", **result}
    model = load_model(tmp_path / "m.h5")
    (machine,) = model.classifiers
    assert len(machine.alpha) == result["n_support"]
    assert machine.rho == result["rho"]
    assert machine.certified_gap == result["certified_gap"]
    assert model.kernel.gamma == result["gamma"]
    assert model.C == 5
    assert model.classes.tolist() == [-7, 3]
    assert model.scaling.kind == "minmax"
    with h5py.File(data_file) as file:
        expected = file["X"][...][machine.rows]
        labels = np.where(file["y"][...][machine.rows] == 3, 1, -1)
    assert np.array_equal(model.support_vectors[machine.sv], expected)
    assert np.array_equal(machine.labels, labels)


def test_default_output_stands_beside_the_data(ooc_fw, data_file, tmp_path):
    copy = tmp_path / "set.h5"
    copy.write_bytes(data_file.read_bytes())
    outcome = ooc_fw("train", copy)
    assert outcome.out == f"{tmp_path / 'set.model.h5'}\n"
    assert "converged: relative gap" in outcome.err
    assert "certified over all rows" in outcome.err
    load_model(tmp_path / "set.model.h5")


def test_quiet(ooc_fw, data_file, tmp_path):
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--quiet")
    assert outcome == (0, f"{tmp_path / 'm.h5'}\n", "")


def test_verbose_says_sizes_choices_and_phases(ooc_fw, data_file, tmp_path):
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--verbose")
    assert outcome.status == 0
    for words in (
        "train.h5: 200 rows, 4 features",
        "ooc-fw: method corrective",
        "ooc-fw: memory plan: program ",
        "ooc-fw: train after ",
        "ooc-fw: certify after ",
        "converged: relative gap",
    ):
        assert words in outcome.err
    assert "warning" not in outcome.err
    assert "ooc-fw:" not in ooc_fw("train", data_file, "-o", tmp_path / "m.h5").err


def test_running_out_of_iterations_warns_and_writes_the_model(ooc_fw, data_file, tmp_path):
    limit = "--method", "fw", "--max-iter", 1
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--json", "--quiet", *limit)
    assert outcome.status == 0
    assert "warning: stopped by max_iter before the relative gap reached 0.001" in outcome.err
    assert json.loads(outcome.out)["status"] == "max_iter"
    load_model(tmp_path / "m.h5")


def test_without_certificate_the_gap_is_unknown(ooc_fw, data_file, tmp_path):
    options = "--json", "--lmo", "sampled", "--no-certify"
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", *options)
    result = json.loads(outcome.out)
    assert result["certified_gap"] is None
    assert load_model(tmp_path / "m.h5").classifiers[0].certified_gap is None
    assert result["status"] == "sampled"
    assert "over the rows drawn last, not certified" in outcome.err
    assert "warning" not in outcome.err


def test_seed_fixes_the_file(ooc_fw, data_file, tmp_path):
    for name in ("a.h5", "b.h5"):
        ooc_fw("train", data_file, "-o", tmp_path / name, "--seed", 3, "--lmo", "sampled")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_array_file_with_labels(ooc_fw, table, tmp_path):
    np.save(tmp_path / "X.npy", table.X)
    np.save(tmp_path / "y.npy", table.y)
    kernel = "--kernel", "poly", "--gamma", 0.5, "--degree", 3, "--coef0", 1
    outcome = ooc_fw("train", tmp_path / "X.npy", "--labels", tmp_path / "y.npy", *kernel)
    assert (outcome.status, outcome.out) == (0, f"{tmp_path / 'X.model.h5'}\n")
    model = load_model(tmp_path / "X.model.h5")
    assert model.kernel.to_dict() == {"name": "poly", "gamma": 0.5, "degree": 3, "coef0": 1}
    assert model.scaling is None


def test_foreign_names_in_the_file(ooc_fw, table, tmp_path):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["rows"], file["target"] = table
    outcome = ooc_fw("train", tmp_path / "d.h5", "--x-name", "rows", "--y-name", "target")
    assert outcome.status == 0


def test_help_names_every_kernel_and_step_rule(ooc_fw):
    words = ooc_fw("train", "--help").out.replace(",", " ").split()
    assert {*KERNELS, *STEP_RULES} <= set(words)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kernel", "cosine"), "kernel must be one of rbf, linear, poly, laplacian"),
        (("--method", "newton"), "'newton'"),
        (("--lmo", "half"), "--lmo: must be one of auto, full, sampled, not 'half'"),
        (("--C", "nan"), "--C: must be a positive number, not 'nan'"),
        (("--gamma", "0"), "--gamma: must be auto or a positive number, not '0'"),
        (("--max-iter", "-1"), "--max-iter: must be a whole number that is not negative"),
        (("--class-weight", "1"), "--class-weight: must be class weights LABEL=W,... or balanced"),
        (("--class-weight", "3=1,"), "must be class weights"),
        (("--class-weight", "3=x"), "must be class weights"),
        (("--class-weight", "5=1"), "a weight for 5.0, which is no label"),
        (("--class-weight", "3=0"), "the weight of class 3.0 must be a positive number"),
        (("--class-weight", "spam=2"), "must name labels"),
        (("-o", "{data}"), "would replace the input {data}"),
        (("--log", "{data}"), "would replace the input {data}"),
        (("-o", "/none/m.h5"), "the directory /none does not exist"),
        (("--log", "/none/log"), "the directory /none does not exist"),
        (("-o", "{folder}"), "{folder} is a directory"),
    ],
)
def test_unusable_option(ooc_fw, data_file, tmp_path, arguments, message):
    before = data_file.read_bytes()
    names = {"data": data_file, "folder": tmp_path}
    arguments = (argument.format(**names) for argument in arguments)
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", *arguments)
    outcome.assert_refused(message.format(**names))
    assert list(tmp_path.iterdir()) == []
    assert data_file.read_bytes() == before


def test_unusable_data(ooc_fw, table, text_file, tmp_path):
    ooc_fw("train", tmp_path / "none.h5").assert_refused(str(tmp_path / "none.h5"))
    ooc_fw("train", text_file).assert_refused(str(text_file), "ooc-fw convert")
    (tmp_path / "e.h5").touch()
    ooc_fw("train", tmp_path / "e.h5").assert_refused("e.h5")
    np.save(tmp_path / "X.npy", table.X)
    np.save(tmp_path / "y.npy", np.zeros(len(table.y)))
    outcome = ooc_fw("train", tmp_path / "X.npy", "--labels", tmp_path / "y.npy")
    outcome.assert_refused("rows of two classes")


def test_three_classes_from_training_to_certificate(ooc_fw, table, tmp_path):
    """With labels that are words, which every command reads and writes."""
    words = np.array(["groß", "klein", "mittel"])
    y = words[np.argsort(np.argsort(table.X[:, 0])) * 3 // len(table.X)]
    np.save(tmp_path / "X.npy", table.X)
    np.save(tmp_path / "y.npy", y)
    data = [tmp_path / "X.npy", "--labels", tmp_path / "y.npy"]
    outcome = ooc_fw("train", *data, "-o", tmp_path / "m.h5", "--C", 10, "--json")
    result = json.loads(outcome.out)
    assert result["status"] == "converged"
    assert result["n_classes"] == 3
    assert [(each["negative"], each["positive"]) for each in result["machines"]] == [
        ("groß", "klein"), ("groß", "mittel"), ("klein", "mittel"),
    ]  # fmt: skip
    gaps = [each["certified_gap"] for each in result["machines"]]
    assert result["certified_gap"] == max(gaps) <= 1e-3
    assert "the worst of 3 pairs of classes" in outcome.err

    outcome = ooc_fw("certify", tmp_path / "m.h5", *data, "--json")
    assert outcome.status == 0
    certified = json.loads(outcome.out)
    assert [each["certified_gap"] for each in certified["machines"]] == pytest.approx(
        gaps, rel=1e-3, abs=1e-7
    )
    lines = ooc_fw("certify", tmp_path / "m.h5", *data).out.splitlines()
    assert lines[-1].startswith("klein against mittel  ")

    predicted = ooc_fw("predict", tmp_path / "m.h5", tmp_path / "X.npy").out.split()
    outcome = ooc_fw("evaluate", tmp_path / "m.h5", *data, "--json")
    assert json.loads(outcome.out)["accuracy"] == (np.array(predicted) == y).mean() > 0.9
    lines = ooc_fw("predict", "--decision", tmp_path / "m.h5", tmp_path / "X.npy").out.splitlines()
    assert {len(line.split()) for line in lines} == {3}


# -- class weights -------------------------------------------------------------------------------


def test_class_weights_are_in_the_model_and_its_certificate(ooc_fw, data_file, tmp_path):
    path = tmp_path / "m.h5"
    outcome = ooc_fw("train", data_file, "-o", path, "--C", 2, "--class-weight=-7=0.5,3=4")
    assert outcome.status == 0
    model = load_model(path)
    (machine,) = model.classifiers
    np.testing.assert_array_equal(machine.C, np.where(machine.labels > 0, 8.0, 1.0))
    assert model.C == 2
    with h5py.File(data_file) as file:
        X, y = file["X"][...], np.where(file["y"][...] == 3, 1, -1).astype(np.int8)
    problem = SmallProblem(model.kernel, X, y, 2 * np.where(y > 0, 4.0, 0.5))
    truth = problem.truth(machine.rows, machine.alpha)
    result = json.loads(ooc_fw("certify", path, data_file, "--json").out)
    assert truth.gap <= result["certified_gap"] <= min(1e-3, truth.gap + 1e-6)

    ooc_fw("train", data_file, "-o", tmp_path / "plain.h5", "--C", 2)
    plain = load_model(tmp_path / "plain.h5")
    found = [(own.predict(X)[y > 0] == 3).mean() for own in (plain, model)]
    assert found[1] > found[0], "a weight favours its class"


def test_balanced_class_weights(ooc_fw, data_file, tmp_path):
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--class-weight", "balanced")
    assert outcome.status == 0
    with h5py.File(data_file) as file:
        y = file["y"][...]
    (machine,) = load_model(tmp_path / "m.h5").classifiers
    expected = np.where(machine.labels > 0, 100 / (y == 3).sum(), 100 / (y == -7).sum())
    np.testing.assert_allclose(machine.C, expected)
