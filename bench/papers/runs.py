"""One run of a paper's table: what it is told, and what it gives. All runs are kept in a file.

A `Run` is a training of one set by one method; its record holds accuracy, time and counts. Records
are lines of JSON under the work folder, so that an interrupted `all` goes on where it was, and a
run that two tables share is made once. Training is on one thread, as in the papers, from rows in
RAM, and its time is that of the fit alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.papers.data import SETS, TESTED, Data, Library
from ooc_fw.data.opening import open_source
from ooc_fw.estimators import FrankWolfeSVC
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver.loop import solve
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.run import open_state, start
from ooc_fw.solver.state import SolverState, Status

Record = dict[str, Any]

DECADES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # gaps at which a path notes what it took so far
QUICK_ITERATIONS = 1_000  # on thinned data, of all pairs of classes
BRIEF_SECONDS = 10.0  # a run that takes no more is repeated with other seeds
GROWTH = 1.02  # factor of the iterations between two points of a path that are kept
MOST_SECONDS = {"gap": 600.0, "ball": 150.0, "optimum": 150.0, "path": 300.0, "watched": 120.0}
"""Time after which a run ends as it is, by its `Run.chosen_at`, or by what is noted of it."""


@dataclass(frozen=True)
class Run:
    """A training, or with `path` the gaps on its way.

    Where `C` is None it is that of the set for models that end where `chosen_at` says. With
    `watched`, the gap over all rows is noted beside that of the rows drawn.
    """

    data: str
    method: str
    lmo: str = "full"
    sample_size: int = 194
    stopping: str = "absolute"
    tol: float = 1e-4
    kernel: str = "rbf"
    C: float | None = None
    seed: int = 0
    rows: int | None = None  # only so many, at random
    path: bool = False
    watched: bool = False
    max_iter: int | None = None
    chosen_at: str = "optimum"

    def rows_of(self, data: Data) -> Data:
        """The rows to train on: all of them, or `rows` random ones."""
        if self.rows is None:
            return data
        some = np.random.default_rng(2).permutation(len(data.y))[: self.rows]
        return dataclasses.replace(data, X=data.X[some], y=data.y[some])

    @property
    def oracle(self) -> str:
        """The oracle, and how many rows it draws."""
        return self.lmo if self.lmo == "full" else f"{self.lmo}, {self.sample_size} rows"

    @property
    def key(self) -> str:
        """The run as text, by which it is found again."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


