"""One run of a paper's table: what it is told, and what it gives. All runs are kept in a file.

A `Run` is a training of one set by one method; its record holds accuracy, time and counts. Records
are lines of JSON under the work folder, so that an interrupted `all` goes on where it was, and a
run that two tables share is made once. Training is on one thread, as in the papers, from rows in
RAM, and its time is that of the fit alone.
"""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.papers.data import LOADERS, TESTED, Data, Library
from bench.papers.watched import watch_gaps
from ooc_fw.data.opening import open_source
from ooc_fw.data.statistics import sigma2
from ooc_fw.estimators import FrankWolfeSVC
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.options import TrainOptions
from ooc_fw.solver.loop import solve
from ooc_fw.solver.state import SolverState, Status
from ooc_fw.training.tuning import tune

Record = dict[str, Any]

DECADES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""Gaps at which a path notes what it took to get there."""

MODEL_ROWS = 10_000
"""Rows of a set, drawn at random, on which C and gamma are chosen."""

CROSS_VALIDATED = ("usps", "pendigits")
"""Sets whose gamma is chosen along with C, by ten folds; of the others it is that of sigma^2."""

SIGMA2S, CS = [2.0**e for e in range(-15, 6, 4)], [2.0**e for e in range(-5, 16, 4)]
"""The grid of these sets: every fourth power of the papers' grid."""

QUICK_ITERATIONS, QUICK_CS = 1_000, [1.0, 16.0, 256.0]
"""Most iterations on thinned data, of all pairs of classes, and the C that are tried there."""

MOST_SECONDS = {"gap": 600.0, "ball": 150.0, "optimum": 150.0}
"""Time after which a run ends as it is, by its `Run.chosen_at`."""

MOST_PATH_SECONDS, MOST_WATCHED_SECONDS = 300.0, 120.0
"""That of a run whose gaps are noted, and of one that is watched."""

BRIEF_SECONDS = 10.0
"""A run that takes no more is repeated with other seeds."""

_GROWTH = 1.02  # factor of the iterations between two points of a path that are kept
_EQUAL = 1e-4  # difference of accuracies below which the larger C is chosen
_TEST_ROWS = 1 << 16  # rows that are predicted at once


@dataclass(frozen=True)
class Run:
    """A training, or with `path` the gaps on its way.

    Where `C` is None it is the one chosen for the set: by models at their "optimum", or by those of
    a `Selection`. With `watched`, the gap over all rows is noted beside that of the rows drawn.
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

    def __str__(self) -> str:
        """The run in a few words; runs that differ by their seeds are alike."""
        words = [self.data, self.method, self.oracle, f"{self.stopping} {self.tol:g}"]
        words += [self.kernel] * (self.kernel != "rbf")
        words += [] if self.C is None else [f"C {self.C:g}"]
        return " ".join(words + ["path"] * self.path + ["watched"] * self.watched)

    @property
    def oracle(self) -> str:
        """The oracle, and how many rows it draws."""
        full = self.lmo in ("full", "lazy")
        return self.lmo if full else f"{self.lmo}, {self.sample_size} rows"

    @property
    def key(self) -> str:
        """The run as text, by which it is found again."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


SELECTIONS = {
    "gap": (Run("", "partan", lmo="random", chosen_at="gap"), [2.0**e for e in range(-1, 10, 2)]),
    "ball": (
        Run("", "cvm", "random", 59, "meb", 1e-6, chosen_at="ball"),
        [2.0**e for e in range(0, 13, 3)],
    ),
}
"""How C is chosen by models that stop where those of a paper do, by `Run.chosen_at`.

70 % of the rows train as the run says with each C, and the others validate. Of values whose
accuracies are equal to a hundredth of a point, the largest is taken, which takes least time. With a
large C, runs that stop so are far from the optimum.
"""


