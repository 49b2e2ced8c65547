"""The model file: its layout, whole and damaged."""

import dataclasses
import math
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import InputError, load_model, make_kernel
from ooc_fw.data.converted import CONTENT
from ooc_fw.kernels.functions import KERNELS
from ooc_fw.model.file import content_of
from ooc_fw.model.machines import NUMBERS
from tests.support.contracts import to_dense
from tests.support.files import write_dense
from tests.support.models import make_model, minmax, random_rows, with_numbers

D = 3


@given(
    n=st.integers(1, 6),
    d=st.integers(1, 4),
    sparse=st.booleans(),
    name=st.sampled_from(list(KERNELS)),
    gap=st.none() | st.floats(0, 1),
    more=st.booleans(),
    n_classes=st.sampled_from([2, 3, 4]),
    landmarks=st.booleans(),
)
def test_save_and_load_give_the_model_back(
    tmp_path_factory, n, d, sparse, name, gap, more, n_classes, landmarks
):
    """Also long names of classes, sigmoids, penalties and what a run needs."""
    path = tmp_path_factory.mktemp("model") / "model.h5"
    kernel = make_kernel(name, gamma=0.1, degree=3, coef0=0.5)
    options = {"kernel": kernel, "sparse": sparse, "landmarks": landmarks}
    model = make_model(random_rows(n, d), n_classes, **options)
    ones = np.ones(len(model.classifiers))
    model = with_numbers(model, certified_gap=np.nan * ones if gap is None else gap * ones)
    if more:
        names = ["B", "\u00e4" * 40_000, "\u00f6", "z"][:n_classes]
        model = with_numbers(model, sigmoid_a=-1.5 * ones, sigmoid_b=0.25 * ones)
        own = {"penalties": np.arange(1.0, n + 1), "run": '{"next": "\u00e4"}'}
        words = {"table": None, "columns": tuple(f"c{k}" for k in range(d))}
        classes = np.array(sorted(names))
        model = dataclasses.replace(model, classes=classes, scaling=minmax(d), **own, **words)
    model.save(path)
    loaded = load_model(path)
    assert loaded.calibrated == more
    for field in dataclasses.fields(model):
        found, expected = (getattr(each, field.name) for each in (loaded, model))
        if field.name == "support_vectors":
            assert type(found) is type(expected)
            np.testing.assert_array_equal(to_dense(found), to_dense(expected))
        elif field.name == "classifiers":
            for one, other in zip(found, expected, strict=True):
                for part, values in vars(other).items():
                    np.testing.assert_array_equal(getattr(one, part), values)
        elif field.name == "scaling":
            assert found is expected is None or found.same_as(expected)
        else:
            np.testing.assert_array_equal(found, expected)


def types_of(group):
    return {name: str(own.dtype) for name, own in group.items() if isinstance(own, h5py.Dataset)}


@pytest.mark.parametrize("sparse", [False, True])
def test_layout_is_the_documented_one(tmp_path, sparse):
    make_model(random_rows(4), scaling=minmax(), sparse=sparse).save(tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5") as file:
        attributes = dict(file.attrs)
        assert attributes.pop("content_crc32") > 0
        assert attributes == {
            **{"format_version": 5, "kernel": b"rbf", "gamma": 0.5, "degree": 2, "coef0": 0.0},
            **{"C": 2.0, "status": b"converged", "scaling": b"minmax", "log1p": False},
            "task": b"classification",
        }
        assert file["scaling/offset"].shape == (D,)
        assert file["classes"][...].tolist() == [-7, 3]
        vectors = file["support_vectors"]
        arrays = {"classes": "float64", "rows": "int64"}
        if sparse:
            assert vectors.attrs["encoding-type"] == "csr_matrix"
            assert vectors.attrs["shape"].tolist() == [4, D]
            assert types_of(vectors) == {"data": "float32", "indices": "int32", "indptr": "int64"}
        else:
            arrays["support_vectors"] = "float32"
        assert types_of(file) == arrays
        places = dict.fromkeys(("indptr", "sv", "negative", "positive"), "int64")
        numbers = {"beta", "rho", "certified_gap", "sampled_gap", "primal", "dual"}
        numbers |= {"sigmoid_a", "sigmoid_b"}
        assert types_of(file["machines"]) == places | dict.fromkeys(numbers, "float64")


def test_equal_models_give_equal_files():
    model = make_model(random_rows(4))
    first = content_of(model)
    time.sleep(1.1)  # a time stamp in the file would differ now
    assert content_of(model) == first


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.9, 0.999, "text", "data", None])
def test_file_that_is_no_model(tmp_path, part):
    path, message = tmp_path / "model.h5", r"model\.h5 is not a model file, or is damaged"
    make_model(random_rows(40)).save(path)
    content = path.read_bytes()
    path.unlink()
    if part is None:
        message = r"there is no model file .*model\.h5; write one"
    elif part == "data":
        write_dense(path, random_rows(3), np.ones(3))
        message = r"model\.h5 is not a usable model file: it holds data"
    else:
        path.write_bytes(b"+1 1:0.5\n" if part == "text" else content[: int(part * len(content))])
    with pytest.raises(InputError, match=message):
        load_model(path)


