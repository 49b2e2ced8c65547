"""What a table or a figure of a paper is, and what they share: tables, plots, words for claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.papers.data import SETS, read_toml
from bench.papers.runs import Run, Study
from bench.published import table

Claims = dict[str, bool | np.bool_]
"""Statements of a paper, and whether our runs say the same."""

PRINTED = read_toml("printed.toml")
"""What the papers print, by paper and table."""

FIELDS = {
    "accuracy": ("accuracy, %", "{:.2f}"),
    "seconds": ("seconds", "{:.3g}"),
    "iterations": ("iterations", "{:,.0f}"),
    "n_support": ("support vectors", "{:,.0f}"),
}
"""Fields of a record in the order of the printed tables: title, and form of a cell."""


class Shown(NamedTuple):
    """What the runs of an entry show: Markdown, and the claims that were checked."""

    text: str
    claims: Claims


class Entry(NamedTuple):
    """A table or figure that is measured again: its runs, and a function that shows them.

    The function is given the study, in which these runs are, and the folder of figures.
    """

    runs: Sequence[Run]
    show: Callable[[Study, Path], Shown]


# -- tables --------------------------------------------------------------------------------------


Compared = tuple[str, dict[str, dict[tuple[str, str], float]], Claims]
"""A table in Markdown; medians by field, set and method; and the claim on accuracies."""


def compare(
    study: Study,
    printed: Mapping[str, Any],
    methods: Mapping[str, Callable[[str], Run]],
    fields: Sequence[str] = tuple(FIELDS),
    *,
    spread: bool = False,
) -> Compared:
    """Put a printed table beside ours: by set and field, it has a value for each method.

    `methods` are titles of columns and their runs by set.
    """
    found: dict[str, dict[tuple[str, str], float]] = {field: {} for field in fields}
    rows, pairs = [], {}
    for name, values in printed.items():
        for field in fields:
            title, form = FIELDS[field]
            row = [name if field == fields[0] else "", title]
            for (method, run), value in zip(methods.items(), values[field], strict=True):
                own = study.median(run(name), field)
                found[field][name, method] = own
                row.append(beside(value, own, form))
                if spread:
                    row[-1] += f" ± {form.format(np.std(study.values(run(name), field)))}"
                if field == "accuracy":
                    pairs[f"{name} {method}"] = value, own
            rows.append(row)
    text = table(["set", "printed / ours", *methods], rows)
    return text, found, near(pairs)


def beside(printed: float, ours: float, form: str = "{:.3g}") -> str:
    """A printed and a measured figure in one cell."""
    return f"{form.format(printed)} / {form.format(ours)}"


def near(pairs: Mapping[str, tuple[float, float]]) -> Claims:
    """Whether accuracies, printed and ours, differ by a point at most where the set is the same.

    Keys begin with the name of the set.
    """
    same = {key: pair for key, pair in pairs.items() if "note" not in SETS[key.split()[0]]}
    far = [
        f"{key} {beside(*pair, '{:.2f}')}"
        for key, pair in same.items()
        if abs(pair[0] - pair[1]) > 1
    ]
    text = "accuracies are within a point of the printed ones wherever the set is the same"
    sets = ", ".join(dict.fromkeys(key.split()[0] for key in same))
    return {text + f" ({sets})" + ("; not so: " + ", ".join(far) if far else ""): not far}


# -- figures -------------------------------------------------------------------------------------


class Panel(NamedTuple):
    """One plot of a figure: lines of points by their labels, and properties of its axes."""

    lines: Mapping[str, Iterable[tuple[Any, float]]]
    properties: Mapping[str, Any]


def draw(
    folder: Path,
    name: str,
    panels: Sequence[Panel],
    size: tuple[float, float],
    n_rows: int = 1,
    *,
    styles: Mapping[str, Mapping[str, Any]] = {},
    **style: Any,
) -> str:
    """Save a figure with one legend below, and say in Markdown where it is.

    `style` is of all lines, and `styles` are of those with some labels.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=size, layout="constrained")
    for k, (lines, properties) in enumerate(panels, 1):
        axes = figure.add_subplot(n_rows, len(panels) // n_rows, k)
        for label, points in lines.items():
            x, y = zip(*points, strict=True)
            axes.plot(x, y, label=label, **style, **styles.get(label, {}))
            if isinstance(x[0], str):
                axes.tick_params(axis="x", rotation=60)
        axes.set(**properties)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=80)
    plt.close(figure)
    return f"![{name}](figures/{name}.png)"
