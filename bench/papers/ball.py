"""The papers that stop at the (1 + 1e-6)-ball: samples of 59 rows, RBF kernel, one thread.

- Frandi, Gasparo, Lodi, Nanculef, Sartori (2013), Training SVMs using Frank-Wolfe methods (MEB);
- Allende, Frandi, Nanculef, Sartori (2014), A novel Frank-Wolfe algorithm: SWAP and SWAP-2o.

There is one classifier a pair of classes. The second paper has the runs of the first, and those of
SWAP and SWAP-2o.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from sklearn.metrics.pairwise import rbf_kernel

from bench.papers.entries import PRINTED, Compared, Entry, Panel, Shown, beside, compare, draw
from bench.papers.runs import Run, Study
from bench.published import table

WEB = tuple(f"w{k}a" for k in range(1, 9))
ADULT = tuple(f"a{k}a" for k in range(1, 8))
MEDIUM = ("letter", "pendigits", "usps", "reuters", "mnist")
LARGE = ("shuttle", "ijcnn1", "usps-ext", "kdd-10pc", "kdd-full")
SPARSE = ("shuttle", "usps-ext", "kdd-10pc", "kdd-full")
"""Sets where a sample times the support vectors is less than the rows: samples cost less there, as
they do with CVM, whose steps move all weights."""

SETS = (*ADULT, *WEB, *MEDIUM, "protein", *LARGE)
METHODS = ("cvm", "fw", "mfw")
ALL_METHODS = (*METHODS, "swap", "swap2")
FRANK_WOLFE, DROPS = ALL_METHODS[1:], ("mfw", "swap", "swap2")
LABELS = {"cvm": "CVM", "fw": "FW", "mfw": "MFW", "swap": "SWAP", "swap2": "SWAP-2o"}
LABELS["partan"] = "PARTAN"
COLORS = {"CVM": "k", "FW": "C0", "MFW": "C1", "SWAP": "C2", "SWAP-2o": "C3"}
STYLES = {label: {"color": c, "marker": "o", "markersize": 3} for label, c in COLORS.items()}
EFFECT_SETS = ("shuttle", "kdd-10pc", "pendigits", "reuters")
EFFECT_CS = [2.0**e for e in range(0, 13, 2)]
POLY_SETS = ("shuttle", "reuters", *WEB)
LINEAR_SET, LINEAR_ROWS, LINEAR_TOL = "w7a", 500, 1e-9
LINEAR = ("fw", "partan", "mfw", "swap", "swap2")
LEVEL = 0.05  # of the tests of hypotheses

Values = Mapping[str, Any]  # by method, an array of a value for each set


def fit(name: str, method: str, **more: Any) -> Run:
    """A training of one method on one set, as both papers make it.

    With a polynomial kernel there is no ball: the gap itself stops the run (SWAP paper, eq. 8).
    """
    stopping, tol = ("absolute", 1e-6 / 2) if "kernel" in more else ("meb", 1e-6)
    return Run(name, method, "sampled", 59, stopping, tol, chosen_at="ball", **more)


def grid(sets: Sequence[str], methods: Sequence[str], **more: Any) -> list[Run]:
    """Trainings of some methods on some sets."""
    return [fit(s, m, **more) for s in sets for m in methods]


def medians(
    study: Study, sets: Sequence[str], methods: Sequence[str], field: str, **more: Any
) -> Values:
    """Medians of a field over sets."""
    return {m: np.array([study.median(fit(s, m, **more), field) for s in sets]) for m in methods}


def speed_ups(study: Study, sets: Sequence[str], methods: Sequence[str]) -> Values:
    """Seconds of CVM, the first of the methods, over those of the others."""
    seconds = medians(study, sets, methods, "seconds")
    return {m: seconds["cvm"] / seconds[m] for m in methods[1:]}


def plot_sets(
    study: Study, folder: Path, name: str, sets: Sequence[str], methods: Sequence[str], **more: Any
) -> str:
    """Accuracy, seconds, speed-up over CVM and support vectors of some methods over some sets."""
    fields = ("accuracy", "seconds", "n_support")
    accuracy, seconds, support = (medians(study, sets, methods, f, **more) for f in fields)
    panels, text = {"accuracy, %": accuracy, "seconds": seconds}, ""
    if "cvm" in methods:
        title, own = "speed-up over CVM", speed_ups(study, sets, methods)
        panels[title] = own
        rows = [[LABELS[m], *(f"{value:.2g}" for value in own[m])] for m in own]
        text = "\n\n" + table([title, *sets], rows)
    panels["support vectors"] = support
    drawn = []
    for title, values in panels.items():
        lines = {LABELS[m]: zip(sets, line, strict=True) for m, line in values.items()}
        yscale = "linear" if title == "accuracy, %" else "log"
        drawn.append(Panel(lines, {"yscale": yscale, "title": title}))
    return draw(folder, name, drawn, (14, 3.6), styles=STYLES) + text


def collection(name: str, sets: Sequence[str], methods: Sequence[str]) -> Entry:
    """Several sets, and what `CLAIMS` has of speed-ups over CVM and losses of accuracy to it."""

    def show(study: Study, folder: Path) -> Shown:
        text = plot_sets(study, folder, name, sets, methods)
        accuracy, own = medians(study, sets, methods, "accuracy"), speed_ups(study, sets, methods)
        losses = {m: accuracy["cvm"] - accuracy[m] for m in own}
        return Shown(text, {claim: holds(own, losses) for claim, holds in CLAIMS[name].items()})

    return Entry(grid(sets, methods), show)


Claim = Callable[[Values, Values], "bool | np.bool_"]

FASTER: dict[str, Claim] = {
    "FW is faster than CVM on most of the sets": lambda own, _: np.mean(own["fw"] > 1) > 0.5,
    "MFW is faster than CVM on most of the sets": lambda own, _: np.mean(own["mfw"] > 1) > 0.5,
}
GROWING: dict[str, Claim] = {
    "the speed-up of FW is larger on the largest set than on the smallest":
        lambda own, _: own["fw"][-1] > own["fw"][0],
}  # fmt: skip
CLAIMS: dict[str, dict[str, Claim]] = {
    "meb-figure3": FASTER | GROWING,
    "meb-figure4": FASTER | GROWING,
    "meb-figure5": FASTER,
    "meb-figure6": FASTER,
    "swap-web": {
        "every method is faster than CVM on all sets of the collection (12.6 to 106 for FW)":
            lambda own, _: min(map(min, own.values())) > 1,
        "MFW is slower than FW on every set": lambda own, _: all(own["mfw"] < own["fw"]),
        "SWAP is faster than MFW on every set": lambda own, _: all(own["swap"] > own["mfw"]),
        "CVM is the most accurate, in the median, by less than a point":
            lambda _, losses: all(-0.1 < np.median(loss) < 1.5 for loss in losses.values()),
    },
    "swap-adult": {
        "SWAP, MFW and SWAP-2o are faster than CVM on all sets (medians 15.5, -, 20.5)":
            lambda own, _: min(min(own[m]) for m in DROPS) > 1,
        "the median speed-up of SWAP and SWAP-2o is larger than that of FW (1.45)":
            lambda own, _: np.median(own["fw"])
            < min(np.median([own["swap"], own["swap2"]], axis=1)),
        "accuracies are within a point of CVM's":
            lambda _, losses: max(np.abs(loss).max() for loss in losses.values()) < 1,
    },
    "swap-medium": {
        "no method is more than ten times faster or slower than CVM on most of these sets":
            lambda own, _: np.mean(np.abs(np.log10([*own.values()])) < 1) > 0.5,
    },
    "swap-large": {
        "the methods are faster than CVM most of the time":
            lambda own, _: np.mean(np.array([*own.values()]) > 1) > 0.5,
        "SWAP is faster than MFW on most of the large sets":
            lambda own, _: np.mean(own["swap"] > own["mfw"]) > 0.5,
    },
    "swap-protein": {
        "every method is faster than CVM (20.8, 123.5, 157.3 and 358 times)":
            lambda own, _: min(own.values()) > 1,
        "MFW, SWAP and SWAP-2o are faster than FW":
            lambda own, _: all(own[m] > own["fw"] for m in DROPS),
    },
}  # fmt: skip


# -- tables 2 and 3, figures 3 to 6 --------------------------------------------------------------


def _compared(study: Study, field: str) -> Compared:
    methods = {LABELS[m]: partial(fit, method=m) for m in METHODS}
    return compare(study, PRINTED["meb"]["tables2and3"], methods, [field], spread=True)


def table2(study: Study, _: Path) -> Shown:
    text, _found, near = _compared(study, "accuracy")
    own = medians(study, SETS, METHODS, "accuracy")
    fw, mfw = (own["cvm"] - own[m] for m in ("fw", "mfw"))
    return Shown(text, near | {
        "FW is less accurate than CVM on most sets": np.mean(fw >= 0) > 0.5,
        "the median loss of FW and MFW against CVM is below 1 point":
            max(np.median(fw), np.median(mfw)) < 1,
        "MFW is closer to CVM than FW, in the median": np.median(mfw) <= np.median(fw),
    })  # fmt: skip


def table3(study: Study, _: Path) -> Shown:
    own = speed_ups(study, SETS, METHODS)
    return Shown(_compared(study, "seconds")[0], {
        "FW is faster than CVM on most sets": np.mean(own["fw"] > 1) > 0.5,
        "MFW is faster than CVM on most sets": np.mean(own["mfw"] > 1) > 0.5,
    })  # fmt: skip


def wilcoxon(first: Sequence[float], second: Sequence[float], side: str) -> float:
    """The p of Wilcoxon's signed-ranks test, ties after Pratt."""
    if list(first) == list(second):
        return 1.0  # there is nothing to rank
    return float(stats.wilcoxon(first, second, zero_method="pratt", alternative=side).pvalue)


