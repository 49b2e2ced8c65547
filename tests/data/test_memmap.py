"""Rows in .npy files and memory maps, read by file offset."""

import os
import pickle

import numpy as np
import pytest

from ooc_fw.data.sources import ArraySource, MemmapSource, flatfile, memmap, open_source
from ooc_fw.system.errors import InputError
from ooc_fw.testing.contracts import RowSourceContract, small_table, to_dense


def save(folder, array, name="X.npy"):
    path = folder / name
    np.save(path, array)
    return path


class TestNpy(RowSourceContract):
    def open(self, X, y, folder):
        return open_source(save(folder, X), save(folder, y, "y.npy"))


class TestFortranNpy(RowSourceContract):
    def open(self, X, y, folder):
        return open_source(str(save(folder, np.asfortranarray(X))), y)


class TestBigEndianNpy(RowSourceContract):
    def open(self, X, y, folder):
        return open_source(save(folder, X.astype(">f8")), y)


class TestRawMap(RowSourceContract):
    """A map of a file without header, from an odd offset on."""

    def open(self, X, y, folder):
        path = folder / "X.bin"
        path.write_bytes(bytes(4097) + X.tobytes())
        return open_source(np.memmap(path, np.float32, "r", 4097, X.shape), y)


class TestViewOfMap(RowSourceContract):
    """Some rows and columns in the middle of a larger map, as a plain array."""

    def open(self, X, y, folder):
        large = np.full((300, 40), 99, dtype=np.float32)
        large[200 : 200 + len(X), 10 : 10 + X.shape[1]] = X
        mapped = np.load(save(folder, large), mmap_mode="r")
        view = np.asarray(mapped)[200 : 200 + len(X), 10 : 10 + X.shape[1]]
        return open_source(view, y)

    def test_is_read_by_offset(self, source):
        assert isinstance(source, MemmapSource)


@pytest.fixture
def X():
    return small_table()


def test_gapped_rows_are_read_in_bounded_parts(X, tmp_path, monkeypatch):
    monkeypatch.setattr(flatfile, "READ_BYTES", 100)
    mapped = np.load(save(tmp_path, X), mmap_mode="r")
    source = open_source(mapped[::2, 1:3])
    np.testing.assert_array_equal(source.read(0, source.n_rows), X[::2, 1:3])


def test_file_arrays_have_no_steps(X, tmp_path):
    with pytest.raises(ValueError, match="step 1, not 2"):
        memmap.open_npy(str(save(tmp_path, X)))[::2]


def test_a_writable_map_shows_what_was_written(X, tmp_path):
    mapped = np.load(save(tmp_path, X), mmap_mode="r+")
    mapped[3] = 5
    assert (open_source(mapped).read(3, 4) == 5).all()


def test_private_changes_of_a_map_are_seen(X, tmp_path):
    mapped = np.load(save(tmp_path, X), mmap_mode="c")
    mapped[3] = 5
    source = open_source(mapped)
    assert isinstance(source, ArraySource)
    assert (source.read(3, 4) == 5).all()


def test_a_copy_of_a_map_is_an_array(X, tmp_path):
    mapped = np.load(save(tmp_path, X), mmap_mode="r")
    assert isinstance(open_source(mapped[[1, 2]]), ArraySource)
    assert isinstance(open_source(mapped + 1), ArraySource)


@pytest.mark.parametrize("view", [np.s_[::-1], np.s_[:, ::-1], np.s_[::2, ::2]])
def test_scattered_views_are_refused(X, tmp_path, view):
    mapped = np.load(save(tmp_path, X), mmap_mode="r")
    with pytest.raises(InputError, match=r"X.npy has neither its rows nor its columns in one pie"):
        open_source(mapped[view])


def test_a_file_cut_short_is_an_error_not_zeros(X, tmp_path):
    path = save(tmp_path, X)
    source = open_source(path)
    os.truncate(path, os.path.getsize(path) - 30)
    np.testing.assert_array_equal(source.read(0, 50), X[:50])
    with pytest.raises(InputError, match=r"X.npy was cut short: 30 bytes"):
        source.read(50, 57)
    with pytest.raises(InputError, match=r"X.npy was changed while it was in use"):
        source.check_unchanged()


def test_a_map_cut_short_does_not_kill_the_process(X, tmp_path):
    path = tmp_path / "X.bin"
    path.write_bytes(np.tile(X, (1000, 1)).tobytes())
    mapped = np.memmap(path, np.float32, "r", shape=(len(X) * 1000, X.shape[1]))
    source = open_source(mapped)
    os.truncate(path, 10)
    with pytest.raises(InputError, match="was cut short"):
        source.read(30_000, 30_010)


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


def test_rows_too_short_for_their_header(X, tmp_path):
    path = save(tmp_path, X)
    os.truncate(path, os.path.getsize(path) - 30)
    with pytest.raises(InputError, match=r"X.npy cannot be read as a .npy file"):
        open_source(path)


def test_objects_are_refused(tmp_path):
    path = save(tmp_path, np.array([[None]], dtype=object))
    with pytest.raises(InputError, match=r"X.npy cannot be read as a .npy file"):
        open_source(path)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 2, 2), ()])
def test_wrong_shapes(tmp_path, shape):
    with pytest.raises(InputError, match=r"X.npy"):
        open_source(save(tmp_path, np.zeros(shape)))


def test_vector_of_rows(tmp_path):
    with pytest.raises(InputError, match="two dimensions, not of 1"):
        open_source(save(tmp_path, np.zeros(4)))


def test_missing_labels(X, tmp_path):
    with pytest.raises(InputError, match=r"X.npy has no labels; give them as another .npy file"):
        open_source(save(tmp_path, X)).labels(0, 1)


def test_travels_as_its_path(X, tmp_path):
    source = open_source(save(tmp_path, X))
    image = pickle.dumps(source)
    assert len(image) < 1000
    copy, again = pickle.loads(image), pickle.loads(image)
    np.testing.assert_array_equal(to_dense(copy.read(0, 57)), X)
    assert copy is again  # one open file a process


def test_a_map_travels_as_its_place_in_the_file(X, tmp_path):
    whole = np.load(save(tmp_path, X), mmap_mode="r")
    source = open_source(whole[7:40], labels=np.arange(33))
    copy = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(copy.read(0, 33), X[7:40])
    assert not copy.has_labels
    save(tmp_path, X[::-1])
    with pytest.raises(InputError, match=r"is not the file it was when the work began|was changed"):
        pickle.loads(pickle.dumps(source)).check_unchanged()


def test_rows_in_ram_do_not_travel(X):
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps(open_source(X))
