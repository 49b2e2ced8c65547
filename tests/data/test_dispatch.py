"""What open_source picks, and what it says about files it cannot use."""

import gzip
import pickle

import numpy as np
import pytest

from ooc_fw.data.sources import ArraySource, open_source
from ooc_fw.system.errors import InputError
from ooc_fw.testing.contracts import small_table
from ooc_fw.testing.files import write_dense


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a9a.txt",
            b"+1 3:1 11:0.5\n",
            "a9a.txt is LIBSVM text; .*ooc-fw convert .*a9a.txt a9a.h5",
        ),
        ("data.h5", b"-1 1:2\n", "data.h5 is LIBSVM text; .* converted-data.h5"),
        ("a.csv", b"1,2,3\n", r"a.csv is a table; .* ooc-fw convert \S*a.csv a.h5 --label COLUMN$"),
        ("a.tsv.gz", b"\x1f\x8b\x08", r"tsv.gz is a table; .* ooc-fw convert .* --label COLUMN$"),
        ("a", b"x;y\n1;2\n", r"a is a table; .* ooc-fw convert \S*a a.h5 --label COLUMN$"),
        ("a.parquet", b"PAR1\x15\x04", "a.parquet is a table; .* a.h5 --label COLUMN$"),
        ("a.txt.gz", gzip.compress(b"1 1:1", mtime=0), "a.txt.gz is compressed; .*a.txt.gz a.h5"),
        ("a.h5", b"\x00\x01\x02" * 9, "a.h5 is neither HDF5 nor .npy, or it is damaged"),
        ("a.h5", b"", "a.h5 is empty; give a file with rows"),
        ("a.npz", None, "a.npz does not exist"),
        (".", None, "is a folder; give a file in it"),
    ],
)
def test_files_that_are_no_rows(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_source(path)


def test_a_source_is_returned_as_it_is():
    source = open_source(small_table())
    assert open_source(source) is source
    with pytest.raises(InputError, match="is open already; give the labels where it is opened"):
        open_source(source, labels=np.ones(57))


def test_lists_are_arrays():
    source = open_source([[1, 2], [3, 4]], [0, 1])
    assert isinstance(source, ArraySource)
    np.testing.assert_array_equal(source.read(0, 2), [[1, 2], [3, 4]])


def test_labels_that_are_none(tmp_path):
    np.save(tmp_path / "y.npy", np.ones((57, 1)))
    (tmp_path / "y.txt").write_text("1\n-1\n")
    for labels, message in (
        ([1, 2, 3], "array has 57 rows but 3 labels came with it"),
        (np.ones((57, 1)), "labels must have one dimension, not 2"),
        (tmp_path / "y.npy", r"y.npy must have one dimension, not 2"),
        (tmp_path / "y.txt", r"y.txt must be a .npy file; write it with numpy.save"),
        (np.ones(57, complex), "labels are of type complex128"),
    ):
        with pytest.raises(InputError, match=message):
            open_source(small_table(), labels)
    np.save(tmp_path / "X.npy", small_table())
    for data, message in ((small_table(), "pass one"), (tmp_path / "X.npy", "another .npy file")):
        source = open_source(data)
        assert not source.has_labels
        with pytest.raises(InputError, match=f"has no labels; .*{message}"):
            source.labels(0, 1)


def test_labels_keep_their_type():
    source = open_source(np.eye(2), np.array(["no", "yes"]))
    assert source.labels(1, 2).tolist() == ["yes"]


def test_labels_given_apart_do_not_travel(tmp_path):
    """And those in the file, which they replace, do not come in their stead."""
    X = small_table()
    path = write_dense(tmp_path / "data.h5", X, np.ones(len(X)))
    copy = pickle.loads(pickle.dumps(open_source(path, np.zeros(len(X)))))
    np.testing.assert_array_equal(copy.read(0, 57), X)
    assert not copy.has_labels
    assert pickle.loads(pickle.dumps(open_source(path))).has_labels
