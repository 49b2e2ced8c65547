from __future__ import annotations

import json
import math

import numpy as np
import pytest

from ooc_fw.report.runlog import read_runs
from ooc_fw.system.errors import InputError

START = {"event": "start", "data": "d.h5", "options": {"tol": 1e-3, "stopping": "relative"}}


def progress(elapsed, **changes):
    event = {
        "event": "progress",
        "phase": "train",
        "iteration": int(10 * elapsed),
        "objective": 0.5,
        "sampled_gap": 0.1,
        "certified_gap": None,
        "n_support": 5,
        "rows_read": int(100 * elapsed),
        "kernel_evaluations": int(1000 * elapsed),
        "elapsed_s": elapsed,
        "sweep_fraction": None,
        "steps": {"toward": int(10 * elapsed), "away": 0},
    }
    return event | changes


@pytest.fixture
def write(tmp_path):
    """Write events, and texts as they are, to a log."""

    def write_log(*events, name="run.jsonl"):
        path = tmp_path / name
        lines = [e if isinstance(e, str) else json.dumps(e) + "\n" for e in events]
        path.write_text("".join(lines))
        return path

    return write_log


def read_one(path):
    (run,) = read_runs([path])
    return run


def test_columns(write):
    run = read_one(write(START, progress(1.0), progress(2.0, sampled_gap=None), {"event": "end"}))
    assert (run.label, run.n_events, run.n_machines) == ("run", 2, 1)
    assert run.columns["elapsed_s"].tolist() == [1.0, 2.0]
    assert run.columns["sampled_gap"][0] == 0.1
    assert math.isnan(run.columns["sampled_gap"][1])
    assert np.isnan(run.columns["rss_bytes"]).all()  # of a log that has none
    assert {kind: counts.tolist() for kind, counts in run.steps.items()} == {"toward": [10, 20]}
    assert run.end == {"event": "end"}
    assert (run.tolerance, run.memory_limit) == (1e-3, None)


def test_tolerance_of_another_test_is_no_relative_gap(write):
    run = read_one(write(START | {"options": {"tol": 1e-3, "stopping": "meb"}}))
    assert run.tolerance is None


@pytest.mark.parametrize("tail", ['{"event": "prog', '{"event": "progress", "elapsed_s"\n', "\n\n"])
def test_a_log_may_end_anywhere(write, tail):
    run = read_one(write(START, progress(1.0), tail))
    assert (run.n_events, run.end) == (1, None)


def test_a_log_of_a_start_alone(write):
    run = read_one(write(START))
    assert (run.n_events, run.end, run.certificates(), run.sweeps()) == (0, None, ([], []), [])


def test_a_resumed_run_goes_on_from_its_checkpoint(write):
    lost = [progress(3.0, sampled_gap=0.7), '{"event": "progr\n']
    again = [START | {"resume": "run.ckpt"}, progress(2.5), progress(4.0), {"event": "end"}]
    run = read_one(write(START, progress(1.0), progress(2.0), *lost, *again))
    assert run.columns["elapsed_s"].tolist() == [1.0, 2.0, 2.5, 4.0]
    assert run.resumed == [2]
    assert run.end is not None


def test_a_run_resumed_twice_from_one_checkpoint(write):
    again = START | {"resume": "run.ckpt"}
    run = read_one(
        write(START, progress(1.0), again, progress(2.0), progress(3.0), again, progress(2.0))
    )
    assert run.columns["elapsed_s"].tolist() == [1.0, 2.0]
    assert run.resumed == [1]


def test_a_log_that_begins_with_a_resumed_run(write):
    run = read_one(write(START | {"resume": "run.ckpt"}, progress(5.0)))
    assert (run.n_events, run.resumed) == (1, [])


def test_runs_one_after_the_other(write):
    runs = read_runs([write(START, progress(1.0), START, progress(1.5))])
    assert [run.label for run in runs] == ["run #1", "run #2"]
    assert [run.columns["elapsed_s"].tolist() for run in runs] == [[1.0], [1.5]]


