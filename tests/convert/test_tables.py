"""Tables of every format, in files: what is converted, and what is refused."""

import csv
import gzip
import io
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from converted import convert_files, convert_libsvm, read
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.convert.convert import open_table
from ooc_fw.convert.tables import parse_number
from ooc_fw.data.labels import plain_word
from ooc_fw.data.opening import open_source
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError
from tests.support.files import write_csr_group
from tests.support.methods import grid

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pd = pytest.importorskip("pandas")

NAMES = ("a", "b", "c", "d", "e")
Y = {"label": "y"}


@pytest.fixture
def run(tmp_path):
    """Convert inputs, or the text of a CSV table, to out.h5 without shuffling: report, contents."""

    def run(inputs, output="out.h5", **options):
        if isinstance(inputs, (str, bytes)):
            data = inputs if isinstance(inputs, bytes) else inputs.encode()
            inputs = tmp_path / "data.csv"
            inputs.write_bytes(data)
        inputs = inputs if isinstance(inputs, list) else [inputs]
        report = convert_files(inputs, tmp_path / output, **{"shuffle": False, **options})
        return report, read(tmp_path / output)

    return run


@pytest.fixture
def refused(run, tmp_path):
    def refused(inputs, message, **options):
        with pytest.raises(InputError, match=message):
            run(inputs, "no.h5", **options)
        assert not (tmp_path / "no.h5").exists()

    return refused


def write_table(path, columns):
    """Write a table as CSV, Parquet or Arrow, by the name of the file."""
    if path.suffix == ".csv":
        columns = {
            name: getattr(one, "tolist", lambda one=one: one)() for name, one in columns.items()
        }
        rows = [columns, *zip(*columns.values(), strict=True)]
        path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path, row_group_size=90)
    else:
        table = pa.table(columns)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.fixture
def save(tmp_path):
    """Write a file of some format by its name; its path."""

    def save(name, *columns, **parts):
        path = tmp_path / name
        if path.suffix == ".npy":
            np.save(path, *columns)
        elif path.suffix == ".hdf5":
            write_hdf5(path, **parts)
        else:
            write_table(path, columns[0] if columns else parts)
        return path

    return save


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(300, 5)) * 64) / 64
    X[rng.random(X.shape) < 0.4] = 0
    X[0] = 1.5  # the last column is met, so that text has the same width
    return X.astype(np.float32), np.where(rng.random(300) < 0.4, 3.0, -7.0)


def columns_of(X, y):
    return dict(zip(["a", "b", "class", "c", "d", "e"], [*X.T[:2], y, *X.T[2:]], strict=True))


def write_packed(path, X, y):
    write_table(path.with_suffix(""), columns_of(X, y))
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))


def write_hdf5(path, **nodes):
    with h5py.File(path, "w") as file:
        for name, values in nodes.items():
            file[name] = values


def write_sparse(path, X, y):
    with h5py.File(path, "w") as file:
        write_csr_group(file.create_group("X"), X)
        file["y"] = y


CLASS = {"label": "class"}
NAMED = {"x_name": "rows", "label": "target"}
TABLES = {  # name -> options, how the data are written
    "csv": (CLASS, lambda path, X, y: write_table(path, columns_of(X, y))),
    "csv.gz": (CLASS, write_packed),
    "parquet": (CLASS, lambda path, X, y: write_table(path, columns_of(X, y.astype(int)))),
    "npy": ("y.npy", lambda path, X, y: np.save(path, X)),
    "npy-fortran": ("y.npy", lambda path, X, y: np.save(path, np.asfortranarray(X))),
    "hdf5": (NAMED, lambda path, X, y: write_hdf5(path, rows=X, target=y)),
    "hdf5-csr": ({}, write_sparse),
}
CHOICES = {"seed": 4}, {"scale": "standard", "shuffle": False}, {"scale": "maxabs", "dense": False}


