"""``ooc-fw evaluate``: how good a model is on labelled rows, class by class."""

from __future__ import annotations

import argparse
import logging
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn import metrics

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.rows import apply_model, column_words, open_model
from ooc_fw.data.labels import like_classes
from ooc_fw.data.rows import AnyArray, Float64Array
from ooc_fw.model.machines import as_class_values
from ooc_fw.model.prediction import Wanted
from ooc_fw.model.record import Model
from ooc_fw.report.figures import check_figure, draw_fit, draw_measures, save
from ooc_fw.system.errors import InputError, format_label, format_labels, format_value
from ooc_fw.system.files import Output, check_outputs

MOST_UNKNOWN = 1000  # different labels that the model does not know; more are no classes
MOST_COLUMNS = 20  # classes of a confusion matrix that is shown as a table

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """How good a model is on labelled rows."""
    model = open_model(args)
    if args.figure is not None:
        check_outputs([Output("figure", args.figure, streamed=True)], args.inputs)
        check_figure(args.figure)
    of_two = args.positive is not None or args.threshold is not None
    if of_two and (model.task == "regression" or len(model.classes) != 2):
        raise InputError(
            f"--positive and --threshold are for two classes or novelty, which {args.model} has "
            f"not; leave them out"
        )
    judge = _judge_numbers if model.task == "regression" else _judge_classes
    result, seen = judge(args, model)
    result["seconds"] = time.perf_counter() - args.started
    common.print_result(args, result, _lines(result))
    if args.figure is not None:
        save(draw_measures(result, seen) if "classes" in result else draw_fit(*seen), args.figure)
    return DONE


def _judge_numbers(args: argparse.Namespace, model: Model) -> tuple[dict[str, Any], Any]:
    """Measures of a regression; targets and predictions."""
    parts = []
    for block in apply_model(model, args, Wanted(), with_labels=True):
        if block.labels.dtype.kind not in "biuf":
            raise InputError(
                f"the labels of {args.data} are words, and the model predicts numbers; name other "
                f"labels"
            )
        parts.append(np.stack([block.labels.astype(float), block.values]))
    both = np.concatenate(parts, axis=1)
    result = {
        "r2": metrics.r2_score(*both) if np.ptp(both[0]) > 0 else None,
        "rmse": metrics.root_mean_squared_error(*both),
        "mae": metrics.mean_absolute_error(*both),
        "n_rows": both.shape[1],
    }
    return result, both


class Judged(NamedTuple):
    """Rows with what was predicted; columns are None where they have no meaning."""

    given: npt.NDArray[np.int32]  # place of the label among the names
    found: npt.NDArray[np.int32]
    positive: npt.NDArray[np.bool_] | None = None
    scores: Float64Array | None = None  # of two classes, larger for the positive one
    chances: Float64Array | None = None  # probability of the larger of two labels


def _judge_classes(args: argparse.Namespace, model: Model) -> tuple[dict[str, Any], Judged]:
    """Measures of classes, and the rows."""
    words = None if args.by is None else column_words(model, args, args.by)
    classes, place = _positive(args, model)
    seen, names, brier = _read(args, model, classes, place)
    _check_unknown(args, names, seen.given, len(classes))
    result = class_measures(seen.given, seen.found, names)
    if words is not None:
        shares = {"recall": seen.given == seen.found}
        shares |= {} if seen.positive is None else {"positive": seen.found == place}
        result["by"] = {"column": args.by, "values": _by_value([*words], shares)}
    if seen.positive is not None and seen.scores is not None:
        name = format_label(names[place])
        if args.positive is not None and not seen.positive.any():
            raise InputError(f"no row of {args.data} has the label {name}, see --positive")
        result |= {"positive": name, "roc_auc": None, "average_precision": None}
        if 0 < seen.positive.sum() < len(seen.positive):
            ranked = seen.positive, seen.scores
            result["roc_auc"] = metrics.roc_auc_score(*ranked)
            result["average_precision"] = metrics.average_precision_score(*ranked)
            if isinstance(args.threshold, tuple):
                result["threshold"] = _threshold(*ranked, args.threshold, model, place)
    if model.calibrated:
        result["brier_score"] = brier
    return result | {"n_rows": len(seen.given)}, seen


