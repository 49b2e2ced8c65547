"""What a table or a figure of a paper is: its runs, what they show, and what the paper claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.papers.runs import Run, Study


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and whether our runs say the same."""

    text: str
    holds: bool


@dataclass
class Shown:
    """What the runs of an entry show: Markdown, and the claims that were checked."""

    text: str
    claims: list[Claim] = field(default_factory=list)


@dataclass(frozen=True)
class Entry:
    """A table or figure that is measured again.

    Parameters
    ----------
    title : str
        As in the paper, with the place.
    runs : callable
        From the study to the runs that the entry needs.
    show : callable
        From the study, in which these runs are, and the folder of figures to what they show.
    """

    title: str
    runs: Callable[[Study], Sequence[Run]]
    show: Callable[[Study, Path], Shown]


@dataclass(frozen=True)
class Absent:
    """A table or figure that is not measured, and why."""

    title: str
    why: str


def draw(folder: Path, name: str, plot: Callable[[Any], None], size: tuple[float, float]) -> str:
    """Save a figure, and say in Markdown where it is; `plot` is given the Matplotlib figure."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=size, layout="constrained")
    plot(figure)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=80)
    plt.close(figure)
    return f"![{name}](figures/{name}.png)"


def legend_below(figure: Any) -> None:
    """One legend for all panels of a figure, below them."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def beside(printed: float | None, ours: float | None, form: str = "{:.3g}") -> str:
    """A printed and a measured figure in one cell."""
    both = ["-" if value is None else form.format(value) for value in (printed, ours)]
    return " / ".join(both)
