"""Labels are the same in every container, and classes are told apart."""

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import convert
from ooc_fw.data import labels as labels_module
from ooc_fw.data.labels import LABEL_ROWS, Classes, encode_labels
from ooc_fw.data.opening import open_dataset

WORDS = {  # labels, and what they are in text: None if they are missing
    "numbers": (["0", "1.0", " 2", "1", "0 "], [0, 1, 2, 1, 0]),
    "words": (["a", " b", "b ", "1", "1.0"], ["a", "b", "b", "1", "1.0"]),
    "truths": (["true", "True", "TRUE", "x", "x"], ["true", "True", "TRUE", "x", "x"]),
    "forms": (["1E3", "1000", "1.50", "1.5", "o"], ["1E3", "1000", "1.50", "1.5", "o"]),
    "codes": (["01", "1", "1", "01", "1.0"], ["01", "1", "1", "01", "1.0"]),
    "missing": (["1", "nan", "", "2", "NA"], [1, None, None, 2, None]),
}


def write_words(folder, container, words):
    """Rows with labels that are words; returns what `open_dataset` and convert take."""
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
        path = path.with_suffix(".csv")
        frame.to_csv(path, index=False, quoting=1)
    return path, None


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("container", ["hdf5", "anndata", "zarr", "npy", "csv"])
def test_labels_of_all_containers_stay_as_they_are_but_those_of_text(tmp_path, container, words):
    """Converted or read as it is, a file has the same labels; so have they in RAM."""
    given, in_text = WORDS[words]
    data, labels = write_words(tmp_path, container, given)
    known = [label for label, known in zip(given, in_text, strict=True) if known is not None]
    expected = [label for label in in_text if label is not None] if container == "csv" else known
    drop = "drop" if words == "missing" else "refuse"
    where = {"label": "y"} if labels is None else {"labels": str(labels)}
    if container != "csv":
        with open_dataset(data, **where, missing_labels=drop) as source:
            assert source.labels(0, source.n_rows).tolist() == expected
    convert(data, tmp_path / "out.h5", **where, missing_labels=drop)
    with open_dataset(tmp_path / "out.h5") as source:
        order = np.argsort(source.row_ids(0, source.n_rows))
        assert source.labels(0, source.n_rows)[order].tolist() == expected
    in_ram = open_dataset(np.eye(5), np.array(given), missing_labels=drop)
    assert in_ram.labels(0, in_ram.n_rows).tolist() == known


@given(
    names=st.sampled_from([[-1.5, 0.0, 7.0, 11.0], [False, True], ["b", "a", "10"]]),
    seed=st.integers(0, 99),
)
def test_codes_are_places_among_the_sorted_labels(names, seed):
    """Labels of any type, of which some are met only after many rows."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(names[:1], LABEL_ROWS + 100)
    later = rng.integers(LABEL_ROWS - 50, len(labels), 50)
    labels[later] = rng.choice(names, 50)
    labels[later[0]] = names[1]
    classes, codes = encode_labels(open_dataset(np.zeros((len(labels), 1)), labels))
    assert classes.values.tolist() == sorted({*labels.tolist()})
    np.testing.assert_array_equal(classes.values[codes], labels)


@pytest.mark.parametrize(
    ("classes", "labels", "codes"),
    [
        (["10", "9"], [10.0, 9.0, 8.0], [0, 1, -1]),
        (["1", "1.0", "1e3"], [1.0, 1000.0], [0, 2]),
        (["01", "1.50", "1.5", "x"], [1.0, 1.5], [-1, 2]),  # 01 is a code
        ([1.0, 2.0], ["1", "2.0", "02", "2 ", "maybe", ""], [0, 1, -1, -1, -1, -1]),
        ([2**53, 2**53 + 1], [float(2**53), 2.0**53 + 2], [0, -1]),
        ([2**53, 2**53 + 1], [str(2**53 + 1)], [1]),
        ([False, True], ["True", "true", "0"], [1, -1, 0]),
        ([False, True], [0.0, 1.0, 2.0], [0, 1, -1]),
        (["a", "b"], ["b", "a ", "A"], [1, -1, -1]),
        ([1, 2], [1.5, np.nan, 2], [-1, -1, 1]),
    ],
)
def test_words_and_numbers_meet_by_name_and_then_by_number(classes, labels, codes):
    assert Classes(np.array(classes)).of(labels).tolist() == codes


def test_each_word_of_a_file_is_looked_at_once(tmp_path, monkeypatch):
    """Not each row: a file has many rows and few words."""
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["X"] = np.zeros((LABEL_ROWS, 1))
        file["y"] = np.resize([b"no", b"yes", b"caf\xc3\xa9"], LABEL_ROWS)
    seen = []
    as_text = labels_module.as_text
    monkeypatch.setattr(labels_module, "as_text", lambda word: seen.append(word) or as_text(word))
    with open_dataset(tmp_path / "d.h5") as source:
        classes, codes = encode_labels(source)
        assert codes[:].tolist() == np.resize([1, 2, 0], LABEL_ROWS).tolist()
    assert classes.names == ["café", "no", "yes"]
    assert len(seen) < 100
