"""Figures of training runs: gap, objective, support, speed, memory and steps.

Owns what the panels show and how several runs share them. Nothing here runs or reads anything: runs
come from `ooc_fw.report.runlog`. Needs matplotlib, an optional package.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array
from ooc_fw.report.runlog import Run
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which most colour-blind people tell apart, the light ones darkened.
RUN_COLORS = ("#0072b2", "#d55e00", "#009e73", "#b8609a", "#b98200", "#4597c9")
STEP_COLORS = {
    "toward": "#0072b3",
    "away": "#d55e01",
    "pairwise": "#009e74",
    "partan": "#b98201",
    "corrective": "#b8609b",
    "drop": "#767676",
}
"""No colour is that of a run, so that a theme can tell them apart."""
TEXT, GRID, SWEEP, LIMIT = "#1f2329", "#c9ced6", "#e6e9ee", "#a3162a"

_STYLES = ("-", "--", ":", "-.")
_POINTS = 800  # of a line: more cannot be seen
_BINS = 80  # of a speed
_FAR = 12.0  # ratio of the longest to the shortest run from which an axis is logarithmic
_DIVISIONS = 60  # machines, up to which their beginnings are marked
_WIDTH, _HEIGHT = 5.6, 2.9  # of a panel, in inches
_HANDLE, _LETTER = 0.7, 0.085  # widths in a legend, in inches, for the widest of usual fonts
_LABEL = 36  # letters of a run's name that a legend has room for

FORMATS = ("png", "svg", "pdf")


def load_matplotlib() -> Any:
    """The package.

    Raises
    ------
    InputError
        When it is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "figures are drawn by matplotlib, which is not installed; add it with "
            "pip install 'ooc-fw[plot]'"
        ) from None
    return matplotlib


@dataclass(frozen=True)
class Panel:
    """One quantity.

    Parameters
    ----------
    title : str
        What is shown.
    draw : callable
        Draws all runs on axes, against "time" or "iteration".
    against : tuple of str
        What it can be drawn against.
    """

    title: str
    draw: Callable[[Axes, Sequence[Run], str], None]
    against: tuple[str, ...] = ("time", "iteration")


# -- axes of time and iterations -----------------------------------------------------------------


def _time_unit(runs: Sequence[Run]) -> tuple[float, str]:
    longest = max((run.columns["elapsed_s"][-1] for run in runs if run.n_events), default=0.0)
    for seconds, name in ((7200.0, "h"), (600.0, "min")):
        if longest >= seconds:
            return (3600.0 if name == "h" else 60.0), name
    return 1.0, "s"


def _places(run: Run, against: str, runs: Sequence[Run]) -> Float64Array:
    """Place of each event on the horizontal axis."""
    if against == "iteration":
        return run.columns["iteration"]
    places: Float64Array = run.columns["elapsed_s"] / _time_unit(runs)[0]
    return places


def _finish_axis(ax: Axes, runs: Sequence[Run], against: str) -> None:
    """Label and scale the horizontal axis, the same for all panels."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    if against == "time":
        ax.set_xlabel(f"time ({_time_unit(runs)[1]})")
    else:
        ax.set_xlabel("iteration" if _one_machine(runs) else "iteration (of all machines)")
    ends = [float(_places(run, against, runs)[-1]) for run in runs if run.n_events]
    ends = [end for end in ends if end > 0]
    if not ends:
        return
    if max(ends) > _FAR * min(ends):
        firsts = [_places(run, against, runs) for run in runs if run.n_events]
        least = min(float(x[x > 0].min()) for x in firsts if (x > 0).any())
        ax.set_xscale("log")
        ax.set_xlim(max(least, max(ends) / 1e5), 1.15 * max(ends))
        _plain_decades(ax.xaxis)
    else:
        ax.set_xlim(0, 1.02 * max(ends))
        ax.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=against == "iteration"))
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def _plain_decades(axis: Any) -> None:
    """Ticks 1, 10, 100 ... written out, in between where there are few of them."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = axis.get_view_interval()
    few = high < 40 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _one_machine(runs: Iterable[Run]) -> bool:
    return all(run.n_machines == 1 for run in runs)


def run_color(runs: Sequence[Run], k: int) -> str:
    """Colour of the lines of run `k`; those without progress take none."""
    drawn = [run for run in runs if run.n_events > 0]
    return str(_style(drawn.index(runs[k]))["color"]) if runs[k] in drawn else TEXT


