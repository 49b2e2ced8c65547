"""Exact models whose kernel values outgrow memory: optimisation block by block.

A block is a set of rows whose kernel values fit into memory. The weights in it move, and the rest
of the model is one vertex for each label: the mean of the other rows of this label, with their
weights. Its kernel values with the block follow from sums over the rest, which a block computes
anyway, and its weight is a share of the simplex as that of any vertex. So steps in a block are
steps on all rows: they lower the same objective, and they scale the two sides of the rest so that
the bias, which couples all blocks, moves in each block.

A local kernel couples near rows only. So the blocks of a round are clusters: the rows are divided
again and again along one of their main axes, elsewhere in each round so that the borders move. If
clusters leave much of the kernel between them, every other round takes random blocks, which see all
parts of the data at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw._core import steps as core
from ooc_fw._core.rules import N_COUNTS, Limits, Rule, take_steps
from ooc_fw.data.parallel import row_slices
from ooc_fw.data.rows import (
    Float32Array,
    Float64Array,
    Int64Array,
    take_rows,
)
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.gradients import in_float64
from ooc_fw.options import LEAST
from ooc_fw.problem import BinaryProblem, objective_gap
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.plan import few_rows

_SIGNS = np.array([-1.0, 1.0])
# Rows of a block that may move: 144 MB of kernel values. Larger blocks take fewer rounds, but each
# step looks at all rows of a block.
_MOST_MOVING = 6_000
LEAST_MOVING = 500  # fewest rows of a block that may move
_STEPS_PER_ROW = 50  # most steps in a block, for each row that may move
_LOCAL = 2 / 3  # share of the kernel within clusters from which on rounds take no random blocks
_IDLE_MARGIN = 1.5  # a row beyond it is left out of the next round
_AXES = 8  # axes along which rows are divided
_SAMPLE = 2_000  # rows from which these axes come
_POWER_STEPS = 3  # steps of the subspace iteration that finds them; they need not be exact
_CUTS = 0.35, 0.65  # share of the rows on one side of a cut: other borders in each round
ROW_BYTES = 64  # memory for each row: its margin, its positions, and its place in a block
# A rest of one label with a smaller sum of weights stays as it is: its mean comes from differences
# of float32 sums, which would be nothing but rounding.
_LEAST_WEIGHT = 1e-4


class _Moving(NamedTuple):
    """The m rows of a block whose weights may move."""

    x: Operand
    labels: Float64Array  # (m,): -1 or +1
    alpha: Float64Array  # (m,): their weights so far
    penalties: Float64Array  # (m,)
    sums: Float64Array  # (2, m): weights times kernel values, summed over all vertices of a label


class _Rest(NamedTuple):
    """The weights outside the rows that may move, by label: index 0 is -1, and 1 is +1."""

    weight: Float64Array  # (2,): sums of weights
    slack: Float64Array  # (2,): sums of alpha_i^2 / C_i
    sums: Float64Array  # (2, m): weights times kernel values with the m rows, summed over the rest
    products: Float64Array  # (2, 2): the same with the rest, and with its weights
    of_all: Float64Array  # (2, 2): sums over all vertices (columns) with the weights of the rest


class Blocks:
    """Rounds of blocks over all rows; the active set holds the vertices, and no kernel values.

    Between rounds the gradient of the active set is unknown (infinite), but rho is known. A block
    has at most `most_rows` rows, and `n_bytes` of memory for kernel values.
    """

    def __init__(
        self,
        active: ActiveSet,
        source: RowSource,
        problem: BinaryProblem,
        rng: np.random.Generator,
        most_rows: int,
        n_bytes: int,
    ) -> None:
        self._active = active
        self._source = source
        self._labels = problem.labels
        self._bias_share = problem.bias_share
        self._rng = rng
        self._most_rows = most_rows
        self._n_bytes = n_bytes
        # y h / rho when a row was last seen
        self._margins = np.zeros(source.n_rows, dtype=np.float32)
        self._n_moving = source.n_rows  # rows that could move in the last round
        self._positions: Float32Array | None = None  # of all rows, see `_project`
        self._n_rounds = 0
        # Sums of alpha_i alpha_j |k(x_i, x_j)| within the blocks of this round, and across.
        self._within = self._across = 0.0
        self._loss = 0.0  # sum of C_i times squared slacks, as rows were seen in this round
        self.sampled_gap = 0.0  # relative gap over the rows of the last block, before its steps
        self.full = False  # whether this round had no room for all rows that violate the margin
        sums = self._sums(active.operand)
        # Sums of alpha_i alpha_j k(x_i, x_j) over the vertices of two labels.
        self._products = np.array(self._by_side(active.labels, active.alpha) @ sums)
        slack = float((active.alpha**2 / active.penalties).sum())
        active.rho = float(_SIGNS @ self._products @ _SIGNS) + self._bias**2 + slack
        active.grad[:] = np.inf

    @property
    def _dtype(self) -> np.dtype[Any]:
        return self._active.kernel_rows.dtype

    @property
    def _most(self) -> int:
        """Most rows that may move in a block."""
        return min(_MOST_MOVING, math.isqrt(self._n_bytes // self._dtype.itemsize))

    @property
    def _bias(self) -> float:
        return float(self._active.alpha @ self._active.labels)

    @property
    def _stated_rho(self) -> float:
        """The number rho without the bias of one class; float32 sums may hide it."""
        return max(LEAST, self._active.rho - self._bias_share)

    @staticmethod
    def _by_side(labels: Float64Array, alpha: Float64Array) -> Float64Array:
        """Weights by label, shape (2, m)."""
        return np.where(labels == _SIGNS[:, None], alpha, 0.0)

    def _sums(self, x: Operand) -> Float64Array:
        """Weights times kernel values, summed over the vertices of each label: (len(x), 2)."""
        active = self._active
        weights = self._by_side(active.labels, active.alpha)
        return active.engine.weighted_sum(x, active.operand, weights)

    def expect(self, row_ids: Int64Array) -> None:
        """Look at these rows in the next round, however far from the margin they were seen."""
        self._margins[row_ids] = 0.0

    def round(self, tol: float, on_block: Callable[[float], None]) -> float:
        """Optimise all blocks once, each to a relative gap of `tol`.

        `on_block` is called after each block with the share of the rows that were seen. Returns an
        estimate of (P - D) / P: the objective is at most so much above the best one. It was true
        when rows were seen, and is no certificate.
        """
        far = self._margins >= _IDLE_MARGIN
        rows = np.flatnonzero(~far)
        self._margins[far] = 1.0  # the round after this one looks at them again
        share = min(1.0, 1.1 * self._n_moving / len(rows))
        size = min(math.ceil(self._most / share), self._most_rows)
        self._n_moving = 0
        self._loss = 0.0
        self.full = False
        is_local = self._within >= _LOCAL * (self._within + self._across)
        by_chance = self._n_rounds % 2 == 1 and not is_local
        if not by_chance:
            self._within = self._across = 0.0
        blocks = self._by_chance(rows, size) if by_chance else self._clusters(rows, size)
        seen = 0
        for block in blocks:
            self._visit(block, tol)
            seen += len(block)
            on_block(seen / len(rows))
        self._n_rounds += 1
        active = self._active
        active.keep(active.support)
        return objective_gap(self._stated_rho, active.squared_norm() - self._bias_share, self._loss)

    # -- the blocks of a round -------------------------------------------------------------------

    def _by_chance(self, rows: Int64Array, size: int) -> list[Int64Array]:
        """Divide rows at random; stretches of the file are random if it is shuffled."""
        if self._source.shuffled is not True:
            rows = self._rng.permutation(rows)
        slices = list(row_slices(len(rows), size))
        order = self._rng.permutation(len(slices))
        return [np.sort(rows[slice(*slices[k])]) for k in order]

    def _clusters(self, rows: Int64Array, size: int) -> list[Int64Array]:
        """Divide rows again and again along the axis of their largest spread."""
        if self._positions is None:
            self._positions = self._project()
        blocks = []
        parts = [rows]
        while parts:
            part = parts.pop()
            if len(part) <= size:
                blocks.append(np.sort(part))
                continue
            positions = self._positions[part]
            along = positions[:, int(positions.var(axis=0).argmax())]
            cut = int(len(part) * self._rng.uniform(*_CUTS))
            order = np.argpartition(along, cut)
            parts += [part[order[:cut]], part[order[cut:]]]
        order = self._rng.permutation(len(blocks))
        return [blocks[k] for k in order]

    def _project(self) -> Float32Array:
        """Positions of all rows on the main axes of a sample, (n_rows, n_axes)."""
        source = self._source
        sample = self._rng.choice(source.n_rows, few_rows(source, _SAMPLE), replace=False)
        rows = in_float64(source.take(np.sort(sample)))
        axes = self._rng.normal(size=(rows.shape[1], _AXES))
        for _ in range(_POWER_STEPS):  # subspace iteration, then the axes of the subspace
            axes, _ = np.linalg.qr(rows.T @ (rows @ axes))
        seen = rows @ axes
        axes = axes @ np.linalg.eigh(seen.T @ seen)[1]
        positions = np.empty((source.n_rows, axes.shape[1]), dtype=np.float32)
        for start, block in iter_blocks(source, 0, source.n_rows):
            positions[start : start + len(block)] = in_float64(block) @ axes
        return positions

    # -- one block -------------------------------------------------------------------------------

    def _visit(self, row_ids: Int64Array, tol: float) -> None:
        """Compute the gradients of some rows, and optimise the weights of those that may move."""
        active = self._active
        most = active.kernel_rows.capacity
        if most - len(active) < len(row_ids):
            active.keep(active.support)
        rows = self._source.take(row_ids)
        labels = self._labels[row_ids].astype(np.float64)
        x = active.prepare(rows)
        sums = self._sums(x)
        alpha = np.zeros(len(row_ids))
        held = np.ones(len(row_ids), dtype=np.bool_)
        held[active.outside(row_ids)] = False
        alpha[held] = active.alpha[active.places_of(row_ids[held])]
        penalties = np.broadcast_to(active.penalty_of(row_ids), alpha.shape)
        plain = labels * (sums @ _SIGNS + self._bias)
        margins = (plain - self._bias_share) / self._stated_rho
        self.sampled_gap = max(0.0, 1.0 - float(margins.min()))
        self._margins[row_ids] = margins
        self._loss += float(penalties @ np.maximum(0.0, 1.0 - margins) ** 2)
        room = most - len(active)
        new = np.flatnonzero(~held & (margins < 1))
        if len(new) > room:  # memory has no room for the rows of more vertices: take the worst
            self.full = True
            new = new[np.argsort(margins[new], kind="stable")[:room]]
        moving = np.union1d(np.flatnonzero(held), new)
        if len(moving) > self._most:
            moving = np.sort(self._rng.choice(moving, self._most, replace=False))
        self._n_moving += len(moving)
        if len(moving) == 0:
            return
        of_block = (x.take(moving), labels[moving], alpha[moving], penalties[moving])
        after, rho = self._optimise(_Moving(*of_block, sums[moving].T), tol)
        held = held[moving]
        row_ids = row_ids[moving]
        active.alpha[active.places_of(row_ids[held])] = after[held]
        new = np.flatnonzero(~held & (after > 0))
        if len(new) > 0:
            before = len(active)
            signs = self._labels[row_ids[new]]
            active.add(row_ids[new], take_rows(rows, moving[new]), signs, fill=False)
            active.alpha[before:] = after[new]
        active.rho = rho

    def _rest(self, moving: _Moving, weight: Float64Array, inside: Float64Array) -> _Rest:
        """The rest with this weight, (2,), given sums over the rows that may move, (2, m)."""
        active = self._active
        own = self._by_side(moving.labels, moving.alpha)
        slack = self._by_side(active.labels, active.alpha**2 / active.penalties).sum(axis=1)
        slack -= (own**2 / moving.penalties).sum(axis=1)
        of_all = self._products - own @ moving.sums.T
        return _Rest(
            weight=weight,
            slack=slack,
            sums=moving.sums - inside,
            products=of_all - moving.sums @ own.T + own @ inside.T,
            of_all=of_all,
        )

    def _optimise(self, moving: _Moving, tol: float) -> tuple[Float64Array, float]:
        """Take steps on some rows and the rest; new weights of the rows, shape (m,), and rho.

        The weights of the rest are scaled.
        """
        active = self._active
        m = len(moving.x)
        own = self._by_side(moving.labels, moving.alpha)
        outside = self._by_side(active.labels, active.alpha).sum(axis=1) - own.sum(axis=1)
        sides = np.flatnonzero(outside > _LEAST_WEIGHT)
        n = m + len(sides)
        values = np.empty((n, n), dtype=self._dtype)
        active.engine.block(moving.x, moving.x, values[:m, :m])
        rest = self._rest(moving, outside, _weigh(values, own))
        weight = rest.weight[sides, None]
        values[m:, :m] = rest.sums[sides] / weight
        values[:m, m:] = values[m:, :m].T
        values[m:, m:] = rest.products[np.ix_(sides, sides)] / (weight * weight.T)
        labels = np.append(moving.labels, _SIGNS[sides])
        alpha = np.append(moving.alpha, rest.weight[sides])
        sums = np.append(moving.sums, (rest.of_all[sides] / weight).T, axis=1)
        slack = np.append(moving.alpha / moving.penalties, rest.slack[sides] / weight[:, 0])
        ridge = np.append(1 / moving.penalties, rest.slack[sides] / weight[:, 0] ** 2)
        grad = labels * (_SIGNS @ sums + self._bias) + slack
        diag = np.diagonal(values).astype(np.float64) + 1 + ridge
        vertices = core.Vertices(alpha, grad, diag, labels)
        unit = np.ones(1, dtype=self._dtype)
        used = np.zeros(n, dtype=np.int64)
        kernel = core.KernelBlock(values, unit, np.arange(n), used)
        counts = np.zeros(N_COUNTS, dtype=np.int64)
        limits = Limits(_STEPS_PER_ROW * n, (tol, 0.0, tol))
        take_steps(Rule.CORRECTIVE, vertices, kernel, 0, limits, counts)
        fixed = np.setdiff1d([0, 1], sides)
        alpha *= (1 - rest.weight[fixed].sum()) / alpha.sum()
        scale = np.ones(2)
        scale[sides] = alpha[m:] / rest.weight[sides]
        after = alpha[:m]
        own = self._by_side(moving.labels, after)
        across = own @ (scale[:, None] * rest.sums).T
        of_rest = rest.products * scale * scale[:, None]
        within = own @ _weigh(values, own).T
        self._products = of_rest + across + across.T + within
        self._within += float(np.abs(within).sum())
        self._across += float(np.abs(across).sum())
        active.alpha[:] *= scale[(active.labels > 0).astype(np.int64)]
        bias = _SIGNS @ (own.sum(axis=1) + scale * rest.weight)
        of_fixed = (of_rest + across.T) @ _SIGNS + bias * rest.weight
        rho = float(alpha @ grad) + float((_SIGNS * of_fixed + rest.slack)[fixed].sum())
        return after, rho


def _weigh(values: npt.NDArray[Any], weights: Float64Array) -> Float64Array:
    """Weights, shape (2, m), times kernel values between the m rows, summed in float64."""
    m = weights.shape[1]
    sums = np.empty((2, m))
    for side in (0, 1):
        core.weigh_rows(values, np.arange(m), weights[side], sums[side])
    return sums
