"""``ooc-fw evaluate``: accuracy of a model on labelled rows, class by class.

Owns the measures. Reading rows and applying the model are `common.apply_model`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common
from ooc_fw.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ooc_fw.model import Model

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "evaluate",
        help="accuracy of a model on labelled rows",
        description="Compare predicted with given labels. A label the model does not know counts "
        "as wrong. Text is scaled like the training data. Where the model gives probabilities, "
        "their Brier score too: the mean squared error of the probability of the larger of two "
        "labels, or the sum of that over all classes.",
    )
    parser.add_argument("model", metavar="MODEL", help="file written by ooc-fw train")
    common.add_data_arguments(parser, text=True)
    common.add_threads_argument(parser)
    common.add_dask_argument(parser)
    common.add_json_argument(parser)
    parser.add_argument(
        "--figure",
        type=Path,
        metavar="FILE",
        help="draw how reliable the probabilities are (.png, .svg, .pdf); needs a model of "
        "ooc-fw train --probability, and matplotlib",
    )


def run(args: argparse.Namespace) -> int:
    """Print the measures."""
    import numpy as np

    from ooc_fw.calibration import Reliability
    from ooc_fw.figures import load_matplotlib
    from ooc_fw.model import as_class_values, load_model

    started = time.perf_counter()
    model = load_model(args.model)
    if args.figure is not None:
        common.check_output(args.figure, args.model, args.data, args.labels)
        if args.figure.suffix.lower() not in FIGURE_SUFFIXES:
            raise InputError(
                f"figures are of the kinds {', '.join(FIGURE_SUFFIXES)}; give another name than "
                f"{args.figure}"
            )
        load_matplotlib()
        if not model.calibrated:
            raise InputError(
                f"the figure shows probabilities, which {args.model} does not give; train with "
                f"ooc-fw train --probability"
            )
    reliability = Reliability(len(model.classes)) if model.calibrated else None
    given, places = [], []
    for block in common.apply_model(model, args, with_labels=True):
        assert block.labels is not None
        own = as_class_values(block.labels)
        _check_kind(own, model, args.data)
        given.append(own)
        places.append(model.class_places(block.values))
        if reliability is not None:
            codes = np.searchsorted(model.classes, own).clip(max=len(model.classes) - 1)
            codes[model.classes[codes] != own] = -1
            reliability.add(model.probabilities(block.values), codes)
    labels, predicted = np.concatenate(given), model.classes[np.concatenate(places)]
    unknown = labels[~np.isin(labels, model.classes)]
    if len(unknown):
        names = ", ".join(common.format_label(value) for value in np.unique(unknown)[:5])
        print(
            f"ooc-fw: {len(unknown)} of {len(labels)} rows in {args.data} have labels unknown to "
            f"the model ({names}); they count as wrong",
            file=sys.stderr,
        )
    result = classification_measures(model.classes, labels, predicted)
    if reliability is not None:
        result |= reliability.measures()
    if args.figure is not None:
        classes = [common.format_label(value) for value in model.classes.tolist()]
        draw_reliability(result, classes, args.figure)
    result |= {"n_rows": len(labels), "seconds": time.perf_counter() - started}
    if args.json:
        common.print_result(result, as_json=True)
    else:
        print(_text(result))
    return 0


def _check_kind(labels: npt.NDArray[Any], model: Model, data: str) -> None:
    """Raise InputError where labels are words and classes numbers, or the other way round."""
    if labels.dtype.kind != model.classes.dtype.kind:
        kinds = {"f": "numbers", "U": "words"}
        raise InputError(
            f"the labels of {data} are {kinds[labels.dtype.kind]}, and those of the model are "
            f"{kinds[model.classes.dtype.kind]}; give labels as in the training data"
        )


def classification_measures(
    classes: npt.NDArray[Any], labels: npt.NDArray[Any], predicted: npt.NDArray[Any]
) -> dict[str, Any]:
    """Accuracy, and how the rows of each class fare.

    Parameters
    ----------
    classes : ndarray, shape (n_classes,)
        Classes of the model.
    labels, predicted : ndarray of shape (n_rows,), n_rows > 0
        Given and predicted label values; given ones need not be classes of the model.

    Returns
    -------
    dict
        ``accuracy``; ``balanced_accuracy``, the mean recall of the given label values, whatever
        their numbers of rows; ``classes``, a dict by label of ``rows``, ``precision`` and
        ``recall``, None where there is nothing to divide by; ``confusion``, rows of each given
        label (list of lists) that were predicted as each of them.
    """
    import numpy as np

    names = np.union1d(classes, labels)
    n = len(names)
    given, found = np.searchsorted(names, labels), np.searchsorted(names, predicted)
    confusion = np.bincount(given * n + found, minlength=n * n).reshape(n, n)
    right, of_given, of_found = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    occurs = of_given > 0
    return {
        "accuracy": float(right.sum() / len(labels)),
        "balanced_accuracy": float((right[occurs] / of_given[occurs]).mean()),
        "classes": {
            common.format_label(name.item()): {
                "rows": int(of_given[k]),
                "precision": float(right[k] / of_found[k]) if of_found[k] else None,
                "recall": float(right[k] / of_given[k]) if of_given[k] else None,
            }
            for k, name in enumerate(names)
        },
        "confusion": confusion.tolist(),
    }


def _text(result: dict[str, Any]) -> str:
    """The measures as aligned lines, with a table of the classes and the confusion matrix."""
    classes = result["classes"]
    lines = [
        f"{name:<18} {common.format_value(result[name])}"
        for name in ("accuracy", "balanced_accuracy", "brier_score", "n_rows", "seconds")
        if name in result
    ]
    width = max(5, *map(len, classes))
    lines += ["", f"{'class':<{width}} {'rows':>9} {'precision':>9} {'recall':>9}"]
    for name, own in classes.items():
        ratios = ("-" if own[key] is None else f"{own[key]:.4f}" for key in ("precision", "recall"))
        lines.append(f"{name:<{width}} {own['rows']:>9} " + " ".join(f"{r:>9}" for r in ratios))
    cell = max(width, len(str(result["n_rows"]))) + 1
    lines += ["", "confusion (given below, predicted to the right)"]
    lines.append(" " * width + "".join(f"{name:>{cell}}" for name in classes))
    for name, row in zip(classes, result["confusion"], strict=True):
        lines.append(f"{name:<{width}}" + "".join(f"{count:>{cell}}" for count in row))
    return "\n".join(lines)


# -- figure --------------------------------------------------------------------------------------


def draw_reliability(measures: dict[str, Any], names: list[str], path: Path) -> None:
    """Draw how often what is said to have a probability is true, and how often it is said.

    Parameters
    ----------
    measures : dict
        What `ooc_fw.calibration.Reliability.measures` gives.
    names : list of str
        Classes.
    path : Path
        Where the figure shall appear; the suffix says in which format.
    """
    from ooc_fw.figures import load_matplotlib
    from ooc_fw.files import atomic_path

    load_matplotlib()
    from matplotlib.figure import Figure

    bins = measures["reliability"]
    used = [own for own in bins if own["rows"]]
    what = f"probability of {names[1]}" if len(names) == 2 else "probability of the likeliest class"
    share = f"share of rows that are {names[1]}" if len(names) == 2 else "share of rows it is right"
    figure = Figure(figsize=(5.6, 6.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    upper.plot([0, 1], [0, 1], linestyle="--", color="0.5", label="perfect")
    upper.plot(
        [own["mean_probability"] for own in used],
        [own["share"] for own in used],
        marker="o",
        label=f"model, Brier score {measures['brier_score']:.4f}",
    )
    upper.set(ylabel=share, xlim=(0, 1), ylim=(-0.02, 1.02))
    upper.legend(loc="upper left")
    lower.bar(
        [own["from"] for own in bins],
        [own["rows"] for own in bins],
        width=[own["to"] - own["from"] for own in bins],
        align="edge",
        edgecolor="white",
    )
    lower.set(xlabel=what, ylabel="rows", yscale="log" if used else "linear")
    for ax in (upper, lower):
        ax.grid(alpha=0.3)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=120, format=path.suffix[1:].lower())