# -- lines ---------------------------------------------------------------------------------------


def _style(k: int) -> dict[str, Any]:
    n = len(RUN_COLORS)
    return {"color": RUN_COLORS[k % n], "linestyle": _STYLES[k // n % len(_STYLES)]}


def thin(x: Float64Array, y: Float64Array, n_bins: int) -> npt.NDArray[np.intp]:
    """Places of the points that a line through all of them needs to look the same.

    Of each of `n_bins` parts of the axis these are the first, the last, the least and the largest
    point, and points that are NaN and break the line.

    Parameters
    ----------
    x : ndarray of float64, shape (n,)
        Never falls.
    y : ndarray of float64, shape (n,)
        Values; NaN where there is none.
    n_bins : int
        Parts of the axis.
    """
    n = len(x)
    if n <= 4 * n_bins:
        return np.arange(n)
    edges = np.linspace(x[0], x[-1], n_bins + 1)[1:-1]
    starts = np.unique(np.concatenate([[0], np.searchsorted(x, edges)]))
    starts = starts[starts < n]
    ends = np.append(starts[1:], n)
    kept: set[int] = set()
    for first, last in zip(starts, ends, strict=True):
        part = y[first:last]
        kept |= {int(first), int(last) - 1}
        known = np.flatnonzero(~np.isnan(part))
        if len(known) > 0:
            values = part[known]
            kept |= {int(first + known[f(values)]) for f in (np.argmin, np.argmax)}
        if len(known) < len(part):
            kept.add(int(first + np.flatnonzero(np.isnan(part))[0]))
    return np.array(sorted(kept), dtype=np.intp)


def _line(
    ax: Axes, run: Run, x: Float64Array, y: Float64Array, *, whole: bool = False, **look: Any
) -> None:
    """Draw a line that stops where a machine ends; with `whole` it goes on."""
    breaks = [] if whole else run.new_machines()
    x, y = np.insert(x, breaks, x[breaks]), np.insert(y, breaks, np.nan)
    kept = thin(x, y, _POINTS)
    lonely = np.count_nonzero(~np.isnan(y)) == 1
    ax.plot(x[kept], y[kept], linewidth=1.5, marker="o" if lonely else None, ms=3, **look)


def _positive(values: Float64Array) -> Float64Array:
    """What a logarithmic axis can show."""
    return np.where(values > 0, values, np.nan)


def _log_scale(ax: Axes) -> None:
    """Logarithmic values, over a decade at least, so that ticks have numbers."""
    ax.set_yscale("log")
    low, high = ax.dataLim.intervaly
    if 0 < low <= high < math.inf and high < 10 * low:
        ax.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high * 1.001)))


def _from_zero(ax: Axes) -> None:
    top = ax.dataLim.intervaly[1]
    ax.set_ylim(0, 1.06 * top if 0 < top < math.inf else 1)


def _marks(ax: Axes, runs: Sequence[Run], against: str) -> None:
    """Sweeps, where there is one run; beginnings of machines; where a run was resumed."""
    if against == "time":
        unit = _time_unit(runs)[0]
        for first, last in _shown_sweeps(runs):
            ax.axvspan(first / unit, last / unit, color=SWEEP, zorder=0, linewidth=0)
    for k, run in enumerate(runs):
        x = _places(run, against, runs)
        color = TEXT if len(runs) == 1 else _style(k)["color"]
        look: dict[str, Any] = {"color": color, "linewidth": 0.8}
        for place in run.resumed:
            ax.axvline(x[place], linestyle=(0, (1, 2)), alpha=0.8, **look)
        for place in _divisions(runs):
            ax.axvline(x[place], alpha=0.25, **look)


def _shown_sweeps(runs: Sequence[Run]) -> list[tuple[float, float]]:
    """Sweeps of the only run; several runs, or machines, have too many to show."""
    return runs[0].sweeps() if len(runs) == 1 and runs[0].n_machines == 1 else []


def _divisions(runs: Sequence[Run]) -> list[int]:
    """Events where a machine begins, of the only run, unless they are too many to show."""
    places = runs[0].new_machines() if len(runs) == 1 else []
    return places if len(places) <= _DIVISIONS else []


# -- panels --------------------------------------------------------------------------------------


