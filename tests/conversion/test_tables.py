"""Tables: cells of CSV, columns of Parquet, and the categories, means and labels of later rows."""

import csv
import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import load_model
from ooc_fw.conversion.convert import open_table
from ooc_fw.conversion.tables import parse_number, plain_word
from ooc_fw.data.opening import open_dataset
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError
from tests.conversion.converted import Y, write_table

cells = st.sampled_from(["1", "-2.5", "", " 3 ", "NA", "x", '"4"', "1e3", '"a""b"', "+7", "True"])


@given(rows=st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=6))
def test_cells_are_those_of_a_slow_parser(tmp_path_factory, rows):
    """Of Python's csv module and `float`; the first row that cannot be read is named."""
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    path.write_text("a,b,y\n" + "".join(",".join(row) + "\n" for row in rows))
    slow = [*csv.reader(path.read_text().splitlines()[1:])]
    numbers = [parse_number(row[0]) for row in slow]
    with open_table(str(path), "csv", ConvertOptions()) as table:
        table.wanted = {"a": "numbers", "b": "words", "y": "labels"}
        (block,) = table.blocks()
        if None in numbers:
            with pytest.raises(InputError, match=f", line {numbers.index(None) + 2}: column 'a'"):
                table.cells(block)
            return
        found, place = table.cells(block)
    np.testing.assert_array_equal(found["a"], numbers)
    for column, name, word_of in ((1, "b", plain_word), (2, "y", str.strip)):
        names = [found[name].values[code] if code >= 0 else "" for code in found[name].codes]
        assert names == [word_of(row[column]) for row in slow]
    places = [f"{path}, line {k + 2}" for k in range(len(rows))]
    assert [*map(place, range(len(rows)))] == places


def test_several_files_are_one_by_the_names_of_their_columns(run, tmp_path):
    first = write_table(tmp_path / "first.csv", {"a": [1], "b": [2], "y": [0]})
    second = write_table(tmp_path / "second.csv", {"y": [1], "b": [4], "a": [3]})
    _, found = run([first, second], **Y)
    assert (found.X.tolist(), found.y.tolist()) == ([[1, 2], [3, 4]], [0, 1])
    assert found.columns == ["a", "b"]
    bare = write_table(tmp_path / "bare.csv", {"a": [5], "b": [6]})
    report, found = run([first, bare], "new.h5", like=tmp_path / "out.h5")
    assert (len(found.X), found.y, report.class_counts) == (2, None, {})


def test_columns_by_number_without_a_header(run, tmp_path):
    """The training file knows that there is no header; later rows need no labels."""
    like = {"like": tmp_path / "train.h5"}
    _, train = run("5,1.5,a\n6,2.5,b\n", "train.h5", header=False, label="2")
    assert (train.X.tolist(), train.columns) == ([[5, 1.5], [6, 2.5]], ["0", "1"])
    for text, counts in (("7,8,b\n", {"b": 1}), ("7,8\n", {})):
        report, found = run(text, **like)
        assert (report.class_counts, found.X.tolist()) == (counts, [[7, 8]])