@pytest.mark.parametrize(
    ("kind", "options"),
    grid(
        [("npy", CHOICES[1]), ("parquet", CHOICES[0]), ("csv", CHOICES[2])]
        + [(kind, CHOICES[k % 3]) for k, kind in enumerate(TABLES)],
        quick=3,
    ),
)
def test_table_equals_the_same_data_as_text(kind, options, data, write_text, tmp_path, monkeypatch):
    monkeypatch.setattr("ooc_fw.convert.readers.BLOCK_BYTES", 2000)
    convert_libsvm([write_text(*data)], tmp_path / "text.h5", **options)
    path, labels = tmp_path / f"data.{kind.split('-')[0]}", tmp_path / "y.npy"
    np.save(labels, data[1])
    choice, write = TABLES[kind]
    write(path, *data)
    choice = {"labels": labels} if choice == "y.npy" else choice
    report = convert_files([path], tmp_path / "table.h5", **choice, **options)
    *arrays, attributes, _ = read(tmp_path / "table.h5")
    *expected, of_text, _ = read(tmp_path / "text.h5")
    for found, wanted in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    columns = attributes.pop("columns", None)
    if kind.startswith(("csv", "parquet")):
        assert [name.decode() for name in columns] == list(NAMES)
        assert json.loads(attributes.pop("table"))["columns"] == list(NAMES)
    for attribute in ("source",):
        assert attributes.pop(attribute) != of_text.pop(attribute)
    assert attributes.keys() == of_text.keys()
    for name, value in of_text.items():
        np.testing.assert_array_equal(attributes[name], value)
    assert report.class_counts == {-7: (data[1] == -7).sum(), 3: (data[1] == 3).sum()}
    assert report.n_rows == 300
    assert report.text_bytes > 0


def test_several_files_in_one_and_columns_in_any_order(run, refused, tmp_path):
    paths = [tmp_path / "first.csv", tmp_path / "second.csv"]
    paths[0].write_text("a,b,y\n1,2,0\n")
    paths[1].write_text("y,b,a\n1,4,3\n")
    _, found = run(paths, **Y)
    assert (found.X.tolist(), found.y.tolist()) == ([[1, 2], [3, 4]], [0, 1])
    paths[1].write_text("a,y\n1,1\n")
    refused(paths, r"second\.csv lacks column 'b', which the first table needs", **Y)


def test_standard_input_and_pipes(run, monkeypatch, tmp_path):
    for text in (b"a\ty\n1\t1\n2\t2\n", b"a,y\n1,0\n2,1\n"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert run(["-"], **Y, impute="mean")[1].X.tolist() == [[1], [2]]
    os.mkfifo(tmp_path / "pipe")
    for text, options in (("1 1:1\n2 1:2\n", {}), ("a,y\n1,1\n2,2\n", Y)):
        with ThreadPoolExecutor(1) as pool:
            pool.submit((tmp_path / "pipe").write_text, text)
            _, found = run(tmp_path / "pipe", **options)
        assert (found.X.tolist(), found.y.tolist()) == ([[1], [2]], [1, 2])


def test_blanks_quotes_empty_lines_and_carriage_returns(run, tmp_path):
    text = b'\xef\xbb\xbf\r\n"a, b", c , y\r\n\r\n 1.5 , 2 ,cat\r\n3,+4, dog\r\n'
    _, found = run(text, **Y)
    assert found.X.tolist() == [[1.5, 2], [3, 4]]
    assert found.attrs["columns"].tolist() == [b"a, b", b"c"]
    with open_source(tmp_path / "out.h5") as source:
        assert source.labels(0, 2).tolist() == ["cat", "dog"]
    _, found = run('a,y\n1,"x\rz"\nTrue,w\n', **Y)  # a carriage return alone, in quotes
    assert (found.X.tolist(), found.y.tolist()) == ([[1], [1]], [1, 0])


def test_quoted_cells_with_line_breaks(run, monkeypatch):
    """Whatever the blocks, rows are those of Python's csv module."""
    rng = np.random.default_rng(0)
    parts = ["n", "\n", "\r\n", '"', ",", "5' 3\" tall"]
    rows = [[str(i), "x" + "".join(rng.choice(parts, 4)), f"c{i % 3}"] for i in range(60)]
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["a\n(cm)", "note", "y"], *rows])
    notes = sorted({note.strip() for _, note, _ in rows})
    expected = [[int(i), *(note.strip() == other for other in notes)] for i, note, _ in rows]
    for block_bytes in (1, 7, 100, 1 << 20):
        monkeypatch.setattr("ooc_fw.convert.readers.BLOCK_BYTES", block_bytes)
        _, found = run(text.getvalue(), **Y, one_hot=["note"])
        np.testing.assert_array_equal(found.X, expected)
        assert found.attrs["columns"][0] == b"a\n(cm)"


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


