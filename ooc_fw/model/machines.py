"""The binary classifiers of a model: weights on shared rows, in one ragged table; their checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows, check_pointers
from ooc_fw.landmarks import LandmarkSolution
from ooc_fw.model.pairs import PairSolution, count_classifiers, union_of_rows, worst_status
from ooc_fw.problem import WEIGHT_SUM_TOLERANCE
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

ARRAYS = {"indptr": np.int64, "sv": np.int64, "beta": np.float64}
"""Data types of the fields of `Machines` that are no numbers of each classifier."""


@dataclass(frozen=True)
class Machines:
    """Weights and numbers of n binary classifiers on the support vectors of a model.

    Classifier k has the entries ``indptr[k]:indptr[k + 1]`` of `sv` and `beta`, and the decision
    function h(x) = sum_j beta_j (k(z_j, x) + 1) / rho, whose margin is 1; of one class without the
    1. P(positive | h) is 1 / (1 + exp(sigmoid_a h + sigmoid_b)). Unknown numbers are NaN.
    """

    indptr: Int64Array  # (n + 1,)
    sv: Int64Array  # places in `Model.support_vectors`
    beta: Float64Array  # exact: weight times label, absolute sum 1; landmarks: of either sign
    rho: Float64Array  # (n,): 1 for landmarks
    certified_gap: Float64Array  # (n,): relative, over all rows or within the span of the landmarks
    sampled_gap: Float64Array  # (n,): over the rows that training drew, no certificate
    primal: Float64Array  # (n,): objective of landmarks over all rows, see `ooc_fw.landmarks.span`
    dual: Float64Array  # (n,): lower bound on the least primal, from a certificate
    sigmoid_a: Float64Array  # (n,)
    sigmoid_b: Float64Array  # (n,)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @classmethod
    def of(
        cls, places: Sequence[Int64Array], betas: Sequence[Float64Array], **numbers: Any
    ) -> Machines:
        """From the arrays of each classifier; numbers that are None or left out are unknown."""
        n = len(places)
        arrays = {name: np.full(n, np.nan) for name in NUMBERS}
        for name, values in numbers.items():
            if values is not None:
                arrays[name] = np.array(values, dtype=np.float64)
        return cls(
            indptr=np.concatenate([[0], np.cumsum([len(part) for part in places])]),
            sv=np.concatenate(places),
            beta=np.concatenate(betas),
            **arrays,
        )

    def part(self, k: int) -> slice:
        """Entries of classifier `k`."""
        return slice(self.indptr[k], self.indptr[k + 1])

    def check(self, n_vectors: int, *, exact: bool) -> None:
        """Raise InputError for arrays and numbers that no training gives."""
        n = len(self)
        n_entries = len(self.sv)
        check_pointers(self.indptr, n_entries, "indptr of the classifiers")
        lengths = np.diff(self.indptr)
        numbers = np.array([getattr(self, name) for name in NUMBERS])
        demand(
            len(self.beta) == n_entries and numbers.shape[1:] == (n,) and lengths.all(),
            "the arrays of classifiers must be of one length above 0",
        )
        demand(
            0 <= self.sv.min() <= self.sv.max() < n_vectors,
            f"a classifier points outside the {n_vectors} vectors",
        )
        places = np.repeat(np.arange(n), lengths) * n_vectors + self.sv
        demand(len(np.unique(places)) == n_entries, "a classifier has a support vector twice")
        demand(np.isfinite(self.beta).all(), "weights must be finite numbers")
        positive = (self.rho >= np.finfo(np.float64).tiny) & (self.rho < np.inf)
        demand(positive.all(), "rho must be a positive number")
        if exact:
            sums = np.add.reduceat(np.abs(self.beta), self.indptr[:-1])
            near = np.abs(sums - 1) <= WEIGHT_SUM_TOLERANCE
            demand(near.all(), f"absolute weights must have the sum 1, not {sums}")
        else:
            same = np.array_equal(self.sv, np.tile(self.sv[: lengths[0]], n))
            demand(same, "all classifiers of a landmark model must have the same landmarks")
            demand((self.rho == 1).all(), "rho of landmarks must be 1")
        largest = np.finfo(np.float64).max
        for name, most in (("certified_gap", np.inf), ("primal", largest), ("dual", largest)):
            values = getattr(self, name)
            possible = np.isnan(values) | ((values >= 0) & (values <= most))
            demand(possible.all(), f"{name} must be a number that is not negative, not {values}")
        sigmoids = np.array([self.sigmoid_a, self.sigmoid_b])
        possible = np.isfinite(sigmoids).all(axis=0) | np.isnan(sigmoids).all(axis=0)
        demand(possible.all(), f"sigmoids cannot have the numbers {sigmoids}")


def demand(holds: Any, message: str) -> None:
    """Raise InputError unless a condition holds."""
    if not holds:
        raise InputError(message)


NUMBERS = tuple(field.name for field in fields(Machines) if field.name not in ARRAYS)
"""Fields of `Machines` that have a number for each classifier."""


@dataclass(frozen=True)
class Classifier:
    """One binary classifier of a model; numbers that are None are unknown."""

    positive: float | str  # class value of +1
    negative: float | str  # and of -1; "rest" stands for all other classes
    sv: Int64Array  # places in `Model.support_vectors`, shape (n_support,)
    rows: Int64Array  # numbers of the training rows, -1 for landmarks that are no rows
    beta: Float64Array  # weight times label, or the weights of landmarks
    C: Float64Array | None  # penalty of each row; None if all have that of the model
    rho: float
    certified_gap: float | None
    sampled_gap: float | None
    primal: float | None
    dual: float | None
    sigmoid_a: float | None
    sigmoid_b: float | None
    objective: float | None  # of the dual: rho / 2 of exact classifiers

    @property
    def alpha(self) -> Float64Array:
        """Weights of an exact classifier, whose sum is 1."""
        return np.abs(self.beta)

    @property
    def labels(self) -> Int8Array:
        """-1 or +1 for each support vector."""
        return np.where(np.signbit(self.beta), np.int8(-1), np.int8(1))


def known(values: Float64Array) -> list[float | None]:
    """Numbers as Python has them, None for NaN."""
    return [None if value != value else value for value in values.tolist()]


def as_class_values(classes: npt.ArrayLike) -> npt.NDArray[Any]:
    """Class values as a model holds them: numbers as float64, anything else as text."""
    values = np.asarray(classes)
    return values.astype(np.float64) if values.dtype.kind in "biuf" else values.astype(str)


def trained_landmarks(solution: LandmarkSolution, penalties: Float64Array | None) -> dict[str, Any]:
    """Fields of a model of landmarks; `penalties` are those of all training rows."""
    n_classifiers, n_landmarks = solution.beta.shape
    machines = Machines.of(
        [np.arange(n_landmarks)] * n_classifiers,
        list(solution.beta),
        rho=np.ones(n_classifiers),
        certified_gap=solution.certified_gap,
        sampled_gap=solution.sampled_gap,
        primal=solution.primal,
        dual=solution.dual,
    )
    return {
        "machines": machines,
        "rows": solution.rows,
        "penalties": None if penalties is None else penalties[solution.rows],
        "support_vectors": solution.landmarks,
        "jitter": solution.jitter,
        "status": str(solution.status),
    }


def trained_pairs(
    solutions: Sequence[PairSolution], vectors: Rows | None, C: float
) -> dict[str, Any]:
    """Fields of an exact model, from the solution of each pair of classes."""
    rows = union_of_rows(solutions)
    order = np.argsort(rows)
    own = [pair.solution for pair in solutions]
    places = [order[np.searchsorted(rows, one.rows, sorter=order)] for one in own]
    penalties = None
    # A stream has penalties once it has met a weight.
    if any(one.penalties is not None for one in own):
        penalties = np.full(len(rows), C, dtype=np.float64)
        for here, one in zip(places, own, strict=True):
            penalties[here] = C if one.penalties is None else one.penalties
    machines = Machines.of(
        places,
        [one.alpha * one.labels for one in own],
        rho=[one.rho for one in own],
        certified_gap=[one.certified_gap for one in own],
        sampled_gap=[one.sampled_gap for one in own],
    )
    return {
        "machines": machines,
        "rows": rows,
        "penalties": penalties,
        "support_vectors": own[0].support_vectors if vectors is None else vectors,
        "status": str(worst_status([one.status for one in own])),
    }


def check_model(model: Model) -> None:
    """Raise InputError for what no training gives, or what does not fit together."""
    classes = model.classes
    n_vectors = len(model.support_vectors)
    exact = model.kind == "exact"
    each = "pair of them" if model.decision == "ovo" else "of them against the rest"
    demand(
        len(classes) > 1 and len(model.machines) == count_classifiers(len(classes), model.decision),
        f"a model needs two classes or more, and a binary classifier for each {each}, not "
        f"{len(classes)} classes and {len(model.machines)} classifiers",
    )
    different = len(set(classes.tolist())) == len(classes)
    finite = classes.dtype.kind != "f" or bool(np.isfinite(classes).all())
    demand(different and finite, "classes must be words or finite numbers, all different")
    of_task = model.task == "classification" or classes.tolist() == [-1, 1]
    if model.task == "regression":
        of_task &= not exact and None not in (model.offset, model.epsilon)
    demand(of_task, f"its classes, classifiers or numbers are not those of {model.task}")
    model.machines.check(n_vectors, exact=exact)
    one_sided = model.task != "novelty" or not exact or bool((model.machines.beta >= 0).all())
    demand(one_sided, "weights of novelty must not be negative")
    rows = model.rows
    demand(
        len(rows) == n_vectors and rows.min() >= (0 if exact else -1),
        f"{n_vectors} support vectors need as many numbers of rows",
    )
    rows = rows[rows != -1]
    demand(len(np.unique(rows)) == len(rows), "two support vectors are the same row")
    penalties = np.ones(n_vectors) if model.penalties is None else model.penalties
    positive = bool(((penalties > 0) & (penalties < np.inf)).all())
    demand(positive and len(penalties) == n_vectors, f"C must be {n_vectors} positive numbers")
    for name in ("C", "jitter", "offset", "spread", "epsilon"):
        value = 1.0 if getattr(model, name) is None else getattr(model, name)
        least = -np.inf if name == "offset" else 0.0
        possible = np.isfinite(value) and (
            value > least if name in ("C", "spread") else value >= least
        )
        demand(possible, f"the {name} of a model cannot be {value}")
    widths = {model.n_features, len(model.columns or range(model.n_features))}
    if model.scaling is not None and model.scaling.n_features is not None:
        widths.add(model.scaling.n_features)
    demand(len(widths) == 1, f"it describes {widths} columns")
