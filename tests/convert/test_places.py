"""Tables in folders of Parquet or Arrow files, and at addresses: the same rows as from one file."""

from __future__ import annotations

import os
import re
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import h5py
import numpy as np
import pytest
from converted import read

from ooc_fw.convert.convert import convert
from ooc_fw.data.opening import open_source
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

pa = pytest.importorskip("pyarrow")
dataset = pytest.importorskip("pyarrow.dataset")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

OPTIONS = ConvertOptions(label="kind", one_hot=("city",), impute="mean")


@pytest.fixture(scope="module")
def table():
    """Numbers with gaps, a column of categories, and labels that are words."""
    rng = np.random.default_rng(0)
    age = [None if rng.random() < 0.1 else int(x) for x in rng.integers(18, 90, 500)]
    return pa.table(
        {
            "age": age,
            "city": rng.choice(["Rom", "Köln, am Rhein", "Oslo"], 500),
            "income": rng.gamma(2, 900, 500),
            "kind": rng.choice(["good", "bad"], 500),
        }
    )


def write_tables(table, folder):
    """The table in every form, by name."""
    parquet.write_table(table, folder / "one.parquet", row_group_size=99)
    feather.write_feather(table, folder / "one.feather", compression="zstd", chunksize=120)
    pa.csv.write_csv(table, folder / "one.csv")
    for form, suffix in (("parquet", "parquet"), ("ipc", "arrow")):
        limits = {"max_rows_per_file": 150, "max_rows_per_group": 60}
        dataset.write_dataset(table, folder / f"parts-{suffix}", format=form, **limits)
        keys = {"partitioning": ["city"], "partitioning_flavor": "hive"}
        dataset.write_dataset(table, folder / f"keys-{suffix}", format=form, **keys)
    (folder / "parts-parquet" / "_SUCCESS").write_bytes(b"")


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    pytest.importorskip("pyarrow.csv")
    made = tmp_path_factory.mktemp("tables")
    write_tables(table, made)
    return made


def converted(place, tmp_path, options=OPTIONS):
    """Rows, labels and names of columns of the converted file."""
    out = tmp_path / "out.h5"
    convert([str(place)], out, options)
    with open_source(out) as source:
        return read(out).X, source.labels(0, source.n_rows), list(source.columns)


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    return converted(folder / "one.csv", tmp_path_factory.mktemp("expected"))


@pytest.mark.parametrize("name", ["one.parquet", "one.feather", "parts-parquet", "parts-arrow"])
def test_every_form_gives_the_rows_of_csv(folder, expected, tmp_path, name):
    X, labels, columns = converted(folder / name, tmp_path)
    np.testing.assert_array_equal(X, expected[0])
    assert (labels.tolist(), columns) == (expected[1].tolist(), expected[2])


def in_order(X, labels, columns):
    """Rows whose order and whose columns' order do not matter."""
    place = np.argsort(columns)
    found = [(*row, label) for row, label in zip(X[:, place].tolist(), labels, strict=True)]
    return sorted(columns), sorted(found)


@pytest.mark.parametrize("name", ["keys-parquet", "keys-arrow"])
def test_names_of_folders_are_a_column(folder, expected, tmp_path, name):
    assert in_order(*converted(folder / name, tmp_path)) == in_order(*expected)


def test_numbers_in_names_of_folders_are_numbers(tmp_path):
    table = pa.table({"year": [2024, 2025, 2025], "x": [1.5, 2.5, 3.5], "y": [1, 2, 1]})
    keys = {"partitioning": ["year"], "partitioning_flavor": "hive"}
    dataset.write_dataset(table, tmp_path / "t", format="parquet", **keys)
    convert([str(tmp_path / "t")], tmp_path / "o.h5", ConvertOptions(label="y", shuffle=False))
    with h5py.File(tmp_path / "o.h5") as file:
        assert file["X"][...].tolist() == [[1.5, 2024], [2.5, 2025], [3.5, 2025]]


