import math

import numpy as np
import pytest

from ooc_fw.report.runlog import read_runs
from ooc_fw.system.errors import InputError
from tests.report.conftest import START, make_event

END = {"event": "end", "status": "converged"}


def seconds_of(run):
    return run.columns["elapsed_s"].tolist()


def test_columns(read):
    run = read(START, make_event(1.0), make_event(2.0, sampled_gap=None), END)
    assert (run.label[-9:], run.n_events, run.tolerance) == ("run.jsonl", 2, 1e-3)
    assert seconds_of(run) == [1.0, 2.0]
    np.testing.assert_array_equal(run.columns["sampled_gap"], [0.1, math.nan])
    assert read(START | {"options": {"tol": 1e-3, "stopping": "meb"}}).tolerance is None


@pytest.mark.parametrize("tail", ['{"event": "prog', '{"event": "progress", "elapsed_s"\n', "\n\n"])
def test_a_log_may_end_anywhere(read, tail):
    assert read(START, make_event(1.0), tail).n_events == 1
    assert read(START).n_events == 0


def test_labels_tell_runs_apart(read, tmp_path):
    """A run that is resumed is another one, which goes on from the time of its checkpoint."""
    for name in ("run", "other"):
        read(START, name=name)
    path = tmp_path / "other.jsonl"
    path.write_text(path.read_text() * 2)
    runs = read_runs([tmp_path / "run.jsonl", path, path])
    assert [run.label for run in runs] == [f"{tmp_path / 'run.jsonl'}", f"{path} #1", f"{path} #2"]


def test_time_continues_from_one_binary_classifier_to_the_next(read):
    parts = [(0, 1.0), (0, 2.0), (1, 0.5), (1, 1.0), (2, 3.0), (2, 4.0)]
    run = read(START, *(make_event(t, classifier=k, n_classifiers=3) for k, t in parts))
    assert seconds_of(run) == [1.0, 2.0, 2.5, 3.0, 6.0, 7.0]


def test_the_last_certified_gap_is_that_of_the_end(read):
    events = [make_event(k, certified_gap=gap) for k, gap in enumerate([None, 0.3, 0.3])]
    for end, expected in (([], 0.3), ([0.2], 0.2), ([None], math.nan)):
        run = read(START, *events, *({"event": "end", "certified_gap": gap} for gap in end))
        np.testing.assert_array_equal(run.columns["certified_gap"], [math.nan, 0.3, expected])


START_LINE = b'{"event": "start", "options": {"tol": 1, "stopping": "meb"}}\n'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "no events"),
        (b"hello\n", "no events"),
        (b"\x89HDF\r\n\x1a\n\x00\xff", "no events"),
        (b"[1, 2]\n", "no events"),
        (b'{"status": "converged"}\n', "no events"),
        (b'{"event": "progress", "elapsed_s": 1}\n', "no events"),
        (b'{"event": "start", "options": 3}\n', "no events"),
        (START_LINE + b'{"event": "progress", "elapsed_s": "soon"}\n', "no events"),
        (START_LINE + b'{"event": "progress", "n_support": [1, 2]}\n', "no events"),
        (START_LINE + b'{"event": "progress", "n_support": 1%s}\n' % (b"0" * 400), "no events"),
    ],
)
def test_files_that_are_no_logs_are_refused(tmp_path, content, words):
    path = tmp_path / "log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"log.*{words}.*ooc-fw train --log"):
        read_runs([path])
