"""What the two passes compute from blocks of rows: logarithms, counts of labels."""

from __future__ import annotations

import threading

import numpy as np

from ooc_fw._core.rows import look_up, remember
from ooc_fw.data.rows import Float64Array
from ooc_fw.data.scaling import Scaling

TABLE_BITS = 13
"""The table has 2**13 places of 16 bytes, 128 KiB: it stays in the processor's cache."""

FEW_LABELS = 8
"""Up to this many different labels, counting one after the other is faster than sorting."""


class LogTable(threading.local):
    """Logarithms by lookup; each thread has a table of its own.

    Columns of counts, rates and sizes hold few different numbers, and a lookup takes a tenth of the
    time of a logarithm.
    """

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        # Bits of values and of their logarithms; log1p(0) is 0.
        self._values = np.zeros(1 << TABLE_BITS, dtype=np.uint64)
        self._logs = np.zeros(1 << TABLE_BITS, dtype=np.uint64)

    def apply(self, values: Float64Array) -> None:
        """Replace values, all above -1, by their logarithms, bit for bit `Scaling.log_values`."""
        missing = np.empty(len(values), dtype=np.int64)
        bits = values.view(np.uint64)
        places = missing[: look_up(bits, self._values, self._logs, missing)]
        if len(places) > 0:
            taken = values[places]
            logs = self._scaling.log_values(taken)
            values[places] = logs
            remember(taken.view(np.uint64), logs.view(np.uint64), self._values, self._logs)


def count_labels(labels: Float64Array) -> dict[float, int]:
    """Rows of each label."""
    counts: dict[float, int] = {}
    left = labels
    while len(left) > 0:
        if len(counts) == FEW_LABELS:
            names, numbers = np.unique(left, return_counts=True)
            return counts | dict(zip(names.tolist(), numbers.tolist(), strict=True))
        others = left[left != left[0]]
        counts[float(left[0])] = len(left) - len(others)
        left = others
    return counts
