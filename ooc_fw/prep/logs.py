"""Logarithms of values that repeat: looked up where they were taken before.

Columns of counts, rates and sizes hold few different numbers, and a lookup costs a tenth of a
logarithm. Owns the table; the logarithm itself is `ooc_fw.scaling`'s, so that the bits are the same
as everywhere.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.libsvm import look_up, remember
from ooc_fw.rows import Float32Array
from ooc_fw.scaling import Scaling

TABLE_BITS = 14
"""The table has 2**14 places, 128 KiB: it stays in the processor's cache."""


class LogTable:
    """A table of logarithms taken, for any number of threads at once.

    A place holds a value and its logarithm in one 64-bit number, which is read and written as a
    whole: threads may overwrite each other's places, but never mix them up.

    Parameters
    ----------
    scaling : Scaling
        Takes the logarithms.
    """

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._table = np.zeros(1 << TABLE_BITS, dtype=np.uint64)  # log1p(0) is 0

    def apply(self, values: Float32Array) -> None:
        """Replace values, all above -1, by their logarithms, to the bits of `Scaling.log_values`.

        Parameters
        ----------
        values : ndarray of float32, shape (n,)
            Modified in place.
        """
        missing = np.empty(len(values), dtype=np.int64)
        places = missing[: look_up(values.view(np.uint32), self._table, missing)]
        if len(places) > 0:
            taken = values[places]
            logs = self._scaling.log_values(taken)
            values[places] = logs
            remember(taken.view(np.uint32), logs.view(np.uint32), self._table)