BUYS = {"label": "buys"}
TRAIN = "age,colour,size,buys\n30,red,1.5,yes\n40,blue,2.5,no\n50,red,0,no\n"


def test_one_hot_and_like(run, refused, save, tmp_path):
    names = [b"age", b"colour=blue", b"colour=red", b"size"]
    like = tmp_path / "train.h5"
    _, train = run(TRAIN, "train.h5", **BUYS, one_hot=["colour"])
    assert train.X.tolist() == [[30, 0, 1, 1.5], [40, 1, 0, 2.5], [50, 0, 1, 0]]
    assert train.y.tolist() == [1, 0, 0]
    assert train.attrs["columns"].tolist() == names
    text = "size,extra,buys,colour,age\n7,0,no,green,1\n8,0,yes,blue,2\n"
    report, test = run(text, like=like)
    assert test.X.tolist() == [[1, 0, 0, 7], [2, 1, 0, 8]]
    assert test.y.tolist() == [0, 1]
    assert test.attrs["columns"].tolist() == names
    (note,) = report.notes
    assert note.startswith("column 'colour': 1 rows without a category that ")
    # New rows need no labels.
    new = {"age": [1], "colour": ["red"], "size": [2]}
    for inputs in ("age,colour,size\n1,red,2\n", save("n.parquet", **new)):
        report, _ = run(inputs, like=like)
        assert report.class_counts == {}
        assert report.notes[0].startswith("there are no labels: the file is for prediction only")
        with open_source(tmp_path / "out.h5") as source:
            assert not source.has_labels
            assert source.read(0, 1).tolist() == [[1, 0, 1, 2]]
    # Other columns and options are refused.
    for text, message, options in (
        ("age,buys\n1,no\n", r"lacks columns 'colour', 'size', which .*train\.h5 needs", {}),
        (TRAIN, r"--one-hot comes from .*train\.h5 here", {"one_hot": ["colour"]}),
        (TRAIN.replace("30", ""), r"line 2: the value in column 'age' is missing", {}),
    ):
        refused(text, message, like=like, **options)


def test_impute_mean_and_like(run, tmp_path):
    text = "a,b,c,y\n1,,x,0\nNA,4,,1\n3,8,z,0\n"
    report, found = run(text, **Y, one_hot=["c"], impute="mean")
    assert found.X.tolist() == [[1, 6, 1, 0], [2, 4, 0, 0], [3, 8, 0, 1]]
    assert report.notes[0] == "2 missing values became the means of their columns"
    assert report.notes[1].startswith("column 'c': 1 rows without a category that ")
    _, found = run("a,b,c,y\n?,,x,0\n", "test.h5", like=tmp_path / "out.h5")
    assert found.X.tolist() == [[2, 6, 1, 0]]


def test_columns_by_number_without_a_header(run, refused, tmp_path):
    text, options = "5,x,1\n6,y,2\n", {"header": False}
    _, found = run(text, "train.h5", label="1", **options)
    assert found.X.tolist() == [[5, 1], [6, 2]]
    assert found.attrs["columns"].tolist() == [b"0", b"2"]
    _, found = run("7,y,0\n8,x,2\n", like=tmp_path / "train.h5")  # the training file knows
    assert (found.X.tolist(), found.y.tolist()) == ([[7, 0], [8, 2]], [1, 0])
    (tmp_path / "train.txt").write_text("1 1:1 2:2\n2 1:3\n")
    run(tmp_path / "train.txt", "train.h5")
    message = "does not say how the columns of a table became its features"
    refused("y,a,b\n1,5,6\n", message, like=tmp_path / "train.h5")


