"""Damaged files: whatever is changed or cut off is found by verify and by a sweep, or harmless."""

import errno
import io
import os

import h5py
import numpy as np
import pytest
from converted import convert_libsvm

from ooc_fw.convert import verify as verify_module
from ooc_fw.convert import writer as writer_module
from ooc_fw.convert.verify import verify_file
from ooc_fw.data import converted as checksums
from ooc_fw.data.labels import encode_labels
from ooc_fw.data.opening import open_source
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import iter_blocks
from ooc_fw.system.errors import DamageError, InputError
from tests.support.contracts import small_table, to_dense
from tests.support.files import write_dense
from tests.support.methods import grid

KINDS = {
    "dense": {"dense": True, "scale": "minmax"},
    "sparse gzip": {"dense": False, "compression": "gzip"},
    "sparse": {"dense": False, "scale": "maxabs"},
    "gzip": {"dense": True, "compression": "gzip"},
}


@pytest.fixture(scope="module")
def text(write_text):
    rng = np.random.default_rng(0)
    X = rng.integers(1, 99, (60, 6)) * (rng.random((60, 6)) < 0.5)
    return write_text(X, np.arange(60) % 2)


@pytest.fixture(params=grid([*KINDS], 1))
def path(request, text, tmp_path, monkeypatch):
    """A converted file of several chunks and several stretches a chunk."""
    monkeypatch.setattr(checksums, "STRETCH_BYTES", 100)
    monkeypatch.setattr(writer_module, "CHUNK_BYTES", 400)
    out = tmp_path / "data.h5"
    convert_libsvm([text], out, **KINDS[request.param])
    return out


def sweep(path):
    """What training reads: labels, all rows, row numbers."""
    with open_source(path) as source:
        encode_labels(source)
        assert sum(len(rows) for _, rows in iter_blocks(source, 0, source.n_rows)) == source.n_rows
        source.row_ids(0, source.n_rows)


def content(path):
    """All that a reader learns from a file."""
    with open_source(path) as source:
        statistics, scaling = source.statistics, source.scaling
        rows = to_dense(source.read(0, source.n_rows))
        arrays = [rows, source.labels(0, source.n_rows), source.row_ids(0, source.n_rows)]
        arrays += [statistics.mean, scaling.offset, scaling.factor]
        plain = (statistics.mean_square_norm, source.shuffled, scaling.kind, scaling.log1p)
    return plain, [None if array is None else array.tobytes() for array in arrays]


def array_names(path):
    names = []
    with h5py.File(path) as file:
        file.visititems(lambda name, node: names.append(name) if hasattr(node, "dtype") else None)
    return [name for name in names if not name.startswith("checksums")]


def chunk_places(path, name):
    """First byte and length of each chunk of an array in the file."""
    with h5py.File(path) as file:
        dataset = file[name]
        if dataset.chunks is None:
            return [(dataset.id.get_offset(), dataset.nbytes)]
        found = []
        dataset.id.chunk_iter(lambda chunk: found.append((chunk.byte_offset, chunk.size)))
        if not dataset.id.get_create_plist().get_nfilters():  # the last one may not be full
            found[-1] = (found[-1][0], dataset.nbytes - sum(size for _, size in found[:-1]))
        return found