def attribute(place, name, value):
    """An edit that sets an attribute of the file, or deletes it."""

    def edit(file):
        if value is None:
            del file[place].attrs[name]
        else:
            file[place].attrs[name] = value

    return edit


def first_value(place, value):
    """An edit that sets the first number of a data set."""
    return lambda file: file[place].__setitem__(0, value)


def replaced(place, values):
    """An edit that puts other values into the place of a data set; a function changes its own."""

    def edit(file):
        found = values(file[place][...]) if callable(values) else values
        del file[place]
        file[place] = found

    return edit


def without(place):
    return lambda file: file.__delitem__(place)


def compress(file):
    """Store values that take far more memory than the file has bytes."""
    del file["machines/beta"]
    file["machines"].create_dataset("beta", data=np.zeros(10**6), compression="gzip")


EXACT, SPAN = {"landmarks": False}, {"landmarks": True}
NOVELTY = {"landmarks": True, "classes": np.array([-1.0, 1.0]), "offset": 0.5}
REGRESSION = NOVELTY | {"spread": 2.0, "epsilon": 0.1}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (EXACT, {"beta": np.array([0.5, 0.6, 0.1, 0.0])}, "weights must have the sum 1"),
        (EXACT, {"beta": np.array([np.nan, 1, 0, 0])}, "weights must be finite"),
        (EXACT, {"beta": np.ones(1)}, "of one length"),
        (EXACT, {"indptr": np.array([0, 0, 4])}, "of classifiers must be of one length"),
        (EXACT, {"indptr": np.array([0, 3])}, "row pointers"),
        (EXACT, {"indptr": np.array([1, 4])}, "row pointers"),
        (EXACT, {"rho": np.zeros(1)}, "rho must be a positive number"),
        (EXACT, {"rho": np.full(1, np.nan)}, "rho must be a positive number"),
        (EXACT, {"sigmoid_a": np.zeros(1)}, "sigmoids cannot"),
        (EXACT, {"certified_gap": np.array([-1.0])}, "certified_gap must not be"),
        (EXACT, {"sv": np.array([0, 1, 2, 4])}, "points outside the 4 vectors"),
        (EXACT, {"sv": np.array([0, 1, 2, -1])}, "points outside the 4 vectors"),
        (EXACT, {"sv": np.array([0, 1, 2, 2])}, "vector twice"),
        (SPAN, {"beta": np.full(12, np.nan)}, "must be finite"),
        (SPAN, {"primal": np.full(3, np.inf)}, "primal must not be"),
        (SPAN, {"dual": np.array([0.0, -1, 0])}, "dual must not be"),
        (SPAN, {"rho": np.full(3, 0.5)}, "rho of landmarks must be 1"),
        (SPAN, {"sv": np.array([*range(4), *range(4), 3, 2, 1, 0])}, "have the same landmarks"),
        (SPAN, {"indptr": np.array([0, 5, 8, 12])}, "twice|same landmarks"),
        (EXACT, {"penalties": np.array([1.0, 1, 0, 1])}, "C must be 4 positive numbers"),
        (EXACT, {"penalties": np.ones(3)}, "C must be 4 positive numbers"),
        (EXACT, {"rows": np.array([0, 1, 2, -1])}, "need as many numbers of rows"),
        (EXACT, {"rows": np.array([0, 1, 2, 2])}, "are the same row"),
        (EXACT, {"rows": np.arange(3)}, "need as many numbers of rows"),
        (EXACT, {"classes": np.arange(3.0)}, "3 classes and 1 classif|not those of its classes"),
        (EXACT, {"classes": np.arange(1e6)}, "0 classes and 1 classif|not those of its classes"),
        (EXACT, {"classes": np.array([1.0, math.nan])}, "words or finite numbers"),
        (EXACT, {"classes": np.array([1.0, 1.0])}, "all different"),
        (SPAN, {"classes": np.arange(4.0)}, "4 classes and 3 classif|not those of its classes"),
        (EXACT, {"columns": ("a", "b")}, "it describes"),
        (EXACT, {"C": math.nan}, "the C of a model cannot be nan"),
        (EXACT, {"offset": 0.0}, "not those of novelty"),
        (EXACT, {"jitter": 1e-6}, "rho of landmarks must be 1"),
        (SPAN, {"jitter": -1.0}, "the jitter of a model"),
        (NOVELTY, {"offset": math.nan}, "the offset of a model cannot be nan"),
        *((REGRESSION, {name: math.inf}, name) for name in ("offset", "spread", "epsilon")),
        (REGRESSION, {"spread": 0.0}, "the spread of a model cannot be 0"),
        (REGRESSION, {"epsilon": -0.1}, "the epsilon of a model cannot be -0.1"),
        (REGRESSION, {"offset": None}, "not those of regression"),
    ],
)
def test_impossible_models_are_refused_and_so_are_their_files(tmp_path, kind, changes, message):
    model = make_model(random_rows(4), 3 if kind is SPAN else 2, **kind)
    model.save(tmp_path / "m.h5")
    ((name, value),) = changes.items()
    of_classifiers = name in ("indptr", "sv", "beta", *NUMBERS)
    if name in ("sv", "beta"):
        parts = zip(model.classifiers, np.array_split(value, len(model.classifiers)), strict=True)
        changes = {"classifiers": [dataclasses.replace(one, **{name: own}) for one, own in parts]}
    if name != "indptr":  # which the file alone has
        with pytest.raises(InputError, match=message):
            (with_numbers if name in NUMBERS else dataclasses.replace)(model, **changes)
    with h5py.File(tmp_path / "m.h5", "r+") as file:
        del file.attrs[CONTENT]
        place = f"machines/{name}" if of_classifiers else name
        if value is None:
            del file.attrs[name]
        elif isinstance(value, float):
            file.attrs[name] = value
        elif place in file:
            replaced(place, value)(file)
        else:
            file[place] = np.array(value, "S") if isinstance(value, tuple) else value
    with pytest.raises(InputError, match=message):
        load_model(tmp_path / "m.h5")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (attribute("/", "format_version", 9), "its format is 9"),
        (attribute("/", "format_version", 2), "damaged"),
        (attribute("/", "kernel", "other"), "kernel must be one of"),
        (attribute("/", "C", None), "damaged"),
        (attribute("/", "C", b"2"), "its C is not a number"),
        (attribute("/", "task", "novelty"), "not those of a model of novelty"),
        (attribute("/", "status", "fine"), "damaged"),
        (attribute("/", "scaling", None), "lacks the kind of its scaling"),
        (replaced("classes", np.arange(2)), "of type int64"),
        (replaced("machines/positive", np.zeros(1, np.int64)), "not those of its classes"),
        (replaced("machines/sv", np.ones(4)), "of type float64"),
        (without("machines/beta"), "damaged"),
        (without("machines/dual"), "damaged"),
        (without("rows"), "damaged"),
        (compress, "is compressed, which no such file is"),
        (attribute("support_vectors", "shape", [4, 0]), "CSR|columns"),
        (attribute("support_vectors", "shape", [4, 2**40]), "columns"),
        (first_value("support_vectors/indices", 99), "a column number outside 0 to"),
        (first_value("support_vectors/indptr", 1), "row pointers"),
        (first_value("support_vectors/data", np.nan), "infinite or too large"),
        (replaced("support_vectors/indices", lambda own: own + np.int64(2**32)), "outside 0 to"),
        (replaced("support_vectors/data", lambda own: 1e300 + own.astype(float)), "too large"),
        (first_value("scaling/factor", np.inf), "no finite number"),
        (replaced("scaling/offset", np.ones(2)), "differ in shape|does not fit"),
    ],
)
def test_damaged_file(tmp_path, edit, message):
    path = tmp_path / "model.h5"
    make_model(random_rows(4), sparse=True, scaling=minmax()).save(path)
    good = path.read_bytes()
    for checked in (False, True):
        path.write_bytes(good)
        with h5py.File(path, "r+") as file:
            edit(file)
            if not checked:
                del file.attrs[CONTENT]
        expected = f"{message}|does not match its checksum" if checked else message
        with pytest.raises(InputError, match=expected):
            load_model(path)


