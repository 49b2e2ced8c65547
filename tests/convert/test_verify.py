"""Damaged files: whatever is changed or cut off is found by verify and by a sweep, or harmless."""

import re

import h5py
import numpy as np
import pytest
from converted import convert_files, write_npy

from ooc_fw.convert.verify import verify_file
from ooc_fw.data.labels import encode_labels
from ooc_fw.data.opening import open_source
from ooc_fw.data.sources import iter_blocks
from ooc_fw.system.errors import DamageError
from tests.support.contracts import to_dense
from tests.support.methods import grid

N_ROWS = 270_000  # X and y have several chunks of 2 MiB, and each chunk several stretches
KINDS = {
    "dense": {"dense": True, "scale": "minmax"},
    "sparse gzip": {"dense": False, "compression": "gzip"},
    "sparse": {"dense": False, "scale": "maxabs"},
    "gzip": {"dense": True, "compression": "gzip"},
}


def make(folder, n_rows, **options):
    rng = np.random.default_rng(0)
    X = rng.integers(1, 99, (n_rows, 4), np.uint8) * (rng.random((n_rows, 4)) < 0.5)
    rows = write_npy(folder / "X.npy", X.astype(np.float32))
    labels = write_npy(folder / "y.npy", np.arange(n_rows) % 2)
    convert_files([rows], folder / "data.h5", labels=labels, **options)
    return folder / "data.h5"


@pytest.fixture(scope="module", params=grid([*KINDS], 1))
def path(request, tmp_path_factory):
    """A large file, which each test leaves as it was."""
    return make(tmp_path_factory.mktemp("large"), N_ROWS, **KINDS[request.param])


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


def chunks_of(path):
    """First byte and length of each chunk, by the name of the array."""
    found = {}

    def look(name, node):
        if not isinstance(node, h5py.Dataset) or name.startswith("checksums"):
            return
        places = found[name] = []
        if node.chunks is None:
            places.append((node.id.get_offset(), node.nbytes))
            return
        node.id.chunk_iter(lambda chunk: places.append((chunk.byte_offset, chunk.size)))
        if not node.id.get_create_plist().get_nfilters():  # the last one may not be full
            places[-1] = (places[-1][0], node.nbytes - sum(size for _, size in places[:-1]))

    with h5py.File(path) as file:
        file.visititems(look)
    return found


def flip(path, place, bit=0):
    with open(path, "r+b") as file:
        file.seek(place)
        (value,) = file.read(1)
        file.seek(place)
        file.write(bytes([value ^ 1 << bit]))


def test_a_bit_anywhere_in_an_array_is_found(path):
    rng = np.random.default_rng(2)  # draws no spare bit of a compressed chunk
    calls = []
    assert verify_file(path, progress=lambda *call: calls.append(call)) == []
    assert calls[-1][0] == calls[-1][1] > N_ROWS * 16
    for name, places in chunks_of(path).items():
        for start, length in [places[0], places[-1], places[rng.integers(len(places))]]:
            spot = int(start + rng.integers(length)), int(rng.integers(8))
            flip(path, *spot)
            with pytest.raises(DamageError, match=r"data\.h5 (is damaged|cannot be read)"):
                sweep(path)
            if name == "mean" or name.startswith("scaling"):  # they are read whole at once
                with pytest.raises(DamageError, match=name):
                    verify_file(path)
            else:
                (sentence,) = verify_file(path)
                what = re.escape(f"{path} is damaged: {name}, ")
                assert re.match(rf"{what}(rows|values) \d+ to \d+ (do not match|cannot)", sentence)
            flip(path, *spot)
    assert verify_file(path) == []


@pytest.mark.grid
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_bit_elsewhere_is_found_or_harmless(tmp_path, kind):
    # Structures of HDF5 have checksums of their own. Its heap of strings has none, and its library
    # loops for ever over some changes there: only text that nothing here reads may lie in it.
    path = make(tmp_path, 60, **KINDS[kind])
    good, expected = path.read_bytes(), content(path)
    assert (b"GCOL" in good) == (kind == "sparse")
    rng = np.random.default_rng(2)
    chunks = [chunk for places in chunks_of(path).values() for chunk in places]
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
