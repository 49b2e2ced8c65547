"""Allende, Frandi, Nanculef, Sartori (2014), A novel Frank-Wolfe algorithm: SWAP and SWAP-2o.

The runs are those of `bench.papers.meb`, with SWAP and SWAP-2o as further methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.papers.compared import PRINTED
from bench.papers.entries import (
    Absent,
    Claim,
    Entry,
    Shown,
    beside,
    draw,
    legend_below,
)
from bench.papers.meb import (
    ADULT,
    LABELS,
    LARGE,
    MEDIUM,
    POLY_SETS,
    SETS,
    WEB,
    friedman,
    grid_runs,
    medians,
    plot_sets,
    speed_ups,
    wilcoxon,
)
from bench.papers.runs import Run, Study
from bench.report import table

METHODS = ("cvm", "fw", "mfw", "swap", "swap2")
FRANK_WOLFE = METHODS[1:]
LINEAR_SET, LINEAR_ROWS, LINEAR_TOL = "w7a", 500, 1e-9
LINEAR_METHODS = ("fw", "partan", "mfw", "swap", "swap2")

TABLE_2 = PRINTED["swap"]["table2"]


def _figure(name: str, sets: Sequence[str], claims: Callable[[Study], list[Claim]]) -> Any:
    def show(study: Study, folder: Path) -> Shown:
        text = plot_sets(study, folder, f"swap-{name}", sets, METHODS)
        rows = [
            [LABELS[m], *(f"{value:.2g}" for value in speed_ups(study, sets, m))]
            for m in FRANK_WOLFE
        ]
        text += "\n\n" + table(["speed-up over CVM", *sets], rows)
        return Shown(text, claims(study))

    return show


def _web_claims(study: Study) -> list[Claim]:
    own = {m: speed_ups(study, WEB, m) for m in FRANK_WOLFE}
    seconds = medians(study, WEB, FRANK_WOLFE, "seconds")
    accuracy = medians(study, WEB, METHODS, "accuracy")
    return [
        Claim("every method is faster than CVM on all sets of the collection (12.6 to 106 for FW)",
              all(min(own[m]) > 1 for m in FRANK_WOLFE)),
        Claim("MFW is slower than FW on every set",
              all(a > b for a, b in zip(seconds["mfw"], seconds["fw"], strict=True))),
        Claim("SWAP is faster than MFW on every set",
              all(a < b for a, b in zip(seconds["swap"], seconds["mfw"], strict=True))),
        Claim("CVM is the most accurate, in the median, by less than a point",
              all(-0.1 < np.median(np.array(accuracy["cvm"]) - np.array(accuracy[m])) < 1.5
                  for m in FRANK_WOLFE)),
    ]  # fmt: skip


def _adult_claims(study: Study) -> list[Claim]:
    own = {m: speed_ups(study, ADULT, m) for m in FRANK_WOLFE}
    middle = {m: float(np.median(own[m])) for m in FRANK_WOLFE}
    accuracy = medians(study, ADULT, METHODS, "accuracy")
    return [
        Claim("SWAP, MFW and SWAP-2o are faster than CVM on all sets (medians 15.5, -, 20.5)",
              all(min(own[m]) > 1 for m in ("swap", "mfw", "swap2"))),
        Claim("the median speed-up of SWAP and SWAP-2o is larger than that of FW (1.45)",
              min(middle["swap"], middle["swap2"]) > middle["fw"]),
        Claim("accuracies are within a point of CVM's",
              all(abs(a - b) < 1 for m in FRANK_WOLFE
                  for a, b in zip(accuracy[m], accuracy["cvm"], strict=True))),
    ]  # fmt: skip


def _protein_claims(study: Study) -> list[Claim]:
    own = {m: speed_ups(study, ("protein",), m)[0] for m in FRANK_WOLFE}
    return [
        Claim("every method is faster than CVM (20.8, 123.5, 157.3 and 358 times)",
              min(own.values()) > 1),
        Claim("MFW, SWAP and SWAP-2o are faster than FW",
              all(own[m] > own["fw"] for m in ("mfw", "swap", "swap2"))),
    ]  # fmt: skip


def _medium_claims(study: Study) -> list[Claim]:
    own = [value for m in FRANK_WOLFE for value in speed_ups(study, MEDIUM, m)]
    return [
        Claim("no method is more than ten times faster or slower than CVM on most of these sets",
              float(np.mean([0.1 < value < 10 for value in own])) > 0.5)
    ]  # fmt: skip


def _large_claims(study: Study) -> list[Claim]:
    own = {m: speed_ups(study, LARGE, m) for m in FRANK_WOLFE}
    return [
        Claim("the methods are faster than CVM most of the time",
              float(np.mean([value > 1 for m in FRANK_WOLFE for value in own[m]])) > 0.5),
        Claim("SWAP is faster than MFW on most of the large sets",
              float(np.mean(np.array(own["swap"]) > np.array(own["mfw"]))) > 0.5),
    ]  # fmt: skip


# -- table 2 -------------------------------------------------------------------------------------


def table2(study: Study, _: Path) -> Shown:
    seconds = medians(study, SETS, METHODS, "seconds")
    accuracy = medians(study, SETS, METHODS, "accuracy")
    rows, claims = [], []
    for first, second, time_side, time_p, side, p in TABLE_2:
        own_time = wilcoxon(seconds[first], seconds[second], time_side)[1]
        own = wilcoxon(accuracy[first], accuracy[second], side)[1]
        pair = f"{LABELS[first]}, {LABELS[second]}"
        faster = f"{LABELS[first]} is faster" if time_side == "less" else "times differ"
        words = {
            "two-sided": "accuracies differ",
            "less": f"{LABELS[second]} is more accurate",
            "greater": f"{LABELS[first]} is more accurate",
        }[side]
        rows.append([pair, faster, beside(time_p, own_time), words, beside(p, own)])
        for text, printed, ours in ((faster, time_p, own_time), (words, p, own)):
            verdict = "found" if printed < 0.05 else "not found"
            claims.append(
                Claim(f"{pair}: {text}, {verdict} at 5 %", (printed < 0.05) == (ours < 0.05))
            )
    heads = ["pair", "time", "p, printed / ours", "accuracy", "p, printed / ours"]
    multiple = [friedman([values[m] for m in METHODS])[1] for values in (seconds, accuracy)]
    text = table(heads, rows) + (
        f"\n\nFriedman's test over all five: p {multiple[0]:.2g} for time and {multiple[1]:.2g} "
        "for accuracy (printed: below 0.001 for both)."
    )
    claims.append(Claim("Friedman's tests find differences (p below 0.001)", max(multiple) < 1e-3))
    return Shown(text, claims)


# -- figures 10 and 11: the polynomial kernel ----------------------------------------------------


def _polynomial(name: str, sets: Sequence[str]) -> Callable[[Study, Path], Shown]:
    def show(study: Study, folder: Path) -> Shown:
        text = plot_sets(study, folder, f"swap-{name}", sets, FRANK_WOLFE, kernel="poly")
        poly = medians(study, sets, FRANK_WOLFE, "accuracy", kernel="poly")
        rbf = medians(study, sets, FRANK_WOLFE, "accuracy")
        worst = max(abs(a - b) for m in FRANK_WOLFE for a, b in zip(poly[m], rbf[m], strict=True))
        text += f"\n\nLargest difference of accuracy from the RBF kernel: {worst:.2f} points."
        return Shown(
            text, [Claim("accuracies are comparable to those of RBF (3 points)", worst < 3)]
        )

    return show


# -- the claim of linear convergence -------------------------------------------------------------


def linear_runs(_: Study) -> list[Run]:
    """Full oracle, few rows, a tight tolerance."""
    return [
        Run(LINEAR_SET, m, tol=LINEAR_TOL, rows=LINEAR_ROWS, path=True, max_iter=100_000)
        for m in LINEAR_METHODS
    ]


def _guaranteed_rate(study: Study) -> float:
    """Least decrease of log (f - f*) by a step that is no drop step, from the constants of Q."""
    run = linear_runs(study)[0]
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
    paths = {run.method: study[run] for run in linear_runs(study)}
    least = min(record["objective"] for record in paths.values())
    rows, rates = [], {}
    for m, record in paths.items():
        points = [(p[0], p[2] - least) for p in record["points"] if p[2] > least]
        rows += [(LABELS.get(m, m.upper()), int(x), y) for x, y in points]
        tail = [(x, y) for x, y in points if 1e-11 < y < 1e-6]
        if len(tail) > 3:
            x, y = np.array(tail).T
            rates[m] = float(np.polyfit(x, np.log(y), 1)[0])

    bound = _guaranteed_rate(study)
    last = 1.05 * max(paths[m]["iterations"] for m in ("mfw", "swap", "swap2"))

    def plot(figure: Any) -> None:
        axes = figure.add_subplot()
        for m in paths:
            label = LABELS.get(m, m.upper())
            line = [(x, y) for name, x, y in rows if name == label]
            axes.semilogy(*zip(*line, strict=True), linewidth=0.9, label=label)
        x, first = np.array([0.0, last]), rows[0][2]
        axes.semilogy(x, first * np.exp(-bound * x), "k:", label="guaranteed")
        axes.set(xlabel="iteration", ylabel="f - f*", title=f"{LINEAR_SET}, {LINEAR_ROWS} rows")
        axes.set(xlim=(0, last), ylim=(1e-12, None))
        legend_below(figure)

    text = draw(folder, "swap-linear", plot, (7, 4.5))
    text += "\n\n" + table(
        ["method", "iterations", "log10 (f - f*) an iteration, fitted below 1e-6"],
        [
            [
                LABELS.get(m, m.upper()),
                record["iterations"],
                f"{rates[m] / np.log(10):.2e}" if m in rates else "-",
            ]
            for m, record in paths.items()
        ],
    )
    text += (
        f"\n\nThe theory guarantees {-bound / np.log(10):.1e} for steps that are no drop steps: "
        "mu / 4L times the squared pyramidal width over the squared diameter."
    )
    ends = {m: record["iterations"] for m, record in paths.items()}
    claims = [
        Claim("MFW, SWAP and SWAP-2o reach 1e-9 within a fifth of the iterations of FW and PARTAN",
              all(5 * ends[m] <= min(ends["fw"], ends["partan"])
                  for m in ("mfw", "swap", "swap2"))),
        Claim("their log error falls along a line: the fitted rate is faster than the guarantee",
              all(-rates[m] >= bound for m in ("mfw", "swap", "swap2") if m in rates)),
    ]  # fmt: skip
    return Shown(text, claims)


TITLE = (
    "SWAP paper: Allende, Frandi, Nanculef, Sartori, A novel Frank-Wolfe algorithm. Analysis and "
    "applications to large-scale SVM training (2014)"
)

_COLLECTIONS = (*WEB, *ADULT)

ENTRIES: dict[str, Entry | Absent] = {
    "table1": Absent(
        "Table 1: features of the data sets", "the sets as they are here are listed under Data"
    ),
    "figure1": Absent("Figure 1", "a sketch of search directions"),
    "figures2to4web": Entry(
        "Figures 2 to 4, web collection: accuracies, times, model sizes",
        grid_runs(WEB, METHODS),
        _figure("web", WEB, _web_claims),
    ),
    "figures2to4adult": Entry(
        "Figures 2 to 4, adult collection: accuracies, times, model sizes",
        grid_runs(ADULT, METHODS),
        _figure("adult", ADULT, _adult_claims),
    ),
    "figures5and7and9medium": Entry(
        "Figures 5, 7 and 9, left: medium-scale sets",
        grid_runs(MEDIUM, METHODS),
        _figure("medium", MEDIUM, _medium_claims),
    ),
    "figures5and7and9large": Entry(
        "Figures 5, 7 and 9, right: large-scale sets",
        grid_runs(LARGE, METHODS),
        _figure("large", LARGE, _large_claims),
    ),
    "figures6and8": Entry(
        "Figures 6 and 8: Protein",
        grid_runs(("protein",), METHODS),
        _figure("protein", ("protein",), _protein_claims),
    ),
    "table2": Entry("Table 2: tests of hypotheses", grid_runs(SETS, METHODS), table2),
    "figure10": Entry(
        "Figures 10 and 11, left: polynomial kernel, web collection",
        lambda study: [
            *grid_runs(WEB, FRANK_WOLFE, kernel="poly")(study),
            *grid_runs(WEB, FRANK_WOLFE)(study),
        ],
        _polynomial("figure10", WEB),
    ),
    "figure11": Entry(
        "Figure 11, right: polynomial kernel, Shuttle and Reuters",
        lambda study: [
            *grid_runs(POLY_SETS[:2], FRANK_WOLFE, kernel="poly")(study),
            *grid_runs(POLY_SETS[:2], FRANK_WOLFE)(study),
        ],
        _polynomial("figure11", POLY_SETS[:2]),
    ),
    "linear": Entry("Section 4: linear convergence", linear_runs, linear),
}
