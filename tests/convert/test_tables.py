"""CSV and what its columns become: cells, names, categories, means and labels."""

import csv
import json

import anndata
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.convert.convert import open_table
from ooc_fw.convert.tables import parse_number
from ooc_fw.data.labels import plain_word
from ooc_fw.data.opening import open_source
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError
from tests.convert.converted import Y, convert_libsvm, write_table

# -- cells -----------------------------------------------------------------------------------------


def test_blanks_quotes_empty_lines_and_carriage_returns(run):
    text = b'\xef\xbb\xbf\r\n"a, b", c , y\r\n\r\n 1.5 , 2 ,cat\r\n3,+4, dog\r\n'
    report, found = run(text, **Y)
    assert found.X.tolist() == [[1.5, 2], [3, 4]]
    assert found.columns == ["a, b", "c"]
    assert report.class_counts == {"cat": 1, "dog": 1}
    _, found = run('a,y\n1,"x\rz"\nTrue,w\n', **Y)  # a carriage return alone, in quotes
    assert (found.X.tolist(), found.y.tolist()) == ([[1], [1]], [1, 0])


cells = st.sampled_from(["1", "-2.5", "", " 3 ", "NA", "x", '"4"', "1e3", '"a""b"', "+7", "True"])


@given(rows=st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=6))
def test_cells_are_those_of_a_slow_parser(tmp_path_factory, rows):
    """Of Python's csv module and `float`; the first row that cannot be read is named."""
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    path.write_text("a,b,y\n" + "".join(",".join(row) + "\n" for row in rows))
    slow = [*csv.reader(path.read_text().splitlines()[1:])]
    numbers = [parse_number(row[0]) for row in slow]
    with open_table(str(path), "csv", ConvertOptions()) as table:
        table.choose({"a": "numbers", "b": "words", "y": "words"})
        (block,) = table.blocks()
        if None in numbers:
            with pytest.raises(InputError, match=f", line {numbers.index(None) + 2}: column 'a'"):
                table.cells(block)
            return
        found, place = table.cells(block)
    np.testing.assert_array_equal(found["a"], numbers)
    for column, name in ((1, "b"), (2, "y")):
        names = [found[name].values[code] if code >= 0 else "" for code in found[name].codes]
        assert names == [plain_word(row[column]) for row in slow]
    places = [f"{path}, line {k + 2}" for k in range(len(rows))]
    assert [*map(place, range(len(rows)))] == places


# -- columns and their names -----------------------------------------------------------------------


def write_cells(path, columns):
    obs = pd.DataFrame({"y": columns.pop("y")}, index=["cell"])
    rows = np.array([*columns.values()], dtype=np.float32).T
    anndata.AnnData(rows, obs=obs, var=pd.DataFrame(index=[*columns])).write_h5ad(path)
    return path


@pytest.mark.parametrize(("suffix", "write"), [("csv", write_table), ("h5ad", write_cells)])
def test_several_files_are_one_by_the_names_of_their_columns(run, tmp_path, suffix, write):
    first = write(tmp_path / f"first.{suffix}", {"a": [1], "b": [2], "y": [0]})
    second = write(tmp_path / f"second.{suffix}", {"y": [1], "b": [4], "a": [3]})
    _, found = run([first, second], **Y)
    assert (found.X.tolist(), found.y.tolist()) == ([[1, 2], [3, 4]], [0, 1])
    assert found.columns == ["a", "b"]


def test_columns_by_number_without_a_header(run, tmp_path):
    like = {"like": tmp_path / "train.h5"}
    _, train = run("5,x,1\n6,y,2\n", "train.h5", header=False, label="1")
    assert (train.X.tolist(), train.columns) == ([[5, 1], [6, 2]], ["0", "2"])
    _, found = run("7,y,0\n8,x,2\n", **like)  # the training file knows that there is no header
    assert (found.X.tolist(), found.y.tolist()) == ([[7, 0], [8, 2]], [1, 0])
    run("5,1.5,a\n6,2.5,b\n", "train.h5", header=False, label="2")
    report, found = run("5,1.5\n6,2.5\n", **like)  # new rows need no labels
    assert (report.class_counts, found.X.tolist()) == ({}, [[5, 1.5], [6, 2.5]])


