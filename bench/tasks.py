"""Novelty detection and regression beside scikit-learn's: scores, and the time of their fits.

Each machine takes its best setting of a small grid by a validation part of the rows, and is scored
on a test part that none of them has seen. The public sets at hand have classes: for novelty
detection one class is the ordinary one, and for regression one column is the target, all columns
having mean 0 and variance 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.datasets import DATASETS, DEFAULT_DATA, prepare
from bench.report import table

Array = npt.NDArray[Any]
Machine = Callable[..., Any]

ORDINARY = {"shuttle": 1, "pendigits": 0, "usps": 1, "mnist8": 1, "kdd99": -1, "kdd-full": -1}
"""Novelty detection: the class of each set that is ordinary."""

TARGETS = {"covtype-40k": 0, "letter": 0, "usps": 120, "pendigits": 15, "skin": 0, "diabetes": None}
"""Regression: the column of each set that is the target; None where the set has one."""

LARGEST_PEER = 10_000
"""Ordinary rows that scikit-learn's machine of one class gets; it takes a quadratic time."""

MOST_TEST_ROWS, MOST_TARGETS = 60_000, 8_000


class Parts(NamedTuple):
    """Rows to train on, to choose a setting by, and to score."""

    train: Array
    validation: tuple[Array, Array]
    test: tuple[Array, Array]


class Tried(NamedTuple):
    """A setting, by what it is chosen, and what it reaches."""

    validation: float
    score: float
    seconds: float
    setting: str
    vectors: int | None
    gap: float | None


def load(name: str, data: Path, work: Path) -> tuple[Array, Array, Array, Array]:
    """Rows and labels of the training and the test file of a set."""
    import ooc_fw

    own = prepare(DATASETS[name], data, work)
    found: list[Array] = []
    for path in (own.train, own.test):
        with ooc_fw.open_dataset(path) as source:
            rows = source.read(0, source.n_rows)
            dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
            found += [np.asarray(dense), source.labels(0, source.n_rows)]
    return found[0], found[1], found[2], found[3]


def novelty_parts(name: str, data: Path, work: Path) -> Parts:
    """Ordinary rows of the training file; halves of the test file, with what is ordinary there."""
    X, y, T, t = load(name, data, work)
    rng = np.random.default_rng(0)
    some = rng.permutation(len(T))[:MOST_TEST_ROWS]
    halves = [(T[rows], t[rows] == ORDINARY[name]) for rows in np.array_split(some, 2)]
    return Parts(rng.permutation(X[y == ORDINARY[name]]), halves[0], halves[1])


def novelty(parts: Parts) -> Iterator[tuple[str, int, list[Tried]]]:
    """Ours on all ordinary rows, and scikit-learn's on as many as it can afford."""
    from sklearn.metrics import roc_auc_score
    from sklearn.svm import OneClassSVM

    import ooc_fw

    some = parts.train[:LARGEST_PEER]
    gammas = [scale / (some.shape[1] * float(some.var())) for scale in (0.1, 1, 10)]
    ours = [
        (f"gamma {g:.3g}, C {C:g}", ooc_fw.FrankWolfeOneClass(gamma=g, C=C, random_state=0))
        for g in gammas
        for C in (0.1, 1, 100)
    ]
    theirs = [
        (f"gamma {g:.3g}, nu {nu:g}", OneClassSVM(gamma=g, nu=nu))
        for g in gammas
        for nu in (0.01, 0.1, 0.5)
    ]
    for name, rows, machines in (
        ("FrankWolfeOneClass", parts.train, ours),
        ("OneClassSVM", some, theirs),
    ):
        own = parts._replace(train=rows)
        tried = [
            try_one(m, own, setting, roc_auc_score, "score_samples") for setting, m in machines
        ]
        yield name, len(rows), tried


