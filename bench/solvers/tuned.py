"""Machines for novelty detection and regression, each with the best setting of a small grid.

A setting is chosen by a validation part of the rows, and scored on a test part that no machine has
seen. The public sets at hand have classes: for novelty detection one class is the ordinary one, and
for regression one column is the target, all columns having mean 0 and variance 1.
"""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, TypeAlias

from bench.solvers.base import Figures, Parameters, Peer, Problem

Array: TypeAlias = Any  # numpy is imported in the child alone; see `bench.process`
MOST_TEST_ROWS, MOST_TARGETS = 60_000, 8_000
CS = (0.1, 1, 10, 100, 1000)


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


class Tuned(Peer):
    """A machine with a grid of settings."""

    parts: ClassVar[Callable[[Problem], Parts]]
    scores: ClassVar[str]  # method of the machine that gives what is judged
    score: ClassVar[str]  # function of sklearn.metrics
    most_rows: ClassVar[int | None] = None

    @abstractmethod
    def machines(self, rows: Array, parameters: Parameters) -> Iterator[tuple[str, Any]]:
        """Settings in words, and the machines."""

    def build(self, problem: Problem, parameters: Parameters) -> Any:
        raise TypeError(f"{self.name} is a grid of machines; fit trains each of them")

    def fit(self, problem: Problem, parameters: Parameters) -> Figures:
        """Figures of the setting that the validation part chooses."""
        import sklearn.metrics

        parts = type(self).parts(problem)
        given = [part[: self.most_rows] for part in parts.train]
        score, tried = getattr(sklearn.metrics, self.score), []
        warnings.simplefilter("ignore")  # of settings that do not converge
        for setting, machine in self.machines(given[0], parameters):
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
            "setting": best[3],
            "n_trained": len(given[0]),
            "n_support": None if support is None else len(support),
            "certified_gap": getattr(best[4], "certified_gap_", None),
        }


class OneClass(Tuned):
    """Ours, on all ordinary rows."""

    name: ClassVar[str] = "one-class"
    parts: ClassVar[Callable[[Problem], Parts]] = novelty_parts
    scores: ClassVar[str] = "score_samples"
    score: ClassVar[str] = "roc_auc_score"

    def machines(self, rows: Array, parameters: Parameters) -> Iterator[tuple[str, Any]]:
        for gamma in _gammas(rows[: SklearnOneClass.most_rows]):
            for value in self.values():
                yield f"gamma {gamma:.3g}, {value:g}", self.make(gamma, value)

    def values(self) -> tuple[float, ...]:
        """Of C, or of nu."""
        return 0.1, 1, 100

    def make(self, gamma: float, value: float) -> Any:
        """A machine with one setting."""
        import ooc_fw

        return ooc_fw.FrankWolfeOneClass(gamma=gamma, C=value, random_state=0)


class SklearnOneClass(OneClass):
    """scikit-learn's, which takes a quadratic time, on as many rows as it can afford."""

    name: ClassVar[str] = "sklearn-one-class"
    most_rows: ClassVar[int | None] = 10_000

    def values(self) -> tuple[float, ...]:
        return 0.01, 0.1, 0.5

    def make(self, gamma: float, value: float) -> Any:
        from sklearn.svm import OneClassSVM

        return OneClassSVM(gamma=gamma, nu=value)


def _gammas(rows: Array) -> list[float]:
    return [scale / (rows.shape[1] * float(rows.var())) for scale in (0.1, 1, 10)]


class SVR(Tuned):
    """Ours, with a tube, or as kernel ridge regression without one (``epsilon=0``)."""

    name: ClassVar[str] = "svr"
    defaults: ClassVar[Parameters] = {"epsilon": 0.1}
    parts: ClassVar[Callable[[Problem], Parts]] = regression_parts
    scores: ClassVar[str] = "predict"
    score: ClassVar[str] = "r2_score"

    def machines(self, rows: Array, parameters: Parameters) -> Iterator[tuple[str, Any]]:
        gamma = 1 / rows.shape[1]
        for C in CS:
            yield f"C {C:g}", self.make(C, gamma, parameters)

    def make(self, C: float, gamma: float, parameters: Parameters) -> Any:
        """A machine with one setting."""
        import ooc_fw

        epsilon = float(parameters["epsilon"])
        return ooc_fw.FrankWolfeSVR(C=C, gamma=gamma, epsilon=epsilon, random_state=0)


class SklearnSVR(SVR):
    """scikit-learn's, with a linear loss outside the tube."""

    name: ClassVar[str] = "sklearn-svr"

    def make(self, C: float, gamma: float, parameters: Parameters) -> Any:
        import sklearn.svm

        return sklearn.svm.SVR(C=C, gamma=gamma, epsilon=float(parameters["epsilon"]))


class KernelRidge(SVR):
    """scikit-learn's kernel ridge regression."""

    name: ClassVar[str] = "kernel-ridge"
    defaults: ClassVar[Parameters] = {}

    def make(self, C: float, gamma: float, parameters: Parameters) -> Any:
        from sklearn.kernel_ridge import KernelRidge as Machine

        return Machine(alpha=1 / C, kernel="rbf", gamma=gamma)
