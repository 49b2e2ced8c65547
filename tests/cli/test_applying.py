"""A model takes tables and cells by the names of their columns, without the training file."""

import sys
import warnings
from contextlib import chdir
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest

from ooc_fw import load_model, open_dataset
from ooc_fw.cli.main import main


def test_columns_are_found_by_name_without_labels(ooc_fw, here, monkeypatch):
    Path("new.csv").write_text("income,city,extra,age,kind\n100.5,Rom,1,60,\n2000,Paris,1,,?\n")
    outcome = ooc_fw("predict", "people.model.h5", "new.csv", "--decision").done()
    assert "1 missing values became the means" in outcome.err
    assert "column 'city': 1 of 2 rows have a category that" in outcome.err
    Path("new.csv").write_text("income,city,age\n100.5,Rom,60\n2000,Paris,\n")
    ooc_fw("convert", "new.csv", "new.h5", "--like", "people.model.h5", "--quiet").done()
    assert ooc_fw("predict", "people.model.h5", "new.h5", "--decision").out == outcome.out
    with open("new.csv") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        found = ooc_fw("predict", "people.model.h5", "-", "--decision", "--quiet")
    assert found.out == outcome.out


def test_rows_without_a_label_can_be_left_out(ooc_fw, here):
    header, *rows = Path("people.csv").read_text(encoding="utf-8").splitlines()
    bare = [row.rpartition(",")[0] + "," for row in rows[:7]]
    for name, lines in (("gaps", bare + rows[7:]), ("rest", rows[7:]), ("none", bare)):
        Path(f"{name}.csv").write_text("\n".join([header, *lines]), encoding="utf-8")
    drop = "--missing-labels", "drop", "--like", "people.model.h5"
    outcome = ooc_fw("convert", "gaps.csv", "gaps.h5", *drop).done()
    assert "7 rows without a label are left out" in outcome.err
    found, expected = (
        ooc_fw("evaluate", "people.model.h5", name, "--json").json()
        for name in ("gaps.h5", "rest.csv")
    )
    assert found["confusion"] == expected["confusion"]
    ooc_fw("convert", "none.csv", "gaps.h5", *drop).assert_refused("none.csv holds no row with a")


# -- layers, joins, label columns and labels from outside, in all orders ---------------------------

