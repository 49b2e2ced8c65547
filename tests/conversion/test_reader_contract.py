"""The same rows become the same file, whatever format they are in, and bad ones are named."""

import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import anndata
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import dataset, feather
from scipy.sparse import csr_matrix

from ooc_fw import convert
from ooc_fw.conversion import readers
from ooc_fw.system.errors import InputError
from tests.conftest import libsvm_lines
from tests.conversion.converted import Y, read, write_npy, write_table
from tests.support.files import write_csr_group
from tests.support.methods import grid

# -- numbers: rows X with labels y, and every column a feature -------------------------------------

NAMES = ["a", "b", "c", "d", "e"]


def write_libsvm(path, X, y):
    path.write_text(libsvm_lines(X, y))


def write_named(path, X, y):
    """A table whose labels stand between other columns."""
    names = ["a", "b", "y", "c", "d", "e"]
    write_table(path, dict(zip(names, [*X.T[:2], y, *X.T[2:]], strict=True)))


def write_parts(path, X, y):
    path.mkdir()
    write_named(path / "0.parquet", X[:60], y[:60])
    write_named(path / "1.parquet", X[60:], y[60:])


def packed(compress, write):
    def write_packed(path, X, y):
        write(path.with_suffix(""), X, y)
        path.write_bytes(compress(path.with_suffix("").read_bytes()))

    return write_packed


def write_npy_pair(path, X, y):
    write_npy(path.with_name("y.npy"), y)
    write_npy(path, X)


def write_cells(path, X, y):
    obs = pd.DataFrame({"kind": y}, index=[f"cell {k}" for k in range(len(y))])
    var = pd.DataFrame(index=NAMES)
    anndata.AnnData(csr_matrix(X), obs=obs, var=var).write_h5ad(path)


def write_csr(path, X, y):
    with h5py.File(path, "w") as file:
        write_csr_group(file.create_group("rows"), X)
        file["target"] = y


class Format(NamedTuple):
    """A way to store rows and labels."""

    name: str  # of the file
    write: Callable[..., Any]
    options: dict[str, Any]
    place: str  # what a message calls the row 70
    is_sealed: bool = True  # whether a file that lacks its end can be told from a whole one


FORMATS = {
    "text": Format("t.txt", write_libsvm, {}, "line 71", False),
    "text gz": Format("t.txt.gz", packed(gzip.compress, write_libsvm), {}, "line 71"),
    "text bz2": Format("t.txt.bz2", packed(bz2.compress, write_libsvm), {}, "line 71"),
    "text xz": Format("t.txt.xz", packed(lzma.compress, write_libsvm), {}, "line 71"),
    "csv": Format("t.csv", write_named, Y, "line 72", False),
    "csv gz": Format("t.csv.gz", packed(gzip.compress, write_named), Y, "line 72"),
    "parquet": Format("t.parquet", write_named, Y, "row 70"),
    "arrow": Format("t.arrow", write_named, Y, "row 70"),
    "parts": Format("t", write_parts, Y, "row 10", False),
    "npy": Format("t.npy", write_npy_pair, {"labels": "y.npy"}, "row 70"),
    "hdf5": Format("t.h5", write_csr, {"x_name": "rows", "label": "target"}, "row 70"),
    "AnnData": Format("t.h5ad", write_cells, {"label": "kind"}, "row 70"),
}
WAYS = {
    "shuffled": {"seed": 4},
    "standard": {"scale": "standard", "shuffle": False},
    "sparse": {"scale": "maxabs", "dense": False},
    "norms": {"scale": "maxabs", "normalize": True},
}


@pytest.fixture(autouse=True)
def small_blocks(tmp_path, monkeypatch):
    """Text is read in parts of 40 bytes, which may be shorter than a row."""
    monkeypatch.setattr(readers, "BLOCK_BYTES", 40)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=FORMATS)
def form(request):
    return FORMATS[request.param]


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(100, 5)) * 64) / 64
    X[rng.random(X.shape) < 0.4] = 0
    X[0] = 1.5  # text does not say how many columns there are: the first row has them all
    return X, np.where(rng.random(100) < 0.4, 3.0, -7.0)


