"""Frandi, Gasparo, Lodi, Nanculef, Sartori (2013), Training SVMs using Frank-Wolfe methods.

Stopping at the (1 + 1e-6)-ball, samples of 59 rows, RBF kernel, one classifier a pair of classes,
C and sigma^2 as in `bench.papers.runs`, one thread. The runs of CVM, FW and MFW are also those of
the SWAP paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from bench.papers.compared import ORDER_HEADS, PRINTED, near, order_cells, printed_rows
from bench.papers.entries import (
    Absent,
    Claim,
    Entry,
    Shown,
    beside,
    draw,
    legend_below,
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
COLORS = {"cvm": "k", "fw": "C0", "mfw": "C1", "swap": "C2", "swap2": "C3"}
EFFECT_SETS = ("shuttle", "kdd-10pc", "pendigits", "reuters")
EFFECT_CS = [2.0**e for e in range(0, 13, 2)]
POLY_SETS = ("shuttle", "reuters", *WEB)

TABLES_2_3 = printed_rows("meb", "tables2and3")
TABLE_5: dict[str, list[float]] = PRINTED["meb"]["table5"]  # statistics
TABLE_6: dict[str, list[float]] = PRINTED["meb"]["table6"]  # p-values
TABLE_8 = printed_rows("meb", "table8")


def fit(name: str, method: str, **more: Any) -> Run:
    """A training of one method on one set, as both papers make it.

    With a polynomial kernel there is no ball: the gap itself stops the run (SWAP paper, eq. 8).
    """
    stopping = ("absolute", 1e-6 / 2) if "kernel" in more else ("meb", 1e-6)
    options = dict(zip(("stopping", "tol"), stopping, strict=True))
    lmo = "random" if name in SPARSE or method == "cvm" else "random-full"
    options |= {"lmo": lmo, "sample_size": 59, "chosen_at": "ball"} | more
    return Run(name, method, **options)


def medians(
    study: Study, sets: Sequence[str], methods: Sequence[str], field: str, **more: Any
) -> dict[str, list[float]]:
    """Medians of a field by method, over sets."""
    return {m: [study.median(fit(s, m, **more), field) for s in sets] for m in methods}


def grid_runs(sets: Sequence[str], methods: Sequence[str], **more: Any) -> Callable[..., list[Run]]:
    """All trainings of some methods on some sets."""
    own = [fit(s, m, **more) for s in sets for m in methods]
    return lambda study: [run for each in own for run in study.repetitions(each)]


# -- tables 2 and 3, figures 3 to 6 --------------------------------------------------------------


def _tables(study: Study, k: int, field: str, form: str) -> tuple[str, dict[str, list[float]]]:
    found = medians(study, SETS, METHODS, field)
    rows = [
        [
            name,
            *(
                beside(TABLES_2_3[name][k][j], found[m][place], form)
                + f" ± {form.format(float(np.std(study.values(fit(name, m), field))))}"
                for j, m in enumerate(METHODS)
            ),
        ]
        for place, name in enumerate(SETS)
    ]
    return table(["set, printed / ours", *(LABELS[m] for m in METHODS)], rows), found


def table2(study: Study, _: Path) -> Shown:
    text, found = _tables(study, 0, "accuracy", "{:.2f}")
    pairs = {
        f"{s} {LABELS[m]}": (TABLES_2_3[s][0][j], found[m][k])
        for k, s in enumerate(SETS)
        for j, m in enumerate(METHODS)
    }
    loss = {m: np.array(found["cvm"]) - np.array(found[m]) for m in ("fw", "mfw")}
    claims = [
        near(pairs),
        Claim("FW is less accurate than CVM on most sets", np.mean(loss["fw"] >= 0) > 0.5),
        Claim("the median loss of FW and MFW against CVM is below 1 point",
              max(float(np.median(loss[m])) for m in loss) < 1),
        Claim("MFW is closer to CVM than FW, in the median",
              np.median(loss["mfw"]) <= np.median(loss["fw"])),
    ]  # fmt: skip
    return Shown(text, claims)


def table3(study: Study, _: Path) -> Shown:
    text, found = _tables(study, 1, "seconds", "{:.3g}")
    labels = [LABELS[m] for m in METHODS]
    orders = [
        [name, "seconds", *order_cells(labels, TABLES_2_3[name][1], [found[m][k] for m in METHODS])]
        for k, name in enumerate(SETS)
    ]
    text += "\n\n" + table(["set", *ORDER_HEADS], orders)
    faster = {m: np.mean(np.array(found[m]) < np.array(found["cvm"])) for m in ("fw", "mfw")}
    claims = [
        Claim("FW is faster than CVM on most sets", faster["fw"] > 0.5),
        Claim("MFW is faster than CVM on most sets", faster["mfw"] > 0.5),
    ]
    return Shown(text, claims)


def plot_sets(
    study: Study,
    folder: Path,
    name: str,
    sets: Sequence[str],
    methods: Sequence[str],
    **more: Any,
) -> str:
    """Accuracy, seconds, speed-up over CVM and support vectors of some methods over some sets."""
    fields = ("accuracy", "seconds", "n_support")
    found = {field: medians(study, sets, methods, field, **more) for field in fields}
    has_cvm = "cvm" in methods

    def plot(figure: Any) -> None:
        panels = [("accuracy, %", found["accuracy"], False), ("seconds", found["seconds"], True)]
        if has_cvm:
            base = np.array(found["seconds"]["cvm"])
            ratios = {m: base / np.array(found["seconds"][m]) for m in methods if m != "cvm"}
            panels.append(("speed-up over CVM", ratios, True))
        panels.append(("support vectors", found["n_support"], True))
        for k, (title, values, logarithmic) in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), k + 1)
            for m, line in values.items():
                axes.plot(sets, line, "o-", color=COLORS[m], markersize=3, label=LABELS[m])
            if logarithmic:
                axes.set_yscale("log")
            axes.set_title(title)
            axes.tick_params(axis="x", rotation=60)
        legend_below(figure)

    return draw(folder, name, plot, (14, 3.6))


def speed_ups(study: Study, sets: Sequence[str], method: str) -> list[float]:
    """Seconds of CVM over those of a method, on some sets."""
    return [
        study.median(fit(s, "cvm"), "seconds") / study.median(fit(s, method), "seconds")
        for s in sets
    ]


def _collection(name: str, sets: Sequence[str]) -> Callable[[Study, Path], Shown]:
    def show(study: Study, folder: Path) -> Shown:
        text = plot_sets(study, folder, name, sets, METHODS)
        own = {m: speed_ups(study, sets, m) for m in ("fw", "mfw")}
        text += "\n\nSpeed-up over CVM: " + "; ".join(
            f"{LABELS[m]} {', '.join(f'{value:.2g}' for value in own[m])}" for m in own
        )
        claims = [
            Claim(f"{LABELS[m]} is faster than CVM on most of the sets",
                  float(np.mean(np.array(own[m]) > 1)) > 0.5)
            for m in own
        ]  # fmt: skip
        if sets in (WEB, ADULT):
            claims.append(
                Claim("the speed-up of FW is larger on the largest set than on the smallest",
                      own["fw"][-1] > own["fw"][0])
            )  # fmt: skip
        return Shown(text, claims)

    return show


# -- tables 4 to 7: statistical tests ------------------------------------------------------------

PAIRS = (("fw", "cvm"), ("mfw", "cvm"), ("fw", "mfw"))


def wilcoxon(
    first: Sequence[float], second: Sequence[float], alternative: str
) -> tuple[float, float]:
    """Statistic W and p of Wilcoxon's signed-ranks test, ties after Pratt."""
    if list(first) == list(second):
        return 0.0, 1.0  # there is nothing to rank
    found = stats.wilcoxon(first, second, zero_method="pratt", alternative=alternative)
    ranks = stats.wilcoxon(first, second, zero_method="pratt").statistic
    return float(ranks), float(found.pvalue)


