from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.convert.convert import convert, convert_libsvm
from ooc_fw.convert.delimited import CSVReader
from ooc_fw.convert.readers import Wanted
from ooc_fw.convert.record import TableRecord
from ooc_fw.convert.verify import verify_file
from ooc_fw.data.formats import detect_format
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.sources import open_source
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError
from ooc_fw.testing.files import write_csr_group

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def convert_tables(inputs, output, **options):
    return convert(inputs, output, ConvertOptions(**options))


def read(path):
    """Dense rows, labels, positions and attributes of a converted file."""
    with h5py.File(path) as file:
        group = file["X"]
        if isinstance(group, h5py.Group):
            parts = (group[name][...] for name in ("data", "indices", "indptr"))
            X = CSRRows(*parts, int(group.attrs["shape"][1])).toarray()
        else:
            X = group[...]
        return X, file["y"][...], file["row"][...], dict(file.attrs)


def in_order(path):
    """Rows and labels in the order of the input."""
    X, y, row, _ = read(path)
    order = np.argsort(row)
    return X[order], y[order]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(300, 5)) * 64) / 64
    X[rng.random(X.shape) < 0.4] = 0
    X[0] = 1.5  # the last column is met, so that text has the same width
    return X.astype(np.float32), np.where(rng.random(300) < 0.4, 3.0, -7.0)


NAMES = ("a", "b", "c", "d", "e")


def write_csv(path, X, y, delimiter=","):
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
    writer.writerow([*NAMES[:2], "class", *NAMES[2:]])
    for row, label in zip(X.tolist(), y.tolist(), strict=True):
        writer.writerow([*row[:2], f"{label:g}", *row[2:]])
    text = stream.getvalue().encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def write_table(kind, folder, X, y):
    """Write the data in some format; the path and options to convert it."""
    label = {"label": "class"}
    if kind.startswith("csv"):
        path = folder / kind
        write_csv(path, X, y, ";" if kind == "csv-semicolon" else ",")
        return path, label
    columns = {name: X[:, j] for j, name in enumerate(NAMES)}
    path = folder / f"data.{kind.split('-')[0]}"
    if kind == "parquet":
        parquet.write_table(pa.table({**columns, "class": y.astype(int)}), path, row_group_size=90)
    elif kind == "npy":
        np.save(path, np.column_stack([X, y]))
        label = {"label": "-1"}
    elif kind == "npy-fortran":
        np.save(path, np.asfortranarray(X))
        np.save(folder / "y.npy", y)
        label = {"labels": folder / "y.npy"}
    elif kind == "npy-records":
        table = np.empty(len(X), dtype=[(name, "f4") for name in NAMES] + [("class", "i8")])
        for name, column in (columns | {"class": y}).items():
            table[name] = column
        np.save(path, table)
    elif kind == "npz":
        np.savez(path, X=X, y=y, other=np.zeros(3))
        label = {}
    elif kind == "npz-packed":
        np.savez_compressed(path, **columns, **{"class": y})
    elif kind == "npz-csr":
        indptr = np.concatenate([[0], np.cumsum((X != 0).sum(axis=1))])
        parts = {"data": X[X != 0], "indices": np.nonzero(X)[1], "indptr": indptr}
        np.savez(path, **parts, shape=X.shape, format=b"csr")
        np.save(folder / "y.npy", y)
        label = {"labels": folder / "y.npy"}
    else:
        with h5py.File(path, "w") as file:
            if kind == "hdf5-columns":
                for name, column in (columns | {"class": y}).items():
                    file.create_dataset(name, data=column, chunks=(64,), compression="gzip")
            elif kind == "hdf5-csr":
                write_csr_group(file.create_group("table"), X)
                file["target"] = y
                label = {"x_name": "table", "y_name": "target"}
            else:
                file["X"], file["y"] = X, y
                label = {}
    return path, label


KINDS = (
    "csv",
    "csv-semicolon",
    "csv.gz",
    "parquet",
    "npy",
    "npy-fortran",
    "npy-records",
    "npz",
    "npz-packed",
    "npz-csr",
    "hdf5",
    "hdf5-columns",
    "hdf5-csr",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [{"seed": 4}, {"scale": "standard", "shuffle": False}, {"scale": "maxabs", "dense": False}],
    ids=["plain", "standard", "maxabs"],
)
def test_table_equals_the_same_data_as_text(kind, options, data, write_text, tmp_path, monkeypatch):
    monkeypatch.setattr("ooc_fw.convert.readers.BLOCK_BYTES", 2000)
    convert_libsvm([write_text(*data)], tmp_path / "text.h5", **options)
    path, choice = write_table(kind, tmp_path, *data)
    report = convert_tables([path], tmp_path / "table.h5", **choice, **options)
    *arrays, attributes = read(tmp_path / "table.h5")
    *expected, of_text = read(tmp_path / "text.h5")
    for found, wanted in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    columns = attributes.pop("columns", None)
    if "csr" not in kind:
        names = NAMES if kind not in ("npy", "npy-fortran", "npz", "hdf5") else "01234"
        assert [name.decode() for name in columns] == list(names)
        assert TableRecord.read(attributes).columns == tuple(names)
        attributes.pop("table")
    for attribute in ("source", "header_crc32"):
        assert attributes.pop(attribute) != of_text.pop(attribute)
    assert attributes.keys() == of_text.keys()
    for name, value in of_text.items():
        np.testing.assert_array_equal(attributes[name], value)
    assert report.class_counts == {-7: (data[1] == -7).sum(), 3: (data[1] == 3).sum()}
    assert report.n_rows == 300
    assert report.text_bytes > 0


