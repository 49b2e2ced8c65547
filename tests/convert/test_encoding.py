"""Target encoding and dates: the values, that no label leaks, and that later rows get the same."""

import json
from dataclasses import asdict

import h5py
import numpy as np
import pytest
from converted import convert_files, read
from sklearn.metrics import roc_auc_score

from ooc_fw import FrankWolfeSVC, train_test_split, tune
from ooc_fw.convert import features, readers
from ooc_fw.convert.spool import shuffle_keys
from ooc_fw.convert.tables import TableRecord
from ooc_fw.convert.writer import split
from ooc_fw.data import encoded
from ooc_fw.data.encoded import hold_out
from ooc_fw.data.opening import draw_test_rows, open_source
from ooc_fw.data.views import cached, draw_parts
from ooc_fw.system.errors import DamageError, InputError

pytest.importorskip("pyarrow")

Y = {"label": "y"}


def roc_auc(labels, values):
    return roc_auc_score(labels > 0, values)


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


def naive(rows, column, targets, seed, among=True):
    """Values of training rows, which are `among` all, and of each category, by the definition."""
    folds = shuffle_keys(np.arange(len(rows)), seed) % encoded.FOLDS
    training = np.ones(len(rows), dtype=bool) & among
    words, mean = np.array([row[column] for row in rows]), targets[training].mean(axis=0)

    def value(word, among):
        there = (words == word) & among & training
        if word == "":
            return mean
        total = targets[there].sum(axis=0) + encoded.PRIOR_ROWS * mean
        return total / (there.sum() + encoded.PRIOR_ROWS)

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
    options = {"target_encode": ["c", "d"], **Y}
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
    assert names_in(found) == ["x", *(f"{c}{end}" for c in "cd" for end in names)]
    place = 1
    for j in range(2):
        words, features = record["encodings"]["cd"[j]].values()
        values, later = naive(rows, j, wanted.astype(float), 3)
        n = len(names)
        np.testing.assert_allclose(found.X[:, place : place + n], values[found.row], rtol=1e-6)
        ends = [*words, None]
        np.testing.assert_allclose(np.array([*features.values()]).T, [later[w] for w in ends])
        place += n


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


def test_everything_beside(tmp_path):
    """One-hot, imputed and dropped columns, dates, and rows without labels or with bad numbers."""
    rows = [
        (*row[:3], f"2024-01-0{k % 9 + 1}T0{k % 10}:15", row[3]) for k, row in enumerate(made())
    ]
    rows[7] = (*rows[7][:2], "", *rows[7][3:])
    rows[8] = (*rows[8][:4], "")
    header = "c,d,x,t,y"
    path = write(tmp_path / "t.csv", rows, header)
    uses = {"target_encode": ["d"], "one_hot": ["c"], "dates": ["t"], "impute": "mean"}
    options = {**uses, "missing_labels": "drop", "scale": "standard", **Y}
    convert_files([path], tmp_path / "o.h5", **options)
    found = read(tmp_path / "o.h5")
    kept = [row for k, row in enumerate(rows) if k != 8]
    y = np.array([row[4] for row in kept])
    assert names_in(found)[-4:] == ["x", "t", "d=perhaps", "d=yes"]
    values, _ = naive(kept, 1, np.stack([y == "perhaps", y == "yes"], axis=1) * 1.0, 0)
    expected = (values - values.mean(axis=0)) / values.std(axis=0)
    np.testing.assert_allclose(found.X[:, -2:], expected[found.row], rtol=1e-4, atol=1e-5)
    assert abs(found.X[:, -3].mean()) < 1e-5
    assert {*np.unique(found.X[:, :13])} == {0, 1}
    # Rows of a test file need no labels, and unknown categories have the mean.
    new = write(
        tmp_path / "n.csv", [("?", "new", 1, "2024-05-05", "no"), ("", "", "", "", "")], header
    )
    report = convert_files([new], tmp_path / "n.h5", like=tmp_path / "o.h5", missing_labels="drop")
    assert report.n_rows == 1
    assert "column 'd': 1 rows without a category" in "".join(report.notes)