def _draw_gap(ax: Axes, runs: Sequence[Run], against: str) -> None:
    for k, run in enumerate(runs):
        x = _places(run, against, runs)
        _line(ax, run, x, _positive(run.columns["sampled_gap"]), alpha=0.9, **_style(k))
    for k, run in enumerate(runs):
        x = _places(run, against, runs)
        places, gaps = run.certificates()
        shown = [(x[place], gap) for place, gap in zip(places, gaps, strict=True) if gap > 0]
        look: dict[str, Any] = {"marker": "D", "markersize": 5.5, "markeredgecolor": TEXT}
        look |= {"markeredgewidth": 0.8, "linestyle": "none", "zorder": 5, "clip_on": False}
        if shown:  # an empty line that is not clipped has no place, and confuses the layout
            ax.plot(*zip(*shown, strict=True), color=_style(k)["color"], **look)
    tolerances = {run.tolerance for run in runs if run.tolerance is not None}
    for tolerance in tolerances:
        ax.axhline(tolerance, color=LIMIT, linestyle="--", linewidth=1)
    _log_scale(ax)
    ax.set_ylabel("relative gap")


def _draw_objective(ax: Axes, runs: Sequence[Run], against: str) -> None:
    for k, run in enumerate(runs):
        x = _places(run, against, runs)
        _line(ax, run, x, _positive(run.columns["objective"]), **_style(k))
    _log_scale(ax)
    ax.set_ylabel("objective f")


def _draw_support(ax: Axes, runs: Sequence[Run], against: str) -> None:
    for k, run in enumerate(runs):
        _line(ax, run, _places(run, against, runs), run.columns["n_support"], **_style(k))
    _from_zero(ax)
    _thousands(ax)
    ax.set_ylabel("support vectors")


def _speed(counter: str, label: str) -> Callable[[Axes, Sequence[Run], str], None]:
    def draw(ax: Axes, runs: Sequence[Run], against: str) -> None:
        for k, run in enumerate(runs):
            edges, values = speed(run, counter, against)
            if against == "time":
                edges = edges / _time_unit(runs)[0]
            if len(values) > 0:
                look = _style(k) | {"linewidth": 1.4, "baseline": None}
                ax.stairs(values, edges, **look)
        _from_zero(ax)
        if ax.patches:
            _engineering(ax)
        else:
            ax.set_yticks([])
            ax.text(0.5, 0.5, "too few events", ha="center", transform=ax.transAxes, color=TEXT)
        ax.set_ylabel(label)

    return draw


def speed(run: Run, counter: str, against: str) -> tuple[Float64Array, Float64Array]:
    """Mean speeds, between edges on the axis.

    Parameters
    ----------
    run : Run
        One run.
    counter : str
        Field that counts.
    against : {"time", "iteration"}
        What the edges are places of.

    Returns
    -------
    edges : ndarray of float64, shape (n + 1,)
        Seconds, or iterations.
    values : ndarray of float64, shape (n,)
        Counts a second.
    """
    seconds, counts = run.columns["elapsed_s"], run.columns[counter]
    x = seconds if against == "time" else run.columns["iteration"]
    n_bins = min(_BINS, len(x) - 1)
    if n_bins < 1:
        return np.zeros(1), np.zeros(0)
    # Edges are events: between two of them nothing is known but the mean.
    wanted = np.linspace(x[0], x[-1], n_bins + 1)
    places = np.unique(np.append(np.searchsorted(x, wanted, side="right") - 1, len(x) - 1))
    # A new edge needs a later time, and a later place: sweeps take no iterations.
    edges = [int(places[-1])]
    for place in places[-2::-1]:
        later = edges[-1]
        if x[place] < x[later] and seconds[place] < seconds[later]:
            edges.append(int(place))
    edges.reverse()
    return x[edges], np.diff(counts[edges]) / np.diff(seconds[edges])


def _draw_memory(ax: Axes, runs: Sequence[Run], against: str) -> None:
    for k, run in enumerate(runs):
        x = _places(run, against, runs)
        _line(ax, run, x, run.columns["rss_bytes"] / 2**20, whole=True, **_style(k))
        peak = run.columns["peak_rss_bytes"] / 2**20
        look = _style(k) | {"linestyle": (0, (1, 1.5)), "alpha": 0.8}
        _line(ax, run, x, peak, whole=True, **look)
    _from_zero(ax)
    limits = {run.memory_limit for run in runs if run.memory_limit is not None}
    for limit in sorted(limits):
        ax.axhline(limit / 2**20, color=LIMIT, linestyle="--", linewidth=1)
    if limits:
        ax.set_ylim(0, max(ax.get_ylim()[1], 1.08 * max(limits) / 2**20))
    _thousands(ax)
    ax.set_ylabel("resident memory (MiB)")


