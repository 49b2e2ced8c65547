"""A model takes tables and cells by the names of their columns, without the training file."""

import sys
import warnings
from contextlib import chdir
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest

from ooc_fw import load_model, open_dataset
from ooc_fw.cli.main import main
from tests.support.contracts import to_dense
from tests.support.methods import grid


@pytest.mark.parametrize("task", grid(["classification", "regression"], quick=1))
def test_a_table_gives_what_its_converted_file_gives(ooc_fw, tmp_path, monkeypatch, task):
    """With categories and dates, as CSV and Parquet: the same decisions to the last bit."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    of_classes = task == "classification"
    for name in ("train", "test"):
        rows = [
            f"k{rng.integers(30)},{rng.normal():.3f},2024-0{rng.integers(1, 9)}-07T{hour}:00,"
            f"{('good', 'bad')[int(hour > 12)] if of_classes else hour / 7}"
            for hour in rng.integers(10, 20, 200)
        ]
        Path(f"{name}.csv").write_text("\n".join(["city,x,when,kind", *rows]) + "\n")
    arrow_csv, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow_csv.read_csv("test.csv"), "test.parquet")
    options = "--label kind --target-encode city --dates when --scale standard".split()
    options += [] if of_classes else ["--task", "regression"]
    ooc_fw("convert", "train.csv", "train.h5", *options, "--quiet").done()
    ooc_fw("train", "train.h5", "-o", "m.h5", "--task", task, "--quiet").done()
    decision = ["--decision"] * of_classes
    for like in ("train.h5", "m.h5"):
        ooc_fw("convert", "test.csv", "test.h5", "--like", like, "--quiet").done()
        expected = ooc_fw("predict", "m.h5", "test.h5", *decision).out
        for table in ("test.csv", "test.parquet"):
            outcome = ooc_fw("predict", "m.h5", table, *decision)
            assert outcome.out == expected
            assert "left out" not in outcome.err
    results = [
        ooc_fw("evaluate", "m.h5", name, "--json").json() for name in ("test.csv", "test.h5")
    ]
    assert results[0] == pytest.approx(results[1]) if not of_classes else results[0] == results[1]


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
    ooc_fw("convert", "none.csv", "gaps.h5", *drop).assert_refused("none.csv holds no rows")


@pytest.mark.parametrize(("suffix", "rows"), grid([("h5ad", "X"), ("zarr", "layers/log")], quick=1))
def test_cells_are_named_from_conversion_to_prediction(ooc_fw, here, cells, suffix, rows):
    """Through split and model, to cells whose genes are in another order."""
    name, x_name = f"cells.{suffix}", ("--x-name", rows)
    taken = *x_name, "--label", "cell_type", "--missing-labels", "drop"
    ooc_fw("convert", name, "whole.h5", *taken, "--log1p", "--scale", "maxabs").done()
    ooc_fw("split", "whole.h5", "train.h5", "test.h5").done()
    ooc_fw("train", "train.h5", "-o", "new.h5", "--C", "3").done()
    genes = tuple(cells.var_names)
    assert load_model("new.h5").columns == genes
    predicted = np.array(ooc_fw("predict", "new.h5", name, *x_name).out.split())
    known = ~np.asarray(cells.obs["cell_type"].isna())
    of_whole = ooc_fw("predict", "new.h5", "whole.h5").out.split()
    assert predicted[known].tolist() == of_whole, "raw cells are scaled"
    right = predicted[known] == cells.obs["cell_type"][known]
    found = ooc_fw("evaluate", "new.h5", "whole.h5", "--json").json()
    assert found["accuracy"] == np.mean(right) > 0.7
    cells[:, ::-1].copy().write_h5ad("other.h5ad")
    assert ooc_fw("predict", "new.h5", "other.h5ad", *x_name).out.split() == predicted.tolist()
    for like in ("train.h5", "new.h5"):
        ooc_fw("convert", name, "a.h5", *taken, "--like", like).done()
        ooc_fw("convert", "other.h5ad", "b.h5", *taken, "--like", like).done()
        with open_dataset("a.h5") as first, open_dataset("b.h5") as second:
            assert tuple(first.columns) == tuple(second.columns) == genes
            found = [to_dense(source.read(0, 226)) for source in (first, second)]
            np.testing.assert_array_equal(*found)


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
        assert "have labels unknown to the model (other)" in own.err
    else:
        assert own.done().json()["accuracy"] == pytest.approx(accuracy)
    if form == MODELS[name].split()[0]:
        labels = ["--labels", "y.npy"] * ("outside" in name)
        ooc_fw("certify", path, form, *labels).done()