@pytest.mark.parametrize("names", [["__index_level_0__"], ["city", "year"], [{"k": 0}], None])
def test_the_index_of_pandas_is_no_feature(run, save, tmp_path, names):
    """A range index has no column; in CSV, the first column without a name is the index."""
    path = ",a,y\n0,1,0\n1,2,1\n"
    if names is not None:
        own = [name for name in names if isinstance(name, str)]
        columns = {"a": [1.0, 2.0], "y": [0, 1], **{name: [5, 6] for name in own}}
        metadata = {"pandas": json.dumps({"index_columns": names, "columns": []})}
        path = save("data.parquet", pa.table(columns).replace_schema_metadata(metadata))
    for output, options in (("out.h5", Y), ("like.h5", {"like": tmp_path / "out.h5"})):
        _, found = run(path, output, **options)
        assert (found.X.tolist(), found.y.tolist()) == ([[1], [2]], [0, 1])
        assert found.attrs["columns"].tolist() == [b"a"]
    _, found = run(",0,1\n0,5,a\n1,6,b\n", label="1", header=True)  # names that are places
    assert found.X.tolist() == [[5], [6]]


@pytest.mark.parametrize("line", ["5.1,3.5,setosa", "39, Gov, 7", "2010,class", "?,7,x", "0,1,y"])
def test_a_first_line_with_numbers_is_no_header(run, refused, line):
    text = line + "\n" + ",".join(["1"] * (line.count(",") + 1)) + "\n"
    refused(text, r"holds numbers, .* --no-header .*, or --header if", label="0")
    assert run(text, label=line.rpartition(",")[2].strip(), header=True)[0].n_rows == 1
    assert run("x1,?\n1,2\n", label="?")[0].n_rows == 1


def test_labels_that_are_words(run, tmp_path):
    like, text = tmp_path / "out.h5", tmp_path / "t.txt"
    report, found = run('a,y\n1,münchen\n2,"b, c"\n3,a\n4,münchen\n', **Y)
    assert report.class_counts == {"a": 1, "b, c": 1, "münchen": 2}
    assert found.y.dtype == np.float64
    assert found.y.tolist() == [2, 1, 0, 2]
    assert found.attrs["class_names"].tolist() == [0, 1, 2]
    with h5py.File(like) as file:
        assert file["y"].attrs["label_names"].dtype.kind == "S"
    with open_source(like) as source:
        assert source.labels(1, 4).tolist() == ["b, c", "a", "münchen"]
    # New rows take the codes of the training file.
    report, found = run("a,y\n1,münchen\n", "new.h5", **Y, like=like)
    assert found.y.tolist() == [2]
    assert (report.unseen_labels, report.class_counts) == ((), {"münchen": 1})
    report, _ = run("a,y\n1,a\n2,7\n", "new.h5", **Y, like=like)
    assert report.unseen_labels == ("7",)
    with open_source(tmp_path / "new.h5") as source:
        assert source.labels(0, 2).tolist() == ["a", "7"]
    text.write_text("1 1:1\n")
    report = convert_libsvm([text], tmp_path / "new.h5", like=like)
    assert (report.unseen_labels, report.class_counts) == (("1",), {"1": 1})


@pytest.mark.parametrize("words", [["1", "1.0", "+2"], ["0", "1", "1e0"], ["-1", "+1", "-1"]])
def test_labels_that_are_numbers_stay_numbers(run, words):
    report, found = run("a,y\n" + "".join(f"1,{word}\n" for word in words), **Y)
    assert found.y.tolist() == [float(word) for word in words]
    assert len(report.class_counts) == 2


def test_missing_labels_are_refused_or_dropped(run, refused):
    for marker in ("NA", "nan", "NaN", "", "null", "None", "?", "N/A"):
        text = f"a,y\n1,0\n2,{marker}\n3,1\n"
        refused(text, r"line 3: the label is missing.*--missing-labels drop", **Y)
        report, _ = run(text, **Y, missing_labels="drop")
        assert report.class_counts == {0: 1, 1: 1}
        assert report.notes == ("1 rows without a label are left out",)
    # A dash is a label, a missing number and a category.
    report, _ = run("a,y\n1,+\n-,-\n3,-\n", **Y, impute="mean")
    assert report.class_counts == {"+": 1, "-": 2}
    assert "1 missing values became" in report.notes[0]
    assert run("a,y\n-,0\nb,1\n", **Y, one_hot=["a"])[0].n_features == 2
    _, found = run("x,y\n007,0\n7,1\n7.0,1\n", **Y, one_hot=["x"])  # a code begins with 0
    assert found.X.tolist() == [[1, 0], [0, 1], [0, 1]]


