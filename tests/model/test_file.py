"""Model files: whole, damaged and impossible ones, and those of earlier versions."""

import dataclasses
import json
import lzma
import math
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import InputError, load_model, make_kernel, open_dataset
from ooc_fw.kernels.functions import KERNELS
from ooc_fw.model.prediction import DECISION_ACCURACY
from tests.support.contracts import to_dense
from tests.support.files import write_dense
from tests.support.models import make_model, minmax, random_rows, with_numbers


def fields_of(model):
    return vars(model) | {
        "support_vectors": to_dense(model.support_vectors),
        "scaling": model.scaling and vars(model.scaling),
        "classifiers": [vars(one) for one in model.classifiers],
    }


@given(st.sampled_from([*KERNELS]), st.integers(2, 4), st.integers(1, 6), st.data())
def test_save_and_load_give_the_model_back(tmp_path_factory, name, n_classes, n, data):
    """Also long names of classes, sigmoids, penalties and what a run needs."""
    path = tmp_path_factory.mktemp("model") / "model.h5"
    d, sparse, landmarks, more = data.draw(st.tuples(st.integers(1, 4), *[st.booleans()] * 3))
    kernel = make_kernel(name, gamma=0.1, degree=3, coef0=0.5)
    options = {"kernel": kernel, "sparse": sparse, "landmarks": landmarks}
    model = make_model(random_rows(n, d), n_classes, **options)
    if more:
        ones = np.ones(len(model.classifiers))
        names = ["B", "\u00e4" * 40_000, "\u00f6", "z"][:n_classes]
        model = with_numbers(model, sigmoid_a=-1.5 * ones, sigmoid_b=0.25 * ones)
        model = dataclasses.replace(
            model,
            classes=np.array(sorted(names)),
            scaling=minmax(d),
            penalties=np.arange(1.0, n + 1),
            columns=tuple(f"c{k}" for k in range(d)),
            run='{"next": "\u00e4"}',
        )
    model.save(path)
    loaded = load_model(path)
    np.testing.assert_equal(fields_of(loaded), fields_of(model))
    loaded.save(path.with_name("again.h5"))
    assert path.with_name("again.h5").read_bytes() == path.read_bytes()


def holder_of(file, place):
    """What holds an array "group/name" or an attribute "group@name", and its name there."""
    group, at, name = place.rpartition("@")
    return (file[group or "/"].attrs, name) if at else (file, place)


def put(place, value):
    """An edit of a file: a new value, what a function makes of the old one, or None for none."""

    def edit(file):
        holder, name = holder_of(file, place)
        found = value(holder[name][...]) if callable(value) else value
        if name in holder:
            del holder[name]
        if value is not None:
            holder[name] = found

    return edit


def compress(file):
    """Store values that take far more memory than the file has bytes."""
    del file["machines/beta"]
    file["machines"].create_dataset("beta", data=np.zeros(10**6), compression="gzip")


SPARSE = {"sparse": True, "scaling": minmax()}
DAMAGE = "does not match its checksum"

EDITS = [
    ({}, put("@format_version", 9), "its format is 9 and this ooc-fw reads 7; update"),
    ({}, put("@format_version", 2), "its format is 2 and this ooc-fw reads 7; train it again"),
    ({}, put("@kernel", None), "holds something else"),
    ({}, put("@kernel", "other"), DAMAGE),
    ({}, put("@status", "fine"), DAMAGE),
    ({}, put("@C", math.nan), DAMAGE),
    ({}, put("@C", None), DAMAGE),
    ({}, put("machines/beta", None), DAMAGE),
    ({}, compress, DAMAGE),
    ({}, put("rows", [0, 1, 2, 2]), DAMAGE),
    ({}, put("classes", np.arange(3.0)), DAMAGE),
    ({}, put("machines/positive", [0]), DAMAGE),
    ({}, put("machines/sv", [0, 1, 2, 4]), DAMAGE),
    ({"landmarks": True}, put("@jitter", 1e-3), DAMAGE),
    (SPARSE, put("support_vectors/indices", lambda own: own + 3), DAMAGE),
    (SPARSE, put("support_vectors@shape", [4, 2**40]), DAMAGE),
    (SPARSE, put("@scaling", None), DAMAGE),
    (SPARSE, put("scaling/factor", lambda own: own * 2), DAMAGE),
]


@pytest.mark.parametrize(("kind", "edit", "message"), EDITS)
def test_any_change_of_a_file_is_refused(tmp_path, kind, edit, message):
    path = tmp_path / "model.h5"
    make_model(random_rows(4), **kind).save(path)
    with h5py.File(path, "r+") as file:
        edit(file)
    with pytest.raises(InputError, match=message) as raised:
        load_model(path)
    assert str(path) in str(raised.value)


REGRESSION = {"landmarks": True, "classes": np.array([-1.0, 1.0]), "offset": 0.5, "spread": 2.0}

CONTRADICTIONS = [
    ({"rows": np.arange(3)}, "4 support vectors cannot have 3 numbers"),
    ({"rows": np.arange(4), "n_rows": 3}, "a support vector is none of 3 rows"),
    ({"penalties": np.ones(5)}, "4 support vectors cannot have 5 numbers"),
    ({"classes": np.arange(3.0)}, "no model has the classes .* and 1 classifiers"),
    ({"classes": np.ones(2)}, "no model has the classes"),
    ({"columns": ("a", "b")}, "it describes"),
    ({"scaling": minmax(2)}, "it describes"),
    ({"offset": 0.0}, "do not fit novelty"),
    (REGRESSION, "do not fit regression"),
    (REGRESSION | {"epsilon": 0.1, "threshold": 0.5}, "do not fit regression"),
    ({"n_classes": 3, "threshold": 0.5}, "do not fit classification"),
    ({"rho": math.nan}, "rho must be a positive number"),
    ({"landmarks": True, "size": math.inf}, "weights must be finite"),
]


@pytest.mark.parametrize(("fields", "message"), CONTRADICTIONS)
def test_fields_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        make_model(random_rows(4), **fields)


def test_classifiers_have_weights_on_vectors_of_their_model():
    model = make_model(random_rows(4))
    (one,) = model.classifiers
    for sv, message in ((one.sv + 1, "points outside 4 vectors"), (one.sv[:3], "one length")):
        with pytest.raises(InputError, match=message):
            dataclasses.replace(model, classifiers=[dataclasses.replace(one, sv=sv)])


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.999, "text", "data", None])
def test_a_file_that_is_no_model_is_refused(tmp_path, part):
    path, message = tmp_path / "model.h5", r"model\.h5 is not a model file, or is damaged"
    if part is None:
        message = r"there is no model file .*model\.h5; write one"
    elif part == "data":
        write_dense(path, random_rows(3), np.ones(3))
        message = r"model\.h5 is not a usable model file: it holds data"
    elif part == "text":
        path.write_text("+1 1:0.5\n")
    else:
        make_model(random_rows(40)).save(path)
        path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(InputError, match=message):
        load_model(path)


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