def test_files_without_a_checksum_are_read(tmp_path):
    """Nor do attributes have to be of the type that is written."""
    path, model = tmp_path / "model.h5", make_model(random_rows(4))
    model.save(path)
    with h5py.File(path, "r+") as file:
        del file.attrs[CONTENT]
        for name, text in (("kernel", "rbf"), ("status", "converged")):
            file.attrs[name] = text
    assert content_of(load_model(path)) == content_of(model)


@pytest.mark.process
def test_a_bit_anywhere_in_a_model_is_found_or_harmless(tmp_path):
    """In a process of its own, which ends if HDF5 crashes or never comes back."""
    paths = [str(tmp_path / name) for name in ("dense.h5", "sparse.h5", "landmarks.h5")]
    for path in paths:
        forms = {"sparse": "sparse" in path, "landmarks": "landmarks" in path}
        make_model(random_rows(40), scaling=minmax(), **forms).save(path)
    run = subprocess.run(
        [sys.executable, "-c", FLIP, *paths], capture_output=True, text=True, timeout=120
    )
    print(run.stdout)
    assert run.returncode == 0, run.stderr
    assert all(int(line.split()[2]) > 10 for line in run.stdout.splitlines())


FLIP = """
import random, sys
from pathlib import Path
from ooc_fw.system.errors import InputError
from ooc_fw.model.record import load_model

for path in map(Path, sys.argv[1:]):
    good, again = path.read_bytes(), path.with_name("again.h5")
    draw = random.Random(0)
    n_found = 0
    for place in draw.sample(range(len(good)), 60):
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
    print("60 trials:", n_found, "changed bits found, the others harmless")
"""