def test_several_files_in_one_and_columns_in_any_order(data, tmp_path):
    X, y = data
    write_csv(tmp_path / "1.csv", X[:100], y[:100])
    table = {"class": y[100:], **{name: X[100:, j] for j, name in reversed([*enumerate(NAMES)])}}
    lines = [
        ",".join(table),
        *(",".join(map(str, row)) for row in zip(*table.values(), strict=True)),
    ]
    (tmp_path / "2.csv").write_text("\n".join(lines))
    inputs = [tmp_path / "1.csv", tmp_path / "2.csv"]
    convert_tables(inputs, tmp_path / "out.h5", label="class")
    found, labels = in_order(tmp_path / "out.h5")
    np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(labels, y)


def convert_text(folder, text, name="data.csv", *, output="out.h5", like=None, arguments=None, **o):
    (folder / name).write_text(text)
    options = {"shuffle": False, "like": like, **(arguments or {})}
    return convert_tables([folder / name], folder / output, **o, **options)


TRAIN = """age,colour,size,buys
30,red,1.5,yes
40,blue,2.5,no
50,red,0,no
"""


def test_one_hot_and_like(tmp_path):
    convert_text(tmp_path, TRAIN, label="buys", one_hot=["colour"])
    X, y, _, attributes = read(tmp_path / "out.h5")
    assert X.tolist() == [[30, 0, 1, 1.5], [40, 1, 0, 2.5], [50, 0, 1, 0]]
    assert y.tolist() == [1, 0, 0]
    assert attributes["columns"].tolist() == [b"age", b"colour=blue", b"colour=red", b"size"]
    report = convert_text(
        tmp_path,
        "size,extra,buys,colour,age\n7,0,no,green,1\n8,0,yes,blue,2\n",
        "test.csv",
        output="test.h5",
        like=tmp_path / "out.h5",
    )
    X, y, _, attributes = read(tmp_path / "test.h5")
    assert X.tolist() == [[1, 0, 0, 7], [2, 1, 0, 8]]
    assert y.tolist() == [0, 1]
    assert attributes["columns"].tolist() == [b"age", b"colour=blue", b"colour=red", b"size"]
    unknown, extra = report.notes
    assert "column 'colour': 1 rows without a category, or with one that" in unknown
    assert extra.endswith("does not use are left out: extra")


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_new_rows_need_no_labels(tmp_path, kind):
    convert_text(tmp_path, TRAIN, label="buys", one_hot=["colour"], output="train.h5")
    path, out = tmp_path / f"new.{kind}", tmp_path / "out.h5"
    if kind == "csv":
        path.write_text("age,colour,size\n1,red,2\n")
    elif kind == "npz":
        np.savez(path, age=[1], colour=["red"], size=[2])
    else:
        parquet.write_table(pa.table({"age": [1], "colour": ["red"], "size": [2]}), path)
    report = convert_tables([path], out, like=tmp_path / "train.h5")
    assert report.class_counts == {}
    assert report.notes[0].startswith("there are no labels: the file is for prediction only")
    with open_source(out) as source:
        assert not source.has_labels
        assert source.read(0, 1).tolist() == [[1, 0, 1, 2]]
    assert verify_file(out).intact