def _draw_steps(ax: Axes, runs: Sequence[Run], against: str) -> None:
    """Counts of each kind of one run as they grow; of several runs the shares at the end."""
    if len(runs) == 1:
        run, x = runs[0], _places(runs[0], against, runs)
        for kind, counts in run.steps.items():
            look = {"color": STEP_COLORS.get(kind, TEXT), "label": _kind_name(kind)}
            look["linestyle"] = "--" if kind == "drop" else "-"
            _line(ax, run, x, _positive(counts), whole=True, **look)
        _log_scale(ax)
        ax.set_ylabel("steps so far")
        if run.steps:
            _legend(ax, loc="best")
        return
    shown: set[str] = set()
    totals = [{kind: counts[-1] for kind, counts in run.steps.items()} for run in runs]
    for k, kinds in enumerate(totals):
        drops = kinds.pop("drop", 0.0)
        left, total = 0.0, sum(kinds.values())
        for kind, count in kinds.items():
            label = "" if kind in shown else _kind_name(kind)
            shown.add(kind)
            color = STEP_COLORS.get(kind, TEXT)
            ax.barh(k, 100 * count / total, left=left, height=0.7, color=color, label=label)
            left += 100 * count / total
        text = f"{total:,.0f} steps, {drops:,.0f} drops" if total else "no steps"
        # Within the axes, though not while the layout is still sought.
        ax.text(101, k, text, va="center", color=TEXT, fontsize="small").set_in_layout(False)
    ax.set_yticks(range(len(runs)), [_short(run.label) for run in runs])
    ax.set_ylim(max(len(runs), 3) - 0.4, -0.6 - 0.18 * max(len(runs), 3))
    ax.set_xlim(0, 160)
    ax.set_xticks(range(0, 101, 25))
    ax.set_xlabel("share of the steps (%)", loc="left")
    if shown:
        _legend(ax, loc="upper left", ncols=4, columnspacing=1.0, handlelength=1.0)


def _kind_name(kind: str) -> str:
    return "dropped vertices" if kind == "drop" else kind


def _thousands(ax: Axes) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _engineering(ax: Axes) -> None:
    from matplotlib.ticker import EngFormatter

    ax.yaxis.set_major_formatter(EngFormatter(sep=" "))


def _legend(ax: Axes, **look: Any) -> None:
    legend = ax.legend(frameon=False, fontsize="small", labelcolor=TEXT, **look)
    legend.set_in_layout(False)


PANELS = {
    "gap": Panel("Duality gap", _draw_gap),
    "objective": Panel("Objective", _draw_objective),
    "support": Panel("Support", _draw_support),
    "rows": Panel("Rows read", _speed("rows_read", "rows / s")),
    "kernel": Panel("Kernel values", _speed("kernel_evaluations", "kernel values / s")),
    "memory": Panel("Memory", _draw_memory, ("time",)),
    "steps": Panel("Step kinds", _draw_steps, ("iteration",)),
}
"""What can be drawn, by the name that the command line knows it by."""


# -- figures -------------------------------------------------------------------------------------


def draw(
    runs: Sequence[Run],
    panels: Sequence[str] = tuple(PANELS),
    against: Sequence[str] = ("time", "iteration"),
) -> Figure:
    """Draw runs in common axes, two panels in a row, with one legend.

    Parameters
    ----------
    runs : sequence of Run
        Those without any progress have no lines.
    panels : sequence of str
        Names in `PANELS`.
    against : sequence of str
        "time", "iteration" or both. Memory goes by time and step kinds by iteration in any case.

    Raises
    ------
    InputError
        When matplotlib is not installed.
    """
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    runs = [run for run in runs if run.n_events > 0]
    cells = []
    for name in panels:
        axes = [axis for axis in against if axis in PANELS[name].against]
        cells += [(PANELS[name], axis) for axis in axes or PANELS[name].against]
    n_columns = min(2, len(cells))
    n_rows = math.ceil(len(cells) / n_columns)
    handles = _handles(runs, panels)
    width = _WIDTH * n_columns
    n_across, n_lines = _legend_shape([handle.get_label() for handle in handles], width)
    height = _HEIGHT * n_rows + 0.15 + 0.2 * n_lines
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(n_rows, n_columns, squeeze=False)
        for ax in grid.flat[len(cells) :]:
            ax.set_axis_off()
        for ax, (panel, axis) in zip(grid.flat, cells, strict=False):
            panel.draw(ax, runs, axis)
            shares = panel.draw is _draw_steps and len(runs) > 1
            if not shares:
                _marks(ax, runs, axis)
                _finish_axis(ax, runs, axis)
            ax.grid(axis="x" if shares else "both", alpha=0.7)
            ax.set_title(panel.title, loc="left", fontweight="bold")
            ax.set_axisbelow(True)
        figure.legend(
            handles=handles,
            loc="outside upper left",
            ncols=n_across,
            frameon=False,
            labelcolor=TEXT,
        )
    return figure


