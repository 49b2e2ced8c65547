from __future__ import annotations

import io
import lzma
import os
from collections import namedtuple
from pathlib import Path

import h5py
import naive_libsvm as naive
import numpy as np
import pytest
from converted import convert_libsvm, read
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from ooc_fw.cli.main import main
from ooc_fw.convert import passes
from ooc_fw.convert.convert import convert
from ooc_fw.convert.passes import shuffle_keys
from ooc_fw.data.opening import open_source
from ooc_fw.data.scaling import KINDS
from ooc_fw.data.statistics import fit_scaling
from ooc_fw.data.views import ScaledSource
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

TRAIN = "+1 1:1 2:4 4:8\n-1 1:2 3:0.5\n+1 1:3 2:-2\n-1 1:4\n"


def write(folder: Path, text: str, name: str = "data.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture
def train(tmp_path) -> Path:
    return write(tmp_path, TRAIN)


# --- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize("dense", [True, False, None])
@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "zstd"])
def test_layout(train, tmp_path, dense, compression):
    out = tmp_path / "out.h5"
    report = convert_libsvm([train], out, dense=dense, seed=3, compression=compression)
    _, rows = naive.parse(TRAIN)
    order = np.argsort(shuffle_keys(np.arange(4), 3))
    X = naive.dense(rows, 4)[order]
    contents = read(out)
    np.testing.assert_array_equal(contents.X, X)
    assert contents.y.dtype == np.float64
    assert contents.y.tolist() == np.array([1, -1, 1, -1])[order].tolist()
    assert contents.row.tolist() == order.tolist()
    np.testing.assert_allclose(contents.mean, X.mean(axis=0))
    attrs = contents.attrs
    np.testing.assert_allclose(attrs.pop("mean_square_norm"), (X**2).sum() / 4)
    assert attrs.pop("class_names").tolist() == [-1, 1]
    assert attrs.pop("class_counts").tolist() == [2, 2]
    assert attrs.pop("header_crc32") > 0
    assert attrs == {
        "format_version": 1,
        "n_rows": 4,
        "n_features": 4,
        "n_classes": 2,
        "shuffled": True,
        "shuffle_seed": 3,
        "source": str(train).encode(),
        "compression": compression.encode(),
        "scaling": b"none",
        "log1p": False,
        "complete": 1,
    }
    assert (report.n_rows, report.n_features, report.sparse) == (4, 4, dense is False)
    assert report.density == 8 / 16
    assert report.class_counts == {-1: 2, 1: 2}
    assert (report.seed, report.text_bytes) == (3, len(TRAIN))
    assert report.seconds > 0
    with h5py.File(out) as file:
        if not report.sparse:
            assert (file["X"].dtype, file["X"].chunks) == (np.float32, (4, 4))
        else:
            assert dict(file["X"].attrs)["encoding-type"] == "csr_matrix"
            types = [file["X"][name].dtype for name in ("data", "indices", "indptr")]
            assert types == [np.float32, np.int32, np.int64]


cells = st.dictionaries(st.integers(1, 6), st.integers(0, 9).map(float), max_size=6)


@given(
    table=st.lists(st.tuples(st.integers(0, 2), cells), min_size=1, max_size=20),
    kind=st.sampled_from(KINDS),
    log1p=st.booleans(),
    dense=st.booleans(),
    shuffle=st.booleans(),
)
def test_text_to_file_equals_the_in_memory_answer(
    tmp_path_factory, table, kind, log1p, dense, shuffle
):
    folder = tmp_path_factory.mktemp("convert")
    text = "1 6:1\n" + "\n".join(
        " ".join([str(label), *(f"{j}:{value}" for j, value in row.items())])
        for label, row in table
    )
    out = folder / "out.h5"
    arguments = {"scale": kind, "log1p": log1p, "shuffle": shuffle}
    convert_libsvm(
        [write(folder, text)], out, dense=dense or kind in ("minmax", "standard"), **arguments
    )
    contents = read(out)
    assert contents.attrs["shuffled"] == shuffle
    labels, rows = naive.parse(text)
    raw = naive.dense(rows, 6)[contents.row]
    order = sorted(contents.row) if shuffle else contents.row.tolist()
    assert order == list(range(len(labels)))
    assert ("shuffle_seed" in contents.attrs) == shuffle
    np.testing.assert_array_equal(contents.y, labels[contents.row])
    assert contents.scaling is not None
    expected = contents.scaling.apply(raw, 6)
    np.testing.assert_array_equal(contents.X, expected)
    np.testing.assert_allclose(contents.mean, expected.mean(axis=0, dtype=float), atol=1e-12)
    if kind == "minmax":
        assert expected.min() >= 0
        assert expected.max() <= 1