def test_numbers_may_be_categories(tmp_path):
    table = pa.table({"zip": [7, 12, 7], "w": [1.5, 0.5, 1.5], "t": [True, False, True]})
    parquet.write_table(table, tmp_path / "t.parquet")
    options = {"label": "t", "one_hot": ["zip", "w"], "shuffle": False}
    convert_tables([tmp_path / "t.parquet"], tmp_path / "out.h5", **options)
    X, y, _, attributes = read(tmp_path / "out.h5")
    assert attributes["columns"].tolist() == [b"zip=12", b"zip=7", b"w=0.5", b"w=1.5"]
    assert X.tolist() == [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    assert y.tolist() == [1, 0, 1]


def test_impute_mean_and_like(tmp_path):
    text = "a,b,c,y\n1,,x,0\nNA,4,,1\n3,8,z,0\n"
    report = convert_text(tmp_path, text, label="y", one_hot=["c"], impute="mean")
    assert read(tmp_path / "out.h5")[0].tolist() == [[1, 6, 1, 0], [2, 4, 0, 0], [3, 8, 0, 1]]
    assert report.notes == (
        "2 missing values became the means of their columns",
        "column 'c': 1 rows without a category; its features are all 0 there",
    )
    convert_text(tmp_path, "a,b,c,y\n?,,x,0\n", "t.csv", output="t.h5", like=tmp_path / "out.h5")
    assert read(tmp_path / "t.h5")[0].tolist() == [[2, 6, 1, 0]]


def test_standard_input(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\ty\n1\t0\n2\t1\n")))
    convert_tables(["-"], tmp_path / "out.h5", label="y", shuffle=False)
    assert in_order(tmp_path / "out.h5")[0].tolist() == [[1], [2]]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a,y\n1,0\n2,1\n")))
    with pytest.raises(InputError, match="two passes over the table, and standard input or"):
        convert_tables(["-"], tmp_path / "out.h5", label="y", impute="mean")


@pytest.mark.parametrize(
    ("text", "options"), [("1 1:1\n2 1:2\n", {}), ("a,y\n1,1\n2,2\n", {"label": "y"})]
)
def test_pipes_are_read_from_their_first_byte(tmp_path, text, options):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(pipe.write_text, text)
        convert_tables([pipe], tmp_path / "out.h5", **options, shuffle=False)
        writing.result()
    X, y = in_order(tmp_path / "out.h5")
    assert (X.tolist(), y.tolist()) == ([[1], [2]], [1, 2])


def test_columns_by_number_without_a_header(tmp_path):
    text = "5,x,1\n6,y,2\n"
    convert_text(tmp_path, text, label="1", header=False)
    X, _, _, attributes = read(tmp_path / "out.h5")
    assert X.tolist() == [[5, 1], [6, 2]]
    assert attributes["columns"].tolist() == [b"0", b"2"]
    convert_text(tmp_path, text, label="-2", drop=["0"], header=False)
    assert read(tmp_path / "out.h5")[0].tolist() == [[1], [2]]


def test_blanks_quotes_empty_lines_and_carriage_returns(tmp_path):
    text = '\r\n"a, b", c , y\r\n\r\n 1.5 , "2" ,cat\r\n3,+4, dog\r\n'
    (tmp_path / "data.csv").write_bytes(b"\xef\xbb\xbf" + text.replace('"2"', "2").encode())
    convert_tables([tmp_path / "data.csv"], tmp_path / "out.h5", label="y", shuffle=False)
    X, _, _, attributes = read(tmp_path / "out.h5")
    assert X.tolist() == [[1.5, 2], [3, 4]]
    assert attributes["columns"].tolist() == [b"a, b", b"c"]
    with open_source(tmp_path / "out.h5") as source:
        assert source.labels(0, 2).tolist() == ["cat", "dog"]


# --- labels --------------------------------------------------------------------------------------


def test_labels_that_are_words(tmp_path):
    text = 'a,y\n1,münchen\n2,"b, c"\n3,a\n4,münchen\n'
    report = convert_text(tmp_path, text, label="y")
    assert report.class_counts == {"a": 1, "b, c": 1, "münchen": 2}
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["y"].dtype == np.float64
        assert file["y"][...].tolist() == [2, 1, 0, 2]
        assert file["y"].attrs["label_names"].dtype.kind == "S"
        names = [name.decode() for name in file["y"].attrs["label_names"]]
        assert names == ["a", "b, c", "münchen"]
        assert file.attrs["class_names"].tolist() == [0, 1, 2]
    with open_source(tmp_path / "out.h5") as source:
        labels = source.labels(1, 4)
        assert labels.dtype.kind == "U"
        assert labels.tolist() == ["b, c", "a", "münchen"]


@pytest.mark.parametrize("labels", ["1,1.0,+2", "0,1,1e0", "-1,+1,-1"])
def test_labels_that_are_numbers_stay_numbers(tmp_path, labels):
    words = labels.split(",")
    text = "a,y\n" + "".join(f"1,{word}\n" for word in words)
    report = convert_text(tmp_path, text, label="y")
    assert in_order(tmp_path / "out.h5")[1].tolist() == [float(word) for word in words]
    assert len(report.class_counts) == 2
    with open_source(tmp_path / "out.h5") as source:
        assert source.labels(0, 3).dtype == np.float64


def test_like_keeps_the_codes_of_the_training_file(tmp_path):
    convert_text(tmp_path, "a,y\n1,cat\n2,dog\n", label="y", output="train.h5")
    report = convert_text(tmp_path, "a,y\n1,dog\n", label="y", like=tmp_path / "train.h5")
    assert in_order(tmp_path / "out.h5")[1].tolist() == [1]
    assert report.unseen_labels == ()
    assert report.class_counts == {"dog": 1}
    report = convert_text(tmp_path, "a,y\n1,dog\n2,7\n", label="y", like=tmp_path / "train.h5")
    assert report.unseen_labels == ("7",)
    with open_source(tmp_path / "out.h5") as source:
        assert source.labels(0, 2).tolist() == ["dog", "7"]
    (tmp_path / "t.txt").write_text("1 1:1\n")
    with pytest.raises(InputError, match=r"labels of .*train\.h5 are words \(cat, dog\)"):
        convert_libsvm([tmp_path / "t.txt"], tmp_path / "t.h5", like=tmp_path / "train.h5")


def test_text_labels_of_arrays(tmp_path):
    for name, labels in (
        ("a.npz", np.array(["no", "yes"])),
        ("b.npz", np.array([b"no", b"yes"])),
        ("c.hdf5", ["no", "yes"]),
    ):
        path = tmp_path / name
        if name.endswith("npz"):
            np.savez(path, X=np.eye(2), y=labels)
        else:
            with h5py.File(path, "w") as file:
                file["X"], file["y"] = np.eye(2), labels
        report = convert_tables(
            [path],
            tmp_path / "out.h5",
        )
        assert report.class_counts == {"no": 1, "yes": 1}


def test_label_names_are_protected_by_the_header_checksum(tmp_path):
    convert_text(tmp_path, "a,y\n1,cat\n2,dog\n", label="y")
    for change in ("label_names", "columns", "table"):
        with h5py.File(tmp_path / "out.h5", "r+") as file:
            attributes = file["y"].attrs if change == "label_names" else file.attrs
            kept = attributes[change]
            if change == "table":
                attributes[change] = np.bytes_(kept.replace(b'"y"', b'"z"'))
            else:
                attributes[change] = np.array([b"x" + text[1:] for text in kept])
        with pytest.raises(InputError, match="its header"):
            open_source(tmp_path / "out.h5")
        with h5py.File(tmp_path / "out.h5", "r+") as file:
            (file["y"].attrs if change == "label_names" else file.attrs)[change] = kept
        open_source(tmp_path / "out.h5").close()


# --- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TRAIN, {}, r"data\.csv is a table: name the column .* --label \(it has age, colour, size"),
        (TRAIN, {"label": "z"}, "--label: .* has no column 'z'; it has age, colour"),
        (TRAIN, {"label": "4"}, "--label: .* has no column '4'"),
        (TRAIN, {"label": "buys", "drop": ["z"]}, "--drop: .* has no column 'z'"),
        (TRAIN, {"label": "buys", "one_hot": ["buys"]}, "named by --one-hot and by --label"),
        (
            TRAIN,
            {"label": "buys"},
            r"data\.csv, line 2: column 'colour' does not hold a number but 'red'; give --one-hot "
            "colour for categories, or leave out with --drop colour",
        ),
        (
            TRAIN,
            {"label": "age"},
            r"line 2: column 'colour' .* 'red' \(nor do 'buys'\); give --one-hot colour,buys for",
        ),
        (TRAIN, {"label": "buys", "drop": ["age", "colour", "size"]}, "has no column left"),
        ("a,y\n1,0\n\n,1\n", {"label": "y"}, r"line 4: .* column 'a' is missing; give --impute"),
        ("a,y\n1,0\n1,\n", {"label": "y"}, r"line 3: the label is missing"),
        ("a,y\ninf,0\n", {"label": "y"}, "line 2: .* column 'a' is not finite"),
        ("a,y\n1e39,0\n", {"label": "y"}, "line 2: .* column 'a' is beyond float32"),
        ("a,y\n1,0\n1,0,2\n", {"label": "y"}, "line 3: it has 3 cells for 2 columns"),
        ('a,y\n1,0\n1,"0\n3"\n', {"label": "y"}, "line 3: .*a quoted cell must end on its line"),
        ("a,y\n", {"label": "y"}, r"data\.csv holds no rows"),
        ("", {"label": "y"}, r"data\.csv is empty"),
        ("7,2\n3,4\n", {"label": "1"}, "holds numbers, not names of columns; give --no-header"),
        ("a,a,y\n1,2,0\n", {"label": "y"}, "has two columns 'a'"),
        ("a,y\n1,0\n", {"label": "y", "delimiter": "ab"}, "must be one character, not 'ab'"),
        (
            "a,y\n" + "".join(f"w{i},0\n" for i in range(5000)),
            {"label": "y", "one_hot": ["a"]},
            "column 'a' of .* has more than 4096 different values, .* --drop a",
        ),
        (
            "a,y\n" + "".join(f"1,w{i}\n" for i in range(5000)),
            {"label": "y"},
            "different labels above 4096",
        ),
        ("a,c,y\n,x,0\n", {"label": "y", "impute": "mean", "drop": ["c"]}, "holds no number at"),
        ("a,c,y\n1,,0\n", {"label": "y", "one_hot": ["c"]}, "column 'c' is missing"),
    ],
)
def test_wrong_tables(tmp_path, text, options, message):
    with pytest.raises(InputError, match=message):
        convert_text(tmp_path, text, **options)
    assert not (tmp_path / "out.h5").exists()