LARGE = 2**53


def test_large_whole_labels_stay_apart(run, save):
    y = np.array([LARGE, LARGE + 1])
    decimal = pa.array(y).cast(pa.decimal128(20, 0))
    for table, options in (
        (f"a,y\n1,{LARGE}\n2,{LARGE + 1}\n", Y),
        (save("whole.parquet", a=[1.0, 2.0], y=pa.array(y)), Y),
        (save("decimal.parquet", a=[1.0, 2.0], y=decimal), Y),
        (save("data.hdf5", X=np.eye(2), y=y), {}),
        (save("data.npy", np.eye(2)), {"labels": save("y.npy", y.astype(np.uint64))}),
    ):
        assert run(table, **options)[0].class_counts == {f"{LARGE}": 1, f"{LARGE + 1}": 1}


def test_labels_that_are_not_utf8_are_refused(refused, save, tmp_path):
    words = [b"caf\xc3\xa9", b"caf\xe9"]
    message = r"row 1: b?'caf\\(xe9|udce9)' is not UTF-8 text"
    refused(save("X.npy", np.eye(2)), message, labels=save("y.npy", np.array(words)))
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        file["X"] = np.eye(2)
        file.create_dataset("y", data=words, dtype=h5py.string_dtype("utf-8", 8))
    refused(tmp_path / "data.hdf5", message)


MANY = "".join(f"w{i},0\n" for i in range(5000))
LONG = f"a,b,y\n1,{'x' * 200_000},0\n2,c,1\n"
FAR = "\n".join(["a,y", "?,1", *["3,2"] * 28, "1e300,1\n"])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TRAIN, {}, r"data\.csv is a table: name the column .* --label \(it has age, colour, size"),
        (TRAIN, {"label": "4"}, "lacks column '4', which --label needs; it has age"),
        (TRAIN, {**BUYS, "drop": ["z"]}, "lacks column 'z', which --drop needs"),
        (TRAIN, {**BUYS, "drop": ["age", "colour", "size"]}, "has no column left"),
        (TRAIN, {**BUYS, "one_hot": ["buys"]}, "named by --one-hot and by --label"),
        (TRAIN, BUYS, "line 2: column 'colour' does not hold a number but 'red'; .* --one-hot"),
        ("a,y\n1,0\n\n,1\n", Y, r"line 4: .* column 'a' is missing; .* --impute mean"),
        ("a,y\n1,0\n1,\n", Y, r"line 3: the label is missing"),
        ("a,y\n1,0\n1,inf\n", {**Y, "task": "regression"}, "line 3: the label .* infinite"),
        ("a,y\ninf,0\n", Y, "line 2: .* column 'a' is inf: not finite"),
        ("a,b,y\n1,1,0\n1,-1,0\n", {**Y, "log1p": True}, "line 3: .* 'b' is -1: .* log1p"),
        ("a,y\n1,0\n1,0,2\n", Y, "line 3: it has 3 cells for 2 columns"),
        ('a,y\n1,0\n1,"0\n3\n', Y, r"line 3: .*; a quoted cell ends in a quote"),
        ("a,y\n", Y, r"data\.csv holds no rows"),
        ("", Y, r"data\.csv is empty"),
        ("a,a,y\n1,2,0\n", Y, r"data\.csv has two columns of one name"),
        ("a,y\n1,0\n", {**Y, "delimiter": "ab"}, "must be one character of ASCII, not 'ab'"),
        ("a,y\n" + MANY, {**Y, "one_hot": ["a"]}, "'a' of .* than 4096 different words, .* --drop"),
        (LONG.replace("b", "x" * 200_000), Y, "a name of more than 4096 letters"),
        (LONG, {**Y, "one_hot": ["b", "a"]}, "'b' of .* more than 4096 letters"),
        (LONG, {"label": "b", "one_hot": ["a"]}, "column of the labels .* has .* 4096 letters"),
        ("y,a\n" + MANY, Y, "more than 4096 different words.*"),
        ("a,c,y\n,x,0\n", {**Y, "impute": "mean", "drop": ["c"]}, "holds no number at"),
        ("a,c,y\n1,,0\n", {**Y, "one_hot": ["c"]}, "column 'c' is missing"),
        (b"a,y\n1,caf\xe9\n", Y, "line 2: it is not UTF-8 text; convert it"),
        (b"a,b,y\r1,2,x\r3,4,z\r", Y, r"line 1: a carriage return stands alone"),
        (b'a,y\n"1,234",x\n', Y, "line 2: column 'a' does not hold a number but '1,234'"),
        (
            "a,y\n1,0\n",
            {**Y, "zero_based": True},
            "is csv, and --zero-based and --n-features are for other",
        ),
        ("a,y\n1,0\n", {**Y, "labels": "y.npy"}, "--label and --labels contradict each other"),
        ("a,y\n1,0\n", {"labels": "y.npy"}, "labels in a column: name it with --label"),
        (FAR, {**Y, "impute": "mean"}, r"data\.csv, line 31: .* column 'a' is .*, beyond float32"),
        *(("größe,y\n1,0\n".encode(code), Y, "not UTF-8") for code in ("latin1", "utf-16")),
        *((f"a,y\n1,0\n{it},1\n", Y, "line 3: .* 'a' is missing") for it in ("-", "?", "None")),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_wrong_tables(refused, text, options, message):
    refused(text, message, **options)