def test_storage_shuffle_blocks_and_compression_do_not_change_the_rows(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 3, 900), rng.random(900), rng.integers(2, 30, 900), rng.random(900)
    text = "".join(f"{y} 1:{a:.3f} {j}:{b:.3f}\n" for y, a, j, b in zip(*columns, strict=True))
    path = write(tmp_path, text)
    packed = tmp_path / "data.xz"
    packed.write_bytes(lzma.compress(text.encode()))
    halves = [
        write(tmp_path, "".join(text.splitlines(True)[a:b]), f"{a}")
        for a, b in ((0, 333), (333, 900))
    ]
    reference = None
    for inputs, dense, piece_bytes in (
        ([path], True, 2 << 20),
        ([path], False, 100),
        ([packed], True, 1000),
        (halves, True, 2 << 20),
        (["-"], False, 2 << 20),
    ):
        monkeypatch.setattr(passes, "PIECE_BYTES", piece_bytes)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        convert_libsvm(inputs, tmp_path / "out.h5", dense=dense, scale="maxabs", seed=5)
        contents = read(tmp_path / "out.h5")
        reference = reference or contents
        np.testing.assert_array_equal(contents.X, reference.X)
        np.testing.assert_array_equal(contents.row, reference.row)
        np.testing.assert_array_equal(contents.y, reference.y)
    assert reference is not None
    assert reference.row.tolist() != list(range(900))


@pytest.mark.parametrize(
    ("text", "scale", "sparse", "notes"),
    [
        ("1 1:1 8:1", "none", False, 0),
        ("1 1:1 9:1", "none", True, 0),
        ("1 1:5 40:1\n2 2:6\n", "minmax", True, 0),
        ("1 1:5 40:1\n2 1:6\n", "minmax", False, 1),  # the scaling moves zeros
    ],
)
def test_storage_by_density_and_scaling(tmp_path, text, scale, sparse, notes):
    path, out = write(tmp_path, text), tmp_path / "out.h5"
    report = convert_libsvm([path], out, scale=scale)
    assert (report.sparse, len(report.notes)) == (sparse, notes)
    assert not convert_libsvm([path], out, scale=scale, dense=True).notes
    if notes:
        assert "turns zeros into other numbers: rows are stored dense" in report.notes[0]
        with pytest.raises(InputError, match="cannot stay sparse; use --scale maxabs, or leave"):
            convert_libsvm([path], out, scale=scale, dense=False)


def test_constant_column_is_not_stored(tmp_path):
    path = write(tmp_path, "1 1:5 3:1\n2 1:5 2:6\n")
    convert_libsvm([path], tmp_path / "out.h5", scale="minmax", dense=False, shuffle=False)
    assert read(tmp_path / "out.h5").X.tolist() == [[0, 0, 1], [0, 1, 0]]


def test_n_features_drops_and_pads(train, tmp_path):
    report = convert_libsvm([train], tmp_path / "out.h5", n_features=2)
    assert (report.n_features, report.dropped_features, report.dropped_values) == (2, 2, 2)
    assert convert_libsvm([train], tmp_path / "out.h5", n_features=9).n_features == 9
    assert read(tmp_path / "out.h5").X.shape == (4, 9)


def test_skipped_lines_are_counted_and_rows_numbered_without_them(tmp_path):
    path = write(tmp_path, "1 1:1\nbad\n2 1:2\n" + "1 0:1\n" * 4)
    report = convert_libsvm([path], tmp_path / "out.h5", on_error="skip", shuffle=False)
    assert (report.n_rows, report.n_skipped, len(report.skipped)) == (2, 5, 3)
    assert "line 2: label 'bad'" in report.skipped[0]
    assert read(tmp_path / "out.h5").row.tolist() == [0, 1]


