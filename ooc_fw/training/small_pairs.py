"""Classifiers of pairs of small classes, trained on the kernel values of all rows of both.

A pair of few rows needs no samples, no active set and no passes over a file: all its rows are
vertices, and their kernel values are float64, so that the gradient after the last step is that of a
certificate. Several pairs are trained side by side, one on each thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np

from ooc_fw._core.pairwise import optimise_pairwise
from ooc_fw._core.steps import KernelBlock, Vertices, join_blocks
from ooc_fw.certificate.sweep import Certificate, certificate_of_all
from ooc_fw.data.rows import Float64Array, Int64Array, concat_rows, rows_bytes, take_rows
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.options import TrainOptions
from ooc_fw.problem import ClassificationProblem, StoppingTest
from ooc_fw.solver.setup import choose_method
from ooc_fw.solver.start import Warm
from ooc_fw.solver.state import Solution, Status, StepKind
from ooc_fw.solver.steps import STEP_RULES
from ooc_fw.system.memory import PROGRAM_BYTES
from ooc_fw.training.partition import Partition

_MOST_ROWS = 2500  # of a pair whose rows are all vertices
_MOST_BYTES = 256 << 20  # of rows and kernel values, without a memory limit
_ROW_COPIES = 3  # of the rows: as read, one after the other, made ready for products
_GROUP_BYTES = 24 << 20  # of kernel values of the pairs that are trained at once
_WITHIN_BYTES = 16 << 20  # of kernel values within all classes, up to which they are kept
_FIRST_ROWS = 60  # of each class that have weight in the beginning, at most
_ROUNDS = 8  # of steps and a new gradient, after which a pair is trained in another way
_STEPS_PER_ROW = 200  # in one round
_NO_BUDGET = (None, None)  # of iterations and of support vectors
_AIM = 0.9  # share of the tolerance to which steps optimise

Places: TypeAlias = tuple[int, int]
"""The negative and the positive class of a pair."""

_Values: TypeAlias = tuple[Float64Array, Float64Array, Float64Array]
"""Kernel values within the first class of a pair, between the two, and within the second."""


@dataclass(frozen=True)
class _Trained:
    """Weights of all rows of a pair, and what is known of them."""

    alpha: Float64Array
    certificate: Certificate
    rounds: int
    drops: int


class SmallPairs:
    """Trains the classifiers of those pairs of classes that have few rows; a context manager.

    Parameters
    ----------
    problem, partition, options
        See `ooc_fw.training.pairs.PairTrainer`.
    pairs : sequence of tuple of int
        All pairs of classes, in the order in which `solution` is asked for them.
    """

    def __init__(
        self,
        problem: ClassificationProblem,
        partition: Partition,
        options: TrainOptions,
        pairs: Sequence[Places],
    ) -> None:
        self._problem, self._options, self._pairs = problem, options, pairs
        self._n_rows = np.bincount(problem.codes, minlength=problem.n_classes)
        self._n_threads = options.threads
        self._small = self._choose(partition.held_bytes)
        self._found: dict[int, Solution | None] = {}
        self._local = threading.local()
        self._resources = ExitStack()
        if self._small:
            self._load(partition)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def _choose(self, held_bytes: int) -> set[Places]:
        """Pairs that are trained here, on as many threads as there is memory for.

        None are where the options ask for another way. A memory limit is for all pairs or none,
        since those of other pairs know of no memory but their own.
        """
        options, pairs, sizes = self._options, self._pairs, self._n_rows
        method = choose_method(options, len(self._problem.codes))[0]
        unusual = not STEP_RULES[method].takes_many or not options.certify or options.lmo != "auto"
        if len(pairs) == 1 or unusual or (options.max_iter, options.max_support) != _NO_BUDGET:
            return set()
        small = {(a, b) for a, b in pairs if sizes[a] + sizes[b] <= _MOST_ROWS}
        most = _MOST_BYTES
        if options.memory_limit is not None:
            most = options.memory_limit - PROGRAM_BYTES - held_bytes
            if len(small) < len(pairs):
                return set()
        source, classes = self._problem.source, sorted({code for pair in small for code in pair})
        share = float(sizes[classes].sum()) / source.n_rows
        most -= _GROUP_BYTES + _WITHIN_BYTES + int(_ROW_COPIES * share * source.decoded_bytes)
        block = 8 * max((int(sizes[a] + sizes[b]) for a, b in small), default=1) ** 2
        self._n_threads = min(options.threads, most // block)
        return small if self._n_threads > 0 else set()

    def _load(self, partition: Partition) -> None:
        """Read the rows of the classes, and compute the kernel values within each."""
        self._classes = sorted({code for pair in self._small for code in pair})
        parts = [partition.class_rows(code) for code in self._classes]
        self._numbers = {code: own for code, (own, _) in zip(self._classes, parts, strict=True)}
        rows = concat_rows([own for _, own in parts])
        self._row_bytes = rows_bytes(rows) / len(rows)
        self._none = take_rows(rows, np.empty(0, dtype=np.int64))
        kernel = self._problem.kernel
        engine = Engine(kernel, self._n_threads, choose_arithmetic(kernel, rows))
        self._engine = self._resources.enter_context(engine)
        self._x = engine.prepare(rows, exact=True)
        self._error = float(engine.error_bound(self._x, self._x).max())
        stops = np.cumsum([len(own) for own, _ in parts])
        self._slices = {
            code: slice(int(stop) - len(self._numbers[code]), int(stop))
            for code, stop in zip(self._classes, stops, strict=True)
        }
        kept = 8 * sum(len(own) ** 2 for own in self._numbers.values()) <= _WITHIN_BYTES
        self._kept = self._within(self._classes) if kept else {}

    def _values(self, code: int, others: slice) -> Float64Array:
        """Kernel values between the rows of a class and others."""
        values = np.empty((len(self._numbers[code]), others.stop - others.start))
        self._engine.block(self._x[self._slices[code]], self._x[others], values)
        return values

    def _within(self, codes: Iterable[int]) -> dict[int, Float64Array]:
        """Kernel values within each of some classes."""
        return {code: self._values(code, self._slices[code]) for code in codes}

    # -- pair by pair ----------------------------------------------------------------------------

    def solution(self, k: int, C: float, warm: Sequence[Warm | None] | None) -> Solution | None:
        """Solution of pair `k`, which begins with weights of `warm`, those of all pairs; or None.

        None says that the pair has to be trained in another way. Solutions are asked for in order.
        """
        if not self.takes(k):
            return None
        if k not in self._found:
            self._found = self._solve_group(k, C, warm)
        return self._found.pop(k)

    def takes(self, k: int) -> bool:
        """Whether pair `k` is likely trained here."""
        return self._pairs[k] in self._small

    def forget(self) -> None:
        """Forget solutions that were not asked for, since weights or penalties will be others."""
        self._found.clear()

    def _solve_group(
        self, k: int, C: float, warm: Sequence[Warm | None] | None
    ) -> dict[int, Solution | None]:
        """Solutions of pair `k` and those after it that share its first class."""
        group = self._group(k)
        first, (start, stop) = self._pairs[k][0], self._span(group)
        codes = {code for own in group for code in self._pairs[own]}
        within = self._kept or self._within(sorted(codes))
        values = self._values(first, slice(start, stop))

        def solve(own: int) -> Solution | None:
            second = self._pairs[own][1]
            place = self._slices[second]
            between = values[:, place.start - start : place.stop - start]
            before = None if warm is None else warm[own]
            return self._solve(
                self._pairs[own], (within[first], between, within[second]), C, before
            )

        return dict(zip(group, self._engine.map(solve, group), strict=True))

    def _group(self, k: int) -> list[int]:
        """Pair `k` and those after it with the same first class, as many as fit in memory."""
        first, group = self._pairs[k][0], [k]
        for other in range(k + 1, len(self._pairs)):
            if self._pairs[other][0] != first or not self.takes(other):
                break
            start, stop = self._span([k, other])
            n_bytes = 8 * (stop - start) * len(self._numbers[first])
            if not self._kept:
                n_bytes += 8 * sum(len(self._numbers[self._pairs[own][1]]) ** 2 for own in group)
            if n_bytes > _GROUP_BYTES:
                break
            group.append(other)
        return group

    def _span(self, group: Sequence[int]) -> tuple[int, int]:
        """First and last place of the rows of the second classes of a group."""
        first, last = (self._slices[self._pairs[own][1]] for own in (group[0], group[-1]))
        return first.start, last.stop

    def _solve(self, pair: Places, values: _Values, C: float, warm: Warm | None) -> Solution | None:
        """Solution of a pair, given the kernel values of its rows."""
        started = time.perf_counter()
        rows = np.concatenate([self._numbers[code] for code in pair])
        (n_first, n_second), m = values[1].shape, len(rows)
        y = np.where(np.arange(m) < n_first, -1.0, 1.0)
        every = self._problem.penalties
        penalties = np.full(m, C) if every is None else every[rows]
        trained = self._train(values, y, penalties, self._start(rows, y, warm))
        if trained is None:
            return None
        support, own = np.flatnonzero(trained.alpha), trained.certificate
        shared = self._problem.n_classes - 1 if self._kept else 1  # pairs that use them
        evaluations = values[1].size + (n_first**2 + n_second**2) // shared
        method, lmo = choose_method(self._options, m)[0], "full"
        return Solution(
            status=Status.CONVERGED,
            method=method,
            lmo=lmo,
            choice=f"method {method}, {lmo} oracle: all {m} rows are vertices",
            alpha=trained.alpha[support],
            labels=y[support].astype(np.int8),
            rows=rows[support],
            support_vectors=self._none,
            objective=own.objective,
            rho=own.rho,
            sampled_gap=own.certified_gap - own.rounding,
            certified_gap=own.certified_gap,
            pair_gap=own.pair_gap,
            iterations=trained.rounds,
            steps=dict.fromkeys(StepKind, 0)
            | {StepKind.CORRECTIVE: trained.rounds, StepKind.DROP: trained.drops},
            kernel_evaluations=evaluations,
            passes=evaluations / (m * len(support)),
            rows_read=m,
            bytes_read=int(m * self._row_bytes),
            seconds=time.perf_counter() - started,
            penalties=None if every is None else penalties[support],
        )

    def _start(self, rows: Int64Array, y: Float64Array, warm: Warm | None) -> Float64Array:
        """Weights to begin with: those given, or the same for a few rows of each class."""
        alpha = np.zeros(len(rows))
        if warm is None:
            for own in (np.flatnonzero(y < 0), np.flatnonzero(y > 0)):
                alpha[own[:: -(-len(own) // _FIRST_ROWS)]] = 1.0
            return alpha
        order = np.argsort(rows)
        alpha[order[np.searchsorted(rows, warm[0], sorter=order)]] = warm[1]
        return alpha

    def _train(
        self,
        values: _Values,
        y: Float64Array,
        penalties: Float64Array,
        alpha: Float64Array,
    ) -> _Trained | None:
        """Weights with a certificate that passes the test; None where rounding prevents it."""
        m, options = len(y), self._options
        Q = self._matrix(m)
        join_blocks(*values, Q)
        block = KernelBlock(Q, np.ones(1), np.arange(m), np.zeros(m, dtype=np.int64))
        diag = Q.diagonal() + 1 + 1 / penalties
        constant = self._problem.kernel.constant_diagonal and self._problem.penalties is None
        test = StoppingTest(options.stopping, options.tol, float(diag[0]) if constant else None)
        drops, share = 0, _AIM
        for n_rounds in range(_ROUNDS + 1):
            alpha /= alpha.sum()
            beta = alpha * y
            slack = alpha / penalties
            grad = y * (Q @ beta + beta.sum()) + slack
            own = certificate_of_all(alpha, slack, grad, self._error)
            if own.certified_gap <= test.relative_tolerance(own.rho):
                return _Trained(alpha, own, n_rounds, drops)
            vertices, aim = Vertices(alpha, grad, diag, y), test.target(own.rho, share)
            drops += optimise_pairwise(vertices, block, 0, aim, _STEPS_PER_ROW * m)[1]
            share *= _AIM
        return None

    def _matrix(self, m: int) -> Float64Array:
        """Memory of this thread for m x m numbers, which are not initialised."""
        if len(getattr(self._local, "values", ())) < m * m:
            self._local.values = np.empty(m * m)
        values: Float64Array = self._local.values[: m * m].reshape(m, m)
        return values
