"""Parquet and Arrow: folders of parts, and no more in memory than is wanted."""

import numpy as np
import pyarrow as pa
import pytest

from ooc_fw.convert.convert import open_table
from ooc_fw.options import ConvertOptions
from tests.convert.converted import Y, write_table


@pytest.fixture
def parts(tmp_path):
    """A folder of two tables: in the first, x is 1 and 3, and y is 1 and 2."""

    def write(second, **more):
        folder = tmp_path / "parts"
        folder.mkdir()
        write_table(folder / "a.parquet", {"x": [1.0, 3.0], "y": [1, 2], **more})
        write_table(folder / "b.parquet", second)
        return folder

    return write


def test_a_part_may_hold_no_value_of_a_column(parts, run):
    folder = parts({"x": pa.nulls(2), "word": pa.nulls(2), "y": [1, 2]}, word=["a", "b"])
    _, found = run(folder, **Y, one_hot=("word",), impute="mean")
    assert found.X.tolist() == [[1, 1, 0], [3, 0, 1], [2, 0, 0], [2, 0, 0]]


def test_columns_that_only_later_parts_have_are_left_out(parts, run):
    folder = parts({"x": [4.0, 5.0], "y": [1, 2], "z": ["u", "v"]})
    paths = [folder / "a.parquet", folder / "b.parquet"]
    for inputs, drop in (([folder], ["z"]), (paths, [])):
        assert run(inputs, **Y, drop=drop)[1].X.tolist() == [[1], [3], [4], [5]]


@pytest.mark.parametrize("within", [False, True])
def test_keys_come_from_folders_below_the_one_that_is_given(run, tmp_path, monkeypatch, within):
    """A file, and a folder with a key in its own path, have the columns in their files alone."""
    folder = tmp_path / "in" / "run=7"
    folder.mkdir(parents=True)
    write_table(folder / "t.parquet", {"a": [0.0, 1.0], "y": [0.0, 1.0]})
    if within:
        monkeypatch.chdir(folder)
    for given in ("t.parquet", ".") if within else (folder / "t.parquet", folder):
        assert run([given], **Y)[1].columns == ["a"]
    _, found = run(folder.parent, **Y)
    assert (found.columns, found.X.tolist()) == (["a", "run"], [[0, 7], [1, 7]])


@pytest.mark.parametrize("coded", [True, False])
def test_text_of_parquet_is_read_as_it_is_stored(tmp_path, coded):
    """Rows of 4 MB, of which each text is stored once; a block may lack words of its row group."""
    texts = [f"{k // 134}" * 10_000 for k in range(400)]
    column = pa.array(texts, pa.dictionary(pa.int32(), pa.string()) if coded else pa.string())
    path = write_table(tmp_path / "t.parquet", {"t": column, "y": np.arange(400) % 2})
    with open_table(str(path), "parquet", ConvertOptions()) as reader:
        reader.choose({"t": "words", "y": "words"})
        blocks = list(reader.blocks())
        for columns, _ in blocks:
            assert sum(column.nbytes for column in columns.values()) < 200_000
    words = [reader.cells(block)[0]["t"] for block in blocks]
    assert [word for own in words for word in np.array(own.values)[own.codes]] == texts


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_only_wanted_columns_are_read(run, tmp_path, name):
    columns = {"a": [1.0, 2, 3], "t": ["x" * 10**6] * 3, "y": [0, 1, 1]}
    path = write_table(tmp_path / name, columns)
    assert run(path, **Y, drop=["t"])[0].text_bytes < 1000
