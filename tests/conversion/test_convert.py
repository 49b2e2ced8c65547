"""The file that a conversion writes: its layout, storage, scaling and what it takes from `like`."""

from functools import partial

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

from ooc_fw import convert
from ooc_fw.conversion.spool import shuffle_keys
from ooc_fw.data.opening import open_dataset
from ooc_fw.data.views import ScaledSource
from ooc_fw.options import SCALINGS
from tests.conftest import libsvm_lines
from tests.conversion.converted import read
from tests.support.contracts import to_dense

TRAIN = "+1 1:1 2:4 4:8\n-1 1:2 3:0.5\n+1 1:3 2:2\n-1 1:4\n"


@pytest.fixture
def run_text(run):
    return partial(run, format="libsvm")


@pytest.mark.parametrize("dense", [True, False])
def test_layout(run_text, tmp_path, dense):
    report, contents = run_text(TRAIN, dense=dense, shuffle=True, seed=3)
    order = np.argsort(shuffle_keys(np.arange(4), 3))
    X = np.array([[1, 4, 0, 8], [2, 0, 0.5, 0], [3, 2, 0, 0], [4, 0, 0, 0]])[order]
    np.testing.assert_array_equal(contents.X, X)
    assert contents.y.tolist() == np.array([1, -1, 1, -1])[order].tolist()
    assert contents.row.tolist() == order.tolist()
    np.testing.assert_allclose(contents.mean, X.mean(axis=0))
    np.testing.assert_allclose(contents.attrs["mean_square_norm"], (X**2).sum() / 4)
    expected = {"n_rows": 4, "n_features": 4, "shuffled": True, "shuffle_seed": 3, "complete": 1}
    assert contents.attrs.items() >= (expected | {"format_version": 2, "log1p": False}).items()
    assert (report.n_rows, report.n_features, report.sparse) == (4, 4, not dense)
    assert (report.class_counts, report.seed, report.text_bytes) == ({-1: 2, 1: 2}, 3, len(TRAIN))
    types = {"X": np.float32} if dense else {"X/data": np.float32, "X/indices": np.int32}
    with h5py.File(tmp_path / "out.h5") as file:
        assert {name: file[name].dtype for name in types} == types


@given(
    raw=arrays(np.float32, st.tuples(st.integers(1, 20), st.just(6)), elements=st.integers(0, 9)),
    kind=st.sampled_from(SCALINGS),
    how=st.fixed_dictionaries({"log1p": st.booleans(), "normalize": st.booleans()}),
    dense=st.booleans(),
    shuffle=st.booleans(),
)
def test_text_to_file_equals_the_in_memory_answer(tmp_path_factory, raw, kind, how, dense, shuffle):
    folder = tmp_path_factory.mktemp("convert")
    raw[0, 5], labels = 1, np.arange(len(raw)) % 3
    text, out = folder / "data.txt", folder / "out.h5"
    text.write_text(libsvm_lines(raw, labels))
    dense = dense or kind in ("minmax", "standard")
    convert([text], out, scale=kind, **how, shuffle=shuffle, dense=dense)
    contents = read(out)
    order = sorted(contents.row) if shuffle else contents.row.tolist()
    assert order == list(range(len(raw)))
    assert contents.attrs["shuffled"] == shuffle == ("shuffle_seed" in contents.attrs)
    np.testing.assert_array_equal(contents.y, labels[contents.row])
    expected = contents.scaling.apply(raw[contents.row], 6)
    np.testing.assert_array_equal(contents.X, expected)
    np.testing.assert_allclose(contents.mean, expected.mean(axis=0, dtype=float), atol=1e-12)


@pytest.mark.parametrize(
    ("text", "scale", "sparse", "notes"),
    [
        ("1 1:1 8:1", "none", False, 0),
        ("1 1:1 9:1", "none", True, 0),
        ("1 1:5 40:1\n2 2:6\n", "minmax", True, 0),
        ("1 1:5 40:1\n2 1:6\n", "minmax", False, 1),  # the scaling moves zeros
    ],
)
def test_storage_by_density_and_scaling(run_text, text, scale, sparse, notes):
    report, _ = run_text(text, scale=scale)
    assert (report.sparse, len(report.notes)) == (sparse, notes)
    assert not notes or "rows are stored dense" in report.notes[0]