def friedman(columns: Sequence[Sequence[float]]) -> tuple[float, float]:
    """F statistic of Friedman's test with the correction of Iman and Davenport, and its p."""
    n, k = len(columns[0]), len(columns)
    if all(list(column) == list(columns[0]) for column in columns):
        return 0.0, 1.0
    chi2 = stats.friedmanchisquare(*columns).statistic
    if chi2 >= n * (k - 1):
        return math.inf, 0.0
    f = (n - 1) * chi2 / (n * (k - 1) - chi2)
    return float(f), float(stats.f.sf(f, k - 1, (k - 1) * (n - 1)))


def hypothesis_tests(study: Study) -> dict[str, list[tuple[float, float]]]:
    """Statistics and p-values of table 5 and 6, for seconds and accuracy."""
    answers = {}
    for field in ("seconds", "accuracy"):
        found = medians(study, SETS, METHODS, field)
        one_sided = "less"  # the first method of a pair has the smaller value
        results = []
        for first, second in PAIRS:
            two_sided = field == "seconds" and first == "fw" and second == "mfw"
            kind = "two-sided" if two_sided else one_sided
            results.append(wilcoxon(found[first], found[second], kind))
        results.append(friedman([found[m] for m in METHODS]))
        answers[field] = results
    return answers


def tests(study: Study, _: Path) -> Shown:
    answers = hypothesis_tests(study)
    rows = []
    for field, results in answers.items():
        rows.append(
            [f"{field}: W or F", *(beside(TABLE_5[field][k], r[0]) for k, r in enumerate(results))]
        )
        rows.append(
            [f"{field}: p", *(beside(TABLE_6[field][k], r[1]) for k, r in enumerate(results))]
        )
    heads = ["printed / ours", "FW, CVM", "MFW, CVM", "FW, MFW", "all (Friedman)"]
    level, claims = 0.05, []
    words = {
        ("seconds", 0): "FW is faster than CVM",
        ("seconds", 1): "MFW is faster than CVM",
        ("seconds", 2): "times of FW and MFW differ",
        ("accuracy", 0): "CVM is more accurate than FW",
        ("accuracy", 1): "CVM is more accurate than MFW",
        ("accuracy", 2): "MFW is more accurate than FW",
    }
    for (field, k), text in words.items():
        printed, ours = TABLE_6[field][k] < level, answers[field][k][1] < level
        verdict = "found" if printed else "not found"
        claims.append(Claim(f"{text}: {verdict} at 5 %", printed == ours))
    return Shown(table(heads, rows), claims)


