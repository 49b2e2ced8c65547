"""Landmark models: weights of some rows are learned from all. Results, starts and gaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_fw.data.rows import Float64Array, Int64Array, Rows
from ooc_fw.solver.state import Status, Work


@dataclass(frozen=True, repr=False)
class LandmarkSolution(Work):
    """Weights of k classifiers on shared landmarks, with objectives and gaps."""

    status: Status
    rows: Int64Array  # (N,): row numbers of the landmarks
    landmarks: Rows | None  # (N, n_features); None: the N weights are of the columns
    beta: Float64Array  # (k, N)
    jitter: float
    primal: Float64Array | None  # (k,), over all rows; None if no reading of all rows ended
    dual: Float64Array | None  # (k,): lower bounds on the least P; None without a certificate
    certified_gap: Float64Array | None  # (k,): bounds on (P - D*) / P, from float64 kernel values
    sampled_gap: Float64Array | None  # (k,): the gaps from float32, or over the sample alone


@dataclass(frozen=True)
class LandmarkStart:
    """Landmarks and weights to begin with; the run adds to the `work` so far."""

    rows: Int64Array  # (M,): different row numbers
    beta: Float64Array  # (k, M)
    work: Work | None = None
    whole: bool = False  # whether the weights are for all rows: a sample would make them worse
    n_past: int = 0  # the first rows stand for rows that are gone, for which the weights are best
    stays: bool = False  # whether they are of a model, for which a better one is wanted in time


def relative_gap(primal: Float64Array, dual: Float64Array) -> Float64Array:
    """(P - D) / P, or 0 if P is 0, its least value."""
    return np.divide(primal - dual, primal, out=np.zeros_like(primal), where=primal != 0)


def halves(weights: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Two float32 numbers for each weight, whose sum is the weight to 48 bits."""
    high = weights.astype(np.float32)
    return high.astype(np.float64), (weights - high).astype(np.float32).astype(np.float64)