def test_records_that_make_no_sense_are_damage(tmp_path):
    path = write(tmp_path / "t.csv", made())
    convert_files([path], tmp_path / "o.h5", **Y, target_encode=["c"], drop=["d"])
    found = read(tmp_path / "o.h5")
    text, names = found.attrs["table"].decode(), names_in(found)
    assert asdict(TableRecord.from_json(text, "o.h5", names, 3)) == json.loads(text)
    stored = json.loads(text)
    words = stored["encodings"]["c"]["words"]
    encodings = ({}, [], 7, {"c": [1.0]}, {"c": {"words": words, "features": {}}})
    for changed in (*({"encodings": one} for one in encodings), {"dates": ["t"]}, {"dates": [1]}):
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
    refused("lacks column 'z', which --target-encode needs", target_encode=["z"])
    both = {"target_encode": ["c", "d"]}
    refused("comes from .* here", like=tmp_path / "x.h5", **both)
    refused("not 'best'", scale="best", **both)
    refused("column 'y' does not hold a number but", task="regression", **both)
    with monkeypatch.context() as patch:
        patch.setattr(features, "MAX_CELLS", 8)
        refused("'c' has too many words for --target-encode", **both)
    path = write(tmp_path / "t.csv", made(labels=["no"]))
    refused("needs rows of two classes, or --task regression", **both)
    path = write(tmp_path / "t.csv", made(labels=[2**130, 2]))
    refused("mean targets of column 'c' are beyond float32", task="regression", **both)


@pytest.mark.parametrize("kind", ["csv", "text", "stamps"])
def test_dates_of_all_containers(tmp_path, kind):
    times = ["1969-12-31T23:30:00", "2024-02-29T08:30:00", "2024-12-01T00:00:00"]
    stamps = np.array(times, "M8[us]")
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / ("t.csv" if kind == "csv" else "t.parquet")
    if kind == "csv":
        write(path, zip(times, [0, 1, 1], strict=True), "t,y")
    else:
        columns = {"t": times if kind == "text" else stamps, "y": [0, 1, 1]}
        parquet.write_table(pa.table(columns), path)
    convert_files([path], tmp_path / "o.h5", **Y, dates=["t"], shuffle=False, scale="standard")
    found = read(tmp_path / "o.h5")
    assert names_in(found) == ["t"]
    seconds = stamps.astype(np.int64) / 1e6
    np.testing.assert_allclose(found.X[:, 0], (seconds - seconds.mean()) / seconds.std(), rtol=1e-6)


def test_dates_that_are_none(tmp_path):
    rows = [("2024-01-01T10:00+02:00", 0), ("", 1), ("soon", 1)]
    path = write(tmp_path / "t.csv", rows, "t,y")
    options = {**Y, "dates": ["t"]}
    with pytest.raises(InputError, match=r"line 3: the value in column 't' is missing; .*--drop t"):
        convert_files([path], tmp_path / "o.h5", **options)
    with pytest.raises(InputError, match=r"line 4: the value in column 't' is inf: .* not a date"):
        convert_files([path], tmp_path / "o.h5", **options, impute="mean")
    write(path, rows[:2], "t,y")
    convert_files([path], tmp_path / "o.h5", **options, impute="mean", shuffle=False)
    assert read(tmp_path / "o.h5").X.tolist() == [[1704096000], [1704096000]]
    with h5py.File(tmp_path / "o.h5") as file:
        assert json.loads(file.attrs["table"])["dates"] == ["t"]
    with pytest.raises(InputError, match=r"hold a number but '2024-.* --dates t "):
        convert_files([path], tmp_path / "o.h5", **Y)


@pytest.fixture(scope="module")
def random_labels(tmp_path_factory):
    """A converted table of 3,000 rows of 300 cities, whose number is a column, at random labels.

    Within a city, sums of the other folds fall with the label of a row.
    """
    folder = tmp_path_factory.mktemp("random")
    rng = np.random.default_rng(4)
    rows = [(city, 0, city, rng.integers(2)) for city in rng.integers(300, size=3000).tolist()]
    train = write(folder / "t.csv", rows)
    options = {"target_encode": ["c"], "drop": ["d"], "scale": "standard"}
    convert_files([train], folder / "t.h5", **Y, **options)
    return folder / "t.h5"


