"""The papers that stop at the (1 + 1e-6)-ball: samples of 59 rows, RBF kernel, one thread.

- Frandi, Gasparo, Lodi, Nanculef, Sartori (2013), Training SVMs using Frank-Wolfe methods (MEB);
- Allende, Frandi, Nanculef, Sartori (2014), A novel Frank-Wolfe algorithm: SWAP and SWAP-2o.

There is one classifier a pair of classes. The second paper has the runs of the first, and those of
SWAP and SWAP-2o.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from bench.papers.study import PRINTED, Compared, Entry, Run, Shown, Study, beside, compare, draw
from bench.published import table

WEB = tuple(f"w{k}a" for k in range(1, 9))
ADULT = tuple(f"a{k}a" for k in range(1, 8))
MEDIUM = ("letter", "pendigits", "usps", "reuters", "mnist")
LARGE = ("shuttle", "ijcnn1", "usps-ext", "kdd-10pc", "kdd-full")
SETS = (*ADULT, *WEB, *MEDIUM, "protein", *LARGE)
LABELS = {"cvm": "CVM", "fw": "FW", "mfw": "MFW", "swap": "SWAP", "swap2": "SWAP-2o"}
ALL_METHODS = tuple(LABELS)
METHODS, DROPS = ALL_METHODS[:3], ALL_METHODS[2:]


def fit(name: str, method: str) -> Run:
    """A training of one method on one set, as both papers make it."""
    return Run(name, method, "sampled", 59, "meb", 1e-6, chosen_at="ball")


def grid(sets: Sequence[str], methods: Sequence[str]) -> list[Run]:
    """Trainings of some methods on some sets."""
    return [fit(s, m) for s in sets for m in methods]


def medians(
    study: Study, sets: Sequence[str], methods: Sequence[str], field: str
) -> dict[str, Any]:
    """Medians of a field for each set, by method."""
    return {m: np.array([study.median(fit(s, m), field) for s in sets]) for m in methods}


def speed_ups(study: Study, sets: Sequence[str], methods: Sequence[str]) -> dict[str, Any]:
    """Seconds of CVM, the first of the methods, over those of the others."""
    seconds = medians(study, sets, methods, "seconds")
    return {m: seconds["cvm"] / seconds[m] for m in methods[1:]}


def collection(sets: Sequence[str]) -> Entry:
    """Speed-ups over CVM on several sets, which the paper has as figures."""

    def show(study: Study) -> Shown:
        own = speed_ups(study, sets, ALL_METHODS)
        rows = [[LABELS[m], *(f"{value:.2g}" for value in own[m])] for m in own]
        return table(["speed-up over CVM", *sets], rows), {}

    return Entry(grid(sets, ALL_METHODS), show)


def _compared(study: Study, field: str) -> Compared:
    methods = {LABELS[m]: partial(fit, method=m) for m in METHODS}
    return compare(study, PRINTED["meb"]["tables2and3"], methods, [field])


def table2(study: Study) -> Shown:
    text, _found = _compared(study, "accuracy")
    own = medians(study, SETS, METHODS, "accuracy")
    fw, mfw = (own["cvm"] - own[m] for m in ("fw", "mfw"))
    return text, {
        "FW is less accurate than CVM on most sets": np.mean(fw >= 0) > 0.5,
        "the median loss of FW and MFW against CVM is below 1 point":
            max(np.median(fw), np.median(mfw)) < 1,
        "MFW is closer to CVM than FW, in the median": np.median(mfw) <= np.median(fw),
    }  # fmt: skip


def table3(study: Study) -> Shown:
    own = speed_ups(study, SETS, METHODS)
    return _compared(study, "seconds")[0], {
        "FW is faster than CVM on most sets": np.mean(own["fw"] > 1) > 0.5,
        "MFW is faster than CVM on most sets": np.mean(own["mfw"] > 1) > 0.5,
    }  # fmt: skip


def wilcoxon(first: Sequence[float], second: Sequence[float], side: str) -> float:
    """The p of Wilcoxon's signed-ranks test, ties after Pratt."""
    if list(first) == list(second):
        return 1.0  # there is nothing to rank
    return float(stats.wilcoxon(first, second, zero_method="pratt", alternative=side).pvalue)


