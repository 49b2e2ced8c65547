"""The model file: whole, damaged and impossible ones."""

import dataclasses
import math
import random

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import InputError, load_model, make_kernel
from ooc_fw.data.converted import CONTENT
from ooc_fw.kernels.functions import KERNELS
from tests.support.contracts import to_dense
from tests.support.files import write_dense
from tests.support.models import make_model, minmax, random_rows, with_numbers


def fields_of(model):
    return vars(model) | {
        "support_vectors": to_dense(model.support_vectors),
        "scaling": model.scaling and vars(model.scaling),
        "classifiers": [vars(one) for one in model.classifiers],
    }


@given(st.sampled_from([*KERNELS]), st.integers(2, 4), st.integers(1, 6), st.data())
def test_save_and_load_give_the_model_back(tmp_path_factory, name, n_classes, n, data):
    """Also long names of classes, sigmoids, penalties and what a run needs."""
    path = tmp_path_factory.mktemp("model") / "model.h5"
    d, sparse, landmarks, more = data.draw(st.tuples(st.integers(1, 4), *[st.booleans()] * 3))
    kernel = make_kernel(name, gamma=0.1, degree=3, coef0=0.5)
    options = {"kernel": kernel, "sparse": sparse, "landmarks": landmarks}
    model = make_model(random_rows(n, d), n_classes, **options)
    if more:
        ones = np.ones(len(model.classifiers))
        names = ["B", "\u00e4" * 40_000, "\u00f6", "z"][:n_classes]
        model = with_numbers(model, sigmoid_a=-1.5 * ones, sigmoid_b=0.25 * ones)
        model = dataclasses.replace(
            model,
            classes=np.array(sorted(names)),
            scaling=minmax(d),
            penalties=np.arange(1.0, n + 1),
            columns=tuple(f"c{k}" for k in range(d)),
            run='{"next": "\u00e4"}',
        )
    model.save(path)
    loaded = load_model(path)
    np.testing.assert_equal(fields_of(loaded), fields_of(model))
    loaded.save(path.with_name("again.h5"))
    assert path.with_name("again.h5").read_bytes() == path.read_bytes()


def holder_of(file, place):
    """What holds an array "group/name" or an attribute "group@name", and its name there."""
    group, at, name = place.rpartition("@")
    return (file[group or "/"].attrs, name) if at else (file, place)


def put(place, value):
    """An edit of a file: a new value, what a function makes of the old one, or None for none."""

    def edit(file):
        holder, name = holder_of(file, place)
        found = value(holder[name][...]) if callable(value) else value
        if name in holder:
            del holder[name]
        if value is not None:
            holder[name] = found

    return edit


def compress(file):
    """Store values that take far more memory than the file has bytes."""
    del file["machines/beta"]
    file["machines"].create_dataset("beta", data=np.zeros(10**6), compression="gzip")


SPARSE = {"sparse": True, "scaling": minmax()}
SPAN = {"landmarks": True, "n_classes": 3}
NOVELTY = {"landmarks": True, "classes": np.array([-1.0, 1.0]), "offset": 0.5}
REGRESSION = NOVELTY | {"spread": 2.0, "epsilon": 0.1}

