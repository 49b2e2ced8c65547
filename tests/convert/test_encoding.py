"""Target encoding and dates: the values, that no label leaks, and that later rows get the same."""

import json

import h5py
import numpy as np
import pytest
from converted import convert_files, read

from ooc_fw.convert import encoding, readers
from ooc_fw.convert.passes import shuffle_keys
from ooc_fw.convert.tables import TableRecord
from ooc_fw.model.metrics import auc_loss
from ooc_fw.system.errors import DamageError, InputError

pytest.importorskip("pyarrow")

Y = {"label": "y"}


def roc_auc(labels, values):
    return 1 - auc_loss(np.asarray(values, np.float64), labels > 0).loss


def names_in(contents):
    return [name.decode() for name in contents.attrs["columns"]]


def write(path, rows, header="c,d,x,y"):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def made(n_rows=400, labels=("no", "yes", "perhaps"), seed=0):
    """Rows with two columns of categories, some of them missing, a number and a label."""
    rng = np.random.default_rng(seed)
    words = [*map(str, range(12)), "", "ä b"]
    return [
        (rng.choice(words), f"w{rng.integers(40)}", round(rng.normal(), 3), rng.choice(labels))
        for _ in range(n_rows)
    ]


def naive(rows, column, targets, seed):
    """Values of training rows, and value of each category, from the definition."""
    folds = shuffle_keys(np.arange(len(rows)), seed) % encoding.FOLDS
    words, mean = np.array([row[column] for row in rows]), targets.mean(axis=0)

    def value(word, among):
        there = (words == word) & among
        if word == "":
            return mean
        total = targets[there].sum(axis=0) + encoding.PRIOR_ROWS * mean
        return total / (there.sum() + encoding.PRIOR_ROWS)

    later = {word: value(word, True) for word in {*words.tolist()} - {""}} | {None: mean}
    return np.array([value(word, folds != f) for word, f in zip(words, folds, strict=True)]), later


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("labels", [("no", "yes"), ("no", "yes", "perhaps"), (-1, 2), "targets"])
def test_values_are_those_of_the_definition(tmp_path, monkeypatch, labels, shuffle):
    monkeypatch.setattr(readers, "BLOCK_BYTES", 900)  # many blocks
    targets = labels == "targets"
    rows = made(labels=(-1.5, 0.25, 3e4) if targets else labels)
    half = len(rows) // 2
    paths = [
        write(tmp_path / f"{k}.csv", part) for k, part in enumerate((rows[:half], rows[half:]))
    ]
    options = {"target_encode": ["c", "d"], "target_counts": True, "one_hot": [], **Y}
    convert_files(
        paths,
        tmp_path / "o.h5",
        **options,
        seed=3,
        shuffle=shuffle,
        dense=True,
        task="regression" if targets else "classification",
    )
    found = read(tmp_path / "o.h5")
    classes = sorted({row[3] for row in rows})
    y = np.array([row[3] for row in rows])
    wanted = y[:, None] if targets else np.stack([y == name for name in classes[1:]], axis=1)
    record = json.loads(found.attrs["table"])
    names = [".mean"] if len(classes) == 2 or targets else [f"={name}" for name in classes[1:]]
    assert names_in(found) == ["x", *(f"{c}{end}" for c in "cd" for end in (*names, ".count"))]
    place = 1
    for j in range(2):
        words, features = record["encodings"]["cd"[j]].values()
        values, later = naive(rows, j, wanted.astype(float), 3)
        n = len(names)
        np.testing.assert_allclose(found.X[:, place : place + n], values[found.row], rtol=1e-6)
        counts = [sum(row[j] == word for row in rows) for word in words] + [0]
        ends = [*words, None]
        np.testing.assert_allclose(np.array([*features.values()])[:n].T, [later[w] for w in ends])
        np.testing.assert_allclose(features[f"{'cd'[j]}.count"], np.log1p(counts))
        place += n + 1


def test_bytes_do_not_depend_on_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "BLOCK_BYTES", 700)
    path = write(tmp_path / "t.csv", made(labels=(1.1, 2.3, 1e8)))
    files = []
    for threads in (1, 4, 4):
        monkeypatch.setattr(readers, "MAX_THREADS", threads)
        monkeypatch.setattr(readers, "cpu_count", lambda: 4)
        convert_files(
            [path],
            tmp_path / "o.h5",
            **Y,
            target_encode=["c", "d"],
            task="regression",
            scale="standard",
        )
        files.append((tmp_path / "o.h5").read_bytes())
    assert files[0] == files[1] == files[2]


