"""All figures. matplotlib is an optional package, which is imported only to draw one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_fw.system.errors import InputError, printable
from ooc_fw.system.files import StrPath, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ooc_fw.model.importance import Importance
    from ooc_fw.report.runlog import Run

PANELS = {
    "work": ("share", "work done (%)", 0.01),
    "gap": ("sampled_gap", "relative gap", 1),
    "support": ("n_support", "vectors of the model", 1),
    "memory": ("rss_bytes", "resident memory (MiB)", 2**20),
}
"""Panels of a run by name: column of the `Run`, label of the axis, unit."""


def check_figure(path: StrPath | None) -> None:
    """Raise InputError if a figure cannot be drawn; the suffix of its file is the format."""
    if path is not None:
        if Path(path).suffix.lower() not in (".png", ".svg", ".pdf"):
            raise InputError(f"the name of a figure has to end in .png, .svg or .pdf, not {path}")
        _look()


def is_figure(path: Path) -> bool:
    """Whether matplotlib has drawn a file, which is never very large."""
    return path.stat().st_size < 64 << 20 and b"atplotlib" in path.read_bytes()


def save(figure: Figure, path: StrPath) -> None:
    """Write a figure in the format of its suffix; errors are those of `write_atomic`."""
    image = BytesIO()
    with _look():
        figure.savefig(image, format=Path(path).suffix[1:].lower(), dpi=150)
    write_atomic(path, image.getvalue())


def _look() -> AbstractContextManager[None]:
    """Context with the style of all figures; InputError if matplotlib is not installed."""
    try:
        from matplotlib import style
    except ModuleNotFoundError:
        raise InputError(
            "figures need matplotlib, which is not installed; add it with "
            "pip install 'ooc-fw[plot]'"
        ) from None
    look: AbstractContextManager[None] = style.context(Path(__file__).with_suffix(".mplstyle"))
    return look


@contextmanager
def _drawing(inches: tuple[float, float], n_panels: int = 1) -> Iterator[tuple[Figure, list[Any]]]:
    """A figure, and axes for its panels, two side by side; `inches` is the size of a panel."""
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
    """A name from the user's data, shortened if it is long, without mathematical notation."""
    return printable(label if len(label) <= 24 else f"...{label[-21:]}").replace("$", r"\$")


def draw_runs(runs: Sequence[Run], panels: Sequence[str] = tuple(PANELS)) -> Figure:
    """Draw runs over time: one axes for each of `panels`, two side by side, with one legend.

    `panels` are names in `PANELS`; those of which the logs tell nothing are left out, unless it is
    all of them. Runs without progress events have no lines.
    """
    told = [name for name in panels if any(_tells(run, name) for run in runs)]
    panels = told or panels
    handles: dict[str, Any] = {}
    with _drawing((3.6, 2.5), len(panels)) as (figure, all_axes):
        for ax, name in zip(all_axes, panels, strict=True):
            for run in runs:
                if run.n_events > 0:
                    _draw_run(ax, name, run)
            ax.set(xlabel="time (s)", ylabel=PANELS[name][1])
            ax.set_yscale("log" if name == "gap" else "linear")
            handles |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
        if handles:
            figure.legend(handles.values(), handles, loc="outside lower left")
    return figure


def _tells(run: Run, panel: str) -> bool:
    certified = panel == "gap" and run.tells("certified_gap")
    return certified or run.tells(PANELS[panel][0])


def _draw_run(ax: Any, name: str, run: Run) -> None:
    """Draw one run; a single event becomes a dot."""
    field, _, unit = PANELS[name]
    x = run.columns["elapsed_s"]
    marker = "o" if run.n_events == 1 else None
    (line,) = ax.plot(x, run.columns[field] / unit, marker=marker, label=_name(run.label))
    for time_s, part in run.marks:
        ax.axvline(time_s, color=line.get_color(), linewidth=0.6)
        at = {"xycoords": ("data", "axes fraction"), "va": "bottom", "ha": "center"}
        ax.annotate(part, (time_s, 1.0), fontsize="small", **at)
    gaps = run.columns["certified_gap"]
    if name == "gap" and run.tells("certified_gap"):
        look = {"linestyle": ":", "marker": "*", "markersize": 9, "markevery": [run.n_events - 1]}
        ax.plot(x, gaps, color=line.get_color(), label="certified gap", **look)
    limits = {"gap": ("tolerance", run.tolerance), "memory": ("memory limit", run.memory_limit)}
    label, limit = limits.get(name, ("", None))
    if limit is not None:
        ax.axhline(limit / unit, label=label, color="black", linestyle="dashed", linewidth=0.9)


