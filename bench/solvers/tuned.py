"""Machines for novelty detection and regression, each with the best setting of a small grid.

A setting is chosen by a validation part of the rows, and scored on a test part that no machine has
seen. The public sets at hand have classes: for novelty detection one class is the ordinary one, and
for regression one column is the target, all columns having mean 0 and variance 1.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from bench.solvers.base import Figures, Parameters, Peer, Problem, machine

Array: TypeAlias = Any  # numpy is imported in the child alone; see `bench.process`
MOST_TEST_ROWS, MOST_TARGETS = 60_000, 4_000
MOST_ROWS = 10_000  # that scikit-learn's one-class machine can afford: it takes a quadratic time


class Parts(NamedTuple):
    """Rows to train on, to choose a setting by, and to score."""

    train: tuple[Array, ...]
    validation: tuple[Array, Array]
    test: tuple[Array, Array]


def novelty_parts(problem: Problem) -> Parts:
    """Ordinary rows of the training file; halves of the test file, with what is ordinary there."""
    import numpy as np

    from bench.storage import read_labelled

    X, y = read_labelled(problem.train, np.float32, "dense")
    T, t = read_labelled(problem.test, np.float32, "dense")
    rng = np.random.default_rng(0)
    some = rng.permutation(len(T))[:MOST_TEST_ROWS]
    halves = [(T[rows], t[rows] == problem.target) for rows in np.array_split(some, 2)]
    return Parts((rng.permutation(X[y == problem.target]),), halves[0], halves[1])


def regression_parts(problem: Problem) -> Parts:
    """At most `MOST_TARGETS` rows: 70 % to train on, and the target column apart."""
    import numpy as np

    from bench.storage import read_labelled

    X = read_labelled(problem.train, np.float64, "dense")[0]
    rows = X[np.random.default_rng(0).permutation(len(X))[:MOST_TARGETS]]
    parts = np.split(rows, [int(0.7 * len(rows)), int(0.85 * len(rows))])
    mean, spread = parts[0].mean(axis=0), parts[0].std(axis=0)
    scaled = [(part - mean) / np.where(spread > 0, spread, 1) for part in parts]
    column = problem.target
    assert column is not None
    return Parts(*((np.delete(part, column, axis=1), part[:, column]) for part in scaled))


def novelty_grid(name: str, values: Sequence[float], rows: Array) -> list[Parameters]:
    """Three gammas around the usual one, with each value of C or nu."""
    usual = 1 / (rows.shape[1] * float(rows[:MOST_ROWS].var()))
    return [{"gamma": f * usual, name: value} for f in (0.1, 1, 10) for value in values]


def regression_grid(rows: Array) -> list[Parameters]:
    """Five C."""
    return [{"C": C, "gamma": 1 / rows.shape[1]} for C in (0.1, 1.0, 10.0, 100.0, 1000.0)]


def kernel_ridge(problem: Problem, parameters: Parameters) -> Any:
    from sklearn.kernel_ridge import KernelRidge

    return KernelRidge(alpha=1 / float(parameters["C"]), kernel="rbf", gamma=parameters["gamma"])


@dataclass(frozen=True)
class Tuned(Peer):
    """A machine with a grid of settings, of which each is given to `build` as parameters."""

    grid: Callable[[Array], list[Parameters]] = regression_grid
    parts: Callable[[Problem], Parts] = regression_parts
    scores: str = "predict"  # method of the machine that gives what is judged
    score: str = "r2_score"  # function of sklearn.metrics
    most_rows: int | None = None

    def fit(self, problem: Problem, parameters: Parameters) -> Figures:
        """Figures of the setting that the validation part chooses."""
        import sklearn.metrics

        parts = self.parts(problem)
        given = [part[: self.most_rows] for part in parts.train]
        score, tried = getattr(sklearn.metrics, self.score), []
        warnings.simplefilter("ignore")  # of settings that do not converge
        for setting in self.grid(given[0]):
            machine = self.build(problem, parameters | setting)
            began = time.perf_counter()
            machine.fit(*given)
            seconds = time.perf_counter() - began
            judged = [
                float(score(y, getattr(machine, self.scores)(X)))
                for X, y in (parts.validation, parts.test)
            ]
            tried.append((judged[0], judged[1], seconds, setting, machine))
        best = max(tried, key=lambda one: one[0])
        support = getattr(best[4], "support_", None)
        return {
            "status": "fitted",
            "score": best[1],
            "seconds": best[2],
            "grid_seconds": sum(one[2] for one in tried),
            **{f"chosen_{name}": value for name, value in best[3].items()},
            "n_trained": len(given[0]),
            "n_support": None if support is None else len(support),
            "certified_gap": getattr(best[4], "certified_gap_", None),
        }


NOVELTY: dict[str, Any] = {
    "parts": novelty_parts,
    "scores": "score_samples",
    "score": "roc_auc_score",
}
CS, NUS = (0.1, 1.0, 100.0), (0.01, 0.1, 0.5)

one_class = machine("ooc_fw", "FrankWolfeOneClass", seeded=True)
TUNED = (
    Tuned("one-class", one_class, grid=partial(novelty_grid, "C", CS), **NOVELTY),
    Tuned(
        "sklearn-one-class",
        machine("sklearn.svm", "OneClassSVM"),
        grid=partial(novelty_grid, "nu", NUS),
        most_rows=MOST_ROWS,
        **NOVELTY,
    ),
    Tuned("svr", machine("ooc_fw", "FrankWolfeSVR", seeded=True), {"epsilon": 0.1}),
    Tuned("sklearn-svr", machine("sklearn.svm", "SVR"), {"epsilon": 0.1}),
    Tuned("kernel-ridge", kernel_ridge),
)