def test_options_that_do_not_fit_the_input(refused, save, tmp_path):
    text, table, x = tmp_path / "t.txt", tmp_path / "t.csv", save("x.npy", np.eye(2))
    text.write_text("1 1:1 2:2\n")
    table.write_text("a,y\n1,0\n")
    refused(text, "is libsvm, and --label, .* are for other formats", **Y, format="libsvm")
    refused([text, table], r"several formats \(libsvm, csv\)")
    refused(table, "format must be one of auto, libsvm, csv", format="xml")
    refused(["-", "-"], "given twice", **Y)
    refused(x, r"has no labels; name them \(--label\), or give a file")
    refused(x, r"none\.npy does not exist", labels=tmp_path / "none.npy")
    refused(tmp_path / "none.csv", r"none\.csv does not exist", **Y)


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ({"X": np.eye(3)}, {}, "has 3 rows but 2 labels"),
        ({"X": np.zeros((2, 2, 2))}, {}, "a table of two dimensions, not of 3"),
        ({"X": np.array([[1, np.nan], [1, 1]])}, {}, "row 0: the value in column '1' is nan"),
        (
            {"X": np.eye(2)},
            {"one_hot": ["a"]},
            "is hdf5, and --one-hot, .* are for other formats",
        ),
        ({"X": np.eye(2)}, {"label": "z"}, "has no labels 'z'"),
        ({"rows": np.eye(2)}, {}, "has no 'X'"),
    ],
)
def test_arrays_that_do_not_fit(refused, save, parts, options, message):
    refused(save("a.hdf5", **parts, y=np.zeros(2)), message, **options)


def test_sparse_arrays(run, refused, tmp_path, monkeypatch):
    """In blocks by their bytes; a bad value is named."""
    monkeypatch.setattr("ooc_fw.convert.readers.BLOCK_BYTES", 12 * 200)
    X = sp.random(60, 50, 0.3, "csr", dtype=np.float64, random_state=0)
    path = tmp_path / "a.hdf5"
    write_sparse(path, X.toarray(), np.arange(60) % 2)
    _, found = run(path, dense=True, log1p=True)
    np.testing.assert_allclose(found.X, np.log1p(X.toarray()), rtol=1e-6)
    with h5py.File(path, "a") as file:
        file["X/data"][4] = np.inf
    refused(path, f"row 0: the value in column '{X.indices[4]}' is inf")
    run("a,y\n1,0\n", **Y)
    refused(tmp_path / "out.h5", "is a converted file already: use it as it is")


