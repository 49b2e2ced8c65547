import tracemalloc

import h5py
import numpy as np
import pytest

from ooc_fw.convert.writer import split
from ooc_fw.data.opening import draw_test_rows, open_source
from ooc_fw.data.views import SubsetSource
from tests.support.contracts import to_dense


def rows_of(path):
    """Rows, labels and row numbers of a file."""
    with open_source(str(path)) as source:
        n = source.n_rows
        return to_dense(source.read(0, n)), source.labels(0, n), source.row_ids(0, n)


def convert(ooc_fw, tmp_path, *options):
    """A table of 60 rows with a category, words as labels and scaled columns."""
    lines = ["size,colour,kind"]
    lines += [f"{k},{'red' if k % 3 else 'blue'},{'cat' if k % 5 else 'dog'}" for k in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    data = tmp_path / "data.h5"
    table = "--label", "kind", "--one-hot", "colour", "--scale", "standard"
    ooc_fw("convert", tmp_path / "t.csv", data, *table, *options).done()
    return data


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--sparse", "--scale", "none"), marks=pytest.mark.grid),
        pytest.param(("--no-shuffle",), marks=pytest.mark.grid),
    ],
)
def test_the_parts_are_the_rows_of_the_file(ooc_fw, tmp_path, options):
    data = convert(ooc_fw, tmp_path, *options)
    train, test = tmp_path / "train.h5", tmp_path / "test.h5"
    parts = ooc_fw("split", data, train, test, "--test-share", "0.25", "--json").json()["parts"]
    assert [part["n_rows"] for part in parts] == [45, 15]
    assert [part["classes"] for part in parts] == [{"cat": 36, "dog": 9}, {"cat": 12, "dog": 3}]
    whole, both = rows_of(data), [rows_of(path) for path in (train, test)]
    order = np.argsort(whole[2])
    place = {tuple(row): k for k, row in enumerate(whole[0][order].tolist())}
    found = []
    for X, y, ids in both:
        np.testing.assert_array_equal(np.sort(ids), np.arange(len(X)))
        places = np.array([place[tuple(row)] for row in X.tolist()])
        np.testing.assert_array_equal(np.argsort(places), np.argsort(ids))  # in the input's order
        np.testing.assert_array_equal(y, whole[1][order][places])
        found += places.tolist()
    assert sorted(found) == list(range(60))
    with h5py.File(data) as one, h5py.File(train) as other:
        same = {*one.attrs} - {
            "n_rows",
            "class_counts",
            "mean_square_norm",
            "source",
            "shuffle_seed",
        }
        same -= {name for name in one.attrs if "crc" in name or "check" in name}
        for name in same:
            assert np.array_equal(one.attrs[name], other.attrs[name]), name
    for path in (train, test):
        ooc_fw("verify", path).done()
    ooc_fw("train", train, "-o", tmp_path / "m.h5").done()
    ooc_fw("evaluate", tmp_path / "m.h5", test).done()


def test_rows_without_labels_and_rows_of_an_array(ooc_fw, tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    parts = [tmp_path / "a.h5", tmp_path / "b.h5"]
    ooc_fw("split", tmp_path / "X.npy", *parts, "--seed", "3").done()
    with open_source(str(parts[1])) as source:
        assert not source.has_labels
        rows = [int(np.flatnonzero((X == row).all(axis=1))[0]) for row in source.read(0, 12)]
        assert rows == sorted(set(rows))


def test_parts_take_few_bytes_a_row(tmp_path):
    """And their rows are numbered anew in the order of the input."""
    n = 400_000
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["X"], file["y"] = rng.normal(size=(n, 1)).astype(np.float32), np.arange(n) % 3.0
    with open_source(str(tmp_path / "d.h5")) as source:
        source.ids = rng.permutation(n)
        tracemalloc.start()
        test_rows = draw_test_rows(source, 0.3, 0, stratify=True)
        outputs = [tmp_path / "a.h5", tmp_path / "b.h5"]
        split(source, test_rows, outputs)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        with SubsetSource(source, test_rows) as part:
            expected = np.argsort(np.argsort(part.row_ids(0, part.n_rows)))
    np.testing.assert_array_equal(rows_of(outputs[1])[2], expected)
    assert peak < 50 * n + 40e6


def test_the_mark_of_a_regression_file_stays(ooc_fw, tmp_path):
    """Though its targets have six values only; a file of many classes stays one of classes."""
    rng = np.random.default_rng(0)
    lines = ["x,y", *(f"{rng.normal():.3f},{k % 6}" for k in range(120))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    whole, train, test, later = (tmp_path / f"{name}.h5" for name in "wtel")
    table = "--label", "y", "--task", "regression", "--quiet"
    ooc_fw("convert", tmp_path / "t.csv", whole, *table).done()
    parts = ooc_fw("split", whole, train, test, "--json").json()["parts"]
    assert [part["classes"] for part in parts] == [{}, {}]
    ooc_fw("convert", tmp_path / "t.csv", later, "--like", train, "--quiet").done()
    for path in (whole, train, test, later):
        with open_source(str(path)) as source:
            assert source.targets is True
        for command in ("train", "tune"):
            refused = ooc_fw(command, path, "-o", tmp_path / "m.h5")
            refused.assert_refused("marked as targets; train with --task regression")
        assert "--task regression" in ooc_fw("info", path).out
    ooc_fw("train", train, "--task", "regression", "-o", tmp_path / "m.h5", "--quiet").done()
    ooc_fw("evaluate", tmp_path / "m.h5", test).done()
