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

from ooc_fw.cli.stream import TwoLabels
from ooc_fw.convert.text import iter_libsvm
from ooc_fw.estimators import FrankWolfeSVC
from ooc_fw.model.record import load_model
from ooc_fw.system.errors import InputError

KEYS = {
    *("status", "method", "kernel", "gamma", "C", "tol", "stopping", "keep", "n_rows"),
    *("n_features", "n_support", "objective", "rho", "sampled_gap", "certified_gap", "iterations"),
    *("kernel_evaluations", "passes", "seconds", "peak_rss_bytes", "model"),
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
    assert result["n_support"] <= result["keep"] == 190
    assert 0 <= result["sampled_gap"] <= result["tol"]
    assert "streamed: relative gap" in outcome.err
    assert "over the rows read last, not certified" in outcome.err
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
    assert outcome.out == f"{tmp_path / 'b.model.h5'}\n"
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.model.h5").read_bytes()


def test_text_is_learned_as_partial_fit_learns_its_blocks(
    ooc_fw, table, text_file, tmp_path, small_blocks
):
    ooc_fw("train", "--stream", text_file, "-o", tmp_path / "m.h5", "--C", 5, "--gamma", 0.1)
    (classifier,) = load_model(tmp_path / "m.h5").classifiers
    estimator = FrankWolfeSVC(C=5, gamma=0.1)
    start = 0
    for labels, rows, _ in iter_libsvm(text_file):
        part = slice(start, start + len(rows))
        np.testing.assert_array_equal(table.y[part], labels)
        estimator.partial_fit(table.X[part], labels, classes=[-7, 3])
        start += len(rows)
    assert start == 200 > len(rows)
    np.testing.assert_allclose(classifier.alpha, estimator.solution_.alpha, rtol=1e-2, atol=1e-5)
    np.testing.assert_array_equal(classifier.rows, estimator.support_)
    np.testing.assert_array_equal(classifier.labels, estimator.solution_.labels)
    assert classifier.objective == pytest.approx(estimator.solution_.objective, rel=1e-5)


def test_positions_are_those_of_the_text(ooc_fw, text_file, tmp_path):
    """So that a file converted without shuffling can certify the model."""
    ooc_fw("convert", text_file, tmp_path / "d.h5", "--no-shuffle")
    ooc_fw("train", "--stream", text_file, "-o", tmp_path / "m.h5")
    outcome = ooc_fw("certify", tmp_path / "m.h5", tmp_path / "d.h5", "--json").done()
    assert outcome.err == ""
    assert outcome.json()["certified_gap"] <= 1e-3


def test_the_larger_label_is_positive_whichever_comes_first(ooc_fw, table, write_text, tmp_path):
    values = []
    for sign in (1, -1):
        order = np.argsort(sign * table.y, kind="stable")
        path = write_text(table.X[order], table.y[order])
        ooc_fw("train", "--stream", path, "-o", tmp_path / "m.h5", "--C", 5)
        model = load_model(tmp_path / "m.h5")
        values.append(model.decision_function(table.X))
        assert np.mean(model.predict(table.X) == table.y) > 0.8
    np.testing.assert_allclose(*values, atol=0.05)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--stream", "-"], ["standard input needs a name", "-o"]),
        (["--stream", "{text}", "-o", "{text}"], ["would replace the input"]),
        (["--stream", "{data}"], ["is an HDF5 file already"]),
        (["--stream", "nowhere"], ["nowhere does not exist"]),
        (["--stream", "{text}", "--stopping", "meb", "--kernel", "poly"], ["meb"]),
        (["-"], ["standard input goes with --stream only"]),
        (["{data}", "--zero-based"], ["--zero-based goes with --stream only"]),
        *(
            (["--stream", "t.txt", *option.split()], [f"{option.split()[0]} has no part in"])
            for option in (
                *("--method fw", "--max-iter 3", "--memory 1GiB", "--seed 1", "--max-time 3"),
                *("--class-weight balanced", "--probability", "--labels y.npy", "--x-name Z"),
                *("--checkpoint c", "--checkpoint-every 3", "--resume c", "--dask threads"),
                *("--lmo full", "--landmarks 40", "--exact"),
            )
        ),
    ],
)
def test_unusable_arguments(ooc_fw, text_file, data_file, arguments, parts):
    names = {"text": text_file, "data": data_file}
    outcome = ooc_fw("train", *(str(argument).format(**names) for argument in arguments))
    outcome.assert_refused(*parts)


def test_features_may_appear_late(ooc_fw, tmp_path, small_blocks):
    """They are counted from 0."""
    X = np.random.default_rng(0).normal(size=(300, 9))
    X[:200, 3:] = 0
    lines = [
        f"{1 if row[0] > 0 else -1} {' '.join(f'{j}:{row[j]:.3f}' for j in np.flatnonzero(row))}\n"
        for row in X
    ]
    path, model = tmp_path / "d.txt", tmp_path / "m.h5"
    path.write_text("".join(lines))
    outcome = ooc_fw("train", "--stream", path, "-o", model, "--json", "--zero-based")
    assert outcome.json()["n_features"] == 9
    outcome = ooc_fw("evaluate", model, path, "--json", "--zero-based")
    assert outcome.json()["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"", ["standard input holds no rows"]),
        (b"1 1:2\n1 1:3\n", ["all rows of standard input have the label 1"]),
        (b"1 1:2\n-1 1:3\n\n2 1:4\n", ["row 2 of standard input", "line 1", "the label 2"]),
        (b"1 1:2\n-1 1:nan\n", ["standard input, line 2", "not a finite number"]),
        (b"1 1:2\n-1 1:2\n", ["all rows of the first block of text are equal", "gamma"]),
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


def test_labels_as_they_come():
    labels = TwoLabels("text")
    assert labels.encode(np.array([3.0, 3.0])).tolist() == [0, 0]
    with pytest.raises(InputError, match=r"all rows of text have the label 3;"):
        labels.classes  # noqa: B018
    assert labels.encode(np.array([3.0, -7.0])).tolist() == [0, 1]
    assert (labels.classes.tolist(), labels.known) == ([-7, 3], [3, -7])
    with pytest.raises(InputError, match=r"row 12 of text, .*, has the label 5, but the two"):
        labels.encode(np.array([3.0, -7.0, 5.0]), 10)
    assert labels.encode(np.array([-7.0])).tolist() == [1]
    labels = TwoLabels("text")
    with pytest.raises(InputError, match=r"row 2 of text, .* has the label 3"):
        labels.encode(np.array([1.0, 2.0, 3.0]))
    assert labels.known == [], "what is refused is not remembered"
