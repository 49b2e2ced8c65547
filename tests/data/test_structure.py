"""A look at HDF5 files before they are read: all files behind links, and no loop without end."""

import os

import h5py
import numpy as np
import pytest

from ooc_fw.data.opening import input_files, open_dataset
from ooc_fw.data.structure import is_checkpoint, is_data, is_model, linked_files
from ooc_fw.system.errors import DamageError, InputError
from ooc_fw.system.files import Output, check_outputs
from tests.support.contracts import small_table
from tests.support.files import write_dense

X = small_table(60, 4)
y = (X[:, 0] > 0).astype(np.float64)


def write_links(folder, attributes=()):
    """A file whose rows are in a second file, which has the names of a third one."""
    with h5py.File(folder / "names.h5", "w") as file:
        file["index"] = np.array([b"a", b"b", b"c", b"d"])
    with h5py.File(folder / "rows.h5", "w") as file:
        file["table"], file["y"] = X, y
        file["names"] = h5py.ExternalLink("names.h5", "index")
    with h5py.File(folder / "link.h5", "w") as file:
        file.attrs.update(attributes)
        file["X"] = h5py.ExternalLink("rows.h5", "table")
        file["y"] = h5py.ExternalLink("rows.h5", "y")
        file["var/_index"] = h5py.ExternalLink("rows.h5", "names")
        file["again"] = h5py.ExternalLink("link.h5", "/")
        file["nowhere"] = h5py.ExternalLink("missing.h5", "/")
    return folder / "link.h5"


@pytest.mark.parametrize("attributes", [{}, {"format_version": 1, "n_features": 4}])
def test_files_behind_links_are_inputs(tmp_path, attributes):
    link = write_links(tmp_path, attributes)
    names = {str(tmp_path / f"{name}.h5") for name in ("names", "rows", "link")}
    assert {*linked_files(str(link))} == names
    os.link(tmp_path / "names.h5", tmp_path / "other.h5")
    for name in ("rows.h5", "names.h5", "other.h5"):
        output = Output("model", tmp_path / name, is_own=bool)
        with pytest.raises(InputError, match="would replace the input"):
            check_outputs([output], input_files([link]))


def test_the_rows_that_are_open_are_inputs(tmp_path):
    with open_dataset(write_links(tmp_path), label=None) as source:
        output = Output("model", tmp_path / "names.h5", is_own=bool)
        assert source.columns == ["a", "b", "c", "d"]
        with pytest.raises(InputError, match="would replace the input"):
            check_outputs([output], input_files([source, None, X]))


def test_a_source_that_is_closed_leaves_no_file_open(tmp_path):
    """Else a second command of the same process could not replace the file."""
    path = tmp_path / "d.h5"
    write_dense(path, X, y)
    with open_dataset(path) as source:
        source.labels(0, 3)
    del source
    check_outputs([Output("data", path, is_own=is_data)], [])


def test_a_damaged_file_in_which_hdf5_runs_in_circles_is_refused(tmp_path):
    path = tmp_path / "cells.h5"
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = X, y
        file["X"].attrs["encoding-type"] = "array"
    with open_dataset(path) as source:
        assert source.n_rows == 60
    content = bytearray(path.read_bytes())
    start = content.index(b"GCOL") + 16  # the heap of texts of variable length
    content[start : start + 512] = bytes(512)
    path.write_bytes(content)
    with pytest.raises(DamageError, match="HDF5 does not come to an end in it"):
        open_dataset(path)


def test_files_are_told_apart_by_their_kind(tmp_path, model_file):
    write_dense(tmp_path / "data.h5", X, y)
    (tmp_path / "text").write_text("1 1:2\n")
    files = tmp_path / "data.h5", model_file, tmp_path / "text"
    assert [is_data(path) for path in files] == [True, False, False]
    assert [is_model(path) for path in files] == [False, True, False]
    assert not any(map(is_checkpoint, files))
