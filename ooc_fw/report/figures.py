"""All figures: training runs, how good a model is, importance.

They are drawn by matplotlib, an optional package, which is imported when a figure is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ooc_fw.system.errors import InputError, printable
from ooc_fw.system.files import write_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ooc_fw.report.runlog import Run

AXES = ("time", "iteration")
"""What runs can be drawn against."""

RUN_COLORS = ("#0072b2", "#d55e00", "#009e73", "#b8609a", "#b98200", "#4597c9")
"""Okabe and Ito's colours, which most colour-blind people tell apart, the light ones darkened."""

_LINES = ("-", "--", ":", "-.")
_MARKERS = "osDv^PX"
_PANEL_INCHES = 3.6, 2.5  # width and height: two panels side by side fit a page
_LABEL_LETTERS = 24  # of a run's name in a legend, so that its columns fit
_KEY_INCHES, _LETTER_INCHES = 0.6, 0.075  # widths in a legend
_EVERY = 0.15  # between markers of a line, as a share of the diagonal of the axes
_FAR_APART = 100  # numbers of iterations whose ratio is larger have a logarithmic axis
_MOST_COUNTED = 10  # classes of a confusion matrix in which rows are written
_MOST_CLASSES = 40  # that it shows
_LINE_INCHES = 0.12  # of each of them
_MOST_PANELS = 8  # classes whose columns are drawn by importance
_RELIABILITY = "mean_probability", "share"


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
    write_output(path, render(figure, check_figure(path)))


def render(figure: Figure, form: str) -> bytes:
    """A figure as png, svg or pdf; equal figures give equal bytes."""
    image = BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with _look():
        figure.savefig(image, format=form, dpi=150, metadata=dates.get(form))
    return image.getvalue()


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

        size = inches[0] * n_columns, inches[1] * n_rows
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel().tolist()
        for ax in axes[n_panels:]:
            ax.set_axis_off()
        yield figure, axes[:n_panels]


def _looks() -> Iterator[dict[str, Any]]:
    """Looks of lines that are told apart without colours, too."""
    for color, line, marker in zip(*map(cycle, (RUN_COLORS, _LINES, _MARKERS)), strict=True):
        yield {"color": color, "linestyle": line, "marker": marker, "markersize": 4}


class Panel(NamedTuple):
    """One quantity: title, label of the vertical axis and column of a run."""

    title: str
    label: str
    field: str
    scale: float = 1.0


PANELS = {
    "gap": Panel("Gap, sampled and certified", "relative gap", "sampled_gap"),
    "support": Panel("Support", "support vectors", "n_support"),
    "memory": Panel("Memory", "resident memory (MiB)", "rss_bytes", scale=2**20),
}
"""What can be drawn of a run, by the name that the command line uses."""


