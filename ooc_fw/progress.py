"""Progress of a run for people and for programs: a bar, a line now and then, a log of events.

Owns callbacks that read `ooc_fw.state.SolverState` and write text. Decides nothing about the run.
Shared by the command line and the estimator's ``verbose``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from ooc_fw.state import Callback, SolverState

LINE_SECONDS = 5.0
BAR_SECONDS = 0.1
LOG_SECONDS = 0.1


class Display(Protocol):
    """Something that shows a state; called often, hence to be cheap most of the time."""

    def __call__(self, state: SolverState) -> None:
        """Show `state`, or let it pass."""

    def close(self) -> None:
        """Finish the output."""


class Throttle:
    """True at most once in `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = time.monotonic() + seconds

    def __call__(self) -> bool:
        """Whether the time has come."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


def describe(state: SolverState) -> str:
    """Gap, support size and rows read per second, in a few words."""
    gap = state.certified_gap if state.certified_gap is not None else state.sampled_gap
    rate = state.rows_read / state.elapsed_s if state.elapsed_s > 0 else 0.0
    parts = [
        "gap ?" if gap is None else f"gap {gap:.1e}",
        f"{state.n_support} support vectors",
        f"{rate:,.0f} rows/s",
    ]
    return ", ".join(parts)


class Lines:
    """A line of text every few seconds, for logs and pipes."""

    def __init__(self, stream: IO[str], seconds: float) -> None:
        self._stream = stream
        self._due = Throttle(seconds)

    def __call__(self, state: SolverState) -> None:
        """Print a line when one is due."""
        if not self._due():
            return
        sweep = "" if state.sweep_fraction is None else f" {state.sweep_fraction:.0%}"
        print(
            f"{state.elapsed_s:.0f} s, {state.phase}{sweep}, iteration {state.iteration}: "
            f"{describe(state)}",
            file=self._stream,
            flush=True,
        )

    def close(self) -> None:
        """Nothing to finish."""


class Bar:
    """A bar on a terminal.

    While training it fills as the gap goes from its first value to the tolerance on a logarithmic
    scale, which is how first-order methods feel; during a sweep it shows the part of the file seen.

    Parameters
    ----------
    stream : file
        Terminal.
    tol : float or None
        Relative tolerance; None leaves the bar empty while training.
    """

    def __init__(self, stream: IO[str], tol: float | None) -> None:
        from tqdm import tqdm

        size = shutil.get_terminal_size()  # tqdm shows nothing where a terminal tells no size
        self._bar = tqdm(
            desc="start",
            total=100,
            file=stream,
            leave=False,
            ncols=size.columns,
            nrows=size.lines,
            bar_format="{desc} |{bar}| {elapsed}{postfix}",
        )
        self._due = Throttle(BAR_SECONDS)
        self._tol = tol
        self._first_gap: float | None = None

    def __call__(self, state: SolverState) -> None:
        """Redraw the bar when it is time."""
        if not self._due():
            return
        self._bar.n = round(100 * self._fraction(state))
        self._bar.set_description_str(state.phase, refresh=False)
        self._bar.set_postfix_str(describe(state))

    def _fraction(self, state: SolverState) -> float:
        if state.sweep_fraction is not None:
            return state.sweep_fraction
        gap = state.sampled_gap
        if self._tol is None or gap is None or gap <= 0:
            return 0.0
        if self._first_gap is None:
            self._first_gap = gap
        if self._first_gap <= self._tol:
            return 1.0
        done = math.log(self._first_gap / gap) / math.log(self._first_gap / self._tol)
        return min(max(done, 0.0), 1.0)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()


class RowProgress:
    """Progress of one pass over the rows of a file: a bar on a terminal, else a line now and then.

    Parameters
    ----------
    what : str
        Name of the pass.
    n_rows : int
        Rows in all.
    stream : file or None
        Where to show it, standard error by default.
    quiet : bool
        Show nothing.
    """

    def __init__(
        self, what: str, n_rows: int, stream: IO[str] | None = None, *, quiet: bool = False
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._what = what
        self._n_rows = n_rows
        self._started = time.monotonic()
        self._bar: Any = None
        self._due = Throttle(math.inf if quiet else LINE_SECONDS)
        if not quiet and self._stream.isatty():
            from tqdm import tqdm

            size = shutil.get_terminal_size()
            self._due = Throttle(BAR_SECONDS)
            self._bar = tqdm(
                desc=what,
                total=n_rows,
                file=self._stream,
                leave=False,
                ncols=size.columns,
                nrows=size.lines,
                unit=" rows",
                unit_scale=True,
            )

    def __call__(self, rows_seen: int) -> None:
        """Show how many rows have been seen, when it is time."""
        if not self._due():
            return
        if self._bar is not None:
            self._bar.n = rows_seen
            self._bar.refresh()
            return
        elapsed = time.monotonic() - self._started
        print(
            f"{elapsed:.0f} s, {self._what} {rows_seen / self._n_rows:.0%}: "
            f"{rows_seen / elapsed:,.0f} rows/s",
            file=self._stream,
            flush=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()


class EventLog:
    """A file with one JSON object a line: ``start``, ``progress``, ``end``.

    Progress is logged up to ten times a second, and whenever the phase changes. The file is written
    as the run goes, and not atomically, so that it can be followed and survives a run that dies.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._file = open(path, "w", encoding="utf-8", buffering=1)
        self._due = Throttle(LOG_SECONDS)
        self._phase: str | None = None

    def __call__(self, state: SolverState) -> None:
        """Write the state down when it is time."""
        if self._due() or state.phase != self._phase:
            self._phase = state.phase
            self.write("progress", dataclasses.asdict(state))

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Append one event; OSError, with the name of the file, when the disk is full."""
        try:
            print(to_json({"event": event, **values}), file=self._file)
        except OSError as error:
            error.filename = self._path
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Progress:
    """The displays of one run; a context manager.

    Parameters
    ----------
    stream : file or None
        Where to show progress, standard error by default.
    quiet : bool
        Show nothing; `log` is still written.
    tol : float or None
        Relative tolerance, for the bar.
    log : EventLog or None
        Told of every state too, and closed at the end.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        *,
        quiet: bool = False,
        tol: float | None = None,
        log: EventLog | None = None,
    ) -> None:
        stream = sys.stderr if stream is None else stream
        self._displays: list[Display] = []
        if not quiet:
            self._displays.append(
                Bar(stream, tol) if stream.isatty() else Lines(stream, LINE_SECONDS)
            )
        if log is not None:
            self._displays.append(log)

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """To be given to `ooc_fw.solver.solve`."""
        return tuple(self._displays)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for display in self._displays:
            display.close()


def to_json(values: Mapping[str, Any]) -> str:
    """One line of JSON, in which numbers that are not finite are null."""
    return json.dumps(_plain(values), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