LAYER = "--x-name layers/counts"
JOIN = "NK=T,T=T,*=other"
MODELS = {  # how a model is trained
    "raw": f"cells.h5ad {LAYER} --label kind",
    "raw-outside": f"cells.h5ad {LAYER} --labels y.npy",
    "all": "all.h5",
    "all-outside": "all.h5 --labels y.npy",
    "part": "part.h5",
    "part-outside": "part.h5 --labels y.npy",
    "joined": "joined.h5",
    "joined-part": "joined-part.h5",
}
FORMS = ("cells.h5ad", "all.h5", "plain.h5", "rest.h5", "joined-rest.h5")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Cells with counts in a layer and other values in X, in all forms, and models of them."""
    folder = tmp_path_factory.mktemp("paths")
    rng = np.random.default_rng(0)
    which = rng.integers(0, 4, 160)
    counts = rng.poisson(1 + 3 * np.eye(4, 6)[which]).astype(np.float32)
    names = np.array(["B", "Mono, late", "NK", "T"])[which]
    obs = pd.DataFrame({"kind": pd.Categorical(names)}, index=[f"c{k}" for k in range(160)])
    cells = anndata.AnnData(counts[::-1].copy(), obs=obs)
    cells.layers["counts"] = counts
    np.save(folder / "y.npy", names)
    np.save(folder / "counts.npy", counts)
    commands = [
        f"convert cells.h5ad all.h5 {LAYER} --label kind",
        f"convert cells.h5ad plain.h5 {LAYER} --label kind --no-shuffle",
        f"convert cells.h5ad joined.h5 {LAYER} --label kind --labels-as {JOIN}",
        *("split all.h5 part.h5 rest.h5", "split joined.h5 joined-part.h5 joined-rest.h5"),
        *(f"train {how} -o {name}.model.h5" for name, how in MODELS.items()),
    ]
    with chdir(folder), warnings.catch_warnings(action="ignore"):
        cells.write_h5ad("cells.h5ad")
        for command in commands:
            assert main([*command.split(), "--quiet"]) == 0, command
    return folder


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_labels_are_the_same_whichever_way(ooc_fw, paths, monkeypatch, name, form):
    monkeypatch.chdir(paths)
    path = f"{name}.model.h5"
    model = load_model(path)
    expected = model.predict(np.load("counts.npy"))
    truth = np.load("y.npy")
    joins = "joined" in name
    if joins:
        truth = np.where(np.isin(truth, ["NK", "T"]), "T", "other")
    out = paths / "predicted.csv"
    assert "--x-name" not in ooc_fw("predict", path, form, "-o", out).done().err
    found = pd.read_csv(out, dtype={"label": str})
    rows = found["row"].to_numpy()
    assert found["label"].tolist() == expected[rows].tolist()
    assert len(rows) == (48 if "rest" in form else 160)
    assert model.predict(form).tolist() == expected[np.sort(rows)].tolist()
    accuracy = np.mean(expected[rows] == truth[rows])
    outside = ooc_fw("evaluate", path, form, "--labels", "y.npy", "--json").done()
    assert outside.json()["accuracy"] == pytest.approx(accuracy)
    # A model of labels from outside knows no column of labels.
    label = ["--label", "kind"] * ("outside" in name and form == "cells.h5ad")
    own = ooc_fw("evaluate", path, form, *label, "--json")
    if "joined" in form and not joins:
        assert "have labels unknown to the model ('other')" in own.err
    else:
        assert own.done().json()["accuracy"] == pytest.approx(accuracy)
    if form == MODELS[name].split()[0]:
        labels = ["--labels", "y.npy"] * ("outside" in name)
        ooc_fw("certify", path, form, *labels).done()


@pytest.mark.parametrize("kind", ["csv", "txt", "npy"])
def test_a_join_of_labels_is_remembered(ooc_fw, tmp_path, monkeypatch, kind):
    """By the model, the parts of its file and files like it: raw labels are joined the same way."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = rng.integers(1, 5, 120)
    X = rng.normal(size=(120, 3)) + 2 * np.eye(5, 3)[y - 1]
    rows = [",".join(map(str, row)) for row in np.column_stack([X, y]).tolist()]
    Path("t.csv").write_text("\n".join(["a,b,c,kind", *rows, ""]))
    lines = [
        f"{k} " + " ".join(f"{j}:{v}" for j, v in enumerate(x, 1))
        for k, x in zip(y, X, strict=True)
    ]
    Path("t.txt").write_text("\n".join([*lines, ""]))
    np.save("t.npy", X)
    np.save("y.npy", y)
    labels = {"csv": ["--label", "kind"], "txt": [], "npy": ["--labels", "y.npy"]}[kind]
    outside = labels * (kind == "npy")
    data, join = f"t.{kind}", "1=1,3=1,*=0"
    ooc_fw("convert", data, "j.h5", "--labels-as", "1=3,*=*", *labels).done()
    with open_dataset("j.h5") as source:
        assert {*map(float, source.labels(0, source.n_rows))} == {2, 3, 4}
    ooc_fw("convert", data, "j.h5", "--labels-as", join, "--scale", "maxabs", *labels).done()
    ooc_fw("split", "j.h5", "part.h5", "rest.h5").done()
    ooc_fw("train", "part.h5", "-o", "m.h5", "--quiet").done()
    assert join in ooc_fw("info", "m.h5").done().out
    expected = ooc_fw("evaluate", "m.h5", "j.h5", "--json").done().json()
    assert expected["accuracy"] > 0.8
    assert ooc_fw("evaluate", "m.h5", data, *outside, "--json").done().json() == expected
    for like in ("m.h5", "rest.h5"):
        ooc_fw("convert", data, "like.h5", "--like", like, *outside).done()
        assert ooc_fw("evaluate", "m.h5", "like.h5", "--json").done().json() == expected
    ooc_fw("train", data, *outside, "--stream", "--resume", "m.h5", "-o", "u.h5").done()
    assert ooc_fw("evaluate", "u.h5", data, *outside, "--json").done().json()["accuracy"] > 0.8


