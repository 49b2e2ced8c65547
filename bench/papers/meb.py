"""Frandi, Gasparo, Lodi, Nanculef, Sartori (2013), Training SVMs using Frank-Wolfe methods.

Stopping at the (1 + 1e-6)-ball, samples of 59 rows, RBF kernel, one classifier a pair of classes,
C and sigma^2 as in `bench.papers.runs`, one thread. The runs of CVM, FW and MFW are also those of
the SWAP paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from bench.papers.entries import (
    PRINTED,
    Claims,
    Compared,
    Entry,
    Panel,
    Shown,
    beside,
    compare,
    draw,
)
from bench.papers.runs import Run, Study
from bench.report import table

WEB = tuple(f"w{k}a" for k in range(1, 9))
ADULT = tuple(f"a{k}a" for k in range(1, 8))
MEDIUM = ("letter", "pendigits", "usps", "reuters", "mnist")
LARGE = ("shuttle", "ijcnn1", "usps-ext", "kdd-10pc", "kdd-full")
SPARSE = ("shuttle", "usps-ext", "kdd-10pc", "kdd-full")
"""Sets where a sample times the support vectors is less than the rows: samples cost less there, as
they do with CVM, whose steps move all weights."""

SETS = (*ADULT, *WEB, *MEDIUM, "protein", *LARGE)
METHODS = ("cvm", "fw", "mfw")
LABELS = {"cvm": "CVM", "fw": "FW", "mfw": "MFW", "swap": "SWAP", "swap2": "SWAP-2o"}
COLORS = {"CVM": "k", "FW": "C0", "MFW": "C1", "SWAP": "C2", "SWAP-2o": "C3"}
STYLES = {label: {"color": c, "marker": "o", "markersize": 3} for label, c in COLORS.items()}
EFFECT_SETS = ("shuttle", "kdd-10pc", "pendigits", "reuters")
EFFECT_CS = [2.0**e for e in range(0, 13, 2)]
POLY_SETS = ("shuttle", "reuters", *WEB)
LEVEL = 0.05  # of the tests of hypotheses

Values = Mapping[str, Any]  # by method, an array of a value for each set


def fit(name: str, method: str, **more: Any) -> Run:
    """A training of one method on one set, as both papers make it.

    With a polynomial kernel there is no ball: the gap itself stops the run (SWAP paper, eq. 8).
    """
    stopping, tol = ("absolute", 1e-6 / 2) if "kernel" in more else ("meb", 1e-6)
    lmo = "random" if name in SPARSE or method == "cvm" else "random-full"
    return Run(name, method, lmo, 59, stopping, tol, chosen_at="ball", **more)


def grid(sets: Sequence[str], methods: Sequence[str], **more: Any) -> list[Run]:
    """Trainings of some methods on some sets."""
    return [fit(s, m, **more) for s in sets for m in methods]


def medians(
    study: Study, sets: Sequence[str], methods: Sequence[str], field: str, **more: Any
) -> Values:
    """Medians of a field over sets."""
    return {m: np.array([study.median(fit(s, m, **more), field) for s in sets]) for m in methods}


def speed_ups(study: Study, sets: Sequence[str], methods: Sequence[str]) -> Values:
    """Seconds of CVM over those of other methods."""
    seconds = medians(study, sets, ("cvm", *methods), "seconds")
    return {m: seconds["cvm"] / seconds[m] for m in methods}


def plot_sets(
    study: Study, folder: Path, name: str, sets: Sequence[str], methods: Sequence[str], **more: Any
) -> str:
    """Accuracy, seconds, speed-up over CVM and support vectors of some methods over some sets."""
    fields = ("accuracy", "seconds", "n_support")
    accuracy, seconds, support = (medians(study, sets, methods, f, **more) for f in fields)
    panels, text = {"accuracy, %": accuracy, "seconds": seconds}, ""
    if "cvm" in methods:
        title, own = "speed-up over CVM", speed_ups(study, sets, methods[1:])
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


def collection(
    name: str,
    sets: Sequence[str],
    methods: Sequence[str],
    claims: Callable[[Values, Values], Claims],
) -> Entry:
    """Several sets; `claims` are given speed-ups over CVM, and how much less accurate one is."""

    def show(study: Study, folder: Path) -> Shown:
        text = plot_sets(study, folder, name, sets, methods)
        accuracy = medians(study, sets, methods, "accuracy")
        losses = {m: accuracy["cvm"] - accuracy[m] for m in methods[1:]}
        return Shown(text, claims(speed_ups(study, sets, methods[1:]), losses))

    return Entry(grid(sets, methods), show)


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


def _faster(own: Values, _: Values, sets: str = "of the sets") -> Claims:
    return {
        f"{LABELS[m]} is faster than CVM on most {sets}": np.mean(own[m] > 1) > 0.5 for m in own
    }


def _growing(own: Values, losses: Values) -> Claims:
    text = "the speed-up of FW is larger on the largest set than on the smallest"
    return _faster(own, losses) | {text: own["fw"][-1] > own["fw"][0]}


def table3(study: Study, _: Path) -> Shown:
    text = _compared(study, "seconds").text
    return Shown(text, _faster(speed_ups(study, SETS, METHODS[1:]), {}, "sets"))


# -- tables 4 to 7: statistical tests ------------------------------------------------------------


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
        seconds = medians(study, SETS, methods, "seconds")
        accuracy = medians(study, SETS, methods, "accuracy")
        rows, claims = [], {}
        for m, other, time_side, time_p, side, p in printed["pairs"]:
            words = {
                "two-sided": "accuracies differ",
                "less": f"{LABELS[other]} is more accurate",
                "greater": f"{LABELS[m]} is more accurate",
            }
            faster = f"{LABELS[m]} is faster" if time_side == "less" else "times differ"
            pair, row = f"{LABELS[m]}, {LABELS[other]}", []
            for text, values, side_, p_ in (
                (faster, seconds, time_side, time_p),
                (words[side], accuracy, side, p),
            ):
                own = wilcoxon(values[m], values[other], side_)
                row += [text, beside(p_, own)]
                found = "found" if p_ < LEVEL else "not found"
                claims[f"{pair}: {text}, {found} at 5 %"] = (p_ < LEVEL) == (own < LEVEL)
            rows.append([pair, *row])
        heads = ["pair", "time", "p, printed / ours", "accuracy", "p, printed / ours"]
        over = [friedman([values[m] for m in methods]) for values in (seconds, accuracy)]
        claims["Friedman's tests find differences (p below 0.001)"] = max(over) < 1e-3
        text = table(heads, rows) + (
            f"\n\nFriedman's test over all methods: p {over[0]:.2g} for time and {over[1]:.2g} for "
            f"accuracy (printed: {printed['friedman']})."
        )
        return Shown(text, claims)

    return Entry(grid(SETS, methods), show)


# -- figures 7 and 8: the effect of C ------------------------------------------------------------


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
        return Shown(text, {
            f"on {s} CVM takes less time with the largest C than with the smallest":
                times[s][-1] < times[s][0]
            for s in sets
        })  # fmt: skip

    return Entry([fit(s, m, C=C) for s in EFFECT_SETS for m in METHODS for C in EFFECT_CS], show)


# -- table 8: the polynomial kernel --------------------------------------------------------------


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


ENTRIES = {
    "table2": Entry(grid(SETS, METHODS), table2),
    "table3": Entry(grid(SETS, METHODS), table3),
    "figure3": collection("meb-figure3", WEB, METHODS, _growing),
    "figure4": collection("meb-figure4", ADULT, METHODS, _growing),
    "figure5": collection("meb-figure5", (*MEDIUM, "protein"), METHODS, _faster),
    "figure6": collection("meb-figure6", LARGE, METHODS, _faster),
    "tables5to7": hypotheses("meb", METHODS),
    "figure7": effect(7, EFFECT_SETS[:2]),
    "figure8": effect(8, EFFECT_SETS[2:]),
    "table8": Entry(both_kernels(POLY_SETS, ("fw", "mfw")), table8),
}
