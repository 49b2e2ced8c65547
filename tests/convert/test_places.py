"""Tables in folders of Parquet or Arrow files: the same rows as from one file."""

import shutil

import numpy as np
import pytest
from converted import convert_files, read

from ooc_fw.data.opening import open_source
from ooc_fw.system.errors import InputError

pa = pytest.importorskip("pyarrow")
dataset = pytest.importorskip("pyarrow.dataset")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")


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


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    """The table in every form, by name."""
    csv = pytest.importorskip("pyarrow.csv")
    folder = tmp_path_factory.mktemp("tables")
    parquet.write_table(table, folder / "one.parquet", row_group_size=99)
    feather.write_feather(table, folder / "one.feather", compression="zstd", chunksize=120)
    csv.write_csv(table, folder / "one.csv")
    for form, suffix in (("parquet", "parquet"), ("ipc", "arrow")):
        limits = {"max_rows_per_file": 150, "max_rows_per_group": 60}
        dataset.write_dataset(table, folder / f"parts-{suffix}", format=form, **limits)
        keys = {"partitioning": ["city"], "partitioning_flavor": "hive"}
        dataset.write_dataset(table, folder / f"keys-{suffix}", format=form, **keys)
    (folder / "parts-parquet" / "_SUCCESS").write_bytes(b"")
    return folder


def converted(place, tmp_path):
    """Rows, labels and names of columns of the converted file."""
    out = tmp_path / "out.h5"
    convert_files([str(place)], out, label="kind", one_hot=("city",), impute="mean")
    with open_source(out) as source:
        return read(out).X.tolist(), source.labels(0, source.n_rows).tolist(), source.columns


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    return converted(folder / "one.csv", tmp_path_factory.mktemp("expected"))


def in_order(X, labels, columns):
    """Rows whose order and whose columns' order do not matter."""
    rows = np.array(X)[:, np.argsort(columns)].tolist()
    return sorted(columns), sorted(zip(rows, labels, strict=True))


@pytest.mark.parametrize(
    "name",
    ["one.parquet", "one.feather", "parts-parquet", "parts-arrow", "keys-parquet", "keys-arrow"],
)
def test_every_form_gives_the_rows_of_csv(folder, expected, tmp_path, name):
    """Where names of folders are a column, in another order."""
    found = converted(folder / name, tmp_path)
    if name.startswith("keys"):
        assert in_order(*found) == in_order(*expected)
    else:
        assert found == expected


def test_numbers_in_names_of_folders_are_numbers(tmp_path):
    table = pa.table({"year": [2024, 2025, 2025], "x": [1.5, 2.5, 3.5], "y": [1, 2, 1]})
    keys = {"partitioning": ["year"], "partitioning_flavor": "hive"}
    dataset.write_dataset(table, tmp_path / "t", format="parquet", **keys)
    convert_files([str(tmp_path / "t")], tmp_path / "o.h5", label="y", shuffle=False)
    assert read(tmp_path / "o.h5").X.tolist() == [[1.5, 2024], [2.5, 2025], [3.5, 2025]]


@pytest.fixture
def parts(tmp_path):
    """A folder of two tables: in the first, x is 1 and 3, and y is 1 and 2."""

    def write(second, **more):
        folder = tmp_path / "parts"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        first = {"x": [1.0, 3.0], "y": [1, 2], **more}
        parquet.write_table(pa.table(first), folder / "a.parquet")
        parquet.write_table(pa.table(second), folder / "b.parquet")
        return folder

    return write


@pytest.fixture
def refused(tmp_path):
    def refused(inputs, message, **options):
        with pytest.raises(InputError, match=message):
            convert_files([str(inputs)], tmp_path / "o.h5", **{"label": "y", **options})
        assert not (tmp_path / "o.h5").exists()

    return refused


def test_parts_that_do_not_fit_are_named(parts, refused, tmp_path):
    refused(parts({"y": [1, 2]}), r"b\.parquet lacks column 'x' of the other files")
    words = {"x": ["a", "b"], "y": [1, 2]}
    refused(parts(words), "Field x has incompatible types: double vs string.* one type")
    folder = parts({"x": [3.0, np.inf], "y": [1, 2]})
    refused(folder, r"b\.parquet, row 1: .*x")
    (folder / "b.parquet").write_bytes(b"PAR1 no")
    refused(folder, "cannot be read as Parquet")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "is a folder without files of Parquet")


def test_a_part_may_hold_no_value_of_a_column(parts, tmp_path):
    folder = parts({"x": pa.nulls(2), "word": pa.nulls(2), "y": [1, 2]}, word=["a", "b"])
    options = {"label": "y", "one_hot": ("word",), "impute": "mean", "shuffle": False}
    convert_files([str(folder)], tmp_path / "o.h5", **options)
    assert read(tmp_path / "o.h5").X.tolist() == [[1, 1, 0], [3, 0, 1], [2, 0, 0], [2, 0, 0]]


def test_columns_that_only_later_parts_have(parts, refused, tmp_path):
    folder = parts({"x": [4.0, 5.0], "y": [1, 2], "z": ["u", "v"]})
    message = r"a\.parquet lacks column 'z' of the other files .*leave the column out"
    refused(folder, message, one_hot=["z"])
    paths = [folder / "a.parquet", folder / "b.parquet"]
    for inputs, drop in (([folder], ["z"]), (paths, [])):
        convert_files(inputs, tmp_path / "o.h5", label="y", drop=drop, shuffle=False)
        assert read(tmp_path / "o.h5").X.tolist() == [[1], [3], [4], [5]]


@pytest.mark.parametrize("within", [False, True])
def test_keys_come_from_folders_below_the_one_that_is_given(tmp_path, monkeypatch, within):
    """A file, and a folder with a key in its own path, have the columns in their files alone."""
    folder = tmp_path / "in" / "run=7"
    folder.mkdir(parents=True)
    save_part(folder / "t.parquet")
    if within:
        monkeypatch.chdir(folder)
    for given in ("t.parquet", ".") if within else (folder / "t.parquet", folder):
        convert_files([given], tmp_path / "o.h5", label="y")
        assert b"run" not in read(tmp_path / "o.h5").attrs["columns"].tolist()
    convert_files([folder.parent], tmp_path / "o.h5", label="y")
    assert b"run" in read(tmp_path / "o.h5").attrs["columns"].tolist()


def save_part(path, columns=("a", "y")):
    parquet.write_table(pa.table({name: [0.0, 1.0] for name in columns}), path)
    return path


@pytest.mark.parametrize("log", ["_delta_log", ".hoodie", "metadata"])
def test_tables_with_a_log_are_refused(tmp_path, log):
    """They hold removed rows."""
    table = tmp_path / "table"
    (table / log).mkdir(parents=True)
    (table / "data").mkdir()
    save_part(table / "data" / "1.parquet")
    for kind in ("auto", "parquet"):
        with pytest.raises(InputError, match=r"table is a table of Delta, .*export a snapshot"):
            convert_files([table], tmp_path / "o.h5", label="y", format=kind)
