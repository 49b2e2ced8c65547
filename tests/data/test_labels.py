"""Label values and their codes."""

from dataclasses import replace

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.convert.convert import convert
from ooc_fw.data import labels as labels_module
from ooc_fw.data.labels import (
    are_numbers,
    codes_of,
    encode_labels,
    feature_places,
    label_values,
    read_targets,
)
from ooc_fw.data.opening import open_source
from ooc_fw.estimators import FrankWolfeSVC
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError


def test_labels_of_any_type():
    for labels in ([3, -7, 3], [1.5, 0.5, 1.5], [True, False, True], ["b", "a", "b"]):
        classes, codes = encode_labels(open_source(np.eye(3), labels))
        assert classes.tolist() == sorted(set(labels))
        assert codes.tolist() == [1, 0, 1]


WORDS = {
    "numbers": (["0", "1.0", " 2", "1", "0 "], [0, 1, 2, 1, 0]),
    "words": (["a", " b", "b ", "1", "a"], ["a", "b", "b", "1", "a"]),
    "missing": (["1", "nan", "", "2", "NA"], [1, None, None, 2, None]),
}


def write_words(folder, container, words):
    """Rows with labels that are words; returns what `open_source` and convert take."""
    X, path = np.arange(2 * len(words), dtype=np.float32).reshape(-1, 2), folder / "data"
    if container == "hdf5":
        with h5py.File(path, "w") as file:
            file["X"], file["y"] = X, words
    elif container == "anndata":
        obs = pd.DataFrame({"y": pd.Categorical(words)}, index=[*map(str, range(len(words)))])
        anndata.AnnData(X, obs=obs).write_h5ad(path)
    elif container == "zarr":
        path = folder / "data.zarr"
        group = zarr.open_group(path, mode="w")
        group["X"] = X
        group.create_array("y", shape=len(words), dtype=str)[:] = np.array(words, dtype=object)
    elif container == "npy":
        np.save(folder / "X.npy", X)
        np.save(folder / "y.npy", np.array(words))
        return folder / "X.npy", folder / "y.npy"
    else:
        frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": words})
        frame.to_csv(path.with_suffix(".csv"), index=False, quoting=1)
        return path.with_suffix(".csv"), None
    return path, None


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("container", ["hdf5", "anndata", "zarr", "npy", "csv"])
def test_one_rule_for_labels_of_all_containers(tmp_path, container, words):
    """Converted or read as it is, a file has the same labels."""
    given, expected = WORDS[words]
    data, labels = write_words(tmp_path, container, given)
    expected = [label for label in expected if label is not None]
    drop = "drop" if words == "missing" else "refuse"
    options = ConvertOptions(label="y", missing_labels=drop)
    if labels is not None:
        options = replace(options, label=None, labels=str(labels))
    if container != "csv":
        with open_source(data, labels, label="y", missing_labels=drop) as source:
            assert source.labels(0, source.n_rows).tolist() == expected
    if words == "missing":
        with pytest.raises(InputError, match=r"label .*is missing.*--missing-labels drop"):
            convert([str(data)], tmp_path / "out.h5", replace(options, missing_labels="refuse"))
    convert([str(data)], tmp_path / "out.h5", options)
    with open_source(tmp_path / "out.h5") as source:
        order = np.argsort(source.row_ids(0, source.n_rows))
        assert source.labels(0, source.n_rows)[order].tolist() == expected
    given = zarr.open(data)["y"] if container == "zarr" else np.array(given)
    in_ram = open_source(np.eye(5), given, missing_labels=drop)
    assert in_ram.labels(0, in_ram.n_rows).tolist() == expected


@pytest.mark.parametrize("stored", ["codes categories", "values mask", "y"])
def test_large_whole_numbers_are_not_merged(tmp_path, stored):
    """In columns of AnnData they are words."""
    large = np.array([2**53, 2**53 + 1])
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["X"] = np.eye(2)
        if stored == "y":
            file["obs/kind"] = large
        elif stored == "values mask":
            file["obs/kind/values"], file["obs/kind/mask"] = large, [False, False]
        else:
            file["obs/kind/categories"], file["obs/kind/codes"] = large, [0, 1]
    source = open_source(tmp_path / "f.h5", label="kind")
    if stored == "y":
        with pytest.raises(InputError, match="is a whole number that float64 does not tell"):
            label_values(source)
    else:
        assert label_values(source).tolist() == [str(value) for value in large]


def test_codes_of_no_class_are_no_class(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["X"], file["y"] = np.eye(3), np.array([0.0, 1.0, 0.0])
        file["y"].attrs["label_names"] = np.array([b"a", b"b"])
    for code, message in ((-1.0, "label of row 1 of .* is missing"), (2.0, "none of its cat")):
        with h5py.File(tmp_path / "f.h5", "a") as file:
            file["y"][1] = code
        with pytest.raises(InputError, match=message):
            label_values(open_source(tmp_path / "f.h5"))


def test_classes_that_are_words_and_labels_that_are_numbers():
    """A model that was fitted to words such as "10" knows the labels of a file."""
    found = codes_of(np.array([10.0, 9.0, 10.0]), np.array(["10", "9"]), "rows")
    assert found.tolist() == [0, 1, 0]


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, ""])
def test_missing_words_in_ram_are_named_by_their_row(missing):
    y = np.array(["a", "b", missing, "a"], dtype=object)
    for labels in (y, pd.Series(y)):
        with pytest.raises(InputError, match="the label of row 2 of y is missing"):
            FrankWolfeSVC().fit(np.eye(4), labels)


