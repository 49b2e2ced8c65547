import math

import numpy as np
import pytest

from ooc_fw.report.figures import draw_runs, save
from ooc_fw.report.runlog import read_runs
from ooc_fw.system.errors import InputError
from tests.report.conftest import START, make_event

RESUMED = START | {"resume": "run.ckpt"}
END = {"event": "end", "status": "converged"}


def seconds_of(run):
    return run.columns["elapsed_s"].tolist()


def test_columns(read):
    run = read(START, make_event(1.0), make_event(2.0, sampled_gap=None, rss_bytes=True), END)
    assert (run.label[-9:], run.n_events, run.tolerance) == ("run.jsonl", 2, 1e-3)
    assert seconds_of(run) == [1.0, 2.0]
    np.testing.assert_array_equal(run.columns["sampled_gap"], [0.1, math.nan])
    np.testing.assert_array_equal(run.columns["rss_bytes"], [200 << 20, math.nan])
    assert run.end == END
    assert read(START | {"options": {"tol": 1e-3, "stopping": "meb"}}).tolerance is None


@pytest.mark.parametrize("tail", ['{"event": "prog', '{"event": "progress", "elapsed_s"\n', "\n\n"])
def test_a_log_may_end_anywhere(read, tail):
    run = read(START, make_event(1.0), tail)
    assert (run.n_events, run.end) == (1, {})
    run = read(START)
    assert (run.n_events, run.end) == (0, {})


def test_what_came_after_the_checkpoint_of_a_resumed_run_is_left_out(read):
    lost = [make_event(3.0, sampled_gap=0.7), '{"event": "progr\n']
    again = [RESUMED, make_event(2.5), make_event(4.0), END]
    run = read(START, make_event(1.0), make_event(2.0), *lost, *again)
    assert (seconds_of(run), run.end) == ([1.0, 2.0, 2.5, 4.0], END)
    once = [RESUMED, make_event(2.0), make_event(3.0)]
    run = read(START, make_event(1.0), *once, RESUMED, make_event(2.0))
    assert seconds_of(run) == [1.0, 2.0]
    run = read(RESUMED, make_event(5.0))
    assert seconds_of(run) == [5.0]


def test_labels_tell_runs_apart(read, tmp_path):
    for name in ("run", "other"):
        read(START, name=name)
    path = tmp_path / "other.jsonl"
    path.write_text(path.read_text() * 2)
    runs = read_runs([tmp_path / "run.jsonl", path, path])
    assert [run.label for run in runs] == [f"{tmp_path / 'run.jsonl'}", f"{path} #1", f"{path} #2"]


def test_time_and_counts_continue_from_one_binary_classifier_to_the_next(read):
    parts = [(0, 1.0), (0, 2.0), (1, 0.5), (1, 1.0), (2, 3.0), (2, 4.0)]
    run = read(START, *(make_event(t, classifier=k, n_classifiers=3) for k, t in parts))
    assert seconds_of(run) == [1.0, 2.0, 2.5, 3.0, 6.0, 7.0]
    assert run.columns["iteration"].tolist() == [10, 20, 25, 30, 60, 70]


def test_the_last_certified_gap_is_that_of_the_end(read):
    events = [make_event(k, certified_gap=gap) for k, gap in enumerate([None, 0.3, 0.3])]
    for end, expected in (([], 0.3), ([0.2], 0.2), ([None], math.nan)):
        run = read(START, *events, *({"event": "end", "certified_gap": gap} for gap in end))
        np.testing.assert_array_equal(run.columns["certified_gap"], [math.nan, 0.3, expected])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "no events"),
        (b"\n \n", "no events"),
        (b"hello\n", "no events"),
        (b"\x89HDF\r\n\x1a\n\x00\xff", "no events"),
        (b"[1, 2]\n", "no events"),
        (b'{"status": "converged"}\n', "no events"),
        (b'{"event": "progress", "elapsed_s": 1}\n', "no events"),
    ],
)
def test_files_that_are_no_logs_are_refused(tmp_path, content, words):
    path = tmp_path / "log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"log.*{words}.*ooc-fw train --log"):
        read_runs([path])


def test_values_of_the_wrong_type_are_unknown(read):
    odd = make_event(1.0, sampled_gap="small", steps=[1], classifier=None)
    run = read(START | {"options": 3}, odd, {"event": "progress", "elapsed_s": None})
    assert (run.n_events, run.options) == (1, {})
    assert math.isnan(run.columns["sampled_gap"][0])


def test_numbers_that_no_run_has_are_unknown(read, tmp_path):
    runs = []
    for value in (1e308, -1e308, 10**400, math.inf):
        odd = [
            make_event(2.0) | {name: value} for name in ("elapsed_s", "sampled_gap", "n_support")
        ]
        options = START["options"] | {"memory_limit": value, "tol": value}
        runs.append(read(START | {"options": options}, make_event(1.0), *odd))
        assert not any((abs(column) > 1e30).any() for column in runs[-1].columns.values())
    save(draw_runs(runs), tmp_path / "f.svg")
    assert (tmp_path / "f.svg").read_bytes().startswith(b"<?xml")
