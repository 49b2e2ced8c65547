"""Target encoding: the values, that no label leaks, and that later rows get the same."""

import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ooc_fw import FrankWolfeSVC, convert, tune
from ooc_fw.conversion.spool import shuffle_keys
from ooc_fw.conversion.writer import write_parts
from ooc_fw.data.encoded import FOLDS, PRIOR_ROWS, hold_out
from ooc_fw.data.opening import draw_test_rows, open_dataset
from ooc_fw.system.errors import InputError
from tests.conversion.converted import Y, read
from tests.support.methods import grid


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
    folds = shuffle_keys(np.arange(len(rows)), seed) % FOLDS
    training = np.ones(len(rows), dtype=bool) & among
    words, mean = np.array([row[column] for row in rows]), targets[training].mean(axis=0)

    def value(word, among):
        there = (words == word) & among & training
        if word == "":
            return mean
        return (targets[there].sum(axis=0) + PRIOR_ROWS * mean) / (there.sum() + PRIOR_ROWS)

    later = {word: value(word, True) for word in {*words.tolist()} - {""}} | {None: mean}
    return np.array([value(word, folds != f) for word, f in zip(words, folds, strict=True)]), later


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("labels", [("no", "yes"), ("no", "yes", "perhaps"), (-1.5, 0.25, 3e4)])
def test_values_are_those_of_the_definition(tmp_path, labels, shuffle):
    """Of two classes, of three, and of the targets of a regression, in two files."""
    targets = not isinstance(labels[0], str)
    rows = made(labels=labels)
    no_label = ("1", "w1", 0, "")
    paths = [
        write(tmp_path / "0.csv", [*rows[:150], no_label, *rows[150:200]]),
        write(tmp_path / "1.csv", rows[200:]),
    ]
    options = {"target_encode": ["c", "d"], "seed": 3, "shuffle": shuffle, "dense": True}
    options |= {"task": "regression" if targets else "classification", "missing_labels": "drop"}
    convert(paths, tmp_path / "o.h5", **Y, **options)
    new = write(tmp_path / "n.csv", [("new", "w1", 0, labels[0])])
    report = convert([new], tmp_path / "n.h5", like=tmp_path / "o.h5")
    assert "column 'c': 1 of 1 rows have a category that" in "".join(report.notes)
    found, new = read(tmp_path / "o.h5"), read(tmp_path / "n.h5")
    y, classes = np.array([row[3] for row in rows]), sorted({*labels})
    wanted = y[:, None] if targets else np.stack([y == name for name in classes[1:]], axis=1)
    ends = [".mean"] if len(classes) == 2 or targets else [f"={name}" for name in classes[1:]]
    assert found.columns == ["x", *(column + end for column in "cd" for end in ends)]
    parts = (np.split(X[:, 1:], 2, axis=1) for X in (found.X, new.X))
    for j, (features, of_new) in enumerate(zip(*parts, strict=True)):
        values, later = naive(rows, j, wanted.astype(float), 3)
        labelled = found.row - (found.row > 150)  # row 150 has no label
        np.testing.assert_allclose(features, values[labelled], rtol=1e-6)
        np.testing.assert_allclose(of_new[0], later[(None, "w1")[j]], rtol=1e-6)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("shuffle", grid([True, False], 1))
@pytest.mark.parametrize("sparse", [True, False])
def test_held_out_rows_are_encoded_as_if_they_were_new(tmp_path, task, shuffle, sparse):
    """`hold_out` and the files of `split` have what a conversion of the parts would have."""
    rows = made(labels=(-1.5, 0.25, 3e4) if task == "regression" else (-1, 2))
    path = write(tmp_path / "t.csv", rows)
    options = {"target_encode": ["c", "d"], "dense": not sparse, "task": task}
    options |= {"scale": "maxabs" if sparse else "standard", "seed": 3, "shuffle": shuffle}
    convert([path], tmp_path / "o.h5", **Y, **options)
    y = np.array([row[3] for row in rows])
    targets = y[:, None] if task == "regression" else (y == 2)[:, None] * 1.0
    with open_dataset(tmp_path / "o.h5") as source:
        test_rows = draw_test_rows(source, 0.3, 1, stratify=False)
        write_parts(source, test_rows, [tmp_path / "a.h5", tmp_path / "b.h5"])
        parts = hold_out(source, test_rows)
        blocks = [part.read(0, part.n_rows) for part in parts]
        blocks = [block.toarray() if sparse else block for block in blocks]
        train_ids, held_ids = (part.row_ids(0, part.n_rows) for part in parts)
        for j, place in ((0, 1), (1, 2)):
            among = np.isin(np.arange(len(rows)), train_ids)
            values, later = naive(rows, j, targets, 3, among=among)
            held = np.array([later.get(rows[k][j], later[None]) for k in held_ids])
            offset, factor = source.scaling.offset[place], source.scaling.factor[place]
            for block, expected in zip(blocks, (values[train_ids], held), strict=True):
                scaled = (expected[:, 0] - offset) * factor
                np.testing.assert_allclose(block[:, place], scaled, rtol=1e-5, atol=1e-6)
        for name, block in zip("ab", blocks, strict=True):
            stored = read(tmp_path / f"{name}.h5")
            np.testing.assert_array_equal(stored.X, block)
            assert json.loads(stored.attrs["table"]) == json.loads(parts[0].table)


def test_rows_that_lack_a_class_of_the_encoding_are_not_held_out(tmp_path):
    rows = made(labels=(0, 1, 2))
    path = write(tmp_path / "t.csv", rows)
    convert([path], tmp_path / "o.h5", **Y, target_encode=["c"], drop=["d"], shuffle=False)
    of_class = np.flatnonzero([row[3] == 1 for row in rows])
    with open_dataset(tmp_path / "o.h5") as source:
        write_parts(source, of_class, [tmp_path / "a.h5", tmp_path / "b.h5"])
    with open_dataset(tmp_path / "a.h5") as source:
        assert source.read(0, 5).shape == (5, 3)
        with pytest.raises(InputError, match="has features of other classes"):
            hold_out(source, np.arange(9))


@pytest.mark.grid
def test_random_labels_are_not_told_by_rows_held_out(tmp_path):
    """Parts of parts, `tune` and calibration validate at chance.

    Within each of 300 cities, sums of the other folds fall with the label of a row.
    """
    rng = np.random.default_rng(4)
    rows = [(city, 0, city, rng.integers(2)) for city in rng.integers(300, size=3000).tolist()]
    options = {"target_encode": ["c"], "drop": ["d"], "scale": "standard"}
    data = tmp_path / "o.h5"
    convert([write(tmp_path / "t.csv", rows)], data, **Y, **options)
    noise = 0.05  # three standard errors of a thousand rows; with the leak the AUC is 0.57 to 0.6
    with open_dataset(data) as source:
        once, held = hold_out(source, draw_test_rows(source, 0.3, 0, stratify=False))
        train, test = hold_out(once, draw_test_rows(once, 0.4, 0, stratify=False))
        values = FrankWolfeSVC(gamma=100, C=1).fit(train).decision_function(test)
        assert abs(roc_auc_score(test.labels(0, test.n_rows), values) - 0.5) < noise
        fitted = FrankWolfeSVC(gamma=100, C=1, probability=True).fit(once)
        assert np.abs(fitted.predict_proba(held)[:, 1] - 0.5).max() < 0.15
    point = tune(data, Cs=[1], gammas=[100], metric="auc").points[0]
    assert abs(point.error - 0.5) < noise
