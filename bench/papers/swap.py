"""Allende, Frandi, Nanculef, Sartori (2014), A novel Frank-Wolfe algorithm: SWAP and SWAP-2o.

The runs are those of `bench.papers.meb`, with SWAP and SWAP-2o as further methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.papers import meb
from bench.papers.entries import Claims, Entry, Panel, Shown, draw
from bench.papers.meb import Values
from bench.papers.runs import Run, Study
from bench.report import table

METHODS = ("cvm", "fw", "mfw", "swap", "swap2")
FRANK_WOLFE = METHODS[1:]
LINEAR_SET, LINEAR_ROWS, LINEAR_TOL = "w7a", 500, 1e-9
LINEAR = {"fw": "FW", "partan": "PARTAN", "mfw": "MFW", "swap": "SWAP", "swap2": "SWAP-2o"}
DROPS = ("mfw", "swap", "swap2")


def _web(own: Values, losses: Values) -> Claims:
    return {
        "every method is faster than CVM on all sets of the collection (12.6 to 106 for FW)":
            min(map(min, own.values())) > 1,
        "MFW is slower than FW on every set": all(own["mfw"] < own["fw"]),
        "SWAP is faster than MFW on every set": all(own["swap"] > own["mfw"]),
        "CVM is the most accurate, in the median, by less than a point":
            all(-0.1 < np.median(loss) < 1.5 for loss in losses.values()),
    }  # fmt: skip


def _adult(own: Values, losses: Values) -> Claims:
    middle = {m: np.median(values) for m, values in own.items()}
    return {
        "SWAP, MFW and SWAP-2o are faster than CVM on all sets (medians 15.5, -, 20.5)":
            min(min(own[m]) for m in DROPS) > 1,
        "the median speed-up of SWAP and SWAP-2o is larger than that of FW (1.45)":
            min(middle["swap"], middle["swap2"]) > middle["fw"],
        "accuracies are within a point of CVM's":
            max(np.abs(loss).max() for loss in losses.values()) < 1,
    }  # fmt: skip


def _medium(own: Values, _: Values) -> Claims:
    values = np.concatenate([*own.values()])
    text = "no method is more than ten times faster or slower than CVM on most of these sets"
    return {text: np.mean((values > 0.1) & (values < 10)) > 0.5}


def _large(own: Values, _: Values) -> Claims:
    return {
        "the methods are faster than CVM most of the time":
            np.mean(np.concatenate([*own.values()]) > 1) > 0.5,
        "SWAP is faster than MFW on most of the large sets":
            np.mean(own["swap"] > own["mfw"]) > 0.5,
    }  # fmt: skip


def _protein(own: Values, _: Values) -> Claims:
    return {
        "every method is faster than CVM (20.8, 123.5, 157.3 and 358 times)":
            min(own.values()) > 1,
        "MFW, SWAP and SWAP-2o are faster than FW": all(own[m] > own["fw"] for m in DROPS),
    }  # fmt: skip


def polynomial(name: str, sets: Sequence[str]) -> Entry:
    """Figures 10 and 11: the polynomial kernel."""

    def show(study: Study, folder: Path) -> Shown:
        text = meb.plot_sets(study, folder, f"swap-{name}", sets, FRANK_WOLFE, kernel="poly")
        worst = meb.kernel_difference(study, sets, FRANK_WOLFE)
        text += f"\n\nLargest difference of accuracy from the RBF kernel: {worst:.2f} points."
        return Shown(text, {"accuracies are comparable to those of RBF (3 points)": worst < 3})

    return Entry(meb.both_kernels(sets, FRANK_WOLFE), show)


# -- the claim of linear convergence -------------------------------------------------------------

LINEAR_RUNS = {
    m: Run(LINEAR_SET, m, tol=LINEAR_TOL, rows=LINEAR_ROWS, path=True, max_iter=100_000)
    for m in LINEAR
}
"""Full oracle, few rows, a tight tolerance."""


def _guaranteed_rate(study: Study) -> float:
    """Least decrease of log (f - f*) by a step that is no drop step, from the constants of Q."""
    run = LINEAR_RUNS["fw"]
    data, record = run.rows_of(study.library.get(run.data)), study[run]
    X = np.asarray(data.X.toarray() if hasattr(data.X, "toarray") else data.X, dtype=np.float64)
    y = np.where(data.y == data.y.max(), 1.0, -1.0)
    squares = (X * X).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * X @ X.T, 0.0)
    Q = np.outer(y, y) * (np.exp(-record["gamma"] * distances) + 1) + np.eye(len(y)) / record["C"]
    eigenvalues = np.linalg.eigvalsh(Q)
    width, diameter = 4 / len(y), 2.0  # squared, of the simplex
    return float(eigenvalues[0] / (4 * eigenvalues[-1]) * width / diameter)


def linear(study: Study, folder: Path) -> Shown:
    """F - f* by iteration, the rate that was seen, and the bound of section 4 of the paper.

    For SWAP-add and FW steps, Proposition 2 has f - f* fall by 1 - 1/M at least, M = 4 N m L, where
    L is the largest eigenvalue of K and N a Lipschitz constant of the problem. N has no closed form
    in the paper. With a strongly convex objective, 1/M is at least mu / (4 L) times the squared
    ratio of pyramidal width and diameter of the simplex (Lacoste-Julien and Jaggi, 2015), all of
    which can be computed: that is the rate drawn.
    """
    records = {m: study[run] for m, run in LINEAR_RUNS.items()}
    ends = {m: record["iterations"] for m, record in records.items()}
    least = min(record["objective"] for record in records.values())
    lines, rates = {}, {}
    for m, record in records.items():
        points = [(int(p[0]), p[2] - least) for p in record["points"] if p[2] > least]
        lines[LINEAR[m]] = points
        tail = [(x, y) for x, y in points if 1e-11 < y < 1e-6]
        if len(tail) > 3:
            x, y = np.array(tail).T
            rates[m] = float(np.polyfit(x, np.log(y), 1)[0])
    bound = _guaranteed_rate(study)
    first, last = lines["FW"][0][1], 1.05 * max(ends[m] for m in DROPS)
    lines["guaranteed"] = [(x, first * np.exp(-bound * x)) for x in (0, last)]
    axes = {"yscale": "log", "xlim": (0, last), "ylim": (1e-12, None), "xlabel": "iteration"}
    axes |= {"ylabel": "f - f*", "title": f"{LINEAR_SET}, {LINEAR_ROWS} rows"}
    styles: dict[str, dict[str, Any]] = {label: {"linewidth": 0.9} for label in LINEAR.values()}
    styles["guaranteed"] = {"color": "k", "linestyle": ":"}
    text = draw(folder, "swap-linear", [Panel(lines, axes)], (7, 4.5), styles=styles)
    heads = ["method", "iterations", "log10 (f - f*) an iteration, fitted below 1e-6"]
    fitted = {m: f"{rate / np.log(10):.2e}" for m, rate in rates.items()}
    text += "\n\n" + table(heads, [[LINEAR[m], ends[m], fitted.get(m, "-")] for m in LINEAR])
    text += (
        f"\n\nThe theory guarantees {-bound / np.log(10):.1e} for steps that are no drop steps: "
        "mu / 4L times the squared pyramidal width over the squared diameter."
    )
    return Shown(text, {
        "MFW, SWAP and SWAP-2o reach 1e-9 within a fifth of the iterations of FW and PARTAN":
            all(5 * ends[m] <= min(ends["fw"], ends["partan"]) for m in DROPS),
        "their log error falls along a line: the fitted rate is faster than the guarantee":
            all(-rates[m] >= bound for m in DROPS if m in rates),
    })  # fmt: skip


ENTRIES = {
    "figures2to4web": meb.collection("swap-web", meb.WEB, METHODS, _web),
    "figures2to4adult": meb.collection("swap-adult", meb.ADULT, METHODS, _adult),
    "figures5and7and9medium": meb.collection("swap-medium", meb.MEDIUM, METHODS, _medium),
    "figures5and7and9large": meb.collection("swap-large", meb.LARGE, METHODS, _large),
    "figures6and8": meb.collection("swap-protein", ("protein",), METHODS, _protein),
    "table2": meb.hypotheses("swap", METHODS),
    "figure10": polynomial("figure10", meb.WEB),
    "figure11": polynomial("figure11", meb.POLY_SETS[:2]),
    "linear": Entry([*LINEAR_RUNS.values()], linear),
}
