"""What surrounds any run: callbacks, signals, the time limit, counts of work, and checkpoints.

A checkpoint is the state of a run between two iterations: an HDF5 image behind a line of text with
its checksum. Arrays are data sets ``state/<part>/<name>``; all other values, and the identity of
the run, are JSON. The file is written whole or not at all, and reading it runs no code.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.data.formats import CHECKPOINT
from ooc_fw.data.hdf5 import check_plain_tree, structure_errors
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.kernels.engine import Engine
from ooc_fw.options import TrainOptions
from ooc_fw.problem import Problem
from ooc_fw.solver.state import Phase, SolverState, Status, Stop
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.system.files import Output, check_outputs, write_atomic
from ooc_fw.system.interrupt import DeferredInterrupt, check_interrupt

if TYPE_CHECKING:
    from ooc_fw.solver.plan import Session

logger = logging.getLogger(__name__)

State: TypeAlias = dict[str, Any]
"""Name of a part -> array, something that JSON can hold, or a dictionary of such parts."""

Identity: TypeAlias = dict[str, dict[str, Any]]
"""What a run is: "options", "kernel" and "data", each name -> JSON value."""

FORMAT_VERSION = 9  # changes with what the state holds, and with how a run goes on from it
_FRONT = 512  # bytes before the HDF5 image
_MAGIC = CHECKPOINT.decode()
_ANEW = "train without --resume to start anew"

_BUDGETS = ("max_iter", "max_time", "threads", "exact")
"""Options that may change when a run is resumed: they say when to stop, not where to go.

