"""What is found in data before a run, and what is advised."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from ooc_fw.convert import preflight
from ooc_fw.convert.preflight import advice, inspect_source, outweighing, sample_slices
from ooc_fw.data import labels as labels_module
from ooc_fw.data.opening import open_source
from ooc_fw.system.errors import InputError

storages = pytest.mark.parametrize("storage", [np.asarray, csr_array])


def inspect(X, storage=np.asarray):
    return inspect_source(open_source(storage(np.asarray(X, dtype=np.float32))))


@storages
def test_findings_equal_those_of_numpy(storage):
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(500, 6)) * 8) / 8
    X[rng.random(X.shape) < 0.3] = 0
    X[:, 2] = 3
    X[:, 4] = 0
    X[100:140] = X[:40]
    X += 0.0  # no -0, which a dense row tells from 0
    found = inspect(X, storage)
    n_repeated = 500 - len(np.unique(X, axis=0))
    assert (found.n_looked, found.n_bad, found.n_repeated) == (500, 0, n_repeated)
    np.testing.assert_allclose(found.low, X.min(axis=0))
    np.testing.assert_allclose(found.high, X.max(axis=0))
    assert found.density == pytest.approx(np.count_nonzero(X) / X.size)


@storages
def test_rows_that_are_not_finite_are_counted_and_left_out(storage):
    X = np.ones((300, 3))
    X[7, 1] = X[8, 2] = X[250, 0] = np.inf
    found = inspect(X, storage)
    assert (found.n_looked, found.n_bad) == (300, 3)
    assert found.high.tolist() == [1, 1, 1]
    found = inspect(np.full((1, 2), np.nan))
    assert (found.n_bad, found.n_repeated, found.density) == (1, 0, 0)


def test_damage_is_no_finding(tmp_path):
    np.save(tmp_path / "X.npy", np.ones((100, 3)))
    with open_source(tmp_path / "X.npy") as source:
        (tmp_path / "X.npy").write_bytes((tmp_path / "X.npy").read_bytes()[:500])
        with pytest.raises(InputError, match="was changed while it was in use"):
            inspect_source(source)


def test_sample_of_a_large_source_comes_from_all_over_it(monkeypatch):
    monkeypatch.setattr(preflight, "SAMPLE_BYTES", 40_000)
    source = open_source(np.zeros((100_000, 1)))
    slices = sample_slices(source)
    assert sum(stop - start for start, stop in slices) == pytest.approx(10_000, rel=0.02)
    assert len(slices) == preflight.STRETCHES
    ends = [place for one in slices for place in one]
    assert ends == sorted(ends)
    assert np.diff([start for start, _ in slices]).max() < 3 * 100_000 / preflight.STRETCHES
    assert slices == sample_slices(source)
    assert inspect_source(source).n_looked == sum(stop - start for start, stop in slices)
    assert sample_slices(open_source(np.zeros((10_000, 1)))) == [(0, 10_000)]


def test_columns_that_outweigh_others():
    for columns, heavy, n_small in (
        ([[0, 1], [0, 1000]], [1], 1),
        ([[0, 1], [0, 5]], [], 0),
        ([[0, 1], [0, 1000], [0, 900], [7, 7]], [1, 2], 1),
        ([[3, 3], [5, 5]], [], 0),
        ([], [], 0),
    ):
        low, high = np.array(columns, float).reshape(-1, 2).T
        found, n_found = outweighing(low, high)
        assert (found.tolist(), n_found) == (heavy, n_small)


def test_labels_are_counted_in_blocks(monkeypatch):
    monkeypatch.setattr(labels_module, "_FIRST_LABELS", 7)
    monkeypatch.setattr(labels_module, "LABEL_BYTES", 56)
    y = np.array([1.0] * 20 + [2.0] * 20 + [np.nan] + [3.0] * 9)
    found = inspect_source(open_source(np.ones((50, 1)), y))
    assert found.counts == {1: 20, 2: 20, 3: 9}
    assert found.n_unlabelled == 1
    assert inspect_source(open_source(np.ones((5, 1)))).counts is None


def said(X, y=None, **known):
    """Advice on rows, as one text; the source says what is `known`."""
    source = open_source(np.asarray(X, dtype=np.float32), y)
    found = inspect_source(source)
    for name, value in {"shuffled": True, **known}.items():
        setattr(source, name, value)
    return "\n".join(sentence for sentence, *_ in advice(found, source))


def test_advice():
    rng = np.random.default_rng(0)
    X, y = rng.random((100, 3)), rng.permutation([0.0, 1.0] * 50)
    assert said(X, y) == ""
    holed = np.where((np.arange(100) == 3)[:, None], np.nan, X)
    for words, rows, labels, known in (
        ("there are no labels", X, None, {}),
        ("all labels that were read are the same", X, np.zeros(100), {}),
        ("regression", np.ones((200, 1)), np.arange(200.0), {}),
        ("1 labels are missing", X, np.where(np.arange(100) == 3, np.nan, y), {}),
        ("next to b (from ", X * [[1, 1000, 1]], y, {"columns": ["a", "b", "c"]}),
        ("next to 1 (from ", X * [[1, 1000, 1]], y, {}),
        ("2 others hardly count", X * [[1, 1000, 1]], y, {}),
        ("may be in any order", X, y, {"shuffled": None}),
        ("may be in any order", X, y, {"shuffled": False}),
        ("1 of 100 rows hold values that are missing or not finite: ", holed, y, {}),
    ):
        assert words in said(rows, labels, **known)
