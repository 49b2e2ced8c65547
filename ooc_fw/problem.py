"""The L2-SVM dual: its matrix, gaps and stopping tests; see `BinaryProblem` for the formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ooc_fw.data.labels import Classes
from ooc_fw.data.rows import AnyArray, Codes, Float64Array, Int8Array, Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.functions import Kernel
from ooc_fw.options import LEAST, POSITIVE, Option
from ooc_fw.system.errors import InputError, format_label, format_labels

FLOAT64_GAP = 1e-10  # relative gap that steps in float64 surely reach
WEIGHT_SUM_TOLERANCE = 1e-9
"""Largest distance of a sum from 1 at which weights are taken to be on the simplex."""
EXACT_ROWS = 4_096
"""Rows up to which all are landmarks of a regression unless told otherwise: it is then exact."""


def classifiers_of(n_classes: int) -> int:
    """Classifiers of a landmark model: one against the rest, but one of two classes."""
    return 1 if n_classes == 2 else n_classes


class Part(NamedTuple):
    """The rows of a problem, if it has some rows of its data only; all others have weight 0."""

    rows: Int64Array  # their numbers, increasing
    n_rows: int  # number of all rows of the data


class Problem:
    """What a model is trained on; each task has a record of its own."""

    source: RowSource
    kernel: Kernel
    # (n_rows,): penalty of a unit squared slack of each row; None is C of the options for all.
    penalties: Float64Array | None
    part: Part | None  # None: all rows of the data
    task: ClassVar[str] = "classification"
    n_classifiers: ClassVar[int] = 1  # of a landmark model
    probability: bool = False  # classification: whether the model is to give probabilities
    contamination: float | None = None  # novelty: see `NoveltyProblem`

    @property
    def holds_out(self) -> bool:
        """Whether models of some rows judge the others, for probabilities or a threshold."""
        return self.probability or self.contamination is not None

    @property
    def row_classes(self) -> Int64Array:
        """Class of each row, from 0, or 0 for all; a sample has rows from each class."""
        return np.zeros(self.source.n_rows, dtype=np.int64)

    @property
    def answers(self) -> AnyArray:
        """Labels or targets of the rows, by which a checkpoint knows its run."""
        return self.row_classes

    def subset(self, source: RowSource, rows: Int64Array) -> Self:
        """The problem restricted to the increasing numbers `rows`, which `source` gives."""
        given: Any = self
        part = Part(rows, self.source.n_rows)
        if self.part is not None:
            part = Part(self.part.rows[rows], self.part.n_rows)
        changes = {
            name: getattr(self, name)[rows]
            for name in ("codes", "targets", "penalties")
            if getattr(self, name, None) is not None
        }
        return cast(Self, replace(given, source=source, part=part, **changes))


@dataclass(frozen=True)
class ClassificationProblem(Problem):
    """What a model of two classes or more is trained on."""

    source: RowSource
    codes: Codes  # (n_rows,): class of each row, from 0; every class occurs
    kernel: Kernel
    penalties: Float64Array | None = None
    class_labels: npt.NDArray[Any] | None = None  # (n_classes,); the codes themselves by default
    probability: bool = False
    part: Part | None = None

    @cached_property
    def classes(self) -> npt.NDArray[Any]:
        """Label of each class, shape (n_classes,)."""
        if self.class_labels is not None:
            return self.class_labels
        return np.arange(int(self.codes.max()) + 1)

    @property
    def row_classes(self) -> Int64Array:
        return self.codes

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def n_classifiers(self) -> int:  # type: ignore[override]
        return classifiers_of(self.n_classes)

    def binary(self) -> BinaryProblem:
        """The problem of two classes, the second of which is positive."""
        signs = 2 * self.codes.astype(np.int8) - 1
        return BinaryProblem(self.source, signs.astype(np.int8), self.kernel, self.penalties)


@dataclass(frozen=True)
class RegressionProblem(Problem):
    """What a model of regression is trained on: see `ooc_fw.training.tasks`."""

    source: RowSource
    targets: Float64Array  # (n_rows,), finite
    kernel: Kernel
    epsilon: float = 0.1  # half the width of the tube around the targets in which nothing is lost
    penalties: Float64Array | None = None
    part: Part | None = None
    task: ClassVar[str] = "regression"

    def __post_init__(self) -> None:
        _check_rows("targets", self.targets, self.source.n_rows, np.isfinite(self.targets))

    @property
    def answers(self) -> Float64Array:
        return np.append(self.targets, self.epsilon)


@dataclass(frozen=True)
class NoveltyProblem(Problem):
    """What a model of one class is trained on: all rows, whose labels are not looked at."""

    source: RowSource
    kernel: Kernel
    penalties: Float64Array | None = None
    # Largest share of new ordinary rows, above 0 and at most 0.5, that the model calls novel: see
    # `ooc_fw.training.fit`. With None the offset is the score at the margin.
    contamination: float | None = None
    part: Part | None = None
    task: ClassVar[str] = "novelty"

    @property
    def answers(self) -> Int8Array:
        return np.ones(self.source.n_rows, dtype=np.int8)

    def binary(self) -> BinaryProblem:
        """The problem of one class as the solver takes it."""
        return BinaryProblem(self.source, self.answers, self.kernel, self.penalties, one_class=True)


@dataclass(frozen=True)
class BinaryProblem(Problem):
    """The problem of one binary classifier.

    Notes
    -----
    We minimise over the unit simplex

        f(alpha) = 1/2 alpha' Q alpha,   Q_ij = y_i y_j (k(x_i, x_j) + 1) + [i = j] / C_i,

    the dual of  min 1/2 (|w|^2 + b^2 + sum C_i xi_i^2) - rho
    subject to  y_i (w.phi(x_i) + b) >= rho - xi_i.  With the gradient g = Q alpha
    and rho = alpha' g = 2 f:

        w = sum alpha_i y_i phi(x_i),   b = sum alpha_i y_i,   xi_i = alpha_i / C_i,
        h(x) = sum alpha_i y_i (k(x_i, x) + 1)   is the decision function; h / rho has margin 1.

    Two equal rows of one class have the same slack. They count as one row with penalty C_1 + C_2,
    and a row of weight w (C_i = w C) counts as w equal rows.

    The L2 one-class machine has all labels +1 and no b (SWAP paper, section 1). The alpha sum to 1,
    so that b adds 1 to rho and to every gradient, and changes neither the weights nor D. The steps
    run on the problem with b. Tolerances and results are those of the problem without it.

    The duality gap is D = rho - min_i g_i >= f(alpha) - min f. The *relative* gap d = D / rho is
    the worst margin violation if the margin is 1. (Papers that maximise use -f.) It bounds the
    optimum f*: alpha' Q alpha* is at least (1 - d) rho, and by Cauchy and Schwarz it is at most the
    root of rho 2 f*. Therefore f* >= (1 - d)^2 f, about (1 - 2 d) f for a small d.
    """

    source: RowSource
    labels: Int8Array  # (n_rows,): y_i, -1 or +1; both occur
    kernel: Kernel
    penalties: Float64Array | None = None  # the C_i, positive
    one_class: bool = False  # novelty detection: all labels are +1, and there is no bias b
    # Whether the rows are a part of a stream. Then one of the labels may be missing, and a run ends
    # without a certificate if the active set is full.
    partial: bool = False

    @property
    def task(self) -> str:  # type: ignore[override]
        return "novelty" if self.one_class else "classification"

    @property
    def row_classes(self) -> Int64Array:
        return (self.labels > 0).astype(np.int64)

    @property
    def answers(self) -> Int8Array:
        return self.labels

    def __post_init__(self) -> None:
        n_rows, penalties = self.source.n_rows, self.penalties
        labels = check_signs(self.labels, n_rows, both=not (self.one_class or self.partial))
        if self.one_class and (labels < 0).any():
            raise InputError("a problem of one class has the labels +1 only")
        object.__setattr__(self, "labels", labels)
        if penalties is not None:
            _check_rows("penalties", penalties, n_rows, (penalties > 0) & (penalties < math.inf))

    @property
    def bias_share(self) -> float:
        """What the bias adds to rho although the problem has none: 1 for one class."""
        return 1.0 if self.one_class else 0.0

    def constant_diagonal(self, C: float) -> float | None:
        """Delta^2 = k(x, x) + 1 + 1/C, or None if it depends on the row."""
        constant = self.kernel.constant_diagonal and self.penalties is None
        return 2 + 1 / C if constant else None


_WANTED = {  # the values that are valid, and what to do about the others
    "targets": ("must be finite numbers", "leave such rows out"),
    "penalties": ("must be positive numbers", "leave out rows of weight 0"),
    "labels": ("must be -1 or +1", "translate them, or use FrankWolfeSVC, which takes any labels"),
    "sample weights": ("must not be negative", "correct it"),
}


def _check_rows(
    what: str, values: npt.NDArray[Any], n_rows: int, fits: npt.NDArray[np.bool_]
) -> None:
    """Raise InputError unless there is one value for each row, and all of them fit."""
    if values.shape != (n_rows,):
        raise InputError(f"{n_rows} rows need as many {what}, not an array of shape {values.shape}")
    wrong = np.flatnonzero(~fits)
    if len(wrong) > 0:
        wanted, hint = _WANTED[what]
        value = values[wrong[0]]
        raise InputError(f"{what} {wanted}, but that of row {wrong[0]} is {value!s}; {hint}")


def check_signs(labels: npt.ArrayLike, n_rows: int, *, both: bool = True) -> Int8Array:
    """Labels of a binary problem as int8.

    InputError is raised if their number is not `n_rows`, if one is neither -1 nor +1, or if `both`
    are wanted and one of the two is missing.
    """
    given: npt.NDArray[Any] = np.asarray(labels)
    positive = given == 1
    _check_rows("labels", given, n_rows, positive | (given == -1))
    if both and not 0 < np.count_nonzero(positive) < n_rows:
        raise InputError(
            f"all {n_rows} labels are {'+1' if positive.all() else '-1'}; give rows of both classes"
        )
    return given.astype(np.int8, copy=False)


def check_weights(
    rows: Int64Array, alpha: Float64Array, n_rows: int, *, scaled: bool = True
) -> None:
    """Raise InputError unless the weights `alpha` of `rows` are on the simplex over `n_rows`.

    Weights with which a run begins may have another sum than 1: they are not `scaled`.
    """
    what, wanted = ("weights", "1") if scaled else ("the weights of a warm start", "more than 0")
    fits = rows.shape == alpha.shape == (len(rows),) and len(np.unique(rows)) == len(rows) > 0
    if not (fits and 0 <= rows.min() <= rows.max() < n_rows):
        raise InputError(f"{what} need different rows, from 0 to {n_rows - 1}, one for each")
    total = alpha.sum()
    fits = abs(total - 1) <= WEIGHT_SUM_TOLERANCE if scaled else 0 < total < math.inf
    if not (alpha >= 0).all() or not fits:
        raise InputError(f"{what} must not be negative and sum to {wanted}, not to {total}")


def relative_gap(rho: float, least_gradient: float) -> float:
    """The duality gap divided by rho: 1 - min g / rho, at least 0; infinite if rho is."""
    return max(1.0 - least_gradient / rho, 0.0) if rho < math.inf else math.inf


def objective_gap(rho: float, squared_norm: float, loss: float) -> float:
    """(P - D) / P, at least 0, for w / rho; `loss` is the sum of C_i times its squared slacks."""
    dual = 0.5 / rho
    primal = 0.5 * squared_norm / rho**2 + 0.5 * loss
    return 1.0 - dual / primal if primal > dual else 0.0


def relative_target(tol: float) -> float:
    """The gap (P - D) / P of the objective that corresponds to a relative gap `tol`.

    A model with that gap violates margins by at most `tol`. If its weights are divided by 1 - tol,
    their objective is within 1 - (1 - tol)^2 of the optimum.
    """
    return 1 - (1 - min(tol, 1.0)) ** 2


def pair_gap(largest_support_gradient: float, least_gradient: float, rho: float) -> float:
    """(max g over the support - min g) / rho: the two-sided test of LIBSVM on our scale."""
    return max(0.0, (largest_support_gradient - least_gradient) / rho)


@dataclass(frozen=True)
class StoppingTest:
    """Translates a tolerance in the unit of `kind` into a bound on the relative gap.

    "relative" is the test D / rho <= tol. "absolute" is D <= tol, the test of the PARTAN and
    randomization papers. "meb" is 2 D <= (2 tol + tol^2)(Delta^2 - rho), the (1 + tol)-ball of the
    MEB paper (algorithms 2 and 3); InputError is raised if Delta^2 depends on the row.
    """

    kind: str
    tol: float
    diagonal: float | None  # Delta^2 = k(x, x) + 1 + 1/C; None if it depends on x
    bias_share: float = 0.0  # what to take off rho: see `BinaryProblem.bias_share`

    def __post_init__(self) -> None:
        if self.kind == "meb" and self.diagonal is None:
            raise InputError(
                "stopping 'meb' needs a kernel whose k(x, x) is constant (rbf or laplacian), and "
                "one penalty for all rows; use stopping 'relative'"
            )

    @property
    def stated(self) -> StoppingTest:
        """The test of a rho without the bias of one class."""
        diagonal = None if self.diagonal is None else self.diagonal - self.bias_share
        return replace(self, diagonal=diagonal, bias_share=0.0)

    def line(self) -> tuple[float, float]:
        """Numbers a and b: the largest relative gap that passes is a + b / rho."""
        if self.kind == "relative":
            return self.tol, -self.tol * self.bias_share
        if self.kind == "absolute":
            return 0.0, self.tol
        assert self.diagonal is not None
        ball = self.tol + self.tol**2 / 2
        return -ball, ball * self.diagonal

    def relative_tolerance(self, rho: float) -> float:
        """Largest relative gap that passes at this `rho`."""
        a, b = self.line()
        return a + b / rho if b else a  # rho is 0 if one class has opposite rows

    def target(self, rho: float, share: float = 1.0) -> float:
        """A share of `relative_tolerance`, but no less than what steps in float64 can reach."""
        return max(share * self.relative_tolerance(rho), FLOAT64_GAP)


# A weight says how often a row counts, see `BinaryProblem`. Callers leave out rows of weight 0.

ClassWeight: TypeAlias = Mapping[Any, float] | str | None
"""A weight for each label, or "balanced", or None: 1 for all."""

_LARGEST = 1e100
"""Upper limit of C_i, as `LEAST` is the lower one."""

_GOLDEN = 0.6180339887498949  # its multiples spread evenly over the fractions from 0 to 1
_ROWS_AT_ONCE = 1 << 18  # rows whose logarithms are summed together


def row_penalties(
    C: float,
    classes: npt.NDArray[Any],
    codes: Codes,
    class_weight: ClassWeight = None,
    sample_weight: Float64Array | None = None,
) -> Float64Array | None:
    """Penalty of each row; None if there are no weights: then it is `C` for all.

    `codes` are the places of the rows' labels in `classes`, and sample weights are above 0. A class
    that a mapping lacks has weight 1. "balanced" is n_rows / (n_classes * rows of the class), and
    both numbers of rows are sums of sample weights. InputError is raised for other weights.
    """
    if class_weight is None and sample_weight is None:
        return None
    penalties = C * class_factors(classes, codes, class_weight, sample_weight)[codes]
    name = "C" if class_weight is None else "C times class_weight"
    if sample_weight is not None:
        penalties = penalties * sample_weight
        name += " times sample_weight"
    return _within_limits(penalties, name)


def class_factors(
    classes: npt.NDArray[Any],
    codes: Codes,
    class_weight: ClassWeight = None,
    sample_weight: Float64Array | None = None,
) -> Float64Array:
    """Factor of C for each class, shape (n_classes,); the arguments are as in `row_penalties`."""
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(codes, weights=sample_weight, minlength=len(classes))
        return np.asarray(counts.sum() / (len(classes) * counts))
    if not isinstance(class_weight, Mapping):
        raise InputError(
            f"class_weight must be 'balanced' or a weight for each label, not {class_weight!r}"
        )
    known = Classes(classes)
    weight = Option(1.0, **POSITIVE)
    found = np.ones(len(classes))
    strange = []
    for label, value in class_weight.items():
        place = known.place(label)
        if place < 0:
            strange.append(label)
        else:
            found[place] = weight.check(f"the weight of class {known.names[place]}", value)
    if strange and len(class_weight) - len(strange) < len(classes):
        raise InputError(
            f"class_weight has a weight for {format_label(strange[0])}, which is no label; labels "
            f"are {format_labels(classes)}"
        )
    return found


def penalties_of_classes(problem: Problem) -> Float64Array:
    """Two numbers for each class, shape (2, n_classes), that tell its penalties from others.

    They are the penalty of its last row and the sum of t_i log(C_i / C_last) over its rows. The
    sum is 0 if the penalties are equal. The factors t_i, from 1 to 2, all differ, so that the same
    penalties in another order have another sum.
    """
    codes = problem.row_classes
    penalties: Any = problem.penalties
    last = np.zeros(int(codes.max()) + 1)
    last[codes] = penalties
    sums = np.zeros(len(last))
    for start in range(0, len(codes), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        logs = np.log(penalties[part] / last[codes[part]])
        factors = 1 + np.arange(start, start + len(logs)) * _GOLDEN % 1
        sums += np.bincount(codes[part], factors * logs, len(last))
    return np.array([last, sums])


def _within_limits(penalties: Float64Array, name: str) -> Float64Array:
    """Return the penalties; InputError tells their `name` if one is extreme and not 0."""
    wrong = np.flatnonzero(~((penalties == 0) | ((penalties >= LEAST) & (penalties <= _LARGEST))))
    if len(wrong) > 0:
        raise InputError(
            f"{name} must be from {LEAST:g} to {_LARGEST:g} for float64 arithmetic, but is "
            f"{penalties[wrong[0]]:g} for row {wrong[0]}; bring the weights closer to 1"
        )
    return penalties


def check_sample_weight(sample_weight: npt.ArrayLike, n_rows: int, C: float = 1.0) -> Float64Array:
    """Weights as float64.

    InputError is raised unless each row has a weight of 0 or more, some weight is positive, and
    all positive weights times `C` are within the limits for float64 arithmetic.
    """
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("sample weights must be numbers, one for each row") from None
    _check_rows("sample weights", weights, n_rows, (weights >= 0) & (weights < np.inf))
    if not weights.any():
        raise InputError("all sample weights are zero; give a positive weight to some rows")
    # A positive weight stays positive even if its product with C underflows to 0.
    with np.errstate(over="ignore", under="ignore"):
        products = np.where(weights > 0, np.maximum(weights * C, np.nextafter(0.0, 1.0)), 0.0)
    _within_limits(products, "sample_weight times C")
    return weights