@pytest.mark.parametrize("y", [[True, False, True], [1, 0, 1], ["b", "a", "b"]])
def test_labels_of_arrays(run, save, y):
    report, found = run(save("X.npy", np.eye(3)), labels=save("y.npy", np.array(y)))
    assert found.y.tolist() == [1, 0, 1]
    assert [*report.class_counts] == (["a", "b"] if y[0] == "b" else [0, 1])


def test_parquet_with_nulls_and_dates(refused, save):
    path = save("t.parquet", a=[1.0, None], t=pa.array([1, 2], pa.timestamp("s")), y=[0, 1])
    refused(path, r"column 't' .* holds dates, not numbers; .*--drop t", **Y)
    refused(path, r"t\.parquet, row 1: the value in column 'a' is missing", **Y, drop=["t"])
    path.write_bytes(b"PAR1 and no more")
    refused(path, "cannot be read as Parquet", **Y)


def test_arrow_whose_notes_of_pandas_are_damaged(refused, tmp_path):
    path = tmp_path / "t.arrow"
    pd.DataFrame({"a": [1, 2], "y": [0, 1]}).to_feather(path)
    path.write_bytes(path.read_bytes().replace(b'"index_columns":', b'"index_columns"x'))
    refused(path, "t.arrow cannot be read as Arrow", **Y)


@pytest.mark.parametrize("coded", [True, False])
def test_text_of_parquet_is_read_as_it_is_stored(tmp_path, monkeypatch, coded):
    """Rows of 4 MB, of which each text is stored once; a block may lack words of its row group."""
    monkeypatch.setattr("ooc_fw.convert.arrow.MAX_BLOCK_ROWS", 100)
    texts = [f"{k // 134}" * 10_000 for k in range(400)]
    column = pa.array(texts, pa.dictionary(pa.int32(), pa.string()) if coded else pa.string())
    path = write_table(tmp_path / "t.parquet", {"t": column, "y": np.arange(400) % 2})
    with open_table(str(path), "parquet", ConvertOptions()) as reader:
        reader.choose({"t": "words", "y": "words"})
        blocks = list(reader.blocks())
        for columns, _ in blocks:
            assert sum(column.nbytes for column in columns.values()) < 200_000
        columns, place = blocks[-1]
        assert place(len(columns["t"]) - 1) == f"{path}, row 399"
    words = [reader.cells(block)[0]["t"] for block in blocks]
    assert [word for own in words for word in np.array(own.values)[own.codes]] == texts
    assert coded or all(len(own.values) == len({*own.codes}) for own in words)


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_only_wanted_columns_are_read(run, save, name):
    path = save(name, a=[1.0, 2, 3], t=["x" * 10**6] * 3, y=[0, 1, 1])
    assert run(path, **Y, drop=["t"])[0].text_bytes < 1000


WORDS = pa.array(["a", "b", "a", None])
NUMBERS = pa.array([1, 2, 1, None])
COLUMNS = [
    *(WORDS.cast(kind) for kind in (pa.large_string(), pa.string_view())),
    WORDS.cast(pa.large_string()).dictionary_encode(),
    *(
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, None], kind), ["a", "b"])
        for kind in (pa.uint8(), pa.uint32(), pa.int8())
    ),
    *(NUMBERS.cast(kind) for kind in (pa.float16(), pa.uint64(), pa.decimal128(22, 2))),
    NUMBERS.dictionary_encode(),
    pa.array([True, False, True, None]).dictionary_encode(),
]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_every_type_of_arrow(run, refused, save, column, suffix):
    """As numbers, as categories and as labels."""
    y = pa.array([0, 1, 0, 1])
    path = save(f"t{suffix}", x=column, y=y)
    X = run(path, **Y, one_hot=["x"], impute="mean")[1].X
    np.testing.assert_array_equal(np.sort(X, axis=1), [[0, 1], [0, 1], [0, 1], [0, 0]])
    assert X[0].tolist() == X[2].tolist() != X[1].tolist()
    counts = run(save(f"l{suffix}", x=y, y=column), **Y, missing_labels="drop")[0].class_counts
    assert sorted(counts.values()) == [1, 2]
    values = column.to_pylist()
    if isinstance(values[0], str):
        refused(path, "column 'x' of .* holds words, not numbers", **Y)
        return
    values[3] = (2 * values[0] + values[1]) / 3
    found = run(path, **Y, impute="mean")[1].X[:, 0]
    np.testing.assert_allclose(found, np.array(values, dtype=float), rtol=1e-6)


