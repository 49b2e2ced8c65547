"""What `open_source` opens, and what it says of arrays and files that it cannot use."""

import gzip
import os
import pickle

import dask.array as da
import numpy as np
import pytest
import scipy.sparse

import ooc_fw
from ooc_fw.data.arrays import open_npy
from ooc_fw.data.opening import open_source
from ooc_fw.system.errors import InputError
from tests.support.contracts import small_table
from tests.support.files import write_dense

X = small_table()


def save(folder, array, name="X.npy"):
    np.save(folder / name, array)
    return folder / name


def mapped(folder, view=np.s_[:], mode="r"):
    return np.load(save(folder, X), mmap_mode=mode)[view]


def unknown_lengths():
    array = da.from_array(X, chunks=10)
    return array[array[:, 0] > 0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a9a.txt", b"+1 3:1 11:0.5\n", "is LIBSVM text; .*ooc-fw convert .*a9a.txt a9a.h5"),
        ("data.h5", b"-1 1:2\n", "data.h5 is LIBSVM text; .* convert .*data.h5"),
        ("a.csv", b"1,2,3\n", r"a.csv is a table; .* ooc-fw convert \S*a.csv a.h5 --label COLUMN$"),
        ("a.tsv.gz", b"\x1f\x8b\x08", r"tsv.gz is a table; .* ooc-fw convert .* --label COLUMN$"),
        ("a", b"x;y\n1;2\n", r"a is a table; .* ooc-fw convert \S*a a.h5 --label COLUMN$"),
        ("a.parquet", b"PAR1\x15\x04", "a.parquet is a table; .* a.h5 --label COLUMN$"),
        ("a.txt.gz", gzip.compress(b"1 1:1", mtime=0), "a.txt.gz is LIBSVM text; .*a.txt.gz a.h5"),
        ("a.h5", b"\x00\x01\x02" * 9, "a.h5 is neither HDF5 nor .npy, or it is empty or damaged"),
        ("a.h5", b"", "a.h5 is neither HDF5 nor .npy, or it is empty"),
        ("a.npz", None, "a.npz does not exist"),
        (".", None, "is a folder without files of Parquet"),
        ("pipe.h5", None, "a pipe or a device"),
    ],
)
def test_files_that_are_no_rows(tmp_path, name, content, message):
    os.mkfifo(tmp_path / "pipe.h5")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_source(str(tmp_path / name))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((0, 3)), r"is empty \(0 rows, 3 columns\)"),
        (np.zeros((3, 0)), r"is empty \(3 rows, 0 columns\)"),
        (np.zeros((2, 2, 2)), "two dimensions, not of 3"),
        (np.zeros(4), "two dimensions, not of 1"),
        (np.zeros(()), "two dimensions, not of 0"),
        (np.zeros((2, 2), complex), "type complex128, but must be real numbers"),
        (np.array([["a"]]), "must be real numbers"),
        (np.array([[None]], dtype=object), "real numbers|cannot be read"),
    ],
)
def test_arrays_that_are_no_rows(tmp_path, array, message, stored):
    with pytest.raises(InputError, match=message):
        open_source(save(tmp_path, array) if stored else array)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: [[1, 2], [3]], "list cannot be made an array"),
        (
            lambda _: scipy.sparse.csr_array((1, 3 * 10**9)),
            "3000000000 columns, 2..31 or more",
        ),
        (lambda _: da.zeros(4), "two dimensions"),
        (lambda _: unknown_lengths(), r"known lengths; see its compute_chunk_sizes"),
        (lambda folder: mapped(folder, np.s_[::-1]), "X.npy is not in one piece of it; copy"),
        (lambda folder: mapped(folder, np.s_[::2, 1:3]), "not in one piece"),
    ],
)
def test_objects_that_are_no_rows(tmp_path, make, message):
    with pytest.raises(InputError, match=message):
        open_source(make(tmp_path))


