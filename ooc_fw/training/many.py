"""The kernel, C and class weights of a default model of many classes: `search`.

Each of many classifiers, one class against the rest, has few rows of its class. With a C for two
classes it follows the noise of these rows, and a frequent class wins over a rare one. A smaller C
with balanced classes comes close to the nearest mean of a class. If classes are directions, weights
of columns learn this from all rows in the time that a few hundred landmarks take.

The trials are on rows of some of the classes, and rows that no trial learned compare them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ooc_fw.data.rows import Float64Array, values_of
from ooc_fw.kernels.functions import Kernel, make_kernel
from ooc_fw.problem import ClassificationProblem, row_penalties
from ooc_fw.solver.plan import few_rows
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.training.samples import CLASS_ROWS, loaded

_CLASSES = 100  # most classes in the trials
_ROWS = 80  # rows for each of them on average, of which a quarter judges
_FIRST_C = 1 / 256  # of weights of columns, for rows of norm 1
_STEP = 4.0  # between the values of C that are compared


class Candidate(NamedTuple):
    """A kernel and penalties."""

    kernel: Kernel
    C: float
    balanced: bool  # whether the penalties of each class have the same sum

    def applied_to(self, problem: Any) -> Any:
        """The problem with this kernel and these penalties."""
        weight = "balanced" if self.balanced else None
        penalties = row_penalties(self.C, problem.classes, problem.codes, weight)
        return replace(problem, kernel=self.kernel, penalties=penalties)

    def __str__(self) -> str:
        gamma = f", gamma {self.kernel.gamma:.4g}" if self.kernel.uses_gamma else ""
        return f"C {self.C:.4g}{', classes balanced' * self.balanced}{gamma}"


class Trial(NamedTuple):
    """Rows of some classes: a problem to learn, and rows that judge what is learned."""

    sample: ClassificationProblem
    judges: ClassificationProblem


def draw_trial(problem: Any, seed: int, check: Callable[[], None]) -> Trial | None:
    """Rows of a hundred classes, all with the same probability; None if they are too few."""
    rng = np.random.default_rng(seed)
    taken = np.zeros(problem.n_classes, dtype=np.bool_)
    taken[rng.permutation(problem.n_classes)[:_CLASSES]] = True
    among = np.flatnonzero(taken[problem.codes])
    size = min(len(among), few_rows(problem.source, _ROWS * int(taken.sum())))
    ids = rng.choice(among, size, replace=False)
    learned = np.sort(ids[size // 4 :])
    classes = np.unique(problem.codes[learned])
    if len(learned) < CLASS_ROWS * len(classes) or len(classes) < 2:
        return None
    judges = np.sort(ids[: size // 4])
    judges = judges[np.isin(problem.codes[judges], classes)]

    def part(ids: Any) -> Any:
        rows = loaded(problem, ids, check)
        codes = np.searchsorted(classes, rows.codes)
        return replace(rows, codes=codes, class_labels=problem.classes[classes])

    return Trial(part(learned), part(judges))


def search(
    default: Candidate, trial: Trial, errors_of: Callable[[Candidate], Float64Array]
) -> dict[Candidate, float]:
    """The errors of all candidates that were tried, of which some are no better.

    C falls and rises as long as the errors fall, first for weights of columns, and for the default
    kernel if this is better. If the time is over, there are fewer candidates: the default may lack.
    """
    tried: dict[Candidate, float] = {}

    def attempt(candidate: Candidate) -> bool:
        """Try a candidate; whether it is better than all before."""
        least = min(tried.values(), default=np.inf)
        if candidate not in tried:
            tried[candidate] = float(errors_of(candidate).sum())
        return tried[candidate] < least

    def climb(start: Candidate) -> None:
        attempt(start)
        for factor in (1 / _STEP, _STEP):
            candidate = start._replace(C=factor * start.C)
            while attempt(candidate):
                candidate = candidate._replace(C=factor * candidate.C)

    with suppress(OutOfTimeError):
        linear = Candidate(make_kernel("linear"), _FIRST_C / _mean_square(trial), balanced=True)
        attempt(linear)
        attempt(default)
        climb(linear)
        if tried[default] == min(tried.values()):
            climb(default._replace(balanced=True))
        best = min(tried, key=lambda candidate: tried[candidate])
        attempt(best._replace(balanced=not best.balanced))
    return tried


def _mean_square(trial: Trial) -> float:
    """Mean squared norm of the rows, or 1 if all are 0."""
    rows = trial.sample.source.read(0, trial.sample.source.n_rows)
    values = values_of(rows)
    return float(np.square(values, dtype=np.float64).sum() / len(rows)) or 1.0
