"""The papers that stop at an absolute gap: RBF kernel, one thread, 20 random rows to begin with.

- Frandi, Nanculef, Suykens (2015), A PARTAN-accelerated Frank-Wolfe algorithm;
- Frandi, Nanculef, Suykens (2014), Complexity issues and randomization strategies in Frank-Wolfe.

The gap is that of f = 1/2 a'Ka, and sigma^2 is the average squared distance. The second paper has
FW alone, over all rows or over random ones.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from bench.papers.study import DECADES, PRINTED, Compared, Entry, Run, Shown, Study, compare, draw
from bench.published import table

LABELS = {"fw": "FW", "mfw": "MFW", "swap": "SWAP", "partan": "PARTAN"}
SETS = ("a9a", "w8a", "ijcnn1", "usps-ext", "kdd-binary")
SPARSE = ("w8a", "ijcnn1", "usps-ext", "kdd-binary")  # where the paper finds few support vectors
PATHS = ("a9a", "w8a", "ijcnn1")


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


def table2(study: Study) -> Shown:
    text, found = _compared(study, 2, None)
    steps, support = found["iterations"], found["n_support"]
    times = [found["seconds"][s, "FW"] / found["seconds"][s, "PARTAN"] for s in SETS]
    ratios = [steps[s, "FW"] / steps[s, "PARTAN"] for s in SETS]
    text += (
        f"\n\nFW over PARTAN, mean over the sets: time {sum(times) / len(SETS):.2f} (printed 2.52, "
        f"with RCV1), iterations {sum(ratios) / len(SETS):.2f}."
    )
    return text, {
        "PARTAN takes fewer iterations than FW on every set": min(ratios) > 1,
        "PARTAN takes the fewest iterations of all where the solution is sparse": all(
            steps[s, "PARTAN"] == min(steps[s, label] for label in LABELS.values()) for s in SPARSE
        ),
        "PARTAN's advantage is smallest on a9a, whose solution is dense":
            SETS[int(np.argmin(ratios))] == "a9a",
        "PARTAN finds no more support vectors than FW":
            all(support[s, "PARTAN"] <= 1.02 * support[s, "FW"] for s in SETS),
    }  # fmt: skip


def table4(study: Study) -> Shown:
    text, found = _compared(study, 4, 194)
    full = _compared(study, 2, None)[1]
    steps, all_steps = found["iterations"], full["iterations"]
    return text, {
        "sampled runs of FW take no more iterations than those over all rows":
            all(steps[s, "FW"] <= 1.02 * all_steps[s, "FW"] for s in SETS),
        "the accuracy of sampled runs is within a point of that over all rows":
            all(abs(own - full["accuracy"][key]) < 1 for key, own in found["accuracy"].items()),
        "PARTAN takes fewer iterations than FW":
            all(steps[s, "PARTAN"] < steps[s, "FW"] for s in SETS),
    }  # fmt: skip


_path = partial(to_gap, tol=1e-6, path=True)
"""One run to the smallest tolerance, which passes all the others on its way."""


def table3(study: Study) -> Shown:
    rows, growth, made = [], {}, {}
    for name in PATHS:
        for method, label in LABELS.items():
            record = study[_path(name, method)]
            points = [record["reached"].get(f"{tol:g}") for tol in DECADES[1:]]
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
    heads = ["set", "method", *(f"{tol:.0e}: seconds, iterations" for tol in DECADES[1:])]
    last = {key: own[-1] if own else float("nan") for key, own in growth.items()}
    return table(heads, rows), {
        "the iterations of FW grow tenfold with each decade below 1e-4 (7 to 14)":
            all(7 < value < 14 for s in PATHS for value in growth[s, "fw"][1:]),
        "those of MFW and SWAP grow far less from 1e-5 to 1e-6 (under 5)":
            all(last[s, m] < 5 for s in PATHS for m in ("mfw", "swap")),
        "to 1e-6, MFW and SWAP take a fifth of FW's iterations at most":
            all(made[s, m] <= 0.2 * made[s, "fw"] for s in PATHS for m in ("mfw", "swap")),
    }  # fmt: skip


SIZED = ("a9a", "w8a", "ijcnn1", "usps-ext")
TITLES = {None: "all rows"} | {size: f"{size} rows" for size in (1000, 500, 250, 125)}


def sizes(study: Study) -> Shown:
    runs = {title: partial(to_gap, method="fw", sample=size) for size, title in TITLES.items()}
    text, found = compare(study, PRINTED["randomization"]["table1"], runs)
    seconds, samples = found["seconds"], [*runs][1:]
    falling = [((s, large), (s, small)) for s in SIZED for large, small in pairwise(samples)]
    return text, {
        "iterations fall with the sample size":
            all(found["iterations"][b] <= 1.03 * found["iterations"][a] for a, b in falling),
        "seconds fall with the sample size":
            all(seconds[b] <= 1.1 * seconds[a] for a, b in falling),
        "on the small sets, all rows with the analytic gradient cost less than samples of 1000":
            all(seconds[s, "all rows"] < seconds[s, "1000 rows"] for s in ("a9a", "ijcnn1")),
        "on usps-ext, small samples cost less than all rows":
            seconds["usps-ext", "125 rows"] < seconds["usps-ext", "all rows"],
    }  # fmt: skip


RULE_SETS = ("w7a", "ijcnn1", "a9a", "usps", "kdd-binary")
DROPS = ("mfw", "swap", "swap2")
RULES = ("fw", "partan", *DROPS, "cvm", "corrective")


def _rule(name: str, rule: str) -> Run:
    """With the exact gap of all rows, from the same 20 random rows, to a gap of 1e-6."""
    return Run(name, rule, tol=1e-6, rows=5_000, path=True, max_iter=60_000)


def rules(study: Study) -> Shown:
    rows, panels = [], dict[str, dict[str, list[tuple[float, float]]]]()
    seconds: dict[tuple[str, str], float] = {}
    for name in RULE_SETS:
        lines = panels[name] = {}
        for rule in RULES:
            record = study[_rule(name, rule)]
            reached = [record["reached"].get(f"{tol:g}") for tol in DECADES]
            cells = [
                f"{p[0]:,} / {p[4] / 1e6:.3g} / {p[3]:.2g}" if p else f"> {record['iterations']:,}"
                for p in reached
            ]
            seconds[name, rule] = reached[-1][3] if reached[-1] else float("inf")
            rows.append([name, rule, *cells, record["n_support"]])
            lines[rule] = [(p[0] + 1, max(p[1], 1e-7)) for p in record["points"]]
    best = {name: min((seconds[name, rule], rule) for rule in RULES)[1] for name in RULE_SETS}
    axes = {"xscale": "log", "yscale": "log", "xlabel": "iteration", "ylabel": "gap"}
    text = table(["set", "rule", *(f"{tol:.0e}" for tol in DECADES), "vectors"], rows) + (
        "\n\nIn each cell: iterations / million kernel values / seconds to that absolute gap, on "
        f"5,000 random rows of each set.\n\n{draw(study, 'rules', panels, **axes)}\n\n"
        "Fastest to 1e-6: "
        + "; ".join(
            f"{name}: {best[name]} ({seconds[name, best[name]]:.2g} s)" for name in RULE_SETS
        )
    )
    return text, {
        "fully corrective steps of many vertices are the fastest to 1e-6 on most sets":
            sum(best[name] == "corrective" for name in RULE_SETS) >= 3,
        "among single steps, those that drop vertices reach 1e-6 sooner than FW":
            all(min(seconds[s, rule] for rule in DROPS) < seconds[s, "fw"] for s in RULE_SETS),
    }  # fmt: skip


ENTRIES = {
    "partan": {
        "table2": Entry(_fits(None), table2),
        "table3": Entry([_path(name, method) for name in PATHS for method in LABELS], table3),
        "table4": Entry(_fits(None) + _fits(194), table4),
    },
    "randomization": {
        "table1": Entry([to_gap(s, "fw", size) for s in SIZED for size in TITLES], sizes)
    },
    "rules": {"rules": Entry([_rule(s, rule) for s in RULE_SETS for rule in RULES], rules)},
}
