"""LIBSVM text as an HDF5 file: what is written, from whom it learns, and what is refused."""

import io
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from converted import convert_libsvm, read
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

from ooc_fw.convert.spool import shuffle_keys
from ooc_fw.data.opening import open_source
from ooc_fw.data.views import ScaledSource
from ooc_fw.options import SCALINGS
from ooc_fw.system.errors import InputError
from tests.conftest import libsvm_lines
from tests.support.contracts import to_dense

TRAIN = "+1 1:1 2:4 4:8\n-1 1:2 3:0.5\n+1 1:3 2:-2\n-1 1:4\n"


def write(folder: Path, text: str, name: str = "data.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture
def train(tmp_path) -> Path:
    return write(tmp_path, TRAIN)


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out.h5"


@pytest.mark.parametrize(
    ("dense", "compression"), [(True, "none"), (False, "gzip"), (None, "gzip")]
)
def test_layout(train, out, dense, compression):
    report = convert_libsvm([train], out, dense=dense, seed=3, compression=compression)
    order = np.argsort(shuffle_keys(np.arange(4), 3))
    X = np.array([[1, 4, 0, 8], [2, 0, 0.5, 0], [3, -2, 0, 0], [4, 0, 0, 0]])[order]
    contents = read(out)
    np.testing.assert_array_equal(contents.X, X)
    assert contents.y.dtype == np.float64
    assert contents.y.tolist() == np.array([1, -1, 1, -1])[order].tolist()
    assert contents.row.tolist() == order.tolist()
    np.testing.assert_allclose(contents.mean, X.mean(axis=0))
    attrs = contents.attrs
    np.testing.assert_allclose(attrs.pop("mean_square_norm"), (X**2).sum() / 4)
    assert attrs.pop("class_names").tolist() == [-1, 1]
    assert attrs == {
        "format_version": 1,
        "n_rows": 4,
        "n_features": 4,
        "shuffled": True,
        "shuffle_seed": 3,
        "source": str(train).encode(),
        "scaling": b"none",
        "log1p": False,
        "complete": 1,
    }
    assert (report.n_rows, report.n_features, report.sparse) == (4, 4, dense is False)
    assert report.class_counts == {-1: 2, 1: 2}
    assert (report.seed, report.text_bytes) == (3, len(TRAIN))
    with h5py.File(out) as file:
        if not report.sparse:
            assert (file["X"].dtype, file["X"].chunks) == (np.float32, (4, 4))
            assert file["X"].compression == (None if compression == "none" else compression)
        else:
            assert dict(file["X"].attrs)["encoding-type"] == "csr_matrix"
            types = [file["X"][name].dtype for name in ("data", "indices", "indptr")]
            assert types == [np.float32, np.int32, np.int64]


@given(
    raw=arrays(np.float32, st.tuples(st.integers(1, 20), st.just(6)), elements=st.integers(0, 9)),
    kind=st.sampled_from(SCALINGS),
    log1p=st.booleans(),
    dense=st.booleans(),
    shuffle=st.booleans(),
)
def test_text_to_file_equals_the_in_memory_answer(
    tmp_path_factory, raw, kind, log1p, dense, shuffle
):
    folder = tmp_path_factory.mktemp("convert")
    raw[0, 5], labels = 1, np.arange(len(raw)) % 3
    out, dense = folder / "out.h5", dense or kind in ("minmax", "standard")
    arguments = {"scale": kind, "log1p": log1p, "shuffle": shuffle, "dense": dense}
    convert_libsvm([write(folder, libsvm_lines(raw, labels))], out, **arguments)
    contents = read(out)
    order = sorted(contents.row) if shuffle else contents.row.tolist()
    assert order == list(range(len(raw)))
    assert contents.attrs["shuffled"] == shuffle == ("shuffle_seed" in contents.attrs)
    np.testing.assert_array_equal(contents.y, labels[contents.row])
    assert contents.scaling is not None
    expected = contents.scaling.apply(raw[contents.row], 6)
    np.testing.assert_array_equal(contents.X, expected)
    np.testing.assert_allclose(contents.mean, expected.mean(axis=0, dtype=float), atol=1e-12)
    if kind == "minmax":
        assert expected.min() >= 0
        assert expected.max() <= 1


@pytest.mark.parametrize(
    ("text", "scale", "sparse", "notes"),
    [
        ("1 1:1 8:1", "none", False, 0),
        ("1 1:1 9:1", "none", True, 0),
        ("1 1:5 40:1\n2 2:6\n", "minmax", True, 0),
        ("1 1:5 40:1\n2 1:6\n", "minmax", False, 1),  # the scaling moves zeros
    ],
)
def test_storage_by_density_and_scaling(tmp_path, out, text, scale, sparse, notes):
    path = write(tmp_path, text)
    report = convert_libsvm([path], out, scale=scale)
    assert (report.sparse, len(report.notes)) == (sparse, notes)
    assert not convert_libsvm([path], out, scale=scale, dense=True).notes
    if notes:
        assert "turns zeros into other numbers: rows are stored dense" in report.notes[0]
        with pytest.raises(InputError, match="cannot stay sparse; use --scale maxabs, or leave"):
            convert_libsvm([path], out, scale=scale, dense=False)


def test_constant_columns_and_columns_beyond_n_features_are_left_out(train, tmp_path, out):
    path = write(tmp_path, "1 1:5 3:1\n2 1:5 2:6\n", "constant.txt")
    options = {"scale": "minmax", "dense": False, "shuffle": False}  # `read` sees no stored zero
    convert_libsvm([path], out, **options)
    assert read(out).X.tolist() == [[0, 0, 1], [0, 1, 0]]
    assert read(out).row.tolist() == [0, 1]
    report = convert_libsvm([train], out, n_features=2)
    assert (report.n_features, report.notes) == (2, ("2 features beyond 2 are left out",))
    assert convert_libsvm([train], out, n_features=9).n_features == 9
    assert read(out).X.shape == (4, 9)


@pytest.fixture
def offset(tmp_path):
    """A column of seconds since 1970, one that means nothing, and labels that follow the first."""
    rng = np.random.default_rng(3)
    X = np.stack([1.6e9 + rng.uniform(0, 100, 500), rng.exponential(size=500)], axis=1)
    lines = [f"{int(a > 1.6e9 + 50)} 1:{a!r} 2:{b!r}\n" for a, b in X.tolist()]
    return X, write(tmp_path, "".join(lines))


SCALERS = {"minmax": MinMaxScaler, "maxabs": MaxAbsScaler, "standard": StandardScaler}


@pytest.mark.parametrize("log1p", [False, True])
@pytest.mark.parametrize("scale", SCALERS)
def test_values_are_scaled_before_they_are_rounded(offset, out, scale, log1p):
    """And raw rows become the same bits by the scaling, whatever their storage."""
    X, text = offset
    report, stored = convert_libsvm([text], out, scale=scale, log1p=log1p), read(out)
    exact = SCALERS[scale]().fit_transform(np.log1p(X) if log1p else X)[stored.row]
    np.testing.assert_allclose(stored.X, exact, atol=2e-6)
    for data in (X, csr_array(X)):
        with open_source(data) as source:
            scaled = to_dense(ScaledSource(source, report.scaling).read(0, 500))
        np.testing.assert_array_equal(scaled[stored.row], stored.X)


@pytest.mark.parametrize("scale", ["none", "maxabs"])
def test_columns_that_float32_cannot_tell_apart_are_named(offset, tmp_path, out, scale):
    (note,) = convert_libsvm([offset[1]], out, scale=scale).notes
    assert note.startswith("feature 1: its values, from 1600000000.")
    assert f"cannot be told apart in float32 with --scale {scale}; give --scale standard" in note
    constant = write(tmp_path, "1 1:1600000000.5 2:1\n0 1:1600000000.5 2:2\n", "constant.txt")
    for path, other in ((constant, scale), (offset[1], "minmax"), (offset[1], "standard")):
        assert not convert_libsvm([path], out, scale=other).notes


@pytest.mark.parametrize("scale", SCALERS)
@pytest.mark.parametrize(
    ("one", "other"), [("0.3", "0.30000000000000004"), ("-1e9", "-1000000000.0000001")]
)
def test_columns_that_rounding_alone_varies_are_constant(tmp_path, out, scale, one, other):
    lines = [f"{k % 2} 1:{other if k % 3 else one} 2:{k}\n" for k in range(9)]
    report = convert_libsvm([write(tmp_path, "".join(lines))], out, scale=scale)
    assert not read(out).X[:, 0].any()
    (note,) = report.notes
    assert note.startswith("feature 1: its values, from ")
    assert "differ by rounding only" in note


@pytest.mark.parametrize(("dense", "kind"), [(True, "minmax"), (False, "maxabs")])
def test_like_takes_width_scaling_and_storage(tmp_path, out, dense, kind):
    like = tmp_path / "train.h5"
    text = write(tmp_path, TRAIN.replace("-2", "2"))
    convert_libsvm([text], like, dense=dense, scale=kind, log1p=True)
    test = write(tmp_path, "7 2:100 6:1\n1 5:0 1:-0.5\n", "test.txt")
    report = convert_libsvm([test], out, like=like)
    contents, scaling = read(out), read(like).scaling
    assert contents.scaling.same_as(scaling)
    raw = np.array([[0, 100, 0, 0], [-0.5, 0, 0, 0]], np.float32)
    np.testing.assert_array_equal(contents.X, scaling.apply(raw, 4))
    assert contents.X.max() > 1
    assert contents.row.tolist() == [0, 1]
    assert not contents.attrs["shuffled"]
    assert report.notes == ("2 features beyond 4 are left out",)
    assert report.sparse is not dense
    assert report.unseen_labels == (7,)
    test.write_text("1 1:1\n1 1:-1\n")
    with pytest.raises(InputError, match=r"test\.txt, line 2: .* no log1p"):
        convert_libsvm([test], out, like=like)
    with h5py.File(like, "w") as file:  # as another tool may write it
        file["X"] = np.zeros((2, 3), np.float32)
    report = convert_libsvm([test], out, like=like)
    assert (report.n_features, report.scaling.kind, report.unseen_labels) == (3, "none", ())


def test_like_a_model(offset, tmp_path, out, ooc_fw):
    text, model = offset[1], tmp_path / "model.h5"
    convert_libsvm([text], out, scale="standard", dense=True)
    ooc_fw("train", out, "-o", model, "--gamma", "0.5", "--quiet").done()
    found = []
    for like in (out, model):
        ooc_fw("convert", text, tmp_path / "like.h5", "--like", like, "--quiet").done()
        found.append(read(tmp_path / "like.h5").X)
    np.testing.assert_array_equal(*found)
    table = write(tmp_path, "a,b\n1,2\n", "new.csv")
    command = "convert", table, tmp_path / "no.h5", "--like", model
    ooc_fw(*command).assert_refused("does not say how the columns of a table became its features")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"like": "x.h5", **option}, r"comes from x\.h5 here; leave it out")
            for option in ({"log1p": True}, {"scale": "minmax"}, {"n_features": 3})
        ),
        ({"like": "missing"}, "missing does not exist"),
        ({"like": "data.txt"}, r"data\.txt is LIBSVM text; convert it first"),
        ({"like": "unfinished.h5"}, r"unfinished\.h5 was not finished when"),
        ({"like": "bare.h5"}, r"bare\.h5 has no 'X'"),
        ({"inputs": []}, "no input given"),
        ({"inputs": ["-", "-"]}, "given twice"),
        ({"inputs": ["data.txt", "missing"]}, "missing does not exist"),
        ({"output": "folder"}, "folder is a folder, a device or a stream"),
        ({"output": "pipe"}, "pipe is a folder, a device or a stream"),
        ({"output": "none/out.h5"}, r"cannot be written \(No such file"),
        ({"output": "data.txt"}, "would replace the input"),
    ],
)
def test_what_cannot_be_used(train, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder")
    os.mkfifo("pipe")
    h5py.File("bare.h5", "w").close()
    with h5py.File("unfinished.h5", "w") as file:
        file["X"] = np.eye(3)
        file.attrs.update({"format_version": 1, "n_features": 3})
    with pytest.raises(InputError, match=message):
        convert_libsvm(**{"inputs": ["data.txt"], "output": tmp_path / "out.h5"} | options)
    assert train.read_text() == TRAIN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no rows"),
        ("\n# nothing\n", "holds no rows"),
        ("1\n2\n", "holds labels only, no features"),
        ("1 1:1\n1 1:x\n", r"data\.txt, line 2: the value of '1:x'"),
        ("1 2000000000:1", "has a feature index of 2000000000, and the limit is 67108864"),
        ("\n".join(f"{i} 1:1" for i in range(5000)), "more than 4096 different labels"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_errors_leave_the_old_output_and_nothing_else(tmp_path, out, text, message):
    path = write(tmp_path, text)
    out.write_text("old")
    with pytest.raises(InputError, match=message):
        convert_libsvm([path], out)
    assert sorted(os.listdir(tmp_path)) == ["data.txt", "out.h5"]
    assert out.read_text() == "old"


def test_progress_counts_both_passes_and_an_interrupt_leaves_nothing(
    train, tmp_path, out, monkeypatch
):
    for n_calls in (1, 2):
        calls = []

        def interrupt(done, total, calls=calls, n_calls=n_calls):
            calls.append((done, total))
            if len(calls) == n_calls:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            convert_libsvm([train], out, progress=interrupt)
        assert os.listdir(tmp_path) == ["data.txt"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TRAIN.encode())))
    for name in (train, "-"):
        convert_libsvm([name], out, progress=lambda *call: calls.append(call))
    half, whole = len(TRAIN), 2 * len(TRAIN)
    assert calls == [*[(half, whole), (whole, whole)] * 2, (half, None)]
