"""``ooc-fw evaluate``: how good a model is on labelled rows, class by class."""

from __future__ import annotations

import argparse
import logging
import math
import shutil
import time
from collections import Counter
from itertools import chain, product
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.predict import apply_model, column_words
from ooc_fw.data.labels import like_classes
from ooc_fw.data.rows import Int64Array
from ooc_fw.model.machines import as_class_values
from ooc_fw.model.metrics import Ranking, Reliability, Residuals
from ooc_fw.model.prediction import Wanted
from ooc_fw.model.record import Model, load_model
from ooc_fw.report.figures import check_figure, draw_fit, draw_measures, save
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs

MOST_UNKNOWN = 1000  # different labels that the model does not know; more are no classes
MOST_NAMED = 5  # unknown labels in a message
MOST_COLUMNS = 30  # classes of a confusion matrix that is shown as a table
MOST_CONFUSIONS = 20  # lines for more classes
CURVE_POINTS = 500  # of a ROC and of precision against recall
THRESHOLDS = 1 << 16  # that are looked at for a wanted recall or precision

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """How good a model is on labelled rows."""
    model = load_model(args.model)
    common.warn_of_checkpoint(args.model, model)
    if args.figure is not None:
        check_outputs([Output("figure", args.figure, streamed=True)], common.inputs_of(args))
        check_figure(args.figure)
    given = args.positive is not None or args.threshold is not None
    if args.by is not None and model.task == "regression":
        raise InputError("--by is for classes, and the model predicts numbers; leave it out")
    if given and (model.task == "regression" or len(model.classes) != 2):
        raise InputError(
            f"--positive and --threshold are for two classes or novelty, which {args.model} has "
            f"not; leave them out"
        )
    measures = _measures_of_regression if model.task == "regression" else _measures_of_classes
    result = measures(args, model)
    result["seconds"] = time.perf_counter() - args.started
    common.print_result(args, result, _lines(result))
    if args.figure is not None:
        draw = draw_fit if model.task == "regression" else draw_measures
        save(draw(result), args.figure)
    return DONE


def _measures_of_classes(args: argparse.Namespace, model: Model) -> dict[str, Any]:
    classes, place, word = _positive(args, model)
    reliability = Reliability(len(classes)) if model.calibrated else None
    ranking = Ranking() if len(classes) == 2 else None
    confusion = Confusion(classes.tolist())
    words = iter(()) if args.by is None else column_words(model, args, args.by)
    groups: Counter[tuple[bool, bool, str]] = Counter()
    cut = args.threshold if isinstance(args.threshold, float) else 0.0
    wanted = Wanted(reliability is None and ranking is None, cut)
    for block in apply_model(model, args, wanted, with_labels=True):
        labels = like_classes(as_class_values(block.labels), classes)
        if word is not None:
            values, rows = np.unique(labels, return_inverse=True)
            is_word = [common.format_label(value) == word for value in values.tolist()]
            labels = classes[np.where(is_word, 0, 1)[rows]]
        if labels.dtype.kind != classes.dtype.kind:
            kinds, way_out = {"f": "numbers", "U": "words"}, "give labels as in the training data"
            if model.task == "novelty":
                way_out = "name that of novel rows with --positive"
            raise InputError(
                f"the labels of {args.data} are {kinds[labels.dtype.kind]}, and those of the model "
                f"are {kinds[classes.dtype.kind]}; {way_out}"
            )
        places = model.class_places(block.values, cut)
        confusion.add(labels, places)
        right, positive = (classes[places] == labels).tolist(), (places == place).tolist()
        groups.update(zip(right, positive, words, strict=False))
        unknown = confusion.unknown
        if len(unknown) > MOST_UNKNOWN:
            raise InputError(
                f"{args.data} has more than {MOST_UNKNOWN} different labels that the model does "
                f"not know, such as {common.format_label(next(iter(unknown)))}; give classes"
            )
        if ranking is not None:
            ranking.add(block.values if place else -block.values, labels == classes[place])
        if reliability is not None:
            codes = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
            codes[classes[codes] != labels] = -1
            reliability.add(model.probabilities(block.values), codes)
    n_rows, unknown = confusion.counts.total(), confusion.unknown
    if unknown:
        most = [common.format_label(label) for label, _ in unknown.most_common(MOST_NAMED)]
        more = ["..."] * (len(unknown) > MOST_NAMED)
        if unknown.total() == n_rows:
            raise InputError(
                f"no label{f' of column {args.label}' * bool(args.label)} in {args.data} is known "
                f"to the model (known: {common.format_labels(classes.tolist())}; found: "
                f"{', '.join(most + more)}); name another column with --label"
            )
        found = zip(most, (rows for _, rows in unknown.most_common()), strict=False)
        logger.warning(
            "%d of %d rows in %s have labels unknown to the model (%s); they count as wrong",
            unknown.total(),
            n_rows,
            args.data,
            ", ".join([f"{label}: {rows} rows" for label, rows in found] + more),
        )
    result = confusion.measures()
    if args.by is not None:
        result["by"] = {"column": args.by, "values": _by_value(groups, ranking is not None)}
    if ranking is not None:
        name = common.format_label(classes.tolist()[place])
        n_positive = result["classes"][name]["rows"]
        if args.positive is not None and not n_positive:
            raise InputError(f"no row of {args.data} has the label {name}, see --positive")
        result |= {"positive": name, **ranking.measures()}
        if 0 < n_positive < n_rows:
            points = ranking.points(CURVE_POINTS)
            result["curve"] = {name: values.tolist() for name, values in points.items()}
            if isinstance(args.threshold, tuple):
                result["threshold"] = _threshold(ranking, args.threshold, model, place)
    return result | (reliability.measures() if reliability else {}) | {"n_rows": n_rows}


