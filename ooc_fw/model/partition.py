"""Partition of the rows of a source by class, in one reading: in RAM if they fit, else in files.

Each pair of classes then becomes a binary problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ooc_fw.data.opening import open_dataset
from ooc_fw.data.rows import Int64Array, narrow_type, take_rows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource, iter_blocks, rows_source
from ooc_fw.data.views import PairSource
from ooc_fw.problem import BinaryProblem, ClassificationProblem
from ooc_fw.solver.plan import Plan
from ooc_fw.system.files import scratch_directory
from ooc_fw.system.memory import least_bytes

_RAM_BYTES = 256 << 20  # rows that take up to so many bytes are partitioned in RAM, others on disk


@dataclass(frozen=True)
class Partition:
    """The rows of each class, in the order of the codes of classes."""

    whole: ClassificationProblem
    rows: Sequence[Int64Array]  # for each class: numbers of its rows in the whole data set
    sources: Sequence[RowSource]  # for each class: its rows

    @property
    def held_bytes(self) -> int:
        """Bytes of all rows in RAM, of the whole data set and of the classes."""
        held = [source for source in (self.whole.source, *self.sources) if source.in_memory]
        return sum(source.decoded_bytes for source in held)

    def pair(self, negative: int, positive: int) -> tuple[BinaryProblem, Int64Array]:
        """The problem of two classes, and the numbers of its rows in the whole data set."""
        whole = self.whole.source
        both = self.sources[negative], self.sources[positive]
        source = PairSource(*both, name=whole.name, shuffled=whole.shuffled)
        source.scaling = whole.scaling
        is_first = source.is_first(np.arange(source.n_rows))
        rows = np.empty(source.n_rows, dtype=np.int64)
        rows[is_first] = self.rows[negative]
        rows[~is_first] = self.rows[positive]
        labels = np.where(is_first, np.int8(-1), np.int8(1))
        penalties = None if self.whole.penalties is None else self.whole.penalties[rows]
        return BinaryProblem(source, labels, self.whole.kernel, penalties), rows


@contextmanager
def partition_classes(
    problem: ClassificationProblem, plan: Plan | None = None
) -> Iterator[Partition]:
    """Partition the rows of a problem by class; every class must have rows.

    Rows that would take much of the memory limit of the `plan` go to disk.
    """
    source = problem.source
    order = np.argsort(problem.codes, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(problem.codes))[:-1])
    most: float = _RAM_BYTES
    if plan is not None and plan.options.memory_limit is not None:
        limit = plan.options.memory_limit
        spare = limit - least_bytes(plan.memory.work)
        most = min(most, limit / 8, spare / 2)  # rows in RAM are held twice for a moment
    with ExitStack() as opened:
        if source.in_memory or source.decoded_bytes <= most:
            whole = source
            if not source.in_memory:
                whole = rows_source(source.read(0, source.n_rows), source.name)
            sources: list[RowSource]
            sources = [rows_source(whole.take(ids), source.name) for ids in rows]
            del whole
        else:
            folder = opened.enter_context(scratch_directory())
            _write_classes(problem, rows, folder)
            paths = [folder / f"{code}.h5" for code in range(len(rows))]
            sources = [opened.enter_context(open_dataset(path)) for path in paths]
        source.check_unchanged()
        yield Partition(problem, rows, sources)


def _write_classes(
    problem: ClassificationProblem, rows: Sequence[Int64Array], folder: Path
) -> None:
    """Write the rows of each class to a file of its own, in one reading."""
    from ooc_fw.conversion.spool import RowBlock
    from ooc_fw.conversion.writer import DatasetWriter, Layout  # takes 6 ms, and is rarely needed

    source = problem.source
    dtype = narrow_type(source.dtype)
    n_stored = source.decoded_bytes // 8 if source.sparse else 0
    with ExitStack() as files:
        writers = []
        for code, ids in enumerate(rows):
            shape = len(ids), source.n_features
            layout = Layout(*shape, n_stored, source.sparse, source.name, Scaling(), dtype)
            writer = DatasetWriter(folder / f"{code}.h5", layout)
            writers.append(files.enter_context(writer))
        for start, block in iter_blocks(source, 0, source.n_rows):
            here = problem.codes[start : start + len(block)]
            for code in np.unique(here).tolist():
                places = np.flatnonzero(here == code)
                labels = np.full(len(places), float(code))
                beside = {"y": labels, "row": start + places}
                writers[code].append(RowBlock(take_rows(block, places), beside))
        for writer in writers:
            writer.finish()