def friedman(columns: Sequence[Sequence[float]]) -> float:
    """The p of Friedman's test with the correction of Iman and Davenport."""
    n, k = len(columns[0]), len(columns)
    if all(list(column) == list(columns[0]) for column in columns):
        return 1.0
    chi2 = stats.friedmanchisquare(*columns).statistic
    if chi2 >= n * (k - 1):
        return 0.0
    f = (n - 1) * chi2 / (n * (k - 1) - chi2)
    return float(stats.f.sf(f, k - 1, (k - 1) * (n - 1)))


def hypotheses(paper: str, methods: Sequence[str]) -> Entry:
    """Whether tests find what they found in the paper."""
    printed = PRINTED[paper]["tests"]

    def show(study: Study, _: Path) -> Shown:
        fields = ("seconds", "accuracy")
        seconds, accuracy = (medians(study, SETS, methods, field) for field in fields)
        rows, claims = [], {}
        for m, other, *tests in printed["pairs"]:
            pair = f"{LABELS[m]}, {LABELS[other]}"
            row = [pair]
            for values, (text, side, p) in zip((seconds, accuracy), tests, strict=True):
                own = wilcoxon(values[m], values[other], side)
                row += [text, beside(p, own)]
                found = "found" if p < LEVEL else "not found"
                claims[f"{pair}: {text}, {found} at 5 %"] = (p < LEVEL) == (own < LEVEL)
            rows.append(row)
        heads = ["pair", "time", "p, printed / ours", "accuracy", "p, printed / ours"]
        over = [friedman([values[m] for m in methods]) for values in (seconds, accuracy)]
        claims["Friedman's tests find differences (p below 0.001)"] = max(over) < 1e-3
        text = table(heads, rows) + (
            f"\n\nFriedman's test over all methods: p {over[0]:.2g} for time and {over[1]:.2g} for "
            f"accuracy (printed: {printed['friedman']})."
        )
        return Shown(text, claims)

    return Entry(grid(SETS, methods), show)


