"""The rows that a run with landmarks holds in memory: a sample, and a larger pool around it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_fw.data.rows import Int64Array, Rows, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.solver.setup import make_sampler
from ooc_fw.system.memory import sample_rows

# Rows of the sample for each of N landmarks: at most and at least. In between there are so many
# that their N^2 products each are this many times the kernel values of a pass over all rows.
_MOST_SAMPLE, _LEAST_SAMPLE = 20, 6
_SAMPLE_WORK = 800.0
# Rows of the pool: at most a third of all rows, at least one and a half samples.
_POOL_PARTS, _LEAST_POOL = 3, 1.5


@dataclass(frozen=True)
class Sample:
    """Random rows that preconditioners are computed from, which landmarks are chosen of.

    Weights for the sample, and then for the pool, are the start of those for all rows. The pool is
    the sample where it would be hardly larger.
    """

    ids: Int64Array  # row numbers, increasing
    rows: Rows
    pool_ids: Int64Array  # those of the pool
    pool: Rows
    in_pool: Int64Array  # places of the sample in the pool

    @classmethod
    def draw(
        cls,
        source: RowSource,
        codes: Int64Array,
        n_landmarks: int,
        rng: np.random.Generator,
        wanted: Int64Array | None = None,
    ) -> Sample:
        """Draw a sample for so many landmarks, which contains the rows `wanted`.

        `codes` are the classes of the rows.
        """
        n_rows, n_wanted = source.n_rows, 0 if wanted is None else len(wanted)
        size = sample_rows(n_landmarks, source.decoded_bytes / n_rows) - n_wanted
        work = _SAMPLE_WORK * n_rows / n_landmarks**2
        n_sample = int(np.clip(work, _LEAST_SAMPLE, _MOST_SAMPLE) * n_landmarks)
        n_sample = min(size, n_rows, n_sample)
        n_pool = min(size, n_rows // _POOL_PARTS)
        n_pool = n_pool if n_pool >= _LEAST_POOL * n_sample else n_sample
        pool_ids = ids = make_sampler(source, codes).sample(n_pool, rng)
        if n_sample < n_pool:
            ids = pool_ids[np.sort(rng.choice(n_pool, n_sample, replace=False))]
        if wanted is not None:
            ids, pool_ids = np.union1d(ids, wanted), np.union1d(pool_ids, wanted)
        in_pool = np.searchsorted(pool_ids, ids)
        rows = pool = source.take(pool_ids)
        if len(ids) < len(pool_ids):
            rows = take_rows(pool, in_pool)
        return cls(ids, rows, pool_ids, pool, in_pool)
