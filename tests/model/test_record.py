from __future__ import annotations

import dataclasses
import logging
import math
import subprocess
import sys
import time
import tracemalloc

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import open_source
from ooc_fw.data.sources.checksums import CONTENT
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.model.pairs import BinaryClassifier
from ooc_fw.model.record import Model, load_model
from ooc_fw.system.errors import InputError
from ooc_fw.testing.reference import kernel_values, to_csr

D = 3


def random_rows(n, d=D, seed=0, density=0.7):
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(size=(n, d)) * (rng.random((n, d)) < density), 2).astype(np.float32)


def make_model(vectors, *, kernel=None, scaling=None, sparse=False, seed=1, **changes):
    """Hand-made model on dense `vectors`, whose training rows are 0, 2, 4 ..."""
    rng = np.random.default_rng(seed)
    m = len(vectors)
    alpha = rng.random(m)
    machine = BinaryClassifier(
        alpha=alpha / alpha.sum(),
        labels=np.where(rng.random(m) < 0.5, -1, 1).astype(np.int8),
        sv=rng.permutation(m),
        rows=2 * rng.permutation(m),
        rho=0.125,
        objective=0.0625,
        certified_gap=1e-4,
        sampled_gap=None,
        positive=3.0,
        negative=-7.0,
    )
    return Model(
        kernel=kernel or make_kernel("rbf", gamma=0.5),
        C=2.0,
        classes=np.array([-7.0, 3.0]),
        scaling=scaling,
        status="converged",
        support_vectors=to_csr(vectors) if sparse else vectors,
        classifiers=[dataclasses.replace(machine, **changes)],
    )


def exact_decision(model, vectors, X):
    """The decision function by definition, in extended precision."""
    (own,) = model.classifiers
    values = kernel_values(model.kernel, X, vectors[own.sv]) + 1
    return values @ (own.alpha * own.labels).astype(np.longdouble) / own.rho


