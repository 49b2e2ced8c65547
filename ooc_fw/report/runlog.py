"""Logs of training runs, read back: the events of a run become columns of numbers.

A log may hold several runs, one after the other, or a run and its resumption from a checkpoint. It
may end anywhere, even within a line, like the log of a run that was killed. The events are those of
`ooc_fw.report.progress.EventLog`.
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
from ooc_fw.system.errors import InputError

Event = dict[str, Any]

_COUNTERS = ("elapsed_s", "iteration", "kernel_evaluations")
"""Fields that each binary classifier counts from 0."""

_SOURCE_COUNTERS = ("rows_read", "bytes_read")
"""Fields that the source counts; binary classifiers that share a source do not begin at 0."""

_FIELDS = (
    *_COUNTERS,
    *_SOURCE_COUNTERS,
    "objective",
    "sampled_gap",
    "certified_gap",
    "n_support",
    "rss_bytes",
    "peak_rss_bytes",
)

_SPEED_POINTS = 80  # intervals of a run of which the mean speed is drawn

_LARGEST = 1e30  # of any number of a run; figures need room above it

_ADVICE = "give a file that ooc-fw train --log wrote"


@dataclass
class Run:
    """One run. Numbers that the log does not have are NaN."""

    label: str  # different for each run
    start: Event
    end: Event  # empty for a run that has not ended
    columns: dict[str, Float64Array]  # of the progress events; time and counts are of the whole run
    phases: list[str]
    classifiers: Int64Array  # binary classifier of each event, from 0
    n_classifiers: int
    steps: dict[str, float]  # of each kind, of the whole run
    resumed: list[int]  # positions of the first events after a resumption

    @property
    def n_events(self) -> int:
        """Number of progress events."""
        return len(self.phases)

    @property
    def options(self) -> Event:
        """Options of training."""
        options = self.start.get("options")
        return options if isinstance(options, dict) else {}

    @property
    def tolerance(self) -> float | None:
        """Relative target tolerance; None where another gap is compared with it."""
        value = _number(self.options.get("tol"))
        relative = self.options.get("stopping", "relative") == "relative"
        return value if relative and value > 0 else None

    @property
    def classifier_results(self) -> list[Event]:
        """What the run reports of each of several binary classifiers at its end."""
        results = self.end.get("machines")
        known = isinstance(results, list) and all(isinstance(each, dict) for each in results)
        return results if known and results is not None else []

    @property
    def firsts(self) -> Int64Array:
        """Positions of the first event of each binary classifier but the first."""
        return _changes(self.classifiers)

    def line(self, x: Float64Array, y: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Columns x and y with NaN between binary classifiers."""
        return np.insert(x, self.firsts, math.nan), np.insert(y, self.firsts, math.nan)

    def speed(self, counter: str) -> tuple[Float64Array, Float64Array]:
        """Edges of n intervals, in seconds, and the mean increase of a count per second in each."""
        seconds = self.columns["elapsed_s"]
        n = min(_SPEED_POINTS, self.n_events - 1)
        if n < 1 or seconds[0] == seconds[-1]:
            return np.zeros(1), np.zeros(0)
        edges = np.linspace(seconds[0], seconds[-1], n + 1)
        counts = np.interp(edges, seconds, self.columns[counter])
        return edges, np.diff(counts) / np.diff(edges)

    def certificates(self) -> tuple[Int64Array, Float64Array]:
        """Positions of the events that first state a certified gap, and these gaps."""
        stated = self.columns["certified_gap"].copy()
        # The last certified gap of a binary classifier is only stated at the end of the run.
        ends = self.classifier_results if self.n_classifiers > 1 else [self.end]
        for place in _lasts(self.classifiers):
            classifier = int(self.classifiers[place])
            if classifier < len(ends):
                gap = _number(ends[classifier].get("certified_gap"))
                stated[place] = stated[place] if math.isnan(gap) else gap
        before = np.concatenate([[math.nan], stated])[:-1]
        before[self.firsts] = math.nan
        places = np.flatnonzero(~np.isnan(stated) & (stated != before))
        return places, stated[places]

    def sweeps(self) -> list[tuple[float, float]]:
        """Seconds from and to which certifying passes over the data took place."""
        times = self.columns["elapsed_s"]
        inside = np.array([False, *(phase == "certify" for phase in self.phases), False])
        edges = _changes(inside) - 1
        return [
            (float(times[max(first - 1, 0)]), float(times[end - 1]))
            for first, end in zip(edges[::2], edges[1::2], strict=True)
        ]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """All runs of some logs, in their order.

    Raises
    ------
    InputError
        For a file that cannot be read, is empty or is no log of a training run.
    """
    paths = list(dict.fromkeys(paths))
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
    events = [(number, _parse(line)) for number, line in enumerate(lines, 1) if line.strip()]
    groups: list[list[Event]] = []
    for (number, event), (_, after) in zip(events, [*events[1:], (0, None)], strict=False):
        if event is None:
            if not groups or (number != events[-1][0] and (after or {}).get("event") != "start"):
                raise InputError(f"{path}, line {number}: no JSON object of a run's log; {_ADVICE}")
            continue
        kind = event.get("event")
        if kind == "start" and not (groups and event.get("resume")):
            groups.append([])
        elif not groups or kind not in ("start", "progress", "end"):
            raise InputError(f"{path}, line {number}: no event of a training run; {_ADVICE}")
        if _is_absurd(event):
            raise InputError(
                f"{path}, line {number}: a number beyond {_LARGEST:g}, which no run has; {_ADVICE}"
            )
        groups[-1].append(event)
    if not groups:
        raise InputError(f"{path} is empty: no run has written to it; {_ADVICE}")
    return groups


