"""Logs of training runs, read back.

A log holds events of `ooc_fw.report.progress.EventLog`: of several runs, one after the other, or of
a run and its resumption from a checkpoint. It may end anywhere, even within a line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.data.rows import Float64Array
from ooc_fw.landmarks import relative_target
from ooc_fw.system.errors import InputError

Event = dict[str, Any]

_COLUMNS = ("elapsed_s", "iteration", "sampled_gap", "certified_gap", "n_support", "rss_bytes")
_ADVICE = "give a file that ooc-fw train --log wrote"
_LARGEST = 1e30  # of any number of a run; figures need room above it


@dataclass
class Run:
    """One run. Numbers that the log does not have are NaN."""

    label: str  # different for each run
    options: Event  # of training
    end: Event  # empty for a run that has not ended
    columns: dict[str, Float64Array]  # of the progress events; time and counts are of the whole run

    @property
    def n_events(self) -> int:
        """Number of progress events."""
        return len(self.columns["elapsed_s"])

    @property
    def tolerance(self) -> float | None:
        """Target of the relative gap; None if another gap is compared with the tolerance."""
        value = _number(self.options.get("tol"))
        if self.options.get("stopping", "relative") != "relative" or not value > 0:
            return None
        of_landmarks = self.end.get("kind") == "landmarks" or self.options.get("landmarks")
        return relative_target(value) if of_landmarks else value

    @property
    def memory_limit(self) -> float | None:
        """Bytes that the run was allowed; None if they are not known."""
        value = _number(self.options.get("memory_limit"))
        return None if math.isnan(value) else value


def read_runs(logs: Sequence[str | Path]) -> list[Run]:
    """All runs of some logs, in their order; InputError for a file that is not a log."""
    runs: list[Run] = []
    for path in dict.fromkeys(map(Path, logs)):
        groups = _groups(path)
        for k, events in enumerate(groups, 1):
            runs.append(_run(str(path) if len(groups) == 1 else f"{path} #{k}", events))
    return runs


def _groups(path: Path) -> list[list[Event]]:
    """Events of each run, without lines that were cut short."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); {_ADVICE}") from None
    groups: list[list[Event]] = []
    for event in filter(None, map(_parse, lines)):
        if event["event"] == "start" and not (groups and event.get("resume")):
            groups.append([])
        elif not groups:
            break
        groups[-1].append(event)
    if not groups:
        raise InputError(f"{path} has no events of a training run; {_ADVICE}")
    return groups


def _parse(line: bytes) -> Event:
    try:
        event = _mapping(json.loads(line))
    except (ValueError, RecursionError):
        return {}
    return event if event.get("event") in ("start", "progress", "end") else {}


def _run(label: str, events: Sequence[Event]) -> Run:
    options: Event = {}
    end: Event = {}
    progress: list[Event] = []
    resumes = False
    for event in events:
        if event["event"] == "start":
            options = _mapping(event.get("options"))
            end = {}
            resumes = True
        elif event["event"] == "end":
            end = event
        elif not math.isnan(seconds := _number(event.get("elapsed_s"))):
            while resumes and progress and progress[-1]["elapsed_s"] >= seconds:
                progress.pop()  # what came after the checkpoint was lost, and done again
            resumes = False
            progress.append(event)
    if progress and "certified_gap" in end:  # the last one comes with the end of the run
        progress[-1] = progress[-1] | {"certified_gap": end["certified_gap"]}
    columns = {name: _column(progress, name) for name in _COLUMNS}
    begins = 1 + np.flatnonzero(np.diff(np.nan_to_num(_column(progress, "classifier"))))
    for name in ("elapsed_s", "iteration"):  # each binary classifier counts from 0
        before = np.zeros(len(progress))
        before[begins] = columns[name][begins - 1]
        columns[name] += before.cumsum()
    return Run(label, options, end, columns)


def _column(events: Sequence[Event], name: str) -> Float64Array:
    return np.array([_number(event.get(name)) for event in events], dtype=np.float64)


def _number(value: object) -> float:
    """A float; NaN for everything that is not a number, or is one that no run has."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return float(value)
    return math.nan


def _mapping(value: Any) -> Event:
    return value if isinstance(value, dict) else {}
