"""Progress of a run for people and for programs: a bar, a line now and then, a log of events.

Owns callbacks that read `ooc_fw.solve.state.SolverState` and write text. Decides nothing about the
run. Shared by the command line and the estimator's ``verbose``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import shutil
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from ooc_fw.system.files import open_growing
from ooc_fw.system.memory import peak_rss_bytes, rss_bytes

if TYPE_CHECKING:
    from ooc_fw.solve.state import Callback, SolverState

logger = logging.getLogger(__name__)

LINE_SECONDS = 5.0
VERBOSE_SECONDS = 1.0
BAR_SECONDS = 0.1
LOG_SECONDS = 0.1

_PACE_SECONDS = 5.0  # over which the speed of reading is taken
_SWEEP_SECONDS, _SWEEP_PART = 1.0, 0.02  # of a sweep, before which its pace tells nothing
_TREND_SECONDS = 10.0  # of training, before which the gap shows no trend
_TREND_POINTS = 20
_TREND_SPACING = 0.01  # of the time so far, between two points that are kept
_TREND_PART = 0.25  # of the time so far, which is left out
_TREND_FIT = 0.9  # least share of the gap's variance that a trend explains
_BETTER = 0.5  # most that the better of two trends leaves unexplained, as a part of the other's
_AGREE = 1.5  # factor within which two trends agree
_FAR = 20.0  # times the time so far: no trend is trusted further


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


class Clock:
    """Seconds of a run of one machine or more, each of which counts its own from 0."""

    def __init__(self) -> None:
        self._before = self._last = 0.0

    def __call__(self, state: SolverState) -> float:
        """Seconds of all machines up to `state`."""
        if state.elapsed_s < self._last:
            self._before += self._last
        self._last = state.elapsed_s
        return self._before + state.elapsed_s


class Pace:
    """Bytes read per second in the last few seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def __call__(self, state: SolverState) -> float | None:
        """Take note of `state`; None while there is nothing to compare it with."""
        points, now, read = self._points, state.elapsed_s, state.bytes_read
        if points and (now < points[-1][0] or read < points[-1][1]):
            points.clear()  # another machine
        points.append((now, read))
        while len(points) > 2 and points[0][0] < now - _PACE_SECONDS:
            points.popleft()
        seconds = now - points[0][0]
        return (read - points[0][1]) / seconds if seconds > 0 else None


class TimeLeft:
    """What is known of the time that a phase of a run will still take.

    A sweep tells by its fraction. Training tells only where the sampled gap has followed one of two
    laws closely, falling exponentially or like a power of the time, and where it is clear which, or
    both come to the same end.

    Parameters
    ----------
    tol : float or None
        Relative tolerance; None where the gap is compared with something else.
    ends_at : float or None
        Reading of `time.perf_counter` at the time limit.
    """

    def __init__(self, tol: float | None, ends_at: float | None = None) -> None:
        self._tol = tol
        self._ends_at = ends_at
        self._phase: tuple[int, str] | None = None
        self._first = 0.0, 0.0  # seconds and fraction at the beginning of the phase
        self._points: list[tuple[float, float]] = []  # seconds and logarithm of the gap

    def __call__(self, state: SolverState) -> str | None:
        """A few words, None where nothing is known."""
        phase = state.machine, state.phase
        if phase != self._phase:
            self._phase = phase
            self._first = state.elapsed_s, state.sweep_fraction or 0.0
            self._points.clear()
        if state.sweep_fraction is not None:
            seconds = self._of_sweep(state.elapsed_s, state.sweep_fraction)
            return None if seconds is None else f"sweep ends in {format_seconds(seconds)}"
        seconds = self._of_training(state)
        limit = math.inf if self._ends_at is None else self._ends_at - time.perf_counter()
        if seconds is not None and seconds < limit:
            return f"training ends in about {format_seconds(seconds)}"
        return None if limit == math.inf else f"time limit in {format_seconds(limit)}"

    def _of_sweep(self, now: float, fraction: float) -> float | None:
        seconds, part = now - self._first[0], fraction - self._first[1]
        if seconds < _SWEEP_SECONDS or part < _SWEEP_PART:
            return None
        return seconds / part * (1 - fraction)

    def _of_training(self, state: SolverState) -> float | None:
        gap, points = state.sampled_gap, self._points
        now = state.elapsed_s - self._first[0]
        if self._tol is None or gap is None or not 0 < gap < math.inf or now <= 0:
            return None
        if not points or now - points[-1][0] >= _TREND_SPACING * now:
            points.append((now, math.log(gap)))
        while points[0][0] < _TREND_PART * now:
            points.pop(0)
        if now < _TREND_SECONDS or len(points) < _TREND_POINTS:
            return None
        goal = math.log(self._tol)
        times = [time for time, _ in points]
        gaps = [value for _, value in points]
        end, rest = _meet(times, gaps, goal)
        log_end, other_rest = _meet([math.log(time) for time in times], gaps, goal)
        other_end = math.exp(min(log_end, 700.0))
        if other_rest < rest:
            end, rest, other_end, other_rest = other_end, other_rest, end, rest
        near, far = sorted((end - now, other_end - now))
        clear = rest <= _BETTER * other_rest or far <= _AGREE * near
        if rest > 1 - _TREND_FIT or not clear or not end - now <= _FAR * now:
            return None
        return max(0.0, end - now)


