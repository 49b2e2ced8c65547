"""Files of earlier versions are read, and say what they said when they were written."""

import json
import lzma
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ooc_fw import load_model, open_dataset
from ooc_fw.model.prediction import DECISION_ACCURACY
from tests.support.contracts import to_dense

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
DATA = EXPECTED.pop("data")
FACTS = "task kind status C n_weighted certified_gap offset spread epsilon".split()


def unpacked(name, folder):
    path = folder / f"{name}.h5"
    path.write_bytes(lzma.decompress((GOLDEN / f"{name}.h5.xz").read_bytes()))
    return path


@pytest.mark.parametrize("name", EXPECTED)
def test_a_model_is_read_for_ever(tmp_path, name):
    expected = EXPECTED[name]
    model = load_model(unpacked(name, tmp_path))
    rows = pd.DataFrame(expected["table"]) if "table" in expected else np.array(expected["rows"])
    model.save(tmp_path / "again.h5")
    for each in (model, load_model(tmp_path / "again.h5")):
        near = {"rtol": 0, "atol": DECISION_ACCURACY}
        np.testing.assert_allclose(each.decision_function(rows), expected["decision"], **near)
        if "probability" in expected:
            np.testing.assert_allclose(each.predict_proba(rows), expected["probability"], **near)
        if expected["task"] != "regression":
            assert each.predict(rows).tolist() == expected["predicted"]
        assert each.kernel.to_dict() == expected["kernel"]
        assert each.classes.tolist() == expected["classes"]
        assert len(each.support_vectors) == expected["n_support"]
        assert (each.columns and list(each.columns)) == expected["columns"]
        for fact in {*FACTS} & {*expected}:
            assert getattr(each, fact) == expected[fact]


def test_data_are_read_and_certify_their_model(tmp_path):
    data = str(unpacked("data", tmp_path))
    with open_dataset(data) as source:
        assert DATA == {
            "rows": to_dense(source.read(0, 3)).tolist(),
            "labels": source.labels(0, 3).tolist(),
            "ids": source.row_ids(0, 3).tolist(),
            "columns": list(source.columns),
            "n_rows": source.n_rows,
            "scaling": source.scaling.kind,
        }
    gap = load_model(unpacked("regression", tmp_path)).certify(data).certified_gap
    assert gap == pytest.approx(EXPECTED["regression"]["certified_gap"], rel=1e-3)
