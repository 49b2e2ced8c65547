"""Printed tables beside ours: figures, orders of methods, and how near accuracies are."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from bench.papers.data import NOTES
from bench.papers.entries import Claim, beside
from bench.papers.runs import Run, Study
from bench.report import table

FIELDS = {
    "accuracy": ("accuracy, %", "{:.2f}"),
    "seconds": ("seconds", "{:.3g}"),
    "iterations": ("iterations", "{:,.0f}"),
    "n_support": ("support vectors", "{:,.0f}"),
}
"""Fields of a record in the order of the printed tables: title, and form of a cell."""

Printed = Mapping[str, Sequence[Sequence[float]]]
"""By set, a row for each of `FIELDS`, each with a value for each method."""

PRINTED: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("printed.toml").read_text()
)
"""What the papers print, by paper and table."""


def printed_rows(paper: str, name: str) -> dict[str, tuple[tuple[float, ...], ...]]:
    """A printed table: by set, a row for each field, each with a value for each method."""
    return {key: tuple(map(tuple, own.values())) for key, own in PRINTED[paper][name].items()}


Medians = dict[tuple[str, str], tuple[float, ...]]
"""By set and method, medians of `FIELDS`."""


@dataclass(frozen=True)
class Compared:
    """A printed table beside ours, in Markdown, our figures, and the claim on accuracies."""

    text: str
    found: Medians
    near: Claim


def compare(
    study: Study, printed: Printed, methods: Mapping[str, Callable[[str], Run]]
) -> Compared:
    """Put a printed table beside ours; `methods` are titles of columns and their runs by set."""
    found: Medians = {
        (name, method): tuple(study.median(run(name), field) for field in FIELDS)
        for name in printed
        for method, run in methods.items()
    }
    rows, orders, pairs = [], [], {}
    for name, values in printed.items():
        for k, (title, form) in enumerate(FIELDS.values()):
            own = [found[name, method][k] for method in methods]
            cells = [beside(one, other, form) for one, other in zip(values[k], own, strict=True)]
            rows.append([name if k == 0 else "", title, *cells])
            if title in ("seconds", "iterations"):
                order = order_cells(list(methods), values[k], own)
                orders.append([name if title == "seconds" else "", title, *order])
        for place, method in enumerate(methods):
            pairs[f"{name} {method}"] = values[0][place], found[name, method][0]
    text = table(["set", "printed / ours", *methods], rows)
    text += "\n\n" + table(["set", *ORDER_HEADS], orders)
    return Compared(text, found, near(pairs))


ORDER_HEADS = ("least first", "printed", "ours", "pairs that agree")


def order_cells(
    methods: Sequence[str], printed: Sequence[float], ours: Sequence[float]
) -> list[str]:
    """The order of some methods, printed and ours, and how many pairs are in the same order."""
    pairs = list(combinations(range(len(methods)), 2))
    agree = sum((printed[a] < printed[b]) == (ours[a] < ours[b]) for a, b in pairs)
    both = [", ".join(methods[k] for k in np.argsort(values)) for values in (printed, ours)]
    return [*both, f"{agree} of {len(pairs)}"]


def near(pairs: Mapping[str, tuple[float, float]]) -> Claim:
    """Whether accuracies, printed and ours, differ by a point at most where the set is the same.

    Keys begin with the name of the set.
    """
    same = {key: pair for key, pair in pairs.items() if key.split()[0] not in NOTES}
    far = [
        f"{key} {beside(*pair, '{:.2f}')}"
        for key, pair in same.items()
        if abs(pair[0] - pair[1]) > 1
    ]
    text = "accuracies are within a point of the printed ones wherever the set is the same"
    sets = ", ".join(dict.fromkeys(key.split()[0] for key in same))
    text += f" ({sets})" + ("; not so: " + ", ".join(far) if far else "")
    return Claim(text, not far)