def flip(path, place, bit=0):
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def test_intact(path):
    calls = []
    assert verify_file(path, progress=lambda *call: calls.append(call)) == []
    with h5py.File(path) as file:
        n_bytes = sum(file[name].nbytes for name in array_names(path))
        assert len(file["checksums/y"]) == -(-60 * 8 // 96)
    assert calls[-1] == (n_bytes, n_bytes)


def test_a_bit_anywhere_in_an_array_is_found(path):
    rng = np.random.default_rng(2)  # draws no spare bit of a compressed chunk
    good = path.read_bytes()
    for name in array_names(path):
        places = chunk_places(path, name)
        for start, length in [places[0], places[-1], places[rng.integers(len(places))]]:
            flip(path, int(start + rng.integers(length)), int(rng.integers(8)))
            with pytest.raises(DamageError, match=r"data\.h5 (is damaged|cannot be read)"):
                sweep(path)
            if name in checksums.SMALL_ARRAYS:
                with pytest.raises(DamageError, match=name):
                    verify_file(path)
            else:
                (sentence,) = verify_file(path)
                assert sentence.startswith(f"{path} is damaged: {name}, ")
            path.write_bytes(good)
    assert verify_file(path) == []


@pytest.mark.parametrize("kind", grid(["dense", "sparse"], 1))
def test_a_bit_elsewhere_is_found_or_harmless(text, tmp_path, kind):
    # Structures of HDF5 have checksums of their own. Its heap of strings has none, and its library
    # loops for ever over some changes there: only text that nothing here reads may lie in it.
    path = tmp_path / "data.h5"
    convert_libsvm([text], path, **KINDS[kind])
    good, expected = path.read_bytes(), content(path)
    assert (b"GCOL" in good) == (kind == "sparse")
    rng = np.random.default_rng(2)
    chunks = [chunk for name in array_names(path) for chunk in chunk_places(path, name)]
    inside = [np.arange(start, start + length) for start, length in chunks]
    outside = np.setdiff1d(np.arange(len(good)), np.concatenate(inside))
    places = rng.choice(outside, size=40).tolist()
    if kind == "sparse":
        places += rng.integers(good.index(b"GCOL"), good.index(b"GCOL") + 100, size=20).tolist()
    n_found = 0
    for place in places:
        flip(path, place, int(rng.integers(8)))
        try:
            intact = not verify_file(path)
        except DamageError:
            intact = False
        if intact:
            assert content(path) == expected, place
        n_found += not intact
        path.write_bytes(good)
    assert 0 < n_found < len(places)


def test_a_file_cut_anywhere_is_refused(path):
    good = path.read_bytes()
    for length in range(0, len(good), 97):
        path.write_bytes(good[:length])
        for read in (verify_file, sweep):
            with pytest.raises(DamageError, match=r"data\.h5"):
                read(path)
    for length in range(0, len(good), 997):  # and while it is open
        path.write_bytes(good)
        with open_source(path) as source:
            os.truncate(path, length)
            with pytest.raises(InputError, match="was changed while it was in"):
                source.read(0, source.n_rows)


def test_damage_is_reported_by_its_place(text, path, tmp_path, monkeypatch):
    monkeypatch.setattr(verify_module, "READ_BYTES", 100)
    for start, _ in chunk_places(path, "y"):
        flip(path, start + 1)
    assert len(verify_file(path)) >= len(chunk_places(path, "y")) > 1
    convert_libsvm([text], path, dense=False, shuffle=False)
    flip(path, chunk_places(path, "X/data")[0][0])
    sentence = f"{path} is damaged: X/data, values 0 to "
    assert verify_file(path)[0].startswith(sentence)
    with pytest.raises(DamageError, match=f"^{sentence}"):
        sweep(path)
    flip(path, chunk_places(path, "X/indptr")[0][0])
    sentences = verify_file(path)
    assert "X/data, values 0 to " in sentences[0]
    assert "X/indptr, values 0 to " in sentences[-1]
    assert "do not match their checksum" in sentences[-1]


def test_files_without_checksums_have_nothing_to_compare_with(tmp_path):
    X = small_table()
    np.save(tmp_path / "X.npy", X)
    for path in (write_dense(tmp_path / "data.h5", X, X[:, 0]), tmp_path / "X.npy"):
        with pytest.raises(InputError, match="has no checksums to compare with"):
            verify_file(path)


def _raise_broken(*_):
    raise OSError(errno.EIO, "broken")


def test_a_failing_disk_is_named(text, tmp_path, monkeypatch):
    path = tmp_path / "data.h5"
    convert_libsvm([text], path, dense=True)
    with open_source(path) as source:
        monkeypatch.setattr(os, "preadv", _raise_broken)
        with pytest.raises(InputError, match=r"data\.h5 cannot be read \(Input/output error\)"):
            source.read(0, source.n_rows)
        assert "cannot be read (Input/output error)" in verify_file(path)[0]


def test_errors_of_the_disk_come_when_it_is_safe(tmp_path, monkeypatch):
    layout = writer_module.Layout(9, 2, 0, False, "a", Scaling())
    file = writer_module.DatasetWriter(tmp_path / "a", layout)
    file.check()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _raise_broken)
        file["x"] = np.zeros(1000)
        file.close()
    with pytest.raises(OSError, match="broken"):
        file.check()
    with h5py.File(io.BytesIO(), "w") as other:  # HDF5 is unharmed
        other["x"] = 1