@pytest.mark.parametrize("way", grid([*WAYS], 1))
def test_it_becomes_the_file_that_text_becomes(form, way, data, tmp_path):
    found = []
    for each in (FORMATS["text"], form):
        each.write(tmp_path / each.name, *data)
        report = convert([each.name], "o.h5", **each.options, **WAYS[way])
        found.append(read("o.h5"))
    *wanted, of_text, scaling_of_text = found[0]
    *arrays, attributes, scaling = found[1]
    for array, other in zip(arrays, wanted, strict=True):
        np.testing.assert_array_equal(array, other)
    assert scaling.same_as(scaling_of_text)
    for name in of_text.keys() - {"source"}:
        np.testing.assert_array_equal(attributes[name], of_text[name])
    if form.options == Y or "kind" in form.options.values():
        assert found[1].columns == NAMES
    assert report.class_counts == {-7: (data[1] == -7).sum(), 3: (data[1] == 3).sum()}
    assert (report.n_rows, report.n_features, report.text_bytes > 0) == (100, 5, True)


def test_a_cell_that_is_not_finite_is_named(form, data, tmp_path):
    data[0][70, 3] = np.inf
    form.write(tmp_path / form.name, *data)
    with pytest.raises(InputError, match=rf"t[./].*, {form.place}: .*('4:inf'|'d' is|'3' is)"):
        convert([form.name], "o.h5", **form.options)
    assert not os.path.exists("o.h5")


@pytest.mark.parametrize("share", grid([0.6, 0.1, 0.97], 1))
def test_a_file_that_lacks_its_end_is_refused(form, share, data, tmp_path):
    form.write(tmp_path / form.name, *data)
    path = tmp_path / form.name
    if form.name == "t":
        path = path / "1.parquet"
    elif not form.is_sealed:
        return
    os.truncate(path, int(share * path.stat().st_size))
    with pytest.raises(InputError, match=form.name):
        convert([form.name], "o.h5", **form.options)
    assert not os.path.exists("o.h5")


def test_later_rows_take_the_scaling_of_the_training_file(form, data, tmp_path):
    form.write(tmp_path / form.name, *data)
    convert([form.name], "train.h5", **form.options, scale="standard")
    convert([form.name], "o.h5", **form.options, like="train.h5")
    train, later = read("train.h5"), read("o.h5")
    np.testing.assert_array_equal(later.X[train.row], train.X)


# -- tables: words, dates, gaps and labels ---------------------------------------------------------

N_ROWS = 300
KOELN = 'Köln,\r\n"am" Rhein'


@pytest.fixture(scope="module")
def table():
    """Numbers with gaps, words with gaps for one-hot and for target encoding, dates, labels."""
    rng = np.random.default_rng(0)
    city = rng.choice([KOELN, "Oslo", "Rom", None], N_ROWS)
    frame = pd.DataFrame({"age": rng.integers(18, 90, N_ROWS), "city": city}).astype({"age": float})
    frame.loc[::9, "age"] = np.nan
    frame["day"] = rng.integers(1_600_000_000, 1_700_000_000, N_ROWS).astype("M8[s]")
    frame["income"] = rng.gamma(2, 900, N_ROWS)
    frame["job"] = rng.choice([*map(str, range(9)), None], N_ROWS)
    frame["kind"] = rng.choice(["good", "bad"], N_ROWS)
    return frame


def as_csv(frame, **options):
    return frame.to_csv(index=False, date_format="%Y-%m-%dT%H:%M:%S", **options).encode()


def as_folder(*keys):
    def write(path, frame):
        how = {"partitioning": [*keys], "partitioning_flavor": "hive"} if keys else {}
        dataset.write_dataset(pa.table(frame), path, format="parquet", **how)
        (path / "_SUCCESS").write_bytes(b"")

    return write


TABLES = {
    "t.csv": lambda path, frame: path.write_bytes(as_csv(frame)),
    "t.tsv": lambda path, frame: path.write_bytes(
        b"\xef\xbb\xbf" + as_csv(frame, sep="\t", lineterminator="\r\n", quoting=1)
    ),
    "t.parquet": lambda path, frame: frame.to_parquet(path),
    "dates-as-text.parquet": lambda path, frame: write_table(
        path, pa.table(frame.assign(day=frame["day"].astype(str)))
    ),
    "t.feather": lambda path, frame: feather.write_feather(frame, path, "zstd", chunksize=80),
    "parts": as_folder(),
    "keys-city": as_folder("city"),
    "keys-kind": as_folder("kind"),
}