# -- decision function -------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(KERNELS))
@pytest.mark.parametrize("sparse_model", [False, True])
@pytest.mark.parametrize("sparse_data", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_decision_function_is_the_sum_over_support_vectors(
    name, sparse_model, sparse_data, threads
):
    vectors, X = random_rows(9), random_rows(20, seed=5)
    kernel = make_kernel(name, gamma=0.3, degree=3, coef0=1.0)
    model = make_model(vectors, kernel=kernel, sparse=sparse_model)
    rows = to_csr(X) if sparse_data else X
    (values,) = model.decide([rows], threads=threads)
    np.testing.assert_allclose(values, exact_decision(model, vectors, X), rtol=1e-4, atol=1e-4)


def test_decision_function_takes_any_source(tmp_path):
    vectors, X = random_rows(9), random_rows(20, seed=5)
    model = make_model(vectors)
    expected = model.decision_function(X)
    np.save(tmp_path / "X.npy", X)
    with h5py.File(tmp_path / "X.h5", "w") as file:
        file["X"] = X
    assert np.array_equal(model.decision_function(tmp_path / "X.npy"), expected)
    assert np.array_equal(model.decision_function(tmp_path / "X.h5"), expected)
    np.testing.assert_allclose(expected, exact_decision(model, vectors, X), rtol=1e-5, atol=1e-5)


def test_predict_gives_the_larger_class_for_positive_values():
    model = make_model(random_rows(9), kernel=make_kernel("linear"))
    X = 10 * random_rows(50, seed=5)
    values = model.decision_function(X)
    assert (values > 0).any()
    assert (values < 0).any()
    assert np.array_equal(model.predict(X), np.where(values > 0, 3.0, -7.0))


def test_sparse_rows_are_made_dense_in_bounded_parts(monkeypatch):
    # Dense support vectors, sparse data: the block is cut where it would grow.
    monkeypatch.setattr("ooc_fw.model.prediction.PART_BYTES", 2 * 4 * D)
    vectors, X = random_rows(9, density=1.0), random_rows(7, seed=5)
    model = make_model(vectors)
    np.testing.assert_allclose(
        next(model.decide([to_csr(X)])), exact_decision(model, vectors, X), rtol=1e-5, atol=1e-5
    )


def test_memory_grows_with_the_results_only(tmp_path):
    X = random_rows(200_000, d=50)
    np.save(tmp_path / "X.npy", X)
    model = make_model(X[:4].copy())
    file_bytes = X.nbytes  # 40 MB
    del X
    model.decision_function(random_rows(3, d=50))  # imports and compiled code
    tracemalloc.start()
    try:
        assert len(model.decision_function(tmp_path / "X.npy")) == 200_000
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < file_bytes / 2


# -- scaling -------------------------------------------------------------------------------------


def minmax(d=D):
    return Scaling("minmax", False, np.arange(d, dtype=float), np.full(d, 0.5))


@pytest.mark.parametrize("width", [D - 1, D, D + 2])
def test_raw_rows_are_scaled_cut_and_padded(width):
    model = make_model(random_rows(4), scaling=minmax())
    raw = random_rows(6, d=width)
    scaled = np.concatenate(
        [
            rows if isinstance(rows, np.ndarray) else rows.toarray()
            for rows in model.scale([to_csr(raw)])
        ]
    )
    padded = np.zeros((6, D))
    padded[:, : min(width, D)] = raw[:, :D]
    np.testing.assert_allclose(scaled, (padded - np.arange(D)) * 0.5, rtol=1e-6)


def test_without_scaling_raw_rows_keep_their_values():
    raw = random_rows(6)
    (rows,) = make_model(random_rows(4)).scale([to_csr(raw)])
    assert np.array_equal(rows.toarray(), raw)


class WithScaling:
    """What `check_source` looks at."""

    name = "test.h5"
    n_features = D

    def __init__(self, scaling):
        self.scaling = scaling


def test_data_must_be_scaled_like_the_training_data_if_that_is_known(caplog):
    model = make_model(random_rows(4), scaling=minmax())
    model.check_source(WithScaling(minmax()))
    model.check_source(WithScaling(None))
    assert caplog.text == ""
    other = Scaling("maxabs", False, np.zeros(D), np.ones(D))
    with pytest.raises(InputError, match=r"test\.h5 is scaled \(maxabs\) in another way .*--like"):
        model.check_source(WithScaling(other))
    with caplog.at_level(logging.WARNING):
        make_model(random_rows(4)).check_source(WithScaling(minmax()))
    assert "test.h5 is scaled (minmax), and the model has no record" in caplog.text


def test_wrong_number_of_features():
    with pytest.raises(InputError, match="has 5 features but the model was trained on 3"):
        make_model(random_rows(4)).decision_function(random_rows(2, d=5))


# -- training rows -------------------------------------------------------------------------------


def training_data(model, n_rows=8):
    """Data of which every second row is a support vector of `model`."""
    machine = model.classifiers[0]
    X, y = random_rows(n_rows, seed=9), np.ones(n_rows, dtype=np.int8)
    X[machine.rows] = model.support_vectors[machine.sv]
    y[machine.rows] = machine.labels
    return X, y


def test_training_rows_are_recognised(monkeypatch):
    monkeypatch.setattr("ooc_fw.model.prediction.PART_BYTES", 3 * 4 * D)
    model = make_model(random_rows(4))
    X, y = training_data(model)
    model.check_training_rows(open_source(X), (y + 1) // 2)


@pytest.mark.parametrize("change", ["value", "label", "fewer rows"])
def test_other_data_is_refused(change):
    model = make_model(random_rows(4))
    X, y = training_data(model)
    message = "row 4 of array is not the model's support vector"
    if change == "value":
        X[4, 1] += 1
    elif change == "label":
        y[4] *= -1
    else:
        X, y = X[:6], y[:6]
        message = "array has 6 rows but the model was trained on row 6"
    with pytest.raises(InputError, match=message):
        model.check_training_rows(open_source(X), (y + 1) // 2)


# -- record ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": np.array([0.5, 0.6, 0.1, 0.0])}, "alpha must be non-negative with sum 1"),
        ({"alpha": np.array([1.5, -0.5, 0.0, 0.0])}, "alpha must be non-negative"),
        ({"alpha": np.array([np.nan, 1, 0, 0])}, "alpha must be non-negative"),
        ({"alpha": np.ones(1)}, "of one length above 0"),
        ({"labels": np.array([0, 1, 1, 1], dtype=np.int8)}, "labels must be -1 or"),
        ({"rho": 0.0}, "rho must be a positive number, not 0"),
        ({"rho": math.nan}, "rho must be a positive number, not nan"),
        ({"sv": np.array([0, 1, 2, 4])}, "sv points outside the 4 vectors"),
        ({"sv": np.array([0, 1, 2, -1])}, "sv points outside the 4 vectors"),
    ],
)
def test_impossible_machine_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        make_model(random_rows(4), **changes)


def test_three_classes_need_three_machines():
    model = make_model(random_rows(4))
    with pytest.raises(InputError, match="for each pair of them, not 3 classes and 1 classifiers"):
        dataclasses.replace(model, classes=np.arange(3.0))


# -- file ------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 6),
    d=st.integers(1, 4),
    sparse=st.booleans(),
    name=st.sampled_from(list(KERNELS)),
    gap=st.none() | st.floats(0, 1),
    scaled=st.booleans(),
)
def test_save_and_load_give_the_model_back(tmp_path_factory, n, d, sparse, name, gap, scaled):
    path = tmp_path_factory.mktemp("model") / "model.h5"
    model = make_model(
        random_rows(n, d),
        kernel=make_kernel(name, gamma=0.1, degree=3, coef0=0.5),
        scaling=minmax(d) if scaled else None,
        sparse=sparse,
        certified_gap=gap,
        sampled_gap=None,
    )
    model.save(path)
    loaded = load_model(path)
    assert loaded.kernel == model.kernel
    assert (loaded.C, loaded.status) == (model.C, model.status)
    assert np.array_equal(loaded.classes, model.classes)
    assert_same_fields(loaded.classifiers[0], model.classifiers[0])
    if sparse:
        assert_same_fields(loaded.support_vectors, model.support_vectors)
    else:
        assert np.array_equal(loaded.support_vectors, model.support_vectors)
    assert (loaded.scaling is None) == (model.scaling is None)
    assert not scaled or loaded.scaling.same_as(model.scaling)