@pytest.mark.parametrize("task", ["labels", "targets"])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_held_out_rows_are_encoded_as_if_they_were_new(tmp_path, task, shuffle, sparse):
    """`hold_out` and the files of `split` have what a conversion of the parts would have."""
    rows = made(labels=(-1.5, 0.25, 3e4) if task == "targets" else (-1, 2))
    path = write(tmp_path / "t.csv", rows)
    options = {"target_encode": ["c", "d"], "dense": not sparse}
    options |= {"task": "regression" if task == "targets" else "classification"}
    scale = {"scale": "maxabs" if sparse else "standard"}
    convert_files([path], tmp_path / "o.h5", **Y, **options, **scale, seed=3, shuffle=shuffle)
    with open_source(tmp_path / "o.h5") as source:
        test_rows = draw_test_rows(source, 0.3, 1, stratify=False)
        split(source, test_rows, [tmp_path / "a.h5", tmp_path / "b.h5"])
        train, held = hold_out(source, test_rows)
        ids = train.row_ids(0, train.n_rows), held.row_ids(0, held.n_rows)
        y = np.array([row[3] for row in rows])
        wanted = y[:, None] if task == "targets" else (y == 2)[:, None] * 1.0
        for j, place in ((0, 1), (1, 2)):
            of = [row[j] for row in rows]
            folds = shuffle_keys(np.arange(len(rows)), 3) % encoded.FOLDS
            values, later = naive(rows, j, wanted, 3, among=np.isin(np.arange(len(rows)), ids[0]))
            expected = values[ids[0]], np.array([later.get(of[k], later[None]) for k in ids[1]])
            for part, name, one in zip((train, held), "ab", expected, strict=True):
                block = part.read(0, part.n_rows)
                block = block.toarray() if sparse else block
                scaled = (one[:, 0] - scaling_of(source, place)[0]) * scaling_of(source, place)[1]
                np.testing.assert_allclose(block[:, place], scaled, rtol=1e-5, atol=1e-6)
                with open_source(tmp_path / f"{name}.h5") as stored:
                    same = stored.read(0, stored.n_rows)
                    np.testing.assert_array_equal(same.toarray() if sparse else same, block)
                    assert stored.table == train.table
                    assert (stored.categories is None) == (name == "b")
            assert folds.max() == encoded.FOLDS - 1


def scaling_of(source, place):
    scaling = source.scaling
    return scaling.offset[place], scaling.factor[place]


def held_out_auc(train, held):
    solved = FrankWolfeSVC(gamma=100, C=1, tol=1e-2).fit(train)
    values = solved.decision_function(held)
    return roc_auc(np.asarray(held.labels(0, held.n_rows)), values)


def test_random_labels_are_not_told_by_rows_held_out(tmp_path, random_labels):
    """`split`, `train_test_split`, parts of parts, `tune` and calibration validate at chance."""
    noise = 0.05  # three standard errors of a thousand rows; with the leak the AUC is 0.57 to 0.6
    with open_source(random_labels) as source:
        test_rows = draw_test_rows(source, 0.3, 0, stratify=False)
        split(source, test_rows, [tmp_path / "a.h5", tmp_path / "b.h5"])
        once, _ = hold_out(source, test_rows)
        parts = hold_out(once, draw_test_rows(once, 0.4, 0, stratify=False))
        assert abs(held_out_auc(*parts) - 0.5) < noise
        rng = np.random.default_rng(0)
        folds = [hold_out(source, one) for one in draw_parts(3000, [1000] * 3, False, rng)]
        assert abs(np.mean([held_out_auc(*fold) for fold in folds]) - 0.5) < noise
    with open_source(tmp_path / "a.h5") as train, open_source(tmp_path / "b.h5") as test:
        assert abs(held_out_auc(train, test) - 0.5) < noise
    train, test = train_test_split(random_labels, 0.4, 1)
    with train, test:
        assert abs(held_out_auc(train, test) - 0.5) < noise
    points = tune(random_labels, Cs=[1], gammas=[100], metric="auc").points
    assert abs(points[0].error - 0.5) < noise
    fitted = FrankWolfeSVC(gamma=100, C=1, probability=True).fit(random_labels)
    assert np.abs(fitted.predict_proba(tmp_path / "b.h5")[:, 1] - 0.5).max() < 0.15


@pytest.mark.parametrize("sparse", [True, False])
def test_novel_rows_are_encoded_by_the_ordinary_ones(tmp_path, monkeypatch, sparse):
    """Rows that `tune --task novelty` judges have the features of rows that a model meets."""
    convert_files(
        [write(tmp_path / "t.csv", made(labels=("good", "good", "bad")))],
        tmp_path / "o.h5",
        **{**Y, "target_encode": ["c", "d"], "dense": not sparse},
    )
    parts = []

    def note(source, room):
        parts.append(source)
        return cached(source, room)

    monkeypatch.setattr("ooc_fw.training.tuning.cached", note)
    tune(tmp_path / "o.h5", task="novelty", ordinary="good", Cs=[1], gammas=[1], max_time=60)
    for train, judged in zip(parts[::2], parts[1::2], strict=True):
        assert judged.table == train.table
        with open_source(tmp_path / "o.h5") as source:
            assert judged.table != source.table
