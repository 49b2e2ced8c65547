"""Logs of training runs, read back.

A log holds events of `ooc_fw.report.progress.EventLog`: of several runs, one after the other, or of
a run and its resumption from a checkpoint. It may end anywhere, even within a line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.landmarks import relative_target
from ooc_fw.system.errors import InputError

Event = dict[str, Any]

_COUNTERS = ("elapsed_s", "iteration")  # each binary classifier counts from 0
_LEVELS = ("sampled_gap", "certified_gap", "n_support", "rss_bytes", "peak_rss_bytes")

_ADVICE = "give a file that ooc-fw train --log wrote"
_LARGEST = 1e30  # of any number of a run; figures need room above it


@dataclass
class Run:
    """One run. Numbers that the log does not have are NaN."""

    label: str  # different for each run
    start: Event
    end: Event  # empty for a run that has not ended
    columns: dict[str, Float64Array]  # of the progress events; time and counts are of the whole run
    parts: list[tuple[int, int, int]]  # number, first event and end of each binary classifier
    n_classifiers: int
    resumed: list[int]  # positions of the first events after a resumption

    @property
    def n_events(self) -> int:
        """Number of progress events."""
        return len(self.columns["elapsed_s"])

    @property
    def options(self) -> Event:
        """Options of training."""
        return _mapping(self.start.get("options"))

    @property
    def of_landmarks(self) -> bool:
        """Whether its model is known to be of landmarks."""
        return self.end.get("kind") == "landmarks" or bool(self.options.get("landmarks"))

    @property
    def tolerance(self) -> float | None:
        """Target of the relative gap; None where another gap is compared with the tolerance."""
        value = _number(self.options.get("tol"))
        value = relative_target(value) if self.of_landmarks and value > 0 else value
        relative = self.options.get("stopping", "relative") == "relative"
        return value if relative and value > 0 else None

    @property
    def classifier_results(self) -> list[Event]:
        """What the run reports of each of several binary classifiers at its end."""
        results = self.end.get("classifiers")
        return [*map(_mapping, results)] if isinstance(results, list) else []

    def line(self, x: Float64Array, y: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Columns x and y with NaN between binary classifiers."""
        borders = [first for _, first, _ in self.parts[1:]]
        return np.insert(x, borders, math.nan), np.insert(y, borders, math.nan)

    def certificates(self) -> tuple[Int64Array, Float64Array]:
        """Positions of the events that first state a certified gap, and these gaps."""
        stated = self.columns["certified_gap"].copy()
        before = np.concatenate([[math.nan], stated])[: len(stated)]
        # The last certified gap of a binary classifier is only stated at the end of the run.
        ends = self.classifier_results if self.n_classifiers > 1 else [self.end]
        for number, first, stop in self.parts:
            before[first] = math.nan
            gap = _number(ends[number].get("certified_gap")) if number < len(ends) else math.nan
            stated[stop - 1] = stated[stop - 1] if math.isnan(gap) else gap
        places = np.flatnonzero(~np.isnan(stated) & (stated != before))
        return places, stated[places]


def read_runs(logs: Sequence[str | Path]) -> list[Run]:
    """All runs of some logs, in their order; InputError for a file that is no log."""
    paths = list(dict.fromkeys(map(Path, logs)))
    stems = [path.stem for path in paths]
    runs: list[Run] = []
    for path in paths:
        label = path.stem if stems.count(path.stem) == 1 else str(path.with_suffix(""))
        groups = _groups(path)
        for k, events in enumerate(groups):
            runs.append(_run(label if len(groups) == 1 else f"{label} #{k + 1}", events))
    return runs


def _groups(path: Path) -> list[list[Event]]:
    """Events of each run, without lines that were cut short.

    Such a line is the last one, or the last one before a run was resumed.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); {_ADVICE}") from None
    groups: list[list[Event]] = []
    cut = 0  # number of the line before, if it is no event
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        event = _parse(line)
        starts = event.get("event") == "start"
        if not starts and (cut or not groups):
            raise InputError(f"{path}, line {cut or number}: no event of a training run; {_ADVICE}")
        cut = 0 if event else number
        if starts and not (groups and event.get("resume")):
            groups.append([event])
        elif event:
            groups[-1].append(event)
    if not groups:
        raise InputError(f"{path} is empty: no run has written to it; {_ADVICE}")
    return groups


def _parse(line: bytes) -> Event:
    try:
        event = _mapping(json.loads(line))
    except (ValueError, RecursionError):
        return {}
    return event if event.get("event") in ("start", "progress", "end") else {}


def _run(label: str, events: Sequence[Event]) -> Run:
    start, end = events[0], Event()
    progress: list[Event] = []
    resumed: list[int] = []
    resumes = False
    for event in events[1:]:
        if event["event"] == "start":
            start = start | {"options": event.get("options")}
            end, resumes = {}, True
        elif event["event"] == "end":
            end = event
        elif not math.isnan(seconds := _number(event.get("elapsed_s"))):
            if resumes:  # what came after the checkpoint was lost, and done again
                while progress and progress[-1]["elapsed_s"] >= seconds:
                    progress.pop()
                resumed = [*(k for k in resumed if k < len(progress)), len(progress)]
                resumes = False
            progress.append(event)
    columns = {name: _column(progress, name) for name in (*_COUNTERS, *_LEVELS)}
    numbers = np.nan_to_num(_column(progress, "classifier")).astype(np.int64)
    n_classifiers = np.nan_to_num(_column(progress, "n_classifiers")).max(initial=1)
    changes = np.flatnonzero(np.diff(numbers)) + 1
    borders = [0, *changes.tolist(), len(progress)] if progress else []
    parts = [(int(numbers[first]), first, stop) for first, stop in pairwise(borders)]
    for name in _COUNTERS:  # they continue from one binary classifier to the next
        values = columns[name]
        for _, first, stop in parts[1:]:
            values[first:stop] += values[first - 1]
    return Run(
        label=label,
        start=start,
        end=end,
        columns=columns,
        parts=parts,
        n_classifiers=int(n_classifiers),
        resumed=[k for k in resumed if k < len(progress)],
    )


def _column(events: Sequence[Event], name: str) -> Float64Array:
    return np.array([_number(event.get(name)) for event in events], dtype=np.float64)


def _number(value: object) -> float:
    """A float; NaN for everything that is not a number, or is one that no run has."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return float(value)
    return math.nan


def _mapping(value: Any) -> Event:
    return value if isinstance(value, dict) else {}