@pytest.mark.parametrize(
    ("shape", "descr"),
    [
        *((shape, "'<f4'") for shape in ((-60, 4), (-60, -4), (True, 4), (60.0, 4), (10**15, 4))),
        *(((2**40, 2**40), "'<f4'"), ((240,), "[('a', '<f4')]")),
        *(((2, 2), "'|O'"), ((60, 4), "'zzz'"), ("(60,", "'<f4'"), ("(60", "'<f4'")),
    ],
)
def test_odd_npy_files(tmp_path, shape, descr):
    """960 bytes of zeros whose header says something else."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
    (tmp_path / "X.npy").write_bytes(head + text.encode() + bytes(960))
    with pytest.raises(InputError, match=r"X\.npy"):
        open_source(tmp_path / "X.npy")
    whole = save(tmp_path, X).read_bytes()
    for length in (-1, 60, 7):
        (tmp_path / "X.npy").write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"X\.npy"):
            open_source(tmp_path / "X.npy")


def test_labels_that_are_none(tmp_path):
    (tmp_path / "y.txt").write_text("1\n-1\n")
    for labels, message in (
        ([1, 2, 3], "array has 57 rows but 3 labels; give one"),
        (np.ones((57, 2)), r"labels in array must be one number .* of shape \(57, 2\)"),
        (save(tmp_path, np.ones((57, 2)), "y.npy"), r"y.npy must be one number or text"),
        (tmp_path / "y.txt", r"y.txt must be a .npy file; write them with numpy.save"),
        (np.ones(57, complex), "labels in array must be one number .* type complex128"),
    ):
        with pytest.raises(InputError, match=message):
            open_source(X, labels)
    for data in (X, save(tmp_path, X, "two\nlines.npy")):
        source = open_source(data)
        assert not source.has_labels
        with pytest.raises(InputError, match=r"has no labels; name them .* \(--labels"):
            source.labels(0, 1)


def test_shares_that_leave_a_part_empty():
    for share, message in ((np.ones(57), "must be a number"), (float("nan"), "a share of nan")):
        with pytest.raises(InputError, match=message):
            ooc_fw.train_test_split(X, share)


def test_rows_in_ram_are_views_and_a_source_is_returned_as_it_is():
    source = open_source(X)
    assert np.shares_memory(source.read(3, 9), X)
    assert open_source(source) is source
    with pytest.raises(InputError, match="is open already; give the labels where it is opened"):
        open_source(source, labels=np.ones(57))
    lists = open_source([[1, 2], [3, 4]], ["no", "yes"])
    np.testing.assert_array_equal(lists.read(0, 2), [[1, 2], [3, 4]])
    assert lists.labels(1, 2).tolist() == ["yes"]


def test_a_matrix_whose_columns_are_put_in_order_is_left_alone():
    parts = np.array([4.0, 2, 2, 3]), np.array([3, 0, 0, 2]), np.array([0, 3, 4])
    matrix = scipy.sparse.csr_matrix(parts, (2, 4))
    assert open_source(matrix).read(0, 2).toarray().tolist() == [[4, 0, 0, 4], [0, 0, 3, 0]]
    assert matrix.indices.tolist() == [3, 0, 0, 2]
    matrix.indices = np.array([0, 7, 2, 1])
    with pytest.raises(InputError, match="column number outside 0 to 3"):
        open_source(matrix).read(0, 2)


def test_other_numbers_become_float32():
    for dtype in (np.int8, np.int64, np.uint16, bool, np.float16):
        rows = open_source((X > 0).astype(dtype)).read(2, 9)
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, X[2:9] > 0)
    source = open_source(np.array([[1 + 0.75 * 2.0**-23], [1e300]]))
    assert source.read(0, 1)[0, 0] == np.float32(1 + 2.0**-23)
    with pytest.raises(InputError, match=r"array: row 1 holds a value in column 0 .* too large"):
        source.read(0, 2)


@pytest.mark.parametrize("mode", ["r+", "c"])
def test_changes_of_a_map_are_seen(tmp_path, mode):
    """Those of a private map are in RAM only, so its file is not read."""
    table = mapped(tmp_path, mode=mode)
    table[3] = 5
    source = open_source(table)
    assert source.in_memory == (mode == "c")
    assert (source.read(3, 4) == 5).all()
    assert open_source(table[[1, 2]]).in_memory  # a copy


def test_a_file_cut_short_or_gone_is_an_error_and_kills_no_process(tmp_path):
    path = save(tmp_path, np.tile(X, (1000, 1)))
    array, source = open_npy(str(path)), open_source(path)
    mapped = np.load(path, mmap_mode="r")
    table = open_source(mapped)
    os.truncate(path, os.path.getsize(path) - 30)
    np.testing.assert_array_equal(array[0:50], X[:50])
    with pytest.raises(InputError, match=r"X.npy was cut short: 30 bytes"):
        array[56_950:57_000]
    for read in (source.read, table.read):
        with pytest.raises(InputError, match=r"X.npy was changed while it was in use"):
            read(56_950, 57_000)
    path.unlink()
    with pytest.raises(InputError, match=r"X.npy was changed while it was in use"):
        source.check_unchanged()
    with pytest.raises(InputError, match=r"X.npy does not exist"):
        open_source(mapped)


def test_a_file_travels_as_its_path(tmp_path):
    path = save(tmp_path, X)
    source = open_source(path, labels=np.arange(57))
    image = pickle.dumps(source)
    copy = pickle.loads(image)
    assert pickle.loads(image) is copy  # one open file per process
    np.testing.assert_array_equal(copy.read(0, 57), X)
    assert not copy.has_labels
    save(tmp_path, X[::-1])
    with pytest.raises(InputError, match=r"is not the file it was when the work began|was changed"):
        pickle.loads(pickle.dumps(source)).check_unchanged()
    image = pickle.dumps(open_source(path))
    os.utime(path, ns=(1, 1))
    with pytest.raises(InputError, match="is not the file it was when the work began"):
        pickle.loads(image)


def test_labels_given_apart_do_not_travel(tmp_path):
    """And those in the file, which they replace, do not come in their stead."""
    path = write_dense(tmp_path / "data.h5", X, np.ones(57))
    for labels, travel in ((np.zeros(57), False), (None, True)):
        copy = pickle.loads(pickle.dumps(open_source(path, labels)))
        np.testing.assert_array_equal(copy.read(0, 57), X)
        assert copy.has_labels == travel
