"""All figures: training runs, how good a model is, importance.

They are drawn by matplotlib, an optional package, which is imported when a figure is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_fw.system.errors import InputError, printable
from ooc_fw.system.files import write_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ooc_fw.model.importance import Importance
    from ooc_fw.report.runlog import Run

AXES = {"time": ("elapsed_s", "time (s)"), "iteration": ("iteration", "iteration")}
"""What runs can be drawn against: column of a run and label."""

PANELS = {
    "gap": ("sampled_gap", "relative gap", 1),
    "support": ("n_support", "support vectors", 1),
    "memory": ("rss_bytes", "resident memory (MiB)", 2**20),
}
"""What can be drawn of a run: column of a run, label and unit."""

_LABEL_LETTERS = 24  # of a run's name in a legend, so that its columns fit
_LIMIT: dict[str, Any] = {"color": "black", "linestyle": "dashed", "linewidth": 0.9}
_KEY_INCHES = 0.2  # height of a line of the legend
_MOST_COUNTED = 10  # classes of a confusion matrix in which rows are written


def check_figure(path: str | os.PathLike[str]) -> str:
    """Format of a figure by its suffix; InputError unless it can be drawn."""
    form = Path(path).suffix.lower().removeprefix(".")
    if form not in ("png", "svg", "pdf"):
        raise InputError(
            f"{os.fspath(path)} is no name of a figure: it has to end in .png, .svg or .pdf"
        )
    with _look():
        return form


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure in the format of its suffix, as `ooc_fw.system.files.write_output` does."""
    form = check_figure(path)
    image = BytesIO()
    with _look():
        figure.savefig(image, format=form, dpi=150)
    write_output(path, image.getvalue())


def _look() -> AbstractContextManager[None]:
    """What all figures are drawn within; InputError when matplotlib is not installed."""
    try:
        from matplotlib import style
    except ModuleNotFoundError:
        raise InputError(
            "figures are drawn by matplotlib, which is not installed; add it with "
            "pip install 'ooc-fw[plot]'"
        ) from None
    look: AbstractContextManager[None] = style.context(Path(__file__).with_suffix(".mplstyle"))
    return look