def draw_runs(
    runs: Sequence[Run], panels: Sequence[str] = tuple(PANELS), against: str = "time"
) -> Figure:
    """Draw runs in common axes, two panels in a row, with one legend.

    `panels` are names in `PANELS`, and `against` is one of `AXES`. Runs without any progress have
    no lines.
    """
    runs = [run for run in runs if run.n_events > 0]
    handles: dict[str, Any] = {}
    with _drawing(_PANEL_INCHES, len(panels)) as (figure, all_axes):
        for ax, name in zip(all_axes, panels, strict=True):
            ax.set(title=PANELS[name].title, ylabel=PANELS[name].label)
            if runs:
                _draw_panel(ax, PANELS[name], runs, against)
            handles |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
        if handles:
            inches = _KEY_INCHES + _LETTER_INCHES * max(map(len, handles))
            n_across = max(1, int(figure.get_figwidth() / inches))
            figure.legend(handles.values(), handles, loc="outside lower left", ncols=n_across)
            more = 0.2 * (1 + -(-len(handles) // n_across))
            figure.set_figheight(figure.get_figheight() + more)
    return figure


def _draw_panel(ax: Any, panel: Panel, runs: Sequence[Run], axis: str) -> None:
    from matplotlib.ticker import EngFormatter

    field = "elapsed_s" if axis == "time" else "iteration"
    ends = [float(run.columns[field][-1]) for run in runs]
    last = max(ends)
    if axis == "time":
        units = ((7200, 3600.0, "time (h)"), (600, 60.0, "time (min)"), (0, 1.0, "time (s)"))
        unit, name = next((unit, name) for least, unit, name in units if last >= least)
    else:
        many = any(run.n_classifiers > 1 for run in runs)
        unit, name = 1.0, "iteration" + " (of all binary classifiers)" * many
        if last > _FAR_APART * max(1.0, min(ends)):
            ax.set_xscale("symlog", linthresh=1)  # it has a place for 0
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.set_xlabel(name)
    if last > 0:
        ax.set_xlim(0, 1.02 * last / unit)
    for run, look in zip(runs, _looks(), strict=False):
        x = run.columns[field] / unit
        _draw_run(ax, panel, run, x, look | {"label": _short(run.label)})
        for x_resumed in x[run.resumed]:
            dotted = {"color": look["color"], "linestyle": (0, (1, 2)), "linewidth": 0.8}
            ax.axvline(x_resumed, label="resumed", **dotted)
    if panel.field == "sampled_gap":
        ax.set_yscale("log", nonpositive="mask")
    else:
        ax.set_ylim(bottom=0)


def _draw_run(ax: Any, panel: Panel, run: Run, x: Any, look: dict[str, Any]) -> None:
    """Draw one run, whose events are at `x`; a single value becomes a dot."""

    def curve(field: str, **style: Any) -> None:
        places, values = run.line(x, run.columns[field])
        if sum(values == values) == 1:  # all others are NaN
            style["marker"] = "o"
        if run.n_classifiers > 1:
            style |= {"linewidth": 0.8, "alpha": 0.6}
        ax.plot(places, values / panel.scale, markevery=_EVERY, **look | style)

    def limit(value: object, label: str) -> None:
        if isinstance(value, int | float) and abs(value) <= 1e30:  # figures need room above
            dash = 2 if "landmarks" in label else 5
            dashed = {"color": "black", "linestyle": (0, (dash, 3)), "linewidth": 0.9}
            ax.axhline(value / panel.scale, label=label, **dashed)

    curve(panel.field)
    if panel.field == "sampled_gap":
        places, gaps = run.certificates()
        if len(places):
            star = {"marker": "*", "markersize": 11, "markeredgecolor": "black", "zorder": 5}
            star |= {"linestyle": "none", "clip_on": False, "label": "certified gap"}
            ax.plot(x[places], gaps, **look | star)
        limit(run.tolerance, "tolerance" + " of landmarks" * run.of_landmarks)
    if panel.field == "rss_bytes":
        curve("peak_rss_bytes", linestyle=":", marker=None, label="peak of memory")
        limit(run.options.get("memory_limit"), "memory limit")


def _name(label: str) -> str:
    """A name of the user's data, which is shown as it is, as far as there is room."""
    return _short(printable(label)).replace("$", r"\$")


def _short(label: str) -> str:
    return label if len(label) <= _LABEL_LETTERS else f"...{label[3 - _LABEL_LETTERS :]}"


def draw_measures(measures: dict[str, Any]) -> Figure:
    """Draw the confusion matrix, and ROC, precision against recall and reliability where known.

    `measures` are those of ``ooc-fw evaluate``, and the panels those of scikit-learn. Of too many
    classes those with the most errors are drawn.
    """
    import numpy as np
    from sklearn.metrics import ConfusionMatrixDisplay

    counts, classes = np.array(measures["confusion"]), list(measures["classes"])
    wrong = counts.sum(axis=0) + counts.sum(axis=1) - 2 * counts.diagonal()
    shown = np.sort(np.argsort(-wrong, kind="stable")[:_MOST_CLASSES])
    names = [_name(classes[k]) for k in shown]
    panels = [_draw_roc, _draw_precision] * ("curve" in measures)
    panels += [_draw_reliability] * ("reliability" in measures)
    side = max(4.0, 1.6 + _LINE_INCHES * len(names))
    with _drawing((side, side), 1 + len(panels)) as (figure, (ax, *others)):
        matrix = ConfusionMatrixDisplay(counts[np.ix_(shown, shown)], display_labels=names)
        few = len(names) <= _MOST_COUNTED
        look = {"cmap": "Blues", "colorbar": not few, "xticks_rotation": "vertical"}
        matrix.plot(ax=ax, include_values=few, values_format=",", **look)
        ax.tick_params(labelsize=8 if few else 6)
        ax.grid(visible=False)
        of_all = f", {len(shown)} most confused of {len(classes)} classes"
        ax.set_title(f"Accuracy {measures['accuracy']:.4f}{of_all * (len(shown) < len(classes))}")
        for ax, draw in zip(others, panels, strict=True):
            draw(ax, measures)
            ax.legend(fontsize="small")
    return figure


def _draw_roc(ax: Any, measures: dict[str, Any]) -> None:
    import numpy as np
    from sklearn.metrics import RocCurveDisplay

    fpr, tpr = (
        np.array([1, *measures["curve"][name], 0]) for name in ("false_positive_rate", "recall")
    )
    curve = RocCurveDisplay(fpr=fpr, tpr=tpr, roc_auc=measures["roc_auc"])
    curve.plot(ax=ax, name="model", plot_chance_level=True)
    _mark_threshold(ax, measures, "false_positive_rate", "recall")
    ax.set_title("ROC")


def _draw_precision(ax: Any, measures: dict[str, Any]) -> None:
    import numpy as np
    from sklearn.metrics import PrecisionRecallDisplay

    points, positive = measures["curve"], measures["positive"]
    curve = PrecisionRecallDisplay(
        np.array(points["precision"]),
        np.array(points["recall"]),
        average_precision=measures["average_precision"],
        prevalence_pos_label=measures["classes"][positive]["rows"] / measures["n_rows"],
    )
    curve.plot(ax=ax, name="model", plot_chance_level=True)
    _mark_threshold(ax, measures, "recall", "precision")
    ax.set_title(f"Precision and recall of {_name(positive)}")


def _mark_threshold(ax: Any, measures: dict[str, Any], x: str, y: str) -> None:
    """Mark what the threshold that was found gives, where one was looked for."""
    if "threshold" in measures:
        threshold = measures["threshold"]
        label = f"decision {threshold['positive_where']} {threshold['value']:g}"
        ax.plot(*([threshold["gives"][each]] for each in (x, y)), "*k", markersize=11, label=label)


def _draw_reliability(ax: Any, measures: dict[str, Any]) -> None:
    """Draw how often a predicted probability comes true."""
    from sklearn.calibration import CalibrationDisplay

    bins = [each for each in measures["reliability"] if each["rows"]]
    places, shares = ([each[k] for each in bins] for k in _RELIABILITY)
    label = f"model, Brier score {measures['brier_score']:.4f}"
    CalibrationDisplay(shares, places, None).plot(ax=ax, name=label)
    what = "the larger label" if "positive" in measures else "the likeliest class"
    ax.set(title="Reliability", xlabel=f"probability of {what}", ylabel="share that comes true")


def draw_fit(measures: dict[str, Any]) -> Figure:
    """Draw predictions against targets, of the rows in the sample of these measures."""
    sample = measures["sample"]
    with _drawing((4.6, 4.4)) as (figure, (ax,)):
        ax.plot(*zip(*sample, strict=True), "o", markersize=3, alpha=0.4, markeredgewidth=0)
        ends = [min(map(min, sample)), max(map(max, sample))]
        ax.plot(ends, ends, linestyle="--", color="black", label="perfect")
        r2 = "" if measures["r2"] is None else f"R$^2$ {measures['r2']:.4f}, "
        ax.set_title(f"{r2}root mean squared error {measures['rmse']:.4g}")
        of = f"true value of {len(sample):,} of {measures['n_rows']:,} rows"
        ax.set(xlabel=of, ylabel="prediction")
        ax.legend()
    return figure


def draw_importance(found: Any, top: int) -> Figure:
    """Draw how much the most important columns change the decision value, as bars.

    `found` is an `ooc_fw.model.importance.Importance`. Of several classes each has a panel, if they
    are not too many. Colours say whether more of a column raises the value: its mean effect is a
    fifth of its importance, or more.
    """
    import numpy as np  # not above: the help of the program does without

    n_panels = min(len(found.classes), _MOST_PANELS)
    size = 7 if n_panels == 1 else 3.5, 0.9 + 0.22 * min(top, len(found.names))
    handles: dict[str, Any] = {}
    with _drawing(size, n_panels) as (figure, axes):
        for k, ax in enumerate(axes):
            order = np.argsort(-found.by_class[k], kind="stable")[:top]
            values, effects = found.by_class[k, order], found.effects[k, order]
            raises, lowers = effects > values / 5, effects < -values / 5
            looks = {"more of it raises the value": raises, "more of it lowers the value": lowers}
            looks["both, or a category"] = ~(raises | lowers)
            for (label, chosen), color in zip(looks.items(), (*RUN_COLORS[:2], "0.6"), strict=True):
                if chosen.any():
                    handles[label] = ax.barh(chosen.nonzero()[0], values[chosen], color=color)
            ax.set_yticks(range(len(order)), [_name(found.names[j]) for j in order])
            ax.set_ylim(len(order) - 0.4, -0.6)
            ax.grid(visible=False, axis="y")
            if len(found.classes) > 1:
                ax.set_title(f"for {_name(found.classes[k])}")
        figure.supylabel("column", fontsize="medium")
        what = f"change of {found.what} by one standard deviation of the column"
        if found.permuted:
            what = f"{found.what} where the column is shuffled"
        if n_panels < len(found.classes):
            what += f" ({n_panels} of {len(found.classes)} classes)"
        figure.supxlabel(what, fontsize="medium", parse_math=False)
        if not found.permuted:
            figure.legend(handles.values(), handles, loc="outside upper left", ncols=3)
    return figure
