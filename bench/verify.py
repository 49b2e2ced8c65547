"""Gaps by brute force in float64: ``python -m bench.verify MODEL TRAIN.h5``.

Shares no code with ooc_fw, so that a mistake there cannot hide here. Two problems are covered, both
with the RBF kernel and on the scale where the margin is 1:

- ours, the L2-SVM: relative duality gap 1 - min g / rho and pair gap (max g over the support
  - min g) / rho;
- that of LIBSVM and its kin, the L1-SVM: the violation max over I_up of -y G minus min over I_low
  of -y G, which their `tol` bounds. An L1-SVM has no relative duality gap in our sense.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from bench.storage import read_labelled

BLOCK_VALUES = 1 << 24  # kernel values held at once
AT_BOUND = 1e-6  # relative; peers keep their weights in float32

Vector = npt.NDArray[np.float64]


class Gaps(NamedTuple):
    """Both gaps of an L2-SVM, relative to rho."""

    relative: float
    pair: float


def rbf_sums(X: Any, Z: Any, weights: Vector, gamma: float) -> Vector:
    """sum_j weights_j exp(-gamma |x_i - z_j|^2) for every row x_i of X and z_j of Z, in float64."""
    Z = _dense(Z)
    z_norms = np.einsum("ij,ij->i", Z, Z)
    step = max(1, BLOCK_VALUES // max(1, len(Z)))
    sums = np.empty(X.shape[0])
    for start in range(0, X.shape[0], step):
        block = _dense(X[start : start + step])
        squares = np.einsum("ij,ij->i", block, block)[:, None] + z_norms - 2 * (block @ Z.T)
        sums[start : start + step] = np.exp(-gamma * np.maximum(squares, 0)) @ weights
    return sums


def _dense(rows: Any) -> npt.NDArray[np.float64]:
    return np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, dtype=np.float64)


def squared_hinge_gaps(
    X: Any,
    y: Vector,
    support: npt.NDArray[np.int64],
    alpha: Vector,
    C: float | Vector,
    gamma: float,
) -> Gaps:
    """Gaps of weights `alpha` on the rows `support`, of one penalty or one each; y is -1 or +1.

    The gradient is g_i = y_i sum_j alpha_j y_j (k(x_i, x_j) + 1) + alpha_i / C.
    """
    beta = alpha * y[support]
    gradient = y * (rbf_sums(X, X[support], beta, gamma) + beta.sum())
    gradient[support] += alpha / C
    rho = alpha @ gradient[support]
    least = gradient.min()
    on_support = gradient[support][alpha > 0]
    return Gaps(1 - least / rho, (on_support.max() - least) / rho)


def hinge_pair_gap(
    X: Any, y: Vector, support: npt.NDArray[np.int64], dual_coef: Vector, C: float, gamma: float
) -> float:
    """LIBSVM's stopping violation of an L1-SVM; `dual_coef` is label times weight, y is -1 or +1.

    Chang, Lin (2011), LIBSVM: a library for support vector machines, section 4.1.2.
    """
    minus_y_gradient = y - rbf_sums(X, X[support], dual_coef, gamma)
    weights = np.zeros(len(y))
    weights[support] = np.abs(dual_coef)
    below, above = weights < C * (1 - AT_BOUND), weights > C * AT_BOUND
    up = np.where(y > 0, below, above)
    low = np.where(y > 0, above, below)
    return float(minus_y_gradient[up].max() - minus_y_gradient[low].min())


def model_gaps(model: Path, train: Path) -> tuple[Gaps, float | None]:
    """Gaps of a model file over its training file, and the certified gap that it states.

    The largest of all classifiers, each over the rows of its two classes. A ValueError says that
    the kernel is not RBF, or that the support vectors are not rows of the file.
    """
    X, labels = read_labelled(train, np.float64)
    found, stated = [], []
    with h5py.File(model) as file:
        if file.attrs["kernel"] not in (b"rbf", "rbf"):  # older files hold it as str
            raise ValueError(f"{model} has the kernel {file.attrs['kernel']}, not rbf")
        gamma, classes = float(file.attrs["gamma"]), file["classes"][:].astype(np.float64)
        machines = {name: own[:] for name, own in file["machines"].items()}
        for k, (start, stop) in enumerate(itertools.pairwise(machines["indptr"].tolist())):
            pair = classes[[machines["negative"][k], machines["positive"][k]]]
            sv, beta = machines["sv"][start:stop], machines["beta"][start:stop]
            penalties = file["penalties"][:][sv] if "penalties" in file else file.attrs["C"]
            support = file["rows"][:][sv]
            rows = np.flatnonzero(np.isin(labels, pair))
            y = np.where(labels[rows] == pair[1], 1.0, -1.0)
            places = np.searchsorted(rows, support)
            if not np.isin(support, rows).all() or (np.sign(beta) != y[places]).any():
                raise ValueError(f"the labels in {model} are not those of its rows in {train}")
            found.append(squared_hinge_gaps(X[rows], y, places, np.abs(beta), penalties, gamma))
            stated.append(float(machines["certified_gap"][k]))
    worst = Gaps(max(gaps.relative for gaps in found), max(gaps.pair for gaps in found))
    return worst, None if np.isnan(stated).any() else max(stated)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the gaps; status 1 when the certificate is off by more than 1 % and 1e-6."""
    parser = argparse.ArgumentParser(description="Check a model's certificate by brute force.")
    parser.add_argument("model", type=Path)
    parser.add_argument("train", type=Path, help="the converted file it was trained on")
    parser.add_argument("--json", action="store_true", help="print the two gaps as JSON")
    args = parser.parse_args(argv)
    gaps, stated = model_gaps(args.model, args.train)
    if args.json:
        print(json.dumps({"verified_gap": gaps.relative, "verified_pair_gap": gaps.pair}))
        return 0
    print(f"relative gap by brute force  {gaps.relative:.9g}")
    print(f"pair gap by brute force      {gaps.pair:.9g}")
    print(f"certified gap in the model   {'none' if stated is None else f'{stated:.9g}'}")
    if stated is None:
        return 0
    return int(abs(stated - gaps.relative) > max(0.01 * gaps.relative, 1e-6))


if __name__ == "__main__":
    sys.exit(main())
