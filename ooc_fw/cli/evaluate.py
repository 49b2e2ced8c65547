"""``ooc-fw evaluate``: how good a model is on labelled rows, class by class."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn import metrics

from ooc_fw.cli import common
from ooc_fw.cli.applying import apply_model, open_model
from ooc_fw.cli.commands import DONE
from ooc_fw.data.labels import Classes, label_map, label_number, unknown_labels
from ooc_fw.data.rows import AnyArray, Float64Array
from ooc_fw.data.structure import is_model
from ooc_fw.model.prediction import DECISION_ACCURACY, without_value
from ooc_fw.model.record import Model
from ooc_fw.report.figures import check_figure, draw_fit, draw_measures, is_figure, save
from ooc_fw.system.errors import InputError, format_label, format_words
from ooc_fw.system.files import Output, check_outputs

logger = logging.getLogger(__name__)

_MOST_CONFUSED = 2_000  # most labels whose confusion is counted


def run(args: argparse.Namespace) -> int:
    """Measure how good a model is on labelled rows."""
    model = open_model(args)
    args.missing_labels = "drop"
    model_output = Output("model", args.save, is_model)
    check_outputs([Output("figure", args.figure, is_figure), model_output], common.inputs_of(args))
    check_figure(args.figure)
    if model.task != "novelty":
        common.refuse_given(args, ["ordinary"], "goes with novelty models only; leave it out")
    if args.ordinary is not None:
        model.origin["ordinary"] = args.ordinary
    if args.false_alarms is None:
        common.refuse_given(args, ["save"], "goes with --false-alarms only; add that")
    is_regression = model.task == "regression"
    result, seen = (_judge_numbers if is_regression else _judge_classes)(args, model)
    common.print_result(args, result, _lines(result))
    if model.task == "classification" and model.penalties is None:
        counts = {name: each["support"] for name, each in result["classes"].items()}
        common.say(args, *common.imbalance({name: n for name, n in counts.items() if n > 0}))
    if args.save is not None:
        replace(model, threshold=result["threshold"]).save(args.save)
    if args.figure is not None:
        if not is_regression and result["confusion"] is None:
            raise InputError(
                f"a figure shows up to {_MOST_CONFUSED} classes, not {len(result['classes'])}; "
                f"leave out --figure"
            )
        save(draw_fit(*seen) if is_regression else draw_measures(result, seen), args.figure)
    return DONE


def _judge_numbers(args: argparse.Namespace, model: Model) -> tuple[dict[str, Any], Any]:
    """Measures of a regression, and the array of its targets and predictions."""
    parts = []
    for block in apply_model(model, args, with_labels=True):
        if block.labels.dtype.kind not in "biuf":
            raise InputError(
                f"the model predicts numbers, but the labels of {args.data} are words; name others"
            )
        if without_value(block.values).any():
            raise InputError(f"{args.data} has rows without a prediction; leave these rows out")
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
    """Labels and predictions of all rows; the last three need a model of two classes."""

    given: npt.NDArray[np.int32]  # place of each row's label in the list of names
    found: npt.NDArray[np.int32]  # place of the predicted label
    positive: npt.NDArray[np.bool_] | None = None  # whether the label is the positive class
    scores: Float64Array | None = None  # decision values, larger for the positive class
    chances: Float64Array | None = None  # probability of the positive class, if it is known


def _judge_classes(args: argparse.Namespace, model: Model) -> tuple[dict[str, Any], Judged]:
    """Measures of a classifier or a novelty model, and the labels and predictions of all rows."""
    classes = Classes(model.classes)
    known = classes.names
    place = 0 if model.task == "novelty" else len(known) - 1
    if args.positive is not None:
        place = classes.place(args.positive)
    if place < 0:
        raise InputError(f"--positive {args.positive}: {args.model} knows {' and '.join(known)}")
    seen, names, brier = _read(args, model, place)
    n_unknown = int(np.count_nonzero(seen.given >= len(known)))
    found = sorted(names[len(known) :], key=format_label)
    if n_unknown == len(seen.given):
        way = "name another column with --label"
        if model.task == "novelty":
            way = "name the label of ordinary rows: --ordinary LABEL"
        raise unknown_labels(classes, found, args.data, way)
    if n_unknown > 0:
        sentence = "%d of %d rows in %s have labels unknown to the model (%s); they count as wrong"
        sentence += ": rename them (convert --labels-as), or delete these rows from the input"
        logger.warning(sentence, n_unknown, len(seen.given), args.data, format_words(found))
    chosen: dict[str, Any] = {}
    if args.false_alarms is not None:
        seen, chosen = _at_rate(args, model, seen, place)
    _warn_of_labels(model, args.data, {format_label(names[k]) for k in {*seen.given.tolist()}})
    chosen = chosen or ({} if model.threshold is None else {"threshold": model.threshold})
    result = class_measures(seen.given, seen.found, [*map(format_label, names)]) | chosen
    if seen.positive is not None:
        ranked = (seen.positive, seen.scores)
        both = 0 < seen.positive.sum() < len(seen.positive)
        result["positive"] = known[place]
        result["roc_auc"] = metrics.roc_auc_score(*ranked) if both else None
        result["average_precision"] = metrics.average_precision_score(*ranked) if both else None
    if model.calibrated:
        result["brier_score"] = brier
    return result | {"n_rows": len(seen.given)}, seen


def _warn_of_labels(model: Model, data: str, given: set[str]) -> None:
    """Warn if all labels `given` in `data` are one class because the others have unknown names."""
    new = label_map(model.origin.get("labels_as", "*=*"))
    known = [name for name in new if name != "*"]
    rest = new.get("*")
    if "ordinary" in model.origin:
        known = [model.origin["ordinary"]]
        rest = "-1"
    if known and given == {rest}:
        sentence = "no label in %s is %s: all of them count as %s; see if this is right"
        logger.warning(sentence, data, format_words(known), rest)


def _read(args: argparse.Namespace, model: Model, place: int) -> tuple[Judged, list[Any], float]:
    """All rows, the labels (classes, then those that the model does not know), the Brier score."""
    classes = Classes(model.classes)
    of_two = len(classes) == 2
    labels_only = not of_two and not model.calibrated
    others: dict[Any, int] = {}  # codes of labels that the model does not know
    parts = []
    squares = 0.0
    for block in apply_model(model, args, labels_only=labels_only, with_labels=True):
        given = _places(model, block.labels)
        for row in np.flatnonzero(given < 0).tolist():
            given[row] = others.setdefault(block.labels[row], len(classes) + len(others))
        columns: list[AnyArray] = [given, model.class_places(block.values).astype(np.int32)]
        if of_two:
            columns += [given == place, block.values if place else -block.values]
        if model.calibrated:
            chances = model.probabilities(block.values)
            errors = (chances - (given[:, None] == np.arange(len(classes)))) ** 2
            squares += float(errors[:, 1:].sum() if of_two else errors.sum())
            columns += [chances[:, place]] if of_two else []
        parts.append(columns)
    seen = Judged(*map(np.concatenate, zip(*parts, strict=True)))
    return seen, [*classes.values.tolist(), *others], squares / len(seen.given)


def _places(model: Model, labels: AnyArray) -> npt.NDArray[np.int32]:
    """Place of the class of each label; -1 if the model does not know it.

    A novelty model that knows the label of ordinary rows takes all others for novel.
    """
    places = Classes(model.classes).of(labels).astype(np.int32)
    ordinary = model.origin.get("ordinary")
    if ordinary is None or model.task != "novelty":
        return places
    if label_number(ordinary) is not None:  # else labels may be 1 and -1 already
        places[:] = 0
    places[Classes(np.array([ordinary], dtype=object)).of(labels) == 0] = 1
    return np.maximum(places, 0)


def _at_rate(
    args: argparse.Namespace, model: Model, seen: Judged, place: int
) -> tuple[Judged, dict[str, Any]]:
    """Predictions with the threshold for ``--false-alarms``, and what is said of it.

    The threshold lies between two decision values. The positive class has this `place`.
    """
    assert seen.scores is not None
    assert seen.positive is not None
    others = np.sort(seen.scores[~seen.positive])[::-1]
    if not 0 < len(others) < len(seen.scores):
        raise InputError(f"--false-alarms needs rows of both classes, and {args.data} has one only")
    least = float(others[int(args.false_alarms * len(others))])
    above = seen.scores[seen.scores > least]
    cut = (least + float(above.min())) / 2 if len(above) > 0 else least + DECISION_ACCURACY
    sign = 1 if place else -1
    model = replace(model, threshold=sign * cut)
    found = model.class_places(sign * seen.scores).astype(np.int32)
    is_alarm = found == place
    words = [*Classes(model.classes).names][::sign]
    rule = f"{words[1]} if the decision value is {'above' if place else 'below'} the threshold, "
    said = {
        "threshold": model.threshold,
        "predicted": f"{rule}else {words[0]}",
        "false_alarms": float(is_alarm[~seen.positive].mean()),
        "recall": float(is_alarm[seen.positive].mean()),
    }
    return seen._replace(found=found), said


def class_measures(given: AnyArray, found: AnyArray, names: Sequence[str]) -> dict[str, Any]:
    """Measures of all rows and of each class; a division by zero gives NaN.

    The balanced accuracy is the mean recall of the given labels; ``macro`` has means over classes
    without NaN. ``confusion[i][j]`` counts rows of label i that were predicted as j; it is None if
    there are so many labels that this would take gigabytes.
    """
    order = range(len(names))
    how: dict[str, Any] = {"zero_division": np.nan, "output_dict": True}
    how["target_names"] = [str(place) for place in order]  # a label may be called "accuracy"
    report = metrics.classification_report(given, found, labels=order, **how)
    counts = None
    if len(names) <= _MOST_CONFUSED:
        counts = metrics.confusion_matrix(given, found, labels=order).tolist()
    return {
        "accuracy": metrics.accuracy_score(given, found),
        "balanced_accuracy": report["macro avg"]["recall"],
        "classes": {names[place]: report[str(place)] for place in order},
        "macro": report["macro avg"],
        "confusion": counts,
    }


def _lines(result: dict[str, Any]) -> list[str]:
    tables = ("classes", "macro", "confusion")
    lines = common.aligned({k: v for k, v in result.items() if k not in tables and v is not None})
    if "classes" not in result:
        return lines
    rows = [["class", *result["macro"]]]
    for name, measures in [*result["classes"].items(), ("macro mean", result["macro"])]:
        *ratios, count = measures.values()
        rows.append([name, *("-" if x != x else f"{x:.4f}" for x in ratios), f"{count:.0f}"])
    lines += ["", *common.table(rows)]
    names = [*result["classes"]]
    if len(names) > 20:  # the table would be wider than a screen
        return lines
    rows = [[name, *row] for name, row in zip(names, result["confusion"], strict=True)]
    lines += ["", "confusion (given below, predicted to the right)"]
    return lines + common.table([["", *names], *rows])