def test_labels_tell_runs_apart(write, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    paths = [write(START, name=name) for name in ("a/run.jsonl", "b/run.jsonl", "other.jsonl")]
    labels = [run.label for run in read_runs(paths)]
    assert labels == [str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run"), "other"]
    assert len(read_runs([paths[0], paths[0]])) == 1


def test_time_and_counts_go_on_from_machine_to_machine(write):
    machines = [(0, 1.0, 5), (0, 2.0, 6), (1, 0.5, 7), (1, 1.0, 8), (2, 3.0, 2), (2, 4.0, 9)]
    events = [
        progress(elapsed, machine=machine, n_machines=3, rows_read=rows)
        for machine, elapsed, rows in machines
    ]
    run = read_one(write(START, *events))
    assert run.n_machines == 3
    assert run.new_machines() == [2, 4]
    assert run.columns["elapsed_s"].tolist() == [1.0, 2.0, 2.5, 3.0, 6.0, 7.0]
    assert run.columns["iteration"].tolist() == [10, 20, 25, 30, 60, 70]
    assert run.steps["toward"].tolist() == [10, 20, 25, 30, 60, 70]
    assert run.columns["rows_read"].tolist() == [5, 6, 6, 7, 7, 14]


def test_certificates_stand_at_the_ends_of_their_sweeps(write):
    kinds = [("train", None), ("certify", None), ("train", 0.3), ("train", 0.3), ("certify", 0.3)]
    events = [progress(k, phase=phase, certified_gap=gap) for k, (phase, gap) in enumerate(kinds)]
    run = read_one(write(START, *events, {"event": "end", "certified_gap": 0.2}))
    assert run.certificates() == ([1, 4], [0.3, 0.2])
    run = read_one(write(START, *events[:4], {"event": "end", "certified_gap": 0.3}))
    assert run.certificates() == ([1], [0.3])
    run = read_one(write(START, *events))
    assert run.certificates() == ([1], [0.3])


def test_certificates_of_machines_are_those_of_the_end(write):
    events = [
        progress(elapsed, phase=phase, machine=machine, n_machines=2)
        for machine in (0, 1)
        for elapsed, phase in ((1.0, "train"), (2.0, "certify"))
    ]
    machines = [{"certified_gap": 0.2}, {"certified_gap": 0.2}]
    end = {"event": "end", "certified_gap": 0.2, "machines": machines}
    assert read_one(write(START, *events, end)).certificates() == ([1, 3], [0.2, 0.2])
    assert read_one(write(START, *events)).certificates() == ([], [])


def test_sweeps_begin_before_their_first_event(write):
    run = read_one(
        write(
            START,
            progress(1.0),
            progress(4.0, phase="certify", sweep_fraction=0.25),
            progress(10.0, phase="certify", sweep_fraction=1.0),
            progress(11.0),
            progress(14.0, phase="certify", sweep_fraction=1.0),
        )
    )
    assert run.sweeps() == [(2.0, 10.0), (11.0, 14.0)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"hello\n", "line 1: no JSON object"),
        (b"\x89HDF\r\n\x1a\n\x00\xff", "line 1: no JSON object"),
        (b"[1, 2]\n", "line 1: no JSON object"),
        (b'{"status": "converged"}\n', "line 1: no event of a training run"),
        (b'{"event": "progress", "elapsed_s": 1}\n', "line 1: no event of a training run"),
        (b'{"event": "start"}\n{"event": "lunch"}\n', "line 2: no event of a training run"),
        (b'{"event": "start"}\nx\n{"event": "end"}\n', "line 2: no JSON object"),
    ],
)
def test_what_is_no_log_is_named(tmp_path, content, words):
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"log.*{words}.*ooc-fw train --log"):
        read_runs([path])


def test_what_cannot_be_read_is_named(tmp_path):
    for path, words in ((tmp_path, "Is a directory"), (tmp_path / "no", "No such file")):
        with pytest.raises(InputError, match=words):
            read_runs([path])


def test_values_of_the_wrong_kind_are_unknown(write):
    odd = progress(1.0, sampled_gap="small", steps=[1], machine=None, n_support=True)
    run = read_one(write(START | {"options": 3}, odd, {"event": "progress", "elapsed_s": None}))
    assert run.n_events == 1
    assert math.isnan(run.columns["sampled_gap"][0])
    assert math.isnan(run.columns["n_support"][0])
    assert (run.options, run.steps) == ({}, {})