def hypotheses(paper: str, methods: Sequence[str]) -> Entry:
    """Whether tests find what they found in the paper."""
    printed = PRINTED[paper]["tests"]

    def show(study: Study) -> Shown:
        fields = ("seconds", "accuracy")
        seconds, accuracy = (medians(study, SETS, methods, field) for field in fields)
        rows, claims = [], {}
        for m, other, *tests in printed["pairs"]:
            pair = f"{LABELS[m]}, {LABELS[other]}"
            row = [pair]
            for values, (text, side, p) in zip((seconds, accuracy), tests, strict=True):
                own = wilcoxon(values[m], values[other], side)
                row += [text, beside(p, own)]
                found = "found" if p < 0.05 else "not found"
                claims[f"{pair}: {text}, {found} at 5 %"] = (p < 0.05) == (own < 0.05)
            rows.append(row)
        heads = ["pair", "time", "p, printed / ours", "accuracy", "p, printed / ours"]
        text = table(heads, rows)
        return text, claims

    return Entry(grid(SETS, methods), show)


LINEAR = {
    m: Run("w7a", m, tol=1e-9, rows=500, path=True, max_iter=100_000)
    for m in ("fw", "partan", *DROPS)
}
"""The full oracle, few rows, a tight tolerance."""


def linear(study: Study) -> Shown:
    """F - f* by iteration, and the rate at which it falls."""
    records = {m: study[run] for m, run in LINEAR.items()}
    ends = {m: record["iterations"] for m, record in records.items()}
    least = min(record["objective"] for record in records.values())
    lines, rates = {}, {}
    for m, record in records.items():
        lines[m] = [(p[0], p[2] - least) for p in record["points"] if p[2] > least]
        tail = [point for point in lines[m] if 1e-11 < point[1] < 1e-6]
        if len(tail) > 3:
            x, y = np.array(tail).T
            rates[m] = float(np.polyfit(x, np.log10(y), 1)[0])
    axes = {"yscale": "log", "ylim": (1e-12, None), "xlabel": "iteration", "ylabel": "f - f*"}
    axes["xlim"] = (0, 1.05 * max(ends[m] for m in DROPS))
    text = draw(study, "swap-linear", {"w7a, 500 rows": lines}, **axes)
    heads = ["method", "iterations", "log10 (f - f*) an iteration, fitted below 1e-6"]
    rows = [[m, ends[m], f"{rates[m]:.2e}" if m in rates else "-"] for m in LINEAR]
    return f"{text}\n\n{table(heads, rows)}", {
        "MFW, SWAP and SWAP-2o reach 1e-9 within a fifth of the iterations of FW and PARTAN":
            all(5 * ends[m] <= min(ends["fw"], ends["partan"]) for m in DROPS),
        "their log error falls along a line, faster than that of FW":
            all(rates[m] < rates.get("fw", 0) for m in DROPS if m in rates),
    }  # fmt: skip


ENTRIES = {
    "meb": {
        "table2": Entry(grid(SETS, METHODS), table2),
        "table3": Entry(grid(SETS, METHODS), table3),
        "tables5to7": hypotheses("meb", METHODS),
    },
    "swap": {
        "figures2to4web": collection(WEB),
        "figures2to4adult": collection(ADULT),
        "figures5and7and9medium": collection(MEDIUM),
        "figures5and7and9large": collection(LARGE),
        "figures6and8": collection(("protein",)),
        "table2": hypotheses("swap", ALL_METHODS),
        "linear": Entry([*LINEAR.values()], linear),
    },
}
