from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from ooc_fw.kernels.functions import KERNELS
from ooc_fw.model.record import load_model
from ooc_fw.solve.steps import STEP_RULES

KEYS = {
    "status": str,
    "method": str,
    "lmo": str,
    "kernel": str,
    "gamma": float,
    "C": float,
    "tol": float,
    "stopping": str,
    "n_rows": int,
    "n_features": int,
    "n_classes": int,
    "n_support": int,
    "objective": float,
    "rho": float,
    "sampled_gap": float | None,
    "certified_gap": float | None,
    "pair_gap": float | None,
    "iterations": int,
    "steps": dict,
    "kernel_evaluations": int,
    "passes": float,
    "rows_read": int,
    "bytes_read": int,
    "seconds": float,
    "sweep_seconds": float,
    "peak_rss_bytes": int,
    "model": str,
}


def test_json_has_the_promised_keys(ooc_fw, data_file, tmp_path):
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--json", "--C", 5)
    assert outcome.status == 0
    result = json.loads(outcome.out)
    assert list(result) == list(KEYS)
    for name, kind in KEYS.items():
        assert isinstance(result[name], kind), name
    assert result["status"] == "converged"
    assert 0 <= result["certified_gap"] <= result["tol"]
    assert result["n_rows"] == 200
    assert result["model"] == str(tmp_path / "m.h5")
    assert result["peak_rss_bytes"] > 10_000_000


def test_model_file_holds_what_was_reported(ooc_fw, data_file, tmp_path):
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--json", "--C", 5)
    result = json.loads(outcome.out)
    model = load_model(tmp_path / "m.h5")
    (machine,) = model.machines
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


def test_running_out_of_iterations_warns_and_writes_the_model(ooc_fw, data_file, tmp_path):
    outcome = ooc_fw(
        "train", data_file, "-o", tmp_path / "m.h5", "--json", "--quiet",
        "--method", "fw", "--max-iter", 1,
    )  # fmt: skip
    assert outcome.status == 0
    assert "warning: stopped by max_iter before the relative gap reached 0.001" in outcome.err
    assert json.loads(outcome.out)["status"] == "max_iter"
    load_model(tmp_path / "m.h5")


def test_without_certificate_the_gap_is_unknown(ooc_fw, data_file, tmp_path):
    outcome = ooc_fw(
        "train", data_file, "-o", tmp_path / "m.h5", "--json",
        "--lmo", "sampled", "--no-certify",
    )  # fmt: skip
    result = json.loads(outcome.out)
    assert result["certified_gap"] is None
    assert load_model(tmp_path / "m.h5").machines[0].certified_gap is None
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
    outcome = ooc_fw(
        "train", tmp_path / "X.npy", "--labels", tmp_path / "y.npy", "--json",
        "--kernel", "poly", "--gamma", 0.5, "--degree", 3, "--coef0", 1,
    )  # fmt: skip
    assert outcome.status == 0
    assert json.loads(outcome.out)["model"] == str(tmp_path / "X.model.h5")
    model = load_model(tmp_path / "X.model.h5")
    assert model.kernel.to_dict() == {"name": "poly", "gamma": 0.5, "degree": 3, "coef0": 1}
    assert model.scaling is None


def test_foreign_names_in_the_file(ooc_fw, table, tmp_path):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["rows"], file["target"] = table
    outcome = ooc_fw("train", tmp_path / "d.h5", "--x-name", "rows", "--y-name", "target")
    assert outcome.status == 0


def test_log(ooc_fw, data_file, tmp_path):
    log = tmp_path / "log.jsonl"
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--json", "--log", log)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert events[0]["event"] == "start"
    assert events[0]["options"]["tol"] == 1e-3
    assert events[-1].pop("event") == "end"
    assert events[-1] == json.loads(outcome.out)


def test_help_names_every_kernel_and_step_rule(ooc_fw):
    words = ooc_fw("train", "--help").out.replace(",", " ").split()
    assert {*KERNELS, *STEP_RULES} <= set(words)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--kernel", "cosine"),
            "kernel must be one of rbf, linear, poly, laplacian, not 'cosine'",
        ),
        (("--method", "newton"), "'newton'"),
        (("--lmo", "half"), "lmo must be one of auto, full, sampled, not 'half'"),
        (("--start", "cold"), "start must be one of random, farthest, not 'cold'"),
        (("--stopping", "soon"), "stopping must be one of"),
        (("--C", "0"), "--C: must be a number above 0"),
        (("--C", "nan"), "--C: must be a number above 0"),
        (("--tol", "-1"), "--tol: must be a number above 0"),
        (("--gamma", "0"), "--gamma: must be a number above 0"),
        (("--sample-size", "0"), "--sample-size: must be a whole number of at least 1, not '0'"),
        (("--max-iter", "-1"), "--max-iter: must be a whole number of at least 0, not '-1'"),
        (("--threads", "0"), "--threads: must be a whole number of at least 1"),
        (("--seed", "9" * 30), "--seed: must be a whole number of at least 0 and at most 9.2"),
    ],
)
def test_unusable_option(ooc_fw, data_file, tmp_path, arguments, message):
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", *arguments)
    outcome.assert_refused(message)
    assert list(tmp_path.iterdir()) == []


def test_missing_data(ooc_fw, tmp_path):
    ooc_fw("train", tmp_path / "none.h5").assert_refused(str(tmp_path / "none.h5"))


def test_text_in_place_of_hdf5(ooc_fw, text_file):
    ooc_fw("train", text_file).assert_refused(str(text_file), "ooc-fw convert")


def test_empty_file(ooc_fw, tmp_path):
    (tmp_path / "e.h5").touch()
    ooc_fw("train", tmp_path / "e.h5").assert_refused("e.h5")


def test_one_class(ooc_fw, table, tmp_path):
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
    assert "the worst of 3 machines" in outcome.err

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


@pytest.mark.parametrize("option", ["-o", "--log"])
def test_output_does_not_replace_the_data(ooc_fw, data_file, option):
    before = data_file.read_bytes()
    outcome = ooc_fw("train", data_file, option, data_file)
    outcome.assert_refused(f"would replace the input {data_file}")
    assert data_file.read_bytes() == before


@pytest.mark.parametrize("option", ["-o", "--log"])
def test_output_in_a_folder_that_is_not_there(ooc_fw, data_file, tmp_path, option):
    outcome = ooc_fw("train", data_file, option, tmp_path / "none" / "m.h5")
    outcome.assert_refused(f"the directory {tmp_path / 'none'} does not exist")


def test_output_that_is_a_folder(ooc_fw, data_file, tmp_path):
    ooc_fw("train", data_file, "-o", tmp_path).assert_refused(f"{tmp_path} is a directory")


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


def test_quiet_and_verbose_exclude_each_other(ooc_fw, data_file):
    ooc_fw("train", data_file, "--quiet", "--verbose").assert_refused("not allowed with")
