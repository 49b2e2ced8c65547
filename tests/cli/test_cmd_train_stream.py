"""``ooc-fw train --stream``: one pass over text, from a file or standard input."""

import functools
import io
import json
import lzma
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

from ooc_fw.cli.main import main
from ooc_fw.convert.text import iter_libsvm
from ooc_fw.estimators import FrankWolfeSVC
from ooc_fw.model.record import load_model

KEYS = {
    *("status", "n_rows", "n_features"),
    *("n_support", "sampled_gap", "certified_gap", "seconds", "peak_rss_bytes", "model"),
}


@pytest.fixture
def stdin(monkeypatch):
    """Have text on standard input: ``stdin(bytes)``."""

    def give(text):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(text))))

    return give


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of text of some 50 rows."""
    monkeypatch.setattr("ooc_fw.convert.readers.BLOCK_BYTES", 2000)


def test_json_log_and_model_agree(ooc_fw, text_file, tmp_path):
    path, log = tmp_path / "m.h5", tmp_path / "log"
    command = "train", "--stream", text_file, "-o", path, "--json", "--log", log
    outcome = ooc_fw(*command, "--C", 5, "--keep", 190).done()
    result = outcome.json()
    assert set(result) == KEYS
    assert (result["status"], result["n_rows"]) == ("streamed", 200)
    assert result["n_support"] <= 190
    assert 0 <= result["sampled_gap"] <= 1e-3
    assert json.loads(log.read_text().splitlines()[-1]) == {"event": "end", **result}
    model = load_model(path)
    assert (model.status, model.classes.tolist()) == ("streamed", [-7, 3])
    assert (model.certified_gap, result["certified_gap"]) == (None, None)
    assert model.sampled_gap == result["sampled_gap"]


def test_standard_input_and_file_give_the_same_model(ooc_fw, text_file, tmp_path, stdin):
    stdin(lzma.compress(text_file.read_bytes()))
    outcome = ooc_fw("train", "--stream", "-", "-o", tmp_path / "a.h5", "--quiet")
    assert outcome == (0, f"{tmp_path / 'a.h5'}\n", "")
    copy = tmp_path / "b.txt"
    copy.write_bytes(text_file.read_bytes())
    outcome = ooc_fw("train", "--stream", copy)
    assert "streamed: relative gap" in outcome.err
    assert "over the rows read last, not certified" in outcome.err
    assert outcome.out == f"{tmp_path / 'b.model.h5'}\n"
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.model.h5").read_bytes()


def test_text_is_learned_as_partial_fit_learns_its_blocks(
    ooc_fw, table, text_file, tmp_path, small_blocks
):
    ooc_fw("train", "--stream", text_file, "-o", tmp_path / "m.h5", "--C", 5, "--gamma", 0.1)
    model = load_model(tmp_path / "m.h5")
    (classifier,) = model.classifiers
    estimator = FrankWolfeSVC(C=5, gamma=0.1)
    start = 0
    for labels, rows in iter_libsvm(text_file):
        part = slice(start, start + len(rows))
        np.testing.assert_array_equal(table.y[part], labels)
        estimator.partial_fit(table.X[part], labels, classes=[-7, 3])
        start += len(rows)
    assert start == 200 > len(rows)
    np.testing.assert_array_equal(np.sort(model.rows), np.sort(estimator.support_))
    assert classifier.rho / 2 == pytest.approx(estimator.solution_.objective, rel=1e-5)


def test_text_whose_values_float32_merges_is_told_once(ooc_fw, tmp_path, small_blocks):
    noise = np.random.default_rng(0).normal(size=400).tolist()
    for first in (1.7e9, 0.0):
        lines = [f"{k % 2} 1:{first + 60 * k + noise[k]!r} 2:{noise[-k]:.3f}" for k in range(400)]
        (tmp_path / "t").write_text("\n".join(lines) + "\n")
        train = "train", tmp_path / "t", "--stream", "-o", tmp_path / "m.h5", "--gamma", "1"
        said = ooc_fw(*train, "--quiet").done().err
        way = "cannot be told apart in float32; convert with --scale standard"
        assert said.count(way) == (first > 0)


def test_positions_are_those_of_the_text(ooc_fw, text_file, tmp_path):
    """So that a file converted without shuffling can certify the model."""
    ooc_fw("convert", text_file, tmp_path / "d.h5", "--no-shuffle")
    ooc_fw("train", "--stream", text_file, "-o", tmp_path / "m.h5")
    outcome = ooc_fw("certify", tmp_path / "m.h5", tmp_path / "d.h5", "--json").done()
    assert outcome.err == ""
    assert outcome.json()["certified_gap"] <= 1e-3


def test_features_may_appear_late_and_classes_may_not(ooc_fw, tmp_path, small_blocks):
    """Features are counted from 0."""
    path, model = tmp_path / "d.txt", tmp_path / "m.h5"
    lines = [f"{k % 3 if k < 500 else 3} {k % 3}:2 {8 if k > 300 else 3}:1\n" for k in range(501)]
    command = "train", "--stream", path, "-o", model, "--zero-based", "--json"
    path.write_text("".join(lines))
    ooc_fw(*command).assert_refused("row 500 of", "the label 3", "the classes are 0, 1, 2")
    path.write_text("".join(lines[:500]))
    result = ooc_fw(*command).json()
    assert (result["n_rows"], result["n_features"]) == (500, 9)
    assert ooc_fw("evaluate", model, path, "--json", "--zero-based").json()["accuracy"] == 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"", ["standard input holds no rows"]),
        (b"1 1:2\n1 1:3\n", ["all rows of standard input have the label 1"]),
        (b"1 1:2\n-1 1:nan\n", ["standard input, line 2", "not a finite number"]),
        (b"1 1:2\n-1 1:2\n", ["all rows of standard input are equal", "gamma"]),
        (b"1 0:2\n-1 1:2\n", ["standard input, line 1", "--zero-based"]),
    ],
)
def test_unusable_text(ooc_fw, stdin, tmp_path, text, parts):
    stdin(text)
    outcome = ooc_fw("train", "--stream", "-", "-o", tmp_path / "m.h5")
    outcome.assert_refused(*parts)
    assert not (tmp_path / "m.h5").exists()


# -- a real pipe ---------------------------------------------------------------------------------


@functools.cache
def text_of(n_rows):
    """Two clouds that overlap, some 200 bytes a row."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(n_rows) < 0.5, 1, -1)
    X = rng.normal(size=(n_rows, 20)) + 0.2 * y[:, None]
    return "".join(
        f"{label} {' '.join(f'{j + 1}:{value:.4f}' for j, value in enumerate(row))}\n"
        for label, row in zip(y.tolist(), X.tolist(), strict=True)
    )


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_the_model_of_what_was_read(program, tmp_path, number):
    """The pipe stays open: the signal arrives while the reader waits."""
    model, log = tmp_path / "m.h5", tmp_path / "log"
    options = "-o", model, "--json", "--log", log, "--keep", 100
    run = program("train", "--stream", "-", *options, stdin=subprocess.PIPE)
    feeder = threading.Thread(target=run.stdin.write, args=[text_of(30_000) * 4])
    feeder.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and b"progress" in log.read_bytes()):
        time.sleep(0.05)
    feeder.join()
    time.sleep(1)
    run.send_signal(number)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 128 + number, err
    result = json.loads(out)
    assert result["status"] == "interrupted"
    assert 0 < result["n_rows"] < 120_000
    assert f"the first {result['n_rows']} rows" in err
    assert load_model(model).status == "interrupted"


