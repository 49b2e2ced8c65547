"""Tables go to a model by the names of their columns, without the training file."""

import json
import sys

import numpy as np
import pytest

from ooc_fw.model.record import load_model
from tests.support.methods import grid

CITIES = ("Rom", "Köln, am Rhein", "Oslo")


def lines(rng, n_rows, *, words):
    """Rows of a table with categories, missing numbers and labels."""
    yield "age,city,income,kind"
    for _ in range(n_rows):
        age, city, income = rng.integers(18, 90), rng.choice(CITIES), rng.gamma(2, 900)
        positive = bool((age > 50) ^ (city == "Rom"))
        kind = ("bad", "good")[positive] if words else (1, 2)[positive]
        yield f'{age if rng.random() > 0.05 else ""},"{city}",{income:.2f},{kind}'


@pytest.fixture(params=grid(["words", "numbers"], quick=1))
def trained(request, ooc_fw, tmp_path):
    """A table, its converted file and a model."""
    table, data, model = tmp_path / "t.csv", tmp_path / "t.h5", tmp_path / "m.h5"
    rows = lines(np.random.default_rng(0), 300, words=request.param == "words")
    table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    encoding = ("--one-hot", "city", "--impute", "mean", "--scale", "standard", "--log1p")
    ooc_fw("convert", table, data, "--label", "kind", *encoding, "--quiet").done()
    ooc_fw("train", data, "-o", model, "--C", 10, "--quiet").done()
    return table, data, model


def test_a_table_gives_what_its_converted_file_gives(ooc_fw, trained, tmp_path):
    arrow_csv, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    table, data, model = trained
    parquet.write_table(arrow_csv.read_csv(table), tmp_path / "t.parquet")
    for options in ((), ("--decision",)):
        expected = ooc_fw("predict", model, data, *options).out
        for other in (table, tmp_path / "t.parquet"):
            assert ooc_fw("predict", model, other, *options, "--quiet").out == expected
    expected, found = (
        ooc_fw("evaluate", model, name, "--json", "--quiet").json() for name in (data, table)
    )
    assert found["accuracy"] == expected["accuracy"] > 0.9
    assert found["confusion"] == expected["confusion"]
    loaded = load_model(model)
    assert loaded.columns == ("age", "city=Köln, am Rhein", "city=Oslo", "city=Rom", "income")
    assert json.loads(loaded.table)["label"] == "kind"


@pytest.mark.parametrize("task", grid(["classification", "regression"], quick=1))
def test_encoded_categories_and_dates_of_a_test_file(ooc_fw, tmp_path, task):
    """A test file, its table and Parquet of it get the same decisions, to the last bit."""
    arrow_csv, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    names = ("train", "test")
    for name in names:
        rows = [
            f"k{rng.integers(30)},{rng.normal():.3f},2024-0{rng.integers(1, 9)}-07T{hour}:00,"
            f"{('good', 'bad')[int(hour > 12)] if task == 'classification' else hour / 7}"
            for hour in rng.integers(10, 20, 200)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["city,x,when,kind", *rows]) + "\n")
    parquet.write_table(arrow_csv.read_csv(tmp_path / "test.csv"), tmp_path / "test.parquet")
    train, test, model = (tmp_path / name for name in ("train.h5", "test.h5", "m.h5"))
    encoding = ("--target-encode", "city", "--dates", "when")
    targets = ["--task", "regression"] * (task == "regression")
    scale = ("--scale", "standard")
    options = ("--label", "kind", *encoding, *scale, *targets, "--quiet")
    ooc_fw("convert", tmp_path / "train.csv", train, *options).done()
    ooc_fw("train", train, "-o", model, "--task", task, "--quiet").done()
    for like in (train, model):
        ooc_fw("convert", tmp_path / "test.csv", test, "--like", like, "--quiet").done()
        decision = ["--decision"] * (task == "classification")
        expected = ooc_fw("predict", model, test, *decision).out
        for table in ("test.csv", "test.parquet"):
            outcome = ooc_fw("predict", model, tmp_path / table, *decision)
            assert outcome.out == expected
            assert "left out" not in outcome.err


def test_columns_are_found_by_name_without_labels(ooc_fw, trained, tmp_path, monkeypatch):
    _, _, model = trained
    new = tmp_path / "new.csv"
    new.write_text("income,city,extra,age,kind\n100.5,Rom,1,60,\n2000,Paris,1,,?\n")
    outcome = ooc_fw("predict", model, new, "--decision").done()
    assert "1 missing values became the means" in outcome.err
    assert "column 'city': 1 rows without a category" in outcome.err
    converted = tmp_path / "new.h5"
    new.write_text("income,city,age\n100.5,Rom,60\n2000,Paris,\n")
    ooc_fw("convert", new, converted, "--like", model, "--quiet").done()
    assert ooc_fw("predict", model, converted, "--decision").out == outcome.out
    with open(new) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert ooc_fw("predict", model, "-", "--decision", "--quiet").out == outcome.out


def test_what_a_table_lacks_is_named(ooc_fw, trained, tmp_path):
    model, new, header = trained[-1], tmp_path / "new.csv", "income,city,age\n"
    for text, reason in (
        ("income,city\n100.5,Rom\n", f"new.csv lacks column 'age', which {model} needs"),
        (
            header + "100.5,Rom,old\n",
            "new.csv, line 2: column 'age' does not hold a number but 'old'; correct the row",
        ),
        (
            header + "100.5,Rom,1e300\n",
            "not finite, beyond float32, without log1p",
        ),
        ("1 1:2 2:3\n", "it has 1 1:2 2:3: add or rename what is missing"),
        (header, "new.csv has no rows; give a table with rows in it"),
    ):
        new.write_text(text)
        outcome = ooc_fw("predict", model, new)
        outcome.assert_refused(reason)
    new.write_text(header + "100.5,Rom,1\n")
    ooc_fw("evaluate", model, new).assert_refused("has no column 'kind'", "--label")
    ooc_fw("predict", model, new, "--dask", "local").assert_refused("--dask is not for tables")


def test_rows_without_a_label_can_be_left_out(ooc_fw, trained, tmp_path):
    table, _, model = trained
    header, *rows = table.read_text(encoding="utf-8").splitlines()
    bare = [row.rpartition(",")[0] + "," for row in rows[:7]]
    gaps, rest = tmp_path / "gaps.csv", tmp_path / "rest.csv"
    gaps.write_text("\n".join([header, *bare, *rows[7:]]), encoding="utf-8")
    rest.write_text("\n".join([header, *rows[7:]]), encoding="utf-8")
    ooc_fw("evaluate", model, gaps).assert_refused("the label is missing", "--missing-labels drop")
    converted, drop = tmp_path / "gaps.h5", ("--missing-labels", "drop", "--like", model)
    outcome = ooc_fw("convert", gaps, converted, *drop).done()
    assert "7 rows without a label are left out" in outcome.err
    found = ooc_fw("evaluate", model, converted, "--json").json()
    expected = ooc_fw("evaluate", model, rest, "--json").json()
    assert found["confusion"] == expected["confusion"]
    gaps.write_text("\n".join([header, *bare]), encoding="utf-8")
    ooc_fw("convert", gaps, converted, *drop).assert_refused("gaps.csv holds no rows")
    labels = "--labels", tmp_path / "y.npy"
    ooc_fw("evaluate", model, rest, *labels).assert_refused("has its labels in a column")
