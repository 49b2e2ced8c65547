"""Progress of a run while it is under way: lines of text, and a log of events.

Callbacks read `ooc_fw.solver.state.SolverState` and never change the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ooc_fw.system.files import exact, open_growing
from ooc_fw.system.memory import peak_rss_bytes, rss_bytes

if TYPE_CHECKING:
    from ooc_fw.solver.state import Callback, SolverState

logger = logging.getLogger(__name__)

LINE_SECONDS = 5.0  # between two lines of text
_GRACE_SECONDS = 0.2  # a line that is due waits so long for the end of a step, then is shown
VERBOSE_SECONDS = 1.0  # between two lines of a verbose run
BAR_SECONDS = 0.1  # between two lines in the same place
LOG_SECONDS = 0.1  # between two events of a log, unless something changes that is always logged

_ERASE = "\r\x1b[K"  # erases the line of a terminal
_LEAST_PASS = 1.0, 0.02  # seconds and fraction of a pass after which its end is estimated
_LINE_COLUMNS = 80  # of a line that stays
_PHASES = {"start": "first rows", "polish": "best weights"}
"""Phases of a run that are called otherwise for people."""
_LONG_STEPS = {"train": "a long step", "certify": "a block of all rows"}
"""What may take long in a phase, where its name does not say it."""


class Throttle:
    """True at most once in `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = time.monotonic() + seconds

    def __call__(self) -> bool:
        """Whether the time has come."""
        now = time.monotonic()
        due = now >= self._next
        if due:
            self._next = now + self._seconds
        return due


class Waiting:
    """Shows lines that say that work goes on: on a terminal in place of one another.

    `what` says what is done; `seconds` are those between two lines that stay. When nobody reads
    standard error any more, the work continues without a display. Where one step lasts long, a
    thread shows a line; each takes twice as long to come as the one before, if they stay. Of
    displays within one another, only the innermost one does so.
    """

    _entered: ClassVar[list[Waiting]] = []  # the innermost one is the last
    began: ClassVar[float | None] = None  # reading of `time.monotonic` when the command began

    def __init__(
        self, what: str, *, quiet: bool = False, in_place: bool = True, seconds: float | None = None
    ) -> None:
        self._what, self._started = what, time.monotonic()
        self._in_place = in_place and not quiet and sys.stderr.isatty()
        self._stream = exact(sys.stderr) if self._in_place else sys.stderr
        seconds = LINE_SECONDS if seconds is None else seconds
        self._due = Throttle(math.inf if quiet else BAR_SECONDS if self._in_place else seconds)
        self._wait = None if quiet else seconds + _GRACE_SECONDS
        self._spoke, self._ended = threading.Event(), False

    def _line(self) -> str:
        return f"{self._what} is under way"

    def _print(self, text: str) -> None:
        self._spoke.set()
        now = time.monotonic()
        own, total = (
            now - self._started,
            now - (self._started if self.began is None else self.began),
        )
        in_all = f" ({total:.0f} s in all)" if total >= own + 1 else ""
        line, columns = f"{own:.0f} s{in_all}, {text}", _LINE_COLUMNS
        if self._in_place:
            columns = shutil.get_terminal_size().columns - 1
        while len(line) > columns and line.count(", ") > 1:  # the least important words come last
            line = line.rpartition(", ")[0]
        self._write(f"{_ERASE}{line[:columns]}" if self._in_place else f"{line}\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(text, end="", file=self._stream, flush=True)

    def _watch(self) -> None:
        """Show a line whenever none was shown for too long; for a thread."""
        wait = self._wait or 0.0
        while not self._ended:
            silent = not self._spoke.wait(wait)
            if not silent:
                wait = self._wait or 0.0
            elif self._entered[-1:] == [self] and self._due():
                self._print(self._line())
                wait *= 1 if self._in_place else 2
            self._spoke.clear()

    def __enter__(self) -> Self:
        self._entered.append(self)
        if self._wait is not None:
            threading.Thread(target=self._watch, name="ooc-fw-display", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        if self in self._entered:
            self._entered.remove(self)
        self._ended = True
        self._spoke.set()
        if self._in_place:
            self._write(_ERASE)


class Progress(Waiting):
    """What a run shows and logs; a context manager whose `callbacks` the run gets.

    A `quiet` run shows nothing; its `log` is still written, and is closed at the end. A `verbose`
    one shows a line that stays each second, and logs its phases through `logging`. Unless
    `in_place`, no line is replaced by the next, since other text would break it. `ends_at` is a
    reading of `time.perf_counter` at the time limit. `what` is what the run is a part of.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        verbose: bool = False,
        in_place: bool = True,
        ends_at: float | None = None,
        log: EventLog | None = None,
        what: str = "",
    ) -> None:
        self._prefix = f"{what}: " if what else ""
        super().__init__(
            f"{self._prefix}the first step",
            quiet=quiet and not verbose,
            in_place=in_place and not verbose,
            seconds=VERBOSE_SECONDS if verbose else None,
        )
        shown = (self._show,) if verbose or not quiet else ()
        self.callbacks: tuple[Callback, ...] = shown if log is None else (*shown, log)
        self._verbose, self._ends_at, self._log = verbose, ends_at, log
        self._last: SolverState | None = None
        self._first: SolverState | None = None  # of the current phase
        self._pass: SolverState | None = None  # after the first block of the current pass

    def end(self, result: Mapping[str, Any]) -> None:
        """Log the end of the run."""
        if self._log is not None:
            self._log.write("end", result)

    def _show(self, state: SolverState) -> None:
        last, self._last = self._last, state
        begins = last is None or (last.classifier, last.phase) != (state.classifier, state.phase)
        if begins:
            self._first = state
        before = None if last is None or begins else last.sweep_fraction
        if before is None or state.sweep_fraction is None or state.sweep_fraction < before:
            self._pass = state
        due = self._due()
        if begins and self._verbose:
            name = f"{self._phase(state)} after {state.elapsed_s:.1f} s"
            logger.info("%s", self._sentence(name, state))
        if not due:
            return
        name = self._phase(state)
        if state.sweep_fraction is not None:
            name = f"{name} {state.sweep_fraction:.0%}"
        self._print(self._sentence(name, state))

    def _sentence(self, name: str, state: SolverState) -> str:
        """A name and what is known of gap, time left, support and speed of reading."""
        kind = {"all": "sampled gap", "span": "gap in the span", "sample": "gap"}[state.gap_scope]
        words = [] if state.sampled_gap is None else [f"{kind} {state.sampled_gap:.1e}"]
        first, begin = self._first or state, self._pass or state
        seconds = state.elapsed_s - first.elapsed_s
        speed = (state.bytes_read - first.bytes_read) / seconds / 1e6 if seconds > 0 else 0.0
        if state.sweep_fraction is not None:
            seconds = state.elapsed_s - begin.elapsed_s
            done = state.sweep_fraction - (begin.sweep_fraction or 0.0)
            if seconds >= _LEAST_PASS[0] and done >= _LEAST_PASS[1]:
                left = seconds / done * (1 - state.sweep_fraction)
                words.append(f"pass ends in {format_seconds(left)}")
        elif self._ends_at is not None:
            words.append(f"time limit in {format_seconds(self._ends_at - time.perf_counter())}")
        if state.n_support:
            vectors = "support vectors" if state.gap_scope == "all" else "landmarks"
            words.append(f"{state.n_support:,} {vectors}")
        if speed >= 0.05:
            words.append(f"{speed:,.{0 if speed >= 10 else 1}f} MB/s")
        return ": ".join([name, ", ".join(words)][: 1 + bool(words)])

    def _line(self) -> str:
        state = self._last
        if state is None:
            return super()._line()
        step = _LONG_STEPS.get(state.phase)
        return f"{self._phase(state)}{f': {step}' if step else ''} is under way"

    def _phase(self, state: SolverState) -> str:
        """What runs: of which of several binary classifiers, and whether on a sample of rows."""
        many = state.n_classifiers > 1
        name = f"classifier {state.classifier + 1}/{state.n_classifiers} " if many else ""
        sample = " on a sample" if state.gap_scope == "sample" else ""
        return f"{self._prefix}{name}{_PHASES.get(state.phase, state.phase)}{sample}"

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._log is not None:
            self._log.close()


def format_seconds(seconds: float) -> str:
    """A duration for people: two digits and a unit."""
    for limit, unit, name in ((99.5, 1.0, "s"), (99.5 * 60, 60.0, "min")):
        if seconds < limit:
            return f"{max(seconds, 0.0) / unit:.0f} {name}"
    return f"{seconds / 3600:.{1 if seconds < 36000 else 0}f} h"


_FEW = 100  # units that take so long each that a speed says little


class RowProgress(Waiting):
    """Progress of one pass over data, called with what is done and the total if that is known.

    `what` names the pass; `unit` is "rows", or "B" for bytes.
    """

    def __init__(
        self, what: str, total: int | None = None, *, quiet: bool = False, unit: str = "rows"
    ) -> None:
        super().__init__(what, quiet=quiet)
        self._done, self._total, self._unit = 0, total, unit

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show how much is done when it is time."""
        self._total = self._total if total is None else total
        self._done = done
        if self._due():
            self._print(self._line())

    def _line(self) -> str:
        if not self._done:
            return super()._line()
        part = f" {self._done / self._total:.0%}" if self._total else ""
        speed = self._done / (time.monotonic() - self._started)
        words = f"{speed:,.0f} {self._unit}/s"
        if self._unit == "B":
            words = f"{speed / 1e6:,.1f} MB/s"
        elif self._total and self._total < _FEW:
            words = f"{self._done} of {self._total} {self._unit}"
        return f"{self._what}{part}: {words}"


class EventLog:
    """A file with one JSON object a line: ``start``, ``progress``, ``end``.

    A ``progress`` event holds the state and the memory of the process, in bytes. There are at most
    ten a second, and one whenever binary classifier, phase or certified gap change, at the end of a
    pass over the data and of the run. The file can be followed and survives a run that dies. When
    it cannot be written, one warning says so and the run continues. With `append`, a file that
    exists is continued.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self._path = str(path)
        self._file = open_growing(path, append=append)
        self._failed = False
        if append and self._file.seekable() and self._file.tell() > 0:
            self._print("")  # the run before may have died within a line
        self._due = Throttle(LOG_SECONDS)
        self._last: tuple[object, ...] = ()
        self._skipped: SolverState | None = None  # the last state, if it was not written

    @classmethod
    def begin(cls, path: str | Path, *, resume: Any, **facts: Any) -> EventLog:
        """The log of a run, or with `resume` of its continuation, and its event ``start``."""
        log = cls(path, append=resume is not None)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        log.write("start", {"time": now, "resume": resume, **facts})
        return log

    def __call__(self, state: SolverState) -> None:
        """Write the state when it is time."""
        kind = (state.classifier, state.phase, state.certified_gap, state.sweep_fraction == 1)
        self._skipped = state
        if self._due() or kind != self._last:
            self._last = kind
            self._write_skipped()

    def _write_skipped(self) -> None:
        state, self._skipped = self._skipped, None
        if state is not None:
            rss = rss_bytes()  # the system may count the peak a moment later
            memory = {"rss_bytes": rss, "peak_rss_bytes": max(rss, peak_rss_bytes())}
            self._print(to_json({"event": "progress", **dataclasses.asdict(state), **memory}))

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Append one event."""
        self._write_skipped()
        self._print(to_json({"event": event, **values}))

    def _print(self, line: str) -> None:
        try:
            if not self._failed:
                print(line, file=self._file)
        except OSError as error:
            self._failed = True
            words = "the log %s cannot be written (%s); the run continues without it"
            logger.warning(words, self._path, error.strerror)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # the disk is still full
            self._file.close()


def to_json(values: Mapping[str, Any]) -> str:
    """One line of JSON, in which numbers that are not finite are null."""
    return json.dumps(_plain(values), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
