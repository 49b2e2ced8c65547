"""``ooc-fw train --stream``: one pass over text or a file, and updates of a model."""

import functools
import json
import lzma
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ooc_fw import FrankWolfeSVC, load_model
from ooc_fw.conversion.text import iter_libsvm


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of text of some 50 rows."""
    monkeypatch.setattr("ooc_fw.conversion.readers.BLOCK_BYTES", 2000)


def test_json_log_and_model_agree(ooc_fw, here):
    """The model keeps the places of rows in the text, so that a file of them can certify it."""
    options = "--C 5 --keep 190 --log new.log -o new.h5 --json"
    result = ooc_fw("train", "--stream", "d.txt", *options.split()).json()
    assert (result["status"], result["n_rows"], result["certified_gap"]) == ("streamed", 200, None)
    assert result["n_support"] <= 190
    assert 0 <= result["sampled_gap"] <= 1e-3
    assert json.loads(Path("new.log").read_text().splitlines()[-1]) == {"event": "end", **result}
    model = load_model("new.h5")
    assert (model.status, model.classes.tolist()) == ("streamed", [-7, 3])
    assert (model.sampled_gap, model.certified_gap) == (result["sampled_gap"], None)
    ooc_fw("train", "--stream", "d.txt", "-o", "new.h5").done()
    ooc_fw("convert", "d.txt", "new-data.h5", "--no-shuffle").done()
    certified = ooc_fw("certify", "new.h5", "new-data.h5", "--json").json()
    assert certified["certified_gap"] <= 1e-3


def test_standard_input_and_file_give_the_same_model(ooc_fw, here, monkeypatch):
    Path("d.xz").write_bytes(lzma.compress(Path("d.txt").read_bytes()))
    with open("d.xz") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        outcome = ooc_fw("train", "--stream", "-", "-o", "new.h5", "--quiet")
    assert outcome == (0, "new.h5\n", "")
    outcome = ooc_fw("train", "--stream", "d.txt")
    assert "over the rows read last, not certified" in outcome.err
    assert outcome.out == "d.model.h5\n"
    assert Path("new.h5").read_bytes() == Path("d.model.h5").read_bytes()


def test_text_is_learned_as_partial_fit_learns_its_blocks(ooc_fw, here, table, small_blocks):
    ooc_fw("train", "--stream", "d.txt", "-o", "new.h5", "--C", 5, "--gamma", 0.1).done()
    model = load_model("new.h5")
    estimator = FrankWolfeSVC(C=5, gamma=0.1)
    start = 0
    for labels, rows in iter_libsvm("d.txt"):
        part = slice(start, start + len(rows))
        np.testing.assert_array_equal(table.y[part], labels)
        estimator.partial_fit(table.X[part], labels, classes=[-7, 3])
        start += len(rows)
    assert start == 200 > len(rows)
    np.testing.assert_array_equal(np.sort(model.rows), np.sort(estimator.support_))
    objective = model.classifiers[0].rho / 2
    assert objective == pytest.approx(estimator.solution_.objective, rel=1e-5)


def test_features_may_appear_late_and_classes_may_not(ooc_fw, tmp_path, small_blocks):
    """With features that are counted from 0."""
    path, model = tmp_path / "d.txt", tmp_path / "m.h5"
    lines = [f"{k % 3 if k < 500 else 3} {k % 3}:2 {8 if k > 300 else 3}:1\n" for k in range(501)]
    command = "train", "--stream", path, "-o", model, "--zero-based", "--json"
    path.write_text("".join(lines))
    ooc_fw(*command).assert_refused("row 500 of", "the label 3", "the classes are 0, 1, 2")
    path.write_text("".join(lines[:500]))
    result = ooc_fw(*command).json()
    assert (result["n_rows"], result["n_features"]) == (500, 9)
    assert ooc_fw("evaluate", model, path, "--json", "--zero-based").json()["accuracy"] == 1


# -- a pipe ----------------------------------------------------------------------------------------


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
def test_a_signal_ends_with_the_model_of_what_was_read(program, tmp_path):
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
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 143, err
    result = json.loads(out)
    assert result["status"] == load_model(model).status == "interrupted"
    assert 0 < result["n_rows"] < 120_000
    assert f"the first {result['n_rows']} rows" in err


@pytest.mark.process
def test_memory_does_not_grow_with_the_stream(program, tmp_path):
    """The first peak is that of a stream whose buffers are all full already."""
    text, data = text_of(30_000), tmp_path / "text"
    peaks = []
    for times in (10, 20):
        data.write_text(text * times)
        options = "-o", tmp_path / "m.h5", "--json", "--keep", 100
        with data.open() as stdin:
            run = program("train", "--stream", "-", *options, stdin=stdin)
            out, err = run.communicate()
        assert run.returncode == 0, err
        result = json.loads(out)
        assert result["n_rows"] == 30_000 * times
        peaks.append(result["peak_rss_bytes"])
    assert len(text) > 5_000_000
    assert peaks[1] - peaks[0] < 30_000_000


# -- updates of a model ----------------------------------------------------------------------------


def test_new_rows_of_any_file_update_a_model(ooc_fw, here):
    header, *rows = Path("people.csv").read_text(encoding="utf-8").splitlines()
    for name, part in (("old", rows[:60]), ("new", rows[60:240]), ("test", rows[240:])):
        Path(f"{name}.csv").write_text("\n".join([header, *part, ""]), encoding="utf-8")
    how = "--label", "kind", "--one-hot", "city", "--impute", "mean", "--scale", "standard"
    ooc_fw("convert", "old.csv", "old.h5", *how).done()
    ooc_fw("train", "old.h5", "-o", "n.h5", "--C", 3).done()
    ooc_fw("convert", "new.csv", "new.h5", "--like", "old.h5", "--no-shuffle").done()
    before = replace(load_model("n.h5"), threshold=1e-3)
    before.save("n.h5")
    accuracy = ooc_fw("evaluate", "n.h5", "test.csv", "--json").json()["accuracy"]
    values = []
    for data in ("new.csv", "new.h5"):
        update = "train", data, "--stream", "--resume", "n.h5", "-o", "u.h5"
        outcome = ooc_fw(*update, "--json")
        result = outcome.json()
        assert (result["status"], result["n_rows"]) == ("streamed", 180)
        assert "keeps the threshold 0.001: see if it is right" in outcome.err
        assert 0 <= result["sampled_gap"] <= 1e-3
        model = load_model("u.h5")
        assert (model.kernel, model.columns, model.C) == (before.kernel, before.columns, 3)
        assert model.scaling.same_as(before.scaling)
        assert model.threshold == before.threshold
        assert model.rows.max() >= 60
        values.append(model.decision_function("new.csv"))
        better = ooc_fw("evaluate", "u.h5", "test.csv", "--json").json()["accuracy"]
        assert better > accuracy + 0.02
    np.testing.assert_allclose(*values, atol=0.01)
    # The file alone gives a model with its scaling and classes.
    alone = ooc_fw("train", "new.h5", "--stream", "-o", "alone.h5").done()
    assert "support vectors; 180 rows read once" in alone.err
    ooc_fw("certify", "alone.h5", "new.h5", "--tol", 0.01).done()
    assert ooc_fw("evaluate", "alone.h5", "test.csv", "--json").json()["accuracy"] > 0.8


def test_two_parts_in_turn_are_as_good_as_both_at_once(ooc_fw, here, table, write_text):
    """Text and arrays are scaled as the model says."""
    first, second = slice(0, 100), slice(100, 200)
    text = write_text(table.X[first], table.y[first])
    ooc_fw("convert", text, "new.h5", "--scale", "maxabs", "--no-shuffle").done()
    ooc_fw("train", "new.h5", "-o", "n.h5", "--C", 5, "--gamma", 1).done()
    X = load_model("n.h5").scaling.apply(table.X.astype(np.float64), 4)
    optimum = FrankWolfeSVC(C=5, gamma=1, tol=1e-4).fit(X, table.y).solution_
    np.save("X.npy", table.X[second])
    np.save("y.npy", table.y[second])
    new = write_text(table.X[second], table.y[second])
    both = write_text(table.X, table.y)
    for data in ([new], ["X.npy", "--labels", "y.npy"]):
        ooc_fw("train", *data, "--stream", "--resume", "n.h5", "-o", "u.h5").done()
        (classifier,) = load_model("u.h5").classifiers
        assert classifier.rho / 2 == pytest.approx(optimum.objective, rel=0.01)
        # New rows have the numbers after all old rows, and the last of these has no weight.
        assert load_model("n.h5").rows.max() < 99
        ooc_fw("convert", both, "both.h5", "--like", "n.h5", "--no-shuffle").done()
        ooc_fw("certify", "u.h5", "both.h5", "--tol", 0.9).done()
        said = "new.h5 has 100 rows but the model was trained on 200; give all rows it learned"
        ooc_fw("certify", "u.h5", "new.h5").assert_refused(said)


def test_the_time_limit_ends_a_stream(ooc_fw, tmp_path, small_blocks):
    data, model = tmp_path / "t.svm", tmp_path / "m.h5"
    data.write_text(text_of(20_000))
    outcome = ooc_fw(
        "train", "--stream", data, "-o", model, "--max-time", "2", "--C", 100, "--json"
    )
    result = outcome.json()
    assert 0 < result["n_rows"] < 20_000
    assert result["status"] == load_model(model).status == "time_limit"
    assert f"the model is that of the first {result['n_rows']} rows" in outcome.err
    assert load_model(model).n_rows == result["n_rows"]
    none = tmp_path / "none.h5"
    outcome = ooc_fw("train", "--stream", data, "-o", none, "--max-time", "1e-9")
    assert (outcome.status, none.exists()) == (3, False)


def test_landmark_models_begin_and_go_on(ooc_fw, here, table, write_text):
    """A new model with landmarks, updates with more of them, and files that later rows update."""
    parts = [
        write_text(table.X[start : start + 70], table.y[start : start + 70]) for start in (0, 70)
    ]
    outcome = ooc_fw("train", "--stream", parts[0], "--landmarks", 20, "-o", "n.h5")
    assert "20 landmarks; 70 rows read once" in outcome.done().err
    assert "over the rows read last, not certified" in outcome.err
    update = "train", "--stream", parts[1], "--resume", "n.h5", "-o"
    for landmarks in (20, 40):
        result = ooc_fw(*update, "u.h5", "--landmarks", landmarks, "--json").json()
        assert (result["status"], result["n_support"]) == ("streamed", landmarks)
        assert (result["certified_gap"], result["sampled_gap"] <= 2e-3) == (None, True)
        model = load_model("u.h5")
        assert (model.kind, model.n_rows, model.certified_gap) == ("landmarks", 140, None)
        told = ooc_fw("info", "u.h5", "--json").json()
        assert (told["gap_scope"], told["certified_gap"]) == ("chunk", None)
    # A model that was trained as usual goes on, too.
    ooc_fw("convert", parts[0], "old.h5").done()
    ooc_fw("train", "old.h5", "--landmarks", 20, "-o", "n.h5").done()
    assert ooc_fw(*update, "u.h5", "--json").json()["n_support"] == 20
    ooc_fw("train", "old.h5", "--kernel", "linear", "-o", "n.h5").done()
    ooc_fw(*update, "v.h5").assert_refused("n.h5 has weights of columns")
    assert not Path("v.h5").exists()
