"""A bit that changed anywhere in a converted file is found by verify, and by what training reads.

Files that are cut, and bits outside of the arrays, are in `tests/faults/test_damage.py`.
"""

import re

import h5py
import numpy as np
import pytest

from ooc_fw.convert.verify import verify_file
from ooc_fw.data.labels import encode_labels
from ooc_fw.data.opening import open_source
from ooc_fw.data.sources import iter_blocks
from ooc_fw.system.errors import DamageError
from tests.convert.converted import convert_files, write_npy
from tests.support.methods import grid

N_ROWS = 270_000  # X and y have several chunks of 2 MiB, and each chunk several stretches
KINDS = {
    "dense": {"dense": True, "scale": "minmax"},
    "sparse gzip": {"dense": False, "compression": "gzip"},
    "sparse": {"dense": False, "scale": "maxabs"},
    "gzip": {"dense": True, "compression": "gzip"},
}


@pytest.fixture(scope="module", params=grid([*KINDS], 1))
def path(request, tmp_path_factory):
    """A large file, which the test leaves as it was."""
    folder, rng = tmp_path_factory.mktemp("large"), np.random.default_rng(0)
    X = rng.integers(1, 99, (N_ROWS, 4), np.uint8) * (rng.random((N_ROWS, 4)) < 0.5)
    rows = write_npy(folder / "X.npy", X.astype(np.float32))
    labels = write_npy(folder / "y.npy", np.arange(N_ROWS) % 2)
    convert_files([rows], folder / "data.h5", labels=labels, **KINDS[request.param])
    return folder / "data.h5"


def sweep(path):
    """What training reads: labels, all rows, row numbers."""
    with open_source(path) as source:
        encode_labels(source)
        assert sum(len(rows) for _, rows in iter_blocks(source, 0, source.n_rows)) == source.n_rows
        source.row_ids(0, source.n_rows)


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
