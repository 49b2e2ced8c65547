"""The certificate: an upper bound on the duality gap, from one reading of all rows in blocks.

Gradients come from float32 kernel values, with bounds on their errors. Rows that may be the worst
within these bounds are computed again in float64. A bound on the errors of float64 is *added* to
the gap, so that a certified gap is never smaller than the true one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.rows import (
    Float64Array,
    Groups,
    Int8Array,
    Int64Array,
    Rows,
    distinct_rows,
    take_rows,
)
from ooc_fw.data.sources import RowSource, block_slices, sampled_rows
from ooc_fw.kernels.decisions import AtVertices, DecisionFunctions, IsOpen, Weights
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.options import LEAST
from ooc_fw.problem import BinaryProblem, check_weights, pair_gap

# Multiples of w at which the primal objective is computed: the best one is 1 at the optimum, and
# near it before.
_MULTIPLES = np.array([0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.1])

Penalties: TypeAlias = float | Float64Array
"""Penalty C of each row, or one for all."""


@dataclass(frozen=True)
class Certificate:
    """What a reading of the data found."""

    certified_gap: float  # upper bound on the relative duality gap, `rounding` included
    rounding: float  # how far the bound may exceed the exact relative gap
    pair_gap: float  # (max g over the support - min g) / rho
    objective: float  # from float64 kernel values
    rho: float  # from float64 kernel values
    # Bounds on the best objective with margin 1, see `_Objective`: it is at most the primal
    # objective of w / rho, or of a multiple of it, and at least the dual one.
    primal: float
    dual: float
    # Increasing numbers of the worst violators: rows with g < rho (1 - tol). If a row is so near
    # this threshold that float32 values cannot tell, it may be missed or counted. The worst row is
    # always told right.
    worst: Int64Array

    @property
    def objective_gap(self) -> float:
        """(P - D) / P: no model has an objective that is lower by a larger share; 1 if unknown."""
        return max(0.0, 1.0 - self.dual / self.primal) if self.primal < math.inf else 1.0

    def without_bias(self, share: float) -> Certificate:
        """The certificate for one class, in which the bias does not count; itself for share 0.

        The bounds on the objective are without the bias already.

        The gap D stays, and rho is less by 1, the square of the sum of the weights. The bound on
        D / (rho - 1) takes rho as small as it may be: it errs by at most half of `rounding` times
        itself.
        """
        if share == 0:
            return self
        least = self.rho * (1 - self.rounding / 2)
        rho, factor = self.rho - 1.0, math.inf
        if least > 1.0:
            factor = least / (least - 1.0)
        exact = (self.certified_gap - self.rounding) * self.rho / rho if rho > 0 else 0.0
        upper = self.certified_gap * factor
        return replace(
            self,
            certified_gap=upper,
            rounding=upper - exact,
            pair_gap=self.pair_gap * self.rho / rho if rho > 0 else math.inf,
            objective=rho / 2,
            rho=rho,
        )


@dataclass(frozen=True)
class SupportWeights:
    """Weights to be certified."""

    rows: Rows  # (n_support, n_features): support vectors
    row_ids: Int64Array  # (n_support,): their row numbers in the source, all different
    alpha: Float64Array  # (n_support,): their weights, positive; the sum is 1 apart from rounding
    C: Penalties  # penalty of all rows, or of each support vector, (n_support,)
    # Their gradients from float64 kernel values, alpha_i / C_i included, if the caller has them.
    grad: Float64Array | None = None
    rounding: float = 0.0  # bound on the error of each gradient

    def on_the_simplex(self) -> SupportWeights:
        """Divide the weights by their sum: rho depends on the sum twice as much as gradients do.

        Each weight then errs by two units of itself, which `_certificate` includes.
        """
        total = math.fsum(self.alpha)
        if total == 1.0:
            return self
        grad, rounding = self.grad, self.rounding / total
        if grad is not None:
            grad = grad / total
            rounding += 2 * FLOAT64_UNIT * float(np.abs(grad).max())
        return replace(self, alpha=self.alpha / total, grad=grad, rounding=rounding)


@dataclass(frozen=True)
class Search:
    """What a reading of the data looks for."""

    tol: float  # relative gap above which a row counts as a violator
    n_worst: int = 0  # number of violators to remember
    low_rank_bytes: int | None = None  # bytes of memory for compressing the support vectors


@dataclass(frozen=True)
class _Objective:
    """The primal objective of some multiples of w.

    Notes
    -----
    With margin 1 the primal objective of s w, for any factor s, is

        P(s) = 1/2 s^2 |w|^2 + 1/2 sum_i C_i max(0, 1 - s y_i h_i)^2,

    in which y_i h_i is the gradient of row i without its own alpha_i / C_i. It is at least the
    dual objective D = 1 / (2 rho) of weights on the simplex, so that the best rho is at least
    rho D / P. For one class h and rho are without the bias.
    """

    scales: Float64Array  # (n_scales,): the factors s; the first is the least
    bias_share: float  # see `BinaryProblem.bias_share`
    allowed: float  # largest error of a row's loss that does not matter

    @classmethod
    def near(cls, rho: float, bias_share: float, tol: float, n_rows: int) -> _Objective:
        """Factors near the best one for weights close to the optimum, 1 / rho.

        The errors of all rows together may be a tenth of what `tol` allows.
        """
        rho = max(LEAST, rho - bias_share)
        return cls(_MULTIPLES / rho, bias_share, 0.1 * abs(tol) / rho / n_rows)

    def vague(
        self, grad: Float64Array, error: Float64Array, penalties: Penalties
    ) -> npt.NDArray[np.intp]:
        """Rows whose loss is not known well enough, given gradients and their errors."""
        s = self.scales[len(self.scales) // 2]
        values = s * (grad - self.bias_share)
        slack = np.maximum(0.0, 1.0 - values + s * error)
        return np.flatnonzero(
            penalties * (slack**2 - np.maximum(0.0, 1.0 - values) ** 2) > self.allowed
        )

    def losses(self, lower: Float64Array, penalties: Penalties) -> Float64Array:
        """Sums of C_i times squared slacks, (n_scales,), given lower bounds on all y_i h_i."""
        lower = lower - self.bias_share
        near = ~(lower * self.scales[0] >= 1)
        slack = np.maximum(0.0, 1.0 - np.multiply.outer(self.scales, lower[near]))
        of_rows = penalties[near] if isinstance(penalties, np.ndarray) else penalties
        return np.asarray((of_rows * slack**2).sum(axis=1))

    def bounds(
        self, losses: Float64Array, norm2: float, rho: float, rounding: float
    ) -> tuple[float, float]:
        """Upper bound on the least P(s), and lower bound on D; |w|^2 and rho err by `rounding`.

        They are infinite and 0 if a number overflows.
        """
        primal = 0.5 * (self.scales**2 * (norm2 - self.bias_share + rounding) + losses)
        largest_rho = rho - self.bias_share + rounding
        if not (np.isfinite(primal).all() and largest_rho < math.inf):
            return math.inf, 0.0
        dual = 0.5 / max(LEAST, largest_rho)
        return float(primal.min()) * (1 + 1e-12), dual * (1 - 1e-12)


def _of_rows(penalties: Penalties, rows: slice | Int64Array) -> Penalties:
    return penalties[rows] if isinstance(penalties, np.ndarray) else penalties


@dataclass(frozen=True)
class _Target:
    """What the search in every block needs to know."""

    threshold: float  # rows with a smaller gradient are violators
    least: float  # least gradient of the support
    n_worst: int  # number of violators to remember
    objective: _Objective


@dataclass(frozen=True)
class _Block:
    """Rows `start` to `stop` of the source."""

    start: int
    stop: int
    support: Int64Array  # places of support vectors in the block, which are left out
    labels: Int8Array  # labels of all rows in the block
    penalties: Penalties  # and their penalties


@dataclass(frozen=True)
class _Findings:
    """What was found in one block, or in the support and all blocks so far."""

    least: float  # least float64 gradient; infinite if all rows are above the support
    rounding: float  # bound on its error
    losses: Float64Array  # of all rows: see `_Objective`
    # The worst violators outside the support, in increasing order, and their gradients.
    worst: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    worst_grads: Float64Array = field(default_factory=lambda: np.empty(0))

    def merged(self, block: _Findings, n_worst: int) -> _Findings:
        """These findings with those of the next block."""
        ids = np.concatenate([self.worst, block.worst])
        grads = np.concatenate([self.worst_grads, block.worst_grads])
        return _Findings(
            min(self.least, block.least),
            max(self.rounding, block.rounding),
            self.losses + block.losses,
            *_least(ids, grads, n_worst),
        )


def _least(ids: Int64Array, grads: Float64Array, size: int) -> tuple[Int64Array, Float64Array]:
    """The `size` rows with the least gradients; `ids` increase, before and after.

    Among equal gradients the first rows are taken, so that the result is the same for all blocks.
    """
    if len(ids) > size:
        best = np.argsort(grads, kind="stable")[:size]
        best.sort()
        ids, grads = ids[best], grads[best]
    return ids, grads


def _exact(decisions: DecisionFunctions, rows: Rows) -> tuple[Float64Array, float]:
    """Decision values in float64, and one bound on the errors of all."""
    distinct, groups = distinct_rows(rows)
    values, bounds = decisions.exact(distinct)
    return values[groups], float(bounds.max(initial=0.0))


def _is_open(
    values: Float64Array, bound: Float64Array, target: _Target, y: Int8Array, groups: Groups
) -> npt.NDArray[np.bool_]:
    """Which distinct rows may be violators or have the least gradient, with any of their labels."""
    grad, error = y * values[groups], bound[groups]
    least = min(target.least, float((grad + error).min()))
    is_open = np.zeros(len(values), dtype=np.bool_)
    of_rows = np.arange(len(values))[groups]
    is_open[of_rows[grad - error <= max(target.threshold, least)]] = True
    return is_open


def _sweep_block(
    source: RowSource, block: _Block, decisions: DecisionFunctions, target: _Target
) -> _Findings:
    """Search one block.

    Notes
    -----
    The least gradient of all rows must be known in float64. A row cannot have it if its lower bound
    from float32 values is above

        floor = min(least gradient of the support, least upper bound in this block).

    The other rows are computed again. The least upper bounds of *other* blocks would spare a few
    more rows, but then the findings would depend on the order of the blocks.
    """
    rows = source.read(block.start, block.stop)
    others = np.delete(np.arange(len(rows)), block.support)
    if len(others) == 0:
        return _Findings(math.inf, 0.0, np.zeros(len(_MULTIPLES)))
    if len(others) < len(rows):
        rows = take_rows(rows, others)
    y = block.labels[others]

    # 1. Gradients from float32 kernel values, and bounds on their errors. Sums over few vertices
    # are enough for a row if they show that it is neither a violator nor the least.
    distinct, groups = distinct_rows(rows)
    is_open = partial(_is_open, target=target, y=y, groups=groups)
    values, bound = decisions.approximate(distinct, is_open)
    grad = y * values[groups]
    error = bound[groups]

    # 2. Gradients in float64 for the rows that may be the least of all, and for those whose errors
    # would add much to the primal objective.
    least, rounding = math.inf, 0.0
    floor = min(target.least, float((grad + error).min()))
    penalties = _of_rows(block.penalties, others)
    lowest = np.flatnonzero(grad - error <= floor)
    lowest = np.union1d(lowest, target.objective.vague(grad, error, penalties))
    if len(lowest) > 0:
        values, rounding = _exact(decisions, take_rows(rows, lowest))
        grad[lowest], error[lowest] = y[lowest] * values, rounding
        least = float(grad[lowest].min())

    # 3. Violators.
    violators = np.flatnonzero(grad < target.threshold)
    ids = block.start + others[violators]
    worst, worst_grads = _least(ids, grad[violators], target.n_worst)
    losses = target.objective.losses(grad - error, penalties)
    return _Findings(least, rounding, losses, worst, worst_grads)


def certify(
    problem: BinaryProblem,
    engine: Engine,
    weights: SupportWeights,
    search: Search,
    on_block: Callable[[int], None] | None = None,
    dask: Any = None,
) -> Certificate:
    """Bound the duality gap of some weights by one reading of the data.

    Parameters
    ----------
    problem, engine
        All rows and their labels, and what computes kernel values.
    weights, search
        The weights to be certified, and what the reading looks for.
    on_block : callable, optional
        Called after each block with the number of rows seen so far.
    dask : optional
        Where blocks are searched, see `ooc_fw.data.parallel.borrow_workers`. With None it is this
        process, on the threads of `engine`.

    Raises
    ------
    InputError
        The weights are not on the simplex. Or the source has changed, or it cannot be read by this
        process or by the workers.
    ChildProcessError
        A worker died and no other could take its place.

    Notes
    -----
    A float32 gradient errs by |g - g_float32| <= sum_j alpha_j |k_j - k_j_float32|. The weights sum
    to 1, so that this is no more than the error of the worst kernel value. If values err in
    proportion to themselves, it is in proportion to sum_j alpha_j k_j. See `Kernel.error_bound`.
    """
    source = problem.source
    check_weights(weights.row_ids, weights.alpha, source.n_rows)
    weights = weights.on_the_simplex()
    row_ids, alpha, rows = weights.row_ids, weights.alpha, weights.rows
    source.check_unchanged()
    labels, slack = problem.labels[row_ids], alpha / weights.C
    decisions = DecisionFunctions(engine, rows, [Weights(np.arange(len(alpha)), alpha, labels)])
    grad, rounding = weights.grad, weights.rounding
    if grad is None:
        values, rounding = _exact(decisions, rows)
        grad = labels * values + slack
    # The slack, which may be far larger, was added and is subtracted: both steps round.
    plain, of_plain = grad - slack, rounding + 2 * FLOAT64_UNIT * float(np.abs(grad).max())
    rho, least = _rho(alpha, slack, grad), float(grad.min())
    objective = _Objective.near(rho, problem.bias_share, search.tol, source.n_rows)
    threshold = rho * (1 - search.tol)
    target = _Target(threshold, least, search.n_worst, objective)

    at_vertices = _at_vertices(labels, alpha, plain, of_plain)
    sample = partial(_sample, problem, row_ids, target)
    decisions.compress(sample, source.n_rows, at_vertices, search.low_rank_bytes)
    penalties: Any = problem.penalties
    if penalties is None:
        penalties = np.max(weights.C)
    losses = objective.losses(plain - of_plain, weights.C)
    if problem.penalties is None and isinstance(weights.C, np.ndarray):
        losses[:] = math.inf  # nobody knows the penalties of the other rows
    findings = _Findings(least, rounding, losses)
    blocks = _blocks(problem, penalties, row_ids)
    rows_seen = 0
    # The engine has threads of its own; one block is read and prepared while another is searched.
    with borrow_workers(dask, engine.threads, here=min(2, engine.threads)) as workers:
        for block, in_block in workers.over(source, _sweep_block, blocks, decisions, target):
            findings = findings.merged(in_block, search.n_worst)
            rows_seen += block.stop - block.start
            if on_block is not None:
                on_block(rows_seen)
    source.check_unchanged()  # other processes may have read their last block long ago
    return _certificate(alpha, slack, grad, findings, objective)


def _at_vertices(
    labels: Int8Array, alpha: Float64Array, plain: Float64Array, rounding: float
) -> AtVertices:
    """Decision values at the support, from the gradients without slack and a bound on their error.

    The bias and the sum for |w|^2 have a term for each support vector.
    """
    terms = (len(alpha) + 4) * FLOAT64_UNIT
    rounding += terms * float(1 + 2 * np.abs(plain).max())
    return AtVertices((labels * plain)[None], np.array([alpha @ plain]), rounding)


def _sample(problem: BinaryProblem, support: Int64Array, target: _Target) -> tuple[Rows, IsOpen]:
    """A sample of the rows of a reading, and the test which of them stay open."""
    row_ids = sampled_rows(problem.source, problem.source.n_rows)
    row_ids = np.setdiff1d(row_ids, support, assume_unique=True)
    rows, y = problem.source.take(row_ids), problem.labels[row_ids]
    return rows, partial(_is_open, target=target, y=y, groups=slice(None))


def certificate_of_all(
    alpha: Float64Array,
    penalties: Penalties,
    grad: Float64Array,
    rounding: float,
    bias_share: float = 0.0,
) -> Certificate:
    """Bound the duality gap, given every row's weight, penalty and float64 gradient.

    `rounding` bounds the errors of the gradients, and `bias_share` is that of the problem.
    """
    slack = alpha / penalties
    of_plain = rounding + 2 * FLOAT64_UNIT * float(np.abs(grad).max())
    objective = _Objective.near(_rho(alpha, slack, grad), bias_share, 0.0, len(alpha))
    losses = objective.losses(grad - slack - of_plain, penalties)
    findings = _Findings(float(grad.min()), rounding, losses)
    return _certificate(alpha, slack, grad, findings, objective)


def _rho(alpha: Float64Array, slack: Float64Array, grad: Float64Array) -> float:
    """The number alpha' g = |w|^2 + b^2 + alpha' slack, never below its last term by rounding."""
    return max(float(alpha @ grad), float(alpha @ slack))


def _certificate(
    alpha: Float64Array,
    slack: Float64Array,
    grad: Float64Array,
    findings: _Findings,
    objective: _Objective,
) -> Certificate:
    """The gap that follows from the weights, their gradients and the findings of all blocks."""
    support_grad = grad[alpha > 0]
    # Two sums over the support round, of weights and of weights times gradients. The weights round,
    # too: they were divided by their sum.
    terms = (len(support_grad) + 8) * FLOAT64_UNIT
    rounding = findings.rounding + terms * (1 + float(np.abs(support_grad).max()))
    rho, least = _rho(alpha, slack, grad), findings.least
    gap = max((rho - least) / rho, 0.0)
    # rho is a convex combination of gradients, so that it errs by no more than they do.
    least_rho = max(rho - rounding, (1 - terms) * float(alpha @ slack))
    upper = max((rho - least + 2 * rounding) / least_rho, 0.0) if rho < math.inf else math.inf
    norm2 = float(alpha @ (grad - slack))
    primal, dual = objective.bounds(findings.losses, norm2, rho, 2 * rounding)
    return Certificate(
        certified_gap=upper,
        rounding=upper - gap,
        pair_gap=pair_gap(float(support_grad.max()), least, rho),
        objective=rho / 2,
        rho=rho,
        primal=primal,
        dual=dual,
        worst=findings.worst,
    )


def _blocks(problem: BinaryProblem, penalties: Penalties, support: Int64Array) -> list[_Block]:
    """Divide all rows into blocks."""
    support = np.sort(support)
    blocks = []
    for start, stop in block_slices(problem.source, 0, problem.source.n_rows):
        first, last = np.searchsorted(support, [start, stop])
        places = support[first:last] - start
        rows = slice(start, stop)
        blocks.append(_Block(start, stop, places, problem.labels[rows], _of_rows(penalties, rows)))
    return blocks
