"""Logarithms of values that repeat: looked up where they were taken before.

Columns of counts, rates and sizes hold few different numbers, and a lookup costs a tenth of a
logarithm. Owns the table; the logarithm itself is `ooc_fw.data.scaling`'s, so that the bits are the
same as everywhere.
"""

from __future__ import annotations

import threading

import numpy as np

from ooc_fw._core.libsvm import look_up, remember
from ooc_fw.data.rows import Float64Array
from ooc_fw.data.scaling import Scaling

TABLE_BITS = 13
"""The table has 2**13 places of 16 bytes, 128 KiB: it stays in the processor's cache."""


class LogTable(threading.local):
    """A table of logarithms taken; each thread has one of its own.

    Parameters
    ----------
    scaling : Scaling
        Takes the logarithms.
    """

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        # Bits of values and of their logarithms; log1p(0) is 0.
        self._values = np.zeros(1 << TABLE_BITS, dtype=np.uint64)
        self._logs = np.zeros(1 << TABLE_BITS, dtype=np.uint64)

    def apply(self, values: Float64Array) -> None:
        """Replace values, all above -1, by their logarithms, to the bits of `Scaling.log_values`.

        Parameters
        ----------
        values : ndarray of float64, shape (n,)
            Modified in place.
        """
        missing = np.empty(len(values), dtype=np.int64)
        bits = values.view(np.uint64)
        places = missing[: look_up(bits, self._values, self._logs, missing)]
        if len(places) > 0:
            taken = values[places]
            logs = self._scaling.log_values(taken)
            values[places] = logs
            remember(taken.view(np.uint64), logs.view(np.uint64), self._values, self._logs)