def test_log1p_names_the_column(tmp_path):
    text = "a,b,y\n1,1,0\n1,-1,0\n"
    with pytest.raises(InputError, match="line 3: the value in column 'b' has no log1p"):
        convert_text(tmp_path, text, label="y", arguments={"log1p": True})


def test_bytes_that_are_not_utf8(tmp_path):
    (tmp_path / "data.csv").write_bytes(b"a,y\n1,caf\xe9\n")
    with pytest.raises(InputError, match="line 2: it is not UTF-8 text; convert it"):
        convert_tables([tmp_path / "data.csv"], tmp_path / "out.h5", label="y")


def test_skipped_rows_are_counted(tmp_path):
    text = "a,b,y\n1,2,0\nx,2,0\n,3,0\n4,5,\n6,7,1\n8,9\n"
    report = convert_text(tmp_path, text, label="y", arguments={"on_error": "skip"})
    assert (report.n_rows, report.n_skipped) == (2, 4)
    assert [message.split(": ")[0].rsplit(", ")[-1] for message in report.skipped] == [
        "line 3",
        "line 7",
        "line 4",
    ]
    assert in_order(tmp_path / "out.h5")[0].tolist() == [[1, 2], [6, 7]]


def test_like_with_other_columns_or_options(tmp_path):
    convert_text(tmp_path, TRAIN, label="buys", one_hot=["colour"], output="train.h5")
    like = tmp_path / "train.h5"
    with pytest.raises(InputError, match=r"test\.csv lacks columns 'colour', 'size' that"):
        convert_text(tmp_path, "age,buys\n1,no\n", "test.csv", like=like)
    with pytest.raises(InputError, match=r"come from .*train\.h5 here; leave out --one-hot"):
        convert_text(tmp_path, TRAIN, "test.csv", like=like, one_hot=["colour"])
    with pytest.raises(InputError, match=r"is missing; convert .*train\.h5 with --impute mean"):
        convert_text(tmp_path, TRAIN.replace("30", ""), "test.csv", like=like)


