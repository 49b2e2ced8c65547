"""A bit that changed anywhere in a converted file is found by verify, and by what training reads.

Files that are cut, and bits outside of the arrays, are in `tests/faults/test_damage.py`.
"""

import h5py
import numpy as np
import pytest

from ooc_fw import convert
from ooc_fw.conversion.verify import verify_file
from ooc_fw.data.labels import encode_labels
from ooc_fw.data.opening import open_dataset
from ooc_fw.data.sources import iter_blocks
from ooc_fw.system.errors import DamageError
from tests.conversion.converted import write_npy
from tests.support.methods import grid

N_ROWS = 270_000  # X and y have several chunks of 2 MiB, and each chunk several stretches
KINDS = {
    "dense": {"dense": True, "scale": "minmax"},
    "sparse": {"dense": False, "scale": "maxabs"},
    "sparse gzip": {"dense": False, "compression": "gzip"},
}


@pytest.fixture(params=grid([*KINDS]))
def path(request, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.integers(1, 99, (N_ROWS, 4), np.uint8) * (rng.random((N_ROWS, 4)) < 0.5)
    rows = write_npy(tmp_path / "X.npy", X.astype(np.float32))
    labels = write_npy(tmp_path / "y.npy", np.arange(N_ROWS) % 2)
    convert([rows], tmp_path / "data.h5", labels=labels, **KINDS[request.param])
    return tmp_path / "data.h5"


def sweep(path):
    """What training reads: labels, all rows, row numbers."""
    with open_dataset(path) as source:
        encode_labels(source)
        assert sum(len(rows) for _, rows in iter_blocks(source, 0, source.n_rows)) == source.n_rows
        source.row_ids(0, source.n_rows)


def places_in(path):
    """A place in the first and the last chunk of each array, by the name of the array."""
    rng = np.random.default_rng(2)  # draws no spare bit of a compressed chunk
    found = {}

    def look(name, node):
        if not isinstance(node, h5py.Dataset) or name.startswith("checksums"):
            return
        if node.chunks is None:
            found[name] = [node.id.get_offset() + int(rng.integers(node.nbytes))]
            return
        first = node.id.get_chunk_info(0)
        last = node.id.get_chunk_info(node.id.get_num_chunks() - 1)  # it may not be full
        sizes = {first.byte_offset: first.size, last.byte_offset: 1000}
        found[name] = [start + int(rng.integers(size)) for start, size in sizes.items()]

    with h5py.File(path) as file:
        file.visititems(look)
    return found


def flip(path, place, bit):
    contents = np.memmap(path, mode="r+")
    contents[place] ^= 1 << bit
    contents.flush()


def test_a_bit_anywhere_in_an_array_is_found(path):
    rng = np.random.default_rng(2)
    verify_file(path)
    for name, places in places_in(path).items():
        for place in places:
            bit = int(rng.integers(8))
            flip(path, place, bit)
            with pytest.raises(DamageError, match=r"data\.h5 (is damaged|cannot be read)"):
                sweep(path)
            with pytest.raises(DamageError, match=rf"data\.h5.*({name}|filter)"):
                verify_file(path)
            flip(path, place, bit)
    verify_file(path)