def test_random_labels_leave_nothing_to_learn(tmp_path):
    rng = np.random.default_rng(0)
    n_rows = 20_000
    rows = [(rng.integers(6000), rng.integers(300), 0, rng.integers(2)) for _ in range(2 * n_rows)]
    train, test = write(tmp_path / "a.csv", rows[:n_rows]), write(tmp_path / "b.csv", rows[n_rows:])
    encoded = {"target_encode": ["c", "d"], "drop": ["x"]}
    convert_files([train], tmp_path / "a.h5", **Y, **encoded)
    convert_files([test], tmp_path / "b.h5", **Y, like=tmp_path / "a.h5")
    noise = 4 / np.sqrt(3 * n_rows)  # four standard errors of the AUC of random values
    for name in ("a.h5", "b.h5"):
        found = read(tmp_path / name)
        for column in found.X.T:
            assert abs(roc_auc(found.y, column) - 0.5) < noise
    # Without folds, the labels of rare categories are in their means.
    convert_files([train], tmp_path / "c.h5", **Y, like=tmp_path / "a.h5")
    found = read(tmp_path / "c.h5")
    assert roc_auc(found.y, found.X[:, 0]) > 0.7


def test_everything_beside(caplog, tmp_path):
    """One-hot, imputed and dropped columns, dates, and rows without labels or with bad numbers."""
    rows = [
        (*row[:3], f"2024-01-0{k % 9 + 1}T0{k % 10}:15", row[3]) for k, row in enumerate(made())
    ]
    rows[7] = (*rows[7][:2], "", *rows[7][3:])
    rows[8] = (*rows[8][:4], "")
    header = "c,d,x,t,y"
    path = write(tmp_path / "t.csv", rows, header)
    options = {
        "target_encode": ["d"],
        "one_hot": ["c"],
        "impute": "mean",
        "date_parts": ["t"],
        "missing_labels": "drop",
        "scale": "standard,t.hour=none",
        **Y,
    }
    convert_files([path], tmp_path / "o.h5", **options)
    found = read(tmp_path / "o.h5")
    kept = [row for k, row in enumerate(rows) if k != 8]
    y = np.array([row[4] for row in kept])
    assert names_in(found)[-6:] == ["x", "t.month", "t.weekday", "t.hour", "d=perhaps", "d=yes"]
    values, _ = naive(kept, 1, np.stack([y == "perhaps", y == "yes"], axis=1) * 1.0, 0)
    expected = (values - values.mean(axis=0)) / values.std(axis=0)
    np.testing.assert_allclose(found.X[:, -2:], expected[found.row], rtol=1e-4, atol=1e-5)
    hours = [int(row[3][11:13]) for row in kept]
    np.testing.assert_array_equal(found.X[:, -3], np.array(hours)[found.row])
    assert {*np.unique(found.X[:, :13])} == {0, 1}
    # Rows of a test file need no labels, and unknown categories have the mean.
    new = write(
        tmp_path / "n.csv", [("?", "new", 1, "2024-05-05", "no"), ("", "", "", "", "")], header
    )
    report = convert_files([new], tmp_path / "n.h5", like=tmp_path / "o.h5", missing_labels="drop")
    assert report.n_rows == 1
    assert "'d': no row of 1 has a category that" in caplog.text


def test_records_that_make_no_sense_are_damage(tmp_path):
    path = write(tmp_path / "t.csv", made())
    convert_files([path], tmp_path / "o.h5", **Y, target_encode=["c"], drop=["d"])
    found = read(tmp_path / "o.h5")
    text, names = found.attrs["table"].decode(), names_in(found)
    assert TableRecord.from_json(text, "o.h5", names, 3).to_json() == text
    stored = json.loads(text)
    words = stored["encodings"]["c"]["words"]
    for changed in (
        {"encodings": {}},
        {"encodings": []},
        {"encodings": 7},
        {"encodings": {"c": [1.0]}},
        {"encodings": {"c": {"words": words, "features": {}}}},
        {"dates": {"x": "t"}},
        {"dates": [1]},
    ):
        with pytest.raises(DamageError, match="makes no sense"):
            TableRecord.from_json(json.dumps(stored | changed), "o.h5", names, 3)