def assert_same_fields(found, expected):
    for field in dataclasses.fields(expected):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        assert np.array_equal(a, b), field.name
        if isinstance(b, np.ndarray):
            assert a.dtype == b.dtype, field.name


def test_layout_is_the_documented_one(tmp_path):
    model = make_model(random_rows(4), scaling=minmax())
    model.save(tmp_path / "model.h5")
    with h5py.File(tmp_path / "model.h5") as file:
        attributes = dict(file.attrs)
        assert attributes.pop("class_names").tolist() == [-7, 3]
        assert attributes.pop("content_crc32") > 0
        assert attributes == {
            "format_version": 1,
            "kernel": b"rbf",
            "gamma": 0.5,
            "degree": 2,
            "coef0": 0.0,
            "C": 2.0,
            "status": b"converged",
            "scaling": b"minmax",
            "log1p": False,
        }
        assert file["scaling/offset"].shape == (D,)
        assert file["support_vectors"].dtype == np.float32
        machine = file["machines/0"]
        assert {name: str(values.dtype) for name, values in machine.items()} == {
            "alpha": "float64",
            "labels": "int8",
            "sv": "int64",
            "rows": "int64",
        }
        assert dict(machine.attrs) == {
            "rho": 0.125,
            "objective": 0.0625,
            "certified_gap": 1e-4,
            "positive": 3.0,
            "negative": -7.0,
        }


def test_sparse_support_vectors_are_stored_like_sparse_data(tmp_path):
    vectors = random_rows(4)
    make_model(vectors, sparse=True).save(tmp_path / "model.h5")
    with h5py.File(tmp_path / "model.h5") as file:
        group = file["support_vectors"]
        assert group.attrs["encoding-type"] == "csr_matrix"
        assert group.attrs["shape"].tolist() == [4, D]
        assert group["indptr"].dtype == np.int64
        assert group["indices"].dtype == np.int32


