"""A run on one binary problem: its first weights, certificates, and its end.

The algorithm in `ooc_fw.solver.loop` puts these together.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import ExitStack

import numpy as np

from ooc_fw.certificate.sweep import (
    Certificate,
    Search,
    SupportWeights,
    certificate_of_all,
)
from ooc_fw.certificate.sweep import certify as read_all
from ooc_fw.data.rows import Float64Array, Int64Array, take_rows
from ooc_fw.data.sources import iter_blocks
from ooc_fw.data.views import cached
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.low_rank import PivotLimits
from ooc_fw.options import START_ROWS
from ooc_fw.problem import BinaryProblem, StoppingTest, relative_gap
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.blocks import LEAST_MOVING, ROW_BYTES, Blocks
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.solver.oracles import Request, SampledLMO, make_oracle, walks_on_all_rows
from ooc_fw.solver.plan import Plan, Session, few_rows, lend_workers, make_sampler
from ooc_fw.solver.state import SolverState, Status, Stop, Warm
from ooc_fw.solver.steps import INNER_STEPS_PER_VERTEX, STEP_RULES
from ooc_fw.solver.surroundings import Surroundings

logger = logging.getLogger(__name__)


class Run(Surroundings):
    """All that a run works with and changes, from its first vertices to its solution.

    Subclasses are algorithms: `ooc_fw.solver.loop`.
    """

    engine: Engine

    def __init__(
        self,
        problem: BinaryProblem,
        plan: Plan,
        session: Session,
        stack: ExitStack,
    ) -> None:
        super().__init__(session, plan.options, problem.source, SolverState())
        memory = plan.memory
        threads = self.options.threads
        self.problem = problem
        self.plan = plan
        diagonal = problem.constant_diagonal(self.options.C)
        self.stopping = StoppingTest(
            self.options.stopping, self.options.tol, diagonal, problem.bias_share
        )
        self.sampler = make_sampler(self.source, problem.labels)  # draws rows of the source
        draws = np.random.default_rng(self.options.seed)
        probe = self.source.take(self.sampler.sample(few_rows(self.source, 1024), draws))
        arithmetic = choose_arithmetic(problem.kernel, probe)
        self.engine = stack.enter_context(Engine(problem.kernel, threads, arithmetic))
        # They make readings of the data; None: this process does.
        self.workers = stack.enter_context(lend_workers(session, threads, self.source))
        self.rows = cached(self.source, memory.row_cache)
        kernel_rows = KernelRows(
            memory.max_vertices, memory.kernel_values, plan.quantised, memory.limit
        )
        self.active = ActiveSet(self.engine, self.options.C, kernel_rows, problem.penalties)
        self.rule = STEP_RULES[self.options.method]()
        self.oracle = make_oracle(self.options, self.rows, problem.labels, self.sampler, memory)
        self.blocks: Blocks | None = None  # they take the steps once vertices outgrow memory
        self.best: Warm | None = None  # weights with the least certified gap above the tolerance
        self.full = False  # whether the active set holds as many vertices as it may
        self.target_share = 1.0  # share of the tolerance at which training ends
        # Whether the gradient was computed anew after the oracle had nothing left.
        self.renewed = False
        self.least_gap = math.inf  # least certified gap
        self.round_share = 1.0  # estimate of (P - D) / P in the last round of blocks
        self.idle_rounds = 0  # rounds since the last smaller certified gap or new violator
        self.n_scanned = 0  # rows behind the last proposal; 0 if the weights have changed since
        self.worst = -1  # the worst of these rows, see `Candidates`
        self.certificate: Certificate | None = None  # for the current weights
        self.trust_steps()

    def trust_steps(self) -> None:
        """Forget the signs that steps get nowhere: other kernel values are in use."""
        self.still = 0  # steps since rho was last clearly below `fallen_rho`
        self.fallen_rho = math.inf
        self.unfinished = 0  # corrective steps on the same vertices that got nowhere
        self.least_rho = math.inf  # least rho between two such steps, with a fresh gradient
        self.solved_gap = math.inf  # least gap that a corrective step on these vertices reached

    @property
    def weights(self) -> Warm:
        """A copy of the current weights."""
        support = self.active.support
        return Warm(self.active.ids[support], self.active.alpha[support])

    def add_vertices(self, row_ids: Int64Array, *, fill: bool = True) -> None:
        """Add rows with these increasing numbers as vertices of weight 0."""
        labels = self.problem.labels[row_ids]
        self.active.add(row_ids, self.rows.take(row_ids), labels, fill=fill)

    def take_weights(self, row_ids: Int64Array, alpha: Float64Array) -> None:
        """Replace all weights by these, or by the heaviest of them if there is no room for all."""
        heaviest = np.argsort(-alpha, kind="stable")[: self.active.kernel_rows.capacity]
        chosen = heaviest[alpha[heaviest] > 0]
        chosen = chosen[np.argsort(row_ids[chosen])]
        self.active.keep(np.empty(0, dtype=np.int64))
        self.add_vertices(row_ids[chosen])
        self.active.set_weights(alpha[chosen])
        self.certificate = None
        self.n_scanned = 0

    @property
    def fits_blocks(self) -> bool:
        """Whether blocks of rows may take the steps."""
        least = 8 * LEAST_MOVING**2 + ROW_BYTES * self.source.n_rows
        fits = self.plan.memory.kernel_values >= least
        return self.rule.takes_many and not self.problem.partial and fits

    def begin_blocks(self, warm: Warm | None = None) -> None:
        """Let blocks of rows take the steps from here on, with the given or the current weights."""
        memory = self.plan.memory
        active = self.active
        logger.info("%d vertices, and more to come: blocks of rows take the steps", len(active))
        # Kernel values of a block, and rows of further vertices, have half of the memory each.
        n_bytes = (memory.kernel_values - ROW_BYTES * self.source.n_rows) // 2
        active.outgrow(memory.max_vertices + n_bytes // memory.work.vertex_bytes)
        if warm is not None:
            self.take_weights(warm.rows, warm.alpha)
        self.blocks = Blocks(active, self.rows, self.problem, self.rng, memory.max_block, n_bytes)
        self.oracle.retire()

    def renew(self) -> None:
        """Refresh the gradient, and tell the oracle."""
        self.active.refresh()
        self.oracle.retire()

    def note_correction(self, wanted_gap: float, *, moved_on: bool) -> None:
        """Count a corrective step on the same vertices if it got nowhere.

        It ends above the wanted gap, or not below the last one, and hardly lowers the objective.
        """
        active = self.active
        gap = active.relative_gap()
        if moved_on or (gap <= wanted_gap and gap < self.solved_gap):
            self.unfinished = 0
            self.least_rho = math.inf
            self.solved_gap = gap
            return
        self.unfinished += 1
        if self.unfinished > 1:
            active.refresh()
            slow = active.precise and gap < 1  # more precise values do not exist
            least_progress = 0.0 if slow else 1e-3 * min(gap, 1.0)
            if active.rho < self.least_rho * (1 - least_progress):
                self.unfinished = 1
                self.least_rho = active.rho

    def start(self, warm: Warm | None) -> None:
        """Begin with the given weights, or with random rows."""
        active = self.active
        if warm is not None and self.fits_blocks and len(warm.rows) > active.kernel_rows.side:
            self.begin_blocks(warm)
        elif warm is not None:
            self.take_weights(warm.rows, warm.alpha)
        else:
            farthest = self.options.start == "farthest"
            self.add_vertices(self._farthest_pair() if farthest else self._random_rows())
            active.set_weights(np.full(len(active), 1 / len(active)))
            active.optimise(0.0, 100 * len(active))
            active.refresh()
        n_rows = self.source.n_rows
        if walks_on_all_rows(self.options, n_rows, active.kernel_rows.capacity):
            self.add_vertices(np.setdiff1d(np.arange(n_rows), active.ids), fill=False)

    def _farthest_pair(self) -> Int64Array:
        """The row farthest from a random one, and its farthest row (Badoiu and Clarkson)."""
        first = self._farthest(int(self.rng.integers(self.rows.n_rows)))
        return np.unique([first, self._farthest(first)])

    def _farthest(self, row: int) -> int:
        """The row i with the largest Q_ii - 2 Q_ij for a row j: its distance minus a constant."""
        labels = self.problem.labels
        engine = self.engine
        source = self.rows
        vertex = engine.prepare(source.take(np.array([row])), exact=True)
        distances = np.empty(source.n_rows)
        for start, rows in iter_blocks(source, 0, source.n_rows):
            x = engine.prepare(rows, exact=True)
            part = slice(start, start + len(rows))
            values = np.empty((len(x), 1))
            engine.block(x, vertex, values)
            q = labels[part] * labels[row] * (values[:, 0] + 1.0)
            distances[part] = engine.kernel.diagonal(x.norms) + 1.0 - 2.0 * q
        distances += 1 / self.active.penalty_of(np.arange(source.n_rows))
        distances[row] = -math.inf
        return int(distances.argmax())

    def _random_rows(self) -> Int64Array:
        """Random rows, half of them from each class if there are enough."""
        labels = self.problem.labels
        chosen = [
            self.rng.choice(rows, min(len(rows), START_ROWS // 2), replace=False)
            for rows in (np.flatnonzero(labels == sign) for sign in (-1, 1))
        ]
        return np.sort(np.concatenate(chosen)).astype(np.int64)

    def certify(self, tolerance: float) -> Certificate:
        """Certify by a reading of all rows; Stop is raised if it would end too late.

        There is no reading if all rows are vertices: their gradients are known.
        """
        active = self.active
        self.interrupt.defer()
        if len(active) == self.source.n_rows:
            known = active.alpha, active.penalties, active.grad, active.rounding
            certificate = certificate_of_all(*known, self.problem.bias_share)
        else:
            certificate = self._pass(tolerance)
        self.certificate = certificate
        stated = certificate.without_bias(self.problem.bias_share)
        self.progress.certified_gap = stated.certified_gap
        self.tell()
        return certificate

    def _pass(self, tolerance: float) -> Certificate:
        """Certify by a reading of the rows."""
        active = self.active
        memory = self.plan.memory
        support = active.support
        ids = active.ids[support]
        alpha = active.alpha[support]
        n_rows = self.source.n_rows
        started = time.perf_counter()

        def on_rows(rows_seen: int) -> None:
            share = rows_seen / n_rows
            self.report(share)
            if self.deadline.pass_is_late(time.perf_counter() - started, share):
                raise Stop(Status.TIME_LIMIT)

        rows = take_rows(active.rows, support)
        known = active.penalty_of(ids), active.grad[support], active.rounding
        weights = SupportWeights(rows, ids, alpha, *known)
        # A negative tolerance asks for rows a little above the margin: steps may let them violate.
        n_worst = max(512, len(active))
        search = Search(-tolerance, n_worst, memory.kernel_values)
        # Kernel rows give their memory away only if there is a limit.
        effort = PivotLimits.of(n_rows, len(support), memory.kernel_values)
        lends = memory.limit is not None and effort is not None
        with active.kernel_rows_lent(if_=lends):
            certificate = read_all(
                self.problem, self.engine, weights, search, on_rows, self.workers
            )
        self.progress.sweep_fraction = None
        return certificate

    def polish(self, gap: float) -> None:
        """Optimise on the vertices to a relative gap; old weights stay if the gap gets larger."""
        active = self.active
        active.refresh()
        if active.outgrown:
            return
        alpha = active.alpha.copy()
        before = active.relative_gap()
        most = INNER_STEPS_PER_VERTEX * len(active)
        active.optimise(gap, most, lambda: self.deadline.left() <= 0)
        active.refresh()
        if active.relative_gap() > before:
            active.set_weights(alpha)

    def finish_early(self, seconds: float) -> bool:
        """Optimise on the vertices for `seconds` at most; whether the weights changed."""
        active = self.active
        if active.outgrown:
            return False
        if self.rule.walks and len(active) == self.source.n_rows:
            active.keep(active.support)
        end = time.perf_counter() + seconds
        most = INNER_STEPS_PER_VERTEX * len(active)
        steps, _ = active.optimise(1e-2, most, lambda: time.perf_counter() > end)
        return steps > 0

    def last_sampled_gap(self) -> float:
        """Gap over the rows drawn last, the worst in float64, so that it is not too large."""
        active = self.active
        engine = self.engine
        worst = self.worst
        if self.n_scanned == 0:
            # Without a certificate, this draw is all that tells of rows outside the active set.
            size = max(self.options.sample_size, 2048 if self.certificate is None else 0)
            oracle = SampledLMO(self.rows, self.problem.labels, self.sampler, size)
            worst = oracle.propose(active, self.rng, Request()).worst
        grad = float(active.grad.min())
        row_ids = np.array([worst])
        if worst >= 0 and len(active.outside(row_ids)) > 0:
            support = active.support
            x = engine.prepare(self.rows.take(row_ids), exact=True)
            z = engine.prepare(take_rows(active.rows, support), exact=True)
            beta = active.alpha[support] * active.labels[support]
            decision = float((engine.weighted_sum(x, z, beta) + beta.sum())[0])
            grad = min(grad, int(self.problem.labels[worst]) * decision)
        return relative_gap(active.rho, grad)
