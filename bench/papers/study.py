"""Runs of the papers' tables, kept in a file, and what tables and figures share.

A `Run` is a training of one set by one method; its record holds accuracy, time and counts. Records
are lines of JSON under the work folder, so that an interrupted `all` goes on where it was, and a
run that two tables share is made once. Training is on one thread, as in the papers, from rows in
RAM, and its time is that of the fit alone. An `Entry` is a table or figure of a paper.
"""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.papers.data import SETS, TESTED, Data, load, read_toml
from bench.published import Record, read_lines, table
from ooc_fw.data.opening import open_dataset
from ooc_fw.estimators import FrankWolfeSVC
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.options import TrainOptions
from ooc_fw.solver.loop import solve
from ooc_fw.solver.state import SolverState, Status

DECADES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # gaps at which a path notes what it took so far
GROWTH = 1.05  # factor of the iterations between two points of a path that are kept
MOST_SECONDS = {"gap": 600.0, "ball": 150.0, "optimum": 150.0, "path": 300.0}
"""Time after which a run ends as it is, by its `Run.chosen_at`, or "path"."""


@dataclass(frozen=True)
class Run:
    """A training, or with `path` the gaps on its way.

    C is that of the set for models that end where `chosen_at` says.
    """

    data: str
    method: str
    lmo: str = "full"
    sample_size: int = 194
    stopping: str = "absolute"
    tol: float = 1e-4
    seed: int = 0
    rows: int | None = None  # only so many, at random
    path: bool = False
    max_iter: int | None = None
    chosen_at: str = "optimum"

    @property
    def oracle(self) -> str:
        """The oracle, and how many rows it draws."""
        return self.lmo if self.lmo == "full" else f"{self.lmo}, {self.sample_size} rows"

    @property
    def key(self) -> str:
        """The run as text, by which it is found again."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


class Study:
    """All runs that were made, kept in the folder `work`, and those still to be made.

    A training that draws samples has `repeat` seeds. Entries put figures into `figures`.
    """

    def __init__(self, data: Path, work: Path, repeat: int, figures: Path) -> None:
        self.repeat, self.figures, self._folders = repeat, figures, (data, work)
        self._file = file = work / "papers" / "runs.jsonl"
        self._records: dict[str, Record] = {one.pop("key"): one for one in read_lines(file)}

    def __getitem__(self, run: Run) -> Record:
        """The record of a run that was made."""
        return self._records[run.key]

    def repetitions(self, run: Run) -> list[Run]:
        """The run with each seed, and on the set that its accuracy is quoted from."""
        if run.path:
            return [run]
        seeds = range(1 if run.lmo == "full" else self.repeat)
        names = dict.fromkeys((run.data, TESTED.get(run.data, run.data)))
        return [dataclasses.replace(run, data=name, seed=s) for name in names for s in seeds]

    def all_of(self, runs: Iterable[Run]) -> list[Run]:
        """Runs with their repetitions, each once."""
        return [*dict.fromkeys(each for run in runs for each in self.repetitions(run))]

    def median(self, run: Run, field: str) -> float:
        """Median of a field over the repetitions of a run; accuracies in percent."""
        name = TESTED.get(run.data, run.data) if field == "accuracy" else run.data
        own = [self[each][field] for each in self.repetitions(run) if each.data == name]
        return float(np.median(own)) * (100 if field == "accuracy" else 1)

    def make(self, run: Run) -> Record:
        """Make a run, unless it was made before, and keep its record."""
        if run.key not in self._records:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of runs that end at a limit
                record = self._perform(run)
            self._records[run.key] = record
            self._file.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"key": run.key, **record}) + "\n"
            with self._file.open("ab", buffering=0) as file:  # another command may write, too
                file.write(line.encode())
        return self[run]

    def _perform(self, run: Run) -> Record:
        data, own = load(run.data, *self._folders), SETS[run.data]
        if run.rows is not None:
            some = np.random.default_rng(2).permutation(len(data.y))[: run.rows]
            data = dataclasses.replace(data, X=data.X[some], y=data.y[some])
        gamma = 0.5 / own["sigma2"]
        options: Record = {
            "C": own["C"][run.chosen_at],
            "max_iter": run.max_iter,
            "max_time": MOST_SECONDS["path" if run.path else run.chosen_at],
            "certify": False,
            "exact": True,
            "method": run.method,
            "lmo": run.lmo,
            "sample_size": run.sample_size,
            "stopping": run.stopping,
            "tol": run.tol,
        }
        if run.path:
            own_options = TrainOptions(seed=run.seed, threads=1, **options)
            return _path(data, make_kernel("rbf", gamma=gamma), own_options)
        _warm_up(run.method, run.lmo)
        model = FrankWolfeSVC(gamma=gamma, n_jobs=1, random_state=run.seed)
        return _fit(data, model.set_params(**options))


@cache
def _warm_up(method: str, lmo: str) -> None:
    """Compile what a method needs before its time is taken."""
    X = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    model = FrankWolfeSVC(gamma=0.1, method=method, lmo=lmo, n_jobs=1, random_state=0)
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
    """Points on the way, and those at which each decade of the gap is first reached.

    A point is iteration, gap, objective, seconds, kernel values and support vectors.
    """
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
    with open_dataset(data.X, data.y) as source:
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


PRINTED = read_toml("printed.toml")
"""What the papers print, by paper and table."""

FIELDS = {
    "accuracy": ("accuracy, %", "{:.2f}"),
    "seconds": ("seconds", "{:.3g}"),
    "iterations": ("iterations", "{:,.0f}"),
    "n_support": ("support vectors", "{:,.0f}"),
}
"""Fields of a record in the order of the printed tables: title, and form of a cell."""


Shown = tuple[str, dict[str, bool | np.bool_]]
"""What runs show: Markdown, and claims of a paper with whether our runs say the same."""


class Entry(NamedTuple):
    """A table or figure that is measured again: its runs, and a function that shows them."""

    runs: Sequence[Run]
    show: Callable[[Study], Shown]


Compared = tuple[str, dict[str, dict[tuple[str, str], float]]]
"""A table in Markdown; medians by field, set and method."""


def compare(
    study: Study,
    printed: Mapping[str, Any],
    methods: Mapping[str, Callable[[str], Run]],
    fields: Sequence[str] = tuple(FIELDS),
) -> Compared:
    """Put a printed table beside ours: by set and field, it has a value for each method.

    `methods` are titles of columns and their runs by set.
    """
    found: dict[str, dict[tuple[str, str], float]] = {field: {} for field in fields}
    rows = []
    for name, values in printed.items():
        for field in fields:
            title, form = FIELDS[field]
            row = [name if field == fields[0] else "", title]
            for (method, run), value in zip(methods.items(), values[field], strict=True):
                own = study.median(run(name), field)
                found[field][name, method] = own
                row.append(beside(value, own, form))
            rows.append(row)
    return table(["set", "printed / ours", *methods], rows), found


def beside(printed: float, ours: float, form: str = "{:.3g}") -> str:
    """A printed and a measured figure in one cell."""
    return f"{form.format(printed)} / {form.format(ours)}"


def draw(study: Study, name: str, panels: Mapping[str, Any], **properties: Any) -> str:
    """Save a figure of panels side by side, and say in Markdown where it is.

    A panel has points by the label of their line; `properties` are those of all axes.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 3.2 * len(panels), 3.6), layout="constrained")
    for k, (title, lines) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), k)
        for label, points in lines.items():
            axes.plot(*zip(*points, strict=True), label=label, linewidth=0.9)
        axes.set(title=title, **properties)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    study.figures.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(study.figures / f"{name}.svg", metadata={"Date": None})
    return f"![{name}](figures/{name}.svg)"