# --- like ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dense", [True, False])
def test_like_takes_width_scaling_and_storage(train, tmp_path, dense):
    like, out = tmp_path / "train.h5", tmp_path / "test.h5"
    kind = "minmax" if dense else "maxabs"
    text = TRAIN.replace("-2", "2")
    convert_libsvm([write(tmp_path, text)], like, dense=dense, scale=kind, log1p=True)
    report = convert_libsvm(
        [write(tmp_path, "7 2:100 6:1\n1 5:0 1:-0.5\n", "test.txt")], out, like=like
    )
    contents = read(out)
    scaling = read(like).scaling
    assert contents.scaling.same_as(scaling)
    raw = np.array([[0, 100, 0, 0], [-0.5, 0, 0, 0]], np.float32)
    np.testing.assert_array_equal(contents.X, scaling.apply(raw, 4))
    assert contents.X.max() > 1
    assert contents.row.tolist() == [0, 1]
    assert not contents.attrs["shuffled"]
    assert (report.dropped_features, report.dropped_values, report.sparse) == (2, 2, not dense)
    assert report.unseen_labels == (7,)


def test_like_a_file_of_another_tool(train, tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["X"] = np.zeros((2, 3), np.float32)
    report = convert_libsvm([train], tmp_path / "out.h5", like=tmp_path / "other.h5")
    assert (report.n_features, report.scaling.kind, report.unseen_labels) == (3, "none", ())


def test_log1p_of_the_like_file_names_the_line(train, tmp_path):
    convert_libsvm([write(tmp_path, "1 1:1\n2 1:2\n")], tmp_path / "train.h5", log1p=True)
    with pytest.raises(InputError, match=r"test\.txt, line 2: .* no log1p"):
        convert_libsvm(
            [write(tmp_path, "1 1:1\n1 1:-1\n", "test.txt")],
            tmp_path / "out.h5",
            like=tmp_path / "train.h5",
        )


@pytest.mark.parametrize(
    ("name", "attributes", "message"),
    [
        ("missing", None, "missing does not exist"),
        ("data.txt", None, r"data\.txt .*neither a converted file nor a model"),
        ("bare.h5", {"format_version": 1}, r"bare\.h5 is an unfinished conversion"),
        ("bare.h5", {}, r"bare\.h5 has no /X"),
    ],
)
def test_like_unusable(train, tmp_path, name, attributes, message):
    if attributes is not None:
        with h5py.File(tmp_path / name, "w") as file:
            file.attrs.update(attributes)
    with pytest.raises(InputError, match=message):
        convert_libsvm([train], tmp_path / "out.h5", like=tmp_path / name)


# --- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [{"log1p": True}, {"scale": "minmax"}, {"n_features": 3}])
def test_options_that_like_decides(train, tmp_path, option):
    with pytest.raises(InputError, match=r"come from x\.h5 here; leave out"):
        convert_libsvm([train], tmp_path / "out.h5", like="x.h5", **option)


def test_missing_plugin(train, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "hdf5plugin", None)
    with pytest.raises(InputError, match=r"pip install 'ooc-fw\[compression\]', or choose gzip"):
        convert_libsvm([train], tmp_path / "out.h5", compression="zstd")


def test_wrong_inputs_and_outputs(train, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for inputs, out, message in (
        ([], "out.h5", "no input given"),
        (["-", "-"], "out.h5", "can be read only once"),
        ([train, tmp_path / "missing"], "out.h5", "missing does not exist"),
        ([train], "folder", "is a directory; give the name of a file"),
        ([train], "pipe", "is a pipe"),
        ([train], "none/out.h5", "none does not exist; make it, or give another place"),
        ([train], "data.txt", "would replace the input"),
    ):
        with pytest.raises(InputError, match=message):
            convert_libsvm(inputs, tmp_path / out)
    assert train.read_text() == TRAIN
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="cannot be written to"):
        convert_libsvm([train], tmp_path / "out.h5")


@pytest.mark.parametrize(("free", "purpose"), [(10, "temporary files"), (100, "the output")])
def test_full_disk_is_noticed_before(train, tmp_path, monkeypatch, free, purpose):
    usage = namedtuple("usage", "free")(free)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(InputError, match=f"has {free} B free, and {purpose} will take about"):
        convert_libsvm([train], tmp_path / "out.h5")
    assert os.listdir(tmp_path) == ["data.txt"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no rows"),
        ("1\n2\n", "holds labels only, no features"),
        ("1 1:1\n1 1:x\n", r"data\.txt, line 2: the value of '1:x'"),
        ("1 2000000000:1", "has a feature index of 2000000000, and the limit is 67108864"),
        ("\n".join(f"{i} 1:1" for i in range(5000)), "different labels above 4096"),
    ],
)
def test_errors_leave_the_old_output_and_nothing_else(tmp_path, text, message):
    path = write(tmp_path, text)
    out = write(tmp_path, "old", "out.h5")
    with pytest.raises(InputError, match=message):
        convert_libsvm([path], out)
    assert sorted(os.listdir(tmp_path)) == ["data.txt", "out.h5"]
    assert out.read_text() == "old"