@pytest.mark.parametrize("names", [["__index_level_0__"], ["city", "year"], [{"k": 0}], None])
def test_the_index_of_pandas_is_no_feature(run, tmp_path, names):
    """A range index has no column; in CSV, the first column without a name is the index."""
    path = ",a,y\n0,1,0\n1,2,1\n"
    if names is not None:
        own = [name for name in names if isinstance(name, str)]
        columns = {"a": [1.0, 2.0], "y": [0, 1], **{name: [5, 6] for name in own}}
        metadata = {"pandas": json.dumps({"index_columns": names, "columns": []})}
        table = pa.table(columns).replace_schema_metadata(metadata)
        path = write_table(tmp_path / "data.parquet", table)
    for output, options in (("out.h5", Y), ("like.h5", {"like": tmp_path / "out.h5"})):
        _, found = run(path, output, **options)
        assert (found.X.tolist(), found.y.tolist()) == ([[1], [2]], [0, 1])
        assert found.columns == ["a"]
    _, found = run(",0,1\n0,5,a\n1,6,b\n", label="1", header=True)  # names that are places
    assert found.X.tolist() == [[5], [6]]


# -- categories, means and later rows --------------------------------------------------------------


def test_later_rows_have_the_columns_and_categories_of_the_training_file(run, tmp_path):
    like = {"like": tmp_path / "train.h5"}
    names = ["age", "colour=blue", "colour=red", "size"]
    text = "age,colour,size,buys\n30,red,1.5,yes\n40,blue,2.5,no\n50,red,0,no\n"
    _, train = run(text, "train.h5", label="buys", one_hot=["colour"])
    assert train.X.tolist() == [[30, 0, 1, 1.5], [40, 1, 0, 2.5], [50, 0, 1, 0]]
    assert (train.y.tolist(), train.columns) == ([1, 0, 0], names)
    report, test = run("size,extra,buys,colour,age\n7,0,no,green,1\n8,0,yes,blue,2\n", **like)
    assert test.X.tolist() == [[1, 0, 0, 7], [2, 1, 0, 8]]
    assert (test.y.tolist(), test.columns) == ([0, 1], names)
    (note,) = report.notes
    assert note.startswith("column 'colour': 1 rows without a category that ")
    # New rows need no labels.
    new = write_table(tmp_path / "n.parquet", {"age": [1], "colour": ["red"], "size": [2]})
    for inputs in ("age,colour,size\n1,red,2\n", new):
        report, _ = run(inputs, **like)
        assert report.class_counts == {}
        assert report.notes[0].startswith("there are no labels: the file is for prediction only")
        with open_source(tmp_path / "out.h5") as source:
            assert not source.has_labels
            assert source.read(0, 1).tolist() == [[1, 0, 1, 2]]


def test_missing_numbers_become_the_means_of_the_training_file(run, tmp_path):
    text = "a,b,c,y\n1,,x,0\nNA,4,,1\n3,8,z,0\n"
    report, found = run(text, **Y, one_hot=["c"], impute="mean")
    assert found.X.tolist() == [[1, 6, 1, 0], [2, 4, 0, 0], [3, 8, 0, 1]]
    assert report.notes[0] == "2 missing values became the means of their columns"
    assert report.notes[1].startswith("column 'c': 1 rows without a category that ")
    _, found = run("a,b,c,y\n?,,x,0\n", "test.h5", like=tmp_path / "out.h5")
    assert found.X.tolist() == [[2, 6, 1, 0]]


def test_a_dash_is_a_missing_number_but_a_label_and_a_category(run):
    report, _ = run("a,y\n1,+\n-,-\n3,-\n", **Y, impute="mean")
    assert report.class_counts == {"+": 1, "-": 2}
    assert "1 missing values became" in report.notes[0]
    assert run("a,y\n-,0\nb,1\n", **Y, one_hot=["a"])[0].n_features == 2
    _, found = run("x,y\n007,0\n7,1\n7.0,1\n", **Y, one_hot=["x"])  # a code begins with 0
    assert found.X.tolist() == [[1, 0], [0, 1], [0, 1]]


# -- labels ----------------------------------------------------------------------------------------


def test_later_labels_have_the_numbers_of_the_training_file(run, tmp_path):
    like = tmp_path / "out.h5"
    report, found = run('a,y\n1,münchen\n2,"b, c"\n3,a\n4,münchen\n', **Y)
    assert report.class_counts == {"a": 1, "b, c": 1, "münchen": 2}
    assert found.y.tolist() == [2, 1, 0, 2]
    report, found = run("a,y\n1,münchen\n", "new.h5", **Y, like=like)
    assert (found.y.tolist(), report.unseen_labels) == ([2], ())
    report, _ = run("a,y\n1,a\n2,7\n", "new.h5", **Y, like=like)
    assert (report.unseen_labels, report.class_counts) == (("7",), {"7": 1, "a": 1})
    with open_source(tmp_path / "new.h5") as source:
        assert source.labels(0, 2).tolist() == ["a", "7"]
    (tmp_path / "t.txt").write_text("1 1:1\n")
    report = convert_libsvm([tmp_path / "t.txt"], tmp_path / "new.h5", like=like)
    assert report.unseen_labels == ("1",)
