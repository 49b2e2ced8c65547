"""The papers that stop at an absolute gap: RBF kernel, one thread, 20 random rows to begin with.

- Frandi, Nanculef, Suykens (2015), A PARTAN-accelerated Frank-Wolfe algorithm;
- Frandi, Nanculef, Suykens (2014), Complexity issues and randomization strategies in Frank-Wolfe.

The gap is that of f = 1/2 a'Ka, and sigma^2 is the average squared distance. The second paper has
FW alone, over all rows or over random ones.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from bench.papers.entries import PRINTED, Compared, Entry, Panel, Shown, compare, draw
from bench.papers.runs import DECADES, Run, Study
from bench.published import table

LABELS = {"fw": "FW", "mfw": "MFW", "swap": "SWAP", "partan": "PARTAN"}
SETS = ("a9a", "w8a", "ijcnn1", "usps-ext", "kdd-binary")
SPARSE = ("w8a", "ijcnn1", "usps-ext", "kdd-binary")  # where the paper finds few support vectors
PATHS = ("a9a", "w8a", "ijcnn1")
TOLERANCES = DECADES[1:]


def to_gap(name: str, method: str, sample: int | None = None, **more: Any) -> Run:
    """A training to 1e-4, over all rows or over samples."""
    if sample is not None:
        more |= {"lmo": "sampled", "sample_size": sample}
    return Run(name, method, chosen_at="gap", **{"tol": 1e-4, **more})


def _fits(sample: int | None) -> list[Run]:
    return [to_gap(name, method, sample) for name in SETS for method in LABELS]


def _compared(study: Study, number: int, sample: int | None) -> Compared:
    runs = {label: partial(to_gap, method=m, sample=sample) for m, label in LABELS.items()}
    return compare(study, PRINTED["partan"][f"table{number}"], runs)


def table2(study: Study, _: Path) -> Shown:
    text, found, near = _compared(study, 2, None)
    accuracy, steps, support = found["accuracy"], found["iterations"], found["n_support"]
    times = [found["seconds"][s, "FW"] / found["seconds"][s, "PARTAN"] for s in SETS]
    ratios = [steps[s, "FW"] / steps[s, "PARTAN"] for s in SETS]
    text += (
        f"\n\nFW over PARTAN, mean over the sets: time {sum(times) / len(SETS):.2f} (printed 2.52, "
        f"with RCV1), iterations {sum(ratios) / len(SETS):.2f}."
    )
    spread = [np.ptp([accuracy[s, label] for label in LABELS.values()]) for s in SETS]
    return Shown(text, near | {
        "PARTAN takes fewer iterations than FW on every set": min(ratios) > 1,
        "PARTAN takes the fewest iterations of all where the solution is sparse": all(
            steps[s, "PARTAN"] == min(steps[s, label] for label in LABELS.values()) for s in SPARSE
        ),
        "PARTAN's advantage is smallest on a9a, whose solution is dense":
            SETS[int(np.argmin(ratios))] == "a9a",
        "PARTAN finds no more support vectors than FW":
            all(support[s, "PARTAN"] <= 1.02 * support[s, "FW"] for s in SETS),
        "accuracies of the four methods are within a point of each other": max(spread) < 1,
    })  # fmt: skip


def table4(study: Study, _: Path) -> Shown:
    text, found, near = _compared(study, 4, 194)
    full = _compared(study, 2, None)[1]
    steps, all_steps = found["iterations"], full["iterations"]
    return Shown(text, near | {
        "sampled runs of FW take no more iterations than those over all rows":
            all(steps[s, "FW"] <= 1.02 * all_steps[s, "FW"] for s in SETS),
        "on a9a the sampled iterations of FW are nearly as many as those over all rows":
            steps["a9a", "FW"] > 0.7 * all_steps["a9a", "FW"],
        "the accuracy of sampled runs is within a point of that over all rows":
            all(abs(own - full["accuracy"][key]) < 1 for key, own in found["accuracy"].items()),
        "PARTAN takes fewer iterations than FW":
            all(steps[s, "PARTAN"] < steps[s, "FW"] for s in SETS),
    })  # fmt: skip


_path = partial(to_gap, tol=1e-6, path=True)
"""One run to the smallest tolerance, which passes all the others on its way."""


def table3(study: Study, _: Path) -> Shown:
    rows, growth, made = [], {}, {}
    for name in PATHS:
        for method, label in LABELS.items():
            record = study[_path(name, method)]
            points = [record["reached"].get(f"{tol:g}") for tol in TOLERANCES]
            counts = [point[0] for point in points if point is not None]
            growth[name, method] = [last / max(first, 1) for first, last in pairwise(counts)]
            made[name, method] = record["iterations"]
            printed = PRINTED["partan"]["table3"][name][method]
            cells = []
            for k, point in enumerate(points):
                cell = f"{printed['seconds'][k]:,.3g} s, {printed['iterations'][k]:,.0f} / "
                ours = f"> {made[name, method]:,}"
                cells.append(cell + (f"{point[3]:.3g} s, {point[0]:,}" if point else ours))
            rows.append([name if method == "fw" else "", label, *cells])
    heads = ["set", "method", *(f"{tol:.0e}: seconds, iterations" for tol in TOLERANCES)]
    last = {key: own[-1] if own else float("nan") for key, own in growth.items()}
    return Shown(table(heads, rows), {
        "the iterations of FW grow tenfold with each decade below 1e-4 (7 to 14)":
            all(7 < value < 14 for s in PATHS for value in growth[s, "fw"][1:]),
        "those of MFW and SWAP grow far less from 1e-5 to 1e-6 (under 5)":
            all(last[s, m] < 5 for s in PATHS for m in ("mfw", "swap")),
        "PARTAN takes fewer iterations than FW, in the end with more growth than those of MFW":
            all(made[s, "partan"] < made[s, "fw"] and last[s, "partan"] > last[s, "mfw"]
                for s in PATHS),
        "to 1e-6, MFW and SWAP take a fifth of FW's iterations at most":
            all(made[s, m] <= 0.2 * made[s, "fw"] for s in PATHS for m in ("mfw", "swap")),
    })  # fmt: skip


def figure3(study: Study, folder: Path) -> Shown:
    panels = []
    for name in PATHS:
        points = {label: study[_path(name, m)]["points"] for m, label in LABELS.items()}
        lines = {label: [(p[0], max(p[1], 1e-12)) for p in own] for label, own in points.items()}
        scales = {"title": name, "xscale": "log", "yscale": "log"}
        panels.append(Panel(lines, scales | {"xlabel": "iteration", "ylabel": "duality gap"}))
    return Shown(draw(folder, "partan-figure3", panels, (12, 4), linewidth=0.8), {})


PATH_RUNS = [_path(name, method) for name in PATHS for method in LABELS]

# -- the randomization paper ---------------------------------------------------------------------

N_ROWS = {"a9a": 32_561, "w8a": 49_749, "ijcnn1": 49_990, "usps-ext": 266_079}
TITLES = {None: "all rows"} | {size: f"{size} rows" for size in (1000, 500, 250, 125)}
SAMPLES = [size for size in TITLES if size is not None]
FIGURE_SETS, FIGURE_SIZES = ("a9a", "usps-ext"), (1000, 250, 125)


def _sizes(study: Study) -> Compared:
    runs = {title: partial(to_gap, method="fw", sample=size) for size, title in TITLES.items()}
    return compare(study, PRINTED["randomization"]["table1"], runs)


def sizes(study: Study, _: Path) -> Shown:
    text, found, near = _sizes(study)
    seconds, support = found["seconds"], found["n_support"]
    samples = [TITLES[size] for size in SAMPLES]
    falling = [((s, large), (s, small)) for s in N_ROWS for large, small in pairwise(samples)]
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


def costs(study: Study, _: Path) -> Shown:
    """Kernel values of samples and of all rows, where the paper's rule says which is cheaper."""
    found = _sizes(study)[1]
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


def _watched(name: str, size: int | None) -> Run:
    return to_gap(name, "fw", size, path=True, watched=size is not None)


def gaps(study: Study, folder: Path, number: int) -> Shown:
    """Figure 1 has the gap over all rows, figure 2 that of the sample."""
    kind, place = ("over all rows", 2) if number == 1 else ("of the sample", 1)
    panels, ratios = [], {}
    for name in FIGURE_SETS:
        paths = {size: study[_watched(name, size)]["points"] for size in (None, *FIGURE_SIZES)}
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
WATCHED_RUNS = [_watched(name, size) for name in FIGURE_SETS for size in (None, *FIGURE_SIZES)]

ENTRIES = {
    "partan": {
        "table2": Entry(_fits(None), table2),
        "table3": Entry(PATH_RUNS, table3),
        "table4": Entry(_fits(None) + _fits(194), table4),
        "figure3": Entry(PATH_RUNS, figure3),
    },
    "randomization": {
        "table1": Entry(FITS, sizes),
        "figure1": Entry(WATCHED_RUNS, partial(gaps, number=1)),
        "figure2": Entry(WATCHED_RUNS, partial(gaps, number=2)),
        "table2": Entry(FITS, costs),
    },
}
