"""The parameters that all estimators have, and what docstrings say of parameters."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from ooc_fw.options import KernelOptions, TaskOptions, TrainOptions, option_fields

_WORDS = {
    "certify": "False leaves out the last pass over all rows: the status is sampled",
    "n_jobs": "threads; None is 1, -1 all CPUs",
    "random_state": "source of all random draws; an integer is the seed of ``ooc-fw train --seed``",
    "verbose": "above 0: show progress on standard error",
    "dask": "None, threads, processes or the address of a cluster: where passes over the data and "
    "predictions run; other processes read files only",
    "landmarks": "number of landmarks; none: train to the optimum over all rows, whatever that "
    "costs; auto and None: landmarks if the optimum has too many support vectors, or a regression "
    "too many rows: as many as the limits afford, 5,000 at most without `max_time`",
    "exact": 'True is the same as ``landmarks="none"``',
    "decision_function_shape": "ovr or ovo, for more than two classes: whether `decision_function` "
    "gives a score for each class, or the decision value of each binary classifier",
    "keep": "rows that `partial_fit` keeps at most, for each pair of classes",
    "class_weight": "factors of `C` for the rows of each class, by label, 1 for classes left out; "
    "balanced is n_rows / (n_classes * rows of the class), where rows count by their weight",
    "warm_start": "begin with the weights of the previous `fit`, where their rows have the same "
    "labels in the data now given; landmarks stay, and more are chosen if `landmarks` is larger",
    "probability": "have `predict_proba`: `fit` trains further classifiers without part of the "
    "rows, on which sigmoids are fitted, which takes up to twice as long; `partial_fit` fits none",
}
"""Meaning of the parameters that are no options of training, or are more here."""

_ATTRIBUTES = """support_, support_vectors_ : ndarray of int64, and ndarray or CSRRows
    Numbers of the training rows that have weight or are landmarks, and these rows.
dual_coef_, intercept_ : ndarray of float64, shapes (n_classifiers, n_support) and (n_classifiers,)
    Weight of each of these rows in the decision values, and what is added to the weighted sums.
fit_status_ : int
    0 when the gap reached `tol`, otherwise 1, with a warning.
kind_, gap_scope_ : str
    "exact" or "landmarks", and what `certified_gap_` is a gap to: "all", the optimum, or "span",
    the best weights of these landmarks: see `ooc_fw.landmarks.span`.
certified_gap_ : float or None
    Certified relative duality gap of the worst classifier; None when it is not certified.
n_iter_, n_features_in_, n_rows_seen_ : int
    Iterations, columns, and rows that were given, with those of weight 0.
feature_names_in_ : ndarray of object, shape (n_features,)
    Names of the columns, where a frame, an AnnData or a file names them.
gamma_ : float
    The number that `gamma` stood for, of kernels that have one.
model_ : ooc_fw.Model
    What `save` writes.
solution_ : ooc_fw.Solution or ooc_fw.landmarks.LandmarkSolution
    Everything the solver reports; of more than two exact classes, on the first pair."""

_Estimator = TypeVar("_Estimator", bound=type)


def documented(estimator: _Estimator) -> _Estimator:
    """Put parameters, and the attributes of all estimators, into the docstring of one."""
    declared = [option_fields(each) for each in (KernelOptions, TrainOptions, TaskOptions)]
    words = {name: option.help for record in declared for name, option in record.items()} | _WORDS
    lines = [f"{own.name} : {own.type}\n    {words[own.name]}" for own in fields(estimator)]
    text = inspect.cleandoc(estimator.__doc__ or "")
    estimator.__doc__ = text.format(parameters="\n".join(lines), attributes=_ATTRIBUTES)
    return estimator


@dataclass(eq=False, repr=False)
class Parameters(BaseEstimator):
    """Parameters that all estimators have."""

    kernel: str = KernelOptions.kernel
    gamma: float | str = KernelOptions.gamma
    degree: int = KernelOptions.degree
    coef0: float = KernelOptions.coef0
    C: float = TrainOptions.C
    tol: float = TrainOptions.tol
    certify: bool = TrainOptions.certify
    max_iter: int | None = TrainOptions.max_iter
    max_time: float | str | None = TrainOptions.max_time
    memory_limit: int | str | None = TrainOptions.memory_limit
    n_jobs: int | None = None
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0
    dask: str | None = None
