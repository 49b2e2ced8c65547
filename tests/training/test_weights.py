"""Weights of rows in a file (``convert --weight``) are those of ``sample_weight``."""

import numpy as np
import pytest

from ooc_fw import FrankWolfeSVC, InputError, convert, load_model
from ooc_fw.data.opening import open_dataset


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Equal rows with weights and without, in one order, and the rows of positive weight."""
    folder = tmp_path_factory.mktemp("weights")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(160, 3))
    y = (X[:, 0] + 0.5 * rng.normal(size=160) > 0).astype(int)
    w = rng.integers(0, 4, 160) * 0.75
    for name, chosen in {"all": w >= 0, "some": w > 0}.items():
        table = np.column_stack([X, y, w])[chosen]
        np.savetxt(folder / f"{name}.csv", table, "%.9g", ",", header="a,b,c,y,w", comments="")
    for name, of in {"weighted": "all", "plain": "all", "positive": "some"}.items():
        used = {"drop": ["w"]} if name == "plain" else {"weight": "w"}
        convert(folder / f"{of}.csv", folder / f"{name}.h5", label="y", scale="standard", **used)
    return folder


def weights_in(path):
    with open_dataset(path) as source:
        weights, ids = source.beside["weight"][0 : source.n_rows], source.row_ids(0, source.n_rows)
        return weights, weights[np.argsort(ids)]


@pytest.mark.parametrize("task", ["classification", "regression", "novelty"])
def test_tune_takes_the_weights_of_the_file(files, ooc_fw, tmp_path, task):
    data, model = files / "positive.h5", tmp_path / "m.h5"
    how = ["--task", task, "--kernel", "rbf", "--C", 1, "--gamma", 0.5, "--max-time", "20s"]
    if task == "regression":
        convert(files / "some.csv", tmp_path / "r.h5", label="y", weight="w", task=task)
        data = tmp_path / "r.h5"
    how += ["--ordinary", "1"] if task == "novelty" else []
    ooc_fw("tune", data, "-o", model, *how, "--quiet").done()
    found = load_model(model)
    weights, _ = weights_in(data)
    is_row = found.rows >= 0
    ratios = found.penalties[is_row] / weights[found.rows[is_row]]
    np.testing.assert_allclose(ratios, found.C)
    assert "has rows of weight 0" in ooc_fw("tune", files / "weighted.h5", "-o", model).err


def test_partial_fit_refuses_weights(files):
    with pytest.raises(InputError, match="weights of rows, which a stream does not take"):
        FrankWolfeSVC().partial_fit(files / "weighted.h5", classes=[0, 1])