def _positive(args: argparse.Namespace, model: Model) -> tuple[AnyArray, int]:
    """Classes and the place of the positive one, which for novelty may be any label of DATA."""
    names = [format_label(value) for value in model.classes.tolist()]
    novelty = model.task == "novelty"
    if args.positive is None:
        return model.classes, 0 if novelty else 1
    if args.positive in names:
        return model.classes, names.index(args.positive)
    if novelty:
        return np.array([args.positive, f"not {args.positive}"]), 0
    raise InputError(f"--positive {args.positive}: {args.model} knows {' and '.join(names)}")


def _read(
    args: argparse.Namespace, model: Model, classes: AnyArray, place: int
) -> tuple[Judged, list[Any], float]:
    """All rows, the names (classes first, then labels unknown to the model), the Brier score."""
    of_two = len(classes) == 2
    cut = args.threshold if isinstance(args.threshold, float) else 0.0
    wanted = Wanted(not of_two and not model.calibrated, cut)
    places = {value: k for k, value in enumerate(classes.tolist())}
    parts = []
    squares = 0.0
    for block in apply_model(model, args, wanted, with_labels=True):
        labels = as_class_values(block.labels)
        values, rows = np.unique(like_classes(labels, classes), return_inverse=True)
        if classes is not model.classes:
            values = classes[[int(format_label(v) != args.positive) for v in values.tolist()]]
        codes = [places.setdefault(value, len(places)) for value in values.tolist()]
        given = np.array(codes, dtype=np.int32)[rows]
        columns: list[AnyArray] = [given, model.class_places(block.values, cut).astype(np.int32)]
        if of_two:
            columns += [given == place, block.values if place else -block.values]
        if model.calibrated:
            chances = model.probabilities(block.values)
            errors = (chances - (given[:, None] == np.arange(len(classes)))) ** 2
            squares += float(errors[:, 1:].sum() if of_two else errors.sum())
            columns += [chances[:, 1]] if of_two else []
        parts.append(columns)
    seen = Judged(*map(np.concatenate, zip(*parts, strict=True)))
    return seen, [*places], squares / len(seen.given)


def _check_unknown(
    args: argparse.Namespace, names: Sequence[Any], given: AnyArray, n_classes: int
) -> None:
    """Warn of labels that the model does not know; InputError if these are all, or no classes."""
    unknown = names[n_classes:]
    n_unknown = np.count_nonzero(given >= n_classes)
    found = format_labels(unknown[:5]) + ", ..." * (len(unknown) > 5)
    if n_unknown == len(given) or len(unknown) > MOST_UNKNOWN:
        raise InputError(
            f"{n_unknown} of {len(given)} labels in {args.data} are no classes of the model "
            f"(known: {format_labels(names[:n_classes])}; found: {found}); name another column "
            f"with --label"
        )
    if n_unknown > 0:
        sentence = "%d of %d rows in %s have labels unknown to the model (%s); they count as wrong"
        logger.warning(sentence, n_unknown, len(given), args.data, found)


def class_measures(given: AnyArray, found: AnyArray, names: Sequence[Any]) -> dict[str, Any]:
    """Measures of all rows and of each class, NaN if there is nothing to divide by.

    The balanced accuracy is the mean recall of the given labels; ``macro`` has it, too, and means
    over all labels that are given or predicted, in which 0 stands for NaN. ``confusion[i][j]``
    counts rows of label i that were predicted as j.
    """
    order = sorted(range(len(names)), key=names.__getitem__)
    confusion = metrics.confusion_matrix(given, found, labels=order)
    how: dict[str, Any] = {"labels": order, "zero_division": np.nan}
    *ratios, rows = metrics.precision_recall_fscore_support(given, found, **how)
    of_class = dict(zip(("precision", "recall", "f1"), ratios, strict=True))
    occurs = rows + confusion.sum(axis=0) > 0
    balanced = float(np.nanmean(of_class["recall"]))
    macro = {key: float(np.nan_to_num(each[occurs]).mean()) for key, each in of_class.items()}
    return {
        "accuracy": float(np.mean(given == found)),
        "balanced_accuracy": balanced,
        "classes": {
            format_label(names[place]): {"rows": int(rows[k])}
            | {key: float(each[k]) for key, each in of_class.items()}
            for k, place in enumerate(order)
        },
        "macro": macro | {"recall": balanced},
        "confusion": confusion.tolist(),
    }