def _meet(x: Sequence[float], y: Sequence[float], goal: float) -> tuple[float, float]:
    """Where the line fitted to points, x not all equal, meets `goal`, and what it leaves of y.

    Returns
    -------
    place : float
        Infinite for a line that does not fall.
    rest : float
        Part of the variance of y that the line does not explain, 1 where there is none.
    """
    x_mean, y_mean = statistics.fmean(x), statistics.fmean(y)
    xx = sum((a - x_mean) ** 2 for a in x)
    xy = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    yy = sum((b - y_mean) ** 2 for b in y)
    slope = xy / xx
    place = x_mean + (goal - y_mean) / slope if slope < 0 else math.inf
    return place, 1.0 if yy == 0 else max(0.0, 1 - slope * xy / yy)


def phase_of(state: SolverState) -> str:
    """Name of the phase, with the machine where there are several, and the part of a sweep."""
    part = "" if state.sweep_fraction is None else f" {state.sweep_fraction:.0%}"
    return _phase_name(state) + part


def _phase_name(state: SolverState) -> str:
    if state.n_machines == 1:
        return state.phase
    return f"machine {state.machine + 1}/{state.n_machines} {state.phase}"


def describe(
    state: SolverState,
    pace: float | None = None,
    left: str | None = None,
    *,
    short: bool = False,
) -> str:
    """Sampled gap, support size, speed of reading and time left, in a few words.

    Parameters
    ----------
    state : SolverState
        What is described.
    pace : float or None
        Bytes read per second.
    left : str or None
        Time left, in words.
    short : bool
        For a line that has to share its width.
    """
    gap = state.sampled_gap
    parts = ["gap ?" if gap is None else f"gap {gap:.1e}"]
    parts.append(f"{state.n_support:,} {'SV' if short else 'support vectors'}")
    if pace is not None and pace >= 5e4:
        parts.append(f"{pace / 1e6:,.{0 if pace >= 1e7 else 1}f} MB/s")
    if left is not None:
        parts.append(left)
    return ", ".join(parts)


def format_seconds(seconds: float) -> str:
    """A duration for people: two digits and a unit."""
    for limit, unit, name in ((99.5, 1.0, "s"), (99.5 * 60, 60.0, "min")):
        if seconds < limit:
            return f"{max(seconds, 0.0) / unit:.0f} {name}"
    return f"{seconds / 3600:.{1 if seconds < 36000 else 0}f} h"


class Lines:
    """A line of text every few seconds, for logs and pipes."""

    def __init__(self, stream: IO[str], seconds: float, left: TimeLeft | None = None) -> None:
        self._stream = stream
        self._due = Throttle(seconds)
        self._clock, self._pace = Clock(), Pace()
        self._left = TimeLeft(None) if left is None else left

    def __call__(self, state: SolverState) -> None:
        """Print a line when one is due."""
        elapsed = self._clock(state)
        if not self._due():
            return
        left = self._left(state)
        print(
            f"{elapsed:.0f} s, {phase_of(state)}, iteration {state.iteration}: "
            f"{describe(state, self._pace(state), left)}",
            file=self._stream,
            flush=True,
        )

    def close(self) -> None:
        """Nothing to finish."""