@pytest.mark.process
def test_memory_does_not_grow_with_the_stream(program, tmp_path):
    """The first peak is that of a stream whose buffers are all full already."""
    text, data = text_of(30_000), tmp_path / "text"
    peaks = []
    for times in (4, 16):
        data.write_text(text * times)
        options = "-o", tmp_path / "m.h5", "--json", "--keep", 200
        with data.open() as stdin:
            run = program("train", "--stream", "-", *options, stdin=stdin)
            out, err = run.communicate()
        assert run.returncode == 0, err
        result = json.loads(out)
        assert result["n_rows"] == 30_000 * times
        peaks.append(result["peak_rss_bytes"])
    assert len(text) > 5_000_000
    assert peaks[1] - peaks[0] < 40_000_000


# -- updates of a model --------------------------------------------------------------------------


def labelled_rows(n_rows, seed):
    """Three classes in columns of different ranges, and a word that tells something."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 3))
    word = rng.choice(["red", "blue"], n_rows)
    classes = (X + 0.4 * (word == "red")[:, None] * [1, 0, -1]).argmax(axis=1)
    return X * [1, 100, 0.01], word, np.array(["a", "b", "c"])[classes]


def write_table(path, X, word, labels):
    lines = [
        f"{label},{','.join(map(repr, row))},{colour}"
        for row, colour, label in zip(X.tolist(), word.tolist(), labels.tolist(), strict=True)
    ]
    path.write_text("\n".join(["kind,x,y,z,colour", *lines, ""]))
    return path


@pytest.fixture(scope="module")
def old_and_new(tmp_path_factory):
    """A folder with a model of 80 rows of a table, and 600 new rows, in several containers."""
    folder = tmp_path_factory.mktemp("update")
    old = write_table(folder / "old.csv", *labelled_rows(80, 0))
    new = write_table(folder / "new.csv", *labelled_rows(600, 1))
    how = "--label", "kind", "--one-hot", "colour", "--scale", "standard"
    for command in (
        ["convert", old, folder / "old.h5", *how],
        ["train", folder / "old.h5", "-o", folder / "m.h5", "--C", 3],
        ["convert", new, folder / "new.h5", "--like", folder / "old.h5", "--no-shuffle"],
    ):
        assert main([*map(str, command), "--quiet"]) == 0
    return folder


def updated(ooc_fw, folder, data, *options, model="m.h5"):
    command = "train", data, "--stream", "--resume", folder / model
    return ooc_fw(*command, "-o", folder / "u.h5", "--json", *options)


def test_new_rows_of_any_file_update_a_model(ooc_fw, old_and_new):
    folder, values = old_and_new, []
    test = write_table(folder / "test.csv", *labelled_rows(1000, 2))
    before = load_model(folder / "m.h5")
    accuracy = ooc_fw("evaluate", folder / "m.h5", test, "--json").json()["accuracy"]
    for name in ("new.csv", "new.h5"):
        result = updated(ooc_fw, folder, folder / name).done().json()
        assert (result["status"], result["n_rows"]) == ("streamed", 600)
        assert 0 <= result["sampled_gap"] <= 1e-3
        model = load_model(folder / "u.h5")
        assert (model.kernel, model.columns, model.C) == (before.kernel, before.columns, 3)
        assert model.scaling.same_as(before.scaling)
        assert model.classes.tolist() == ["a", "b", "c"]
        assert model.rows.max() >= 80
        values.append(model.decision_function(folder / "new.csv"))
        better = ooc_fw("evaluate", folder / "u.h5", test, "--json").json()["accuracy"]
        assert better > accuracy + 0.02
    np.testing.assert_allclose(*values, atol=0.01)


def test_a_model_of_text_is_updated_by_text_and_arrays(ooc_fw, tmp_path, table, write_text):
    """Scaled as the model says; two parts in turn are as good as both at once."""
    first, second = slice(0, 100), slice(100, 200)
    text = write_text(table.X[first], table.y[first])
    ooc_fw("convert", text, tmp_path / "d.h5", "--scale", "maxabs", "--no-shuffle").done()
    ooc_fw("train", tmp_path / "d.h5", "-o", tmp_path / "m.h5", "--C", 5, "--gamma", 1).done()
    X = load_model(tmp_path / "m.h5").scaling.apply(table.X.astype(np.float64), 4)
    np.save(tmp_path / "X.npy", table.X[second])
    np.save(tmp_path / "y.npy", table.y[second])
    new = write_text(table.X[second], table.y[second])
    optimum = FrankWolfeSVC(C=5, gamma=1, tol=1e-4).fit(X, table.y).solution_
    for data in ([new], [tmp_path / "X.npy", "--labels", tmp_path / "y.npy"]):
        updated(ooc_fw, tmp_path, *data).done()
        (classifier,) = load_model(tmp_path / "u.h5").classifiers
        assert classifier.rho / 2 == pytest.approx(optimum.objective, rel=0.01)


@pytest.mark.parametrize(
    ("change", "options", "parts"),
    [
        ({}, ["--C", "7"], ["--C is that of", "m.h5", "leave it out"]),
        ({}, ["--gamma", "0.5"], ["--gamma is that of", "m.h5"]),
        ({"label": "d"}, [], ["row 3 of", "has the label d", "the classes are a, b"]),
        ({"names": "kind,x,y,w,colour"}, [], ["lacks column 'z'"]),
        ({"names": "sort,x,y,z,colour"}, [], ["no column 'kind'", "--label"]),
    ],
)
def test_updates_that_are_refused(ooc_fw, old_and_new, tmp_path, change, options, parts):
    X, word, labels = labelled_rows(20, 3)
    labels[3] = change.get("label", labels[3])
    data = write_table(tmp_path / "new.csv", X, word, labels)
    names = change.get("names", "kind,x,y,z,colour")
    data.write_text(data.read_text().replace("kind,x,y,z,colour", names))
    updated(ooc_fw, old_and_new, data, *options).assert_refused(*parts)


def test_models_that_no_stream_updates(ooc_fw, landmark_model, noisy, tmp_path):
    data, landmarks = landmark_model
    arguments = "train", data, "--stream", "-o", tmp_path / "u.h5", "--resume"
    ooc_fw(*arguments, landmarks).assert_refused("has landmarks", "train on all rows")
    for task in ("novelty", "regression"):
        ooc_fw("train", noisy, "--task", task, "-o", tmp_path / "t.h5", "--exact").done()
        ooc_fw(*arguments, tmp_path / "t.h5").assert_refused(task, "train on all rows")
    ooc_fw(*arguments, data).assert_refused("holds data")
    weighted = tmp_path / "w.h5"
    ooc_fw("train", data, "-o", weighted, "--exact", "--class-weight", "balanced").done()
    ooc_fw(*arguments, weighted).assert_refused("has weights of rows")


def test_a_stream_of_a_file_has_its_scaling_and_classes(ooc_fw, old_and_new, tmp_path):
    data, model = old_and_new / "new.h5", tmp_path / "m.h5"
    result = ooc_fw("train", data, "--stream", "-o", model, "--json").done().json()
    assert (result["status"], result["n_rows"]) == ("streamed", 600)
    outcome = ooc_fw("certify", model, data, "--json", "--tol", 0.1).done()
    assert outcome.json()["certified_gap"] < 0.01
    table = old_and_new / "new.csv"
    assert ooc_fw("evaluate", model, table, "--json").json()["accuracy"] > 0.9