def effect(number: int, sets: Sequence[str]) -> Entry:
    def show(study: Study, folder: Path) -> Shown:
        def line(s: str, m: str, field: str) -> list[float]:
            return [study.median(fit(s, m, C=C), field) for C in EFFECT_CS]

        panels = []
        for field in ("accuracy", "seconds"):
            for s in sets:
                lines = {LABELS[m]: zip(EFFECT_CS, line(s, m, field), strict=True) for m in METHODS}
                yscale = "log" if field == "seconds" else "linear"
                axes = {"title": s, "xlabel": "C", "ylabel": field, "xscale": "log"}
                panels.append(Panel(lines, axes | {"yscale": yscale}))
        text = draw(folder, f"meb-figure{number}", panels, (9, 6), 2, styles=STYLES)
        times = {s: line(s, "cvm", "seconds") for s in sets}
        claim = "on {} CVM takes less time with the largest C than with the smallest"
        return Shown(text, {claim.format(s): own[-1] < own[0] for s, own in times.items()})

    return Entry([fit(s, m, C=C) for s in EFFECT_SETS for m in METHODS for C in EFFECT_CS], show)


def both_kernels(sets: Sequence[str], methods: Sequence[str]) -> list[Run]:
    return grid(sets, methods, kernel="poly") + grid(sets, methods)


def kernel_difference(study: Study, sets: Sequence[str], methods: Sequence[str]) -> float:
    """Largest difference of accuracy between the polynomial kernel and RBF."""
    poly = medians(study, sets, methods, "accuracy", kernel="poly")
    rbf = medians(study, sets, methods, "accuracy")
    return float(max(np.abs(poly[m] - rbf[m]).max() for m in methods))