@pytest.mark.parametrize("names", ["c,a,y", "names.txt", ["c", "a", "y"]])
def test_names_of_columns_without_a_header(run, tmp_path, monkeypatch, names):
    """Later rows get them too, with or without a header; files of them and lists are the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").write_text("c\na\ny\n")
    _, train = run("p,1,0\nq,2,1\n", "train.h5", label="y", one_hot=["c"], names=names)
    assert train.columns == ["c=p", "c=q", "a"]
    for text in ("q,5,1\np,6,0\n", "a,c,y\n5,q,1\n6,p,0\n", "c,a\nq,5\np,6\n", "q,5\np,6\n"):
        _, later = run(text, like=tmp_path / "train.h5")
        assert later.X.tolist() == [[0, 1, 5], [1, 0, 6]]
    run("c,a,y\np,1,0\nq,2,1\n", "named.h5", label="y", one_hot=["c"])
    _, later = run("q,5,1\np,6,0\n", like=tmp_path / "named.h5", names=names)
    assert later.X.tolist() == [[0, 1, 5], [1, 0, 6]]


@pytest.mark.parametrize("options", [{}, {"one_hot": ["c"]}, {"target_encode": ["c"]}])
def test_weights_of_rows_follow_their_rows(run, tmp_path, ooc_fw, options):
    """Through the shuffle, to later files and to both parts of a split; a record has no weights."""
    lines = [f"{k / 4},{k},{k % 3},{k % 2}" for k in range(40)]
    text = "\n".join(["w,x,c,y", *lines, ""])
    run(text, "t.h5", label="y", weight="w", shuffle=True, **options)
    run(text, "later.h5", like=tmp_path / "t.h5", weight="w")
    ooc_fw("split", tmp_path / "t.h5", tmp_path / "a.h5", tmp_path / "b.h5").done()
    for name in ("t.h5", "later.h5", "a.h5", "b.h5"):
        with open_dataset(tmp_path / name) as source:
            x = source.read(0, source.n_rows)[:, source.columns.index("x")]
            assert source.beside["weight"][0 : source.n_rows].tolist() == (x / 4).tolist()
        assert ooc_fw("verify", tmp_path / name).status == 0
    run("x,c,y\n1,2,0\n3,1,1\n", like=tmp_path / "t.h5")
    with open_dataset(tmp_path / "out.h5") as source:
        assert "weight" not in source.beside


def test_a_folder_of_csv_is_all_its_files(run, tmp_path, ooc_fw):
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "p1.csv").write_text("y,a\n1,3\n0,4\n")
    (folder / "p0.csv.gz").write_bytes(gzip.compress(b"a,y\n1,0\n2,1\n"))
    (folder / "_SUCCESS").write_text("")
    _, found = run([folder], label="y")
    assert (found.X[:, 0].tolist(), found.y.tolist()) == ([1, 2, 3, 4], [0, 1, 1, 0])
    model = tmp_path / "out.model.h5"
    ooc_fw("train", tmp_path / "out.h5", "-o", model, "--C", 100, "--gamma", 10).done()
    assert ooc_fw("predict", model, folder).out.split() == ["0", "1", "1", "0"]
    assert load_model(model).predict(folder).tolist() == [0, 1, 1, 0]
    assert ooc_fw("evaluate", model, folder, "--json").json()["accuracy"] == 1
    assert "csv" in ooc_fw("info", folder, "--label", "y").out


@pytest.mark.parametrize("is_csv", [True, False])
def test_the_index_of_pandas_is_no_feature(run, tmp_path, is_csv):
    """In CSV, it is the first column if that has no name."""
    data = ",a,y\n0,1,0\n1,2,1\n"
    if not is_csv:
        table = pa.table({"a": [1.0, 2.0], "y": [0, 1], "city": [5, 6]})
        metadata = {"pandas": json.dumps({"index_columns": ["city"], "columns": []})}
        data = write_table(tmp_path / "data.parquet", table.replace_schema_metadata(metadata))
    _, found = run(data, **Y)
    assert (found.X.tolist(), found.columns) == ([[1], [2]], ["a"])


def test_a_part_may_hold_no_value_of_a_column(run, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    write_table(folder / "a.parquet", {"x": [1.0, 3.0], "word": ["a", "b"], "y": [1, 2]})
    write_table(folder / "b.parquet", {"x": pa.nulls(2), "word": pa.nulls(2), "y": [1, 2]})
    _, found = run(folder, **Y, one_hot=("word",), impute="mean")
    assert found.X.tolist() == [[1, 1, 0], [3, 0, 1], [2, 0, 0], [2, 0, 0]]


def test_a_block_of_parquet_holds_equal_texts_once(tmp_path):
    """400 rows of 10 kB share three texts; a block may lack words of its row group."""
    texts = [f"{k // 134}" * 10_000 for k in range(400)]
    path = write_table(tmp_path / "t.parquet", {"t": texts, "y": np.arange(400) % 2})
    with open_table(str(path), "parquet", ConvertOptions()) as reader:
        reader.wanted = {"t": "words", "y": "words"}
        blocks = list(reader.blocks())
    for columns, _ in blocks:
        assert sum(column.nbytes for column in columns.values()) < 200_000
    words = [reader.cells(block)[0]["t"] for block in blocks]
    assert [word for own in words for word in np.array(own.values)[own.codes]] == texts


def test_later_rows_have_the_columns_categories_and_means_of_the_training_file(run, tmp_path):
    like = {"like": tmp_path / "train.h5"}
    names = ["age", "colour=blue", "colour=red", "size"]
    text = "age,colour,size,buys\n30,red,1.5,yes\n40,blue,2.5,no\nNA,red,,no\n"
    _, train = run(text, "train.h5", label="buys", one_hot=["colour"], impute="mean")
    assert train.X.tolist() == [[30, 0, 1, 1.5], [40, 1, 0, 2.5], [35, 0, 1, 2]]
    assert (train.y.tolist(), train.columns) == ([1, 0, 0], names)
    report, test = run("size,extra,buys,colour,age\n7,0,no,green,1\n?,0,yes,blue,2\n", **like)
    assert test.X.tolist() == [[1, 0, 0, 7], [2, 1, 0, 2]]
    assert (test.y.tolist(), test.columns) == ([0, 1], names)
    assert report.notes[0] == "1 missing values became the means of their columns"
    assert report.notes[1].startswith("column 'colour': 1 of 2 rows have a category that ")
    # New rows need no labels.
    report, _ = run("age,colour,size\n1,red,2\n", **like)
    assert report.class_counts == {}
    assert report.notes[0].startswith("there are no labels: the file is for prediction only")
    with open_dataset(tmp_path / "out.h5") as source:
        assert not source.has_labels
        assert source.read(0, 1).tolist() == [[1, 0, 1, 2]]


def test_a_dash_is_a_missing_number_but_a_label_and_a_category(run):
    report, _ = run("a,y\n1,007\n2,7\n", **Y)
    assert report.class_counts == {"007": 1, "7": 1}
    report, _ = run("a,y\n1,+\n-,-\n3,-\n", **Y, impute="mean")
    assert report.class_counts == {"+": 1, "-": 2}
    assert "1 missing values became" in report.notes[0]
    _, found = run("x,y\n-,0\n007,0\n7,1\n7.0,1\n", **Y, one_hot=["x"])  # 007 is a code
    assert found.X.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]


def test_large_whole_labels_are_words_that_stay_apart(run, tmp_path):
    """Float64 would take them for one number."""
    labels = [2**53, 2**53 + 1]
    decimals = pa.array(labels).cast(pa.decimal128(20, 0))
    for suffix, y in (("csv", labels), ("parquet", labels), ("parquet", decimals)):
        path = write_table(tmp_path / f"t.{suffix}", {"a": [1, 2], "y": y})
        assert run(path, **Y)[0].class_counts == {str(label): 1 for label in labels}


def test_later_labels_are_words_if_those_of_the_training_file_are(run, tmp_path):
    _, found = run('a,y\n1,münchen\n2,"b, c"\n3,a\n', **Y)
    assert found.y.tolist() == [2, 1, 0]
    report, _ = run("a,y\n1,a\n2,7\n", "new.h5", like=tmp_path / "out.h5")
    assert report.class_counts == {"7": 1, "a": 1}
    with open_dataset(tmp_path / "new.h5") as source:
        assert source.labels(0, 2).tolist() == ["a", "7"]