def by_definition(frame):
    """Features, but for those of the column `job`, and labels."""
    found = pd.DataFrame({"age": frame["age"].fillna(frame["age"].mean())})
    for city in (KOELN, "Oslo", "Rom"):
        found[f"city={city}"] = (frame["city"] == city) * 1.0
    found["income"] = frame["income"]
    found["day"] = (frame["day"] - pd.Timestamp(0)).dt.total_seconds()
    return found.assign(y=(frame["kind"] == "good") * 1.0)


@pytest.mark.parametrize("name", grid([*TABLES], 3))
def test_every_table_has_the_same_features(name, table, tmp_path):
    uses = {"one_hot": ["city"], "target_encode": ["job"], "dates": ["day"], "impute": "mean"}
    found = []
    for each in ("t.csv", name):
        if not (tmp_path / each).exists():
            TABLES[each](tmp_path / each, table)
        convert([tmp_path / each], tmp_path / "o.h5", label="kind", shuffle=False, **uses)
        file = read(tmp_path / "o.h5")
        assert file.attrs["class_names"].tolist() == [0, 1]
        found.append(pd.DataFrame(file.X, columns=file.columns).assign(y=file.y))
    expected = by_definition(table)
    if name.startswith("keys"):  # rows come folder by folder, and so fall into other folds
        expected, found = expected.sort_values("day"), found[1].sort_values("day")
        found = found[[*expected.columns]]
    else:
        np.testing.assert_array_equal(found[1].pop("job.mean"), found[0]["job.mean"])
        found = found[1]
    assert [*found.columns] == [*expected.columns]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


WORDS = pa.array(["a", "b", "a", None])
NUMBERS = pa.array([1, 2, 1, None])
COLUMNS = [
    WORDS.cast(pa.string_view()),
    pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, None], pa.uint32()), ["a", "b"]),
    *(NUMBERS.cast(kind) for kind in (pa.float16(), pa.uint64(), pa.decimal128(22, 2))),
    NUMBERS.dictionary_encode(),
    pa.array([True, False, True, None]).dictionary_encode(),
]


@pytest.mark.parametrize("suffix", grid([".parquet", ".arrow"], 1))
@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_every_type_of_arrow(run, tmp_path, column, suffix):
    """As categories, and as numbers if they are."""
    path = write_table(tmp_path / f"t{suffix}", {"x": column, "y": [0, 1, 0, 1]})
    X = run(path, **Y, one_hot=["x"], impute="mean")[1].X
    np.testing.assert_array_equal(np.sort(X, axis=1), [[0, 1], [0, 1], [0, 1], [0, 0]])
    assert X[0].tolist() == X[2].tolist() != X[1].tolist()
    first, second, *_ = column.to_pylist()
    if isinstance(first, str):
        with pytest.raises(InputError, match=r"column 'x' of .* holds words, not numbers"):
            run(path, **Y)
        return
    numbers = [first, second, first, (2 * first + second) / 3]
    found = run(path, **Y, impute="mean")[1].X[:, 0]
    np.testing.assert_allclose(found, np.array(numbers, dtype=float), rtol=1e-6)


EQUAL = {
    "numbers": (["1", "2", "3"], ["1.0", "2.00", "3e0"], [1, 2, 3], [1.0, 2, 3]),
    "booleans": (["True", "False", "True"], ["TRUE", "false", "true"], [True, False, True]),
}


@pytest.mark.parametrize("use", ["one_hot", "label"])
@pytest.mark.parametrize("kind", grid([*EQUAL], 1))
def test_categories_and_labels_are_compared_by_value(run, tmp_path, kind, use):
    """Whichever of the files was the training file."""
    paths = []
    columns = EQUAL[kind]
    if (use, kind) == ("label", "booleans"):
        columns = columns[::2]  # TRUE and True are two labels
    for k, column in enumerate(columns):
        suffix = "csv" if isinstance(column[0], str) else "parquet"
        labels = column if use == "label" else [0, 1, 0]
        content = {"x": column, "y": labels, "w": [2, 1, 5]}
        paths.append(write_table(tmp_path / f"{k}.{suffix}", content))
    options = {"drop": ["x"]} if use == "label" else {use: ["x"]}
    for training, path in zip(paths, [*paths[1:], paths[0]], strict=True):
        _, trained = run(training, "train.h5", **Y, **options)
        _, found = run(path, "test.h5", like=tmp_path / "train.h5")
        np.testing.assert_array_equal(found.y, trained.y)
        np.testing.assert_array_equal(found.X, trained.X)