def _is_absurd(value: object) -> bool:
    """Whether an event, or what is in it, has a number that no run has."""
    if isinstance(value, dict | list):
        return any(map(_is_absurd, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float) and abs(value) > _LARGEST


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _run(label: str, events: Sequence[Event]) -> Run:
    """Put a run together from its events."""
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
    table = np.array([[_number(event.get(name)) for name in _FIELDS] for event in progress])
    columns = dict(zip(_FIELDS, table.reshape(-1, len(_FIELDS)).T, strict=True))
    classifiers = np.nan_to_num([_number(event.get("machine")) for event in progress]).astype(
        np.int64
    )
    firsts = _changes(classifiers)
    # Counts continue from one binary classifier to the next. Unless each counts from 0, what the
    # first event of one adds is not known, and taken as 0.
    for name in (*_COUNTERS, *_SOURCE_COUNTERS):
        values = columns[name]
        for first, last in pairwise([*firsts, len(values)]):
            begin = values[first] if name in _SOURCE_COUNTERS else 0.0
            values[first:last] += values[first - 1] - begin
    steps: dict[str, float] = {}
    for place in _lasts(classifiers):
        counts = progress[place].get("steps")
        for kind, count in counts.items() if isinstance(counts, dict) else ():
            steps[kind] = steps.get(kind, 0.0) + np.nan_to_num(_number(count))
    return Run(
        label=label,
        start=start,
        end=end,
        columns=columns,
        phases=[str(event.get("phase", "")) for event in progress],
        classifiers=classifiers,
        n_classifiers=max(
            [1, *(int(np.nan_to_num(_number(e.get("n_machines")))) for e in progress)]
        ),
        steps={kind: count for kind, count in steps.items() if count},
        resumed=[k for k in resumed if k < len(progress)],
    )


def _changes(values: np.ndarray[Any, Any]) -> Int64Array:
    """Positions at which a value differs from the one before."""
    return np.flatnonzero(values[1:] != values[:-1]).astype(np.int64) + 1


def _lasts(classifiers: Int64Array) -> list[int]:
    """Position of the last event of each binary classifier."""
    return [*(_changes(classifiers) - 1).tolist(), len(classifiers) - 1][: len(classifiers)]


def _number(value: object) -> float:
    """A float; NaN for everything that is not a number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number else math.nan  # type: ignore[arg-type]
