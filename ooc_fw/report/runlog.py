"""Logs of training runs, read back, and a page of HTML that compares the runs.

A log holds events of `ooc_fw.report.progress.EventLog`: of several runs, one after the other, or of
a run and its resumption from a checkpoint. It may end anywhere, even within a line.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.landmarks import relative_target
from ooc_fw.report.figures import draw_runs, render
from ooc_fw.system.errors import InputError, format_value
from ooc_fw.system.memory import format_bytes

Event = dict[str, Any]

# Each binary classifier counts from 0, but for what the source counts that they share.
_COUNTERS = ("elapsed_s", "iteration", "kernel_evaluations")
_SOURCE_COUNTERS = ("rows_read", "bytes_read")
_LEVELS = ("objective", "sampled_gap", "certified_gap", "n_support", "rss_bytes", "peak_rss_bytes")

_ADVICE = "give a file that ooc-fw train --log wrote"
_SPEED_POINTS = 80  # intervals of a run of which the mean speed is drawn
_LARGEST = 1e30  # of any number of a run; figures need room above it
_MOST_ITEMS = 50  # of a list that a table shows


@dataclass
class Run:
    """One run. Numbers that the log does not have are NaN."""

    label: str  # different for each run
    start: Event
    end: Event  # empty for a run that has not ended
    columns: dict[str, Float64Array]  # of the progress events; time and counts are of the whole run
    phases: list[str]
    parts: list[tuple[int, int, int]]  # number, first event and end of each binary classifier
    n_classifiers: int
    resumed: list[int]  # positions of the first events after a resumption

    @property
    def n_events(self) -> int:
        """Number of progress events."""
        return len(self.phases)

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
    columns = {name: _column(progress, name) for name in (*_COUNTERS, *_SOURCE_COUNTERS, *_LEVELS)}
    numbers = np.nan_to_num(_column(progress, "classifier")).astype(np.int64)
    n_classifiers = np.nan_to_num(_column(progress, "n_classifiers")).max(initial=1)
    changes = np.flatnonzero(np.diff(numbers)) + 1
    borders = [0, *changes.tolist(), len(progress)] if progress else []
    parts = [(int(numbers[first]), first, stop) for first, stop in pairwise(borders)]
    # Counts continue from one binary classifier to the next. Unless each counts from 0, what the
    # first event of one adds is not known, and taken as 0.
    for name in (*_COUNTERS, *_SOURCE_COUNTERS):
        values = columns[name]
        for _, first, stop in parts[1:]:
            begin = values[first] if name in _SOURCE_COUNTERS else 0.0
            values[first:stop] += values[first - 1] - begin
    return Run(
        label=label,
        start=start,
        end=end,
        columns=columns,
        phases=[str(event.get("phase", "")) for event in progress],
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


def page(runs: Sequence[Run]) -> str:
    """Page of one run or more; InputError when matplotlib is not installed."""
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} training runs"
    parts = ["<ul>", *(f"<li>{html.escape(_outcome(run))}</li>" for run in runs), "</ul>"]
    if any(run.n_events > 0 for run in runs):
        svg = render(draw_runs(runs), "svg").decode()
        svg = svg[svg.index("<svg") :].replace("<svg", '<svg role="img" aria-label="Figures"', 1)
        parts.append(f'<div class="wide">{svg}</div>')
    else:
        parts.append("<p>No progress was logged: there is nothing to draw.</p>")
    parts.append("<h2>Options</h2>\n<p>Options in which the runs differ stand out.</p>")
    parts.append(_comparison(runs, _options, mark=True))
    parts.append("<h2>Results</h2>\n<p>As reported at the end; gaps are relative.</p>")
    parts.append(_comparison(runs, _results))
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(title=html.escape(title), body="\n".join(parts))


def _outcome(run: Run) -> str:
    if run.end:
        certified, sampled = run.end.get("certified_gap"), run.end.get("sampled_gap")
        gap = f"certified relative gap {format_value(certified)}"
        if certified is None:
            gap = f"sampled relative gap {format_value(sampled)}, not certified"
        if run.end.get("gap_scope") == "span":
            gap += f", within the span of the {run.end.get('n_support')} landmarks"
        return f"{run.label}: {run.end.get('status', 'ended')}, {gap}."
    if run.n_events == 0:
        return f"{run.label}: the log has no end and no progress."
    seconds = format_value(run.columns["elapsed_s"][-1])
    return (
        f"{run.label}: the log has no end. The run was killed, or is still under way: {seconds} s "
        f"so far, last seen in phase {run.phases[-1]}."
    )


def _options(run: Run) -> Event:
    options = {k: v for k, v in run.start.items() if k not in ("event", "options", "kernel")}
    kernel = _mapping(run.start.get("kernel"))
    options |= {"kernel" if name == "name" else name: value for name, value in kernel.items()}
    return options | run.options


def _results(run: Run) -> Event:
    """Results at the end of a run, or what was known when the log ended."""
    if run.end:
        elsewhere = {name for name, value in _options(run).items() if run.end.get(name) == value}
        elsewhere |= {"event", "classifiers"}
        return {name: value for name, value in run.end.items() if name not in elsewhere}
    # The last certified gap is left out: it is not that of the last weights.
    names = [name for name in run.columns if name != "certified_gap"] if run.n_events else []
    known = {name: float(run.columns[name][-1]) for name in names}
    return {"status": "no end in the log", **known}


def _comparison(runs: Sequence[Run], facts: Callable[[Run], Event], *, mark: bool = False) -> str:
    columns = [facts(run) for run in runs]
    heads = "".join(f"<th>{html.escape(run.label)}</th>" for run in runs)
    lines = [f"<tr><th></th>{heads}</tr>"]
    for name in dict.fromkeys(name for column in columns for name in column):
        values = [_cell(name, column) for column in columns]
        look = ' class="differs"' if mark and len(set(values)) > 1 else ""
        cells = (f"<td>{html.escape(text)}</td>" for text in (name.replace("_", " "), *values))
        lines.append(f"<tr{look}>{''.join(cells)}</tr>")
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _cell(name: str, column: Event) -> str:
    value = column.get(name, "")
    is_size = name.endswith("_bytes") or name in ("bytes_read", "memory_limit")
    if is_size and not math.isnan(_number(value)):
        return format_bytes(int(value))
    return "none" if value is None else format_value(value, _MOST_ITEMS)
