"""Files that somebody else wrote: what is not in them is not read, and said at once."""

from __future__ import annotations

import os
import time

import h5py
import numpy as np
import pytest

from ooc_fw.data.hdf5 import check_plain_tree, check_storage, find_node, structure_errors
from ooc_fw.data.opening import open_source
from ooc_fw.system.errors import DamageError, InputError
from tests.support.contracts import small_table

X = small_table(60, 4)
y = (X[:, 0] > 0).astype(np.float64)
PARTS = {
    "data": np.ones(60, np.float32),
    "indices": np.arange(60) % 4,
    "indptr": np.arange(61),
}


@pytest.fixture
def file(tmp_path):
    """A file to be filled; closed by the test or by `refused`."""
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["X"], other["y"] = X, y
    with h5py.File(tmp_path / "data.h5", "w") as opened:
        yield opened


def refused(file, message):
    path = file.filename
    file.close()
    started = time.perf_counter()
    with pytest.raises(InputError, match=message) as caught:
        with open_source(path) as source:
            source.read(0, 1)
    assert time.perf_counter() - started < 2
    assert os.path.dirname(path) in str(caught.value)


# -- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["X", "y", "soft", "X/indices"])
def test_links_to_other_files_are_not_followed(file, name):
    outside = h5py.ExternalLink("other.h5", "/X")
    if name == "soft":
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/")
        file["X"] = h5py.SoftLink("/elsewhere/X")
    elif name == "X/indices":
        file["X/data"], file["X/indptr"], file["X/indices"] = *list(PARTS.values())[::2], outside
        file["X"].attrs["shape"] = (60, 4)
    else:
        file["y" if name == "X" else "X"] = y if name == "X" else X
        file[name] = outside
    refused(file, r"is a link to another file \(other\.h5\)")


def test_links_inside_the_file_are_followed(file):
    file["deep/rows"], file["y"] = X, y
    file["deep/alias"] = h5py.SoftLink("rows")
    file["X"] = h5py.SoftLink("/deep/alias")
    assert find_node(file, "X") == file["deep/rows"]
    assert find_node(file, "X/none") is None
    path = file.filename
    file.close()
    with open_source(path) as source:
        np.testing.assert_array_equal(source.read(0, 60), X)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({"X": "/X"}, "lead in a circle"),
        ({"X": "/Z", "Z": "/X"}, "lead in a circle"),
        ({"X": "/none"}, "the link 'X' leads to nothing"),
    ],
)
def test_soft_links_that_lead_nowhere(file, links, message):
    for name, target in links.items():
        file[name] = h5py.SoftLink(target)
    refused(file, message)


def test_external_storage_is_not_followed(file, tmp_path):
    X.tofile(tmp_path / "raw.bin")
    file.create_dataset("X", X.shape, X.dtype, external=[("raw.bin", 0, X.nbytes)])
    refused(file, r"keeps its values in another file \(raw\.bin\)")


# -- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", [{}, {"chunks": (1000,)}, {"compression": "gzip"}])
def test_a_trillion_rows_never_written(file, storage):
    n = 10**12
    chunked = {"chunks": (1000, 4)} if storage else {}
    file.create_dataset("X", (n, 4), "f4", **(storage | chunked))
    file.create_dataset("y", (n,), "f8", **storage)
    refused(file, r"is said to have 1000000000000 rows, but .* never written")


@pytest.mark.parametrize("name", ["X", "y"])
def test_parts_never_written(file, name):
    file["y" if name == "X" else "X"] = y if name == "X" else X
    table = X if name == "X" else y
    part = file.create_dataset(name, table.shape, table.dtype, chunks=(10, *table.shape[1:]))
    part[:20] = table[:20]
    refused(file, "4 of its 6 chunks were never written")


