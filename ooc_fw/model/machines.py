"""The binary classifiers of a model: weights on shared rows, in one ragged table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, check_pointers
from ooc_fw.problem import WEIGHT_SUM_TOLERANCE
from ooc_fw.system.errors import InputError

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
        n, n_entries = len(self), len(self.sv)
        check_pointers(self.indptr, n_entries, "indptr of the classifiers")
        lengths = np.diff(self.indptr)
        of_numbers = {len(getattr(self, name)) for name in NUMBERS}
        if len(self.beta) != n_entries or of_numbers != {n} or not lengths.all():
            raise InputError("the arrays of classifiers must be of one length above 0")
        if not 0 <= self.sv.min() <= self.sv.max() < n_vectors:
            raise InputError(f"a classifier points outside the {n_vectors} vectors")
        numbers = np.repeat(np.arange(n), lengths)
        if len(np.unique(numbers * n_vectors + self.sv)) < n_entries:
            raise InputError("a classifier has a support vector twice")
        sums = np.add.reduceat(np.abs(self.beta), self.indptr[:-1])
        if not np.isfinite(self.beta).all():
            raise InputError("weights must be finite numbers")
        if exact and not (np.abs(sums - 1) <= WEIGHT_SUM_TOLERANCE).all():
            raise InputError(f"absolute weights must have the sum 1, not {sums}")
        if not ((self.rho >= np.finfo(np.float64).tiny) & (self.rho < np.inf)).all():
            raise InputError(f"rho must be a positive number, not {self.rho}")
        if not exact and (self.rho != 1).any():
            raise InputError("rho of landmarks must be 1")
        if not exact and not np.array_equal(self.sv, np.tile(self.sv[: lengths[0]], n)):
            raise InputError("all classifiers of a landmark model must have the same landmarks")
        for name in ("certified_gap", "primal", "dual"):
            values = getattr(self, name)
            if (values < 0).any() or (name != "certified_gap" and np.isinf(values).any()):
                raise InputError(f"{name} must be numbers that are not negative, not {values}")
        a, b = self.sigmoid_a, self.sigmoid_b
        if (np.isnan(a) != np.isnan(b)).any() or np.isinf([a, b]).any():
            raise InputError(f"sigmoids cannot have a {a} and b {b}")


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
