"""Rows and labels that cannot be used: one sentence says which, and what to do."""

import gzip
import io
import json
import os
import time

import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

import ooc_fw
from ooc_fw.data.labels import encode_labels, read_targets
from ooc_fw.data.opening import open_source
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.views import ScaledSource
from ooc_fw.system.errors import InputError
from tests.support.contracts import small_table
from tests.support.files import write_dense

X = small_table(60, 4)
y = (X[:, 0] > 0).astype(np.float64)


# -- what is given: a function from a folder to arguments of `open_source` -------------------------


def file(name, content=None):
    """A file of such bytes."""

    def write(folder):
        if content is not None:
            (folder / name).write_bytes(content)
        return (folder / name,)

    return write


def npy(array):
    def write(folder):
        np.save(folder / "X.npy", array)
        return (folder / "X.npy",)

    return write


def header(shape, descr):
    """960 bytes of zeros whose header says something else."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
    return file("X.npy", head + text.encode() + bytes(960))


def mapped(view):
    return lambda folder: (np.load(npy(X)(folder)[0], mmap_mode="r")[view],)


def hdf5(contents, **options):
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
        return (folder / "data.h5", *options.values())

    return write


def converted(**attributes):
    def write(folder):
        path = write_dense(folder / "data.h5", X, y, chunks=(10, 4))
        with h5py.File(path, "a") as data:
            data.attrs.update(attributes)
        return (path,)

    return write


def elsewhere(folder):
    """Values of which a part was never written, and others are in another file."""
    with h5py.File(folder / "data.h5", "w") as data:
        data.create_dataset("X", X.shape, X.dtype, chunks=(10, 4))[:20] = X[:20]
        layout = h5py.VirtualLayout(X.shape, X.dtype)
        layout[...] = h5py.VirtualSource("other.h5", "X", X.shape)
        data.create_virtual_dataset("Z", layout)
    return (folder / "data.h5", y)


def store(**metadata):
    """A store of zarr whose metadata say something else."""

    def write(folder):
        group = zarr.open_group(folder / "s.zarr", mode="w", zarr_format=2)
        group["X"] = np.eye(8, 2)
        path = folder / "s.zarr" / "X" / ".zarray"
        path.write_text(json.dumps(json.loads(path.read_text()) | metadata))
        return (folder / "s.zarr",)

    return write


def unknown_lengths(_):
    array = da.from_array(X, chunks=10)
    return (array[array[:, 0] > 0],)


def never_written(n_rows, **storage):
    chunks = {"chunks": (1000, 4)} if storage else {}
    return {"X": {"shape": (n_rows, 4), "dtype": "f4", **storage, **chunks}, "y": y}


WHOLE = io.BytesIO()
np.save(WHOLE, X)
WHOLE = WHOLE.getvalue()
ABSENT = "has values that were never written, or are in other files"
ELSEWHERE = {"shape": X.shape, "dtype": "f4", "external": [("raw.bin", 0, X.nbytes)]}
REFERENCES = {"data": [h5py.Reference()] * 60, "dtype": h5py.ref_dtype}
RAGGED = np.array([np.arange(k % 3) for k in range(60)], dtype=object)
RAGGED = {"data": RAGGED, "dtype": h5py.vlen_dtype(np.int32)}
WRONG = "'/X' must be an array, or sparse rows"
ONE_EACH = "must be one number or text for each row"
CSR = {
    "X/data": np.ones(60, np.float32),
    "X/indices": np.arange(60) % 4,
    "X/indptr": np.arange(61),
    "X@shape": (60, 4),
    "y": y,
}
WRONG_PARTS = [
    {"X/indices": np.ones(60)},
    {"X/indices": np.zeros(3, int)},
    {"X/indptr": np.zeros((61, 2), int)},
    {"X/indptr": np.arange(5)},
    {"X/data": np.zeros((60, 2))},
    {"X@shape": (np.nan, 4.0)},
    {"X@shape": (-60, 4)},
]
MISSING_WORDS = [None, np.nan, pd.NA, pd.NaT, "", " nan "]

FILES = [
    (file("a9a.txt", b"+1 3:1 11:0.5\n"), "is LIBSVM text; .*ooc-fw convert .*a9a.txt a9a.h5"),
    (file("a.txt.gz", gzip.compress(b"1 1:1")), "a.txt.gz is LIBSVM text; .*a.txt.gz a.h5"),
    (
        file("a.csv", b"1,2,3\n"),
        r"a.csv is a table; .* ooc-fw convert \S*a.csv a.h5 --label COLUMN$",
    ),
    (file("a", b"x;y\n1;2\n"), r"a is a table; .* ooc-fw convert \S*a a.h5 --label COLUMN$"),
    (file("a.parquet", b"PAR1\x15\x04"), "a.parquet is a table; .* a.h5 --label COLUMN$"),
    (file("a.h5", b"\x00\x01\x02" * 9), "a.h5 is neither HDF5 nor .npy, or it is empty or damaged"),
    (file("a.h5", b""), "a.h5 is neither HDF5 nor .npy, or it is empty"),
    (file("a.npz"), "a.npz does not exist"),
    (file("."), "is a folder without files of Parquet"),
    (file("pipe.h5"), "a pipe or a device"),
    *(
        (header(shape, "'<f4'"), r"X\.npy")
        for shape in ((-60, 4), (True, 4), (60.0, 4), (10**15, 4), (2**40, 2**40), "(60,", "(60")
    ),
    *((header((60, 4), descr), r"X\.npy") for descr in ("[('a', '<f4')]", "'|O'", "'zzz'")),
    *((file("X.npy", WHOLE[:length]), r"X\.npy") for length in (-1, 60, 7)),
]
NO_ROWS = [
    (np.zeros((0, 3)), r"is empty \(0 rows, 3 columns\)"),
    (np.zeros((3, 0)), r"is empty \(3 rows, 0 columns\)"),
    *((np.zeros((2,) * n), f"two dimensions, not of {n}") for n in (0, 1, 3)),
    (np.zeros((2, 2), complex), "type complex128, but must be real numbers"),
    (np.array([["a"]]), "must be real numbers"),
    (np.array([[None]], dtype=object), "real numbers|cannot be read"),
]
ROWS = [
    *((lambda _, array=array: (array,), message) for array, message in NO_ROWS),
    *((npy(array), message) for array, message in NO_ROWS),
    (lambda _: ([[1, 2], [3]],), "list cannot be made an array"),
    (lambda _: (sp.csr_array((1, 3 * 10**9)),), "3000000000 columns, 2..31 or more"),
    (lambda _: (da.zeros(4),), "two dimensions"),
    (lambda _: (np.ma.masked_equal(X, 1),), "rows and labels cannot be masked arrays; fill"),
    (lambda _: (np.array([[1.0], [1e300]]),), "row 1 holds a value in column 0 .* too large"),
    (unknown_lengths, "known lengths; see its compute_chunk_sizes"),
    (mapped(np.s_[::-1]), "X.npy is not in one piece of it; copy"),
    (mapped(np.s_[::2, 1:3]), "not in one piece"),
    *(
        (store(shape=shape, chunks=chunks), "'/X', of shape .* in chunks of .* write it in chunks")
        for shape, chunks in (
            ([8, 10**12], [8, 10**12]),
            ([10**12, 2], [8, 2]),
            ([8, 2], [10**8, 10]),
        )
    ),
]
HDF5 = [
    (hdf5({"X": h5py.SoftLink("/X")}), "too many links"),
    (hdf5({"X": h5py.SoftLink("/Z"), "Z": h5py.SoftLink("/X")}), "too many links"),
    (hdf5({"X": h5py.SoftLink("/none")}), "component not found"),
    (hdf5(never_written(10**12)), ABSENT),
    (hdf5(never_written(10**12, compression="gzip")), ABSENT),
    (hdf5({"X": ELSEWHERE}), ABSENT),
    (hdf5({"X": h5py.Empty("f4")}), ABSENT),
    (elsewhere, f"'/X', .*{ABSENT}"),
    (lambda folder: (h5py.File(*elsewhere(folder)[:1])["Z"], y), f"'/Z', .*{ABSENT}"),
    *((hdf5(CSR | wrong), WRONG) for wrong in WRONG_PARTS),
    (hdf5(CSR | {"X@encoding-type": "csc_matrix"}), WRONG + ".* it is a csc_matrix"),
    (hdf5(CSR | {"X/indptr": np.zeros(61, int)}), "row pointers do not rise from 0"),
    (hdf5(CSR | {"X@shape": (60, 2**40)}), "columns, 2..31 or more"),
    (hdf5({"Z": X, "y": y}), r"data.h5 has no 'X' \(it has: Z, y\); name"),
    (hdf5({}), r"has no 'X' \(it has: nothing\)"),
    (hdf5({"X": None}), WRONG),
    (hdf5({"X": np.zeros((0, 5)), "y": y}), r"data.h5 is empty \(0 rows, 5 col"),
    (hdf5({"X": np.float32(1)}), "two dimensions, not of 0"),
    (hdf5({"X": X, "y": np.ones(59)}), "data.h5 has 60 rows but 59 labels"),
    (hdf5({"X": X, "y": 1.0}), f"'y' {ONE_EACH}"),
    (hdf5({"X": X, "y": np.ones((60, 2))}), f"'y' {ONE_EACH}"),
    (hdf5({"X": X, "y": y.astype(complex)}), ONE_EACH),
    (hdf5({"X": X, "y": np.zeros(60, "V4")}), ONE_EACH),
    (hdf5({"X": X, "y": REFERENCES}), ONE_EACH),
    (hdf5({"X": X, "y": RAGGED}), ONE_EACH),
    (hdf5({"X": X, "y": y}, labels="Z"), r"data.h5 has no labels 'Z'; it has X, y"),
    (hdf5({"X": X}), r"data.h5 has no labels; name .*--label"),
    (converted(complete=0), "was not finished when it was written; conv"),
    (converted(format_version=2), "version 2, newer than 1; update"),
    *(
        (hdf5({"X": X[:3], "y": [0.0, code, 0.0], "y@label_names": [b"a", b"b"]}), message)
        for code, message in ((-1, "label of row 1 of .* is missing"), (2, "none of its categ"))
    ),
]
LABELS = [
    (lambda _: (X, [1, 2, 3]), "array has 60 rows but 3 labels; give one"),
    (lambda _: (X, np.ones((60, 2))), rf"labels in array {ONE_EACH}, not of shape \(60, 2\)"),
    (lambda _: (X, np.ones(60, complex)), f"labels in array {ONE_EACH}.* type complex128"),
    (lambda _: (np.eye(2), sp.csr_array([[1], [0]])), ONE_EACH),
    (lambda _: (X, np.ma.masked_equal(y, 1)), "cannot be masked arrays"),
    (lambda folder: (X, *npy(np.ones((60, 2)))(folder)), f"X.npy {ONE_EACH}"),
    (
        lambda folder: (X, *file("y.txt", b"1\n-1\n")(folder)),
        "y.txt must be a .npy file; write",
    ),
    (lambda _: (X,), r"has no labels; name them .* \(--labels"),
    (npy(X), r"has no labels; name them .* \(--labels"),
    (lambda _: (X, [2] * 60), "all rows of array have the label 2"),
    (lambda _: (np.eye(5), [1, 0, np.nan, 1, 1]), "row 2 of array is missing"),
    (lambda _: (np.eye(5), [1, 0, 1, 1, np.inf]), "row 4 of array is infinite"),
    (lambda _: (np.eye(300, 2), np.arange(300) / 7), "array has more than 256 different labels"),
    *(
        (
            lambda _, it=it: (np.eye(3), np.array(["a", "b", it], object)),
            "row 2 of array is missing",
        )
        for it in MISSING_WORDS
    ),
    *(
        (lambda _, kind=kind: (np.eye(2), np.array([7, 2**53 + 1], kind)), "row 1 .* whole number")
        for kind in (np.int64, np.uint64)
    ),
    (lambda _: (open_source(X), y), "is open already; give the labels where it is opened"),
]


def look(*arguments):
    """Read what training reads."""
    with open_source(*arguments) as source:
        source.read(0, source.n_rows)
        encode_labels(source)


@pytest.mark.parametrize(("given", "message"), [*FILES, *ROWS, *HDF5, *LABELS])
def test_what_cannot_be_trained_on(tmp_path, given, message):
    """It is said when it is opened, or when rows and labels are read, and at once."""
    os.mkfifo(tmp_path / "pipe.h5")
    arguments, begun = given(tmp_path), time.perf_counter()
    with pytest.raises(InputError, match=message) as caught:
        look(*arguments)
    assert time.perf_counter() - begun < 5
    assert str(arguments[0] if isinstance(arguments[0], os.PathLike) else "") in str(caught.value)


minmax = Scaling("minmax", False, np.full(5, -2.0), np.full(5, 0.5))
logs = Scaling("maxabs", True, np.zeros(5), np.ones(5))
huge = Scaling("maxabs", False, np.zeros(5), np.full(5, 1e40))
SCALED = ScaledSource(open_source(np.eye(5)), minmax)
ROW = np.array([[1, -1, 0, 0, 0]], np.float32)
NEITHER = "must be threads, processes or the address"


def borrow(dask):
    with borrow_workers(dask, 1):
        pass


@pytest.mark.parametrize(
    ("act", "message"),
    [
        *(
            (lambda one=one: ooc_fw.train_test_split(X, one), message)
            for one, message in (
                *((share, "share") for share in (0, 1, -0.1, 0.001, float("nan"))),
                (np.ones(57), "must be a number"),
            )
        ),
        (lambda: read_targets(open_source(np.eye(2), ["T", "F"])), "are words, and a regression"),
        (lambda: Scaling("best"), "must be one of none, minmax, maxabs, standard, not 'best'"),
        (lambda: Scaling("minmax"), "does not fit"),
        (lambda: Scaling("none", False, np.zeros(1), np.zeros(1)), "does not fit"),
        (lambda: Scaling("minmax", False, np.zeros(1), np.zeros(2)), "does not fit"),
        (lambda: minmax.apply(ROW, 4), "the scaling is for 5 features, not for 4"),
        *(
            (lambda rows=rows: logs.apply(rows, 5), "log1p needs values above -1, but .* hold -1")
            for rows in (ROW, CSRRows.from_dense(ROW))
        ),
        (lambda: ScaledSource(SCALED, logs), r"array is scaled already \(minmax\)"),
        (lambda: huge.apply(ROW, 5), "a scaled value is beyond float32"),
        *((lambda dask=dask: borrow(dask), NEITHER) for dask in ("thread", "localhost", 3, "")),
    ],
)
def test_what_cannot_be_done(act, message):
    with pytest.raises(InputError, match=message):
        act()