`exact` is decided before: a run that is resumed is exact.
"""


@dataclass(frozen=True)
class CheckpointPlan:
    """Where a run writes checkpoints, and how many seconds lie between two of them."""

    path: str | os.PathLike[str]
    every_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.every_s < float("inf"):
            raise InputError(f"checkpoints must be some seconds apart, not {self.every_s}")


def save_checkpoint(path: str | os.PathLike[str], identity: Identity, state: State) -> None:
    """Write a checkpoint in place of an older one, which stays where that fails (OSError)."""
    image = BytesIO()
    with h5py.File(image, "w", userblock_size=_FRONT) as file:
        values = _put_arrays(file, "state", state)
        header = json.dumps({"identity": identity, "state": values}).encode()
        file["header"] = np.frombuffer(header, dtype=np.uint8)
    with image.getbuffer() as data:
        front = f"{_MAGIC} {FORMAT_VERSION} {_checksum([data[_FRONT:]])}\n".encode()
        data[: len(front)] = front
        write_atomic(path, data)


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[Identity, State]:
    """Read a checkpoint; InputError if there is no such file, or it is damaged or none."""
    name = f"the checkpoint {os.fspath(path)}"
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise InputError(f"{name} cannot be read ({error.strerror}); {_ANEW}") from error
    words = data[:_FRONT].partition(b"\n")[0].decode(errors="replace").split(" ")
    if " ".join(words[:-2]) != _MAGIC:
        raise InputError(
            f"{os.fspath(path)} is not a checkpoint; give the file that --checkpoint "
            f"wrote, or update a model with --stream"
        )
    *_, version, checksum = words
    if version != str(FORMAT_VERSION):
        raise InputError(
            f"{name} is of format {version}, and this ooc-fw reads {FORMAT_VERSION}; {_ANEW}"
        )
    if checksum != _checksum([memoryview(data)[_FRONT:]]):
        raise InputError(f"{name} is damaged (its checksum differs); {_ANEW}")
    with structure_errors(name), h5py.File(BytesIO(data), "r") as image:
        check_plain_tree(image)
        header = json.loads(image["header"][...].tobytes())
        return header["identity"], _take_arrays(image.get("state", {}), header["state"])


def _put_arrays(file: h5py.File, place: str, state: State) -> State:
    """Write the arrays of a state; the rest of it, for JSON."""
    values: State = {}
    for name, value in state.items():
        if isinstance(value, np.ndarray):
            file[f"{place}/{name}"] = value
        else:
            is_part = isinstance(value, dict)
            values[name] = _put_arrays(file, f"{place}/{name}", value) if is_part else value
    return values


def _take_arrays(group: Mapping[str, Any], state: State) -> State:
    """Add the arrays of a group, and of groups within it, to the rest of a state."""
    for name, node in group.items():
        is_array = isinstance(node, h5py.Dataset)
        state[name] = node[...] if is_array else _take_arrays(node, state[name])
    return state


def _checksum(parts: Iterable[Any]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        total.update(part)
    return total.hexdigest()


def run_identity(problem: Problem, options: TrainOptions) -> Identity:
    """What tells one run from another; a file is known by its size and time of change."""
    source, penalties = problem.source, problem.penalties
    data = {
        name: getattr(source, name)
        for name in ("n_rows", "n_features", "sparse", "shuffled", "chunk_rows")
    }
    if problem.task != "classification":  # which is the default, and is not stored
        data["task"] = problem.task
    data["labels"] = _checksum([np.ascontiguousarray(problem.answers)])
    if penalties is not None:
        data["penalties"] = _checksum([np.ascontiguousarray(penalties)])
    files = [source.name] if os.path.isfile(source.name) else []
    for place, _, names in os.walk(source.name):
        files += [os.path.join(place, name) for name in names]
    if files:
        known = [os.stat(file) for file in files]
        data["bytes"] = sum(status.st_size for status in known)
        data["modified_ns"] = max(status.st_mtime_ns for status in known)
    else:
        data["rows"] = _checksum(_arrays(source))
    chosen = {name: value for name, value in options.to_dict().items() if name not in _BUDGETS}
    return {"data": data, "kernel": problem.kernel.to_dict(), "options": chosen}


def _arrays(source: RowSource) -> Iterator[npt.NDArray[Any]]:
    for _, rows in iter_blocks(source, 0, source.n_rows):
        if isinstance(rows, CSRRows):
            yield from (rows.data, rows.indices, rows.indptr)
        else:
            yield np.ascontiguousarray(rows)


def check_same_run(path: str | os.PathLike[str], before: Identity, this: Identity) -> None:
    """Raise InputError, naming the differences, unless a checkpoint is of this run."""
    for kind, old in before.items():
        new = this[kind]
        differences = ", ".join(
            f"{key} {old.get(key)!r} (now {new.get(key)!r})"
            for key in {**old, **new}
            if old.get(key) != new.get(key)
        )
        if differences:
            other = "another kernel" if kind == "kernel" else f"other {kind}"
            raise InputError(
                f"the checkpoint {os.fspath(path)} was made with {other}: {differences}; give the "
                f"same (data copied with their time of change), or train without --resume"
            )


_SMALL_SHARE = 0.3  # share of the largest work measured, below which a measurement tells nothing
_FADING = 0.7  # factor of the weight of earlier measurements, at each new one
_PASS_SHARE = 0.5  # share of the limit above which a certificate is not worth its time
_SPARE = 1.2  # factor of every estimate
_BEYOND_TRAINING = 2.0  # a certifying pass does more for each row than training, by this factor
_FLOAT64 = 1.5  # factor from evaluations to the gradient in float64, half of which is computed
_LEAST_WORK = 1e6  # kernel values, or terms of them, from which on time is proportional to work
_GRACE = 0.1  # share of the limit by which a pass that is under way may exceed it
_EARLY = 0.02  # share of the limit during which the pace of a pass tells nothing
_POLISH_SHARE = 0.1  # share of the limit for optimising the weights on their vertices at the end


class Rate:
    """Seconds per unit of work; recent and large measurements count most, small ones not at all."""

    def __init__(self, least: float = _LEAST_WORK) -> None:
        self._least = least
        self._largest = self._seconds = self._work = 0.0

    def add(self, seconds: float, work: float) -> None:
        """Take a measurement into account."""
        if work < max(self._least, _SMALL_SHARE * self._largest):
            return
        fading = _FADING if _SMALL_SHARE * work < self._largest else 0.0
        self._largest = max(self._largest, work)
        self._seconds = fading * self._seconds + seconds
        self._work = fading * self._work + work

    def seconds_for(self, work: float) -> float:
        """Estimated time for some work; 0 while nothing was measured."""
        return self._seconds / self._work * work if self._work > 0 else 0.0


class Deadline:
    """Time left to a run of `max_time` seconds, or without a limit, from a reading of `clock` on.

    A certificate and what else ends a run take time as well, which is estimated from the work so
    far. In what follows `n_active` is the number of vertices, and `pass_work` the rows times
    support vectors of the certifying pass, 0 without one.
    """

    def __init__(
        self, max_time: float | None, started: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._max_time = math.inf if max_time is None else max_time
        self.limited = self._max_time < math.inf
        self._started, self._clock = started, clock
        # By rows times support vectors, while training and in certifying passes.
        self.evaluations, self.passes = Rate(), Rate()
        self.gradients = Rate()  # in float64 of the active set, by the square of its size

    def left(self) -> float:
        """Seconds until the limit."""
        return self._max_time - (self._clock() - self._started)

    def check(self) -> None:
        """Raise OutOfTimeError if time is over, before there is a model."""
        if self.left() <= 0:
            raise OutOfTimeError(
                f"the time limit of {self._max_time:g} s was over before there was a model, so "
                f"that nothing was written; allow more time"
            )

    def pass_takes(self, work: float) -> float:
        """Estimated seconds of a pass over so many rows times support vectors."""
        measured = self.passes.seconds_for(work)
        return measured or _BEYOND_TRAINING * self.evaluations.seconds_for(work)

    def kept_for_pass(self, seconds: float) -> float:
        """Seconds to keep for a pass that takes so many; 0 where it is not worth its time."""
        return _SPARE * seconds if _SPARE * seconds <= _PASS_SHARE * self._max_time else 0.0

    def allows_pass(self, seconds: float = 0.0) -> bool:
        """Whether a pass that takes so many more seconds will end in time, or soon after."""
        return _SPARE * seconds <= self.left() + _GRACE * self._max_time

    def pass_is_late(self, seconds: float, fraction: float) -> bool:
        """Whether a pass that has done `fraction` of its work in `seconds` will end too late."""
        rest = seconds / fraction * (1 - fraction)
        return seconds >= _EARLY * self._max_time and not self.allows_pass(rest / _SPARE)

    def end_takes(self, n_active: int, pass_work: float) -> float:
        """Seconds to keep for the gradient in float64 and the certifying pass."""
        measured = self.gradients.seconds_for(n_active**2)
        gradient = measured or _FLOAT64 * self.evaluations.seconds_for(n_active**2)
        return _SPARE * gradient + self.kept_for_pass(self.pass_takes(pass_work))

    def polish_takes(self) -> float:
        """Seconds to keep for optimising the weights and choosing among candidates at the end."""
        return _POLISH_SHARE * self._max_time

    def is_over(self, n_active: int, pass_work: float) -> bool:
        """Whether training has to stop now."""
        if not self.limited:
            return False
        return self.left() <= self.end_takes(n_active, pass_work) + self.polish_takes()


class Shell(ABC):
    """One run: what it tells while it goes on, and how it is ended; subclasses are algorithms."""

    engine: Engine | None = None  # counts kernel values, once there is one
    gives_up = True  # whether the clock may end the run before it has a model

    def __init__(
        self, session: Session, options: TrainOptions, source: RowSource, progress: SolverState
    ) -> None:
        self.session, self.options = session, options
        self.source, self.progress = source, progress
        self.deadline = session.deadline(options)
        self.interrupt = session.interrupt or DeferredInterrupt()
        self._identity: Identity = {}
        self._saved_at, self._save_failed = time.perf_counter(), False
        self._unwanted = False  # whether a callback has asked for the end
        self._zero = {**dict.fromkeys(self._readings(), 0), "elapsed_s": time.perf_counter()}

    @property
    def has_model(self) -> bool:
        """Whether there are weights that the run could end with; before, only errors end it."""
        return True

    @abstractmethod
    def is_over(self) -> bool:
        """Whether what is under way has to end now, so that the rest fits the time limit."""

    @abstractmethod
    def update(self) -> SolverState:
        """Bring `progress` up to date; what callbacks are told of it."""

    def _readings(self) -> dict[str, float]:
        return {
            "kernel_evaluations": 0 if self.engine is None else self.engine.evaluations,
            "rows_read": self.source.rows_read,
            "bytes_read": self.source.bytes_read,
            "elapsed_s": time.perf_counter(),
        }

    def count(self) -> None:
        """Bring the counts of `progress` up to date."""
        for name, reading in self._readings().items():
            setattr(self.progress, name, reading - self._zero[name])

    def count_from(self, progress: SolverState) -> None:
        """Go on from the counts of `progress`: nothing that was done since then counts."""
        self._zero = {
            name: reading - getattr(progress, name) for name, reading in self._readings().items()
        }

    def guard(self) -> AbstractContextManager[object]:
        """Handles signals within, unless the caller does."""
        return nullcontext() if self.session.interrupt else self.interrupt

    def report(self, share: float | None = None) -> None:
        """Tell the callbacks; a signal, a False from one of them, or the clock raises Stop."""
        check_interrupt()
        self.progress.sweep_fraction = share
        self.tell()
        if not self.has_model:
            if self.gives_up:
                self.deadline.check()
        elif self._unwanted or self.interrupt.noted is not None:
            signalled = self.interrupt.noted is not None
            raise Stop(Status.INTERRUPTED if signalled else Status.STOPPED)
        elif self.is_over():
            raise Stop(Status.TIME_LIMIT)

    def tell(self) -> None:
        """Tell the callbacks how the run stands; a False from one of them counts at `report`."""
        if self.session.callbacks:
            told = self.update()
            answers = [callback(told.copy()) for callback in self.session.callbacks]
            self._unwanted |= any(answer is False for answer in answers)

    def status_of(self, work: Callable[[], Status]) -> Status:
        """The status that work ends with, also where a limit or an interrupt ends it."""
        try:
            return work()
        except Stop as stop:
            return stop.status
        except KeyboardInterrupt as interrupt:
            nothing_to_return = not (self.interrupt.defers and self.has_model)
            if self.interrupt.urgent or nothing_to_return:  # urgent: a second signal
                raise
            self.interrupt.noted = interrupt.args[0] if interrupt.args else None
            return Status.INTERRUPTED

    def certify_late(self, status: Status, seconds: float, passes: Callable[[], bool]) -> Status:
        """Certify the weights of a run that stopped early, if there is time; its last status.

        `passes` makes the pass, of so many `seconds`, and tells whether the gap is within the
        tolerance, which it may be all the same.
        """
        in_time = self.deadline.allows_pass(seconds)
        if not self.options.certify or status.was_asked_for or not in_time:
            return status
        self.progress.phase = Phase.CERTIFY
        return self.status_of(lambda: Status.CONVERGED if passes() else status)

    def open_checkpoints(self, problem: Problem) -> State | None:
        """The state to resume from, None to begin; InputError for one of another run."""
        session = self.session
        if session.checkpoint is None and session.resume is None:
            return None
        if session.checkpoint is not None:
            check_outputs([Output("checkpoint", session.checkpoint.path)], [self.source.name])
        self.count()
        self._identity, state = run_identity(problem, self.options), None
        if session.before is not None and session.resume is not None:
            identity, state = session.before
            check_same_run(session.resume, identity, self._identity)
        self.count_from(self.progress)
        return state

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        plan = self.session.checkpoint
        return plan is not None and time.perf_counter() >= self._saved_at + plan.every_s

    def save(self, snapshot: Callable[[], State]) -> None:
        """Write a checkpoint, if they are wanted; where that fails is a warning, the first time."""
        plan = self.session.checkpoint
        if plan is None:
            return
        self.interrupt.defer()
        try:
            save_checkpoint(plan.path, self._identity, snapshot())
        except (OSError, InputError) as error:
            if not self._save_failed:
                logger.warning(
                    "the checkpoint %s cannot be written (%s); the run goes on without it",
                    os.fspath(plan.path),
                    error.strerror if isinstance(error, OSError) else error,
                )
            self._save_failed = True
        self._saved_at = time.perf_counter()