def test_columns_of_parquet_that_are_no_cells(refused, save):
    columns = {"v": [["a"], ["b"]], "s": [{"k": 1}, {"k": 2}], "b": [b"1", b"2"], "y": [0, 1]}
    refused(save("t.parquet", **columns), r"'v' of .* holds list<.*--drop v", **Y)
    refused(save("t.parquet", **columns), r"'s' of .* holds struct<", **Y, drop=["v"])
    refused(save("t.parquet", **columns), "'b' of .* holds binary", **Y, drop=["v", "s"])
    twins = pa.Table.from_arrays([pa.array([1, 2])] * 3, names=["twin", "twin", "y"])
    refused(save("t.parquet", twins), r"t\.parquet .*duplicate field names", **Y)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_time_of_wide_tables_is_linear_in_their_columns(tmp_path, suffix):
    """Eight times the columns take no more than sixteen times the CPU seconds; 64 if squared."""
    seconds = []
    for width in (500, 500, 4000):  # the first run compiles
        X = np.random.default_rng(0).normal(size=(40, width)).astype(np.float32)
        columns = {f"c{j}": X[:, j] for j in range(width)} | {"y": np.arange(40) % 2}
        path = write_table(tmp_path / f"t{suffix}", columns)
        begun = time.process_time()
        convert_files([path], tmp_path / "o.h5", **Y)
        seconds.append(time.process_time() - begun)
    assert seconds[2] < 16 * seconds[1]


FORMS = {
    "numbers": ("1 2 3", "1.0 2.00 3e0", pa.array([1, 2, 3]), pa.array([1.0, 2, 3])),
    "booleans": ("True False True", "TRUE false true", pa.array([True, False, True])),
}


@pytest.mark.parametrize("use", ["one_hot", "target_encode", "label"])
@pytest.mark.parametrize("kind", FORMS)
def test_categories_and_labels_are_compared_by_value(run, tmp_path, kind, use, caplog):
    """Whatever container they are in, and whatever is in the training file."""
    made = []
    for k, column in enumerate(FORMS[kind]):
        name = f"{k}.parquet" if isinstance(column, pa.Array) else f"{k}.csv"
        column = column.split() if isinstance(column, str) else column
        columns = {"x": column, "w": [2, 1, 5], "y": [0, 1, 1]}
        if use == "label":
            columns = {"x": [7, 8, 9], "w": [2, 1, 5], "y": column}
        made.append(write_table(tmp_path / name, columns))
    for training in made:
        _, trained = run(training, "train.h5", **Y, **({} if use == "label" else {use: ["x"]}))
        for path in made:
            report, found = run(path, "test.h5", like=tmp_path / "train.h5")
            assert not report.unseen_labels
            np.testing.assert_array_equal(found.y, trained.y)
            if use == "one_hot":
                np.testing.assert_array_equal(found.X, trained.X)
    assert "category that" not in caplog.text


def test_files_without_names_have_as_many_columns(run, refused, save, tmp_path):
    """Another column, or one fewer, would move all that follow it; labels may be left out."""
    like = tmp_path / "train.h5"
    _, train = run("5,1.5,a\n6,2.5,b\n", "train.h5", header=False, label="2")
    for text, n_columns in (("9,5,1.5,a\n", 4), ("1.5\n", 1)):
        refused(text, rf"has {n_columns} columns and .*train\.h5 has 3", like=like)
    files = {"labels": save("y.npy", np.arange(6) % 2), "like": like}
    refused(save("wrong.npy", np.zeros((6, 3))), r"has 3 columns and .* has 2", **files)
    report, found = run("5,1.5\n6,2.5\n", "new.h5", like=like)
    assert report.class_counts == {}
    np.testing.assert_array_equal(found.X, train.X)
