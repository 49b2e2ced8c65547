import pickle

import h5py
import numpy as np
import pytest
from sklearn.base import clone

from ooc_fw.estimators import FrankWolfeOneClass, FrankWolfeSVC, FrankWolfeSVR
from ooc_fw.model.record import load_model
from tests.support.reference import kernel_values


def test_brute_force_in_double_precision_agrees(ooc_fw, model_file, data_file):
    outcome = ooc_fw("certify", model_file, data_file, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    result = outcome.json()
    assert result["gap_scope"] == "all"
    assert result["pair_gap"] >= result["certified_gap"] <= 1e-3
    assert (result["tol"], result["reached"]) == (1e-3, True)
    model = load_model(model_file)
    (classifier,) = model.classifiers
    with h5py.File(data_file) as file:
        X, y = file["X"][...].astype(float), np.where(file["y"][...] == 3, 1.0, -1.0)
    distances = ((X[:, None] - X[model.rows]) ** 2).sum(axis=2)
    K = np.exp(-model.kernel.gamma * distances)
    grad = y * ((K + 1) @ (classifier.alpha * classifier.labels))
    grad[model.rows] += classifier.alpha / model.C
    rho = classifier.alpha @ grad[model.rows]
    gap = 1 - grad.min() / rho
    assert result["rho"] == pytest.approx(rho, rel=1e-9)
    assert gap <= result["certified_gap"] <= gap + 1e-6


def test_gap_above_the_tolerance_is_status_1(ooc_fw, model_file, data_file):
    outcome = ooc_fw("certify", model_file, data_file, "--tol", 1e-9)
    assert outcome.status == 1
    assert outcome.out.startswith("certified_gap  ")


def test_other_data_are_refused(ooc_fw, model_file, table, data_file, write_text, tmp_path):
    path = tmp_path / "d.h5"
    for X, y, *parts in (
        (table.X[::-1], table.y[::-1], "give the file it was trained on"),
        (table.X, -table.y, "has labels -3, 7 but the model was trained on -7, 3"),
    ):
        ooc_fw("convert", write_text(X, y), path, "--like", data_file)
        ooc_fw("certify", model_file, path).assert_refused("d.h5", *parts)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    "estimator",
    [
        FrankWolfeSVC(C=5, gamma=0.2, exact=True),
        FrankWolfeSVC(C=5, gamma=0.2, landmarks=20, tol=1e-2),
        FrankWolfeSVR(gamma=0.2),
        FrankWolfeSVR(gamma=0.2, landmarks=20, tol=1e-2),
        FrankWolfeOneClass(gamma=0.2),
        FrankWolfeOneClass(gamma=0.2, contamination=0.1),
    ],
)
def test_rows_of_weight_0_do_not_count(ooc_fw, table, tmp_path, estimator, several):
    X, y = table.X.astype(np.float32), table.y.copy()
    y[table.X[:, 0] > 1] = 9 if several else 3
    weights = np.where(np.arange(len(y)) % 3 == 0, 0.0, 2.0)
    weights[:40] = 0
    y[:5] = 77  # a class of which no row has weight
    data, model = tmp_path / "d.h5", tmp_path / "m.h5"
    with h5py.File(data, "w") as file:
        file["X"], file["y"] = X, y
    own = clone(estimator).set_params(random_state=0).fit(X, y, sample_weight=weights)
    own.save(model)
    assert weights[own.support_].all()
    assert weights[own.model_.rows].all()
    np.testing.assert_array_equal(own.solution_.rows, own.model_.rows[own.model_.classifiers[0].sv])
    outcome = ooc_fw("certify", model, data, "--json", "--tol", 2e-2)
    assert (outcome.status, outcome.err) == (0, "")
    gap = outcome.json()["certified_gap"]
    assert gap == pytest.approx(own.certified_gap_, rel=1e-3, abs=1e-8)  # both have rounding
    assert outcome.json()["gap_scope"] == own.gap_scope_
    assert outcome.json()["n_weighted"] == (weights > 0).sum()
    told = ooc_fw("info", model).done().words
    assert f"over {(weights > 0).sum()} rows alone; all others have no weight)" in told
    again = pickle.loads(pickle.dumps(own)).model_
    np.testing.assert_array_equal(again.weighted_rows, own.model_.weighted_rows)
    with h5py.File(data, "w") as file:
        file["X"], file["y"] = np.vstack([X, X]), np.append(y, y)
    ooc_fw("certify", model, data).assert_refused("400 rows", "give the file it was trained on")