class Phases:
    """Logs the beginning of each phase, at level INFO."""

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()

    def __call__(self, state: SolverState) -> None:
        """Log `state` where it is the first of its kind."""
        seen = (state.machine, state.phase)
        if seen == self._seen:
            return
        self._seen = seen
        logger.info(
            "%s after %.1f s, iteration %d: %s",
            _phase_name(state),
            state.elapsed_s,
            state.iteration,
            describe(state),
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
    left : TimeLeft or None
        Tells the time left.
    """

    def __init__(self, stream: IO[str], tol: float | None, left: TimeLeft | None = None) -> None:
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
        self._left = TimeLeft(tol) if left is None else left
        self._pace = Pace()
        self._machine = 0
        self._first_gap: float | None = None

    def __call__(self, state: SolverState) -> None:
        """Redraw the bar when it is time."""
        if state.machine != self._machine:
            self._machine, self._first_gap = state.machine, None
        if not self._due():
            return
        self._bar.n = round(100 * self._fraction(state))
        self._bar.set_description_str(phase_of(state), refresh=False)
        left = self._left(state)
        self._bar.set_postfix_str(describe(state, self._pace(state), left, short=True))

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
        with contextlib.suppress(OSError):  # nobody reads it any more
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

    Progress is logged up to ten times a second, whenever machine, phase or certified gap change, at
    the end of a sweep and of the run: all fields of the state, and the resident memory of the
    process, now and at its peak, in bytes. The file is written as the run goes, and not atomically,
    so that it can be followed and survives a run that dies. When it cannot be written, on a full
    disk for example, a warning says so once, and nothing more is written: a log is not worth a run.

    Parameters
    ----------
    path : str or Path
        File to write.
    append : bool
        Go on in a file that is there, such as that of the run that is resumed.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self._path = str(path)
        self._file = open_growing(path, append=append)
        self._failed = False
        if append and self._file.seekable() and self._file.tell() > 0:
            self._write_line("")  # the run before may have died within a line
        self._due = Throttle(LOG_SECONDS)
        self._last: tuple[object, ...] = ()
        self._waiting: SolverState | None = None  # the last one, where it was not written

    def __call__(self, state: SolverState) -> None:
        """Write the state down when it is time."""
        kind = (state.machine, state.phase, state.certified_gap, state.sweep_fraction == 1)
        self._waiting = state
        if self._due() or kind != self._last:
            self._last = kind
            self._write_state(state)

    def _write_state(self, state: SolverState) -> None:
        self._waiting = None
        memory = {"rss_bytes": rss_bytes(), "peak_rss_bytes": peak_rss_bytes()}
        self.write("progress", dataclasses.asdict(state) | memory)

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Append one event."""
        if self._waiting is not None:
            self._write_state(self._waiting)
        self._write_line(to_json({"event": event, **values}))

    def _write_line(self, line: str) -> None:
        if self._failed:
            return
        try:
            print(line, file=self._file)
        except OSError as error:
            self._failed = True
            logger.warning(
                "the log %s cannot be written (%s); the run goes on without it",
                self._path,
                error.strerror,
            )

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # what a full disk did not take, it takes no more
            self._file.close()


class Progress:
    """The displays of one run; a context manager.

    Parameters
    ----------
    stream : file or None
        Where to show progress, standard error by default.
    quiet : bool
        Show nothing; `log` is still written.
    verbose : bool
        A line each second in place of a bar, and the phases through `logging`.
    tol : float or None
        Relative tolerance, for the bar and the time left.
    ends_at : float or None
        Reading of `time.perf_counter` at the time limit.
    log : EventLog or None
        Told of every state too, and closed at the end.

    Attributes
    ----------
    displays : list of Display
        What the options ask for, the log included.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        *,
        quiet: bool = False,
        verbose: bool = False,
        tol: float | None = None,
        ends_at: float | None = None,
        log: EventLog | None = None,
    ) -> None:
        stream = sys.stderr if stream is None else stream
        left = TimeLeft(tol, ends_at)
        self.displays: list[Display] = []
        self._gone: list[Display] = []
        if verbose:
            self.displays += [Lines(stream, VERBOSE_SECONDS, left), Phases()]
        elif not quiet:
            self.displays.append(
                Bar(stream, tol, left) if stream.isatty() else Lines(stream, LINE_SECONDS, left)
            )
        if log is not None:
            self.displays.append(log)

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """To be given to `ooc_fw.solve.loop.solve`."""
        return (self._show,) if self.displays else ()

    def _show(self, state: SolverState) -> None:
        """Show a state everywhere; a display whose reader has gone is left out from then on."""
        for display in [display for display in self.displays if display not in self._gone]:
            try:
                display(state)
            except OSError:
                self._gone.append(display)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for display in self.displays:
            with contextlib.suppress(OSError):
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
