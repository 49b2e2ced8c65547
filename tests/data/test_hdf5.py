"""Files of HDF5, many of which somebody else wrote: what is not in them is said at once."""

import fcntl
import os
import time

import h5py
import numpy as np
import pytest

from ooc_fw.data import arrays, containers
from ooc_fw.data.converted import content_crc32
from ooc_fw.data.formats import reading
from ooc_fw.data.opening import open_source
from ooc_fw.system.errors import DamageError, InputError
from tests.support.contracts import small_table
from tests.support.files import write_dense, write_sparse

X = small_table(60, 4)
y = (X[:, 0] > 0).astype(np.float64)


@pytest.fixture
def path(tmp_path):
    return write_dense(tmp_path / "data.h5", X, y, chunks=(10, 4))


@pytest.fixture
def make(tmp_path):
    """Make data.h5, beside other.h5, of arrays, links, groups (None), attributes (after @)."""

    def make(contents):
        with h5py.File(tmp_path / "other.h5", "w") as other:
            other["X"], other["y"] = X, y
        with h5py.File(tmp_path / "data.h5", "w") as file:
            for name, value in contents.items():
                node, _, attribute = name.partition("@")
                if attribute:
                    file[node or "/"].attrs[attribute] = value
                elif value is None:
                    file.create_group(name)
                elif isinstance(value, dict):
                    file.create_dataset(name, **value)
                else:
                    file[name] = value
        return tmp_path / "data.h5"

    return make