def test_like_a_file_made_of_text_goes_by_position(tmp_path):
    (tmp_path / "train.txt").write_text("1 1:1 2:2\n2 1:3\n")
    like = tmp_path / "train.h5"
    convert_libsvm([tmp_path / "train.txt"], like)
    convert_text(tmp_path, "y,a,b,c\n1,5,6,7\n", like=like, label="y", drop=["a"])
    assert read(tmp_path / "out.h5")[0].tolist() == [[6, 7]]
    convert_text(tmp_path, "y,a\n1,5\n", like=like, label="y")
    assert read(tmp_path / "out.h5")[0].tolist() == [[5, 0]]


def test_options_that_do_not_fit_the_input(tmp_path):
    (tmp_path / "t.txt").write_text("1 1:1 2:2\n")
    out = tmp_path / "out.h5"
    text, table = tmp_path / "t.txt", tmp_path / "t.csv"
    table.write_text("a,y\n1,0\n")
    with pytest.raises(InputError, match="--labels, --no-header and --delimiter are for tables"):
        convert_tables([text], out, label="y", format="libsvm")
    with pytest.raises(InputError, match="--zero-based and --n-features are for LIBSVM text"):
        convert_tables([table], out, label="y", zero_based=True)
    with pytest.raises(InputError, match=r"several formats \(.*t\.txt: libsvm, .*t\.csv: csv\)"):
        convert_tables([text, table], out)
    with pytest.raises(InputError, match="format must be one of auto, libsvm, csv"):
        convert_tables([table], out, format="xml")
    with pytest.raises(InputError, match="impute must be one of mean"):
        ConvertOptions(impute="median")
    with pytest.raises(InputError, match="can be read only once"):
        convert_tables(["-", "-"], out, label="y")
    np.save(tmp_path / "x.npy", np.eye(2))
    with pytest.raises(InputError, match=r"of its labels with --label or --labels FILE\.npy"):
        convert_tables(
            [tmp_path / "x.npy"],
            out,
        )
    with pytest.raises(InputError, match=r"missing\.npy does not exist"):
        convert_tables([tmp_path / "x.npy"], out, labels=tmp_path / "missing.npy")
    with pytest.raises(InputError, match=r"missing\.csv does not exist"):
        convert_tables([tmp_path / "missing.csv"], out, label="y")