@contextmanager
def _drawing(inches: tuple[float, float], n_panels: int = 1) -> Iterator[tuple[Figure, list[Any]]]:
    """A figure and the axes of panels of this size, two side by side, to draw in."""
    n_columns = min(2, n_panels)
    n_rows = -(-n_panels // n_columns)
    with _look():
        from matplotlib.figure import Figure

        size = (inches[0] * n_columns, inches[1] * n_rows)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel().tolist()
        for ax in axes[n_panels:]:
            ax.set_axis_off()
        yield figure, axes[:n_panels]


def _name(label: str) -> str:
    """A name of the user's data, which is shown as it is, as far as there is room."""
    short = label if len(label) <= _LABEL_LETTERS else f"...{label[3 - _LABEL_LETTERS :]}"
    return printable(short).replace("$", r"\$")


def draw_runs(
    runs: Sequence[Run], panels: Sequence[str] = tuple(PANELS), against: str = "time"
) -> Figure:
    """Draw runs in common axes, two panels in a row, with one legend.

    `panels` are names in `PANELS`, and `against` is one of `AXES`. Runs without any progress have
    no lines.
    """
    column, label = AXES[against]
    handles: dict[str, Any] = {}
    with _drawing((3.6, 2.5), len(panels)) as (figure, all_axes):
        for ax, name in zip(all_axes, panels, strict=True):
            for run in runs:
                if run.n_events > 0:
                    _draw_run(ax, name, run, run.columns[column])
            ax.set(xlabel=label, ylabel=PANELS[name][1])
            if name == "gap":
                ax.set_yscale("log", nonpositive="mask")
            else:
                ax.set_ylim(bottom=0)
            handles |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
        if handles:
            figure.legend(handles.values(), handles, loc="outside lower left")
            figure.set_figheight(figure.get_figheight() + _KEY_INCHES * (1 + len(handles)))
    return figure


def _draw_run(ax: Any, name: str, run: Run, x: Any) -> None:
    """Draw one run, whose events are at `x`; a single value becomes a dot."""
    field, _, unit = PANELS[name]
    values = run.columns[field] / unit
    single = (values == values).sum() == 1  # others are NaN
    (line,) = ax.plot(x, values, marker="o" if single else None, label=_name(run.label))
    gaps = run.columns["certified_gap"]
    if name == "gap" and (gaps == gaps).any():
        look = {"linestyle": ":", "marker": "*", "markersize": 9, "markevery": [run.n_events - 1]}
        ax.plot(x, gaps, color=line.get_color(), label="certified gap", **look)
    if name == "gap" and run.tolerance is not None:
        ax.axhline(run.tolerance, label="tolerance", **_LIMIT)
    if name == "memory" and run.memory_limit is not None:
        ax.axhline(run.memory_limit / unit, label="memory limit", **_LIMIT)


def draw_measures(measures: dict[str, Any], seen: Any) -> Figure:
    """Draw the confusion matrix, and ROC, precision against recall and reliability where known.

    `measures` are those of ``ooc-fw evaluate``, and `seen` its `Judged` rows.
    """
    import numpy as np
    from sklearn.calibration import CalibrationDisplay
    from sklearn.metrics import ConfusionMatrixDisplay, PrecisionRecallDisplay, RocCurveDisplay

    names = [_name(name) for name in measures["classes"]]
    few = len(names) <= _MOST_COUNTED
    matrix = ConfusionMatrixDisplay(np.array(measures["confusion"]), display_labels=names)
    panels: list[tuple[Any, Any, str]] = []
    if measures.get("roc_auc") is not None:
        ranked = (seen.positive, seen.scores)
        title = f"Precision and recall of {_name(measures['positive'])}"
        panels.append((RocCurveDisplay, ranked, "ROC"))
        panels.append((PrecisionRecallDisplay, ranked, title))
    if seen.chances is not None:
        score = f"Brier score {measures['brier_score']:.4f}"
        title = f"How often the probability of the larger label comes true, {score}"
        panels.append((CalibrationDisplay, (seen.given == 1, seen.chances), title))
    side = 4.0 if few else 12.0
    with _drawing((side, side), 1 + len(panels)) as (figure, (first, *others)):
        look = {"cmap": "Blues", "colorbar": not few, "xticks_rotation": "vertical"}
        matrix.plot(ax=first, include_values=few, values_format=",", **look)
        first.tick_params(labelsize=8 if few else 6)
        first.grid(visible=False)
        first.set_title(f"Accuracy {measures['accuracy']:.4f}")
        for ax, (display, rows, title) in zip(others, panels, strict=True):
            how = {"n_bins": 10} if display is CalibrationDisplay else {"drop_intermediate": True}
            display.from_predictions(*rows, ax=ax, name="model", **how)
            ax.set_title(title, wrap=True)
    return figure


def draw_fit(targets: Any, predictions: Any) -> Figure:
    """Draw predictions against targets, of at most 1,000 rows."""
    from sklearn.metrics import PredictionErrorDisplay

    with _drawing((4.6, 4.4)) as (figure, (ax,)):
        how: dict[str, Any] = {"kind": "actual_vs_predicted", "random_state": 0, "ax": ax}
        PredictionErrorDisplay.from_predictions(targets, predictions, **how)
        ax.set_title(f"True and predicted values of {len(targets):,} rows")
    return figure


def draw_importance(found: Importance, top: int) -> Figure:
    """Draw how much the most important columns matter, as bars."""
    order = found.order[:top]
    with _drawing((7, 0.9 + 0.22 * len(order))) as (figure, (ax,)):
        ax.barh([_name(found.names[k]) for k in order], found.values[order])
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        what = f"change of {found.what} by one standard deviation of the column"
        ax.set_xlabel(what, parse_math=False)
    return figure
