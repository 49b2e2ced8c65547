"""Tables whose columns a model makes features, and the order of converted rows."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from ooc_fw import FrankWolfeSVC, InputError, load_model, open_dataset
from ooc_fw.convert.convert import convert
from ooc_fw.options import ConvertOptions


@pytest.fixture(scope="module")
def table_model(tmp_path_factory):
    """A model of a converted CSV of words and numbers, the frame, and the files."""
    folder, rng = tmp_path_factory.mktemp("table"), np.random.default_rng(0)
    colour = rng.choice(["red", "green", "blue"], 300)
    frame = pd.DataFrame({"size": rng.normal(size=300), "colour": colour})
    frame["y"] = np.where((frame["size"] > 0) ^ (colour == "red"), "in", "out")
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_parquet(folder / "t.parquet")
    options = ConvertOptions(label="y", scale="standard", one_hot=["colour"])
    convert([str(folder / "t.csv")], folder / "t.h5", options)
    fitted = FrankWolfeSVC(C=10, probability=True, random_state=0).fit(str(folder / "t.h5"))
    fitted.save(folder / "m.h5")
    return load_model(folder / "m.h5"), frame, folder, fitted


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "csv", "parquet", "h5"])
def test_tables_are_predicted_as_by_the_command(table_model, ooc_fw, kind):
    """In the order of their rows, which a converted file does not have."""
    model, frame, folder, fitted = table_model
    raw = frame.sample(frac=1, axis=1, random_state=0)
    table = {
        "pandas": lambda: raw.drop(columns="y"),
        "polars": lambda: pl.from_pandas(raw),
        "arrow": lambda: pa.Table.from_pandas(raw),
    }.get(kind, lambda: str(folder / f"t.{kind}"))()
    outcome = ooc_fw("predict", folder / "m.h5", folder / "t.csv")
    expected = outcome.out.split()
    assert "no labels" not in outcome.err
    assert model.predict(table).tolist() == expected
    assert (np.array(expected) == frame["y"]).mean() > 0.9
    shares = model.predict_proba(table)
    clear = shares.max(axis=1) > 0.6  # rows in doubt may have another label than the likelier one
    assert clear.mean() > 0.9
    assert (model.classes[shares.argmax(axis=1)] == expected)[clear].all()
    if isinstance(table, str) and kind == "h5":
        assert fitted.predict(table).tolist() == expected
        assert fitted.score(table) == fitted.score(table, frame["y"]) > 0.9


def test_tables_that_are_not_like_others(table_model):
    model, frame, folder, _ = table_model
    batch = pa.Table.from_pandas(frame).to_batches()[0]
    assert model.predict(batch).tolist() == model.predict(frame).tolist()
    for wrong, message in (
        (pd.concat([frame, frame[["size"]]], axis=1), "Duplicate column names"),
        (frame.assign(colour=[1, "red"] * 150), "Could not convert 'red'"),
        (frame[:0], "this DataFrame has no rows"),
        (frame.assign(colour=None), "the value in column 'colour' is missing"),
    ):
        with pytest.raises(InputError, match=message):
            model.predict(wrong)
    for rows, message in ((frame, "convert"), (str(folder / "t.csv"), "is a table; convert it")):
        with pytest.raises(InputError, match=message):
            model.importance(rows)
        with pytest.raises(InputError, match=message):
            model.certify(rows)


def test_rows_of_an_open_source_come_as_they_are_stored(table_model):
    model, _, folder, _ = table_model
    data = str(folder / "t.h5")
    with open_dataset(data) as source:
        ids = source.row_ids(0, source.n_rows)
        opened = model.predict(source)
    assert (ids != np.arange(300)).any()
    assert opened.tolist() == model.predict(data)[ids].tolist()