def test_arrays_that_do_not_fit(tmp_path):
    out = tmp_path / "out.h5"

    def refuse(name, message, **options):
        with pytest.raises(InputError, match=message):
            convert_tables([tmp_path / name], out, **options)

    np.savez(tmp_path / "a.npz", X=np.eye(3), y=np.zeros(2))
    refuse("a.npz", r"differ in their number of rows \(X has 3, y has 2\)")
    np.savez(tmp_path / "b.npz", X=np.asfortranarray(np.ones((3, 2))), y=np.zeros(3))
    refuse("b.npz", "stored column by column")
    np.savez(tmp_path / "c.npz", X=np.zeros((2, 2, 2)), y=np.zeros(2))
    refuse("c.npz", "a table of two dimensions, not of 3")
    np.savez(tmp_path / "d.npz", X=np.array([None, 1]), y=np.zeros(2))
    refuse("d.npz", "holds Python objects")
    np.savez(tmp_path / "e.npz", a=np.array(["x", "y"]), t=np.zeros(2, "M8[s]"), y=np.zeros(2))
    refuse("e.npz", "column 'a' of .*: words, not numbers; give --one-hot a", label="y")
    refuse("e.npz", "column 't' of .* is of type datetime64", label="y", one_hot=["a"])
    (tmp_path / "f.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:200])
    refuse("f.npz", "cannot be read as .npz")
    with h5py.File(tmp_path / "g.hdf5", "w") as file:
        file.create_group("X")
    refuse("g.hdf5", "'X' is a group, but no CSR matrix")
    np.savez(tmp_path / "h.npz", X=np.array([[1, np.nan]]), y=np.zeros(1))
    refuse("h.npz", r"h\.npz, row 0: the value in column '1' is missing")
    parts = {"data": np.array([1, np.inf]), "indices": np.array([0, 4]), "indptr": [0, 1, 2]}
    np.savez(tmp_path / "i.npz", **parts, shape=(2, 5), format=b"csr")
    np.save(tmp_path / "y.npy", np.zeros(2))
    refuse("i.npz", r"row 1: the value in column '4' is not finite", labels=tmp_path / "y.npy")
    refuse("i.npz", "holds sparse rows", labels=tmp_path / "y.npy", drop=["1"])
    (tmp_path / "j.parquet").write_bytes(b"PAR1 and no more")
    refuse("j.parquet", "cannot be read as Parquet", label="y")
    convert_text(tmp_path, "a,y\n1,0\n", label="y", output="k.h5")
    refuse("k.h5", "is a converted file already: use it as it is")


def test_sparse_arrays_with_stored_zeros_and_log1p(tmp_path):
    parts = {"data": np.array([1, 0, 3], np.float32), "indices": np.array([0, 1, 2], np.int32)}
    np.savez(tmp_path / "x.npz", **parts, indptr=[0, 2, 3], shape=(2, 4), format=b"csr")
    np.save(tmp_path / "y.npy", np.arange(2))
    options = {"log1p": True, "shuffle": False}
    options["labels"] = tmp_path / "y.npy"
    report = convert_tables([tmp_path / "x.npz"], tmp_path / "out.h5", **options)
    assert report.density == 2 / 8
    expected = np.log1p([[1.0, 0, 0, 0], [0, 0, 3, 0]]).astype(np.float32)
    np.testing.assert_array_equal(read(tmp_path / "out.h5")[0], expected)


def test_parquet_with_nulls_words_and_dates(tmp_path):
    path, out = tmp_path / "t.parquet", tmp_path / "out.h5"
    columns = {"a": [1.0, None], "c": pa.array(["x", "y"]).dictionary_encode(), "y": [0, 1]}
    parquet.write_table(pa.table(columns), path)
    with pytest.raises(InputError, match=r"t\.parquet, row 1: the value in column 'a' is missing"):
        convert_tables([path], out, label="y", one_hot=["c"])
    report = convert_tables([path], out, label="c", impute="mean", drop=["y"], shuffle=False)
    assert report.class_counts == {"x": 1, "y": 1}
    assert read(out)[0].tolist() == [[1], [1]]
    parquet.write_table(pa.table({"t": pa.array([1, 2], pa.timestamp("s")), "y": [0, 1]}), path)
    with pytest.raises(InputError, match=r"column 't' .* is of type timestamp.*--drop t"):
        convert_tables([path], out, label="y")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 1:2 3:4\n", "libsvm"),
        ("a,b\n1,2\n", "csv"),
        ("1;2\n", "csv"),
        ("# a, b\n1 1:2\n", "libsvm"),
        ("1,2 1:2\n", "libsvm"),
        ("1\n2\n", "libsvm"),
    ],
)
def test_formats_are_told_apart(tmp_path, text, expected):
    path = tmp_path / "data"
    path.write_text(text)
    assert detect_format(str(path)) == expected
    assert detect_format(str(path), is_table=True) == "csv"


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"CSV needs pyarrow: pip install 'ooc-fw\[tables\]'"):
        convert_text(tmp_path, TRAIN, label="buys")


cells = st.sampled_from(["1", "-2.5", "", " 3 ", "NA", "x", '"4"', "1e3", '"a""b"', "+7", "?"])


@given(rows=st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=6))
def test_parsing_line_by_line_gives_the_same(tmp_path_factory, rows):
    """The way by which errors are found is the naive twin of the fast one."""
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    path.write_text("a,b,y\n" + "".join(",".join(row) + "\n" for row in rows))
    wanted = Wanted("y", ("a",), ("b",))
    with CSVReader(str(path), ConvertOptions()) as reader:
        (block,) = reader.blocks()
        try:
            slow = reader.parse_by_line(block, wanted)
        except InputError as error:
            with pytest.raises(InputError, match=f"^{re.escape(str(error))}$"):
                reader.parse(block, wanted)
            return
        fast = reader.parse(block, wanted)
    np.testing.assert_array_equal(fast.numbers, slow.numbers)
    for one, other in ((fast.labels, slow.labels), (fast.words[0], slow.words[0])):
        found = [one.values[code] if code >= 0 else None for code in one.codes]
        assert found == [other.values[code] if code >= 0 else None for code in other.codes]
    assert [fast.place(row) for row in range(len(rows))] == [
        slow.place(row) for row in range(len(rows))
    ]


def test_record_survives_storage():
    record = TableRecord("ü", ("a", "b=c"), (None, ("x", "")), (0.1, 0.0))
    attributes: dict[str, object] = {}
    record.write(attributes)
    assert TableRecord.read(attributes) == record
    assert record.features == ["a", "b=c=x", "b=c="]
    assert json.loads(attributes["table"])["label"] == "ü"
    assert TableRecord.read({}) is None