def test_a_chunk_is_no_shorter_than_compression_could_make_it(file):
    zeros = np.zeros((1000, 1000), "f4")
    rows = file.create_dataset("X", data=zeros, chunks=zeros.shape, compression="gzip")
    assert rows.id.get_storage_size() * 900 < rows.nbytes  # near the bound
    assert check_storage(rows) == []
    rows.id.write_direct_chunk((0, 0), b"x" * 100)
    refused(file, "a chunk of 4000000 bytes stored in 100")


# -- virtual data sets ---------------------------------------------------------------------------


def virtual(path, parts, n_rows=120):
    """Write a virtual table; `parts` are (file, data set, its rows, where they go)."""
    layout = h5py.VirtualLayout((n_rows, 4), "f4")
    for name, dataset, length, place in parts:
        layout[place] = h5py.VirtualSource(name, dataset, (length, 4))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("X", layout, fillvalue=0)
    return str(path)


UPPER = ("other.h5", "X", 60, slice(0, 60))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([UPPER, ("gone.h5", "X", 60, slice(60, 120))], r"needs the file gone\.h5"),
        ([UPPER, ("other.h5", "Z", 60, slice(60, 120))], "needs 'Z'"),
        ([UPPER], "does not say for each of its values"),
        ([UPPER, ("other.h5", "X", 60, slice(30, 90))], "does not say for each of its values"),
        ([("other.h5", "X", 120, slice(0, 120))], r"in another shape than \(60, 4\)"),
        ([UPPER, ("data.h5", "X", 60, slice(60, 120))], "no data set with values of its own"),
        ([UPPER, ("part.h5", "X", 60, slice(60, 120))], r"part\.h5.* never written"),
        ([UPPER, ("odd.h5", "X", 60, slice(60, 120))], r"odd\.h5, which is no data set with valu"),
    ],
)
def test_virtual_rows_that_are_not_there(file, tmp_path, parts, message):
    with h5py.File(tmp_path / "part.h5", "w") as part:
        part.create_dataset("X", (60, 4), "f4", chunks=(10, 4))
    file.close()
    virtual(tmp_path / "odd.h5", [UPPER], 60)
    path = virtual(tmp_path / "data.h5", parts)
    with pytest.raises(InputError, match=message):
        open_source(path)


def test_virtual_rows_that_are_there(file, tmp_path, monkeypatch):
    file.close()
    monkeypatch.chdir("/")
    full = str(tmp_path / "other.h5")
    odd = [("other.h5", "X", 60, slice(0, 120, 2)), (full, "X", 60, slice(1, 120, 2))]
    with open_source(virtual(tmp_path / "odd.h5", odd)) as source:
        np.testing.assert_array_equal(source.read(0, 120), np.repeat(X, 2, axis=0))
        os.utime(tmp_path / "other.h5", ns=(0, 0))
        with pytest.raises(InputError, match=r"other\.h5 was changed"):
            source.read(0, 10)


def test_virtual_rows_behind_a_link(file, tmp_path, monkeypatch):
    """The file that is checked is the one that HDF5 reads."""
    file.close()
    path, folder = virtual(tmp_path / "data.h5", [UPPER], 60), tmp_path / "links"
    folder.mkdir()
    (folder / "data.h5").symlink_to(path)
    monkeypatch.chdir(tmp_path / "links")
    with open_source("data.h5") as source:
        np.testing.assert_array_equal(source.read(0, 60), X)
    with h5py.File("other.h5", "w") as other:
        other.create_dataset("X", (60, 4), "f4")
    with pytest.raises(InputError, match=r"other\.h5: '/X' is said .* never written"):
        open_source("data.h5")
    monkeypatch.setenv("HDF5_VDS_PREFIX", "/")
    with pytest.raises(InputError, match="HDF5_VDS_PREFIX must not be set"):
        open_source("data.h5")


# -- values of other kinds -----------------------------------------------------------------------