def _positive(args: argparse.Namespace, model: Model) -> tuple[npt.NDArray[Any], int, str | None]:
    """Classes, the place of the positive one, and a label that only novel rows of DATA have."""
    names = [common.format_label(value) for value in model.classes.tolist()]
    novelty, label = model.task == "novelty", args.positive
    if label is None:
        return model.classes, 0 if novelty else 1, None
    if label in names:
        return model.classes, names.index(label), None
    if novelty:
        return np.array([label, f"not {label}"]), 0, label
    raise InputError(f"--positive {label}: {args.model} knows {' and '.join(names)}")


def _threshold(
    ranking: Ranking, wanted: tuple[str, float], model: Model, place: int
) -> dict[str, Any]:
    """Threshold of ``predict`` that gives a measure on the rows of `ranking`, or the most of it.

    Of all with the recall that is wanted it has the highest precision, or the other way round.
    """
    # The rule of `Model.class_places` for a row at the threshold.
    includes = (model.task == "novelty") == bool(place)
    points = ranking.points(THRESHOLDS, "left" if includes else "right")
    measure, least = wanted
    reached = points[measure] >= least
    other = points["precision" if measure == "recall" else "recall"]
    best = np.where(reached, other, -1.0).argmax() if reached.any() else points[measure].argmax()
    found = {name: float(values[best]) for name, values in points.items()}
    value = found.pop("value")
    return {
        measure: least,
        "reached": bool(reached.any()),
        "value": value if place else -value,
        "positive_where": (">" if place else "<") + "=" * includes,
        "gives": found,
    }


