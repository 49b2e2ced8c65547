"""``ooc-fw evaluate``: accuracy of a model on labelled rows, class by class.

Owns the measures. Reading rows and applying the model are `common.apply_model`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common
from ooc_fw.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "evaluate",
        help="accuracy of a model on labelled rows",
        description="Compare predicted with given labels. A label the model does not know counts "
        "as wrong. Text is scaled like the training data.",
    )
    parser.add_argument("model", metavar="MODEL", help="file written by ooc-fw train")
    common.add_data_arguments(parser, text=True)
    common.add_threads_argument(parser)
    common.add_dask_argument(parser)
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the measures."""
    import numpy as np

    from ooc_fw.model import as_class_values, load_model

    started = time.perf_counter()
    model = load_model(args.model)
    values, labels = common.apply_model(model, args, with_labels=True)
    assert labels is not None
    labels = as_class_values(labels)
    if labels.dtype.kind != model.classes.dtype.kind:
        kinds = {"f": "numbers", "U": "words"}
        raise InputError(
            f"the labels of {args.data} are {kinds[labels.dtype.kind]}, and those of the model are "
            f"{kinds[model.classes.dtype.kind]}; give labels as in the training data"
        )
    unknown = labels[~np.isin(labels, model.classes)]
    if len(unknown):
        names = ", ".join(common.format_label(value) for value in np.unique(unknown)[:5])
        print(
            f"ooc-fw: {len(unknown)} of {len(labels)} rows in {args.data} have labels unknown to "
            f"the model ({names}); they count as wrong",
            file=sys.stderr,
        )
    measures = classification_measures(model.classes, labels, model.label_values(values))
    result = {**measures, "n_rows": len(labels), "seconds": time.perf_counter() - started}
    if args.json:
        common.print_result(result, as_json=True)
    else:
        print(_text(result))
    return 0


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
        for name in ("accuracy", "balanced_accuracy", "n_rows", "seconds")
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