SCALERS = {"minmax": MinMaxScaler, "maxabs": MaxAbsScaler, "standard": StandardScaler}


@pytest.mark.parametrize("log1p", [False, True])
@pytest.mark.parametrize("scale", SCALERS)
def test_values_are_scaled_before_they_are_rounded(run_text, scale, log1p):
    """Seconds since 1970, which float32 would merge; raw rows become the same bits."""
    rng = np.random.default_rng(3)
    X = np.stack([1.6e9 + rng.uniform(0, 100, 500), rng.exponential(size=500)], axis=1)
    lines = [f"{k % 2} 1:{a!r} 2:{b!r}\n" for k, (a, b) in enumerate(X.tolist())]
    report, stored = run_text("".join(lines), scale=scale, log1p=log1p)
    exact = SCALERS[scale]().fit_transform(np.log1p(X) if log1p else X)
    np.testing.assert_allclose(stored.X, exact, atol=2e-6)
    for data in (X, csr_array(X)):
        with open_dataset(data) as source:
            scaled = to_dense(ScaledSource(source, report.scaling).read(0, 500))
        np.testing.assert_array_equal(scaled, stored.X)


@pytest.mark.parametrize("scale", SCALERS)
def test_a_column_that_rounding_alone_varies_is_constant_and_named(run_text, scale):
    values = "0.3", "0.30000000000000004"
    lines = [f"{k % 2} 1:{values[k % 3 > 0]} 2:{k}\n" for k in range(9)]
    report, found = run_text("".join(lines), scale=scale)
    assert not found.X[:, 0].any()
    assert report.notes[0].startswith("feature 1: its values, from 0.2999")


@pytest.mark.parametrize(("dense", "kind"), [(True, "minmax"), (False, "maxabs")])
def test_like_takes_width_scaling_and_storage(run_text, tmp_path, dense, kind):
    _, train = run_text(TRAIN, "train.h5", dense=dense, scale=kind, log1p=True)
    text = "7 2:100 6:1\n1 5:0 1:-0.5\n"
    report, found = run_text(text, like=tmp_path / "train.h5", shuffle=True)
    assert found.scaling.same_as(train.scaling)
    raw = np.array([[0, 100, 0, 0], [-0.5, 0, 0, 0]], np.float32)
    np.testing.assert_array_equal(found.X, train.scaling.apply(raw, 4))
    assert (found.row.tolist(), bool(found.attrs["shuffled"])) == ([0, 1], False)
    assert report.notes == ("2 features beyond 4 are left out",)
    assert (report.sparse, report.class_counts) == (not dense, {1: 1, 7: 1})


@pytest.mark.parametrize("kind", ["csv", "npy"])
def test_rows_keep_their_numbers_if_others_lack_a_label(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("ooc_fw.conversion.readers.BLOCK_BYTES", 16)  # some rows at a time
    y = np.array([np.nan, 1, 2, np.nan, 1, np.nan, np.nan, 2, 2, np.nan])
    X = np.arange(20.0).reshape(10, 2)
    options = {"missing_labels": "drop", "shuffle": False}
    if kind == "npy":
        np.save(tmp_path / "y.npy", y)
        np.save(tmp_path / "X.npy", X)
        options["labels"] = str(tmp_path / "y.npy")
    else:
        lines = [f"{a},{b},{'' if c != c else c}" for (a, b), c in zip(X, y, strict=True)]
        (tmp_path / "X.csv").write_text("\n".join(["a,b,y", *lines, ""]))
        options["label"] = "y"
    convert(tmp_path / f"X.{kind}", tmp_path / "d.h5", **options)
    with open_dataset(str(tmp_path / "d.h5")) as source:
        assert source.row_ids(0, 5).tolist() == [1, 2, 4, 7, 8]
        assert source.n_input == 10
