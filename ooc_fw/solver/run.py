"""A run on one binary problem: what it changes, its first weights, certificates, and its end.

`ooc_fw.solver.loop` is the algorithm that puts these together.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ooc_fw.certificate.screening import Screen
from ooc_fw.certificate.sweep import Certificate, Search, SupportWeights, certificate_of_all
from ooc_fw.certificate.sweep import certify as make_pass
from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, take_rows
from ooc_fw.data.sources import iter_blocks
from ooc_fw.kernels.low_rank import Effort
from ooc_fw.options import START_ROWS
from ooc_fw.problem import relative_gap
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.solver.oracles import Request, SampledLMO, make_oracle, walks_on_all_rows
from ooc_fw.solver.plan import Workspace
from ooc_fw.solver.state import SolverState, Status, Stop, Warm
from ooc_fw.solver.steps import INNER_STEPS_PER_VERTEX, STEP_RULES
from ooc_fw.solver.surroundings import Deadline

logger = logging.getLogger(__name__)

_STEPS_PER_VERTEX = 100  # most pairwise steps on the first vertices, for each of them
_STILL = 1e-8  # relative decrease of rho that leads nowhere in thousands of steps
_LEAST_PROGRESS = 1e-3  # share of the gap by which a corrective step must lower the objective
_LEAST_VIOLATORS = 512  # violators that a pass may always return
_MOST_UNSCREENED = 1 << 20  # and a share of many rows: their numbers take memory
_FEW_UNSCREENED = 0.25  # share of unscreened rows from which a pass looks at all, for a new screen
_FEWEST = 64  # vertices of the first weights that are remembered
_SAMPLE_ROWS = 20_000  # rows over which the primal objective is estimated, or all if fewer
_DRAW_ROWS = 500  # rows of the sample between two looks at the clock
_POLISHED_GAP = 1e-2  # relative gap on the vertices to which a run that stops early optimises
_PASS_COST = 2.0  # time of a kernel value in a certifying pass, over one in training
_UNCERTIFIED_DRAW = 2048  # least number of rows over which an uncertified gap is known


@dataclass(frozen=True)
class EarlierWeights:
    """Weights at some moment of a run."""

    ids: Int64Array  # (k,): rows of positive weight
    labels: Int8Array  # (k,): -1 or +1
    alpha: Float64Array  # (k,): their weights
    rho: float  # alpha' g
    squared_norm: float  # |w|^2 + b^2

    @classmethod
    def of(cls, active: ActiveSet) -> EarlierWeights:
        """Remember the current weights."""
        support = active.support
        labels = active.labels[support].astype(np.int8)
        rho, norm = active.rho, active.squared_norm()
        return cls(active.ids[support], labels, active.alpha[support], rho, norm)


@dataclass
class Stagnation:
    """Signs that steps get nowhere, since kernel values of some precision are used."""

    still: int = 0  # steps in which rho has hardly fallen below `fallen_rho`
    fallen_rho: float = math.inf
    unfinished: int = 0  # corrective steps on the same vertices that got nowhere
    least_rho: float = math.inf  # rho with a gradient computed anew between two such steps
    solved_gap: float = math.inf  # least gap at which a corrective step on them reached its target

    def note_objective(self, rho: float, n_steps: int = 1) -> None:
        """Count steps after which the objective is rho / 2."""
        self.still += n_steps
        if rho < self.fallen_rho * (1 - _STILL):
            self.still = 0
            self.fallen_rho = rho

    def note_correction(self, active: ActiveSet, wanted_gap: float, *, moved_on: bool) -> None:
        """Count a corrective step on the same vertices if it got nowhere.

        Its gap ends above the one wanted, or no lower than before, and the objective hardly falls.
        """
        gap = active.relative_gap()
        if moved_on or (gap <= wanted_gap and gap < self.solved_gap):
            self.unfinished = 0
            self.least_rho = math.inf
            self.solved_gap = gap
            return
        self.unfinished += 1
        if self.unfinished > 1:
            active.refresh()
            slow = active.precise and gap < 1  # no other values would be faster
            least_progress = 0.0 if slow else _LEAST_PROGRESS * min(gap, 1.0)
            if active.rho < self.least_rho * (1 - least_progress):
                self.unfinished = 1
                self.least_rho = active.rho


class RunState:
    """What a run changes, from its first vertices to its solution."""

    def __init__(
        self, workspace: Workspace, deadline: Deadline, progress: SolverState, rng: Generator
    ) -> None:
        options = workspace.options
        memory = workspace.plan.memory
        penalties = workspace.problem.penalties
        sizes = memory.max_vertices, memory.kernel_values
        kernel_rows = KernelRows(*sizes, workspace.plan.quantised, memory.limit)
        self.workspace = workspace
        self.deadline = deadline
        self.progress = progress  # what callbacks are told
        self.rng = rng  # draws rows
        self.active = ActiveSet(workspace.engine, options.C, kernel_rows, penalties)
        self.rule = STEP_RULES[options.method]()
        self.oracle = make_oracle(workspace, self.rule)
        self.stagnation = Stagnation()
        self.earlier: list[EarlierWeights] = []  # at growing sizes, each twice the one before
        self.best: EarlierWeights | None = None  # of the least certified gap above the tolerance
        self.full = False  # whether the active set holds all the vertices that it may
        self.target_share = 1.0  # of the tolerance, to which training goes
        self.renewed = False  # whether the gradient is new since the oracle proposes nothing more
        self.least_gap = math.inf  # least certified gap
        self.idle_rounds = 0  # certificates since the least one
        self.n_scanned = 0  # rows that the last proposal looked at, if for the present weights
        self.worst = -1  # the worst of these rows, see `Candidates`
        self.certificate: Certificate | None = None  # of the present weights
        self.screen: Screen | None = None  # from the last pass over all rows
        self.pass_share = 1.0  # share of the rows that the last certifying pass looked at
        self.sweep_seconds: float | None = None  # of the last pass over all rows

    def add_vertices(self, row_ids: Int64Array, *, fill: bool = True) -> None:
        """Add rows of the source, whose numbers increase, as vertices of weight 0."""
        rows, labels = self.workspace.rows.take(row_ids), self.workspace.problem.labels[row_ids]
        self.active.add(row_ids, rows, labels, fill=fill)

    def remember(self) -> None:
        """Keep the current weights if the active set has grown enough; O(1) otherwise."""
        least = 2 * len(self.earlier[-1].ids) if self.earlier else _FEWEST
        if len(self.active) >= least and len(self.active.support) >= least:
            self.earlier.append(EarlierWeights.of(self.active))

    def renew(self) -> None:
        """Refresh; the oracle forgets what came from the gradient before."""
        self.active.refresh()
        self.oracle.reset()

    def return_to(self, earlier: EarlierWeights) -> None:
        """Take the weights of an earlier moment."""
        order = np.argsort(earlier.ids)
        self.active.keep(np.empty(0, dtype=np.int64))
        self.add_vertices(earlier.ids[order])
        self.active.set_weights(earlier.alpha[order])
        self.certificate = None
        self.screen = None
        self.n_scanned = 0
        self.pass_share = 1.0

    def pass_work(self) -> float:
        """Kernel values that the next certifying pass likely takes, as if in training."""
        n_rows = self.workspace.problem.source.n_rows
        if not self.workspace.options.certify or len(self.active) == n_rows:
            return 0.0
        return _PASS_COST * self.pass_share * n_rows * len(self.active.support)


def start(state: RunState, warm: Warm | None) -> None:
    """Begin with the weights given, or random rows."""
    active = state.active
    workspace = state.workspace
    if warm is not None:
        heaviest = np.argsort(-warm.alpha, kind="stable")[: active.kernel_rows.capacity]
        chosen = heaviest[warm.alpha[heaviest] > 0]
        chosen = chosen[np.argsort(warm.rows[chosen])]
        state.add_vertices(warm.rows[chosen])
        active.set_weights(warm.alpha[chosen])
    else:
        farthest = workspace.options.start == "farthest"
        state.add_vertices(_farthest_pair(state) if farthest else _random_rows(state))
        active.set_weights(np.full(len(active), 1 / len(active)))
        active.optimise(0.0, _STEPS_PER_VERTEX * len(active))
        active.refresh()
    n_rows = workspace.problem.source.n_rows
    if walks_on_all_rows(workspace.options, n_rows, active.kernel_rows.capacity):
        state.add_vertices(np.setdiff1d(np.arange(n_rows), active.ids), fill=False)


def _farthest_pair(state: RunState) -> Int64Array:
    """The row farthest from a random one, and the row farthest from that (Badoiu and Clarkson)."""
    first = _farthest(state, int(state.rng.integers(state.workspace.rows.n_rows)))
    return np.unique([first, _farthest(state, first)])


def _farthest(state: RunState, row: int) -> int:
    """The row i of largest Q_ii - 2 Q_ij for a row j: its distance, but for a constant."""
    workspace = state.workspace
    labels = workspace.problem.labels
    engine = workspace.engine
    source = workspace.rows
    penalties = np.broadcast_to(np.asarray(workspace.penalties), source.n_rows)
    vertex = engine.prepare(source.take(np.array([row])), exact=True)
    best, largest = row, -math.inf
    for start, rows in iter_blocks(source, 0, source.n_rows):
        x, part = engine.prepare(rows, exact=True), slice(start, start + len(rows))
        values = np.empty((len(x), 1))
        engine.block(x, vertex, values)
        q = labels[part] * labels[row] * (values[:, 0] + 1.0)
        distances = engine.kernel.diagonal(x.norms) + 1.0 + 1 / penalties[part] - 2.0 * q
        if start <= row < part.stop:
            distances[row - start] = -math.inf
        if distances.max() > largest:
            best = start + int(distances.argmax())
            largest = float(distances.max())
    return best


def _random_rows(state: RunState) -> Int64Array:
    """Rows of both classes, half of each as far as there are enough."""
    labels = state.workspace.problem.labels
    chosen = [
        state.rng.choice(rows, min(len(rows), START_ROWS // 2), replace=False)
        for rows in (np.flatnonzero(labels == sign) for sign in (-1, 1))
    ]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def certify(state: RunState, tolerance: float, on_block: Callable[[float], None]) -> Certificate:
    """Certify by a pass over all or unscreened rows; Stop is raised where it would end too late.

    If all rows are vertices, their gradients are known.
    """
    workspace = state.workspace
    deadline = state.deadline
    active = state.active
    all_rows = workspace.problem.source.n_rows
    if len(active) == all_rows:
        slack = active.alpha / active.penalties
        state.certificate = certificate_of_all(active.alpha, slack, active.grad, active.rounding)
        state.progress.certified_gap = state.certificate.certified_gap
        return state.certificate
    support, unscreened = active.support, _unscreened(state)
    ids, alpha = active.ids[support], active.alpha[support]
    n_rows = all_rows if unscreened is None else len(unscreened)
    work = n_rows * len(support)
    started = time.perf_counter()

    def on_rows(rows_seen: int) -> None:
        share = rows_seen / n_rows
        on_block(share)
        seconds = time.perf_counter() - started
        if deadline.pass_is_late(seconds, share):
            deadline.measure(seconds, _PASS_COST * share * work)
            raise Stop(Status.TIME_LIMIT)

    screen = None
    if unscreened is None:
        plain, norm2 = active.plain_grad[support], active.squared_norm()
        state.screen = None  # two take much memory
        screen = Screen.empty(
            all_rows,
            one_norm=workspace.problem.kernel.constant_diagonal,
            **dict(row_ids=ids, alpha=alpha, plain=plain, norm2=norm2, rounding=active.rounding),
        )
    rows = take_rows(active.rows, support)
    grad, penalty = active.grad[support], active.penalty_of(ids)
    weights = SupportWeights(rows, ids, alpha, penalty, grad, active.rounding)
    memory = workspace.plan.memory
    n_worst = max(_LEAST_VIOLATORS, len(active))
    search = Search(tolerance, n_worst, screen, unscreened, memory.kernel_values)
    # Without a limit there is memory beside the kernel rows.
    effort = Effort.of(n_rows, len(support), memory.kernel_values)
    lends = memory.limit is not None and effort is not None
    with active.kernel_rows_lent(if_=lends):
        state.certificate = make_pass(
            workspace.problem, workspace.engine, weights, search, on_rows, workspace.workers
        )
    seconds = time.perf_counter() - started
    deadline.measure(seconds, _PASS_COST * work)
    state.progress.certified_gap = state.certificate.certified_gap
    state.progress.sweep_fraction = None
    state.pass_share = n_rows / all_rows
    if screen is not None:
        state.sweep_seconds = seconds
        state.screen = screen
        active.pinned[:] = False
        active.pinned[support] = True  # `_unscreened` needs the gradient of these vertices
    return state.certificate


def _unscreened(state: RunState) -> Int64Array | None:
    """Rows that may be worse than the support, by the last screen; None for all rows."""
    if state.screen is None:
        return None
    active, problem = state.active, state.workspace.problem
    rounding, norm2 = active.rounding, active.squared_norm()
    plain = active.plain_grad[active.places_of(state.screen.row_ids)]
    floor = float(active.grad[active.support].min()) + rounding
    n_rows = problem.source.n_rows
    support = np.sort(active.ids[active.support])  # their gradients are known
    most = min(_FEW_UNSCREENED * n_rows, _MOST_UNSCREENED + n_rows // 32)
    how = problem.labels, norm2, plain, rounding, most + len(support)
    row_ids = state.screen.unscreened(floor, *how)
    if row_ids is None:
        logger.info("screening leaves more than %d of %d rows", most, n_rows)
        return None
    row_ids = np.setdiff1d(row_ids, support, assume_unique=True)
    logger.info("screening leaves %d of %d rows", len(row_ids), n_rows)
    return row_ids if len(row_ids) < most else None


def polish(state: RunState, gap: float) -> None:
    """Optimise on the vertices to a relative gap, unless rounding makes the one there larger."""
    active = state.active
    active.refresh()
    alpha, before = active.alpha.copy(), active.relative_gap()
    most = INNER_STEPS_PER_VERTEX * len(active)
    active.optimise(gap, most, lambda: state.deadline.left() <= 0)
    active.refresh()
    if active.relative_gap() > before:
        active.set_weights(alpha)


def finish_early(state: RunState, seconds: float) -> bool:
    """Take the best weights of a run that stops early: optimal on their vertices, of least P.

    Each optimisation and the comparison take `seconds` at most. Tells whether weights changed.
    """
    active = state.active
    if state.rule.walks and len(active) == state.workspace.problem.source.n_rows:
        active.keep(active.support)
    end = time.perf_counter() + seconds
    most = INNER_STEPS_PER_VERTEX * len(active)
    steps, _ = active.optimise(_POLISHED_GAP, most, lambda: time.perf_counter() > end)
    n_support = len(active.support)
    smaller = [earlier for earlier in state.earlier if len(earlier.ids) < n_support]
    if not smaller:
        return steps > 0
    last = EarlierWeights.of(active)
    candidates = [*smaller, last]
    objectives = primal_objectives(candidates, state.workspace, end + seconds)
    sizes = [len(weights.ids) for weights in candidates]
    logger.info("primal objectives of %s vertices: %s", sizes, objectives)
    best = candidates[int(objectives.argmin())]
    if best is not last:
        state.return_to(best)
        end = time.perf_counter() + seconds
        active.optimise(_POLISHED_GAP, most, lambda: time.perf_counter() > end)
        # An optimum on few vertices may be a worse model than the weights on the way to it.
        candidates = [EarlierWeights.of(active), last]
        if primal_objectives(candidates, state.workspace, end + seconds).argmin() == 1:
            state.return_to(last)
    return steps > 0 or best is not last


def primal_objectives(
    candidates: Sequence[EarlierWeights], workspace: Workspace, end: float
) -> Float64Array:
    """Primal objective P of each candidate, estimated over the same sample of rows.

    The dual objective of weights on few vertices says nothing of the other rows: more violators may
    make a worse model. On the scale where the margin is 1, a / rho is the solution of a squared
    hinge, the minimum of

        P(a) = 1/2 (|w|^2 + b^2) / rho^2 + 1/2 sum_i C_i max(0, 1 - y_i h(x_i) / rho)^2,

    with the sum over the sample, scaled. Its first part is always taken, others before the `end`.
    """
    engine, source = workspace.engine, workspace.rows
    ids = np.unique(np.concatenate([weights.ids for weights in candidates]))
    vertices = engine.prepare(source.take(ids))
    betas = np.zeros((len(candidates), len(ids)))
    for row, weights in zip(betas, candidates, strict=True):
        row[np.searchsorted(ids, weights.ids)] = weights.alpha * weights.labels
    rho = np.array([weights.rho for weights in candidates])
    losses, n_seen = np.zeros(len(candidates)), 0
    C = np.broadcast_to(np.asarray(workspace.penalties), source.n_rows)
    rng = np.random.default_rng(workspace.options.seed)
    order = rng.permutation(source.n_rows) if source.n_rows <= _SAMPLE_ROWS else None
    while n_seen < min(_SAMPLE_ROWS, source.n_rows):
        if order is None:
            row_ids = workspace.sampler.sample(_DRAW_ROWS, rng)
        else:
            row_ids = np.sort(order[n_seen : n_seen + _DRAW_ROWS])
        x = engine.prepare(source.take(row_ids))
        margins = (engine.weighted_sum(x, vertices, betas) + betas.sum(axis=1)) / rho
        slack = np.maximum(0.0, 1.0 - workspace.problem.labels[row_ids][:, None] * margins)
        losses += C[row_ids] @ slack**2
        n_seen += len(row_ids)
        if time.perf_counter() > end:
            break
    norms = np.array([weights.squared_norm for weights in candidates]) / rho**2
    return np.asarray(norms / 2 + source.n_rows / n_seen * losses / 2)


def last_sampled_gap(state: RunState) -> float:
    """Gap over the rows drawn last; the worst is taken in float64 and cannot exceed the truth."""
    active = state.active
    worst = state.worst
    workspace = state.workspace
    if state.n_scanned == 0:
        # Without a certificate this draw is all that is known of rows outside the active set.
        least = _UNCERTIFIED_DRAW if state.certificate is None else 0
        size = max(workspace.options.sample_size, least)
        worst = SampledLMO(workspace, size).propose(active, state.rng, Request()).worst
    grad = float(active.grad.min())
    if worst >= 0 and active.place_of(worst) is None:
        places, engine = active.support, active.engine
        x = engine.prepare(workspace.rows.take(np.array([worst])), exact=True)
        z = engine.prepare(take_rows(active.rows, places), exact=True)
        beta = active.alpha[places] * active.labels[places]
        decision = float((engine.weighted_sum(x, z, beta) + beta.sum())[0])
        grad = min(grad, int(workspace.problem.labels[worst]) * decision)
    return relative_gap(active.rho, grad)