def test_weights_that_landmarks_do_not_show(ooc_fw, table, tmp_path):
    """A row that is no landmark has a weight of its own."""
    data, model = tmp_path / "d.h5", tmp_path / "m.h5"
    with h5py.File(data, "w") as file:
        file["X"], file["y"] = table
    options = dict(C=5, gamma=0.2, landmarks=20, random_state=0)
    for row in range(200):
        weights = np.where(np.arange(200) == row, 50.0, 1.0)
        own = FrankWolfeSVC(**options).fit(*table, sample_weight=weights)
        margin = own.decision_function(table.X)[row] * (1 if table.y[row] == 3 else -1)
        if row not in own.support_ and margin < 0.9:
            break
    assert set(own.model_.penalties) == {5.0}
    own.save(model)
    ooc_fw("certify", model, data).assert_refused("was trained with weights of rows")


@pytest.mark.process
def test_gap_of_a_landmark_model(ooc_fw, landmark_model):
    data, model_path = landmark_model
    outcome = ooc_fw("certify", model_path, data, "--json", "--threads", 2)
    assert (outcome.status, outcome.err) == (0, "")
    result, model = outcome.json(), load_model(model_path)
    several = len(model.classes) > 2
    assert ("classifiers" in result) == several
    assert result["reached"] == (result["certified_gap"] <= result["tol"])
    assert (result["gap_scope"], result["n_support"]) == ("span", 20)
    with h5py.File(data) as file:
        X, y = file["X"][...], file["y"][...]
    Z = model.support_vectors
    K, G = (kernel_values(model.kernel, rows, Z) + 1 for rows in (X, Z))
    each = result.get("classifiers", [result])
    for sides, own, found in zip(model.named_sides, model.classifiers, each, strict=True):
        own_G = G + model.jitter * np.eye(len(Z))
        sign = np.where(y == sides["positive"], 1, -1)
        beta = model.C * np.maximum(0, 1 - sign * (K @ own.beta))
        u = K.T @ (beta * sign)
        primal = own.beta @ own_G @ own.beta / 2 + beta @ beta / model.C / 2
        v = u @ np.linalg.solve(own_G.astype(float), u.astype(float))
        dual = beta.sum() ** 2 / (v + beta @ beta / model.C) / 2
        assert primal <= found["primal"] <= primal * (1 + 1e-4)
        assert dual * (1 - 1e-4) <= found["dual"] <= dual
        assert (primal - dual) / primal <= found["certified_gap"] <= 2e-3
        assert found["certified_gap"] == (found["primal"] - found["dual"]) / found["primal"]
    assert result["certified_gap"] == pytest.approx(model.certified_gap, rel=1e-3, abs=1e-7)

    outcome = ooc_fw("certify", model_path, data, "--dask", "threads")
    lines = outcome.out.splitlines()
    assert lines[0].split()[0] == "certified_gap"
    assert lines[0].endswith("(within the span of the 20 landmarks)")
    assert ooc_fw("certify", model_path, data, "--tol", 1e-9).status == 1


def test_landmark_model_of_other_data_is_refused(ooc_fw, landmark_model):
    data, model_path = landmark_model
    with h5py.File(data, "r+") as file:
        row = int(load_model(model_path).rows[0])
        file["X"][row] += 1
    ooc_fw("certify", model_path, data).assert_refused(f"row {row}", "the file it was trained on")


@pytest.mark.parametrize(
    ("first", "options", "name"), [("dense", (), "rho"), ("sparse", ("--landmarks", 20), "primal")]
)
def test_storage_of_the_rows_may_be_another(ooc_fw, text_file, tmp_path, first, options, name):
    files = {kind: tmp_path / f"{kind}.h5" for kind in ("dense", "sparse")}
    model = tmp_path / "m.h5"
    for storage, path in files.items():
        ooc_fw("convert", text_file, path, f"--{storage}", "--scale", "maxabs").done()
    ooc_fw("train", files[first], "-o", model, "--quiet", *options).done()
    results = [ooc_fw("certify", model, path, "--json").json() for path in files.values()]
    assert results[0][name] == pytest.approx(results[1][name], rel=1e-9)
    assert max(result["certified_gap"] for result in results) <= 2e-3
