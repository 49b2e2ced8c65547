"""``ooc-fw evaluate``: how good a model is on labelled rows, class by class."""

from __future__ import annotations

import argparse
import logging
import shutil
import time
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.predict import apply_model
from ooc_fw.data.formats import TABLES, detect_format
from ooc_fw.data.labels import encode_labels, read_targets
from ooc_fw.data.opening import conversion
from ooc_fw.data.rows import Int64Array
from ooc_fw.data.views import SubsetSource, ranges_of
from ooc_fw.model.file import as_class_values
from ooc_fw.model.metrics import Ranking, Reliability, Residuals, balanced_accuracy
from ooc_fw.model.record import Model, load_model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import ClassificationProblem, Problem, RegressionProblem
from ooc_fw.report.figures import check_figure, draw_reliability, save
from ooc_fw.report.progress import Waiting
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs
from ooc_fw.training.trial import BASELINE_ROWS, Trial

MOST_UNKNOWN = 1000  # different labels that the model does not know; more are no classes

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """Accuracy of a model on labelled rows."""
    model = load_model(args.model)
    if args.figure is not None:
        outputs = [Output("figure", args.figure, streamed=True)]
        check_outputs(outputs, [args.model, args.data, args.labels])
        check_figure(args.figure)
        if not model.calibrated:
            raise InputError(
                f"the figure shows probabilities, which {args.model} does not give; train with "
                f"ooc-fw train --probability"
            )
    trial = _try_baselines(args, model) if args.baseline else None
    measures = _measures_of_regression if model.task == "regression" else _measures_of_classes
    result = measures(args, model)
    if args.figure is not None:
        classes = [common.format_label(value) for value in model.classes.tolist()]
        save(draw_reliability(result, classes), args.figure)
    result["seconds"] = time.perf_counter() - args.started
    lines = _lines(result) if "classes" in result else common.aligned(result)
    if trial is not None:
        result["baseline"] = trial.to_dict()
        lines += common.trial_lines(result["baseline"])
    common.print_result(args, result, lines)
    return DONE


def _try_baselines(args: argparse.Namespace, model: Model) -> Trial:
    """Scores of the model and of baselines on rows held out of a sample of DATA."""
    kind = detect_format(args.data, is_table=model.table is not None)
    if kind in (*TABLES, "npz", "libsvm"):
        raise InputError(
            f"--baseline draws rows at random, and {args.data} is read from its beginning to its "
            f"end; convert it first: {conversion(args.data)} --like {args.model}"
        )
    if model.task == "novelty":
        raise InputError(
            f"{args.model} was learned without labels, and a linear model cannot be; leave out "
            f"--baseline"
        )
    with Waiting("the baseline", quiet=args.quiet), common.open_data(args) as source:
        if model.task == "regression":
            problem: Problem = RegressionProblem(source, read_targets(source), model.kernel)
        else:
            classes, codes = encode_labels(source)
            problem = ClassificationProblem(source, codes, model.kernel, None, classes)
        trial = Trial(problem, TrainOptions(threads=args.threads), BASELINE_ROWS)
        with SubsetSource(source, ranges_of(trial.held_ids)) as rows:
            trial.scores["model"] = trial.judge(model, rows)
        trial.try_baselines()
    return trial