_RC = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "axes.titlecolor": TEXT,
    "axes.facecolor": "none",
    "text.color": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9.0,
    "figure.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "ooc-fw",
}


def _legend_shape(labels: Sequence[str], width: float) -> tuple[int, int]:
    """Columns and lines of a legend that is no wider than the figure, in inches."""
    for n_columns in range(len(labels), 1, -1):
        n_lines = math.ceil(len(labels) / n_columns)
        columns = [labels[k : k + n_lines] for k in range(0, len(labels), n_lines)]
        if sum(_HANDLE + _LETTER * max(map(len, column)) for column in columns) <= width:
            return n_columns, n_lines
    return 1, len(labels)


def _short(label: str) -> str:
    """The end of a label that is too long for a legend."""
    return label if len(label) <= _LABEL else f"...{label[3 - _LABEL :]}"


def _handles(runs: Sequence[Run], panels: Sequence[str]) -> list[Any]:
    """Legend: runs by colour, then what lines and marks mean, as far as they occur."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    neutral = _style(0)["color"] if len(runs) == 1 else TEXT
    handles: list[Any] = []
    if len(runs) > 1:
        handles += [
            Line2D([], [], label=_short(run.label), **_style(k)) for k, run in enumerate(runs)
        ]
    if "gap" in panels:
        handles.append(Line2D([], [], color=neutral, label="sampled gap"))
        if any(run.certificates()[0] for run in runs):
            look: dict[str, Any] = {"marker": "D", "markeredgecolor": TEXT, "linestyle": "none"}
            face = neutral if len(runs) == 1 else "none"
            handles.append(Line2D([], [], color=face, label="certified gap", **look))
    if "gap" in panels and any(run.tolerance for run in runs):
        memory = "memory" in panels and any(run.memory_limit for run in runs)
        label = "tolerance, memory limit" if memory else "tolerance"
        handles.append(Line2D([], [], color=LIMIT, linestyle="--", label=label))
    elif "memory" in panels and any(run.memory_limit for run in runs):
        handles.append(Line2D([], [], color=LIMIT, linestyle="--", label="memory limit"))
    if "memory" in panels:
        dots: dict[str, Any] = {"linestyle": (0, (1, 1.5)), "color": neutral}
        handles.append(Line2D([], [], label="peak of memory", **dots))
    if any(run.resumed for run in runs):
        look = {"linestyle": (0, (1, 2)), "linewidth": 0.8, "color": TEXT}
        handles.append(Line2D([], [], label="resumed", **look))
    if _shown_sweeps(runs):
        handles.append(Patch(color=SWEEP, label="sweep over the file"))
    if _divisions(runs):
        handles.append(Line2D([], [], linewidth=0.8, color=TEXT, alpha=0.4, label="next machine"))
    return handles


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure in the format of its suffix, as `ooc_fw.system.files.write_output` does.

    Raises
    ------
    InputError
        For a suffix that is none of `FORMATS`.
    """
    form = check_format(path)
    image = BytesIO()
    _write(figure, image, form)
    write_output(path, image.getvalue())


def write_svg(figure: Figure, file: IO[str]) -> None:
    """Write a figure as SVG, its text as text."""
    _write(figure, file, "svg")


def _write(figure: Figure, target: IO[bytes] | IO[str], form: str) -> None:
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # equal runs, equal files
    with load_matplotlib().rc_context(_RC):
        figure.savefig(target, format=form, dpi=150, metadata=dates.get(form))


def check_format(path: str | os.PathLike[str]) -> str:
    """Format of a figure by the suffix of its file; InputError for an unknown one."""
    form = Path(path).suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise InputError(
            f"{os.fspath(path)} is no name of a figure: it has to end in .png, .svg or .pdf"
        )
    return form
