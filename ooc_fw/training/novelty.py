"""Novelty detection: the L2 one-class problem, whose weights are those of a smallest ball.

min over the simplex 1/2 alpha' Q alpha,   Q_ij = k(x_i, x_j) + [i = j] / C_i

(Nanculef, Frandi, Sartori, Allende, A novel Frank-Wolfe algorithm, section 1; the MEB paper). The
score of a row is s(x) = sum_i alpha_i k(x_i, x), and rho = alpha' Q alpha the score of a row at the
margin. If k(x, x) + 1 / C = Delta^2 for all rows, sum_i alpha_i phi(x_i) is the centre of the
smallest ball around all rows in the feature space of Q, and Delta^2 - rho its squared radius.

With beta = alpha / rho the same weights w = sum_i beta_i phi(x_i), of margin 1, are those of

min 1/2 |w|^2 + 1/2 sum_i C_i max(0, 1 - w.phi(x_i))^2,

which is 1 / (2 rho) in the optimum: the L2-SVM whose rows are all of the class +1, without a bias.
With landmarks it is solved in their span (`ooc_fw.landmarks.span`), and the score is w.phi(x).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.labels import encode_labels
from ooc_fw.data.sources import RowSource, stretches
from ooc_fw.data.views import SubsetSource, ranges_of
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import NoveltyProblem
from ooc_fw.solver.plan import Session
from ooc_fw.system.errors import InputError, format_label

logger = logging.getLogger(__name__)

_MOST_NOVEL = 0.1  # share of the training rows that are novel, above which there is a warning


def settled(
    model: Model, problem: NoveltyProblem, options: TrainOptions, session: Session
) -> Model:
    """The model with the offset that `contamination` asks for; a warning if many rows are novel."""
    if problem.contamination is not None:
        return _at_quantile(model, problem, options.threads, session)
    if options.certify:  # and not one of many that are compared
        _warn_of_share(model, problem.source, options)
    return model


def _warn_of_share(model: Model, source: RowSource, options: TrainOptions) -> None:
    """Warn if the model takes many training rows for novel, by stretches from all over them."""
    sample = SubsetSource(source, ranges_of(stretches(source.n_rows, 50, 100)))
    values = model.decision_function(sample, threads=options.threads, labels_only=True)
    share = float((values < 0).mean())
    if share > _MOST_NOVEL:
        logger.warning(
            "the model takes %.0f %% of the training rows for novel: set their share with "
            "contamination (--contamination 0.01), or take a larger C than %g, or a smaller gamma "
            "than %.4g",
            100 * share,
            options.C,
            model.kernel.gamma,
        )


def _at_quantile(model: Model, problem: NoveltyProblem, threads: int, session: Session) -> Model:
    """The model with an offset below which no more than the share `contamination` of the rows are.

    It is the quantile of their scores, found in one more pass. In another one the rows are counted
    as predictions are computed, since rows with the same score, or nearly, may all be below it by
    rounding. The offset is lowered until they are not too many.
    """
    share = problem.contamination
    n_rows = problem.source.n_rows
    assert share is not None
    most = int(share * n_rows) + 1
    while most / n_rows > share:
        most -= 1
    how: dict[str, Any] = {"threads": threads, "dask": session.dask}
    values = model.decision_function(problem.source, **how)
    move = float(np.quantile(values, share))
    lower = np.inf
    while True:
        offset = min((model.offset or 0.0) + move, lower)
        model = replace(model, offset=offset)
        values = model.decision_function(problem.source, **how, labels_only=True)
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
    way = "name the label of ordinary rows with --ordinary LABEL (ordinary= in Python)"
    if label is None and len(names) != 2:
        raise InputError(
            f"{source.name} has {len(names)} different labels, and novelty knows rows that are "
            f"ordinary and rows that are novel; {way}"
        )
    word = label if label is None or isinstance(label, str) else format_label(label)
    if word is not None and (word not in names or len(names) < 2):
        raise InputError(f"no row of {source.name} has the label {word}, or all have; {way}")
    place = int(np.bincount(codes).argmax()) if word is None else names.index(word)
    is_ordinary = codes == place
    n_ordinary = int(is_ordinary.sum())
    words = (
        f"{n_ordinary} rows labelled {names[place]} are ordinary, and alone are learned; "
        f"{len(codes) - n_ordinary} others are novel"
    )
    return names[place], is_ordinary, words
