"""Logs of training runs, read back: one event a line becomes columns of numbers.

A log may hold one run, several one after the other, or a run and what went on from its checkpoint.
It may end anywhere, even within a line, as that of a run that was killed does.

Owns what the events of `ooc_fw.report.progress.EventLog` mean over a whole run. Draws nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.data.rows import Float64Array
from ooc_fw.system.errors import InputError

Event = dict[str, Any]

_OWN_COUNTERS = ("elapsed_s", "iteration", "kernel_evaluations")
"""Fields that each machine of a run counts from 0."""

_SOURCE_COUNTERS = ("rows_read", "bytes_read")
"""Fields that a source counts, which may be that of several machines."""

_FIELDS = (
    *_OWN_COUNTERS,
    *_SOURCE_COUNTERS,
    "objective",
    "sampled_gap",
    "certified_gap",
    "n_support",
    "sweep_fraction",
    "rss_bytes",
    "peak_rss_bytes",
)

_WAY_OUT = "give a file that ooc-fw train --log wrote"


@dataclass
class Run:
    """One run.

    Parameters
    ----------
    label : str
        Name for legends and tables, different for each run.
    path : Path
        Log it was read from.
    start : dict
        What the run was told.
    end : dict or None
        What it reported; None for one that never came to its end, or is still under way.
    columns : dict of ndarray of float64, shape (n_events,)
        Numbers of each progress event by field, NaN where not known. Time and counts go on from
        machine to machine.
    phases : list of str
        Phase of each event.
    machines : ndarray of int64, shape (n_events,)
        Machine of each event, from 0.
    n_machines : int
        Machines of the run: 1 for two classes.
    steps : dict of ndarray of float64, shape (n_events,)
        Steps of each kind that ever occurred.
    resumed : list of int
        Places of the first events after the run went on from a checkpoint.
    """

    label: str
    path: Path
    start: Event
    end: Event | None = None
    columns: dict[str, Float64Array] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)
    machines: Any = None
    n_machines: int = 1
    steps: dict[str, Float64Array] = field(default_factory=dict)
    resumed: list[int] = field(default_factory=list)

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
        """Relative gap that the run aims at; None where it compares something else."""
        relative = self.options.get("stopping", "relative") == "relative"
        value = _number(self.options.get("tol"))
        return value if relative and value > 0 else None

    @property
    def memory_limit(self) -> float | None:
        """Limit on resident memory, in bytes."""
        value = _number(self.options.get("memory_limit"))
        return value if value > 0 else None

    def new_machines(self) -> list[int]:
        """Places of the first event of each machine but the first."""
        return (np.flatnonzero(np.diff(self.machines)) + 1).tolist() if self.n_events else []

    def certificates(self) -> tuple[list[int], list[float]]:
        """Places of the last events of sweeps, and the gaps that they certified.

        A certified gap is first told by the event after its sweep, and the last one of a machine by
        the end of the run.
        """
        places: list[int] = []
        gaps: list[float] = []

        def add(last: int, gap: float) -> None:
            """Take a gap of the sweep that ended at event `last` or before."""
            machine, k = self.machines[last], last
            while k > 0 and self.phases[k] != "certify" and self.machines[k - 1] == machine:
                k -= 1
            places.append(k if self.phases[k] == "certify" else last)
            gaps.append(gap)

        firsts = {0, *self.new_machines(), *self.resumed}
        told = self.columns["certified_gap"]
        ends = self._end_gaps()
        for k, gap in enumerate(told):
            if not math.isnan(gap) and (k in firsts or gap != told[k - 1]):
                add(k, float(gap))
            machine = int(self.machines[k])
            if k + 1 == self.n_events or self.machines[k + 1] != machine:
                final = ends[machine] if machine < len(ends) else math.nan
                if not math.isnan(final) and final != gap:
                    add(k, final)
        return places, gaps

    def _end_gaps(self) -> list[float]:
        """Certified gap of each machine, as told by the end of the run."""
        end = self.end or {}
        machines = end.get("machines") if self.n_machines > 1 else [end]
        known = isinstance(machines, list) and all(isinstance(each, dict) for each in machines)
        return [_number(each.get("certified_gap")) for each in machines or ()] if known else []

    def sweeps(self) -> list[tuple[float, float]]:
        """Seconds from and to which rows were swept for a certificate."""
        times, fractions = self.columns["elapsed_s"], self.columns["sweep_fraction"]
        inside = np.array([phase == "certify" for phase in self.phases], dtype=np.int8)
        edges = np.flatnonzero(np.diff(inside, prepend=0, append=0))
        found: list[tuple[float, float]] = []
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            # The first event comes after a block or more: go back by the pace of the others.
            began, part = times[first], fractions[first]
            seconds, parts = times[end - 1] - began, fractions[end - 1] - part
            if part > 0 and first > 0:
                back = seconds / parts * part if parts > 0 else math.inf
                began = max(began - back, times[first - 1])
            found.append((float(began), float(times[end - 1])))
        return found


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """All runs of some logs, in their order.

    Raises
    ------
    InputError
        For a file that cannot be read, is empty or is no log of a training run.
    """
    runs: list[Run] = []
    for path in dict.fromkeys(paths):
        found = _read(path)
        for k, run in enumerate(found):
            run.label = path.stem if len(found) == 1 else f"{path.stem} #{k + 1}"
        runs += found
    labels = [run.label for run in runs]
    for run in runs:
        if labels.count(run.label) > 1:
            run.label = run.label.replace(run.path.stem, str(run.path.with_suffix("")), 1)
    return runs


def _read(path: Path) -> list[Run]:
    builders: list[_Builder] = []
    for number, event in _events(path):
        kind = event.get("event")
        if kind == "start":
            if builders and event.get("resume"):
                builders[-1].resume(event)
            else:
                builders.append(_Builder(Run("", path, event)))
        elif not builders or kind not in ("progress", "end"):
            raise InputError(f"{path}, line {number}: no event of a training run; {_WAY_OUT}")
        elif kind == "progress":
            builders[-1].progress(event)
        else:
            builders[-1].run.end = event
    if not builders:
        raise InputError(f"{path} is empty: no run has written to it; {_WAY_OUT}")
    return [builder.finish() for builder in builders]


def _events(path: Path) -> Iterator[tuple[int, Event]]:
    """Events with the numbers of their lines; a line that was cut short is left out."""
    bad, any_event = 0, False  # a bad line may stand at the end, and where a resumed run goes on
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                event = _parse(line)
                if bad and (event is None or event.get("event") != "start"):
                    break
                if event is None:
                    bad = number
                    if not any_event:
                        break
                    continue
                bad, any_event = 0, True
                yield number, event
            else:
                return
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); {_WAY_OUT}") from None
    raise InputError(f"{path}, line {bad}: no JSON object of a run's log; {_WAY_OUT}")


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


class _Builder:
    """Puts a run together from its events."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._rows: list[list[float]] = []
        self._steps: list[dict[str, float]] = []
        self._phases: list[str] = []
        self._machines: list[int] = []
        self._resumes = False

    def resume(self, start: Event) -> None:
        """Expect the events of a run that goes on from a checkpoint."""
        self._resumes = True
        self.run.start = self.run.start | {"options": start.get("options")}
        self.run.end = None

    def progress(self, event: Event) -> None:
        """Take an event."""
        row = [_number(event.get(name)) for name in _FIELDS]
        if math.isnan(row[0]):
            return
        if self._resumes:
            self._resumes = False
            self._forget_from(row[0])
            self.run.resumed.append(len(self._rows))
        steps = event.get("steps")
        counts = steps.items() if isinstance(steps, dict) else ()
        self._rows.append(row)
        self._steps.append({str(kind): _number(count) for kind, count in counts})
        self._phases.append(str(event.get("phase", "")))
        machine, n_machines = _number(event.get("machine")), _number(event.get("n_machines"))
        self._machines.append(0 if math.isnan(machine) else int(machine))
        if n_machines > 1:
            self.run.n_machines = int(n_machines)

    def _forget_from(self, seconds: float) -> None:
        """Drop the events after the checkpoint: what they tell was lost, and done again."""
        while self._rows and self._rows[-1][0] >= seconds:
            for events in (self._rows, self._steps, self._phases, self._machines):
                events.pop()
        self.run.resumed = [k for k in self.run.resumed if k < len(self._rows)]

    def finish(self) -> Run:
        """Columns of all events."""
        run = self.run
        table = np.array(self._rows).reshape(-1, len(_FIELDS))
        run.columns = {name: table[:, k] for k, name in enumerate(_FIELDS)}
        run.phases = self._phases
        run.machines = np.array(self._machines, dtype=np.int64)
        kinds = dict.fromkeys(kind for steps in self._steps for kind in steps)
        run.steps = {
            kind: np.array([steps.get(kind, 0.0) for steps in self._steps]) for kind in kinds
        }
        firsts = run.new_machines()
        for name in (*_OWN_COUNTERS, *_SOURCE_COUNTERS):
            _go_on(run.columns[name], firsts, anew=name in _OWN_COUNTERS)
        for values in run.steps.values():
            _go_on(values, firsts, anew=True)
        run.steps = {kind: values for kind, values in run.steps.items() if values.any()}
        return run


def _go_on(values: Float64Array, firsts: Sequence[int], *, anew: bool) -> None:
    """Make a count go on from machine to machine; modifies `values`.

    With `anew` each machine counts from 0. Otherwise it may also count on from any other number,
    such as what was read of its rows before: then what its first event adds is not known.
    """
    raw = values.copy()
    for first, last in pairwise([*firsts, len(values)]):
        begin = 0.0 if anew else raw[first]
        values[first:last] += values[first - 1] - begin


def _number(value: object) -> float:
    """A float, NaN for what is no number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number else math.nan  # type: ignore[arg-type]
