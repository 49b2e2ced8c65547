"""Training on rows that are read once, in chunks.

An exact model has a binary classifier for each pair of classes:

for each chunk of rows
    train on the support vectors and the rows of the chunk, beginning with the weights so far
    while there are more than `keep` support vectors: drop some rows, and train on the others

A pair of classes with more than `keep` support vectors learns from a random share of the rows: the
rows with small hashes. The rows of largest weight would be the outliers of noisy data.

A landmark model keeps its landmarks, which stand for all earlier rows:

for each chunk of rows
    label the landmarks by the model; they share the number of earlier rows as their weights
    train on them and the rows of the chunk; without the chunk the weights would stay as they are

So the landmarks only tell how firmly earlier rows hold the weights (`landmarks.readings.Past`).
One half of them are random rows, and the other half come from around the margin. About twice as
many of them as of all rows hold the weights, so that their weights are halved.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import (
    CSRRows,
    Float64Array,
    Int8Array,
    Int64Array,
    Rows,
    concat_rows,
    row_hashes,
    take_rows,
)
from ooc_fw.data.sources import RowSource, iter_blocks, rows_source
from ooc_fw.kernels.functions import Kernel
from ooc_fw.landmarks import LandmarkSolution, LandmarkStart
from ooc_fw.model.machines import PairSolution, class_pairs
from ooc_fw.model.record import Model
from ooc_fw.options import KEEP, TrainOptions
from ooc_fw.problem import BinaryProblem, ClassificationProblem, relative_target
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.state import Solution, SolverState, Status, Warm, Work
from ooc_fw.system.errors import DeferredInterrupt, InputError
from ooc_fw.training.choice import plan_span, train_span

logger = logging.getLogger(__name__)

Found = TypeVar("Found", Solution, LandmarkSolution)

# Nothing is known of all rows.
_NO_CERTIFICATE: dict[str, Any] = dict.fromkeys(("certified_gap", "primal", "dual"))


def chunk_bytes(limit: int | None) -> int:
    """Size of a chunk of decoded rows, of which there are several copies, for a memory limit."""
    return min(64 << 20, (limit or 4 << 30) // 32)


@dataclass(frozen=True)
class Stream(ABC):
    """A model after the first `n_rows` rows of a stream.

    ``ooc-fw help data`` says what it promises. It uses the options `C`, `tol`, `stopping`,
    `landmarks`, `threads` and `max_time`, which counts from the start of the session.
    """

    kernel: Kernel
    n_classes: int
    options: TrainOptions
    keep: int = KEEP.default  # largest number of support vectors of a pair between two chunks
    n_rows: int = 0
    n_features: int = 0  # width of the widest row so far
    # The weights of a landmark model; their `rows` are positions in the stream.
    landmarks: LandmarkSolution | None = None

    @staticmethod
    def new(kernel: Kernel, n_classes: int, options: TrainOptions, keep: int) -> Stream:
        """The stream before its first row; the options tell the kind of model."""
        kind = PairStream if options.landmarks is None else SpanStream
        return kind(kernel, n_classes, options, keep)

    @staticmethod
    def after(model: Model, options: TrainOptions, keep: int) -> Stream:
        """The stream that continues from a model, after all rows of its training data."""
        kind: type[Stream] = SpanStream
        known: dict[str, Any] = {"n_rows": model.n_rows, "n_features": model.n_features}
        if model.kind == "exact":
            kind = PairStream
            known["solutions"] = tuple(solutions_of(model))
        else:
            known["landmarks"] = _span_solution(model)
        return kind(model.kernel, len(model.classes), options, keep, **known)

    @property
    def pairs(self) -> list[PairSolution]:
        """Solution of each pair of an exact model."""
        return []

    @abstractmethod
    def _with_chunk(self, rows: Rows, codes: Int64Array, session: Session) -> Stream:
        """The stream after a few more rows."""

    def _prepared(self, rows: Rows) -> tuple[Rows, int, bool]:
        """A chunk as wide as all rows so far, its width, and whether it is sparse.

        Rows are held dense if at least a quarter of their values are nonzero.
        """
        width = max(self.n_features, rows.shape[1])
        sparse = isinstance(rows, CSRRows) and 4 * len(rows.data) < len(rows) * width
        return _in_form(rows, width, sparse=sparse), width, sparse

    @abstractmethod
    def support_codes(self) -> Int64Array:
        """Class of each support vector, or the class that the model predicts for each landmark."""

    @abstractmethod
    def model(self, classes: npt.NDArray[Any], like: RowSource | Model | None) -> Model:
        """The model so far; scaling and names of columns are taken from `like`."""

    def changed(self, options: TrainOptions, keep: int) -> Stream:
        """The stream with other options."""
        return replace(self, options=options, keep=keep)

    def learn(self, source: RowSource, codes: Int64Array, session: Session | None = None) -> Stream:
        """The stream after it has learned all rows of `source`, whose classes are `codes`.

        Columns that a row lacks are zeros. InputError is raised for values too large for the kernel
        in float32. If time is over, later rows have hardly an effect, and a warning says so.
        """
        after = self
        session = session or Session()
        most = chunk_bytes(self.options.memory_limit)
        for start, rows in iter_blocks(source, 0, source.n_rows, most):
            after = after._with_chunk(rows, codes[start : start + len(rows)], session)
        if session.deadline(self.options).left() <= 0:
            logger.warning("the time limit was over before the last rows were learned")
        return after


@dataclass(frozen=True)
class PairStream(Stream):
    """A binary classifier for each pair of classes."""

    # One for each pair, None before its first row. Its `rows` are positions in the stream.
    solutions: tuple[Solution | None, ...] = ()
    shares: tuple[float, ...] = ()  # for each pair: the share of its rows that it learns from

    def changed(self, options: TrainOptions, keep: int) -> Stream:
        """The stream with other options. If it keeps more rows, it learns from all later rows."""
        shares = () if keep > self.keep else self.shares
        return replace(self, options=options, keep=keep, shares=shares)

    def _with_chunk(self, rows: Rows, codes: Int64Array, session: Session) -> Stream:
        rows, width, sparse = self._prepared(rows)
        pairs = class_pairs(self.n_classes)
        solutions = [*self.solutions] or [None] * len(pairs)
        shares = [*self.shares] or [1.0] * len(pairs)
        for k, (negative, positive) in enumerate(pairs):
            before = solutions[k]
            if before is not None:
                vectors = _in_form(before.support_vectors, width, sparse=sparse)
                solutions[k] = before = replace(before, support_vectors=vectors)
            chosen = np.flatnonzero((codes == negative) | (codes == positive))
            if len(chosen) > 0:
                labels = np.where(codes[chosen] == positive, 1, -1).astype(np.int8)
                new = take_rows(rows, chosen), labels, self.n_rows + chosen
                limit = session.deadline(self.options).share(len(pairs) - k)
                limited = replace(self, options=replace(self.options, max_time=limit))
                own = Session(session.callbacks, interrupt=session.interrupt)
                solutions[k], shares[k] = limited._step(before, shares[k], *new, own)
        n_rows = self.n_rows + len(rows)
        if min(shares) < 1 == min(self.shares, default=1):
            logger.warning(
                "after %d rows there are more support vectors than a stream keeps: it learns from "
                "a random share of past and later rows; fit with landmarks would learn from all",
                n_rows,
            )
        found: dict[str, Any] = {"solutions": tuple(solutions), "shares": tuple(shares)}
        return replace(self, n_rows=n_rows, n_features=width, **found)

    def _step(
        self,
        before: Solution | None,
        share: float,
        rows: Rows,
        labels: Int8Array,
        places: Int64Array,
        session: Session,
    ) -> tuple[Solution, float]:
        """Solution of the vertices so far and new rows, and the share of rows that it learned."""
        alpha = np.zeros(len(rows))
        if before is not None:
            rows = concat_rows([before.support_vectors, rows])
            labels = np.concatenate([before.labels, labels])
            places = np.concatenate([before.rows, places])
            alpha = np.concatenate([before.alpha, alpha])
        draws, first, groups = _draws(rows, labels)
        weights = np.bincount(groups, alpha).astype(np.float64)
        while True:
            learned = np.flatnonzero(draws <= share)
            chosen = first[learned]
            given = take_rows(rows, chosen), labels[chosen], weights[learned]
            solution = self._solve(*given, session)
            support = learned[solution.rows]
            if solution.status is not Status.SUPPORT_LIMIT and len(support) <= self.keep:
                break
            weights[:] = 0
            weights[support] = solution.alpha
            most = min(self.keep, len(support) * 4 // 5)
            share = float(np.sort(draws[support])[most - 1])
        # The gap is known only if no row was left out.
        gap = solution.certified_gap if len(learned) == len(first) else None
        status = Status.STREAMED if solution.status.reached else Status.UNSETTLED
        solution = replace(solution, status=status, sampled_gap=gap, **_NO_CERTIFICATE)
        return replace(solution, rows=places[first[support]]), share

    def _solve(
        self,
        rows: Rows,
        labels: Int8Array,
        alpha: Float64Array,
        session: Session | None = None,
    ) -> Solution:
        """Solution of some rows, beginning with the weights `alpha` unless all are 0."""
        problem = BinaryProblem(rows_source(rows, "the chunk"), labels, self.kernel, partial=True)
        names = "C", "tol", "stopping", "threads", "max_time", "memory_limit"
        how: dict[str, Any] = {name: getattr(self.options, name) for name in names}
        plan = plan_exact(problem, TrainOptions(**how))
        room = min(plan.memory.max_vertices, self.keep + max(512, self.keep // 4))
        plan = replace(plan, memory=replace(plan.memory, max_vertices=room))
        support = np.flatnonzero(alpha)
        warm = Warm(support, alpha[support]) if len(support) > 0 else None
        return _run(lambda own: solve_problem(problem, plan, own, warm), session or Session())

    @cached_property
    def pairs(self) -> list[PairSolution]:
        """Solution of each pair. If no row of either class came yet, it is a stand-in.

        A stand-in votes for its first class. It has the weight 1 on a support vector of another
        pair. If kernel values exceed -1, stand-ins never decide: a class with rows wins all its
        pairs with classes without rows.
        """
        known = next(one for one in self.solutions if one is not None)
        stand_in = known
        if None in self.solutions:
            row = take_rows(known.support_vectors, np.arange(1))
            stand_in = replace(
                self._solve(row, np.array([-1], np.int8), np.zeros(1)),
                rows=known.rows[:1],
                status=Status.STREAMED,
                sampled_gap=None,
                **_NO_CERTIFICATE,
            )
        return [
            PairSolution(*pair, solution or stand_in, solution is None)
            for pair, solution in zip(class_pairs(self.n_classes), self.solutions, strict=True)
        ]

    def support_codes(self) -> Int64Array:
        """Class of each support vector."""
        seen = [pair for pair in self.pairs if not pair.stands_in]
        codes = [np.where(pair.solution.labels > 0, pair.positive, pair.negative) for pair in seen]
        rows = np.concatenate([pair.solution.rows for pair in seen])
        return np.concatenate(codes)[np.unique(rows, return_index=True)[1]]

    def model(self, classes: npt.NDArray[Any], like: RowSource | Model | None) -> Model:
        """The model so far."""
        pairs = self.pairs
        vectors = concat_rows([pair.solution.support_vectors for pair in pairs])
        if len(pairs) > 1:
            rows = np.concatenate([pair.solution.rows for pair in pairs])
            vectors = take_rows(vectors, np.unique(rows, return_index=True)[1])
        about: dict[str, Any] = {"kernel": self.kernel, "C": self.options.C, "n_rows": self.n_rows}
        return Model.of(pairs, like, classes=classes, vectors=vectors, **about)


@dataclass(frozen=True)
class SpanStream(Stream):
    """Weights of landmarks, of which there are as many as `options` ask for, or as before."""

    def _with_chunk(self, rows: Rows, codes: Int64Array, session: Session) -> Stream:
        rows, width, sparse = self._prepared(rows)
        n_rows = self.n_rows + len(rows)
        places = self.n_rows + np.arange(len(rows))
        classes = np.arange(self.n_classes)
        before = self.landmarks
        if before is None:
            n_landmarks = self.options.landmarks
            source = rows_source(rows, "the chunk")
            problem = ClassificationProblem(source, codes, self.kernel, None, classes)
            start = None
        else:
            assert before.landmarks is not None
            past = _in_form(before.landmarks, width, sparse=sparse)
            places = np.concatenate([before.rows, places])
            source = rows_source(concat_rows([past, rows]), "the chunk")
            values, known = self._decide(source)
            codes = np.concatenate([known[: len(past)], codes])
            penalties = np.full(len(codes), self.options.C)
            penalties[: len(past)] *= self.n_rows / (2 * len(past))
            problem = ClassificationProblem(source, codes, self.kernel, penalties, classes)
            start = self._start(before, problem, values)
            n_landmarks = len(start.rows)
        options = replace(self.options, landmarks=None, certify=True)
        plan = plan_span(problem, options, session, n_landmarks, "")
        found = _run(lambda own: train_span(problem, plan, own, start)[1], session)
        assert found.sampled_gap is not None
        near = (found.sampled_gap <= relative_target(options.tol)).all()
        status = Status.STREAMED if found.status.reached and near else Status.UNSETTLED
        found = replace(found, status=status, rows=places[found.rows], **_NO_CERTIFICATE)
        return replace(self, n_rows=n_rows, n_features=width, landmarks=found)

    def _decide(self, source: RowSource) -> tuple[Float64Array, Int64Array]:
        """Decision values of some rows, (n_rows, n_classifiers), and their predicted classes."""
        model = self.model(np.arange(self.n_classes), None)
        values = model.decision_function(source, threads=self.options.threads)
        return values.reshape(source.n_rows, -1), model.class_places(values)

    def _start(
        self, before: LandmarkSolution, problem: ClassificationProblem, values: Float64Array
    ) -> LandmarkStart:
        """The weights so far, and 0 for further landmarks, drawn in proportion to their loss.

        `values` are the decision values of the landmarks so far and of the new rows.
        """
        from ooc_fw.landmarks.readings import SpanProblem  # imports SciPy, which takes 0.1 s
        from ooc_fw.landmarks.span import draw_by_loss

        n_past = len(before.rows)
        rows = np.arange(n_past)
        more = (self.options.landmarks or 0) - n_past
        if more > 0:
            losses = SpanProblem.of(problem, self.options.C).losses(values.astype(np.float32))
            rng = np.random.default_rng([self.options.seed, self.n_rows])
            taken = np.arange(len(losses)) < n_past
            rows = np.concatenate([rows, draw_by_loss(losses, taken, more, rng)])
        beta = np.zeros((len(before.beta), len(rows)))
        beta[:, :n_past] = before.beta
        return LandmarkStart(rows, beta, whole=True, n_past=n_past)

    def support_codes(self) -> Int64Array:
        """The class that the model predicts for each landmark."""
        assert self.landmarks is not None
        assert self.landmarks.landmarks is not None
        return self._decide(rows_source(self.landmarks.landmarks, "the landmarks"))[1]

    def model(self, classes: npt.NDArray[Any], like: RowSource | Model | None) -> Model:
        """The model so far."""
        assert self.landmarks is not None
        about: dict[str, Any] = {"kernel": self.kernel, "C": self.options.C, "n_rows": self.n_rows}
        return Model.of(self.landmarks, like, classes=classes, **about)


def _run(solve: Callable[[Session], Found], session: Session) -> Found:
    """The solution of a run; KeyboardInterrupt if a signal or a callback ended it."""
    interrupt = DeferredInterrupt()  # catches a signal after the last check of the run, too
    with interrupt:
        if session.interrupt is not None and session.interrupt.noted is not None:
            raise KeyboardInterrupt(session.interrupt.noted)
        found = solve(replace(session, interrupt=interrupt))
    if interrupt.noted is not None or found.status.was_asked_for:
        raise KeyboardInterrupt(interrupt.noted)
    return found


def _draws(rows: Rows, labels: Int8Array) -> tuple[Float64Array, Int64Array, Int64Array]:
    """Group equal rows of one label; draw a random number in [0, 1] for each group.

    Returns these numbers, the first row of each group, and the group of each row. Rows with equal
    64-bit hashes count as equal; two different rows with one hash are unlikely below 10^9 rows.
    """
    sparse = rows if isinstance(rows, CSRRows) else CSRRows.from_dense(rows)
    hashes = row_hashes(sparse)  # always of the sparse form, so that dense rows get the same ones
    keys = np.column_stack([hashes, labels == 1])
    _, first, groups = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return hashes[first] / 2.0**64, first, groups.reshape(-1)


def _in_form(rows: Rows, n_features: int, *, sparse: bool) -> Rows:
    """The rows with `n_features` columns, of which the new ones are zeros, dense or sparse."""
    if rows.shape[1] == n_features and isinstance(rows, CSRRows) == sparse:
        return rows
    rows = rows if isinstance(rows, CSRRows) else CSRRows.from_dense(rows)
    wide = replace(rows, n_features=n_features)
    return wide if sparse else wide.toarray()


def solutions_of(model: Model) -> list[Solution | None]:
    """Solution of each classifier of an exact model, with its support vectors and without costs.

    None for a stand-in of two classes without rows, which has one support vector and no gap.
    """
    names = "alpha", "labels", "rho", "certified_gap", "sampled_gap", "primal", "dual"
    about: dict[str, Any] = {"method": TrainOptions.method, "lmo": "", "choice": "", "steps": {}}
    about |= vars(Work.of(SolverState(), 1, 1)) | {"pair_gap": None}
    about["status"] = Status(model.status)
    solutions: list[Solution | None] = []
    for one in model.classifiers:
        given = about | {name: getattr(one, name) for name in names}
        given |= {"rows": model.rows[one.sv], "objective": one.rho / 2}
        given["penalties"] = None if model.penalties is None else model.penalties[one.sv]
        given["support_vectors"] = take_rows(model.support_vectors, one.sv)
        stands_in = len(one.sv) == 1 and one.certified_gap is None and one.sampled_gap is None
        solutions.append(None if stands_in else Solution(**given))
    return solutions


def _span_solution(model: Model) -> LandmarkSolution:
    """The solution of a landmark model, without costs."""
    return LandmarkSolution(
        status=Status(model.status),
        rows=model.rows,
        landmarks=model.support_vectors,
        beta=np.array([one.beta for one in model.classifiers]),
        jitter=model.jitter or 0.0,
        primal=None,
        dual=None,
        certified_gap=None,
        sampled_gap=None,
        **vars(Work.of(SolverState(), 1, 1)),
    )


def check_unweighted(source: RowSource) -> None:
    """Raise InputError for rows with weights, which streams do not take."""
    if "weight" in source.beside:
        raise InputError(
            f"{source.name} has weights of rows, which a stream does not take; train on the whole "
            f"file, or convert it without --weight"
        )