def test_equal_models_give_equal_files(tmp_path):
    model = make_model(random_rows(4))
    model.save(tmp_path / "a.h5")
    time.sleep(1.1)  # a time stamp in the file would differ now
    model.save(tmp_path / "b.h5")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"there is no model file .*none\.h5; write one"):
        load_model(tmp_path / "none.h5")


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.9, 0.999, "text"])
def test_truncated_file_or_text(tmp_path, part):
    path = tmp_path / "model.h5"
    make_model(random_rows(40)).save(path)
    content = path.read_bytes()
    path.write_bytes(b"+1 1:0.5\n" if part == "text" else content[: int(part * len(content))])
    with pytest.raises(InputError, match=r"model\.h5 is not a model file, or is damaged"):
        load_model(path)


def test_data_file_in_place_of_a_model(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["X"] = random_rows(3)
    with pytest.raises(InputError, match=r"data\.h5 is not a usable model file: it holds data"):
        load_model(tmp_path / "data.h5")


def change_file(path, edit):
    with h5py.File(path, "r+") as file:
        edit(file)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f.attrs.__setitem__("format_version", 2), "its format is 2"),
        (lambda f: f.attrs.__setitem__("kernel", "other"), "kernel must be one of"),
        (lambda f: f.attrs.__delitem__("C"), "damaged"),
        (lambda f: f.__delitem__("support_vectors"), "damaged"),
        (lambda f: f["machines/0"].__delitem__("alpha"), "damaged"),
        (lambda f: f["machines/0/alpha"].__setitem__(0, 7.0), "alpha must be non-negative"),
        (lambda f: f.move("machines/0", "machines/1"), "damaged"),
        (lambda f: f["support_vectors/indices"].__setitem__(0, 99), "no valid CSR group"),
        (lambda f: f["support_vectors/indptr"].__setitem__(1, 99), "no valid CSR group"),
    ],
)
def test_damaged_file(tmp_path, edit, message):
    path = tmp_path / "model.h5"
    make_model(random_rows(4), sparse=True).save(path)
    good = path.read_bytes()
    change_file(path, lambda file: file.attrs.__delitem__(CONTENT))  # as if without checksum
    change_file(path, edit)
    with pytest.raises(InputError, match=message):
        load_model(path)
    path.write_bytes(good)
    change_file(path, edit)
    with pytest.raises(InputError, match=f"{message}|does not match its checksum"):
        load_model(path)


def test_files_without_a_checksum_are_read(tmp_path):
    model = make_model(random_rows(4))
    model.save(tmp_path / "model.h5")

    def make_old(file):
        del file.attrs[CONTENT]
        for name in ("kernel", "status"):
            file.attrs[name] = file.attrs[name].decode()

    change_file(tmp_path / "model.h5", make_old)
    assert_same_fields(load_model(tmp_path / "model.h5").classifiers[0], model.classifiers[0])
    assert load_model(tmp_path / "model.h5").status == "converged"


def test_a_bit_anywhere_in_a_model_is_found_or_harmless(tmp_path):
    """In a process of its own, which ends if HDF5 crashes or never comes back."""
    paths = [str(tmp_path / name) for name in ("dense.h5", "sparse.h5")]
    for path in paths:
        make_model(random_rows(40), sparse="sparse" in path, scaling=minmax()).save(path)
    run = subprocess.run(
        [sys.executable, "-c", FLIP, *paths], capture_output=True, text=True, timeout=120
    )
    print(run.stdout)
    assert run.returncode == 0, run.stderr
    assert all(int(line.split()[2]) > 50 for line in run.stdout.splitlines())


FLIP = """
import random, sys
from pathlib import Path
from ooc_fw.system.errors import InputError
from ooc_fw.testing.reference import kernel_values, to_csr
from ooc_fw.model.record import load_model

for path in map(Path, sys.argv[1:]):
    good, again = path.read_bytes(), path.with_name("again.h5")
    draw = random.Random(0)
    n_found = 0
    for place in draw.sample(range(len(good)), 300):
        data = bytearray(good)
        data[place] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            load_model(path).save(again)
        except InputError as error:
            assert str(path) in str(error)
            n_found += 1
        else:
            assert again.read_bytes() == good, place
    print("300 trials:", n_found, "changed bits found, the others harmless")
"""
