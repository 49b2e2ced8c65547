"""Reading logs of training runs.

A log may hold the events of several runs, one after the other, and may end within a line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.data.rows import Float64Array
from ooc_fw.problem import relative_target
from ooc_fw.system.errors import InputError


@dataclass
class Run:
    """One run; numbers that are missing in the log are NaN.

    Gaps of several classifiers are the worst one, and their support vectors are counted together.
    """

    label: str  # unique name of the run
    columns: dict[str, Float64Array]  # numbers of the progress events; times since the run began
    marks: Sequence[tuple[float, str]] = ()  # times at which a part of the run begins, and its name
    tolerance: float | None = None  # tolerance of the relative gap; None if tol is for another gap
    memory_limit: float | None = None  # bytes that the run was allowed, or None if unknown

    @property
    def n_events(self) -> int:
        """Number of progress events."""
        return len(self.columns["elapsed_s"])

    def tells(self, name: str) -> bool:
        """Whether a column has numbers other than 0."""
        return bool(np.nan_to_num(self.columns[name]).any())


def read_runs(logs: Sequence[str | Path]) -> list[Run]:
    """Read all runs of the logs, in their order; InputError for a file that is not a log."""
    runs: list[Run] = []
    for path in dict.fromkeys(map(Path, logs)):
        groups: list[list[dict[str, Any]]] = []  # events of each run
        try:
            for line in path.read_bytes().splitlines():
                with suppress(json.JSONDecodeError, UnicodeDecodeError, RecursionError):
                    event = json.loads(line)
                    if event["event"] == "start":
                        groups.append([])
                    groups[-1].append(event)
            if not groups:
                raise ValueError
            for k, events in enumerate(groups, 1):
                runs.append(_run(str(path) if len(groups) == 1 else f"{path} #{k}", events))
        except (OSError, TypeError, ValueError, LookupError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "it has no events of a training run"
            raise InputError(
                f"{path} cannot be read ({reason}); give a file that ooc-fw train --log wrote"
            ) from None
    return runs


def _run(label: str, events: Sequence[dict[str, Any]]) -> Run:
    options = events[0]["options"]
    end = events[-1]
    progress = _of_one_run([event for event in events if event["event"] == "progress"])
    of_objective = end.get("objective_gap")
    if progress and "certified_gap" in end:  # the last event lacks the gap found at the end
        last = end["certified_gap"] if of_objective is None else of_objective
        progress[-1] = progress[-1] | {"certified_gap": last}
    names = "share", "elapsed_s", "sampled_gap", "certified_gap", "n_support", "rss_bytes"
    columns = {name: _column(progress, name) for name in names}
    tolerance = options["tol"] if options["stopping"] == "relative" else None
    if tolerance and (of_objective is not None or options.get("landmarks")):
        tolerance = relative_target(tolerance)
    return Run(label, columns, _marks(progress), tolerance, options.get("memory_limit"))


def _of_one_run(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Progress events of several classifiers as those of one run; others as they are."""
    n_classifiers = max((event.get("n_classifiers", 1) for event in events), default=1)
    if n_classifiers == 1:
        return [*events]
    gaps = np.full(n_classifiers, np.nan)
    sizes = np.zeros(n_classifiers)
    stage = 1
    found = []
    for event in events:
        if event["stage"] != stage:
            gaps[:] = np.nan
            stage = event["stage"]
        k = event["classifier"]
        known = [event[name] for name in ("certified_gap", "sampled_gap")]
        gaps[k] = next((gap for gap in known if gap is not None), np.nan)
        sizes[k] = event["n_support"]
        told = {"sampled_gap": np.fmax.reduce(gaps), "certified_gap": None}
        found.append(event | told | {"n_support": sizes.sum()})
    return found


def _marks(events: Sequence[dict[str, Any]]) -> list[tuple[float, str]]:
    """Times at which a stage begins, or a reading of all rows after those over a sample."""
    marks = []
    for before, event in pairwise(events):
        if event.get("stage", 1) > before.get("stage", 1):
            marks.append((event["elapsed_s"], f"stage {event['stage']}"))
        elif before.get("gap_scope") == "sample" != event.get("gap_scope"):
            marks.append((event["elapsed_s"], "all rows"))
    return marks


def _column(events: Sequence[dict[str, Any]], name: str) -> Float64Array:
    values = np.array([event.get(name) for event in events], dtype=np.float64)
    return values.reshape(len(events))  # raises ValueError if a value is a list