# -- figures 7 and 8: the effect of C ------------------------------------------------------------


def effect_runs(_: Study) -> list[Run]:
    return [fit(s, m, C=C) for s in EFFECT_SETS for m in METHODS for C in EFFECT_CS]


def _effect(number: int, sets: Sequence[str]) -> Callable[[Study, Path], Shown]:
    def show(study: Study, folder: Path) -> Shown:
        def value(s: str, m: str, C: float, field: str) -> float:
            record = study[fit(s, m, C=C)]
            return 100 * record[field] if field == "accuracy" else record[field]

        name = f"meb-figure{number}"

        def plot(figure: Any) -> None:
            for k, field in enumerate(("accuracy", "seconds")):
                for j, s in enumerate(sets):
                    axes = figure.add_subplot(2, len(sets), k * len(sets) + j + 1)
                    for m in METHODS:
                        line = [value(s, m, C, field) for C in EFFECT_CS]
                        axes.semilogx(
                            EFFECT_CS, line, "o-", color=COLORS[m], markersize=3, label=LABELS[m]
                        )
                    if field == "seconds":
                        axes.set_yscale("log")
                    axes.set(title=s, xlabel="C", ylabel=field)
            legend_below(figure)

        text = draw(folder, name, plot, (9, 6))
        first, last = EFFECT_CS[0], EFFECT_CS[-1]
        claims = [
            Claim(f"on {s} CVM takes less time with the largest C than with the smallest",
                  value(s, "cvm", last, "seconds") < value(s, "cvm", first, "seconds"))
            for s in sets
        ]  # fmt: skip
        return Shown(text, claims)

    return show


# -- table 8: the polynomial kernel --------------------------------------------------------------


def table8(study: Study, _: Path) -> Shown:
    rows, close, pairs = [], [], {}
    for name in POLY_SETS:
        printed = TABLE_8[name]
        for j, m in enumerate(("fw", "mfw")):
            run = fit(name, m, kernel="poly")
            own = [study.median(run, field) for field in ("accuracy", "seconds")]
            rbf = study.median(fit(name, m), "accuracy")
            close.append(abs(own[0] - rbf) < 3)
            pairs[f"{name} {LABELS[m]}"] = printed[0][j], own[0]
            cells = beside(printed[0][j], own[0], "{:.2f}"), beside(printed[1][j], own[1])
            rows.append([name if j == 0 else "", LABELS[m], *cells, f"{rbf:.2f}"])
    heads = ["set", "method", "accuracy, printed / ours", "seconds", "ours with RBF"]
    claim = Claim("accuracies are within 3 points of those of the RBF kernel", all(close))
    return Shown(table(heads, rows), [near(pairs), claim])


TITLE = (
    "MEB paper: Frandi, Gasparo, Lodi, Nanculef, Sartori, Training support vector machines using "
    "Frank-Wolfe optimization methods (2013)"
)

ENTRIES: dict[str, Entry | Absent] = {
    "table1": Absent(
        "Table 1: features of the data sets", "the sets as they are here are listed under Data"
    ),
    "figure1": Absent("Figures 1 and 2", "sketches of approximating balls and directions"),
    "table2": Entry("Table 2: accuracy of CVM, FW, MFW", grid_runs(SETS, METHODS), table2),
    "table3": Entry("Table 3: times of CVM, FW, MFW", grid_runs(SETS, METHODS), table3),
    "figure3": Entry(
        "Figure 3: the web collection", grid_runs(WEB, METHODS), _collection("meb-figure3", WEB)
    ),
    "figure4": Entry(
        "Figure 4: the adult collection",
        grid_runs(ADULT, METHODS),
        _collection("meb-figure4", ADULT),
    ),
    "figure5": Entry(
        "Figure 5: single sets, medium",
        grid_runs((*MEDIUM, "protein"), METHODS),
        _collection("meb-figure5", (*MEDIUM, "protein")),
    ),
    "figure6": Entry(
        "Figure 6: single sets, large",
        grid_runs(LARGE, METHODS),
        _collection("meb-figure6", LARGE),
    ),
    "tables5to7": Entry(
        "Tables 4 to 7: signed-ranks and Friedman tests", grid_runs(SETS, METHODS), tests
    ),
    "figure7": Entry("Figure 7: effect of C", effect_runs, _effect(7, EFFECT_SETS[:2])),
    "figure8": Entry("Figure 8: effect of C", effect_runs, _effect(8, EFFECT_SETS[2:])),
    "table8": Entry(
        "Table 8: polynomial kernel",
        lambda study: [
            *grid_runs(POLY_SETS, ("fw", "mfw"), kernel="poly")(study),
            *grid_runs(POLY_SETS, ("fw", "mfw"))(study),
        ],
        table8,
    ),
}
