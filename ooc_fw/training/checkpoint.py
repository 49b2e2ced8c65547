"""Checkpoints: model files of unfinished runs, and warm starts from them.

A checkpoint is a model file with the status "running". Its text `run` is JSON: what the run is
(`identity`), how many landmarks were planned, and the work so far. Models of runs that ended early
have this text, too. A resumed run begins with the weights of the file and adds to this work. If
there are several pairs of classes, those that reached the tolerance are not trained again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from ooc_fw.data.rows import CSRRows, take_rows
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.landmarks import LandmarkStart
from ooc_fw.model.record import Model, load_model
from ooc_fw.options import START_ROWS, TrainOptions
from ooc_fw.problem import Problem, relative_target
from ooc_fw.solver.plan import Plan
from ooc_fw.solver.state import Solution, Status, StepKind, Warm, Work
from ooc_fw.solver.surroundings import Checkpoint
from ooc_fw.system.errors import InputError, format_label
from ooc_fw.system.files import with_content
from ooc_fw.training.streams import solutions_of

EVERY_S = 60.0
"""Default time between checkpoints, in seconds."""

_FREE = ("max_iter", "max_time", "threads", "memory_limit", "landmarks", "exact")
"""Options that may differ when a run resumes: limits, and the kind of model, which the file has."""


def saving(
    checkpoint: Checkpoint, problem: Problem, plan: Plan, model_of: Callable[[Any], Model]
) -> Checkpoint:
    """A checkpoint that can write the model of a run; `model_of` makes it from the weights."""
    facts = _facts(problem, plan)

    def write(path: str | os.PathLike[str], solution: Any) -> None:
        run = json.dumps(facts | _work_of(solution))
        replace(model_of(solution), status=str(Status.RUNNING), run=run).save(path)

    return replace(checkpoint, write=write)


def resumable(model: Model, problem: Problem, plan: Plan, solution: Any) -> Model:
    """The model of a run, which can resume if it ended early and its rows are in a file.

    A model of a part of the rows cannot, since a resumed run draws another part.
    """
    over = Status(model.status).reached or plan.rows is not None
    if over or not all(root.recipe is not None or root.stamps for root in problem.source.roots()):
        return model
    return replace(model, run=json.dumps(_facts(problem, plan) | _work_of(solution)))


def _facts(problem: Problem, plan: Plan) -> dict[str, Any]:
    facts = {name: getattr(plan, name) for name in ("landmarks", "searched", "class_weight")}
    return {"identity": identity(problem, plan.options), **facts}


def _work_of(solution: Any) -> dict[str, Any]:
    """The work of a run with one solution, as a fact of it."""
    done = {} if isinstance(solution, list) else vars(solution)
    return {"work": {field.name: done[field.name] for field in fields(Work) if done}}


def identity(problem: Problem, options: TrainOptions) -> dict[str, dict[str, Any]]:
    """What distinguishes a run from others; files are identified by size and time of change."""
    source = problem.source
    data = {name: getattr(source, name) for name in ("n_rows", "n_features", "sparse")}
    data["task"] = problem.task
    data["labels"] = _checksum([problem.answers])
    if problem.penalties is not None:
        data["penalties"] = _checksum([problem.penalties])
    roots = source.roots()
    # Rows in RAM have a kind for a name, which may be that of a file, too.
    if all(root.recipe is not None or root.stamps for root in roots):
        names = chain.from_iterable(with_content(root.name) for root in roots)
        known = [os.stat(name) for name in names if os.path.isfile(name)]
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


Options = TypeVar("Options", bound=TrainOptions)


@dataclass(frozen=True)
class Resumed:
    """A run that resumes from a checkpoint."""

    path: str
    model: Model
    run: dict[str, Any]

    def options(self, options: Options) -> Options:
        """The options with the kind of model of the checkpoint; InputError for another kind."""
        before = self.run["landmarks"]
        if self.run.get("searched") and getattr(options, "gamma", None) == "search":
            kernel = self.model.kernel
            found = {"kernel": kernel.name, "gamma": kernel.gamma, "C": self.model.C}
            options = replace(options, **found)  # type: ignore[arg-type]
        if self.model.kind == "linear":
            return options
        asked = options.landmarks
        if asked is not None:  # a run takes at most all rows
            asked = min(asked, self.run["identity"]["data"]["n_rows"])
        # A regression to the optimum has landmarks, too: all rows.
        exact = options.exact and self.model.task != "regression"
        if asked not in (None, before) or (exact and before is not None):
            given = "--exact" if options.exact else "--landmarks"
            kind = "an exact model" if before is None else f"a model with {before} landmarks"
            raise InputError(
                f"the checkpoint {self.path} is of {kind}; leave out {given}, or train without "
                f"--resume"
            )
        if getattr(options, "gamma", None) == "search":
            options = replace(options, gamma=self.model.kernel.gamma)  # type: ignore[call-arg]
        if before is None:
            return replace(options, landmarks=None, exact=True)
        return replace(options, landmarks=max(before, START_ROWS), exact=False)

    def planned(self, plan: Plan) -> Plan:
        """The plan of the run with the choices that the run before has made."""
        names = "searched", "class_weight"
        return replace(plan, **{name: self.run.get(name, getattr(plan, name)) for name in names})

    def start(
        self, problem: Problem, options: TrainOptions
    ) -> Warm | Sequence[Solution | None] | LandmarkStart:
        """The warm start of the run with the planned options.

        If the checkpoint belongs to another run, an InputError names the differences.
        """
        this = identity(problem, options)
        for kind in ("options", "data", "kernel"):  # each may change those after it
            old = self.run["identity"][kind]
            new = this[kind]
            differing = [key for key in {**old, **new} if old.get(key) != new.get(key)]
            if differing:
                # Their checksums tell people nothing.
                weights = "weights of classes or rows (--class-weight, sample_weight)"
                sums = {"labels": "labels", "penalties": weights, "rows": "rows"}
                words = [
                    sums[key]
                    if key in sums
                    else f"{key} {format_label(old.get(key))} (now {format_label(new.get(key))})"
                    for key in differing
                ]
                other = "another kernel" if kind == "kernel" else f"other {kind}"
                raise InputError(
                    f"the checkpoint {self.path} was made with {other}: {', '.join(words)}; give "
                    f"the same (data copied with their time of change), or train without --resume"
                )
        weighted = self.model.weighted_rows
        known = None if weighted is None else np.flatnonzero(np.unpackbits(weighted))
        of_run = None if problem.part is None else problem.part.rows
        if not np.array_equal(known, of_run):  # type: ignore[arg-type]
            raise InputError(
                f"{self.path} was made with other rows of weight 0; give the same ones"
            )
        work = Work(**self.run["work"]) if self.run.get("work") else None
        model = self.model
        if known is not None:
            model = replace(model, rows=np.searchsorted(known, model.rows))
        first = model.classifiers[0]
        rows = model.rows[first.sv]
        if model.kind == "linear":
            none = np.empty(0, dtype=np.int64)
            return LandmarkStart(none, model.column_weights(), work, first.primal is not None)
        if model.kind == "landmarks":
            beta = np.array([one.beta for one in model.classifiers])
            whole = first.primal is not None
            return LandmarkStart(rows, beta, work, whole)
        if len(model.classifiers) == 1:
            return Warm(rows, first.alpha, work)
        return [self._finished(one, options) for one in solutions_of(model)]

    def _finished(self, one: Solution | None, options: TrainOptions) -> Solution | None:
        """The solution of a pair, without work; its status tells whether its training had ended."""
        if one is None:
            return None
        gap = one.certified_gap if options.certify else one.sampled_gap
        reached = gap is not None and gap <= options.tol and options.stopping == "relative"
        if one.primal is not None and one.dual is not None and options.stopping == "relative":
            reached |= 1 - one.dual / one.primal <= relative_target(options.tol)
        status = Status.RUNNING
        if reached:
            status = Status.CONVERGED if options.certify else Status.SAMPLED
        return replace(
            one,
            status=status,
            method=options.method,
            lmo=options.lmo,
            support_vectors=take_rows(one.support_vectors, np.empty(0, dtype=np.int64)),
            steps=dict.fromkeys(StepKind, 0),
        )


def load_resumed(path: str | os.PathLike[str]) -> Resumed:
    """Read a checkpoint; InputError if it is missing or damaged, or if its run cannot go on."""
    name = os.fspath(path)
    model = load_model(path)
    if model.run is None:
        raise InputError(
            f"{name} is the model of a run that is over ({model.status}), not a checkpoint, from "
            f"which a run can resume; give the file that --checkpoint wrote, or update the model "
            f"with --stream"
        )
    return Resumed(name, model, json.loads(model.run))