def _measures_of_regression(args: argparse.Namespace, model: Model) -> dict[str, Any]:
    residuals = Residuals(model.offset or 0.0)
    for block in apply_model(model, args, Wanted(), with_labels=True):
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
        self._classes, self._known = classes, set(classes)
        self.counts: Counter[tuple[Any, Any]] = Counter()  # rows by given and predicted label

    @property
    def unknown(self) -> Counter[Any]:
        """Rows by given labels that are no classes of the model."""
        rows: Counter[Any] = Counter()
        for (given, _), count in self.counts.items():
            if given not in self._known:
                rows[given] += count
        return rows

    def add(self, labels: npt.NDArray[Any], places: Int64Array) -> None:
        """Count rows by their given labels and the places of their predicted classes."""
        n = len(self._classes)
        values, rows = np.unique(labels, return_inverse=True)
        pairs, counts = np.unique(rows * n + places, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            self.counts[values[pair // n].item(), self._classes[pair % n]] += count

    def measures(self) -> dict[str, Any]:
        """Measures of all rows and of each class, NaN if there is nothing to divide by.

        The balanced accuracy is the mean recall of the given labels, whatever their numbers of
        rows; ``macro`` has it, too, and means over all labels that are given or predicted, where 0
        stands for NaN. ``confusion[i][j]`` counts rows of label i that were predicted as j.
        """
        names = sorted([*self._classes, *self.unknown])
        confusion = np.array([[self.counts[i, j] for j in names] for i in names])
        right, of_given, of_found = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
        known = np.isin(names, self._classes)
        occurs = of_given + of_found > 0
        with np.errstate(invalid="ignore"):
            of_known = float(right[known].sum() / of_given[known].sum())
            recall, precision = right / of_given, right / of_found
            f1 = 2 * right / (of_given + of_found)
        measures = {"precision": precision, "recall": recall, "f1": f1}
        balanced = float(np.nanmean(recall))
        return {
            "accuracy": float(right.sum() / of_given.sum()),
            "accuracy_of_known_labels": of_known,
            "balanced_accuracy": balanced,
            "classes": {
                common.format_label(name): {"rows": int(of_given[k])}
                | {measure: float(values[k]) for measure, values in measures.items()}
                for k, name in enumerate(names)
            },
            "macro": {
                measure: float(np.nan_to_num(values[occurs]).mean())
                for measure, values in measures.items()
            }
            | {"recall": balanced},
            "confusion": confusion.tolist(),
        }


def _by_value(groups: Counter[tuple[bool, bool, str]], of_two: bool) -> dict[str, dict[str, float]]:
    """Shares of rows of each value that were predicted as their label, or, of two, as positive."""
    counts: dict[str, Counter[str]] = {}
    for (is_right, is_positive, word), n in groups.items():
        count = counts.setdefault(word, Counter())
        count.update(rows=n, recall=n * is_right, positive=n * is_positive)
    names = ("recall", "positive") if of_two else ("recall",)
    return {
        word: {"rows": count["rows"]} | {name: count[name] / count["rows"] for name in names}
        for word, count in sorted(counts.items())
    }


def _lines(result: dict[str, Any]) -> list[str]:
    hidden = "classes", "macro", "confusion", "curve", "threshold", "reliability", "sample", "by"
    shown = {k: v for k, v in result.items() if k not in hidden and v is not None}
    if shown.get("accuracy_of_known_labels") == shown.get("accuracy"):
        shown.pop("accuracy_of_known_labels", None)
    lines = common.aligned(shown)
    if "classes" not in result:
        return lines
    rows: list[list[Any]] = [["class", "rows", *result["macro"]]]
    for name, of_class in (*result["classes"].items(), ("macro mean", {**result["macro"]})):
        ratios = (of_class[measure] for measure in result["macro"])
        cells = ["-" if math.isnan(ratio) else f"{ratio:.4f}" for ratio in ratios]
        rows.append([name, of_class.get("rows", ""), *cells])
    lines += ["", *common.table(rows), "", *_confusion_lines(result)]
    if "by" in result:
        of_values = result["by"]["values"]
        rows = [[result["by"]["column"], *next(iter(of_values.values()))]]
        for word, of in of_values.items():
            rows.append([word or "(missing)", *map(common.format_value, of.values())])
        lines += ["", *common.table(rows)]
    if "threshold" in result:
        threshold = result["threshold"]
        value, (measure, least) = threshold["value"], next(iter(threshold.items()))
        words = f"{measure} {least:g} of {result['positive']} on these rows"
        words = words if threshold["reached"] else f"no threshold gives {words}, this gives most"
        rule = f"{result['positive']} where the decision is {threshold['positive_where']} {value}"
        gives = common.aligned(threshold["gives"])
        lines += ["", f"{words} (all above is of threshold 0):", rule, *gives]
        for why, command in (("judge it on other rows", "evaluate"), ("use it", "predict")):
            lines.append(f"{why}: ooc-fw {command} --threshold {value}")
    return lines


def _confusion_lines(result: dict[str, Any]) -> list[str]:
    """The confusion matrix, in parts that the terminal has room for, or its largest entries."""
    names, matrix = list(result["classes"]), result["confusion"]
    if len(names) > MOST_COLUMNS:
        cells = zip(product(names, names), chain(*matrix), strict=True)
        wrong = [(*pair, count) for pair, count in cells if pair[0] != pair[1] and count]
        rows = sorted(wrong, key=lambda each: -each[2])[:MOST_CONFUSIONS]
        title = f"largest confusions (--json has all of the {len(names)} x {len(names)})"
        return [title, *common.table([["given", "predicted", "rows"], *rows], 2)]
    lines, label = ["confusion (given below, predicted to the right)"], max(map(len, names))
    cell = 2 + max(label, len(str(max(map(max, matrix)))))
    step = max(1, (shutil.get_terminal_size().columns - label) // cell)
    for first in range(0, len(names), step):
        part = slice(first, first + step)
        shown = ([k, *row[part]] for k, row in zip(names, matrix, strict=True))
        lines += common.table([["", *names[part]], *shown])
    return lines