def regression_parts(name: str, data: Path, work: Path) -> Parts:
    """At most `MOST_TARGETS` rows: 70 % to train on, their targets in the last column."""
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        X, y = load_diabetes(return_X_y=True)
    else:
        X, column = load(name, data, work)[0].astype(float), TARGETS[name]
        X, y = np.delete(X, column, axis=1), X[:, column]
    rows = np.random.default_rng(0).permutation(len(X))[:MOST_TARGETS]
    both = np.column_stack([X, y])[rows]
    parts = np.split(both, [int(0.7 * len(both)), int(0.85 * len(both))])
    mean, spread = parts[0].mean(axis=0), parts[0].std(axis=0)
    scaled = [(part - mean) / np.where(spread > 0, spread, 1) for part in parts]
    held_out = [(part[:, :-1], part[:, -1]) for part in scaled[1:]]
    return Parts(scaled[0], held_out[0], held_out[1])


def regression(parts: Parts) -> Iterator[tuple[str, int, list[Tried]]]:
    """Ours with a tube beside SVR, and without one beside kernel ridge regression."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.metrics import r2_score
    from sklearn.svm import SVR

    import ooc_fw

    gamma = 1 / (parts.train.shape[1] - 1)
    machines: dict[str, Callable[[float], Any]] = {
        "FrankWolfeSVR": lambda C: ooc_fw.FrankWolfeSVR(C=C, gamma=gamma, random_state=0),
        "SVR": lambda C: SVR(C=C, gamma=gamma),
        "FrankWolfeSVR, epsilon 0": lambda C: ooc_fw.FrankWolfeSVR(
            C=C, gamma=gamma, epsilon=0, random_state=0
        ),
        "KernelRidge": lambda C: KernelRidge(alpha=1 / C, kernel="rbf", gamma=gamma),
    }
    for name, make in machines.items():
        tried = [
            try_one(make(C), parts, f"C {C:g}", r2_score, "predict")
            for C in (0.1, 1, 10, 100, 1000)
        ]
        yield name, len(parts.train), tried


def try_one(machine: Any, parts: Parts, setting: str, score: Machine, scores: str) -> Tried:
    """Fit a machine, and score it on both held-out parts."""
    rows = parts.train
    width = parts.test[0].shape[1]
    given = (rows,) if rows.shape[1] == width else (rows[:, :width], rows[:, width])
    began = time.perf_counter()
    machine.fit(*given)
    seconds = time.perf_counter() - began
    found = [score(y, getattr(machine, scores)(X)) for X, y in (parts.validation, parts.test)]
    vectors = getattr(machine, "support_", None)
    gap = getattr(machine, "certified_gap_", None)
    return Tried(*found, seconds, setting, None if vectors is None else len(vectors), gap)


TASKS: dict[str, tuple[Sequence[str], Callable[..., Parts], Callable[..., Any], str]] = {
    "novelty": (tuple(ORDINARY), novelty_parts, novelty, "ROC AUC"),
    "regression": (tuple(TARGETS), regression_parts, regression, "R2"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a Markdown table of one task, a set after the other."""
    parser = argparse.ArgumentParser(prog="bench.tasks", description=__doc__)
    parser.add_argument("task", choices=tuple(TASKS))
    parser.add_argument("--sets", nargs="+", help="names of sets (default: all of the task)")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder of the real sets")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "ooc-fw-bench"))
    args = parser.parse_args(argv)
    names, parts_of, compare, score = TASKS[args.task]
    warnings.simplefilter("ignore")  # of settings that do not converge
    lines = []
    for name in args.sets or names:
        parts = parts_of(name, args.data, args.work)
        for machine, n_rows, tried in compare(parts):
            best = max(tried, key=lambda one: one.validation)
            gap = "" if best.gap is None else f"{best.gap:.1e}"
            total = sum(one.seconds for one in tried)
            own = (name, machine, n_rows, f"{best.score:.4f}", f"{best.seconds:.2f}")
            lines.append((*own, f"{total:.1f}", best.vectors or "", gap, best.setting))
            print(*lines[-1], sep="\t", file=sys.stderr, flush=True)
    heads = "set", "machine", "rows", score, "s", "s, grid", "vectors", "gap", "setting"
    print(table(heads, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