def test_labels_of_a_kind_that_labels_are_not(file):
    file["X"] = X
    for k, labels in enumerate(
        [y.astype(complex), np.zeros(60, [("a", "f4"), ("b", "i4")]), np.zeros(60, "V4")]
    ):
        file[f"y{k}"] = labels
    file.create_dataset("y3", (60,), dtype=h5py.ref_dtype)[0] = file["X"].ref
    file.create_dataset("y4", (60,), dtype=h5py.vlen_dtype(np.int32))[0] = [1, 2]
    for k in range(5):
        with pytest.raises(InputError, match="must be numbers or text"):
            open_source(file, y_name=f"y{k}")


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("indices", np.where(np.arange(60) == 3, np.nan, 1.0), "must be whole numbers"),
        ("indices", np.arange(60) % 4 + 0.5, "must be whole numbers"),
        ("indices", np.zeros((60, 2), int), "must be an array of one dimension"),
        ("indptr", np.arange(61) + 0.5, "must be whole numbers"),
        ("indptr", np.zeros((61, 2), int), "must be an array of one dimension"),
        ("data", np.zeros((60, 2)), "must be an array of one dimension"),
        ("indptr", np.arange(5), r"is it stored by columns \(CSC\)"),
        ("shape", (np.nan, 4.0), "must be two whole numbers"),
        ("shape", (-60, 4), "must be two whole numbers"),
        ("indices", np.zeros(3, int), "60 sparse values but 3 column numbers"),
        ("indptr", np.zeros(3, int), "60 sparse rows but 3 row pointers instead of 61"),
        ("indptr", np.zeros(61, int), "'/X/indptr': row pointers do not rise from 0 to the 60"),
        ("h5sparse_format", b"csc", "is a csc; write it by rows"),
        ("encoding-type", "csc_matrix", "'/X' is a csc_matrix; write it by rows"),
        ("shape", 3, "'shape' of .*/X' must be two whole numbers"),
        ("shape", (60, 2**40), "columns, more than the 2147483647"),
    ],
)
def test_sparse_rows_of_odd_parts(file, part, value, message):
    file["y"] = y
    group = file.create_group("X")
    group.attrs["shape"] = (60, 4)
    if part not in PARTS:
        group.attrs[part] = value
    for name, array in PARTS.items():
        group[name] = value if name == part else array
    refused(file, message)


def test_rows_that_are_no_table(file):
    file["X"], file["null"] = np.float32(1), h5py.Empty("f4")
    for name in ("X", "null"):
        with pytest.raises(InputError, match="two dimensions, not of 0"):
            open_source(file, x_name=name)


# -- files ---------------------------------------------------------------------------------------


def test_a_name_of_two_lines(tmp_path):
    with h5py.File(tmp_path / "two\nlines.h5", "w") as file:
        file["X"], file["y"] = X, y
    with open_source(tmp_path / "two\nlines.h5") as source:
        assert source.n_rows == 60


@pytest.mark.parametrize("what", ["external", "soft", "circle", "virtual"])
def test_models_have_no_links(file, what):
    file["a"] = X
    if what == "circle":
        file["group"] = file["/"]
    elif what == "virtual":
        layout = h5py.VirtualLayout(X.shape, "f4")
        layout[...] = h5py.VirtualSource("other.h5", "X", X.shape)
        file.create_virtual_dataset("b", layout)
    else:
        file["b"] = h5py.SoftLink("/a") if what == "soft" else h5py.ExternalLink("other.h5", "/X")
    with pytest.raises(InputError):
        check_plain_tree(file)


@pytest.mark.parametrize("kind", [OSError, KeyError, RuntimeError])
def test_a_failing_disk_is_no_damage(kind):
    failure = "Can't open object (file read failed: errno = 5, error message = 'x', offset = 9)"
    with pytest.raises(InputError, match=r"d\.h5 cannot be read \(Input/output error\)") as raised:
        with structure_errors("d.h5"):
            raise kind(failure)
    assert not isinstance(raised.value, DamageError)
    with pytest.raises(DamageError, match=r"d\.h5 is damaged"), structure_errors("d.h5"):
        raise kind("Can't open object (wrong signature, errno = 0)")