def test_another_layer_than_that_of_training_is_told(ooc_fw, paths, monkeypatch):
    monkeypatch.chdir(paths)
    for command in ("evaluate", "predict"):
        run = ooc_fw(command, "raw.model.h5", "cells.h5ad", "--x-name", "X").done()
        assert (
            "the rows of cells.h5ad are its X, but the training rows were layers/counts" in run.err
        )
    told = ooc_fw("info", "joined.model.h5").done().words
    assert "x_name layers/counts label kind labels_as" in told
    cells = anndata.read_h5ad("cells.h5ad")
    model = load_model("raw.model.h5")
    assert model.predict(cells).tolist() == model.predict(np.load("counts.npy")).tolist()
    like = "convert", "cells.h5ad", "like.h5", "--like", "all.model.h5"
    assert ooc_fw(*like).done().err.count("layers/counts") == 0
    assert model.predict("like.h5").tolist() == model.predict(cells).tolist()
    assert "training rows were layers/counts" in ooc_fw(*like, "--x-name", "X").done().err


def test_labels_of_other_rows_are_not_those_of_training(ooc_fw, tmp_path, monkeypatch):
    """Even if there are as many: whoever names other rows names their labels."""
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(80, 2))
    with h5py.File("two.h5", "w") as file:
        file["X_train"], file["y_train"] = X[:40], X[:40, 0] > 0
        file["X_test"], file["y_test"] = X[40:], X[40:, 0] > 0
        file["X_more"] = X
    train = "train", "two.h5", "--x-name", "X_train", "--label", "y_train", "-o", "m.h5"
    ooc_fw(*train).done()
    assert ooc_fw("evaluate", "m.h5", "two.h5", "--json").done().json()["n_rows"] == 40
    test = "m.h5", "two.h5", "--x-name", "X_test"
    assert "has no labels; name them (--label)" in ooc_fw("evaluate", *test).err
    told = ooc_fw("evaluate", *test, "--label", "y_test").done().err
    assert "the rows of two.h5 are its X_test, but the training rows were X_train" in told
    ooc_fw("predict", "m.h5", "two.h5", "--x-name", "X_more").done()


def test_rows_without_names_may_lack_what_follows_the_features(ooc_fw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{a},{b},{'yes' if a > b else 'no'},{c}" for a, b, c in rng.integers(0, 99, (80, 3))]
    Path("t.csv").write_text("\n".join([*rows, ""]))
    for width in (2, 3):
        short = [",".join(row.split(",")[:width]) for row in rows]
        Path(f"{width}.csv").write_text("\n".join([*short, ""]))
    ooc_fw("convert", "t.csv", "t.h5", "--no-header", "--label", 2, "--drop", 3).done()
    ooc_fw("train", "t.h5", "-o", "m.h5", "--quiet").done()
    expected = ooc_fw("predict", "m.h5", "t.csv").done().out
    for width in (2, 3):
        result = ooc_fw("predict", "m.h5", f"{width}.csv").done()
        assert result.out == expected
        assert f"{width}.csv has {width} columns, taken for the first of 4" in result.err
    ooc_fw("convert", "2.csv", "2.h5", "--like", "m.h5").done()
    assert ooc_fw("predict", "m.h5", "2.h5").done().out == expected
    ooc_fw("evaluate", "m.h5", "2.csv").assert_refused("has no column '2'")
    Path("two.csv").write_text("1,yes\n2,no\n")
    said = "does not hold a number but 'yes'; correct", "one of the 2 columns is out of place"
    ooc_fw("predict", "m.h5", "two.csv").assert_refused(*said)
    Path("1.csv").write_text("1\n2\n")
    ooc_fw("predict", "m.h5", "1.csv").assert_refused("1 columns", "has 4", "by their place")
    # Without its label in front, a row would be read one place off.
    ooc_fw("convert", "t.csv", "t.h5", "--no-header", "--label", 0, "--drop", "2,3").done()
    ooc_fw("train", "t.h5", "-o", "m.h5", "--quiet").done()
    ooc_fw("predict", "m.h5", "3.csv").assert_refused("has 3 columns", "by their place")