def test_unusual_storage_is_read_through_h5py(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w", userblock_size=512) as file:
        file.create_dataset("X", data=X, chunks=(10, 4))
    with open_source(tmp_path / "data.h5") as source:
        np.testing.assert_array_equal(source.read(0, 60), X)


def test_what_a_converted_file_says_of_its_rows(path):
    for write in (write_sparse, write_dense):
        with open_source(write(path, X, y)) as source:
            assert (source.shuffled, source.scaling.kind) == (True, "none")
            np.testing.assert_allclose(source.statistics.mean, X.astype(float).mean(axis=0))
            assert source.statistics.mean_square_norm > 0
            np.testing.assert_array_equal(source.row_ids(0, 60), np.arange(60)[::-1])
    with h5py.File(path, "a") as file:
        file.attrs["scaling"] = "minmax"
        file["scaling/offset"], file["scaling/factor"] = np.zeros(4), np.full(4, 2.0)
        file["raw"] = X
        del file["mean"], file["row"], file["y"]
    with open_source(path, np.arange(60)) as source:
        assert source.scaling.kind == "minmax"
        np.testing.assert_array_equal(source.scaling.factor, 2)
        assert source.statistics is None
        np.testing.assert_array_equal(source.row_ids(0, 60), np.arange(60))
        np.testing.assert_array_equal(source.labels(3, 5), [3, 4])
    with open_source(path, x_name="raw") as source:
        assert (source.scaling, source.shuffled, source.has_labels) == (None, None, False)
        with pytest.raises(InputError, match=r"data.h5 has no labels; name .*--label"):
            source.labels(0, 1)


def test_a_data_set_of_the_caller_stays_open(tmp_path):
    with h5py.File(tmp_path / "own.h5", "w") as file:
        open_source(file.create_dataset("a", data=X)).close()
        assert file["a"][0, 0] == X[0, 0]


OUTSIDE = h5py.ExternalLink("other.h5", "/X")
ABSENT = "has values that were never written, or are in other files"
ELSEWHERE = {"shape": X.shape, "dtype": "f4", "external": [("raw.bin", 0, X.nbytes)]}
REFERENCES = {"data": [h5py.Reference()] * 60, "dtype": h5py.ref_dtype}


@pytest.mark.parametrize(
    "links",
    [
        {"deep/alias": h5py.SoftLink("rows"), "X": h5py.SoftLink("/deep/alias")},
        {"X": OUTSIDE},
        {"Z": h5py.ExternalLink("other.h5", "/"), "X": h5py.SoftLink("/Z/X")},
    ],
)
def test_links_are_followed(make, tmp_path, links):
    with open_source(make({"deep/rows": X, "y": y, **links})) as source:
        np.testing.assert_array_equal(source.read(0, 60), X)
        os.utime(tmp_path / ("data.h5" if "deep/alias" in links else "other.h5"))
        with pytest.raises(InputError, match=r"h5 was changed"):
            source.check_unchanged()


RAGGED = [np.arange(k % 3) for k in range(60)]
RAGGED = {"data": np.array(RAGGED, dtype=object), "dtype": h5py.vlen_dtype(np.int32)}
CSR = {
    "X/data": np.ones(60, np.float32),
    "X/indices": np.arange(60) % 4,
    "X/indptr": np.arange(61),
    "X@shape": (60, 4),
    "y": y,
}

WRONG = "'/X' must be an array, or sparse rows"
WRONG_PARTS = [
    ("indices", np.ones(60)),
    ("indices", np.zeros(3, int)),
    ("indptr", np.zeros((61, 2), int)),
    ("indptr", np.arange(5)),
    ("data", np.zeros((60, 2))),
]


def never_written(n_rows, **storage):
    chunks = {"chunks": (1000, 4)} if storage else {}
    return {
        "X": {"shape": (n_rows, 4), "dtype": "f4", **storage, **chunks},
        "y": {"shape": (n_rows,), "dtype": "f8", **storage},
    }


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"X": h5py.SoftLink("/X")}, "too many links"),
        ({"X": h5py.SoftLink("/Z"), "Z": h5py.SoftLink("/X")}, "too many links"),
        ({"X": h5py.SoftLink("/none")}, "component not found"),
        (never_written(10**12), ABSENT),
        (never_written(10**12, compression="gzip"), ABSENT),
        ({"X": ELSEWHERE}, ABSENT),
        *((CSR | {f"X/{part}": values}, WRONG) for part, values in WRONG_PARTS),
        *((CSR | {"X@shape": shape}, WRONG) for shape in ((np.nan, 4.0), (-60, 4))),
        (CSR | {"X/indptr": np.zeros(61, int)}, "row pointers do not rise from 0"),
        (CSR | {"X@shape": (60, 2**40)}, "columns, 2..31 or more"),
        (CSR | {"X@encoding-type": "csc_matrix"}, WRONG + ".* it is a csc_matrix"),
        ({"Z": X, "y": y}, r"data.h5 has no 'X' \(it has: Z, y\); name"),
        ({}, r"has no 'X' \(it has: nothing\)"),
        ({"X": None}, WRONG),
        ({"X": np.zeros((0, 5)), "y": y}, r"data.h5 is empty \(0 rows, 5 col"),
        ({"X": np.float32(1)}, "two dimensions, not of 0"),
        ({"X": h5py.Empty("f4")}, ABSENT),
        ({"X": X, "y": np.ones(59)}, "data.h5 has 60 rows but 59 labels"),
        ({"X": X, "y": np.ones((60, 2))}, "'y' must be one number or text for each row"),
        ({"X": X, "y": y.astype(complex)}, "must be one number or text"),
        ({"X": X, "y": np.zeros(60, "V4")}, "must be one number or text"),
        ({"X": X, "y": REFERENCES}, "must be one number or text"),
        ({"X": X, "y": RAGGED}, "must be one number or text"),
    ],
)
def test_files_that_cannot_be_used(make, tmp_path, contents, message):
    path, started = make(contents), time.perf_counter()
    with pytest.raises(InputError, match=message) as caught, open_source(path) as source:
        source.read(0, 1)
    assert time.perf_counter() - started < 2
    assert str(tmp_path) in str(caught.value)


def test_converted_files_that_cannot_be_used(path):
    with pytest.raises(InputError, match=r"data.h5 has no labels 'Z'; it has X, mean, row, y"):
        open_source(path, label="Z")
    for attribute, value, message in (
        ("complete", 0, "was not finished when it was written; conv"),
        ("format_version", 2, "version 2, newer than 1; update"),
    ):
        with h5py.File(path, "a") as file:
            file.attrs[attribute] = value
        with pytest.raises(InputError, match=message):
            open_source(path)


