"""Rows and labels that cannot be used: one sentence says which, and what to do."""

import json
import os
from functools import partial
from types import SimpleNamespace

import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr

from ooc_fw import train_test_split
from ooc_fw.data.labels import encode_labels, read_targets
from ooc_fw.data.opening import open_dataset
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.views import ScaledSource
from ooc_fw.system.errors import InputError
from tests.support.contracts import small_table

X = small_table(60, 4)
y = (X[:, 0] > 0).astype(np.float64)

# -- what is given: arguments of `open_dataset`, or a function from a folder to them ---------------


def file(name, content=None):
    """A file of such bytes."""

    def write(folder):
        if content is not None:
            (folder / name).write_bytes(content)
        return (folder / name,)

    return write


def backward(folder):
    """A map of a file whose rows are reversed."""
    np.save(folder / "X.npy", X)
    return (np.load(folder / "X.npy", mmap_mode="r")[::-1],)


def header(shape, descr="'<f4'"):
    """960 bytes of zeros whose header says something else."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
    return file("X.npy", head + text.encode() + bytes(960))


def hdf5(contents):
    """A file of arrays, links, groups (None), data sets (dicts) and attributes (after @)."""

    def write(folder):
        with h5py.File(folder / "data.h5", "w") as data:
            for name, value in contents.items():
                node, _, attribute = name.partition("@")
                if attribute:
                    data[node or "/"].attrs[attribute] = value
                elif value is None:
                    data.create_group(name)
                elif isinstance(value, dict):
                    data.create_dataset(name, **value)
                else:
                    data[name] = value
        return (folder / "data.h5",)

    return write


def huge_chunks(folder):
    """A store whose metadata give chunks of 64 TB."""
    group = zarr.open_group(folder / "s.zarr", mode="w", zarr_format=2)
    group["X"] = np.eye(8, 2)
    path = folder / "s.zarr" / "X" / ".zarray"
    huge = {"shape": [8, 10**12], "chunks": [8, 10**12]}
    path.write_text(json.dumps(json.loads(path.read_text()) | huge))
    return (folder / "s.zarr",)


def narrow_chunks(folder):
    """A store of chunks of one column each, of which reading rows decodes a thousand at once."""
    group = zarr.open_group(folder / "s.zarr", mode="w", zarr_format=2)
    group.create_array("X", shape=(10**7, 1000), chunks=(10**7, 1), dtype="f4")
    return (folder / "s.zarr",)


class OnDevice(SimpleNamespace):
    """Rows in the memory of another device."""

    shape = (60, 4)

    def __array__(self, *_, **__):
        raise TypeError("implicit conversion is not allowed")


CONVERT = r"; .* ooc-fw convert \S*"
NEITHER = "a.h5 is neither HDF5 nor .npy, or it is empty or damaged"
FILES = [
    (file("a9a.txt", b"+1 3:1 11:0.5\n"), f"is LIBSVM text{CONVERT}a9a.txt a9a.h5"),
    (file("a.csv", b"1,2,3\n"), f"is a table{CONVERT}a.csv a.h5 --label COLUMN;"),
    *((file("a.h5", content), NEITHER) for content in (b"", b"\x00\x01\x02" * 9)),
    (file("a.npz"), "a.npz does not exist"),
    (file("."), "is a folder without CSV, Parquet or Arrow"),
    (file("pipe.h5"), "a pipe or a device"),
    *((header(shape), r"X\.npy") for shape in ((-60, 4), (10**15, 4), (2**40, 2**40), "(60")),
    *((header((60, 4), descr), r"X\.npy") for descr in ("[('a', '<f4')]", "'|O'")),
]
NO_ROWS = [
    (np.zeros((0, 3)), r"is empty \(0 rows, 3 columns\)"),
    (np.zeros((3, 0)), r"is empty \(3 rows, 0 columns\)"),
    (np.zeros((2, 2, 2)), "two dimensions, not of 3"),
    (np.zeros((2, 2), complex), "type complex128, but must be real numbers"),
    (np.array([[None]], dtype=object), "real numbers|holds Python objects"),
]
UNKNOWN = da.from_array(X, chunks=10)
ROWS = [
    *(((array,), message) for array, message in NO_ROWS),
    (([[1, 2], [3]],), "list cannot be made an array"),
    ((UNKNOWN[UNKNOWN[:, 0] > 0],), "known lengths; see its compute_chunk_sizes"),
    ((np.ma.masked_equal(X, 1),), "rows and labels cannot be masked arrays; fill"),
    ((np.array([[1.0], [1e300]]),), "row 1 holds a value in column 0 .* too large"),
    ((OnDevice(),), "OnDevice cannot be made an array .implicit conversion is not allowed"),
    ((np.zeros((60, 4), "V2"),), "type .*V2, but must be real numbers; convert them"),
    (narrow_chunks, "'/X', of shape .* write it in chunks of"),
    (backward, "X.npy is not in one piece of it; copy"),
    (huge_chunks, "'/X', of shape .* write it in chunks of"),
]
ABSENT = "'/X', .* has values that were never written, or are in other files"
MANY = {"shape": (10**12, 4), "dtype": "f4"}
NOT_X = "'/X' must be an array, or sparse rows"
ONE_EACH = "must be one number or text for each row"
CSR = {
    "X/data": np.ones(60, np.float32),
    "X/indices": np.arange(60) % 4,
    "X/indptr": np.arange(61),
    "X@shape": (60, 4),
    "y": y,
}
CONVERTED = {"X": X, "y": y, "@n_features": 4}
CODED = {"X": X[:3], "y": [0.0, 2.0, 0.0], "y@label_names": [b"a", b"b"]}
HDF5 = [
    ({"X": h5py.SoftLink("/X")}, "too many links"),
    ({"X": h5py.SoftLink("/none")}, "component not found"),
    ({"X": MANY}, ABSENT),
    ({"X": MANY | {"compression": "gzip", "chunks": (1000, 4)}}, ABSENT),
    ({"X": {"shape": X.shape, "dtype": "f4", "external": [("raw", 0, X.nbytes)]}}, ABSENT),
    (CSR | {"X/indices": np.ones(60)}, NOT_X),
    (CSR | {"X/indptr": np.arange(5)}, NOT_X),
    (CSR | {"X@encoding-type": "csc_matrix"}, NOT_X + ".* it is a csc_matrix"),
    (CSR | {"X/indptr": np.zeros(61, int)}, "row pointers do not rise from 0"),
    (CSR | {"X@shape": (60, 2**40)}, "columns, 2..31 or more"),
    ({"Z": X, "y": y}, r"data.h5 has no 'X' \(it has: Z, y\); name"),
    ({"X": X, "y": np.ones(59)}, "data.h5 has 60 rows but 59 labels"),
    ({"X": X, "y": 1.0}, f"'y' {ONE_EACH}"),
    ({"X": X, "y": {"data": [h5py.Reference()] * 60, "dtype": h5py.ref_dtype}}, ONE_EACH),
    ({"X": X}, r"data.h5 has no labels; name .*--label"),
    (CODED, "outside its categories"),
    (CODED | {"y": [0.0, -1.0, 0.0]}, "label of row 1 of .* is missing"),
    (CONVERTED | {"@format_version": 1}, "was not finished, or has no checksums; conv"),
    (CONVERTED | {"@format_version": 1, "@complete": 1}, "has no checksums; conv"),
    (CONVERTED | {"@format_version": 3}, "version 3, newer than 2; update"),
]
LABELS = [
    ((X,), r"has no labels; name them .* \(--labels"),
    ((X, "nowhere.txt"), "neither a file of labels nor a name in array"),
    ((X, [1, 2, 3]), "array has 60 rows but 3 labels; give one"),
    ((X, np.ones((60, 2))), rf"labels in array {ONE_EACH}, not of shape \(60, 2\)"),
    (lambda folder: (X, *file("y.txt", b"1\n-1\n")(folder)), "y.txt must be a .npy file; write"),
    ((np.eye(5), [1, 0, 1, 1, np.inf]), "row 4 of array is infinite"),
    ((np.eye(300, 2), np.arange(300) / 7), "array has more than 256 different labels"),
    *(
        ((np.eye(3), np.array(["a", "b", word], object)), "row 2 of array is missing")
        for word in (None, np.nan, pd.NA, pd.NaT, " nan ")
    ),
    *(
        ((np.eye(3), labels), f"are {kinds}; give all of them as words, or all as numbers")
        for labels, kinds in (
            ([1, "a", 2], "numbers and words"),
            (np.array([1, "a", 2.5], object), "numbers and words"),
            ([True, "b", "b"], "truth values and words"),
            (np.array([2, True, 3], object), "numbers and truth values"),
            (np.array([(1, 2), "a", "b"], object), "other objects and words"),
        )
    ),
    ((np.eye(2), [2**70, 1]), "exceed 64 bits"),
    ((np.eye(2), np.array([2**63, -1], object)), "exceed 64 bits"),
    ((open_dataset(X), y), "is open already; give the labels where it is opened"),
]


def look(*arguments):
    """Read what training reads."""
    with open_dataset(*arguments) as source:
        source.read(0, source.n_rows)
        encode_labels(source)


@pytest.mark.parametrize(("given", "message"), [*FILES, *ROWS, *HDF5, *LABELS])
def test_what_cannot_be_trained_on(tmp_path, given, message):
    os.mkfifo(tmp_path / "pipe.h5")
    given = hdf5(given) if isinstance(given, dict) else given
    arguments = given if isinstance(given, tuple) else given(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        look(*arguments)
    assert str(arguments[0] if isinstance(arguments[0], os.PathLike) else "") in str(caught.value)


FITTED = Scaling("minmax", False, np.full(5, -2.0), np.full(5, 0.5))
LOGS = Scaling("maxabs", True, np.zeros(5), np.ones(5))
HUGE = Scaling("maxabs", False, np.zeros(5), np.full(5, 1e40))
SCALED = ScaledSource(open_dataset(np.eye(5)), FITTED)
ROW = np.array([[1, -1, 0, 0, 0]], np.float32)
LOG1P = "log1p needs values above -1, but .* hold -1"
ACTS = [
    (partial(open_dataset, label="b"), (open_dataset(X),), "is open already; give the labels"),
    *((train_test_split, (X, share), "share") for share in (0, 1, float("nan"))),
    *(
        (partial(open_dataset, X, **{option: value}), (), message)
        for option, value, message in (
            *(("label", name, "label must be a name in UTF-8") for name in ("", "a\0", "\udce9")),
            ("x_name", "", "x_name must be a name in UTF-8"),
            ("x_name", 5, "x_name must be text, not 5"),
            ("x_name", pd.Series([1, 2]), r"x_name must be text, not 0    1\\n1    2\\n"),
            ("fill_missing", 1, "fill_missing must be one of 0, not '1'"),
            ("missing_labels", 5, "missing_labels must be one of refuse, drop, not 5"),
        )
    ),
    (partial(open_dataset, X, y, label="y"), (), "--label and --labels contradict each other"),
    (partial(train_test_split, X, groups="kind"), (), "kind does not exist"),
    (partial(train_test_split, X, groups=5), (), "the groups in array must be"),
    (read_targets, (open_dataset(np.eye(2), ["T", "F"]),), "are words, and a regression"),
    (Scaling, ("best",), "must be one of none, minmax, maxabs, standard, not 'best'"),
    (Scaling, ("minmax", False, np.zeros(1), np.zeros(2)), "does not fit"),
    *((LOGS.apply, (rows, 5), LOG1P) for rows in (ROW, CSRRows.from_dense(ROW))),
    (HUGE.apply, (ROW, 5), "a scaled value is beyond float32"),
    (ScaledSource, (SCALED, LOGS), r"array is scaled already \(minmax\)"),
    (borrow_workers("thread", 1).__enter__, (), "must be threads, processes or"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), ACTS)
def test_what_cannot_be_done(function, arguments, message):
    with pytest.raises(InputError, match=message):
        function(*arguments)