@pytest.mark.parametrize("call", [1, 2])
def test_interrupt_leaves_nothing(train, tmp_path, call):
    calls = iter([None] * (call - 1))

    def interrupt(done: int, total: int | None) -> None:
        if next(calls, KeyboardInterrupt):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_libsvm([train], tmp_path / "out.h5", progress=interrupt)
    assert os.listdir(tmp_path) == ["data.txt"]


def test_progress_counts_both_passes(train, tmp_path, monkeypatch):
    calls = []
    convert_libsvm([train], tmp_path / "out.h5", progress=lambda *call: calls.append(call))
    assert calls == [(len(TRAIN), 2 * len(TRAIN)), (2 * len(TRAIN), 2 * len(TRAIN))]
    calls.clear()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TRAIN.encode())))
    convert_libsvm(["-"], tmp_path / "out.h5", progress=lambda *call: calls.append(call))
    assert calls == [(len(TRAIN), None)]


@pytest.mark.parametrize("scale", KINDS)
@pytest.mark.parametrize("log1p", [False, True])
@pytest.mark.parametrize("dense", [True, False])
def test_bits_are_those_of_scaling_rows_one_after_the_other(
    tmp_path, monkeypatch, scale, log1p, dense
):
    """Threads, chunks, tables and buckets leave no trace in what is stored."""
    monkeypatch.setattr("ooc_fw.convert.readers.BLOCK_BYTES", 1000)
    monkeypatch.setattr("ooc_fw.convert.convert.shuffle_bits", lambda _: 3)
    monkeypatch.setattr("ooc_fw.convert.passes.BUCKET_BYTES", 500)
    rng = np.random.default_rng(0)
    raw = np.where(
        rng.random((900, 6)) < 0.5, 0, rng.choice([1, 2, 0.25, 511, 0.07, 1e6], (900, 6))
    )
    raw[:, 5] = 3  # constant
    raw = raw.astype(np.float32)
    lines = [
        f"{i % 3} " + " ".join(f"{j + 1}:{value:.9g}" for j, value in enumerate(row) if value)
        for i, row in enumerate(raw)
    ]
    path, target = write(tmp_path, "\n".join(lines)), tmp_path / "out.h5"
    if not dense and scale == "standard":
        with pytest.raises(InputError, match="cannot stay sparse"):
            convert_libsvm([path], target, scale=scale, log1p=log1p, dense=dense)
        return
    convert_libsvm([path], target, scale=scale, log1p=log1p, dense=dense)
    found = read(target)
    order = np.argsort(shuffle_keys(np.arange(900), 0))
    assert found.row.tolist() == order.tolist()
    expected = found.scaling.apply(raw[order], 6)
    np.testing.assert_array_equal(found.X + np.float32(0), expected + np.float32(0))
    sums, squares = np.zeros(6), np.zeros(6)
    for row in found.X.astype(np.float64):
        sums += row
        squares += row * row
    assert found.mean.tobytes() == (sums / 900).tobytes()
    assert found.attrs["mean_square_norm"] == squares.sum() / 900


