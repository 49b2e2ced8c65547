"""What novelty detection and regression have of their own; both are L2-SVMs.

Novelty
-------
The L2 one-class problem has the weights of a smallest ball (Nanculef, Frandi, Sartori, Allende, A
novel Frank-Wolfe algorithm, section 1; the MEB paper):

min over the simplex 1/2 alpha' Q alpha,   Q_ij = k(x_i, x_j) + [i = j] / C_i

The score of a row is s(x) = sum_i alpha_i k(x_i, x), and rho = alpha' Q alpha the score of a row at
the margin. With beta = alpha / rho the weights w = sum_i beta_i phi(x_i), of margin 1, are those of

min 1/2 |w|^2 + 1/2 sum_i C_i max(0, 1 - w.phi(x_i))^2,

which is 1 / (2 rho) in the optimum: the L2-SVM whose rows are all of the class +1, without a bias.
With landmarks it is solved in their span (`ooc_fw.landmarks.span`), and the score is w.phi(x).

Regression
----------
The L2-SVR has an epsilon-insensitive loss. Targets are centred and divided by their spread, epsilon
with them, which changes neither C nor the model:

min 1/2 (|w|^2 + b^2) + 1/2 sum_i C_i xi_i^2,   xi_i = max(0, |y_i - w.phi(x_i) - b| - epsilon)

With epsilon 0 it is kernel ridge regression. The passes, the steps and the certificate are those of
landmark models: any beta >= 0, with the signs s_i of the residuals, has

D(beta) = sum_i beta_i (s_i y_i - epsilon) - 1/2 u'G^-1 u - 1/2 sum_i beta_i^2 / C_i.

If all rows are landmarks, the gap is one to the exact optimum.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.labels import encode_labels
from ooc_fw.data.sources import RowSource, stretches
from ooc_fw.data.views import SubsetSource
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import EXACT_ROWS, NoveltyProblem, RegressionProblem
from ooc_fw.solver.plan import Session
from ooc_fw.system.errors import InputError, format_label

logger = logging.getLogger(__name__)

_LARGEST_TARGET = 1e150  # whose square, summed over any rows, is a float64


# -- novelty -------------------------------------------------------------------------------------


def settled(
    model: Model, problem: NoveltyProblem, options: TrainOptions, session: Session
) -> Model:
    """The model with the offset that `contamination` asks for: that quantile of all scores.

    Without it there is a warning if many rows are novel.
    """
    source = problem.source
    share = problem.contamination
    if share is None:
        if options.certify:  # and not one of many that are compared
            sample = SubsetSource(source, stretches(source.n_rows, 50, 100))
            values = model.decision_function(sample, threads=options.threads, labels_only=True)
            novel = 100 * float((values < 0).mean())
            if novel > 10:
                logger.warning(
                    "the model takes %.0f %% of the training rows for novel: set their share with "
                    "contamination (--contamination 0.01), or take a larger C than %g, or a "
                    "smaller gamma than %.4g",
                    *(novel, options.C, model.kernel.gamma),
                )
        return model
    most = int(share * source.n_rows) + 1
    while most / source.n_rows > share:
        most -= 1
    how: dict[str, Any] = {"threads": options.threads, "dask": session.dask}
    move = float(np.quantile(model.decision_function(source, **how), share))
    # Rows with nearly the same score may all be below the quantile by rounding: the offset is
    # lowered until no more than the share are, as predictions count them.
    lower = np.inf
    while True:
        offset = min((model.offset or 0.0) + move, lower)
        model = replace(model, offset=offset)
        values = model.decision_function(source, **how, labels_only=True)
        if np.count_nonzero(values < 0) <= most:
            return model
        move = float(np.partition(values, most)[most])
        lower = np.nextafter(offset, -np.inf)


def ordinary_rows(source: RowSource, label: Any = None) -> tuple[str, npt.NDArray[np.bool_], str]:
    """Label of ordinary rows, which rows have it, and a sentence about both.

    By default it is the label that most rows have, if there are two. InputError names the way to
    choose another one.
    """
    classes, codes = encode_labels(source)
    names = [format_label(value) for value in classes.tolist()]
    word = names[np.bincount(codes).argmax()] if label is None else label
    word = word if isinstance(word, str) else format_label(word)
    if word not in names or len(names) < 2 or (label is None and len(names) > 2):
        fault = f"no row of {source.name} has the label {word}, or all have"
        if label is None:
            fault = f"{source.name} has {len(names)} different labels, and novelty knows two"
        raise InputError(
            f"{fault}; name the label of ordinary rows with --ordinary LABEL (ordinary= in Python)"
        )
    is_ordinary = codes == names.index(word)
    n_ordinary = int(is_ordinary.sum())
    words = (
        f"{n_ordinary} rows labelled {word} are ordinary, and alone are learned; "
        f"{len(codes) - n_ordinary} others are novel"
    )
    return word, is_ordinary, words


# -- regression ----------------------------------------------------------------------------------


def takes_all_rows(n_rows: int, options: TrainOptions) -> bool:
    """Whether all rows are landmarks of a regression."""
    return options.landmarks is None and (options.exact or n_rows <= EXACT_ROWS)


def scaled(problem: RegressionProblem) -> tuple[RegressionProblem, float, float]:
    """The problem in units of the spread of its targets, from their mean on; mean and spread.

    InputError for targets that float64 arithmetic cannot learn from.
    """
    targets = problem.targets
    low = float(targets.min())
    high = float(targets.max())
    largest = max(-low, high)
    if largest > _LARGEST_TARGET or 0 < high - low < 1 / _LARGEST_TARGET:
        raise InputError(
            f"the targets of {problem.source.name} reach {largest:.3g} and differ by "
            f"{high - low:.3g} at most, which is too large or too little for float64 arithmetic; "
            f"take another unit for them and for epsilon"
        )
    if low == high:  # the mean of equal numbers may be off by rounding
        return replace(problem, targets=np.zeros_like(targets)), low, 1.0
    mean = float(targets.mean())
    spread = float(targets.std())
    if np.abs(targets - mean).max() <= problem.epsilon:
        raise InputError(
            f"epsilon {problem.epsilon:g} is so large that the mean of the targets, {mean:g}, "
            f"loses nothing; give a smaller one"
        )
    epsilon = problem.epsilon / spread
    return replace(problem, targets=(targets - mean) / spread, epsilon=epsilon), mean, spread
