"""Reading logs of training runs.

A log may hold the events of several runs, one after the other, and may end within a line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.data.rows import Float64Array
from ooc_fw.problem import relative_target
from ooc_fw.system.errors import InputError


@dataclass
class Run:
    """One run; numbers that are missing in the log are NaN."""

    label: str  # unique name of the run
    columns: dict[str, Float64Array]  # numbers of the progress events; times since the run began
    tolerance: float | None = None  # tolerance of the relative gap; None if tol is for another gap
    memory_limit: float | None = None  # bytes that the run was allowed, or None if unknown

    @property
    def n_events(self) -> int:
        """Number of progress events."""
        return len(self.columns["elapsed_s"])


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
    progress = [event for event in events if event["event"] == "progress"]
    if progress and "certified_gap" in end:  # the last event lacks the gap found at the end
        progress[-1] = progress[-1] | {"certified_gap": end["certified_gap"]}
    names = "elapsed_s", "sampled_gap", "certified_gap", "n_support", "rss_bytes"
    columns = {name: _column(progress, name) for name in names}
    tolerance = options["tol"] if options["stopping"] == "relative" else None
    if tolerance and (end.get("kind") in ("landmarks", "linear") or options.get("landmarks")):
        tolerance = relative_target(tolerance)
    return Run(label, columns, tolerance, options.get("memory_limit"))


def _column(events: Sequence[dict[str, Any]], name: str) -> Float64Array:
    values = np.array([event.get(name) for event in events], dtype=np.float64)
    return values.reshape(len(events))  # raises ValueError if a value is a list