@pytest.mark.parametrize("words", [False, True])
def test_labels_in_one_column(words, tmp_path):
    """Labels of shape (n, 1) are one for each row."""
    y = np.array([[1], [0], [1]])
    y = np.array(["no", "yes"], dtype=object)[y] if words else y
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["X"], file["kind"] = np.eye(3), y
    store = zarr.open_group(tmp_path / "t.zarr", mode="w")
    store["X"] = np.eye(3)
    store.create_array("kind", shape=(3, 1), dtype=str if words else "i8")[:] = y
    convert([tmp_path / "t.h5"], tmp_path / "c.h5", ConvertOptions(label="kind", shuffle=False))
    file = h5py.File(tmp_path / "t.h5")
    sources = [open_source(np.eye(3), labels) for labels in (y, file["kind"], store["kind"])]
    sources += [open_source(tmp_path / name, label="kind") for name in ("t.h5", "t.zarr")]
    sources.append(open_source(tmp_path / "c.h5"))
    for source in sources:
        assert source.labels(1, 3).tolist() == y[1:, 0].tolist()


def test_labels_and_rows_that_no_array_can_be_are_refused(tmp_path):
    with pytest.raises(InputError, match="one number or text for each row"):
        open_source(np.eye(2), sp.csr_array([[1], [0]]))
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["X"], file["y"] = np.eye(3), 1.0
    options = ConvertOptions(label="y")
    for use in (open_source, lambda path: convert([path], tmp_path / "c.h5", options)):
        with pytest.raises(InputError, match="'y' must be one number or text for each row"):
            use(tmp_path / "t.h5")
    X, y = np.eye(4), np.array([0, 1, 0, 1])
    fitted = FrankWolfeSVC().fit(X, y)
    masked = np.ma.masked_equal(X, 1)
    for use in (open_source, fitted.predict, lambda rows: fitted.fit(rows, y)):
        with pytest.raises(InputError, match="rows and labels cannot be masked arrays; fill"):
            use(masked)
    with pytest.raises(InputError, match="cannot be masked arrays"):
        fitted.fit(X, np.ma.masked_equal(y, 1))


@given(
    labels=st.lists(st.sampled_from([-1.5, 0.0, 7.0, 8.0, 9.0, 11.0]), min_size=1, max_size=20),
    part=st.integers(1, 5),
)
def test_against_definition(labels, part):
    source = open_source(np.eye(len(labels)), np.array(labels))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels_module, "LABEL_ROWS", part)
        names = sorted(set(labels))
        if len(names) == 1:
            with pytest.raises(InputError, match=r"have the label"):
                encode_labels(source)
            return
        classes, codes = encode_labels(source)
    assert classes.tolist() == names
    assert codes.tolist() == [names.index(label) for label in labels]


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_whole_numbers_that_float64_merges(kind):
    labels = np.array([2**53, 2**53 + 1, 7, 2**62 + 1], dtype=kind)
    with pytest.raises(InputError, match="row 1 of array is a whole number"):
        encode_labels(open_source(np.eye(4), labels))
    encode_labels(open_source(np.eye(2), np.array([2**53, 2**53 - 1], dtype=kind)))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "array has no labels"),
        ([2] * 5, "all rows of array have the label 2"),
        ([1, 0, np.nan, 1, 1], "row 2 of array is missing"),
        ([1, 0, 1, 1, np.inf], "row 4 of array is infinite"),
        ([np.nan, 0, 1, 1, 1], "row 0 of array is missing"),
        (np.arange(300) / 7, "array has more than 256 different labels"),
        *(
            (np.array(["a", "b", "a", missing], dtype=object), "row 3 of array is missing")
            for missing in (None, np.nan, pd.NA, pd.NaT, "", " nan ")
        ),
    ],
)
def test_unusable_labels(labels, message, monkeypatch):
    monkeypatch.setattr(labels_module, "LABEL_ROWS", 2)
    source = open_source(np.eye(5 if labels is None else len(labels)), labels)
    with pytest.raises(InputError, match=message):
        encode_labels(source)


def test_words_are_no_targets():
    """A word is shown as it stands in the file, not as numpy represents it."""
    with pytest.raises(InputError, match=r"array are words, and a regression"):
        read_targets(open_source(np.eye(2), np.array(["T", "F"])))


NAMES = st.lists(st.sampled_from(["a", "b", "c", "0", "1", "2"]), min_size=1, max_size=4)


@given(own=NAMES | st.none(), features=NAMES | st.none())
def test_columns_are_the_features_or_it_is_said(own, features):
    """Only equal names, and numbers, are matched by position without a word."""
    said = []
    both = own is not None and features is not None
    are_bare = [names is None or are_numbers(names) for names in (own, features)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels_module.logger, "warning", lambda *words: said.append(words))
        try:
            places = feature_places(own, features, "it")
        except InputError:
            assert both
            is_twice = len({*own}) < len(own) or len({*features}) < len(features)
            assert set(features) - set(own) or is_twice
            return
    if places is not None:
        assert [own[place] for place in places] == features
        assert said == []
    elif both and own == features:
        assert said == []
    else:
        assert not both or not {*own} & {*features}
        assert any(are_bare)
        assert len(said) == (not all(are_bare))


def test_names_in_messages():
    assert feature_places(["x", "b", "a"], ["a", "b"], "rows").tolist() == [2, 1]
    for own, message in (
        (["a", "c"], "rows lacks the feature 'b'; give the columns"),
        (["b", "a", "a"], "rows or the model has a name twice"),
    ):
        with pytest.raises(InputError, match=message):
            feature_places(own, ["a", "b"], "rows")
