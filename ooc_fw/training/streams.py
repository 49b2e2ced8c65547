"""Streams of rows with two classes or more: a binary classifier for each pair of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows, concat_rows, take_rows
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.kernels.functions import Kernel
from ooc_fw.model.pairs import PairSolution, class_pairs, union_of_rows
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.solver.state import Callback, Solution
from ooc_fw.solver.stream import Chunk, Stream

POOL_BYTES = 64 << 20
"""Decoded rows of a source that make one chunk."""


class PairStreams:
    """A stream for each pair of classes, all of which see each row once.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    kernel, options, max_support
        Those of each `Stream`.
    solutions : sequence of Solution or None, optional
        What each stream begins with, see `solutions_of`.
    n_rows : int
        Rows that these were trained on.

    Attributes
    ----------
    n_rows : int
        Number of rows so far.
    """

    def __init__(
        self,
        n_classes: int,
        kernel: Kernel,
        options: TrainOptions,
        max_support: int,
        solutions: Sequence[Solution | None] | None = None,
        n_rows: int = 0,
    ) -> None:
        self.kernel, self.n_rows = kernel, n_rows
        self._pairs = class_pairs(n_classes)
        self._streams = [
            Stream(kernel, options, max_support, solution=own, n_rows=n_rows)
            for own in solutions or [None] * len(self._pairs)
        ]

    def retune(self, options: TrainOptions, max_support: int) -> None:
        """Change options between two calls of `learn`."""
        for stream in self._streams:
            stream.retune(options, max_support)

    def learn(
        self,
        source: RowSource,
        codes: Int64Array,
        weights: Float64Array | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Learn from all rows of `source`, whose classes are `codes`.

        `weights` are factors of the penalty of each row; rows of weight 0 are left out. After an
        error everything is as it was before.
        """
        before = [stream.__getstate__() for stream in self._streams], self.n_rows
        try:
            for start, rows in iter_blocks(source, 0, source.n_rows, POOL_BYTES):
                part = slice(start, start + len(rows))
                own = None if weights is None else weights[part]
                self._learn(rows, codes[part], own, callbacks)
                self.n_rows += len(rows)
        except BaseException:
            for stream, state in zip(self._streams, before[0], strict=True):
                stream.__dict__.update(state)
            self.n_rows = before[1]
            raise

    def _learn(
        self,
        rows: Rows,
        codes: Int64Array,
        weights: Float64Array | None,
        callbacks: Sequence[Callback],
    ) -> None:
        for (negative, positive), stream in zip(self._pairs, self._streams, strict=True):
            of_pair = (codes == negative) | (codes == positive)
            if weights is not None:
                of_pair &= weights > 0
            where = np.flatnonzero(of_pair)
            if len(where) == 0:
                continue
            labels = np.where(codes[where] == positive, 1, -1).astype(np.int8)
            own = rows if len(where) == len(rows) else take_rows(rows, where)
            factors = None if weights is None else weights[where]
            stream.learn([Chunk(own, labels, factors, self.n_rows + where)], callbacks)

    def solutions(self) -> list[PairSolution]:
        """Solution of each pair; of a pair without any row yet, one that takes its first class.

        That one has the weight 1 on a support vector of another pair. With kernel values above -1
        it never decides: a class of which rows were seen has the votes of all its pairs with
        others.
        """
        known = next(stream.solution for stream in self._streams if stream.solution is not None)
        found = []
        for pair, stream in zip(self._pairs, self._streams, strict=True):
            solution, stands_in = stream.solution, stream.solution is None
            if solution is None:
                other = Stream(self.kernel, stream.options, stream.max_support)
                row = take_rows(known.support_vectors, np.arange(1))
                other.learn([Chunk(row, np.array([-1], dtype=np.int8), places=known.rows[:1])])
                solution = other.solution
            assert solution is not None
            found.append(PairSolution(*pair, solution, stands_in))
        return found


def solutions_of(model: Model, pairs: Sequence[PairSolution]) -> list[Solution | None]:
    """Solutions of an exact model, each with its own support vectors; None for what stands in."""
    return [
        None
        if pair.stands_in
        else replace(pair.solution, support_vectors=take_rows(model.support_vectors, own.sv))
        for pair, own in zip(pairs, model.classifiers, strict=True)
    ]


def support_of_classes(pairs: Sequence[PairSolution], n_classes: int) -> npt.NDArray[np.int32]:
    """Number of rows of each class among the support vectors of all pairs."""
    pairs = [pair for pair in pairs if not pair.stands_in]
    rows = np.concatenate([pair.solution.rows for pair in pairs])
    codes = np.concatenate(
        [np.where(pair.solution.labels > 0, pair.positive, pair.negative) for pair in pairs]
    )
    _, first = np.unique(rows, return_index=True)
    return np.bincount(codes[first], minlength=n_classes).astype(np.int32)


def union_of_vectors(pairs: Sequence[PairSolution]) -> Rows:
    """Support vectors of all pairs, the rows `union_of_rows`."""
    blocks = [pair.solution.support_vectors for pair in pairs]
    if not all(isinstance(block, CSRRows) for block in blocks):
        blocks = [block.toarray() if isinstance(block, CSRRows) else block for block in blocks]
    rows, first = np.unique(
        np.concatenate([pair.solution.rows for pair in pairs]), return_index=True
    )
    return take_rows(concat_rows(blocks), first[np.searchsorted(rows, union_of_rows(pairs))])
