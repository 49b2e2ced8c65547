"""Rows in HDF5 files, written here by hand as the layout says."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from ooc_fw.data import hdf5
from ooc_fw.data.arrays import FileArray, ReadArray
from ooc_fw.data.opening import open_source
from ooc_fw.system.errors import DamageError, InputError
from tests.support.contracts import small_table
from tests.support.files import write_dense


@pytest.fixture
def X():
    return small_table()


@pytest.fixture
def y(X):
    return X[:, 0] > 0


@pytest.fixture
def path(X, y, tmp_path):
    return write_dense(tmp_path / "data.h5", X, y, chunks=(10, 5))


def replace(file, name, value):
    """Put an array in the place of a data set, or an empty group."""
    del file[name]
    file.create_group(name) if value is None else file.create_dataset(name, data=value)


@pytest.mark.parametrize("layout", ["virtual", "user block"])
def test_unusual_storage_is_read_through_h5py(X, tmp_path, layout):
    path = tmp_path / "data.h5"
    block = {"userblock_size": 512} if layout == "user block" else {}
    with h5py.File(path, "w", **block) as file:
        if layout == "virtual":
            file["part"] = X
            virtual = h5py.VirtualLayout(X.shape, X.dtype)
            virtual[...] = h5py.VirtualSource(file["part"])
            file.create_virtual_dataset("X", virtual)
        else:
            file.create_dataset("X", data=X, chunks=(10, 5))
    with open_source(path) as source:
        assert isinstance(source._array, ReadArray)
        np.testing.assert_array_equal(source.read(0, 57), X)


@pytest.mark.parametrize("compression", [None, "lzf"])
def test_a_file_cut_short_while_open(X, tmp_path, compression):
    storage = {"chunks": (10, 5), "compression": compression}
    rows = np.tile(X, (100, 1))
    source = open_source(write_dense(tmp_path / "data.h5", rows, np.ones(5700), **storage))
    os.truncate(tmp_path / "data.h5", 20_000)
    with pytest.raises(InputError, match=r"data.h5 (was cut short|was changed|cannot be read)"):
        source.read(0, 5600)


def test_a_file_changed_while_open(path):
    source = open_source(path)
    os.utime(path, ns=(1, 1))
    for read in (source.read, source.labels, source.row_ids):
        with pytest.raises(InputError, match=r"data.h5 was changed while it was in use"):
            read(0, 1)


def test_what_a_converted_file_says_of_its_rows(X, path):
    with h5py.File(path, "a") as file:
        file.attrs["scaling"] = "minmax"
        file["scaling/offset"], file["scaling/factor"] = np.zeros(5), np.full(5, 2.0)
        file["raw"] = X
        del file["mean"], file["row"]
    with open_source(path, np.arange(57)) as source:
        assert source.scaling.kind == "minmax"
        np.testing.assert_array_equal(source.scaling.factor, 2)
        assert source.statistics is None
        np.testing.assert_array_equal(source.row_ids(0, 57), np.arange(57))
        np.testing.assert_array_equal(source.labels(3, 5), [3, 4])  # those given win
    with open_source(path, x_name="raw") as source:
        assert (source.scaling, source.shuffled) == (None, None)


def test_how_rows_are_read(X, y, tmp_path):
    for chunks in (None, (10, 5)):  # uncompressed: by offset
        with open_source(write_dense(tmp_path / "data.h5", X, y, chunks=chunks)) as source:
            assert isinstance(source._array, FileArray)
    path = write_dense(tmp_path / "data.h5", X, y, chunks=(10, 5), compression="gzip")
    with open_source(path) as source:  # compressed: each chunk once
        source.take(np.array([0, 9, 31, 35]))
        assert source.bytes_read == X[:10].nbytes + X[30:40].nbytes


def test_a_data_set_of_the_caller_stays_open(X, tmp_path):
    with h5py.File(tmp_path / "own.h5", "w") as file:
        open_source(file.create_dataset("a", data=X)).close()
        assert file["a"][0, 0] == X[0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.move("X", "Z"), r"data.h5 has no 'X' \(it has: Z, mean, row, y\); name"),
        (lambda file: file.clear(), r"has no 'X' \(it has: nothing\)"),
        (lambda file: replace(file, "X", None), "'/X' is neither an array nor a group of data"),
        (lambda file: replace(file, "X", np.zeros((0, 5))), r"data.h5 is empty \(0 rows, 5 col"),
        (lambda file: replace(file, "y", np.ones(56)), "data.h5 has 57 rows but 56 labels"),
        (lambda file: replace(file, "y", np.ones((57, 1))), "'y' must be an array of one dimen"),
        (lambda file: file.attrs.update(complete=0), "was not finished when it was written; conv"),
        (
            lambda file: file.attrs.update(format_version=2),
            "version 2, newer than 1; update",
        ),
    ],
)
def test_files_that_cannot_be_used(path, change, message):
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(InputError, match=message):
        open_source(path)


def test_labels_that_are_not_there(path):
    with pytest.raises(InputError, match=r"data.h5 has no labels 'Z'; it has X, mean, row, y"):
        open_source(path, y_name="Z")
    with h5py.File(path, "a") as file:
        del file["y"]
    with open_source(path) as source:
        assert not source.has_labels
        with pytest.raises(InputError, match=r"data.h5 has no labels; name .*--y-name"):
            source.labels(0, 1)


def test_missing_compression_plugin(path, monkeypatch):
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)
    with h5py.File(path, "a") as file:
        del file["X"]
        file.create_dataset("X", data=np.ones((57, 5)), compression="gzip")
    with pytest.raises(InputError, match=r"filter 1 \(deflate\), which is not installed; try: pip"):
        open_source(path)


def test_a_damaged_chunk(X, y, tmp_path):
    path = write_dense(tmp_path / "data.h5", X, y, chunks=(57, 5), compression="gzip")
    with h5py.File(path) as file:
        offset = file["X"].id.get_chunk_info(0).byte_offset
    with open(path, "r+b") as raw:
        raw.seek(offset)
        raw.write(b"\xff" * 20)
    with open_source(path) as source, pytest.raises(InputError, match=r"data.h5 cannot be read"):
        source.read(0, 57)


def test_a_file_replaced_while_it_is_opened(path, X, y, tmp_path, monkeypatch):
    other = write_dense(tmp_path / "other.h5", X[:40], y[:40], chunks=(10, 5))
    find = hdf5.find_in_file

    def replace_and_find(dataset):
        if other.exists():
            os.replace(other, path)
        return find(dataset)

    monkeypatch.setattr(hdf5, "find_in_file", replace_and_find)
    with pytest.raises(InputError, match=r"data\.h5 was changed while it was in use"):
        open_source(path)


def test_a_file_that_is_being_written(path):
    writing = "import h5py, sys; f = h5py.File(sys.argv[1], 'a'); print(flush=True); input()"
    writer = subprocess.Popen(
        [sys.executable, "-c", writing, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout
    writer.stdout.readline()
    with pytest.raises(InputError, match=r"data\.h5 is being written by another program; wait"):
        open_source(path)
    writer.communicate("\n")
    open_source(path).close()


def test_values_outside_the_file(path, monkeypatch):
    monkeypatch.setattr(os.path, "getsize", lambda _: 2000)
    with pytest.raises(DamageError, match=r"should lie in bytes up to \d+, but the file has 2000"):
        open_source(path)


def test_a_chunk_larger_than_the_cache_of_hdf5_is_decoded_once(tmp_path, monkeypatch):
    table = np.random.default_rng(0).random((60_000, 20), dtype=np.float32)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("X", data=table, chunks=(30_000, 20), compression="gzip")
    decoded = []
    decode = hdf5.HDF5Array.read
    monkeypatch.setattr(
        hdf5.HDF5Array,
        "read",
        lambda s, *part: decoded.append(part) or decode(s, *part),
    )
    with open_source(tmp_path / "data.h5") as source:
        for start in range(0, 60_000, 1000):
            np.testing.assert_array_equal(
                source.read(start, start + 1000), table[start : start + 1000]
            )
        assert sum(stop - start for start, stop in decoded) == 60_000
        assert source.cache_bytes == table.nbytes
