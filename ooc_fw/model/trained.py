"""What a model holds: `Trained`; `ooc_fw.model.record` adds what can be done with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows, take_rows
from ooc_fw.data.scaling import Scaling
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import Kernel
from ooc_fw.model.machines import Classifier, Decision, class_sides, worst_gap
from ooc_fw.system.errors import InputError


def demand(holds: Any, message: str) -> None:
    """Raise InputError unless a condition holds."""
    if not holds:
        raise InputError(message)


@dataclass(frozen=True, repr=False)
class Trained:
    """Trained classifiers and everything that is needed to apply them."""

    kernel: Kernel  # has the number that was used for gamma
    C: float  # penalty in training, before weights of rows and classes
    classes: npt.NDArray[Any]  # (n_classes,): increasing; if there are two, the second is +1
    scaling: Scaling  # scaling of the training rows; none if they were not converted
    status: str  # how training ended, see `ooc_fw.model.machines.worst_status`
    support_vectors: Rows  # scaled as in training; all classifiers share them
    n_rows: int  # rows of the training data, weight 0 included
    rows: Int64Array  # (n_support,): their row numbers in the training data
    classifiers: list[Classifier]  # in the order of `class_sides`
    penalties: Float64Array | None = None  # (n_support,): C of each of these rows; None if all = C
    # With penalties: what tells those of all rows, see `ooc_fw.problem.penalties_of_classes`.
    class_penalties: Float64Array | None = None  # (n_classes,): of the last row of each class
    penalty_sums: Float64Array | None = None  # (n_classes,)
    # Landmark models: added to the diagonal of the kernel matrix. Linear models: 0.
    jitter: float | None = None
    offset: float | None = None  # novelty: subtracted from the score; regression: mean of targets
    spread: float | None = None  # regression: the prediction is offset + spread h(x)
    epsilon: float | None = None  # regression: largest error that costs nothing
    threshold: float | None = None  # decision value at which the label of two changes; None: 0
    columns: tuple[str, ...] | None = None  # names of the features, if they are known
    table: str | None = None  # how the columns of a table became features: `TableRecord` as JSON
    # Where the training rows come from, see `RowSource.origin`.
    origin: dict[str, str] = field(default_factory=dict)
    # A bit for each training row (`numpy.packbits`): 0 if its weight is 0. None if all have weight.
    weighted_rows: npt.NDArray[np.uint8] | None = None
    run: str | None = None  # checkpoints: what is needed to resume the run, as JSON

    def __post_init__(self) -> None:
        """Raise InputError if fields contradict each other."""
        classes = self.classes.tolist()
        n = len(classes)
        fits = 1 < n == len(set(classes)) and len(self.classifiers) == len(self.sides)
        demand(fits, f"no model has the classes {classes} and {len(self.classifiers)} classifiers")
        of_task = self.task == "classification" or classes == [-1, 1]
        if self.task == "regression":
            of_task &= self.kind != "exact" and None not in (self.offset, self.epsilon)
        of_task &= self.threshold is None or (n == 2 and self.task != "regression")
        demand(of_task, f"its classes, classifiers or numbers do not fit {self.task}")
        n_vectors = len(self.support_vectors)
        fits = self.jitter is None or self.jitter > 0 or self.kernel.name == "linear"
        demand(fits, "a landmark model without jitter cannot be used; train it again")
        for own in (self.rows, range(n_vectors) if self.penalties is None else self.penalties):
            demand(
                len(own) == n_vectors, f"{n_vectors} support vectors cannot have {len(own)} numbers"
            )
        fits = 0 <= self.rows.min() <= self.rows.max() < self.n_rows
        demand(fits, f"a support vector is none of {self.n_rows} rows")
        widths = {self.n_features, len(self.columns or range(self.n_features))}
        widths.add(self.scaling.n_features or self.n_features)
        demand(len(widths) == 1, f"it describes {widths} columns")
        fits = all(len(one.beta) == len(one.sv) > 0 for one in self.classifiers)
        demand(fits, "vectors and weights of a classifier must be of one length above 0")
        _, sv, beta = self.entries()
        demand(0 <= sv.min() <= sv.max() < n_vectors, f"it points outside {n_vectors} vectors")
        demand(np.isfinite(beta).all(), "weights must be finite numbers")
        rho = self.numbers("rho")
        demand(((rho > 0) & (rho < np.inf)).all(), "rho must be a positive number")

    def __getstate__(self) -> dict[str, Any]:
        # A copy prepares its own predictor, see `ooc_fw.model.prediction.predictor_of`.
        return {name: value for name, value in vars(self).items() if name != "prepared"}

    @property
    def task(self) -> Literal["classification", "novelty", "regression"]:
        """What the model predicts; novelty gives +1 for rows like the training rows, else -1."""
        if self.spread is not None:
            return "regression"
        return "classification" if self.offset is None else "novelty"

    @property
    def kind(self) -> Literal["exact", "landmarks", "linear"]:
        """Whether the model has support vectors, weights of landmarks, or weights of columns."""
        if self.jitter is None:
            return "exact"
        return "landmarks" if self.jitter > 0 else "linear"

    @property
    def size(self) -> int:
        """Number of support vectors or landmarks, or of the weights of a linear classifier."""
        return self.n_features + 1 if self.kind == "linear" else len(self.support_vectors)

    @property
    def n_features(self) -> int:
        """Number of columns of the training data."""
        return int(self.support_vectors.shape[1])

    @property
    def n_weighted(self) -> int | None:
        """Number of training rows with a positive weight; None if all have one."""
        bits = self.weighted_rows
        return None if bits is None else int(np.bitwise_count(bits).sum())

    @property
    def decision(self) -> Decision:
        """Whether classifiers are for pairs of classes ("ovo") or one against the rest ("ovr")."""
        return "ovr" if len(self.classes) > 2 and self.kind != "exact" else "ovo"

    @property
    def sides(self) -> Int64Array:
        """Places of the negative and positive class of each classifier, (n_classifiers, 2)."""
        return class_sides(len(self.classes), self.decision)

    @property
    def named_sides(self) -> list[dict[str, Any]]:
        """Classes of each classifier, for people; "rest" stands for all other classes."""
        values = [*self.classes.tolist(), "rest"]  # `REST` is -1, the place of the last one
        return [{"negative": values[k], "positive": values[j]} for k, j in self.sides.tolist()]

    @property
    def certified_gap(self) -> float | None:
        """Certified relative gap of the worst classifier; None if one was not certified."""
        return worst_gap(one.certified_gap for one in self.classifiers)

    @property
    def objective_gap(self) -> float | None:
        """Certified share by which the best objective may be lower; of the worst classifier."""
        return worst_gap(one.objective_gap for one in self.classifiers)

    @property
    def sampled_gap(self) -> float | None:
        """Sampled relative gap of the worst classifier, not a certificate; None if unknown."""
        return worst_gap(one.sampled_gap for one in self.classifiers)

    @property
    def calibrated(self) -> bool:
        """Whether the model can give probabilities."""
        return None not in [one.sigmoid_a for one in self.classifiers]

    def weights(self) -> Float64Array:
        """Weight of each support vector in each decision value, (n_support, n_classifiers).

        Weights of a regression are for targets in units of `spread`.
        """
        weights = np.zeros((len(self.support_vectors), len(self.classifiers)))
        columns, sv, beta = self.entries()
        weights[sv, columns] = beta
        return weights if self.task == "novelty" else weights / self.numbers("rho")

    def column_weights(self) -> Float64Array:
        """Weights of the columns and the bias of each classifier of a linear model, (k, N)."""
        weights = []
        for one in self.classifiers:
            vectors = take_rows(self.support_vectors, one.sv)
            dense = vectors.toarray() if isinstance(vectors, CSRRows) else vectors
            weights.append(np.append(one.beta @ dense.astype(np.float64), math.fsum(one.beta)))
        return np.array(weights)

    def entries(self) -> tuple[Int64Array, Int64Array, Float64Array]:
        """Classifier, place of the vector and `beta` of all weights, classifier by classifier."""
        lengths = [len(one.sv) for one in self.classifiers]
        sv = np.concatenate([one.sv for one in self.classifiers])
        beta = np.concatenate([one.beta for one in self.classifiers])
        return np.repeat(np.arange(len(lengths)), lengths), sv, beta

    def numbers(self, name: str) -> Float64Array:
        """The field `name` of each classifier, NaN if it is unknown."""
        return np.array([getattr(one, name) for one in self.classifiers], dtype=np.float64)

    def engine(self, threads: int = 1, *, sparse: bool = False) -> Engine:
        """Open an engine that suits the support vectors, or that takes them as `sparse` rows."""
        vectors = self.support_vectors
        if sparse and not isinstance(vectors, CSRRows):
            vectors = CSRRows.from_dense(vectors)
        return Engine(self.kernel, threads, choose_arithmetic(self.kernel, vectors))