def test_what_cannot_be_encoded(tmp_path, monkeypatch):
    path = write(tmp_path / "t.csv", made())
    out = tmp_path / "o.h5"

    def refused(message, **options):
        with pytest.raises(InputError, match=message):
            convert_files([path], out, **{**Y, **options})
        assert not out.exists()

    refused("'c' is named by --target-encode and by --one-hot", target_encode=["c"], one_hot=["c"])
    refused("'y' is named by --target-encode and by --label", target_encode=["y"])
    refused("has no column 'z'", target_encode=["z"])
    refused("--target-counts is for", target_counts=True)
    both = {"target_encode": ["c", "d"]}
    refused("come from .* here", like=tmp_path / "x.h5", **both)
    refused("not 'best'", scale="best", **both)
    refused("no features of a column 'y', but of x, c, d", scale="y=minmax", **both)
    refused("label .* is no number", task="regression", **both)
    for limit in ("MAX_LETTERS", "MAX_CELLS"):
        with monkeypatch.context() as patch:
            patch.setattr(encoding, limit, 8)
            refused("'c' has too many words for --target-encode", **both)
    path = write(tmp_path / "t.csv", made(labels=["no"]))
    refused("needs rows of two classes, or --task regression", **both)
    path = write(tmp_path / "t.csv", made(labels=[2**130, 2]))
    refused("mean targets of column 'c' are beyond float32", task="regression", **both)


def test_records_of_many_words_are_stored(tmp_path):
    path = write(tmp_path / "t.csv", [(f"w{k}", 0, 0, k % 2) for k in range(20_000)])
    convert_files([path], tmp_path / "o.h5", **Y, target_encode=["c"], drop=["d"])
    report = convert_files([path], tmp_path / "p.h5", like=tmp_path / "o.h5")
    assert report.n_rows == 20_000
    assert np.unique(read(tmp_path / "o.h5").X[:, 1]).tolist() == [0.5]


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "parquet-text"])
def test_dates_of_all_containers(tmp_path, kind):
    times = ["1969-12-31T23:30:00", "2024-02-29T08:30:00", "2024-12-01T00:00:00"]
    stamps = np.array(times, "M8[us]")
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / f"t.{kind.partition('-')[0]}"
    if kind == "csv":
        path = write(path, zip(times, [0, 1, 1], strict=True), "t,y")
    elif kind == "npz":
        np.savez(path, t=stamps, y=np.array([0, 1, 1]))
    else:
        parquet.write_table(
            pa.table({"t": times if "text" in kind else stamps, "y": [0, 1, 1]}), path
        )
    options = {**Y, "dates": ["t"], "date_parts": ["t"], "shuffle": False, "scale": "t=standard"}
    convert_files([path], tmp_path / "o.h5", **options)
    found = read(tmp_path / "o.h5")
    assert names_in(found) == ["t", "t.month", "t.weekday", "t.hour"]
    assert found.X[:, 1:].tolist() == [[12, 2, 23], [2, 3, 8], [12, 6, 0]]
    seconds = stamps.astype(np.int64) / 1e6
    np.testing.assert_allclose(found.X[:, 0], (seconds - seconds.mean()) / seconds.std(), rtol=1e-6)


def test_dates_that_are_none(tmp_path):
    rows = [("2024-01-01T10:00+02:00", 0), ("", 1), ("soon", 1)]
    path = write(tmp_path / "t.csv", rows, "t,y")
    options = {**Y, "date_parts": ["t"]}
    with pytest.raises(
        InputError, match=r"line 3: the value in column 't.month' is missing; .*--drop t"
    ):
        convert_files([path], tmp_path / "o.h5", **options)
    with pytest.raises(
        InputError, match=r"line 4: the value in column 't.month' is no date such as"
    ):
        convert_files([path], tmp_path / "o.h5", **options, impute="mean")
    report = convert_files(
        [path], tmp_path / "o.h5", **options, impute="mean", on_error="skip", shuffle=False
    )
    assert (report.n_rows, report.n_skipped) == (2, 1)
    assert read(tmp_path / "o.h5").X.tolist() == [[1, 0, 8], [1, 0, 8]]
    with h5py.File(tmp_path / "o.h5") as file:
        assert json.loads(file.attrs["table"])["dates"]["t.hour"] == ["t", "hour"]
    with pytest.raises(
        InputError, match=r"hold a number but '2024-.*; give --date-parts t or --dates"
    ):
        convert_files([path], tmp_path / "o.h5", **Y)
    np.savez(tmp_path / "a.npz", t=np.zeros(2), y=np.arange(2))
    with pytest.raises(InputError, match="holds numbers, not dates"):
        convert_files([tmp_path / "a.npz"], tmp_path / "o.h5", **options)
