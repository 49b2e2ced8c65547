"""Data sets of the benchmarks: lines of text and made rows are where they should be."""

import lzma
from dataclasses import replace

import h5py
import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from bench import datasets, made
from tests.support.files import write_dense


@pytest.mark.process
def test_a_set_is_made_once_or_refused(tmp_path, capsys):
    small = replace(datasets.DATASETS["clustered-1e4"], source=datasets.Made("clustered", 500))
    prepared = datasets.prepare(small, tmp_path, tmp_path)
    assert (prepared.n_rows, prepared.n_features, prepared.n_classes) == (500, 8, 2)
    assert prepared.rows_bytes == 4 * 500 * 8
    written = prepared.train.stat().st_mtime_ns
    assert datasets.prepare(small, tmp_path, tmp_path) == prepared
    assert prepared.train.stat().st_mtime_ns == written
    assert datasets.main(["w7a", "-o", str(tmp_path / "a.h5"), "--data", str(tmp_path)]) == 1
    assert "w7a.xz" in capsys.readouterr().err


def test_split_keeps_every_row_once_and_relabels(tmp_path):
    lines = [f"{k % 3} {k + 1}:1\n" for k in range(300)]
    with lzma.open(tmp_path / "some.xz", "wt") as file:
        file.writelines(lines)
    texts = datasets.split("some.xz", 0.3, positive="2")(tmp_path, tmp_path)
    train, held_out = (text.read_text().splitlines() for text in texts)
    assert sorted(train + held_out) == sorted(f"{int(k % 3 == 2)} {k + 1}:1" for k in range(300))
    assert 50 <= len(held_out) <= 130


@pytest.fixture
def kdd(tmp_path):
    """Rows as of the converted KDD99: a column of many values, a 0/1 one, and one of zeros."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.random(400), rng.integers(2, size=400), np.zeros(400)])
    X[::5, 0] = 0
    y = np.where(np.arange(400) % 2, -1.0, 1.0)
    return [write_dense(tmp_path / f"{k}.h5", X.astype(np.float32), y) for k in range(2)]


def test_connections_move_what_has_many_values_and_keep_zeros(kdd, tmp_path, monkeypatch):
    monkeypatch.setattr(made, "BLOCK_ROWS", 300)
    paths = tmp_path / "train.h5", tmp_path / "test.h5"
    made.main("connections", "1000", *map(str, paths), *map(str, kdd))
    with h5py.File(paths[0]) as file, h5py.File(kdd[0]) as base, h5py.File(paths[1]) as test:
        X, own = file["X"][:], base["X"][:, 0]
        assert abs(np.mean(file["y"][:] == -1) - made.NORMAL_SHARE) < 0.05
        assert sorted(test["X"][:, 0]) == sorted(own)  # the test rows stay as they are
    assert set(X[:, 1]) == {0, 1}
    assert not X[:, 2].any()
    moved = X[X[:, 0] > 0, 0]
    assert len(np.unique(moved)) > 0.95 * len(moved)
    assert abs(np.mean(X[:, 0] == 0) - 0.2) < 0.06
    assert np.abs(moved[:, None] - own).min(axis=1).max() < 6 * made.JITTER
    assert (X.min(), X.max()) == (0, 1)


def test_one_hot_rows_have_one_level_of_each_category(tmp_path):
    paths = tmp_path / "train.h5", tmp_path / "test.h5"
    made.main("one-hot", "2000", *map(str, paths))
    X, y = made.read_labelled(paths[0], np.float32)
    ends = np.cumsum(made.LEVELS)[:-1]
    assert X.shape == (2000, sum(made.LEVELS))
    assert all((part.sum(axis=1) == 1).all() for part in np.split(X.toarray(), ends, axis=1))
    assert 0.2 < np.mean(y == 1) < 0.8


def test_digits_are_deformed_and_keep_their_labels(tmp_path):
    rng = np.random.default_rng(0)
    blurred = gaussian_filter(rng.normal(size=(10, 28, 28)), (0, 3, 3)).reshape(10, -1)
    X = np.clip(4 * blurred[:, :780], 0, 1).astype(np.float32)
    base = [write_dense(tmp_path / f"{k}.h5", X, np.arange(10.0)) for k in range(2)]
    paths = tmp_path / "train.h5", tmp_path / "test.h5"
    made.main("digits", "200", *map(str, paths), *map(str, base))
    rows, y = made.read_labelled(paths[0], np.float32)
    assert rows.shape == (200, 784)
    assert len(np.unique(rows, axis=0)) == 200
    assert (0 <= rows.min()) & (rows.max() <= 1)
    # A digit is nearer to its deformed copies than the others are.
    pixels = np.pad(X, ((0, 0), (0, 4)))
    nearest = np.square(rows[:, None] - pixels).sum(axis=2).argmin(axis=1)
    assert np.mean(nearest == y) > 0.9
    assert np.array_equal(made.read_labelled(paths[1], np.float32)[0][:, :780], X.astype("f2"))
