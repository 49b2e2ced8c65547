"""Progress of a run while it is under way: lines of text, and a log of events.

Callbacks read `ooc_fw.solver.state.SolverState` and never change the run. tqdm is not used: its
import takes a tenth of a second, it writes carriage returns into logs, and it fails when nobody
reads standard error any more.
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
from typing import TYPE_CHECKING, Any, Self

from ooc_fw.system.files import open_growing
from ooc_fw.system.memory import peak_rss_bytes, rss_bytes

if TYPE_CHECKING:
    from ooc_fw.solver.state import Callback, SolverState

logger = logging.getLogger(__name__)

LINE_SECONDS = 5.0  # between two lines of text
VERBOSE_SECONDS = 1.0  # between two lines of a verbose run
BAR_SECONDS = 0.2  # between two lines in the same place
LOG_SECONDS = 0.1  # between two events of a log, unless something changes that is always logged
_STOP_SECONDS = 1.0  # that the end of a display waits for a line that nobody reads
_ERASE = "\r\x1b[K"  # erases the line of a terminal


class Waiting:
    """Says on standard error what is under way: on a terminal in one line, elsewhere line by line.

    A thread does so, since one step may last long. When nobody reads standard error any more, the
    work continues without a display. `what` is what goes on. Calls say how much is done, in "rows"
    or in another `unit` ("B" for bytes), and the total if it is known. `seconds` are those between
    two lines that stay.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        *,
        unit: str = "rows",
        quiet: bool = False,
        in_place: bool = True,
        seconds: float | None = None,
    ) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._done: int | None = None
        self._started = time.monotonic()
        self._in_place = in_place and not quiet and sys.stderr.isatty()
        self._seconds = BAR_SECONDS if self._in_place else seconds or LINE_SECONDS
        self._ended = threading.Event()
        self._thread = None if quiet else threading.Thread(target=self._watch, daemon=True)

    def __call__(self, done: int, total: int | None = None) -> None:
        """Say how much is done."""
        self._total = self._total if total is None else total
        self._done = done

    def line(self) -> str:
        """What is under way, its share that is done if the total is known, and what is done."""
        if self._done is None:
            return self._what
        share = f" {self._done / self._total:.0%}" if self._total else ""
        if self._unit == "B":
            return f"{self._what}{share}, {self._done / 1e6:,.1f} MB"
        return f"{self._what}{share}, {self._done:,} {self._unit}"

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds):
            line = f"{time.monotonic() - self._started:.0f} s, {self.line()}"
            columns = shutil.get_terminal_size().columns - 1
            self._write(f"{_ERASE}{line[:columns]}" if self._in_place else f"{line}\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(text, end="", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Show nothing any more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
            self._thread = None
            if self._in_place:
                self._write(_ERASE)

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Progress(Waiting):
    """What a run shows and logs; a context manager whose `callbacks` the run gets.

    A `quiet` run shows nothing; its `log` is still written, and is closed at the end. A `verbose`
    one shows a line that stays each second. Unless `in_place`, no line is replaced by the next,
    since other text would break it. `what` is what the run is a part of.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        verbose: bool = False,
        in_place: bool = True,
        log: EventLog | None = None,
        what: str = "",
    ) -> None:
        self._prefix = f"{what}: " if what else ""
        quiet = quiet and not verbose
        seconds = VERBOSE_SECONDS if verbose else None
        what = f"{self._prefix}the first step"
        super().__init__(what, quiet=quiet, in_place=in_place and not verbose, seconds=seconds)
        self.callbacks: list[Callback] = [] if quiet else [self._show]
        self._last: SolverState | None = None
        self._log = log
        if log is not None:
            self.callbacks.append(log)

    def _show(self, state: SolverState) -> None:
        self._last = state

    def end(self, result: Mapping[str, Any]) -> None:
        """Log the end of the run."""
        if self._log is not None:
            self._log.write("end", result)

    def line(self) -> str:
        """What runs, on what, and how far it is."""
        state = self._last
        if state is None:
            return super().line()
        several = f"classifier {state.classifier + 1}/{state.n_classifiers} "
        line = self._prefix + several * (state.n_classifiers > 1) + state.phase
        line += " on a sample" * (state.gap_scope == "sample")
        if state.sweep_fraction is not None:
            line += f" {state.sweep_fraction:.0%}"
        if state.sampled_gap is not None:
            kinds = {"all": "sampled gap", "span": "gap in the span", "sample": "gap"}
            line += f", {kinds[state.gap_scope]} {state.sampled_gap:.1e}"
        if state.n_support:
            vectors = "support vectors" if state.gap_scope == "all" else "landmarks"
            line += f", {state.n_support:,} {vectors}"
        return line

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._log is not None:
            self._log.close()


class EventLog:
    """A file with one JSON object a line: ``start``, ``progress``, ``end``.

    A ``progress`` event holds the state and the memory of the process, in bytes. There are at most
    ten a second, and one whenever binary classifier, phase or certified gap change and at the end
    of a pass over the data. The file can be followed and survives a run that dies. When it cannot
    be written, one warning says so and the run continues. The log of a run that resumes goes on in
    a file that exists; `facts` are in its event ``start``.
    """

    def __init__(self, path: str | Path, *, resume: Any = None, **facts: Any) -> None:
        self._path = str(path)
        self._file = open_growing(path, append=resume is not None)
        self._failed = False
        self._next = 0.0  # when another event is due
        self._last: tuple[object, ...] = ()
        if resume is not None and self._file.seekable() and self._file.tell() > 0:
            self._print("")  # the run before may have died within a line
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.write("start", {"time": now, "resume": resume, **facts})

    def __call__(self, state: SolverState) -> None:
        """Write the state when it is time."""
        kind = (state.classifier, state.phase, state.certified_gap, state.sweep_fraction == 1)
        now = time.monotonic()
        if now >= self._next or kind != self._last:
            self._last = kind
            self._next = now + LOG_SECONDS
            rss = rss_bytes()  # the system may count the peak a moment later
            memory = {"rss_bytes": rss, "peak_rss_bytes": max(rss, peak_rss_bytes())}
            self.write("progress", dataclasses.asdict(state) | memory)

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Append one event."""
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
