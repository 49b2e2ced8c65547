"""Frandi, Nanculef, Suykens (2014), Complexity issues and randomization strategies in Frank-Wolfe.

FW at an absolute gap of 1e-4, over all rows or over random ones, RBF kernel, one thread.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from bench.papers.entries import PRINTED, Compared, Entry, Panel, Shown, compare, draw
from bench.papers.partan import to_gap
from bench.papers.runs import Run, Study
from bench.report import table

N_ROWS = {"a9a": 32_561, "w8a": 49_749, "ijcnn1": 49_990, "usps-ext": 266_079}
TITLES = {None: "all rows"} | {size: f"{size} rows" for size in (1000, 500, 250, 125)}
SAMPLES = [size for size in TITLES if size is not None]
FIGURE_SETS, FIGURE_SIZES = ("a9a", "usps-ext"), (1000, 250, 125)


def _compared(study: Study) -> Compared:
    runs = {title: partial(to_gap, method="fw", sample=size) for size, title in TITLES.items()}
    return compare(study, PRINTED["randomization"]["table1"], runs)


def table1(study: Study, _: Path) -> Shown:
    text, found, near = _compared(study)
    seconds, support = found["seconds"], found["n_support"]
    falling = [
        ((name, TITLES[large]), (name, TITLES[small]))
        for name in N_ROWS
        for large, small in pairwise(SAMPLES)
    ]
    return Shown(text, near | {
        "iterations fall with the sample size":
            all(found["iterations"][b] <= 1.03 * found["iterations"][a] for a, b in falling),
        "seconds fall with the sample size":
            all(seconds[b] <= 1.1 * seconds[a] for a, b in falling),
        "on the small sets, all rows with the analytic gradient cost less than samples of 1000":
            all(seconds[s, "all rows"] < seconds[s, "1000 rows"] for s in ("a9a", "ijcnn1")),
        "on usps-ext, small samples cost less than all rows":
            seconds["usps-ext", "125 rows"] < seconds["usps-ext", "all rows"],
        "on ijcnn1 the model of 125 rows is no smaller than that of all rows":
            support["ijcnn1", "125 rows"] >= 0.9 * support["ijcnn1", "all rows"],
    })  # fmt: skip


def table2(study: Study, _: Path) -> Shown:
    """Kernel values of samples and of all rows, where the paper's rule says which is cheaper."""
    found = _compared(study).found
    steps = {key: own / found["iterations"][key] for key, own in found["seconds"].items()}
    rows, right = [], []
    for name, size in product(N_ROWS, SAMPLES):
        own, full = steps[name, TITLES[size]], steps[name, "all rows"]
        # The mean support is about half of the last one.
        bound = N_ROWS[name] / (found["n_support"][name, TITLES[size]] / 2)
        right.append((size < bound) == (own < full))
        cells = f"{bound:.0f}", f"{1e3 * own:.2f}", f"{1e3 * full:.2f}"
        rows.append([name, size, *cells, "samples" if own < full else "all rows"])
    heads = ["set", "sample", "m / mean support", "ms a step", "ms, all rows", "cheaper"]
    text = table(heads, rows) + (
        "\n\nThe paper recommends samples where their size is far below m / mean support, and the "
        f"analytic gradient elsewhere. Measured, that picks the cheaper step in {sum(right)} of "
        f"{len(right)} cases."
    )
    return Shown(text, {"the rule picks the cheaper step in most cases": np.mean(right) > 0.5})


# -- figures -------------------------------------------------------------------------------------


def _path(name: str, size: int | None) -> Run:
    return to_gap(name, "fw", size, path=True, watched=size is not None)


def figure(study: Study, folder: Path, number: int) -> Shown:
    """Figure 1 has the gap over all rows, figure 2 that of the sample."""
    kind, place = ("over all rows", 2) if number == 1 else ("of the sample", 1)
    panels, ratios = [], {}
    for name in FIGURE_SETS:
        paths = {size: study[_path(name, size)]["points"] for size in (None, *FIGURE_SIZES)}
        lines = {}
        for size, points in paths.items():
            gap = 1 if size is None else place
            lines[f"{size or 'all'} rows"] = [(p[0], max(p[gap], 1e-7)) for p in points]
            if size is not None:
                ratios[name, size] = [exact / own for _, own, exact in points if own > 0]
        axes = {"title": name, "yscale": "log", "ylim": (3e-5, None), "xlabel": "iteration"}
        panels.append(Panel(lines, axes | {"ylabel": f"gap {kind}"}))
    text = draw(folder, f"randomization-figure{number}", panels, (10, 4), linewidth=0.8)
    middle = {key: np.median(own) for key, own in ratios.items()}
    text += "\n\nMedian of the gap over all rows divided by that of the sample: " + "; ".join(
        f"{name}, {size} rows {value:.2f}" for (name, size), value in middle.items()
    )
    return Shown(text, {
        "the gap of the sample is closer to that of all rows on a9a than on usps-ext":
            middle["a9a", 125] < middle["usps-ext", 125],
        "the gap of the sample is never above that of all rows":
            min(min(own, default=1.0) for own in ratios.values()) > 0.999,
    })  # fmt: skip


FITS = [to_gap(name, "fw", size) for name in N_ROWS for size in TITLES]
PATHS = [_path(name, size) for name in FIGURE_SETS for size in (None, *FIGURE_SIZES)]

ENTRIES = {
    "table1": Entry(FITS, table1),
    "figure1": Entry(PATHS, partial(figure, number=1)),
    "figure2": Entry(PATHS, partial(figure, number=2)),
    "table2": Entry(FITS, table2),
}
