"""Products of dense rows by BLAS, with the same bits whichever block computes them.

BLAS runs other code, which rounds in another order, for the borders of a block and for small
blocks. Blocks that are not small and whose sides are multiples of `STEP` have no borders in the
common libraries, hence rows and vertices are padded to such shapes. One trial tells whether that is
enough with the library at hand; if not, products are computed in float64, where it is, and rounded.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

AnyFloat = npt.NDArray[Any]

STEP = 16
"""Sides of a padded block are multiples of this."""

_SMALL = 1_000_000  # multiplications up to which libraries run other code
_LEAST_FEATURES = 4  # columns that rows are padded to, so that few rows make a block not small
_TRIAL_SIDE = 512
_TRIAL_SHAPES = ((512, 512), (512, 16), (480, 208), (304, 496), (48, 512), (16, 512))
_TRIAL_FEATURES = 512  # columns in a trial, which limit its time; up to 63 more


class DenseProduct:
    """Dot products of dense rows with a tile of vertices.

    Parameters
    ----------
    dtype : type
        float32 or float64, of the products and of the rows.
    n_features : int
        Columns of rows and vertices.
    """

    def __init__(self, dtype: type, n_features: int) -> None:
        self._n_features = max(n_features, _LEAST_FEATURES)
        uniform = is_uniform(dtype, self._n_features)
        self._dtype = dtype if uniform else np.float64
        self._rounds = self._dtype is not dtype
        self._vertices: AnyFloat = np.empty((0, self._n_features), dtype=self._dtype)
        self._rest: AnyFloat = self._vertices

    def load(self, vertices: AnyFloat) -> None:
        """Make `vertices`, shape (m, n_features), the tile of vertices."""
        self._vertices = self._padded(vertices, _round_up(len(vertices)))

    def unload(self) -> None:
        """Forget the tile of vertices."""
        self._vertices = self._vertices[:0]

    def tile_shape(self, n: int, m: int) -> tuple[int, int]:
        """Shape of the tile that `into` needs for `n` rows and `m` vertices."""
        whole, rest = self._parts(n, _round_up(m))
        return whole + rest, _round_up(m)

    def into(self, rows: AnyFloat, tile: AnyFloat) -> None:
        """Write products into the leading corner of `tile`, which has `tile_shape`."""
        whole, rest = self._parts(len(rows), len(self._vertices))
        # Values of the padding are arbitrary and may overflow.
        with np.errstate(invalid="ignore", over="ignore"):
            if whole > 0:
                self._multiply(self._padded(rows[:whole], whole), tile[:whole])
            if rest > 0:
                if len(self._rest) < rest:
                    self._rest = np.zeros((rest, self._n_features), dtype=self._dtype)
                part = self._rest[:rest]
                part[: len(rows) - whole, : rows.shape[1]] = rows[whole:]
                self._multiply(part, tile[whole:])

    def _multiply(self, rows: AnyFloat, out: AnyFloat) -> None:
        if self._rounds:
            out[...] = rows @ self._vertices.T
        else:
            np.matmul(rows, self._vertices.T, out=out)

    def _parts(self, n: int, width: int) -> tuple[int, int]:
        """How many of `n` rows are multiplied as they are, and the length the rest is padded to."""
        least = _round_up(_SMALL // (width * self._n_features) + 1)
        whole = n - n % STEP
        if whole < least:
            return 0, max(least, _round_up(n))
        return whole, max(least, STEP) if whole < n else 0

    def _padded(self, rows: AnyFloat, length: int) -> AnyFloat:
        """Rows in the precision of the product, padded by zeros; themselves if they fit."""
        if rows.shape == (length, self._n_features):
            return rows.astype(self._dtype, copy=False)
        padded: AnyFloat = np.zeros((length, self._n_features), dtype=self._dtype)
        padded[: len(rows), : rows.shape[1]] = rows
        return padded


def _round_up(n: int) -> int:
    return -(-n // STEP) * STEP


@functools.cache
def is_uniform(dtype: type, n_features: int) -> bool:
    """Whether BLAS gives a product the same bits in blocks of all padded shapes, on either side.

    The trial on random rows takes milliseconds.
    """
    if n_features > _TRIAL_FEATURES:
        n_features = _TRIAL_FEATURES + n_features % 64
    rng = np.random.default_rng(0)
    both: AnyFloat = rng.standard_normal((2 * _TRIAL_SIDE, n_features)).astype(dtype)
    rows, vertices = both[:_TRIAL_SIDE], both[_TRIAL_SIDE:]
    expected = rows @ vertices.T
    for n, m in _TRIAL_SHAPES:
        if n * m * n_features <= _SMALL:
            continue
        # Blocks from the far end have their borders elsewhere than the whole has.
        part = expected[-n:, -m:]
        if not np.array_equal(rows[-n:] @ vertices[-m:].T, part):
            return False
        if not np.array_equal(vertices[-m:] @ rows[-n:].T, part.T):
            return False
    return True