def two_parts(folder, first, second):
    folder.mkdir()
    parquet.write_table(pa.table(first), folder / "a.parquet")
    parquet.write_table(pa.table(second), folder / "b.parquet")
    return str(folder)


def test_parts_that_do_not_fit_are_named(tmp_path):
    first, options = {"x": [1.0, 2.0], "y": [1, 2]}, ConvertOptions(label="y")
    lacks = two_parts(tmp_path / "lacks", first, {"y": [1, 2]})
    with pytest.raises(InputError, match=r"b\.parquet lacks column 'x' of the other files"):
        convert([lacks], tmp_path / "o.h5", options)
    other = two_parts(tmp_path / "other", first, {"x": ["a", "b"], "y": [1, 2]})
    with pytest.raises(InputError, match=r"column 'x' of .*b\.parquet is of type string, unlike"):
        convert([other], tmp_path / "o.h5", options)
    bad = two_parts(tmp_path / "bad", first, {"x": [3.0, np.inf], "y": [1, 2]})
    with pytest.raises(InputError, match=r"b\.parquet, row 1: .*x"):
        convert([bad], tmp_path / "o.h5", options)
    (tmp_path / "bad" / "b.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        convert([bad], tmp_path / "o.h5", options)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is a folder without files of Parquet"):
        convert([str(tmp_path / "empty")], tmp_path / "o.h5", options)
    assert not (tmp_path / "o.h5").exists()


def test_a_part_may_hold_no_value_of_a_column(tmp_path):
    empty = {"x": pa.nulls(2), "word": pa.nulls(2), "y": [1, 2]}
    path = two_parts(tmp_path / "t", {"x": [1.0, 3.0], "word": ["a", "b"], "y": [1, 2]}, empty)
    options = ConvertOptions(label="y", one_hot=("word",), impute="mean", shuffle=False)
    convert([path], tmp_path / "o.h5", options)
    with h5py.File(tmp_path / "o.h5") as file:
        assert file["X"][...].tolist() == [[1, 1, 0], [3, 0, 1], [2, 0, 0], [2, 0, 0]]


# -- addresses -----------------------------------------------------------------------------------


class Parts(SimpleHTTPRequestHandler):
    """Serves files and parts of them."""

    def log_message(self, *_):
        """Stay silent."""

    def do_GET(self):
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = self.translate_path(self.path)
        if wanted is None or not os.path.isfile(path):
            super().do_GET()
            return
        with open(path, "rb") as file:
            content = file.read()
        first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.write(content[first : last + 1])


@pytest.fixture
def served(folder):
    """Address of a local server."""
    pytest.importorskip("aiohttp")

    def handler(*arguments):
        return Parts(*arguments, directory=str(folder))

    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["one.csv", "one.parquet", "one.feather"])
def test_files_of_a_server(served, expected, tmp_path, name):
    X, labels, columns = converted(f"{served}/{name}", tmp_path)
    np.testing.assert_array_equal(X, expected[0])
    assert (labels.tolist(), columns) == (expected[1].tolist(), expected[2])


def test_addresses_without_a_file(served, tmp_path):
    with pytest.raises(InputError, match=r"none\.csv does not exist; check the address"):
        convert([f"{served}/none.csv"], tmp_path / "o.h5", OPTIONS)
    with pytest.raises(InputError, match="Protocol not known"):
        convert(["nowhere://b/t.csv"], tmp_path / "o.h5", OPTIONS)


@pytest.mark.parametrize("name", ["one.csv", "one.parquet", "parts-parquet", "keys-arrow"])
def test_object_stores(folder, expected, tmp_path, name):
    """fsspec's file system in memory has folders as object stores have."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    place = f"/{tmp_path.name}/{name}"
    memory.put(str(folder / name), place, recursive=(folder / name).is_dir())
    try:
        found = converted(f"memory:/{place}", tmp_path)
    finally:
        memory.rm(f"/{tmp_path.name}", recursive=True)
    assert in_order(*found) == in_order(*expected)