def table8(study: Study, _: Path) -> Shown:
    methods = {LABELS[m]: partial(fit, method=m, kernel="poly") for m in ("fw", "mfw")}
    printed, fields = PRINTED["meb"]["table8"], ("accuracy", "seconds")
    text, _found, near = compare(study, printed, methods, fields)
    close = kernel_difference(study, POLY_SETS, ("fw", "mfw")) < 3
    return Shown(text, near | {"accuracies are within 3 points of those of the RBF kernel": close})


# -- the SWAP paper ------------------------------------------------------------------------------


def polynomial(name: str, sets: Sequence[str]) -> Entry:
    """Figures 10 and 11: the polynomial kernel."""

    def show(study: Study, folder: Path) -> Shown:
        text = plot_sets(study, folder, f"swap-{name}", sets, FRANK_WOLFE, kernel="poly")
        worst = kernel_difference(study, sets, FRANK_WOLFE)
        text += f"\n\nLargest difference of accuracy from the RBF kernel: {worst:.2f} points."
        return Shown(text, {"accuracies are comparable to those of RBF (3 points)": worst < 3})

    return Entry(both_kernels(sets, FRANK_WOLFE), show)


LINEAR_RUNS = {
    m: Run(LINEAR_SET, m, tol=LINEAR_TOL, rows=LINEAR_ROWS, path=True, max_iter=100_000)
    for m in LINEAR
}
"""Full oracle, few rows, a tight tolerance."""


def _guaranteed_rate(study: Study) -> float:
    """Least decrease of log (f - f*) by a step that is no drop step, from the constants of Q."""
    run = LINEAR_RUNS["fw"]
    data, record = run.rows_of(study.library.get(run.data)), study[run]
    K = rbf_kernel(data.X.astype(np.float64), gamma=record["gamma"])
    y = np.where(data.y == data.y.max(), 1.0, -1.0)
    Q = np.outer(y, y) * (K + 1) + np.eye(len(y)) / record["C"]
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
        lines[LABELS[m]] = points
        tail = [(x, y) for x, y in points if 1e-11 < y < 1e-6]
        if len(tail) > 3:
            x, y = np.array(tail).T
            rates[m] = float(np.polyfit(x, np.log(y), 1)[0])
    bound = _guaranteed_rate(study)
    first, last = lines["FW"][0][1], 1.05 * max(ends[m] for m in DROPS)
    lines["guaranteed"] = [(x, first * np.exp(-bound * x)) for x in (0, last)]
    axes = {"yscale": "log", "xlim": (0, last), "ylim": (1e-12, None), "xlabel": "iteration"}
    axes |= {"ylabel": "f - f*", "title": f"{LINEAR_SET}, {LINEAR_ROWS} rows"}
    styles: dict[str, dict[str, Any]] = {label: {"linewidth": 0.9} for label in LABELS.values()}
    styles["guaranteed"] = {"color": "k", "linestyle": ":"}
    text = draw(folder, "swap-linear", [Panel(lines, axes)], (7, 4.5), styles=styles)
    heads = ["method", "iterations", "log10 (f - f*) an iteration, fitted below 1e-6"]
    fitted = {m: f"{rate / np.log(10):.2e}" for m, rate in rates.items()}
    text += "\n\n" + table(heads, [[LABELS[m], ends[m], fitted.get(m, "-")] for m in LINEAR])
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
    "meb": {
        "table2": Entry(grid(SETS, METHODS), table2),
        "table3": Entry(grid(SETS, METHODS), table3),
        "figure3": collection("meb-figure3", WEB, METHODS),
        "figure4": collection("meb-figure4", ADULT, METHODS),
        "figure5": collection("meb-figure5", (*MEDIUM, "protein"), METHODS),
        "figure6": collection("meb-figure6", LARGE, METHODS),
        "tables5to7": hypotheses("meb", METHODS),
        "figure7": effect(7, EFFECT_SETS[:2]),
        "figure8": effect(8, EFFECT_SETS[2:]),
        "table8": Entry(both_kernels(POLY_SETS, ("fw", "mfw")), table8),
    },
    "swap": {
        "figures2to4web": collection("swap-web", WEB, ALL_METHODS),
        "figures2to4adult": collection("swap-adult", ADULT, ALL_METHODS),
        "figures5and7and9medium": collection("swap-medium", MEDIUM, ALL_METHODS),
        "figures5and7and9large": collection("swap-large", LARGE, ALL_METHODS),
        "figures6and8": collection("swap-protein", ("protein",), ALL_METHODS),
        "table2": hypotheses("swap", ALL_METHODS),
        "figure10": polynomial("figure10", WEB),
        "figure11": polynomial("figure11", POLY_SETS[:2]),
        "linear": Entry([*LINEAR_RUNS.values()], linear),
    },
}
