"""Classifiers of pairs of small classes, trained on the kernel values of all rows of both.

A pair of few rows needs no samples, no active set and no passes over a file: all its rows are
vertices, and their kernel values are float64, so that the gradient after the last step is that of a
certificate. Several pairs are trained side by side, one on each thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from ooc_fw._core.pairwise import optimise_pairwise
from ooc_fw._core.steps import KernelBlock, Vertices
from ooc_fw.certificate.sweep import Certificate, certificate_of_all
from ooc_fw.data.rows import Float64Array, Int64Array, Rows, concat_rows, rows_bytes, take_rows
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.model.machines import class_pairs, places_among
from ooc_fw.model.partition import Partition
from ooc_fw.problem import FLOAT64_GAP, StoppingTest, relative_gap
from ooc_fw.solver.plan import Plan
from ooc_fw.solver.state import Solution, Status, StepKind, Warm
from ooc_fw.solver.steps import STEP_RULES
from ooc_fw.system.memory import program_bytes
from ooc_fw.system.threads import limit_this_thread

_MOST_ROWS = 2500  # rows of a pair whose rows are all vertices
_WITHIN_BYTES = 48 << 20  # bytes of kernel values within all classes, up to which they are kept
_STEPS_PER_ROW = 200  # steps in one round, for each row


@contextmanager
def open_small_pairs(partition: Partition, plan: Plan) -> Iterator[SmallPairs | None]:
    """What trains the classifiers of those pairs that have few rows; None if there are none."""
    numbers, threads = _small_numbers(partition, plan)
    if not numbers:
        yield None
        return
    codes = _classes_of(numbers, class_pairs(partition.whole.n_classes))
    sources = [partition.sources[code] for code in codes]
    rows = concat_rows([source.read(0, source.n_rows) for source in sources])
    kernel = partition.whole.kernel
    with (
        Engine(kernel, 1, choose_arithmetic(kernel, rows)) as engine,
        ThreadPoolExecutor(threads, initializer=limit_this_thread) as pool,
    ):
        map_all = pool.map if threads > 1 else map
        yield SmallPairs(partition, plan, numbers, rows, engine, map_all)


def _small_numbers(partition: Partition, plan: Plan) -> tuple[list[int], int]:
    """Pairs that are trained here, and threads for which there is memory.

    None are if the options ask for another way. A memory limit is for all pairs or none, since
    those of other pairs know of no memory but their own.
    """
    options = plan.given
    source = partition.whole.source
    usual = STEP_RULES[plan.options.method].takes_many and options.certify and options.lmo == "auto"
    pairs = class_pairs(partition.whole.n_classes)
    class_rows = np.array([len(rows) for rows in partition.rows])
    n_rows = [int(class_rows[a] + class_rows[b]) for a, b in pairs]
    small = [k for k, n in enumerate(n_rows) if n <= _MOST_ROWS]
    few = not small or (options.memory_limit is not None and len(small) < len(pairs))
    if few or not usual or options.max_iter is not None or options.start != "random":
        return [], 0
    most = 256 << 20  # bytes of rows and kernel values
    if options.memory_limit is not None:
        held = partition.held_bytes
        most = options.memory_limit - program_bytes(held) - held
    # Rows are held three times: as read, one after the other, and made ready for products.
    share = float(class_rows[_classes_of(small, pairs)].sum()) / source.n_rows
    most -= _WITHIN_BYTES + int(3 * share * source.decoded_bytes)
    threads = min(options.threads, most // (20 * max(n_rows[k] for k in small) ** 2))
    return (small, threads) if threads > 0 else ([], 0)


def _classes_of(numbers: Iterable[int], pairs: list[tuple[int, int]]) -> list[int]:
    return sorted({code for k in numbers for code in pairs[k]})


class SmallPairs:
    """Trains the classifiers of the pairs `numbers`, side by side by means of `map_all`.

    It has the `rows` of their classes, one class after the other.
    """

    def __init__(
        self,
        partition: Partition,
        plan: Plan,
        numbers: list[int],
        rows: Rows,
        engine: Engine,
        map_all: Callable[..., Iterator[Any]],
    ) -> None:
        self.numbers = numbers
        self.map_all = map_all
        self._problem = partition.whole
        self._plan = plan
        self._pairs = class_pairs(partition.whole.n_classes)
        self._local = threading.local()
        self._engine = engine
        codes = _classes_of(numbers, self._pairs)
        self._rows = {code: partition.rows[code] for code in codes}
        self._row_bytes = rows_bytes(rows) / len(rows)
        self._none = take_rows(rows, np.empty(0, dtype=np.int64))
        prepared = engine.prepare(rows, exact=True)
        self._error = float(engine.error_bound(prepared, prepared).max())
        ends = np.cumsum([len(of_class) for of_class in self._rows.values()]).tolist()
        self._operands = {
            code: prepared[start:end]
            for code, start, end in zip(codes, [0, *ends], ends, strict=False)
        }
        self._within: dict[int, Float64Array] = {}  # kernel values within classes, if all fit
        if 8 * sum(len(of_class) ** 2 for of_class in self._rows.values()) <= _WITHIN_BYTES:
            self._within = dict(zip(codes, map_all(self._kernel_values, codes, codes), strict=True))

    def _kernel_values(self, first: int, second: int) -> Float64Array:
        """Kernel values between the rows of two classes."""
        x = self._operands[first]
        z = self._operands[second]
        values = np.empty((len(x), len(z)))
        self._engine.block(x, z, values)
        return values

    def solve(self, k: int, warm: Warm | None) -> Solution | None:
        """Weights with a certificate that passes the test; None if rounding prevents it."""
        started = time.perf_counter()
        pair = self._pairs[k]
        rows = np.concatenate([self._rows[code] for code in pair])
        n_first = len(self._rows[pair[0]])
        m = len(rows)
        every = self._problem.penalties
        penalties = np.full(m, self._plan.given.C) if every is None else every[rows]
        alpha = _first_weights(rows, n_first, warm)
        trained = self._train(self._values(pair, m), penalties, alpha)
        if trained is None:
            return None
        certificate, n_rounds, drops = trained
        support = np.flatnonzero(alpha)
        sharing = self._problem.n_classes - 1 if self._within else 1  # pairs with these values
        evaluations = n_first * (m - n_first) + (n_first**2 + (m - n_first) ** 2) // sharing
        method = self._plan.options.method
        steps = {StepKind.CORRECTIVE: n_rounds, StepKind.DROP: drops}
        return Solution(
            status=Status.CONVERGED,
            method=method,
            lmo="full",
            choice=f"method {method}, full oracle: all {m} rows are vertices",
            alpha=alpha[support],
            labels=np.where(support < n_first, -1, 1).astype(np.int8),
            rows=rows[support],
            support_vectors=self._none,
            objective=certificate.objective,
            rho=certificate.rho,
            sampled_gap=certificate.certified_gap - certificate.rounding,
            certified_gap=certificate.certified_gap,
            pair_gap=certificate.pair_gap,
            iterations=n_rounds,
            steps=dict.fromkeys(StepKind, 0) | steps,
            kernel_evaluations=evaluations,
            passes=evaluations / (m * len(support)),
            rows_read=m,
            bytes_read=int(m * self._row_bytes),
            seconds=time.perf_counter() - started,
            penalties=None if every is None else penalties[support],
        )

    def _train(
        self, values: Float64Array, penalties: Float64Array, alpha: Float64Array
    ) -> tuple[Certificate, int, int] | None:
        """Optimise `alpha`: certificate, rounds of steps, and steps that dropped a vertex.

        The gradient is computed anew after each round; rounds go to ever smaller gaps.
        """
        m = len(alpha)
        options = self._plan.given
        diag = np.diagonal(values) + 1 + 1 / penalties
        constant = self._problem.kernel.constant_diagonal and self._problem.penalties is None
        test = StoppingTest(options.stopping, options.tol, float(diag[0]) if constant else None)
        block = KernelBlock(values, np.ones(1), np.arange(m), np.zeros(m, dtype=np.int64))
        vertices = Vertices(alpha, np.empty(m), diag, np.ones(m))
        drops = 0
        for n_rounds in range(9):
            alpha /= alpha.sum()
            vertices.grad[:] = values @ alpha + alpha.sum() + alpha / penalties
            rho = float(alpha @ vertices.grad)
            target = test.target(rho, 0.9)
            if n_rounds == 8 or relative_gap(rho, float(vertices.grad.min())) <= target:
                break
            tol = max(target * 0.5**n_rounds, FLOAT64_GAP)
            _, dropped, _, _ = optimise_pairwise(vertices, block, 0, tol, _STEPS_PER_ROW * m)
            drops += dropped
        # Of the kernel values, and of the numbers made of them and their sums.
        error = self._error + (m + 4) * FLOAT64_UNIT * (2 + float(np.diagonal(values).max()))
        certificate = certificate_of_all(alpha, alpha / penalties, vertices.grad, error)
        if not certificate.certified_gap <= test.relative_tolerance(certificate.rho):
            return None
        return certificate, n_rounds, drops

    def _values(self, pair: tuple[int, int], m: int) -> Float64Array:
        """Numbers y_i y_j (k_ij + 1) - 1 of all m rows of a pair, in memory of this thread.

        These are kernel values for which all labels are +1.
        """
        if len(getattr(self._local, "values", ())) < m * m:
            self._local.values = np.empty(m * m)
        values: Float64Array = self._local.values[: m * m].reshape(m, m)
        first, second = (
            self._within[code] if self._within else self._kernel_values(code, code) for code in pair
        )
        n = len(first)
        values[:n, :n] = first
        values[n:, n:] = second
        np.subtract(-2.0, self._kernel_values(*pair), out=values[:n, n:])
        values[n:, :n] = values[:n, n:].T
        return values


def _first_weights(rows: Int64Array, n_first: int, warm: Warm | None) -> Float64Array:
    """Weights to begin with: those given, or the same for some 60 rows of each class."""
    alpha = np.zeros(len(rows))
    if warm is None:
        for of_class in (alpha[:n_first], alpha[n_first:]):
            of_class[:: -(-len(of_class) // 60)] = 1.0
    else:
        alpha[places_among(rows, warm.rows)] = warm.alpha
    return alpha
