"""Frandi, Nanculef, Suykens (2014), Complexity issues and randomization strategies in Frank-Wolfe.

FW at an absolute gap of 1e-4, over all rows or over random ones, RBF kernel, one thread.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.papers.compared import Compared, compare, printed_rows
from bench.papers.entries import Absent, Claim, Entry, Shown, draw, legend_below
from bench.papers.runs import Run, Study
from bench.report import table

SETS = ("a9a", "w8a", "ijcnn1", "usps-ext")
SIZES: tuple[int | None, ...] = (None, 1000, 500, 250, 125)
FIGURE_SETS, FIGURE_SIZES = ("a9a", "usps-ext"), (1000, 250, 125)

TABLE_1 = printed_rows("randomization", "table1")


def _fit(name: str, size: int | None) -> Run:
    if size is None:
        return Run(name, "fw", tol=1e-4, chosen_at="gap")
    return Run(name, "fw", lmo="random", sample_size=size, tol=1e-4, chosen_at="gap")


def _path(name: str, size: int | None) -> Run:
    return replace(_fit(name, size), path=True, watched=size is not None)


def table1_runs(study: Study) -> list[Run]:
    own = [_fit(name, size) for name in SETS for size in SIZES]
    return [run for each in own for run in study.repetitions(each)]


def _compared(study: Study) -> Compared:
    return compare(study, TABLE_1, {_title(size): partial(_fit, size=size) for size in SIZES})


def _title(size: int | None) -> str:
    return "all rows" if size is None else f"{size} rows"


def table1(study: Study, _: Path) -> Shown:
    own = _compared(study)
    found = {(s, size): own.found[s, _title(size)] for s in SETS for size in SIZES}
    claims = [
        own.near,
        Claim(
            "iterations fall with the sample size",
            all(
                found[s, small][2] <= 1.03 * found[s, large][2]
                for s in SETS
                for large, small in pairwise(SIZES[1:])
            ),
        ),
        Claim(
            "seconds fall with the sample size",
            all(
                found[s, small][1] <= 1.1 * found[s, large][1]
                for s in SETS
                for large, small in pairwise(SIZES[1:])
            ),
        ),
        Claim(
            "on the small sets, all rows with the analytic gradient cost less than samples of 1000",
            all(found[s, None][1] < found[s, 1000][1] for s in ("a9a", "ijcnn1")),
        ),
        Claim(
            "on usps-ext, small samples cost less than all rows",
            found["usps-ext", 125][1] < found["usps-ext", None][1],
        ),
        Claim(
            "on ijcnn1 the model of 125 rows is no smaller than that of all rows",
            found["ijcnn1", 125][3] >= 0.9 * found["ijcnn1", None][3],
        ),
    ]
    return Shown(own.text, claims)


# -- figures -------------------------------------------------------------------------------------


def figure_runs(_: Study) -> list[Run]:
    return [_path(name, size) for name in FIGURE_SETS for size in (None, *FIGURE_SIZES)]


def _figure(study: Study, folder: Path, number: int) -> Shown:
    """Figure 1 has the gap over all rows, figure 2 that of the sample."""
    paths = {
        (name, size): [
            (point[0], point[2 if number == 1 else 1])
            for point in study[_path(name, size)]["points"]
        ]
        for name in FIGURE_SETS
        for size in FIGURE_SIZES
    }
    for name in FIGURE_SETS:
        points = study[_path(name, None)]["points"]
        paths[name, "all"] = [(point[0], point[1]) for point in points]
    file = f"randomization-figure{number}"

    def plot(figure: Any) -> None:
        for k, name in enumerate(FIGURE_SETS):
            axes = figure.add_subplot(1, 2, k + 1)
            for size in ("all", *FIGURE_SIZES):
                x, y = zip(*((x, max(y, 1e-7)) for x, y in paths[name, size]), strict=True)
                axes.semilogy(x, y, linewidth=0.8, label=f"{size} rows")
            what = "over all rows" if number == 1 else "of the sample"
            axes.set(title=name, xlabel="iteration", ylabel=f"gap {what}", ylim=(3e-5, None))
        legend_below(figure)

    shown = Shown(draw(folder, file, plot, (10, 4)))
    exact = {key: _exact_over_sampled(study, *key) for key in _sampled_keys()}
    shown.text += "\n\nMedian of the gap over all rows divided by that of the sample: " + "; ".join(
        f"{name}, {size} rows {exact[name, size]:.2f}" for name, size in _sampled_keys()
    )
    shown.claims = [
        Claim(
            "the gap of the sample is closer to that of all rows on a9a than on usps-ext",
            exact["a9a", 125] < exact["usps-ext", 125],
        ),
        Claim(
            "the gap of the sample is never above that of all rows",
            min(min(_ratios(study, *key), default=1.0) for key in _sampled_keys()) > 0.999,
        ),
    ]
    return shown


def _sampled_keys() -> list[tuple[str, int]]:
    return [(name, size) for name in FIGURE_SETS for size in FIGURE_SIZES]


def _ratios(study: Study, name: str, size: int) -> list[float]:
    points = study[_path(name, size)]["points"]
    return [exact / own for _, own, exact in points if own > 0]


def _exact_over_sampled(study: Study, name: str, size: int) -> float:
    return float(np.median(_ratios(study, name, size)))


def figure1(study: Study, folder: Path) -> Shown:
    return _figure(study, folder, 1)


def figure2(study: Study, folder: Path) -> Shown:
    return _figure(study, folder, 2)


# -- table 2: which oracle when ------------------------------------------------------------------


def table2(study: Study, _: Path) -> Shown:
    """Kernel values of samples and of all rows, where the paper's rule says which is cheaper."""
    rows, right, found = [], [], _compared(study).found
    for name in SETS:
        full = found[name, _title(None)]
        for size in SIZES[1:]:
            own = found[name, _title(size)]
            n_rows = {"a9a": 32_561, "w8a": 49_749, "ijcnn1": 49_990, "usps-ext": 266_079}[name]
            bound = n_rows / (own[3] / 2)  # the mean support is about half of the last one
            says, is_so = size < bound, own[1] / own[2] < full[1] / full[2]
            right.append(says == is_so)
            cells = f"{bound:.0f}", f"{1e3 * own[1] / own[2]:.2f}", f"{1e3 * full[1] / full[2]:.2f}"
            rows.append([name, size, *cells, "samples" if is_so else "all rows"])
    heads = ["set", "sample", "m / mean support", "ms a step", "ms, all rows", "cheaper"]
    text = table(heads, rows)
    share = sum(right) / len(right)
    text += (
        "\n\nThe paper recommends samples where their size is far below m / mean support, and the "
        f"analytic gradient elsewhere. Measured, that picks the cheaper step in {sum(right)} of "
        f"{len(right)} cases."
    )
    return Shown(text, [Claim("the rule picks the cheaper step in most cases", share > 0.5)])


TITLE = (
    "Randomization paper: Frandi, Nanculef, Suykens, Complexity issues and randomization "
    "strategies in Frank-Wolfe algorithms for machine learning (2014)"
)

ENTRIES: dict[str, Entry | Absent] = {
    "table1": Entry("Table 1: sizes of samples", table1_runs, table1),
    "figure1": Entry("Figure 1: gap over all rows", figure_runs, figure1),
    "figure2": Entry("Figure 2: gap of the sample", figure_runs, figure2),
    "table2": Entry("Table 2: recommendations, from measurements", table1_runs, table2),
}
