"""Files that ooc-fw 0.2 wrote are read, and say what they said then."""

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


def unpacked(name, folder):
    path = folder / f"{name}.h5"
    path.write_bytes(lzma.decompress((GOLDEN / f"{name}.h5.xz").read_bytes()))
    return path


@pytest.mark.parametrize("name", [name for name in EXPECTED if name != "data"])
def test_models_of_0_2_are_read_for_ever(tmp_path, name):
    expected = EXPECTED[name]
    model = load_model(unpacked(name, tmp_path))
    rows = pd.DataFrame(expected["table"]) if "table" in expected else np.array(expected["rows"])
    model.save(tmp_path / "again.h5")
    for each in (model, load_model(tmp_path / "again.h5")):
        values = each.decision_function(rows)
        np.testing.assert_allclose(values, expected["decision"], rtol=0, atol=DECISION_ACCURACY)
        if expected["task"] == "regression":
            np.testing.assert_allclose(each.predict(rows), expected["predicted"], rtol=1e-6)
        else:
            assert each.predict(rows).tolist() == expected["predicted"]
        if "probability" in expected:
            np.testing.assert_allclose(
                each.predict_proba(rows), expected["probability"], atol=DECISION_ACCURACY
            )
        assert each.kernel.to_dict() == expected["kernel"]
        assert each.classes.tolist() == expected["classes"]
        assert len(each.support_vectors) == expected["n_support"]
        assert (each.columns and list(each.columns)) == expected["columns"]
        names = {*expected} & {"task", "kind", "status", "C", "n_weighted", "certified_gap"}
        names |= {*expected} & {"offset", "spread", "epsilon"}
        assert {n: getattr(each, n) for n in names} == {n: expected[n] for n in names}


def test_models_of_0_2_are_certified(tmp_path):
    model, data = (unpacked(name, tmp_path) for name in ("regression", "data"))
    found = load_model(model).certify(str(data))
    assert found.certified_gap == pytest.approx(EXPECTED["regression"]["certified_gap"], rel=1e-3)


def test_data_of_0_2_are_read(tmp_path):
    expected = EXPECTED["data"]
    with open_dataset(str(unpacked("data", tmp_path))) as source:
        np.testing.assert_array_equal(to_dense(source.read(0, 3)), expected["rows"])
        assert source.labels(0, 3).tolist() == expected["labels"]
        assert source.row_ids(0, 3).tolist() == expected["ids"]
        assert (list(source.columns), source.n_rows) == (expected["columns"], expected["n_rows"])
        assert source.scaling.kind == expected["scaling"]
