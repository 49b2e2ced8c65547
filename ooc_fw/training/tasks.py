"""Novelty detection and regression: what distinguishes them from classification.

Novelty
-------
The L2 one-class problem is that of a smallest enclosing ball (Nanculef, Frandi, Sartori, Allende, A
novel Frank-Wolfe algorithm, section 1; the MEB paper):

min over the simplex 1/2 alpha' Q alpha,   Q_ij = k(x_i, x_j) + [i = j] / C_i

The score of a row is s(x) = sum_i alpha_i k(x_i, x). A row at the margin has the score rho = alpha'
Q alpha. Divide alpha by rho: with beta = alpha / rho, the weights w = sum_i beta_i phi(x_i) solve

min 1/2 |w|^2 + 1/2 sum_i C_i max(0, 1 - w.phi(x_i))^2,

the L2-SVM without a bias in which all rows are of class +1. Its optimum is 1 / (2 rho). Landmark
models solve it in their span (`ooc_fw.landmarks.span`); their score is w.phi(x).

Regression
----------
The L2-SVR has an epsilon-insensitive loss. Targets are centred; targets and epsilon are divided by
the spread of the targets. This changes neither C nor the model:

min 1/2 (|w|^2 + b^2) + 1/2 sum_i C_i xi_i^2,   xi_i = max(0, |y_i - w.phi(x_i) - b| - epsilon)

With epsilon 0 it is kernel ridge regression. Readings, steps and certificate are those of landmark
models. Any beta >= 0, with the signs s_i of the residuals, bounds the optimum from below by

D(beta) = sum_i beta_i (s_i y_i - epsilon) - 1/2 u'G^-1 u - 1/2 sum_i beta_i^2 / C_i.

If all rows are landmarks, this is a gap to the exact optimum.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.labels import encode_labels
from ooc_fw.data.rows import Float64Array
from ooc_fw.data.sources import RowSource, stretches
from ooc_fw.data.views import SubsetSource
from ooc_fw.landmarks import LandmarkSolution
from ooc_fw.model.machines import PairSolution, union_of_rows
from ooc_fw.model.prediction import DECISION_ACCURACY
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import (
    EXACT_ROWS,
    ClassificationProblem,
    NoveltyProblem,
    RegressionProblem,
    penalties_of_classes,
)
from ooc_fw.solver.state import Solution
from ooc_fw.system.errors import InputError, format_label

logger = logging.getLogger(__name__)

MOST_HELD_OUT = 20_000
"""Largest part of the rows to hold out; sources of at most so many rows have several parts."""

_LARGEST_TARGET = 1e150  # a float64 can hold the sum of the squares of such targets


# -- all tasks -------------------------------------------------------------------------------------


def model_of(problem: Any, C: float, found: Any) -> Model:
    """Model of the weights that training has found: of one solution, or of those of all pairs."""
    learned: dict[str, Any] = {"kernel": problem.kernel, "C": C, "n_rows": problem.source.n_rows}
    on_landmarks = isinstance(found, LandmarkSolution)
    if isinstance(found, Solution):
        found = [PairSolution(0, 1, found)]
    learned["penalties"] = problem.penalties
    if problem.penalties is not None:
        learned["class_penalties"], learned["penalty_sums"] = penalties_of_classes(problem)
    if not on_landmarks and len(found) > 1:
        learned["vectors"] = problem.source.take(union_of_rows(found))
    if isinstance(problem, ClassificationProblem):
        learned["classes"] = problem.classes
    elif isinstance(problem, NoveltyProblem):
        learned["offset"] = 1.0 if on_landmarks else found[0].solution.rho
    else:
        _, mean, spread = scaled(problem)
        learned |= {"offset": mean, "spread": spread, "epsilon": problem.epsilon}
    model = Model.of(found, problem.source, **learned)
    if problem.part is None:
        return model
    rows, n_rows = problem.part
    weighted = np.zeros(n_rows, dtype=bool)
    weighted[rows] = True
    bits = np.packbits(weighted)
    return replace(model, rows=rows[model.rows], weighted_rows=bits, n_rows=n_rows)


# -- novelty -------------------------------------------------------------------------------------


def warn_of_novel(model: Model, problem: NoveltyProblem, options: TrainOptions) -> None:
    """Warn if a model without `contamination` calls many of the training rows novel."""
    source = problem.source
    sample = SubsetSource(source, stretches(source.n_rows, 50, 100))
    values = model.decision_function(sample, threads=options.threads, labels_only=True)
    novel = 100 * float((values < 0).mean())
    if novel > 10:
        logger.warning(
            "the model calls %.0f %% of the training rows novel: set their share with "
            "contamination (--contamination 0.01), or take a larger C than %g, or a "
            "smaller gamma than %.4g",
            *(novel, options.C, model.kernel.gamma),
        )


def threshold_of(scores: Float64Array, share: float) -> float:
    """A threshold that has no more than this share of the scores, in units of the margin, below it.

    It lies between two scores, so that equal rows are on one side of it.
    """
    ordered = np.sort(scores)
    cut = float(ordered[int(share * len(ordered))])
    lower = ordered[ordered < cut - 2 * DECISION_ACCURACY]
    return (cut + float(lower[-1])) / 2 if len(lower) > 0 else cut - DECISION_ACCURACY


def fold_sizes(n_rows: int, n_parts: int = 4) -> list[int]:
    """Numbers of rows to hold out in turn: one part, or `n_parts` if there are few rows."""
    if n_rows <= MOST_HELD_OUT:
        return [max(1, n_rows // n_parts)] * n_parts
    return [min(round(0.3 * n_rows), MOST_HELD_OUT)]


def ordinary_rows(source: RowSource, label: Any = None) -> tuple[str, npt.NDArray[np.bool_], str]:
    """The label of ordinary rows, which rows have it, and a sentence about both.

    If there are two labels, the more frequent one is the default. Otherwise an InputError says how
    to choose one.
    """
    classes, codes = encode_labels(source)
    place = int(np.bincount(codes).argmax()) if label is None else classes.place(label)
    word = format_label(label) if place < 0 else classes.names[place]
    if place < 0 or (label is None and len(classes) != 2):
        fault = f"no row of {source.name} has the label {word}"
        if label is None:
            fault = f"{source.name} has {len(classes)} different labels, but novelty needs two"
        raise InputError(
            f"{fault}; name the label of ordinary rows with --ordinary LABEL (ordinary= in Python)"
        )
    is_ordinary = codes == place
    n_ordinary = int(is_ordinary.sum())
    words = (
        f"{n_ordinary} rows labelled {word} are ordinary: the model learns these only; "
        f"{len(codes) - n_ordinary} others are novel"
    )
    return word, is_ordinary, words


# -- regression ----------------------------------------------------------------------------------


def takes_all_rows(n_rows: int, options: TrainOptions) -> bool:
    """Whether a regression on so many rows makes all of them landmarks."""
    return options.landmarks is None and (options.exact or n_rows <= EXACT_ROWS)


def scaled(problem: RegressionProblem) -> tuple[RegressionProblem, float, float]:
    """The problem with targets minus their mean, divided by their spread; the mean; the spread.

    InputError for targets that float64 arithmetic cannot learn from.
    """
    targets = problem.targets
    low = float(targets.min())
    high = float(targets.max())
    largest = max(-low, high)
    if largest > _LARGEST_TARGET or 0 < high - low < 1 / _LARGEST_TARGET:
        raise InputError(
            f"the targets of {problem.source.name} reach {largest:.3g} and differ by up to "
            f"{high - low:.3g}, which is too large or too small for float64 arithmetic; "
            f"take another unit for them and for epsilon"
        )
    if low == high:  # the mean of equal numbers may be off by rounding
        return replace(problem, targets=np.zeros_like(targets)), low, 1.0
    mean = float(targets.mean())
    spread = float(targets.std())
    if np.abs(targets - mean).max() <= problem.epsilon:
        raise InputError(
            f"epsilon {problem.epsilon:g} is so large that predicting the mean of the targets, "
            f"{mean:g}, costs nothing; give a smaller epsilon"
        )
    epsilon = problem.epsilon / spread
    return replace(problem, targets=(targets - mean) / spread, epsilon=epsilon), mean, spread