# --- what strangers write ------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["__index_level_0__"], ["city"], ["city", "year"]])
def test_the_index_of_pandas_is_no_feature(tmp_path, names):
    columns = {"a": [1.0, 2.0], "y": [0, 1], **{name: [5, 6] for name in names}}
    table = pa.table(columns).replace_schema_metadata(
        {"pandas": json.dumps({"index_columns": names, "columns": []})}
    )
    path, out = tmp_path / "data.parquet", tmp_path / "out.h5"
    parquet.write_table(table, path)
    report = convert_tables([path], out, label="-1", shuffle=False)
    assert report.notes == (
        f"the index of the rows is no feature and left out: {', '.join(names)}",
    )
    X, y, _, attributes = read(out)
    assert (X.tolist(), y.tolist()) == ([[1], [2]], [0, 1])
    assert attributes["columns"].tolist() == [b"a"]
    again = convert_tables([path], tmp_path / "like.h5", like=out)
    assert again.notes == report.notes
    # An index may hold the labels.
    report = convert_tables([path], out, label=names[0], shuffle=False)
    assert list(report.class_counts) == [5, 6]


def test_the_range_index_of_pandas_has_no_column(tmp_path):
    pandas = {"index_columns": [{"kind": "range", "start": 0, "stop": 2, "step": 1}]}
    table = pa.table({"a": [1.0, 2.0], "y": [0, 1]})
    table = table.replace_schema_metadata({"pandas": json.dumps(pandas)})
    parquet.write_table(table, tmp_path / "data.parquet")
    report = convert_tables([tmp_path / "data.parquet"], tmp_path / "o.h5", label="y")
    assert (report.n_features, report.notes) == (1, ())


@pytest.mark.parametrize(
    "line",
    ["5.1,3.5,setosa", "39, State-gov, 77516", "1,red", "0.5,1.5,2.5", "2010,2011,class", "?,7,x"],
)
def test_a_first_line_with_numbers_is_no_header(tmp_path, line):
    row = ",".join(["1"] * (line.count(",") + 1))
    text = f"{line}\n{row}\n"
    with pytest.raises(InputError, match=r"holds numbers, .* --no-header .*, or --header if"):
        convert_text(tmp_path, text, label="0")
    assert convert_text(tmp_path, text, label="0", header=True).n_rows == 1


@pytest.mark.parametrize("line", ["0,1,2,label", ",0,1,2", "1,2", "x1,x2", "0,1,2"])
def test_names_that_tools_give_are_a_header(tmp_path, line):
    row = ",".join(["1"] * (line.count(",") + 1))
    assert convert_text(tmp_path, f"{line}\n{row}\n", label="-1").n_rows == 1


def test_like_remembers_that_there_is_no_header(tmp_path):
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("5.1,3.5,a\n4.9,3.0,b\n")
    test.write_text("6.0,2.0,a\n7.0,1.0,b\n8.0,0.5,a\n")
    convert_tables([train], tmp_path / "t.h5", label="-1", header=False)
    report = convert_tables([test], tmp_path / "o.h5", like=tmp_path / "t.h5")
    assert report.n_rows == 3
    assert in_order(tmp_path / "o.h5")[0].tolist() == [[6, 2], [7, 1], [8, 0.5]]


def write_annotated(path, codes, *, sparse):
    """A file as AnnData writes it, with categories as labels."""
    X = np.arange(1, 2 * len(codes) + 1, dtype=np.float64).reshape(-1, 2)
    with h5py.File(path, "w") as file:
        if sparse:
            write_csr_group(file.create_group("X"), X)
        else:
            file["X"] = X
        group = file.create_group("obs/cell_type")
        group["codes"] = np.array(codes, dtype=np.int8)
        group["categories"] = np.array(["T cell", "B cell é"], dtype=object)
        file["obs/batch"] = np.arange(len(codes))
    return path


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("option", [{"y_name": "obs/cell_type"}, {"label": "cell_type"}])
def test_categories_of_annotated_tables_are_labels(tmp_path, sparse, option):
    path, out = write_annotated(tmp_path / "a.h5ad", [0, 1, 0], sparse=sparse), tmp_path / "o.h5"
    report = convert_tables([path], out, **option)
    assert report.class_counts == {"B cell é": 1, "T cell": 2}
    assert report.n_features == 2


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_without_a_category(tmp_path, sparse):
    path = write_annotated(tmp_path / "a.h5ad", [0, -1, 1, -1], sparse=sparse)
    with pytest.raises(InputError, match="2 of 4 rows have no category in '/obs/cell_type'; leave"):
        convert_tables([path], tmp_path / "o.h5", y_name="obs/cell_type")
    options = {"y_name": "obs/cell_type", "missing_labels": "drop"}
    report = convert_tables([path], tmp_path / "o.h5", **options)
    assert report.n_rows == 2
    assert in_order(tmp_path / "o.h5")[0].tolist() == [[1, 2], [5, 6]]


def test_what_else_annotated_tables_have_is_listed(tmp_path):
    path = write_annotated(tmp_path / "a.h5ad", [0, 1], sparse=True)
    with pytest.raises(InputError, match="no column 'z'; it has obs/batch, obs/cell_type"):
        convert_tables([path], tmp_path / "o.h5", label="z")
    with h5py.File(path, "a") as file:
        file["obs/cell_type/codes"][0] = 7
    with pytest.raises(InputError, match="codes that are none of its 2 categories"):
        convert_tables([path], tmp_path / "o.h5", label="cell_type")


