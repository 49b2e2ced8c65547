"""``ooc-fw evaluate``: accuracy of a model on labelled rows, class by class.

Owns the measures. Reading rows and applying the model are `common.apply_model`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs

if TYPE_CHECKING:
    import numpy.typing as npt

    from ooc_fw.data.rows import Int64Array
    from ooc_fw.model.record import Model

MOST_UNKNOWN = 1000
"""Labels the model does not know that are told apart; more are no classes."""

SHOWN_CONFUSIONS = 20
"""Kinds of mistakes that are listed where the confusion matrix is too wide for the terminal."""


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

    from ooc_fw.model.probabilities import Reliability
    from ooc_fw.model.record import as_class_values, load_model
    from ooc_fw.report.figures import check_figure, draw_reliability, save

    started = time.perf_counter()
    model = load_model(args.model)
    if args.figure is not None:
        figure = Output("figure", args.figure, streamed=True)
        check_outputs([figure], [args.model, args.data, args.labels])
        check_figure(args.figure)
        if not model.calibrated:
            raise InputError(
                f"the figure shows probabilities, which {args.model} does not give; train with "
                f"ooc-fw train --probability"
            )
    reliability = Reliability(len(model.classes)) if model.calibrated else None
    confusion = Confusion(model.classes)
    for block in common.apply_model(model, args, with_labels=True, labels_only=reliability is None):
        assert block.labels is not None
        own = as_class_values(block.labels)
        _check_kind(own, model, args.data)
        codes = np.searchsorted(model.classes, own).clip(max=len(model.classes) - 1)
        codes[model.classes[codes] != own] = -1
        confusion.add(own, codes, model.class_places(block.values))
        if len(confusion.unknown) > MOST_UNKNOWN:
            raise InputError(
                f"{args.data} has more than {MOST_UNKNOWN} different labels that the model does "
                f"not know, {common.format_label(min(confusion.unknown))} for one; give classes"
            )
        if reliability is not None:
            reliability.add(model.probabilities(block.values), codes)
    if confusion.unknown:
        names = ", ".join(common.format_label(value) for value in sorted(confusion.unknown)[:5])
        print(
            f"ooc-fw: {confusion.n_unknown} of {confusion.n_rows} rows in {args.data} have labels "
            f"unknown to the model ({names}); they count as wrong",
            file=sys.stderr,
        )
    result = confusion.measures()
    if reliability is not None:
        result |= reliability.measures()
    if args.figure is not None:
        classes = [common.format_label(value) for value in model.classes.tolist()]
        save(draw_reliability(result, classes), args.figure)
    result |= {"n_rows": confusion.n_rows, "seconds": time.perf_counter() - started}
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


class Confusion:
    """How many rows of each given label were predicted as each class, counted block by block.

    Its size depends on the number of different labels, not on the number of rows.

    Parameters
    ----------
    classes : ndarray, shape (n_classes,)
        Classes of the model, sorted.

    Attributes
    ----------
    unknown : dict
        Given label that is no class of the model -> rows predicted as each class, ndarray of int64.
    """

    def __init__(self, classes: npt.NDArray[Any]) -> None:
        import numpy as np

        self._classes = classes
        self._known = np.zeros((len(classes), len(classes)), dtype=np.int64)
        self.unknown: dict[Any, Int64Array] = {}

    @property
    def n_unknown(self) -> int:
        """Rows whose label is no class of the model."""
        return sum(int(counts.sum()) for counts in self.unknown.values())

    @property
    def n_rows(self) -> int:
        """Rows in all."""
        return int(self._known.sum()) + self.n_unknown

    def add(self, labels: npt.NDArray[Any], codes: Int64Array, places: Int64Array) -> None:
        """Count rows.

        Parameters
        ----------
        labels : ndarray, shape (n_rows,)
            Given labels.
        codes : ndarray of int64, shape (n_rows,)
            Their places among the classes, -1 where they are none of them.
        places : ndarray of int64, shape (n_rows,)
            Places of the predicted classes.
        """
        import numpy as np

        known, n = codes >= 0, len(self._classes)
        self._known += _count_pairs(codes[known], places[known], n, n)
        values, rows = np.unique(labels[~known], return_inverse=True)
        for value, counts in zip(
            values.tolist(), _count_pairs(rows, places[~known], len(values), n), strict=True
        ):
            self.unknown[value] = self.unknown.get(value, 0) + counts

    def measures(self) -> dict[str, Any]:
        """Accuracy, and how the rows of each class fare, after one row or more.

        Returns
        -------
        dict
            ``accuracy``; ``balanced_accuracy``, the mean recall of the given label values, whatever
            their numbers of rows; ``classes``, a dict by label of ``rows``, ``precision`` and
            ``recall``, None where there is nothing to divide by; ``confusion``, rows of each given
            label (list of lists) that were predicted as each of them.
        """
        import numpy as np

        given = dict(zip(self._classes.tolist(), self._known, strict=True)) | self.unknown
        names = sorted(given)
        columns = np.searchsorted(names, self._classes)
        confusion = np.zeros((len(names), len(names)), dtype=np.int64)
        confusion[:, columns] = [given[name] for name in names]
        right, of_given, of_found = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
        occurs = of_given > 0
        return {
            "accuracy": float(right.sum() / of_given.sum()),
            "balanced_accuracy": float((right[occurs] / of_given[occurs]).mean()),
            "classes": {
                common.format_label(name): {
                    "rows": int(of_given[k]),
                    "precision": float(right[k] / of_found[k]) if of_found[k] else None,
                    "recall": float(right[k] / of_given[k]) if of_given[k] else None,
                }
                for k, name in enumerate(names)
            },
            "confusion": confusion.tolist(),
        }


def _count_pairs(first: Int64Array, second: Int64Array, n: int, m: int) -> Int64Array:
    """How often each pair of numbers below n and m occurs, an array of shape (n, m)."""
    import numpy as np

    return np.bincount(first * m + second, minlength=n * m).reshape(n, m)


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
    return "\n".join([*lines, "", *_confusion_lines(result, width)])


def _confusion_lines(result: dict[str, Any], width: int) -> list[str]:
    """The confusion matrix, or the most frequent mistakes where it is wider than the terminal."""
    names, matrix = list(result["classes"]), result["confusion"]
    cell = max(width, len(str(result["n_rows"]))) + 1
    if width + cell * len(names) <= shutil.get_terminal_size().columns:
        lines = ["confusion (given below, predicted to the right)"]
        lines.append(" " * width + "".join(f"{name:>{cell}}" for name in names))
        for name, row in zip(names, matrix, strict=True):
            lines.append(f"{name:<{width}}" + "".join(f"{count:>{cell}}" for count in row))
        return lines
    wrong = [
        (count, given, predicted)
        for given, row in zip(names, matrix, strict=True)
        for predicted, count in zip(names, row, strict=True)
        if count and given != predicted
    ]
    wrong.sort(key=lambda mistake: -mistake[0])
    lines = [f"most frequent mistakes (--json has the {len(names)} x {len(names)} matrix)"]
    lines.append(f"{'given':<{width}} {'predicted':<{max(width, 9)}} {'rows':>9}")
    for count, given, predicted in wrong[:SHOWN_CONFUSIONS]:
        lines.append(f"{given:<{width}} {predicted:<{max(width, 9)}} {count:>9}")
    if len(wrong) > SHOWN_CONFUSIONS:
        rest = sum(count for count, _, _ in wrong[SHOWN_CONFUSIONS:])
        lines.append(f"and {rest} rows in {len(wrong) - SHOWN_CONFUSIONS} other mistakes")
    return lines