# --- large offsets -------------------------------------------------------------------------------


def offset_columns():
    """A column of seconds since 1970, one that means nothing, and labels that follow the first."""
    rng = np.random.default_rng(3)
    seconds = 1.6e9 + rng.uniform(0, 100, 500)
    X = np.stack([seconds, rng.exponential(size=500)], axis=1)
    return X, (seconds > 1.6e9 + 50).astype(int)


def offset_text(folder):
    X, y = offset_columns()
    lines = [f"{label} 1:{a!r} 2:{b!r}" for (a, b), label in zip(X.tolist(), y, strict=True)]
    return write(folder, "\n".join(lines))


@pytest.mark.parametrize(
    ("scale", "scaler"), [("minmax", MinMaxScaler), ("standard", StandardScaler)]
)
def test_values_are_scaled_before_they_are_rounded(tmp_path, scale, scaler):
    report = convert_libsvm([offset_text(tmp_path)], tmp_path / "out.h5", scale=scale)
    assert not report.notes
    found = read(tmp_path / "out.h5")
    expected = scaler().fit_transform(offset_columns()[0])[found.row]
    np.testing.assert_allclose(found.X, expected, atol=2e-6)


@pytest.mark.parametrize(("scale", "done"), [("none", ""), ("maxabs", " after --scale maxabs")])
def test_columns_that_float32_cannot_tell_apart_are_named(tmp_path, scale, done):
    report = convert_libsvm([offset_text(tmp_path)], tmp_path / "out.h5", scale=scale)
    (note,) = report.notes
    assert note.startswith("feature 1: its values, from 1600000000.")
    assert f"cannot be told apart in float32{done}; give --scale standard" in note
    constant = write(tmp_path, "1 1:1600000000.5 2:1\n0 1:1600000000.5 2:2\n", "constant.txt")
    assert not convert_libsvm([constant], tmp_path / "out.h5", scale=scale).notes


@pytest.mark.parametrize("log1p", [False, True])
@pytest.mark.parametrize("scale", ["minmax", "maxabs", "standard"])
def test_converter_and_fit_scaling_choose_the_same_bits(tmp_path, scale, log1p):
    text, X = offset_text(tmp_path), offset_columns()[0]
    with open_source(X) as source:
        found = fit_scaling(source, scale, log1p=log1p)
    report = convert_libsvm([text], tmp_path / "out.h5", scale=scale, log1p=log1p)
    assert found.offset.tolist() == report.scaling.offset.tolist()
    assert found.factor.tolist() == report.scaling.factor.tolist()
    stored = read(tmp_path / "out.h5")
    with ScaledSource(open_source(X), found) as scaled:
        np.testing.assert_array_equal(scaled.read(0, 500)[stored.row], stored.X)


def test_like_a_model(tmp_path):
    text, train, model = offset_text(tmp_path), tmp_path / "out.h5", tmp_path / "model.h5"
    convert_libsvm([text], train, scale="standard", dense=True)
    assert main(["train", str(train), "-o", str(model), "--gamma", "0.5", "--quiet"]) == 0
    convert_libsvm([text], tmp_path / "one.h5", like=train)
    convert_libsvm([text], tmp_path / "other.h5", like=model)
    one, other = read(tmp_path / "one.h5"), read(tmp_path / "other.h5")
    np.testing.assert_array_equal(one.X, other.X)
    table = write(tmp_path, "a,b\n1,2\n", "new.csv")
    with pytest.raises(InputError, match="is a model, which does not say how the columns of a tab"):
        convert([table], tmp_path / "no.h5", ConvertOptions(like=model))
    with h5py.File(model, "a") as file:
        file["link"] = h5py.SoftLink("/machines")
    with pytest.raises(InputError, match=r"model\.h5 is no model of ooc-fw: 'link' is a link to"):
        convert_libsvm([text], tmp_path / "no.h5", like=model)
