"""``ooc-fw certify``, ``importance`` and ``export``."""

import pickle

import h5py
import numpy as np
import pytest
from sklearn.base import clone

from ooc_fw import FrankWolfeOneClass, FrankWolfeSVC, FrankWolfeSVR, load_model
from tests.support.reference import SmallProblem


@pytest.mark.parametrize(("name", "weights"), [("m.h5", (1, 1)), ("weighted.h5", (0.5, 4))])
def test_certify_agrees_with_brute_force_in_extended_precision(ooc_fw, here, name, weights):
    """The model has weights of classes, which the certificate takes from it."""
    outcome = ooc_fw("certify", name, "d.h5", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    result, model = outcome.json(), load_model(name)
    assert result["gap_scope"] == "all"
    assert (result["tol"], result["reached"]) == (1e-3, True)
    (classifier,) = model.classifiers
    with h5py.File("d.h5") as file:
        X, y = file["X"][...], np.where(file["y"][...] == 3, 1, -1).astype(np.int8)
    problem = SmallProblem(model.kernel, X, y, model.C * np.where(y < 0, *weights))
    truth = problem.truth(model.rows, classifier.alpha)
    assert result["rho"] == pytest.approx(float(truth.rho), rel=1e-9)
    assert truth.gap <= result["certified_gap"] <= min(1e-3, truth.gap + 1e-6)
    assert result["certified_gap"] <= result["pair_gap"] <= truth.pair_gap + 1e-6


@pytest.mark.parametrize("name", ["m.h5", "marks.h5"])
def test_a_gap_above_the_tolerance_is_status_1(ooc_fw, here, name):
    outcome = ooc_fw("certify", name, "d.h5", "--tol", 1e-9)
    assert outcome.status == 1
    line, *_ = outcome.out.splitlines()
    assert line.startswith("certified_gap  ")
    assert line.endswith("(within the span of the 20 landmarks)") == (name == "marks.h5")
    for command in (("certify", name, "d.h5"), ("info", name)):
        told = ooc_fw(*command).out.splitlines()
        known = ooc_fw(*command, "--json").json()
        shown = dict(line.split()[:2] for line in told if "_gap" in line)
        for word in shown:
            assert known[word] <= float(shown[word]) <= 1.01 * known[word]


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
    y = np.where(table.X[:, 0] > 1, 9 if several else 3, table.y)
    weights = np.where(np.arange(len(y)) % 3 == 0, 0.0, 2.0)
    weights[:40] = 0
    y[:5] = 77  # a class in which no row has weight
    data, model = tmp_path / "d.h5", tmp_path / "m.h5"
    with h5py.File(data, "w") as file:
        file["X"], file["y"] = table.X, y
    own = clone(estimator).set_params(random_state=0).fit(table.X, y, sample_weight=weights)
    own.save(model)
    assert weights[own.model_.rows].all()
    outcome = ooc_fw("certify", model, data, "--json", "--tol", 2e-2)
    assert (outcome.status, outcome.err) == (0, "")
    result, n_weighted = outcome.json(), (weights > 0).sum()
    gap = pytest.approx(own.certified_gap_, rel=1e-3, abs=1e-8)  # both have rounding
    assert (result["certified_gap"], result["gap_scope"]) == (gap, own.gap_scope_)
    assert result["n_weighted"] == n_weighted
    told = ooc_fw("info", model).done().words
    assert f"over {n_weighted} rows only; all others have no weight)" in told
    again = pickle.loads(pickle.dumps(own)).model_
    np.testing.assert_array_equal(again.weighted_rows, own.model_.weighted_rows)
    with h5py.File(data, "w") as file:
        file["X"], file["y"] = np.vstack([table.X, table.X]), np.append(y, y)
    ooc_fw("certify", model, data).assert_refused("400 rows", "give the file it was trained on")


@pytest.mark.parametrize("weights", ["equal", "different", "none"])
@pytest.mark.parametrize("kind", ["--exact", "--landmarks=20"])
def test_weights_in_the_file_are_those_of_training(ooc_fw, tmp_path, kind, weights):
    """Some of the 24 classes have no landmark, which would show the factor of their weights."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(240, 3)).round(3)
    y = np.arange(240) % 24
    w = rng.uniform(0.5, 2, 240) if weights == "different" else np.full(240, 2.0)
    w[7] *= weights != "different"
    for name in ("d", "other"):
        table = np.column_stack([X, w, y])
        np.savetxt(tmp_path / f"{name}.csv", table, "%.17g", ",", header="a,b,c,w,y", comments="")
        column = ["--drop" if weights == "none" and name == "d" else "--weight", "w"]
        files = tmp_path / f"{name}.csv", tmp_path / f"{name}.h5"
        ooc_fw("convert", *files, "--label", "y", *column).done()
        w[5] += weights != "none"  # without weights in training, 2 for all rows is another C
    model = tmp_path / "m.h5"
    how = [kind, "--tol", 0.01, *(["--class-weight", "0=3"] if weights != "none" else [])]
    told = ooc_fw("train", tmp_path / "d.h5", "-o", model, *how).err
    assert ("rows that it learns" in told) == (weights == "different")
    trained = load_model(model)
    found = ooc_fw("certify", model, tmp_path / "d.h5", "--tol", 0.01, "--json").json()
    assert found["certified_gap"] == pytest.approx(trained.certified_gap, rel=1e-6)
    words = "the weights in", "other.h5 differ from those in training"
    ooc_fw("certify", model, tmp_path / "other.h5").assert_refused(*words)


def test_importance_lists_the_columns_that_matter_most(ooc_fw, here):
    found = load_model("m.h5").importance("d.h5")
    shown = ooc_fw("importance", "m.h5", "d.h5", "--top", 2, "--quiet")
    title, head, *lines = shown.done().out.splitlines()
    assert title.startswith("change of the decision value for 3 by one standard deviation")
    assert head.split() == ["column", "importance"]
    assert [line.split()[0] for line in lines] == [found.names[k] for k in found.order[:2]]
    values = [float(line.split()[1]) for line in lines]
    np.testing.assert_allclose(values, found.values[found.order[:2]], rtol=1e-3)
    fewer = ooc_fw("importance", "m.h5", "d.h5", "--json", "--rows", 50).json()
    assert fewer["n_rows"] == 50
