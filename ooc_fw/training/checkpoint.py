"""Checkpoints: model files of runs that go on, and warm starts from them.

A checkpoint is written as any model is, by `Model.save`, with the status "running". Its text `run`
is JSON: what the run is (`identity`), how many landmarks were planned, and where the random draws
stand. A run that is resumed begins with the weights of the file and goes on drawing from there. Of
several classifiers for pairs of classes, those that are finished stay as they are; the others are
those of a few rows, without gaps, and begin anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ooc_fw.data.rows import CSRRows, Int64Array, take_rows
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.landmarks import LandmarkStart
from ooc_fw.model.record import Model, load_model
from ooc_fw.options import START_ROWS, TrainOptions
from ooc_fw.problem import Problem
from ooc_fw.solver.plan import Plan
from ooc_fw.solver.state import Draws, Solution, Status, StepKind, Warm
from ooc_fw.solver.surroundings import Checkpoint
from ooc_fw.system.errors import InputError
from ooc_fw.training.streams import solutions_of

EVERY_S = 60.0
"""Seconds from one checkpoint to the next, unless told otherwise."""

_FREE = ("max_iter", "max_time", "threads", "memory_limit", "landmarks", "exact")
"""Options that may change when a run is resumed: they say when to stop, or are in the file."""


def saving(
    checkpoint: Checkpoint, problem: Problem, plan: Plan, model_of: Callable[[Any], Model]
) -> Checkpoint:
    """The checkpoint of a run, whose weights become a model by `model_of`."""
    facts = {"identity": identity(problem, plan.options), "landmarks": plan.landmarks}

    def write(path: str | os.PathLike[str], solution: Any, draws: Draws | None) -> None:
        run = {**facts, "draws": None if draws is None else asdict(draws)}
        model = replace(model_of(solution), status=str(Status.RUNNING), run=json.dumps(run))
        if checkpoint.rows is not None:
            model = model.renumbered(*checkpoint.rows)
        model.save(path)

    return replace(checkpoint, write=write)


def identity(problem: Problem, options: TrainOptions) -> dict[str, dict[str, Any]]:
    """What tells one run from another; a file is known by its size and time of change."""
    source = problem.source
    data = {name: getattr(source, name) for name in ("n_rows", "n_features", "sparse")}
    data["task"] = problem.task
    data["labels"] = _checksum([problem.answers])
    if problem.penalties is not None:
        data["penalties"] = _checksum([problem.penalties])
    files = [source.name] if os.path.isfile(source.name) else []
    for place, _, names in os.walk(source.name):
        files += [os.path.join(place, name) for name in names]
    if files:
        known = [os.stat(file) for file in files]
        data["bytes"] = sum(status.st_size for status in known)
        data["modified_ns"] = max(status.st_mtime_ns for status in known)
    else:
        data["rows"] = _checksum(_arrays(source))
    chosen = {name: value for name, value in options.to_dict().items() if name not in _FREE}
    return {"data": data, "kernel": problem.kernel.to_dict(), "options": chosen}


def _checksum(parts: Iterable[Any]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        contiguous: Any = np.ascontiguousarray(part)
        total.update(contiguous)
    return total.hexdigest()


def _arrays(source: RowSource) -> Iterable[Any]:
    for _, rows in iter_blocks(source, 0, source.n_rows):
        yield from (rows.data, rows.indices, rows.indptr) if isinstance(rows, CSRRows) else [rows]


@dataclass(frozen=True)
class Resumed:
    """A run that goes on from a checkpoint.

    `rows` are the numbers in the data of those rows that are trained on; None if all are.
    """

    path: str
    model: Model
    run: dict[str, Any]
    rows: Int64Array | None = None

    def options(self, options: TrainOptions) -> TrainOptions:
        """Options of the same kind of model; InputError for those of another kind."""
        before = self.run["landmarks"]
        if options.landmarks not in (None, before) or (options.exact and before is not None):
            given = "--exact" if options.exact else "--landmarks"
            kind = "an exact model" if before is None else f"a model with {before} landmarks"
            raise InputError(
                f"the checkpoint {self.path} is of {kind}; leave out {given}, or train without "
                f"--resume"
            )
        if before is None:
            return replace(options, landmarks=None, exact=True)
        return replace(options, landmarks=max(before, START_ROWS), exact=False)

    def start(
        self, problem: Problem, options: TrainOptions
    ) -> Warm | Sequence[Solution | None] | LandmarkStart:
        """What the run begins with, given the options that were planned.

        InputError, naming the differences, unless the checkpoint is of this run.
        """
        this = identity(problem, options)
        for kind, old in self.run["identity"].items():
            new = this[kind]
            differing = [key for key in {**old, **new} if old.get(key) != new.get(key)]
            if differing:
                words = [f"{key} {old.get(key)!r} (now {new.get(key)!r})" for key in differing]
                other = "another kernel" if kind == "kernel" else f"other {kind}"
                raise InputError(
                    f"the checkpoint {self.path} was made with {other}: {', '.join(words)}; give "
                    f"the same (data copied with their time of change), or train without --resume"
                )
        draws = None if self.run["draws"] is None else Draws(**self.run["draws"])
        first = self.model.classifiers[0]
        rows = self._places(self.model.rows[first.sv])
        if self.model.kind == "landmarks":
            beta = np.array([one.beta for one in self.model.classifiers])
            whole = first.primal is not None
            return LandmarkStart(rows, beta, whole=whole, draws=draws)
        if len(self.model.classifiers) == 1:
            return Warm(rows, first.alpha, draws)
        return [self._finished(one, options) for one in solutions_of(self.model)]

    def _places(self, rows: Int64Array) -> Int64Array:
        return rows if self.rows is None else np.searchsorted(self.rows, rows)

    def _finished(self, one: Solution | None, options: TrainOptions) -> Solution | None:
        """The solution of a pair that was trained to its end; None for one that was not."""
        if one is None or (one.certified_gap is None and one.sampled_gap is None):
            return None
        return replace(
            one,
            rows=self._places(one.rows),
            status=Status.CONVERGED if options.certify else Status.SAMPLED,
            method=options.method,
            lmo=options.lmo,
            support_vectors=take_rows(one.support_vectors, np.empty(0, dtype=np.int64)),
            steps=dict.fromkeys(StepKind, 0),
        )


def load_resumed(path: str | os.PathLike[str]) -> Resumed:
    """Read a checkpoint; InputError if there is none, or it is damaged, or a model that is done."""
    name = os.fspath(path)
    model = load_model(path)
    if model.run is None:
        raise InputError(
            f"{name} is a model, and not a checkpoint, from which a run goes on; give the file "
            f"that --checkpoint wrote, or update a model with --stream"
        )
    return Resumed(name, model, json.loads(model.run))