@pytest.mark.parametrize("marker", ["NA", "nan", "NaN", "", "null", "None", "?", "N/A"])
def test_missing_labels_are_refused_or_dropped(tmp_path, marker):
    text = f"a,y\n1,0\n2,{marker}\n3,1\n"
    with pytest.raises(InputError, match=r"line 3: the label is missing.*--missing-labels drop"):
        convert_text(tmp_path, text, label="y")
    report = convert_text(tmp_path, text, label="y", missing_labels="drop")
    assert report.class_counts == {0: 1, 1: 1}
    assert report.notes == ("1 rows without a label are left out",)


def test_plus_and_minus_are_labels(tmp_path):
    report = convert_text(tmp_path, "a,y\n1,+\n-,-\n3,-\n", label="y", impute="mean")
    assert report.class_counts == {"+": 1, "-": 2}
    assert "1 missing values became" in report.notes[0]


def test_a_dash_is_a_category_and_a_missing_number(tmp_path):
    report = convert_text(tmp_path, "a,y\n-,0\nb,1\n", label="y", one_hot=["a"])
    assert report.n_features == 2
    for marker in ("-", "?", "None"):
        with pytest.raises(InputError, match="line 3: the value in column 'a' is missing"):
            convert_text(tmp_path, f"a,y\n1,0\n{marker},1\n", label="y")


LARGE = 2**53


def test_large_whole_labels_of_csv_stay_apart(tmp_path):
    report = convert_text(tmp_path, f"a,y\n1,{LARGE}\n2,{LARGE + 1}\n", label="y")
    assert report.class_counts == {f"{LARGE}": 1, f"{LARGE + 1}": 1}


@pytest.mark.parametrize("kind", ["parquet", "npy", "npy-unsigned", "npz", "decimal"])
def test_large_whole_labels_of_other_tables_are_refused(tmp_path, kind):
    y = np.array([LARGE, LARGE + 1], dtype=np.uint64 if "unsigned" in kind else np.int64)
    path, options = tmp_path / f"data.{kind.split('-')[0]}", {"label": "y"}
    if kind in ("parquet", "decimal"):
        labels = pa.array(y)
        if kind == "decimal":
            labels = labels.cast(pa.decimal128(20, 0))
        parquet.write_table(pa.table({"a": [1.0, 2.0], "y": labels}), path)
    elif kind == "npz":
        np.savez(path, X=np.eye(2), y=y)
        options = {}
    else:
        np.save(path, np.eye(2))
        np.save(tmp_path / "y.npy", y)
        options = {"labels": tmp_path / "y.npy"}
        path = path.rename(tmp_path / "data.npy")
    with pytest.raises(InputError, match=rf"row 1: label {LARGE + 1} is a whole number that float"):
        convert_tables([path], tmp_path / "o.h5", **options)


@pytest.mark.parametrize("kind", ["npy", "hdf5-fixed", "hdf5-variable", "parquet"])
def test_labels_that_are_not_utf8_are_refused(tmp_path, kind):
    path, options = tmp_path / f"data.{kind}", {}
    words = np.array([b"caf\xc3\xa9", b"caf\xe9"])
    if kind == "npy":
        np.save(tmp_path / "y.npy", words)
        np.save(tmp_path / "data.npy", np.eye(2))
        path, options = tmp_path / "data.npy", {"labels": tmp_path / "y.npy"}
    elif kind == "parquet":
        parquet.write_table(pa.table({"a": [1.0, 2.0], "y": pa.array(words.tolist())}), path)
        options = {"label": "y"}
    else:
        with h5py.File(path, "w") as file:
            file["X"] = np.eye(2)
            text = h5py.string_dtype("utf-8", 8 if kind == "hdf5-fixed" else None)
            file.create_dataset("y", data=words.tolist(), dtype=text)
    with pytest.raises(InputError, match=r"row 1: b'caf\\xe9' is not UTF-8 text"):
        convert_tables([path], tmp_path / "o.h5", **options)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a,b,y\r1,2,x\r3,4,z\r", "end in carriage returns alone; convert it by tr"),
        ("a,b,y\n1,2,x\n".encode("utf-16"), "is UTF-16 text; convert it by iconv"),
        (b'a,y\n"1,234",x\n', "'1,234'; write numbers with decimal points and without"),
    ],
)
def test_text_that_other_programs_write(tmp_path, data, message):
    (tmp_path / "data.csv").write_bytes(data)
    with pytest.raises(InputError, match=message):
        convert_tables([tmp_path / "data.csv"], tmp_path / "o.h5", label="y")


def test_unnamed_first_column_of_csv_names_the_rows(tmp_path):
    report = convert_text(tmp_path, ",a,y\n0,1.5,x\n1,2.5,z\n", label="-1")
    assert (report.n_features, report.class_counts) == (1, {"x": 1, "z": 1})
    assert report.notes == ("the index of the rows is no feature and left out: 0",)
