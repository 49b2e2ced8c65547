"""Rows in .npy files and memory maps, read by file offset."""

import os
import pickle

import numpy as np
import pytest

from ooc_fw.data.sources import flatfile, open_source
from ooc_fw.system.errors import InputError
from ooc_fw.testing.contracts import small_table


def save(folder, array, name="X.npy"):
    path = folder / name
    np.save(path, array)
    return path


@pytest.fixture
def X():
    return small_table()


def test_gapped_rows_are_read_in_bounded_parts(X, tmp_path, monkeypatch):
    monkeypatch.setattr(flatfile, "READ_BYTES", 100)
    mapped = np.load(save(tmp_path, X), mmap_mode="r")
    source = open_source(mapped[::2, 1:3])
    np.testing.assert_array_equal(source.read(0, source.n_rows), X[::2, 1:3])


@pytest.mark.parametrize("mode", ["r+", "c"])
def test_changes_of_a_map_are_seen(X, tmp_path, mode):
    """Those of a private map are in RAM only, so its file is not read."""
    mapped = np.load(save(tmp_path, X), mmap_mode=mode)
    mapped[3] = 5
    source = open_source(mapped)
    assert source.in_memory == (mode == "c")
    assert (source.read(3, 4) == 5).all()
    assert open_source(mapped[[1, 2]]).in_memory  # a copy


@pytest.mark.parametrize("view", [np.s_[::-1], np.s_[:, ::-1], np.s_[::2, ::2]])
def test_scattered_views_are_refused(X, tmp_path, view):
    mapped = np.load(save(tmp_path, X), mmap_mode="r")
    with pytest.raises(InputError, match=r"X.npy has neither its rows nor its columns in one pie"):
        open_source(mapped[view])


def test_a_file_cut_short_is_an_error_not_zeros(X, tmp_path):
    path = save(tmp_path, np.tile(X, (1000, 1)))
    array, source = flatfile.open_npy(str(path)), open_source(path)
    mapped = open_source(np.load(path, mmap_mode="r"))
    os.truncate(path, os.path.getsize(path) - 30)
    np.testing.assert_array_equal(array[0:50], X[:50])
    with pytest.raises(InputError, match=r"X.npy was cut short: 30 bytes"):
        array[56_950:57_000]
    for read in (source.read, mapped.read):
        for rows in ((0, 50), (56_950, 57_000)):
            with pytest.raises(InputError, match=r"X.npy was changed while it was in use"):
                read(*rows)


def test_a_file_that_goes_away(X, tmp_path):
    path = save(tmp_path, X)
    source = open_source(path)
    path.unlink()
    with pytest.raises(InputError, match=r"X.npy went away while it was in use"):
        source.check_unchanged()


def test_a_map_whose_file_is_gone(X, tmp_path):
    path = save(tmp_path, X)
    mapped = np.load(path, mmap_mode="r")
    path.unlink()
    with pytest.raises(InputError, match=r"X.npy cannot be opened: No such file"):
        open_source(mapped)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((0, 3)), "is empty"),
        (np.zeros((3, 0)), "is empty"),
        (np.zeros((2, 2, 2)), "two dimensions, not of 3"),
        (np.zeros(4), "two dimensions, not of 1"),
        (np.zeros(()), "two dimensions, not of 0"),
        (np.array([[None]], dtype=object), "cannot be read as a .npy file"),
    ],
)
def test_arrays_that_are_no_rows(tmp_path, array, message):
    with pytest.raises(InputError, match=rf"X\.npy.*{message}"):
        open_source(save(tmp_path, array))


def test_there_is_one_open_file_per_process(X, tmp_path):
    image = pickle.dumps(open_source(save(tmp_path, X)))
    assert pickle.loads(image) is pickle.loads(image)


def test_a_map_travels_as_its_place_in_the_file(X, tmp_path):
    whole = np.load(save(tmp_path, X), mmap_mode="r")
    source = open_source(whole[7:40], labels=np.arange(33))
    copy = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(copy.read(0, 33), X[7:40])
    assert not copy.has_labels
    save(tmp_path, X[::-1])
    with pytest.raises(InputError, match=r"is not the file it was when the work began|was changed"):
        pickle.loads(pickle.dumps(source)).check_unchanged()
