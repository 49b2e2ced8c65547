"""Progress of a run: lines of text, and a log of events.

tqdm does not suit: its import takes 0.05 s, and it shows nothing during a long step.
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
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from ooc_fw._core.loading import Compilation
from ooc_fw.system.errors import InputError, format_gap
from ooc_fw.system.files import open_growing
from ooc_fw.system.memory import peak_rss_bytes, rss_bytes

if TYPE_CHECKING:
    from ooc_fw.solver.state import Callback, SolverState

logger = logging.getLogger(__name__)

LINE_SECONDS = 5.0  # time between two lines of text
BAR_SECONDS = 0.2  # time between two updates of a line in place on a terminal

# What the sampled gap of a state is, by its `gap_scope`.
_GAPS = {
    "all": "sampled gap",
    "columns": "gap",
    "span": "gap in the span",
    "sample": "gap on a sample",
    "chunk": "gap over the last rows",
}

# Standard error may be None, closed, any object, or a pipe whose reader has gone.
_NO_SCREEN = (AttributeError, ValueError, OSError)


class Waiting:
    """Shows progress on standard error, by default in place if this is a terminal.

    A thread writes the lines, since one step may last long. A call tells how many rows are done.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        *,
        unit: str = "rows",
        quiet: bool = False,
        in_place: bool = True,
    ) -> None:
        self.line = what
        self._what = what
        self._total = total
        self._unit = unit
        self.started = time.perf_counter()  # from which the seconds are counted
        self._in_place = False
        with contextlib.suppress(*_NO_SCREEN):
            self._in_place = in_place and sys.stderr.isatty()
        self._ended = threading.Event()
        self._thread = None if quiet else threading.Thread(target=self._watch, daemon=True)

    def say(self, what: str) -> None:
        """Tell what is done."""
        self.line = f"{self._what}: {what}"

    def __call__(self, done: int, total: int | None = None) -> None:
        """Tell how much is done, and perhaps the total."""
        self._total = total or self._total
        share = f" {done / self._total:.0%}" if self._total else ""
        self.line = f"{self._what}{share}, {done:,} {self._unit}"

    def _watch(self) -> None:
        while not self._ended.wait(BAR_SECONDS if self._in_place else LINE_SECONDS):
            own = ", compiling, once (about 40 s)" if Compilation.begun > Compilation.ended else ""
            self._write(f"{time.perf_counter() - self.started:.0f} s, {self.line}{own}")

    def _write(self, line: str) -> None:
        text = f"{line}\n"
        if self._in_place:  # erase the previous line
            text = f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}"
        with contextlib.suppress(*_NO_SCREEN):
            sys.stderr.write(text)
            sys.stderr.flush()

    def stop(self) -> None:
        """Stop showing progress."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(1.0)  # it hangs if nobody reads its last line
            self._thread = None
            if self._in_place:
                self._write("")

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Progress(Waiting):
    """Display and log of a run: a context manager with the `callbacks` for the run.

    The `log` is written even if the run is `quiet`, and closed at the end.
    """

    def __init__(
        self, *, quiet: bool = False, in_place: bool = True, log: EventLog | None = None
    ) -> None:
        super().__init__("the first step", quiet=quiet, in_place=in_place)
        self._log = log
        # When a run first told its share of the work, and that share: an earlier run did it.
        self._first: tuple[float, float] | None = None
        self.callbacks: list[Callback] = [] if quiet else [self._show]
        if log is not None:
            self.callbacks.append(log)

    def _show(self, state: SolverState) -> None:
        parts = []
        if state.n_classifiers > 1:
            parts.append(f"{state.n_finished} of {state.n_classifiers} classifiers")
        if state.n_stages > 1:
            parts.append(f"stage {state.stage} of {state.n_stages}")
        if state.share is not None:
            parts += self._time_left(state.share)
        fraction = state.sweep_fraction
        parts.append(state.phase if fraction is None else f"{state.phase} {fraction:.0%}")
        if state.sampled_gap is not None:
            parts.append(f"{_GAPS[state.gap_scope]} {format_gap(state.sampled_gap)}")
        if state.n_support:
            vectors = "support vectors" if state.gap_scope == "all" else "landmarks"
            parts.append(f"{state.n_support:,} {vectors}")
        self.line = ", ".join(parts)

    def _time_left(self, share: float) -> list[str]:
        """Words for the share of the work that is done, and for the time that the rest takes."""
        now = time.perf_counter()
        if self._first is None or share < self._first[1]:
            self._first = now, share
        began, before = self._first
        if share == before:
            return []
        left = (now - began) * (1 - share) / (share - before)
        return [f"{share:.0%} done", f"about {max(1, round(left))} s left"]

    def end(self, result: Mapping[str, Any]) -> None:
        """Log the end of the run."""
        if self._log is not None:
            self._log.write("end", result)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._log is not None:
            self._log.close()


class EventLog:
    """A file with one JSON object per line: ``start`` with `facts`, ``progress``, ``end``.

    A ``progress`` event holds the state, the seconds since the log began, and the memory of the
    process in bytes. There are at most ten a second, and always one if phase, stage or certified
    gap of a classifier change, or if a reading ends. If the file cannot be written, there is one
    warning and the run continues.
    """

    def __init__(self, path: str | Path, *, resume: Any = None, **facts: Any) -> None:
        self._path = str(path)
        self._file: IO[bytes] | None = None  # opened by the first event: the run has begun
        self._start = {"resume": resume, **facts}
        self._failed = False
        self._started = self._next = time.monotonic()  # the next event is due at `_next`
        self._last: dict[int, tuple[object, ...]] = {}  # by classifier, of which several may train

    def __call__(self, state: SolverState) -> None:
        """Write the state if an event is due."""
        kind = (state.stage, state.phase, state.certified_gap, state.sweep_fraction == 1)
        now = time.monotonic()
        if now >= self._next or kind != self._last.get(state.classifier):
            self._last[state.classifier] = kind
            self._next = now + 0.1
            rss = rss_bytes()  # the peak of the system may lag behind
            memory = {"rss_bytes": rss, "peak_rss_bytes": max(rss, peak_rss_bytes())}
            # The time of a state may be that of one classifier.
            time_s = {"elapsed_s": now - self._started}
            self.write("progress", dataclasses.asdict(state) | memory | time_s)

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Append one event, in one write: a process that is killed leaves whole lines."""
        line = to_json({"event": event, **values}) + "\n"
        if self._failed:
            return
        try:
            if self._file is None:
                self._file = open_growing(self._path, append=self._start["resume"] is not None)
                line = to_json({"event": "start", **self._start}) + "\n" + line
            self._file.write(line.encode())
        except (OSError, InputError) as error:
            self._failed = True
            words = "the log %s cannot be written (%s); the run continues without it"
            logger.warning(words, self._path, getattr(error, "strerror", None) or error)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def is_log(path: Path) -> bool:
    """Whether a file begins like a log; its run may have been killed within the first line."""
    with path.open("rb") as file:
        return b'{"event": "start"'.startswith(file.read(64).lstrip()[:17])


def to_json(values: Mapping[str, Any]) -> str:
    """One line of JSON; infinite numbers and NaN become null."""
    return json.dumps(_plain(values), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