class Study:
    """All runs that were made, kept in `file`, and those still to be made.

    A training that depends on chance and takes `BRIEF_SECONDS` at most has `repeat` seeds.
    """

    def __init__(self, library: Library, file: Path, repeat: int) -> None:
        self.library, self.repeat, self._file = library, repeat, file
        records = map(json.loads, file.read_text().splitlines() if file.exists() else ())
        self._records: dict[str, Record] = {record.pop("key"): record for record in records}

    def __getitem__(self, run: Run) -> Record:
        """The record of a run that was made."""
        return self._records[run.key]

    def known(self, run: Run) -> bool:
        """Whether a run was made."""
        return run.key in self._records

    def repetitions(self, run: Run) -> list[Run]:
        """The run with each seed, and on the set that its accuracy is quoted from.

        The other seeds of a run follow once the first was made, if that took little time. What
        notes gaps, or is told its C, is run once, and so is a full oracle, of whose run only the
        first rows are drawn.
        """
        if run.path or run.C is not None:
            return [run]
        wanted = []
        for name in dict.fromkeys((run.data, TESTED.get(run.data, run.data))):
            first = dataclasses.replace(run, data=name)
            brief = self.known(first) and self[first]["seconds"] <= BRIEF_SECONDS
            n_seeds = self.repeat if brief and run.lmo != "full" else 1
            wanted += [dataclasses.replace(first, seed=seed) for seed in range(n_seeds)]
        return wanted

    def all_of(self, runs: Sequence[Run]) -> list[Run]:
        """Runs with their repetitions."""
        return [each for run in runs for each in self.repetitions(run)]

    def values(self, run: Run, field: str) -> list[float]:
        """A field of all repetitions of a run; accuracies in percent."""
        name = TESTED.get(run.data, run.data) if field == "accuracy" else run.data
        scale = 100 if field == "accuracy" else 1
        own = [each for each in self.repetitions(run) if each.data == name]
        return [scale * self[each][field] for each in own]

    def median(self, run: Run, field: str) -> float:
        """Median of a field over the repetitions of a run."""
        return float(np.median(self.values(run, field)))

    def make(self, run: Run) -> Record:
        """Make a run, unless it was made before, and keep its record."""
        if not self.known(run):
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of runs that end at a limit
                record = self._perform(run)
            record["total_seconds"] = time.perf_counter() - began
            self._records[run.key] = record
            self._file.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"key": run.key, **record}) + "\n"
            with self._file.open("ab", buffering=0) as file:  # another command may write, too
                file.write(line.encode())
        return self[run]

    def _perform(self, run: Run) -> Record:
        data, own = run.rows_of(self.library.get(run.data)), SETS[run.data]
        gamma = (1 if run.kernel == "poly" else 0.5) / own["sigma2"]
        kind = "watched" if run.watched else "path" if run.path else run.chosen_at
        most = run.max_iter
        if self.library.quick:
            n_classes = len(np.unique(data.y))
            each = max(20, QUICK_ITERATIONS // (n_classes * (n_classes - 1) // 2))
            most = min(most or each, each)
        options: Record = {
            "C": own["C"][run.chosen_at] if run.C is None else run.C,
            "max_iter": most,
            "max_time": MOST_SECONDS[kind],
            "certify": False,
            "exact": True,
        }
        options |= {
            name: getattr(run, name) for name in ("method", "lmo", "sample_size", "stopping", "tol")
        }
        told = {"C": options["C"], "gamma": gamma}
        if not run.path:
            _warm_up(run.method, run.lmo, run.kernel)
            model = FrankWolfeSVC(run.kernel, gamma=gamma, n_jobs=1, random_state=run.seed)
            return told | _fit(data, model.set_params(**options))
        watch = _watched if run.watched else _path
        own_options = TrainOptions(seed=run.seed, threads=1, **options)
        return told | watch(data, make_kernel(run.kernel, gamma=gamma), own_options)


@cache
def _warm_up(method: str, lmo: str, kernel: str) -> None:
    """Compile what a method needs before its time is taken."""
    X = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    model = FrankWolfeSVC(kernel, gamma=0.1, method=method, lmo=lmo, n_jobs=1, random_state=0)
    model.set_params(max_iter=20, certify=False, exact=True)
    model.fit(X, X[:, 0] > 0).predict(X)


def _fit(data: Data, model: FrankWolfeSVC) -> Record:
    began = time.perf_counter()
    model.fit(data.X, data.y)
    seconds = time.perf_counter() - began
    ends = [pair.solution.status for pair in model.pairs_]
    accuracy = None
    if len(data.y_test):
        predicted = model.set_params(n_jobs=None).predict(data.X_test)
        accuracy = float(np.mean(predicted == data.y_test))
    return {
        "accuracy": accuracy,
        "seconds": seconds,
        "iterations": int(model.n_iter_),
        "n_support": len(model.support_),
        "status": str(min(ends, key=lambda status: status.reached)),
    }


def _path(data: Data, kernel: Any, options: TrainOptions) -> Record:
    """Gaps, objectives and counts on the way, and where each decade is first reached."""
    signs = np.where(data.y == data.y.max(), 1, -1).astype(np.int8)
    points: list[Sequence[float]] = []
    reached: dict[str, Sequence[float]] = {}
    last: list[Sequence[float]] = []
    before: dict[str, float] = {}

    def note(*point: float) -> None:
        last[:] = [point]
        for tol in DECADES[len(reached) :]:
            if point[1] <= tol * (1 + 1e-9):
                reached[f"{tol:g}"] = point

    def watch(state: SolverState) -> None:
        objective, before["f"] = before.get("f"), state.objective
        if state.sampled_gap is None or objective is None:
            return
        # The gap is that of the weights before the step that the state counts.
        gap, iteration = state.sampled_gap * 2 * objective, state.iteration - 1
        counts = state.kernel_evaluations, state.n_support
        note(iteration, gap, objective, state.elapsed_s, *counts)
        if not points or iteration >= points[-1][0] * GROWTH:
            points.append(last[0])

    began = time.perf_counter()
    with open_source(data.X, data.y) as source:
        solution = solve(source, signs, kernel, options, [watch])
    own: Record = {
        "iterations": solution.iterations,
        "objective": solution.objective,
        "seconds": time.perf_counter() - began,
        "n_support": len(solution.alpha),
        "status": str(solution.status),
    }
    if solution.status is Status.SAMPLED:  # the test was passed after the last state was told
        counts = solution.kernel_evaluations, own["n_support"]
        note(own["iterations"], options.tol, own["objective"], own["seconds"], *counts)
    return own | {"points": [*points, *last], "reached": reached}


def _watched(data: Data, kernel: Any, options: TrainOptions) -> Record:
    """Points (iteration, gap of the sample, gap of all rows) until two samples pass the test.

    Gaps are absolute, and so is the tolerance. A limit of iterations or time ends the run earlier.
    """
    signs = np.where(data.y == data.y.max(), 1, -1).astype(np.int8)
    points: list[tuple[int, float, float]] = []
    with open_source(data.X, data.y) as source:
        problem = BinaryProblem(source, signs, kernel)
        # With the full oracle all rows are vertices, and draws are made here.
        plan = plan_exact(problem, dataclasses.replace(options, lmo="full"))
        with open_state(problem, plan, Session()) as state:
            start(state, None)
            active, most = state.active, options.max_iter or math.inf
            began = time.perf_counter()
            ends = began + (options.max_time or math.inf)
            iteration = passed = 0
            while passed < 2 and iteration < most and time.perf_counter() < ends:
                drawn = state.rng.integers(source.n_rows, size=(1, options.sample_size))
                sampled = active.rho * state.rule.walk(active, 0, draws=drawn).gap
                passed = passed + 1 if sampled <= options.tol else 0
                if passed or not points or iteration >= points[-1][0] * GROWTH:
                    points.append((iteration, sampled, active.rho - float(active.grad.min())))
                if not passed:
                    iteration += state.rule.walk(active, 1, draws=drawn).n_steps
    status = str(Status.SAMPLED if passed == 2 else Status.TIME_LIMIT)
    seconds = time.perf_counter() - began
    return {"points": points, "seconds": seconds, "iterations": iteration, "status": status}