class Study:
    """All runs that were made, and those still to be made.

    Parameters
    ----------
    library : Library
        The sets.
    file : Path
        Where records are kept; made if it is not there.
    repeat : int
        Seeds of each training that depends on chance and takes `BRIEF_SECONDS` at most.
    """

    def __init__(self, library: Library, file: Path, repeat: int) -> None:
        self.library, self.repeat = library, repeat
        self._file = file
        self._records: dict[str, Record] = {}
        if file.exists():
            for line in file.read_text().splitlines():
                record = json.loads(line)
                self._records[record.pop("key")] = record

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
            self._keep(run.key, {**record, "total_seconds": time.perf_counter() - began})
        return self[run]

    def _keep(self, key: str, record: Record) -> None:
        self._records[key] = record
        self._file.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"key": key, **record}) + "\n"
        with self._file.open("ab", buffering=0) as file:  # at once: another command may write, too
            file.write(line.encode())

    # -- C and gamma -----------------------------------------------------------------------------

    def chosen(self, name: str, at: str = "optimum") -> tuple[float, float]:
        """C and gamma of a set, found by validation once; see `CROSS_VALIDATED` and `Selection`."""
        key = _choice(name, at)
        if key not in self._records:
            data = self.library.get(name)
            if at == "optimum":
                record = self._choose(data, name in CROSS_VALIDATED)
            elif name in CROSS_VALIDATED:
                self.chosen(name)
                record = self._records[_choice(name, "optimum")]
            else:
                record = self._choose_as_stopped(data, at)
            self._keep(key, record | data.sizes())
        record = self._records[key]
        return record["C"], record["gamma"]

    def choices(self, at: str) -> dict[str, Record]:
        """By set, the C and gamma that were chosen so far, and the sizes of the set."""
        return {
            name: self._records[_choice(name, at)]
            for name in LOADERS
            if _choice(name, at) in self._records
        }

    def _choose_as_stopped(self, data: Data, at: str) -> Record:
        run, Cs = SELECTIONS[at]
        train, test = np.split(
            np.random.default_rng(1).permutation(len(data.y)), [round(0.7 * len(data.y))]
        )
        parts = Data(data.X[train], data.y[train], data.X[test], data.y[test])
        gamma = self._auto_gamma(data, "rbf")
        tried = {
            C: _fit(parts, "rbf", gamma, 0, self._options(run, parts, C))
            for C in (QUICK_CS if self.library.quick else Cs)
        }
        best = max(each["accuracy"] for each in tried.values())
        C = max(C for C, each in tried.items() if best - each["accuracy"] < _EQUAL)
        return {"C": C, "gamma": gamma, "tried": {f"{c:g}": each for c, each in tried.items()}}

    def _choose(self, data: Data, cross_validated: bool) -> Record:
        rows = np.random.default_rng(1).permutation(len(data.y))[:MODEL_ROWS]
        search: dict[str, Any] = {"preset": "large"}
        if self.library.quick:
            search = {"Cs": QUICK_CS}
        elif cross_validated:
            search = {"sigma2s": SIGMA2S, "Cs": CS, "folds": 10}
        began = time.perf_counter()
        options = TrainOptions(threads=1, exact=True)
        best = tune(data.X[rows], data.y[rows], options=options, refit=False, **search).best
        gamma = best.gamma if "folds" in search else self._auto_gamma(data, "rbf")
        seconds = time.perf_counter() - began
        return {"C": best.C, "gamma": gamma, "error": best.error, "seconds": seconds}

    def _auto_gamma(self, data: Data, kernel: str) -> float:
        """From the average squared distance of two rows, as the papers choose it."""
        with open_source(data.X, data.y) as source:
            width = sigma2(source)
        return 1 / width if kernel == "poly" else 1 / (2 * width)

    # -- runs ------------------------------------------------------------------------------------

    def _perform(self, run: Run) -> Record:
        C, gamma = self.chosen(run.data, run.chosen_at)
        data = run.rows_of(self.library.get(run.data))
        if run.kernel != "rbf":
            gamma = self._auto_gamma(data, run.kernel)
        options = self._options(run, data, C if run.C is None else run.C)
        if run.watched:
            record = watch_gaps(data, gamma, TrainOptions(seed=run.seed, **options))
        elif run.path:
            record = _path(data, make_kernel(run.kernel, gamma=gamma), run.seed, options)
        else:
            _warm_up(run.method, run.lmo, run.kernel)
            record = _fit(data, run.kernel, gamma, run.seed, options)
        return {"C": options["C"], "gamma": gamma, **record}

    def _options(self, run: Run, data: Data, C: float) -> Record:
        """Options of training, but for threads and seed."""
        seconds = MOST_PATH_SECONDS if run.path else MOST_SECONDS[run.chosen_at]
        if run.watched:
            seconds = MOST_WATCHED_SECONDS
        most = run.max_iter
        if self.library.quick:
            n_classes = len(np.unique(data.y))
            each = max(20, QUICK_ITERATIONS // (n_classes * (n_classes - 1) // 2))
            most = min(most or each, each)
        return {
            "C": C,
            "method": run.method,
            "lmo": run.lmo,
            "sample_size": run.sample_size,
            "stopping": run.stopping,
            "tol": run.tol,
            "max_iter": most,
            "max_time": seconds,
            "certify": False,
            "exact": True,
        }


def _choice(name: str, at: str) -> str:
    """Key of the record of what was chosen for a set."""
    return f"chosen {name} {at}"


@cache
def _warm_up(method: str, lmo: str, kernel: str) -> None:
    """Compile what a method needs before its time is taken."""
    X = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    model = FrankWolfeSVC(kernel, gamma=0.1, method=method, lmo=lmo, n_jobs=1, random_state=0)
    model.set_params(max_iter=20, certify=False, exact=True)
    model.fit(X, X[:, 0] > 0).predict(X)


def _fit(data: Data, kernel: str, gamma: float, seed: int, options: Record) -> Record:
    model = FrankWolfeSVC(kernel, gamma=gamma, n_jobs=1, random_state=seed, **options)
    began = time.perf_counter()
    model.fit(data.X, data.y)
    seconds = time.perf_counter() - began
    solutions = [pair.solution for pair in model.pairs_]
    return {
        "accuracy": None if len(data.y_test) == 0 else _accuracy(model, data),
        "seconds": seconds,
        "iterations": int(model.n_iter_),
        "n_support": len(model.support_),
        "kernel_evaluations": sum(each.kernel_evaluations for each in solutions),
        "gap": max((each.sampled_gap or 0.0) * each.rho for each in solutions),
        "status": str(min(solutions, key=lambda each: each.status.reached).status),
    }


def _accuracy(model: FrankWolfeSVC, data: Data) -> float:
    model.set_params(n_jobs=None)
    right = 0
    for start in range(0, len(data.y_test), _TEST_ROWS):
        part = slice(start, start + _TEST_ROWS)
        right += int(np.count_nonzero(model.predict(data.X_test[part]) == data.y_test[part]))
    return right / len(data.y_test)


def _path(data: Data, kernel: Any, seed: int, options: Record) -> Record:
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
        note(iteration, gap, objective, state.elapsed_s, state.kernel_evaluations, state.n_support)
        if not points or iteration >= points[-1][0] * _GROWTH:
            points.append(last[0])

    began = time.perf_counter()
    with open_source(data.X, data.y) as source:
        told = TrainOptions(**options, threads=1, seed=seed)
        solution = solve(source, signs, kernel, told, [watch])
    seconds = time.perf_counter() - began
    iterations, n_support = solution.iterations, len(solution.alpha)
    evaluations = solution.kernel_evaluations
    if solution.status is Status.SAMPLED:  # the test was passed after the last state was told
        note(iterations, options["tol"], solution.objective, seconds, evaluations, n_support)
    return {
        "points": [*points, *last],
        "reached": reached,
        "seconds": seconds,
        "iterations": iterations,
        "n_support": n_support,
        "objective": solution.objective,
        "kernel_evaluations": evaluations,
        "status": str(solution.status),
    }