def _measures_of_classes(args: argparse.Namespace, model: Model) -> dict[str, Any]:
    reliability = Reliability(len(model.classes)) if model.calibrated else None
    ranking = Ranking() if len(model.classes) == 2 else None
    confusion = Confusion(model.classes.tolist())
    labels_only = reliability is None and ranking is None
    for block in apply_model(model, args, with_labels=True, labels_only=labels_only):
        labels = as_class_values(block.labels)
        if labels.dtype.kind != model.classes.dtype.kind:
            kinds = {"f": "numbers", "U": "words"}
            raise InputError(
                f"the labels of {args.data} are {kinds[labels.dtype.kind]}, and those of the model "
                f"are {kinds[model.classes.dtype.kind]}; give labels as in the training data"
            )
        confusion.add(labels, model.class_places(block.values))
        unknown = confusion.unknown
        if len(unknown) > MOST_UNKNOWN:
            raise InputError(
                f"{args.data} has more than {MOST_UNKNOWN} different labels that the model does "
                f"not know, such as {common.format_label(unknown[0])}; give classes"
            )
        if ranking is not None:
            ranking.add(block.values, labels == model.classes[1])
        if reliability is not None:
            codes = np.searchsorted(model.classes, labels).clip(max=len(model.classes) - 1)
            codes[model.classes[codes] != labels] = -1
            reliability.add(model.probabilities(block.values), codes)
    n_rows, unknown = confusion.counts.total(), confusion.unknown
    if unknown:
        logger.warning(
            "%d of %d rows in %s have labels unknown to the model (%s); they count as wrong",
            sum(count for (given, _), count in confusion.counts.items() if given in unknown),
            n_rows,
            args.data,
            common.format_labels(unknown[:5]),
        )
    result = confusion.measures()
    for measured in (ranking, reliability):
        result |= {} if measured is None else measured.measures()
    return result | {"n_rows": n_rows}


def _measures_of_regression(args: argparse.Namespace, model: Model) -> dict[str, Any]:
    residuals = Residuals(model.offset or 0.0)
    for block in apply_model(model, args, with_labels=True):
        if block.labels.dtype.kind not in "biuf":
            raise InputError(
                f"the labels of {args.data} are words, and the model predicts numbers; name other "
                f"labels"
            )
        residuals.add(block.labels.astype(float), block.values)
    return residuals.measures() | {"n_rows": residuals.n_rows}


class Confusion:
    """How many rows of each given label were predicted as each of the sorted classes of a model.

    Its size depends on the number of different labels, not on the number of rows.
    """

    def __init__(self, classes: list[Any]) -> None:
        self._classes = classes
        self.counts: Counter[tuple[Any, Any]] = Counter()  # rows by given and predicted label

    @property
    def unknown(self) -> list[Any]:
        """Given labels that are no classes of the model, sorted."""
        return sorted({given for given, _ in self.counts} - set(self._classes))

    def add(self, labels: npt.NDArray[Any], places: Int64Array) -> None:
        """Count rows by their given labels and the places of their predicted classes."""
        n = len(self._classes)
        values, rows = np.unique(labels, return_inverse=True)
        pairs, counts = np.unique(rows * n + places, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            self.counts[values[pair // n].item(), self._classes[pair % n]] += count

    def measures(self) -> dict[str, Any]:
        """Measures of all rows and of each class, None if there is nothing to divide by.

        The balanced accuracy is the mean recall of the given labels, whatever their numbers of
        rows. ``confusion[i][j]`` counts rows of label i that were predicted as j.
        """
        names = sorted([*self._classes, *self.unknown])
        confusion = np.array([[self.counts[i, j] for j in names] for i in names])
        right, of_given, of_found = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
        return {
            "accuracy": float(right.sum() / of_given.sum()),
            "balanced_accuracy": balanced_accuracy(right, of_given),
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


def _lines(result: dict[str, Any]) -> list[str]:
    names = ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "brier_score")
    shown = {name: result.get(name) for name in (*names, "n_rows", "seconds")}
    shown = {name: value for name, value in shown.items() if value is not None}
    rows: list[list[Any]] = [["class", "rows", "precision", "recall"]]
    for name, of_class in result["classes"].items():
        ratios = (of_class["precision"], of_class["recall"])
        cells = ["-" if ratio is None else f"{ratio:.4f}" for ratio in ratios]
        rows.append([name, of_class["rows"], *cells])
    return [*common.aligned(shown), "", *common.table(rows), "", *_confusion_lines(result)]


def _confusion_lines(result: dict[str, Any]) -> list[str]:
    """The confusion matrix, unless it is wider than the terminal."""
    names, matrix = list(result["classes"]), result["confusion"]
    lines = common.table([["", *names], *([k, *row] for k, row in zip(names, matrix, strict=True))])
    if len(lines[0]) > shutil.get_terminal_size().columns:
        return [f"--json has the {len(names)} x {len(names)} matrix of confusions"]
    return ["confusion (given below, predicted to the right)", *lines]