def _by_value(words: list[str], shares: dict[str, AnyArray]) -> dict[str, dict[str, float]]:
    """Number of rows of each word, and means over these."""
    values, rows = np.unique(np.array(words), return_inverse=True)
    counts = np.bincount(rows)
    means = {key: np.bincount(rows, each) / counts for key, each in shares.items()}
    return {
        word: {"rows": int(counts[k])} | {key: float(each[k]) for key, each in means.items()}
        for k, word in enumerate(values.tolist())
    }


def _threshold(
    positive: AnyArray, scores: Float64Array, wanted: tuple[str, float], model: Model, place: int
) -> dict[str, Any]:
    """Threshold of ``predict`` that gives a measure on these rows, or the most of it.

    Of all with the recall that is wanted it has the highest precision, or the other way round.
    """
    precision, recall, values = metrics.precision_recall_curve(positive, scores)
    points = {"recall": recall[:-1], "precision": precision[:-1]}
    measure, least = wanted
    reached = points[measure] >= least
    other = points["precision" if measure == "recall" else "recall"]
    best = np.where(reached, other, -1.0).argmax() if reached.any() else points[measure].argmax()
    below = values[best - 1] if best > 0 else np.nextafter(values[0], -np.inf)
    value = float(values[best] + below) / 2  # no row is at the threshold
    # The rule of `Model.class_places` for a row at the threshold.
    includes = (model.task == "novelty") == bool(place)
    return {
        measure: least,
        "reached": bool(reached.any()),
        "value": value if place else -value,
        "positive_where": (">" if place else "<") + "=" * includes,
        "gives": {name: float(each[best]) for name, each in points.items()},
    }


def _lines(result: dict[str, Any]) -> list[str]:
    tables = "classes", "macro", "confusion", "threshold", "by"
    lines = common.aligned({k: v for k, v in result.items() if k not in tables and v is not None})
    if "classes" not in result:
        return lines
    names = [*result["classes"]]
    rows: list[list[Any]] = [["class", "rows", *result["macro"]]]
    for name, measures in [
        *result["classes"].items(),
        ("macro mean", {"rows": ""} | result["macro"]),
    ]:
        count, *ratios = measures.values()
        rows.append([name, count, *("-" if math.isnan(x) else f"{x:.4f}" for x in ratios)])
    lines += ["", *common.table(rows), ""]
    if len(names) > MOST_COLUMNS:
        lines.append(f"--json has the confusion matrix of {len(names)} x {len(names)}")
    else:
        rows = [[name, *row] for name, row in zip(names, result["confusion"], strict=True)]
        lines.append("confusion (given below, predicted to the right)")
        lines += common.table([["", *names], *rows])
    if "by" in result:
        values = result["by"]["values"]
        rows = [
            [word or "(missing)", *map(format_value, of.values())] for word, of in values.items()
        ]
        title = [result["by"]["column"], *next(iter(values.values()))]
        lines += ["", *common.table([title, *rows])]
    if "threshold" in result:
        found = result["threshold"]
        measure, least = next(iter(found.items()))
        words = f"{measure} {least:g} of {result['positive']} on these rows"
        lines += ["", words if found["reached"] else f"no threshold gives {words}; most gives"]
        rule = f"the decision is {found['positive_where']} {found['value']}"
        lines += [f"{result['positive']} where {rule}", *common.aligned(found["gives"])]
        lines.append(f"use it: ooc-fw predict --threshold {found['value']}")
    return lines