def test_files_that_change(path, tmp_path, monkeypatch):
    with open(path) as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"data\.h5 is being written by another program; wait"):
            open_source(path)
    source = open_source(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(InputError, match=r"data.h5 was changed while it was in use"):
        source.read(0, 1)
    other = write_dense(tmp_path / "other.h5", X[:40], y[:40], chunks=(10, 4))
    find = arrays.find_in_file

    def replace_and_find(dataset):
        if other.exists():
            os.replace(other, path)
        return find(dataset)

    monkeypatch.setattr(arrays, "find_in_file", replace_and_find)
    with pytest.raises(InputError, match=r"data\.h5 was changed while it was in use"):
        open_source(path).read(0, 1)


@pytest.mark.parametrize("by_offset", [True, False])
@pytest.mark.parametrize("chunks", [None, (60, 4)])
def test_values_outside_the_file(tmp_path, monkeypatch, chunks, by_offset):
    """Bytes behind the end of the file never read as zeros."""
    path = tmp_path / "data.h5"
    with h5py.File(path, "w", libver="latest") as file:
        rows = file.create_dataset("X", data=X, chunks=chunks)
        file["y"] = y
        place = rows.id.get_chunk_info(0).byte_offset if chunks else rows.id.get_offset()
    content = path.read_bytes()
    assert content.count(place.to_bytes(8, "little")) == 1
    path.write_bytes(content.replace(place.to_bytes(8, "little"), (1 << 20).to_bytes(8, "little")))
    if not by_offset:
        monkeypatch.setattr(arrays, "find_in_file", lambda _: None)
    with pytest.raises(DamageError, match=r"data\.h5"), open_source(path) as source:
        source.read(0, 60)


@pytest.mark.parametrize("kind", [OSError, KeyError, RuntimeError])
def test_a_failing_disk_is_no_damage(kind):
    failure = "Can't open object (file read failed: errno = 5, error message = 'x', offset = 9)"
    with pytest.raises(InputError, match=r"d\.h5 cannot be read \(Input/output error\)") as raised:
        with reading("d.h5"):
            raise kind(failure)
    assert not isinstance(raised.value, DamageError)
    with pytest.raises(DamageError, match=r"d\.h5 is damaged"), reading("d.h5"):
        raise kind("Can't open object (wrong signature, errno = 0)")


@pytest.mark.parametrize("name", ["X", "y"])
@pytest.mark.parametrize("odd", [OUTSIDE, h5py.SoftLink("/a"), "virtual", "partial"])
def test_models_are_plain_and_rows_are_whole(make, tmp_path, odd, name):
    message = None
    values = {"X": X, "y": y}[name]
    with h5py.File(make({"a": X, "X": X, "y": y}), "a") as file:
        del file[name]
        if odd == "virtual":
            layout = h5py.VirtualLayout(values.shape, values.dtype)
            layout[...] = h5py.VirtualSource("other.h5", name, values.shape)
            file.create_virtual_dataset(name, layout)
            message = f"'/{name}', .*{ABSENT}"
        elif odd == "partial":
            chunks = (10, *values.shape[1:])
            rows = file.create_dataset(name, values.shape, values.dtype, chunks=chunks)
            rows[:20] = values[:20]
            message = f"'/{name}', .*{ABSENT}"
        else:
            file[name] = odd
        with pytest.raises(InputError):
            content_crc32(file)
    if message is not None:
        with pytest.raises(InputError, match=message):
            open_source(tmp_path / "data.h5")


def test_an_object_that_is_damaged_is_not_absent(tmp_path):
    """Its header no longer matches its checksum: what it holds must not be done without."""
    path = tmp_path / "data.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["scaling/factor"] = np.ones(3)
        place = h5py.h5o.get_info(file["scaling"].id).addr
    content = bytearray(path.read_bytes())
    content[place + 12] ^= 1
    path.write_bytes(content)
    with h5py.File(path) as file:
        assert containers.find(file, "offset") is None
        for name in ("scaling", "scaling/factor", "/scaling/factor"):
            with pytest.raises(KeyError):
                containers.find(file, name)