def draw_measures(measures: dict[str, Any], seen: Any) -> Figure:
    """Draw the confusion matrix, and if they are known ROC, precision and recall, reliability.

    Colours of the matrix are shares of the rows of a label, so that those of rare labels show.
    `measures` is the result of ``ooc-fw evaluate``, and `seen` its `Judged` rows.
    """
    import numpy as np
    from sklearn.calibration import CalibrationDisplay
    from sklearn.metrics import ConfusionMatrixDisplay, PrecisionRecallDisplay, RocCurveDisplay

    names = [_name(name) for name in measures["classes"]]
    few = len(names) <= 20  # so that there is room for numbers of rows
    counts = np.array(measures["confusion"])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    matrix = ConfusionMatrixDisplay(shares, display_labels=names)
    side = 2.8 + 0.45 * len(names) if few else 12.0
    ranked = measures.get("roc_auc") is not None
    likely = seen.chances is not None
    with _drawing((max(4.0, side),) * 2, 1 + 2 * ranked + likely) as (figure, axes):
        look = {"cmap": "Blues", "colorbar": not few, "xticks_rotation": "vertical"}
        matrix.plot(ax=axes[0], include_values=few, im_kw={"vmin": 0.0, "vmax": 1.0}, **look)
        for text, count in zip(np.ravel(matrix.text_ if few else ()), counts.flat, strict=False):
            text.set_text(f"{count:,}")
            text.set_fontsize("small")
        axes[0].grid(visible=False)
        axes[0].set_ylabel("True label (colour: share of its rows)")
        said = {"Accuracy": "accuracy", "Balanced accuracy": "balanced_accuracy"}
        axes[0].set_title("\n".join(f"{name} {measures[key]:.4f}" for name, key in said.items()))
        if ranked:
            positive = _name(measures["positive"])
            how = {"name": positive, "drop_intermediate": True}
            RocCurveDisplay.from_predictions(seen.positive, seen.scores, ax=axes[1], **how)
            PrecisionRecallDisplay.from_predictions(seen.positive, seen.scores, ax=axes[2], **how)
            axes[1].set_title(f"ROC of {positive}", wrap=True)
            axes[2].set_title(f"Precision and recall of {positive}", wrap=True)
        if likely:
            how = {"name": _name(measures["positive"]), "n_bins": 10}
            CalibrationDisplay.from_predictions(seen.positive, seen.chances, ax=axes[-1], **how)
            axes[-1].set_title(f"Reliability, Brier score {measures['brier_score']:.4f}", wrap=True)
        label = f": {_name(measures.get('positive', ''))})"
        for axis in (axis for ax in axes[1:] for axis in (ax.xaxis, ax.yaxis)):
            # scikit-learn calls the positive class 1 there.
            axis.set_label_text(axis.get_label_text().replace(": 1)", label))
    return figure


def draw_fit(targets: Any, predictions: Any) -> Figure:
    """Draw predictions against targets, for at most 1,000 rows."""
    from sklearn.metrics import PredictionErrorDisplay

    with _drawing((4.6, 4.4)) as (figure, (ax,)):
        how: dict[str, Any] = {"kind": "actual_vs_predicted", "random_state": 0}
        PredictionErrorDisplay.from_predictions(targets, predictions, ax=ax, **how)
        ax.set_title(f"True and predicted values of {len(targets):,} rows")
    return figure


def draw_importance(found: Importance, top: int) -> Figure:
    """Draw bars for the `top` most important columns."""
    order = found.order[:top]
    with _drawing((7, 0.9 + 0.22 * len(order))) as (figure, (ax,)):
        ax.barh([_name(found.names[k]) for k in order], found.values[order])
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        what = f"change of {found.what} by one standard deviation of the column"
        ax.set_xlabel(what, parse_math=False)
    return figure
