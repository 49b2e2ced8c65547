"""How good predictions are, from rows that come block by block."""

from __future__ import annotations

import math
from array import array
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array, Int64Array

# Metrics that `ooc_fw.tune` knows, and what 1 minus each of them is called.
METRICS = {
    "accuracy": "error",
    "balanced_accuracy": "balanced error",
    "auc": "1 - AUC",
    "r2": "1 - R2",
}

_PART = 1 << 18  # values that are looked up at once
_SAMPLE_ROWS = 1000  # of a regression, for a figure
_N_BINS = 10  # of probabilities, in a diagram of their reliability


class Ranking:
    """ROC AUC and average precision in 8 bytes a row; those of scikit-learn take 80."""

    def __init__(self) -> None:
        self._values = array("d"), array("d")  # of negative and of positive rows

    def add(self, values: Float64Array, positive: npt.NDArray[np.bool_]) -> None:
        """Add rows: their decision values, and which of them are positive."""
        for values_of_kind, chosen in zip(self._values, (~positive, positive), strict=True):
            values_of_kind.frombytes(values[chosen].astype(np.float64).tobytes())

    def _sorted(self) -> tuple[Float64Array, Float64Array]:
        negative, positive = (np.frombuffer(kind, dtype=np.float64) for kind in self._values)
        negative.sort()  # in place
        positive.sort()
        return negative, positive

    def measures(self) -> dict[str, float | None]:
        """``roc_auc``, in which ties count half, and ``average_precision``; None for 0 / 0."""
        negative, positive = self._sorted()
        n, m = len(negative), len(positive)
        doubled, precision = 0, 0.0
        for start in range(0, m, _PART):
            part = positive[start : start + _PART]
            below = np.searchsorted(negative, part, "left")
            doubled += int((below + np.searchsorted(negative, part, "right")).sum())
            true = m - np.searchsorted(positive, part, "left")
            precision += float((true / (true + n - below)).sum())
        return {
            "roc_auc": doubled / (2 * m * n) if m and n else None,
            "average_precision": precision / m if m else None,
        }

    def points(self, most: int, side: Literal["left", "right"] = "left") -> dict[str, Float64Array]:
        """Rates and precision for at most so many thresholds of five digits; needs both kinds.

        They lie below quantiles of the positive rows and rise; a row at a threshold counts as
        positive for `side` "left".
        """
        negative, positive = self._sorted()
        n, m = len(negative), len(positive)
        found = positive[np.linspace(0, m - 1, min(m, most)).astype(int)]
        digits = 4 - math.floor(math.log10(np.abs(found).max() or 1.0))
        unit = 10.0**-digits
        values = np.unique(np.round((np.floor(found / unit) - 0.5) * unit, digits + 1))
        true = m - np.searchsorted(positive, values, side)
        false = n - np.searchsorted(negative, values, side)
        ratios = {"recall": true / m, "precision": true / (true + false)}
        return {"value": values, **ratios, "false_positive_rate": false / n}


class Reliability:
    """Brier score and reliability of probabilities.

    For two classes, with the probability p of the positive one, the Brier score is the mean of
    (p - 1)^2 over positive and p^2 over negative rows, and bins are of p. For more it is the mean
    of the sum over classes of (p_k - [row is of class k])^2, at most 2, and bins are of the largest
    probability of each row, compared with how often that class is right.
    """

    def __init__(self, n_classes: int) -> None:
        self._n_classes, self._sum = n_classes, 0.0
        self._bins = np.zeros((3, _N_BINS))  # rows, sum of probabilities, rows that were right

    def add(self, probabilities: Float64Array, codes: Int64Array) -> None:
        """Add rows: probabilities of all classes, and the place of the class of each or -1."""
        errors = probabilities - (codes[:, None] == np.arange(self._n_classes))
        if self._n_classes == 2:
            p, right, errors = probabilities[:, 1], codes == 1, errors[:, 1:]
        else:
            p, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == codes
        self._sum += float((errors**2).sum())
        bins = np.minimum((p * _N_BINS).astype(np.int64), _N_BINS - 1)
        self._bins += [np.bincount(bins, weights, _N_BINS) for weights in (None, p, right)]

    def measures(self) -> dict[str, Any]:
        """``brier_score``, and for each bin of ``reliability`` rows, mean probability and share."""
        reliability = []
        for k, (count, expected, right) in enumerate(self._bins.T.tolist()):
            of_bin: dict[str, Any] = {
                "from": k / _N_BINS,
                "to": (k + 1) / _N_BINS,
                "rows": int(count),
            }
            of_bin["mean_probability"] = expected / count if count else None
            of_bin["share"] = right / count if count else None
            reliability.append(of_bin)
        return {"brier_score": self._sum / self._bins[0].sum(), "reliability": reliability}


class Residuals:
    """R^2, root mean squared and mean absolute error of predictions."""

    def __init__(self, near_mean: float = 0.0) -> None:
        self.n_rows, self._shift, self._sums = 0, near_mean, np.zeros(4)
        self._rng, self._sample = np.random.default_rng(0), np.empty((0, 3))

    def add(self, targets: Float64Array, predictions: Float64Array) -> None:
        """Add rows."""
        moved, residuals = targets - self._shift, targets - predictions
        sums = moved.sum(), np.square(moved).sum(), np.square(residuals).sum()
        self._sums += [*sums, np.abs(residuals).sum()]
        self.n_rows += len(targets)
        drawn = np.stack([self._rng.random(len(targets)), targets, predictions], axis=1)
        both = np.vstack([self._sample, drawn])
        self._sample = both[np.argsort(both[:, 0])[:_SAMPLE_ROWS]]

    def measures(self) -> dict[str, Any]:
        """``r2``, None if all targets are equal, ``rmse``, ``mae``, and a ``sample`` of rows."""
        total, square, errors, absolute = self._sums
        spread = square - total**2 / self.n_rows
        return {
            "r2": float(1 - errors / spread) if spread > 0 else None,
            "rmse": float(np.sqrt(errors / self.n_rows)),
            "mae": float(absolute / self.n_rows),
            "sample": self._sample[:, 1:].tolist(),
        }