REFUSALS = [
    ({}, put("@format_version", 9), "its format is 9 and this ooc-fw reads 5; update"),
    ({}, put("@format_version", 2), "its format is 2 and this ooc-fw reads 5; train it again"),
    ({}, put("@kernel", "other"), "kernel must be one of"),
    ({}, put("@task", "novelty"), "do not fit a model of novelty"),
    ({}, put("@status", "fine"), "damaged"),
    ({}, put("@C", b"2"), "its C is not a number"),
    ({}, put("@C", math.nan), "the C of a model cannot be nan"),
    ({}, put("@C", None), "damaged"),
    ({}, put("machines/beta", None), "damaged"),
    ({}, compress, "is compressed, which no such file is"),
    ({}, put("rows", [0, 1, 2, -1]), "need as many numbers of rows"),
    ({}, put("rows", [0, 1, 2, 2]), "are the same row"),
    ({}, put("penalties", [1.0, 1, 0, 1]), "C must be 4 positive numbers"),
    ({}, put("classes", np.eye(2)), "its classes are no labels"),
    ({}, put("classes", np.arange(3.0)), "3 classes and 1 classif"),
    ({}, put("classes", [1.0, 1.0]), "all different"),
    (SPAN, put("classes", np.arange(4.0)), "4 classes and 3 classif"),
    ({"columns": ("a", "b", "c")}, put("columns", np.array(["a", "b"], "S")), "it describes"),
    ({}, put("machines/positive", [0]), "do not fit its classes"),
    ({}, put("machines/sv", np.ones(4)), "of type float64"),
    ({}, put("machines/sv", [0, 1, 2, 4]), "points outside the 4 vectors"),
    ({}, put("machines/sv", [0, 1, 2, 2]), "vector twice"),
    ({}, put("machines/indptr", [0, 3]), "row pointers"),
    ({}, put("machines/indptr", [0, 0, 4]), "must be of one length"),
    ({}, put("machines/beta", [0.5, 0.6, 0.1, 0.0]), "weights must sum to 1"),
    ({}, put("machines/beta", [np.nan, 1, 0, 0]), "weights must be finite"),
    ({}, put("machines/rho", [0.0]), "rho must be a positive number"),
    ({}, put("machines/sigmoid_a", [0.0]), "sigmoids cannot"),
    ({}, put("machines/certified_gap", [-1.0]), "certified_gap must not be"),
    (SPAN, put("machines/primal", [np.inf] * 3), "primal must not be"),
    (SPAN, put("machines/rho", [0.5] * 3), "rho of landmarks must be 1"),
    (SPAN, put("machines/sv", [*range(4), *range(4), 3, 2, 1, 0]), "have the same landmarks"),
    ({}, put("@offset", 0.0), "do not fit novelty"),
    ({}, put("@jitter", 1e-6), "rho of landmarks must be 1"),
    (SPAN, put("@jitter", -1.0), "the jitter of a model"),
    (NOVELTY, put("@offset", math.nan), "the offset of a model cannot be nan"),
    (REGRESSION, put("@spread", 0.0), "the spread of a model cannot be 0"),
    (REGRESSION, put("@epsilon", -0.1), "the epsilon of a model cannot be -0.1"),
    (REGRESSION, put("@offset", None), "do not fit regression"),
    (SPARSE, put("support_vectors/indices", lambda own: own + 3), "a column number outside 0 to"),
    (SPARSE, put("support_vectors/indptr", lambda own: own + 1), "row pointers"),
    (
        SPARSE,
        put("support_vectors/data", lambda own: own * np.float32(np.nan)),
        "infinite or too large",
    ),
    (SPARSE, put("support_vectors/indices", lambda own: own + np.int64(2**32)), "outside 0 to"),
    (SPARSE, put("support_vectors@shape", [4, 2**40]), "columns"),
    (SPARSE, put("@scaling", None), "lacks the kind of its scaling"),
    (SPARSE, put("scaling/factor", lambda own: own * np.inf), "missing or not finite"),
    (SPARSE, put("scaling/offset", np.ones(2)), "differ in shape|does not fit"),
]


@pytest.mark.parametrize(("kind", "edit", "message"), REFUSALS)
def test_impossible_models_are_refused_and_so_is_any_change_of_a_file(
    tmp_path, kind, edit, message
):
    path = tmp_path / "model.h5"
    make_model(random_rows(4), **kind).save(path)
    good = path.read_bytes()
    for says in (message, f"{message}|does not match its checksum"):
        path.write_bytes(good)
        with h5py.File(path, "r+") as file:
            edit(file)
            if says is message:
                del file.attrs[CONTENT]
        with pytest.raises(InputError, match=says) as raised:
            load_model(path)
        assert str(path) in str(raised.value)


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.999, "text", "data", None])
def test_a_file_that_is_no_model_is_refused(tmp_path, part):
    path, message = tmp_path / "model.h5", r"model\.h5 is not a model file, or is damaged"
    if part is None:
        message = r"there is no model file .*model\.h5; write one"
    elif part == "data":
        write_dense(path, random_rows(3), np.ones(3))
        message = r"model\.h5 is not a usable model file: it holds data"
    elif part == "text":
        path.write_text("+1 1:0.5\n")
    else:
        make_model(random_rows(40)).save(path)
        path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(InputError, match=message):
        load_model(path)


def test_a_file_without_a_checksum_is_read(tmp_path):
    """Nor do its texts have to be of the type that is written."""
    path, model = tmp_path / "model.h5", make_model(random_rows(4))
    model.save(path)
    before = path.read_bytes()
    with h5py.File(path, "r+") as file:
        del file.attrs[CONTENT]
        file.attrs["kernel"] = "rbf"
    load_model(path).save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("sparse", [False, True])
def test_a_bit_anywhere_in_a_model_is_found_or_harmless(tmp_path, sparse):
    path, draw, n_found = tmp_path / "model.h5", random.Random(0), 0
    make_model(random_rows(40), scaling=minmax(), sparse=sparse).save(path)
    good = path.read_bytes()
    for place in draw.sample(range(len(good)), 25):
        data = bytearray(good)
        data[place] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            load_model(path).save(path)
        except InputError:
            n_found += 1
        else:
            assert path.read_bytes() == good, place
    assert n_found > 5
