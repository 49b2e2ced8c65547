"""How good a model is on labelled rows, class by class."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn import metrics

from ooc_fw.data.labels import Classes, label_map, label_number, unknown_labels
from ooc_fw.data.rows import AnyArray, Float64Array
from ooc_fw.model.applying import NewRows, apply_model
from ooc_fw.model.prediction import DECISION_ACCURACY, without_value
from ooc_fw.model.record import Model, load_model
from ooc_fw.options import SHARE, Option
from ooc_fw.system.errors import InputError, format_label, format_words

logger = logging.getLogger(__name__)

MOST_CONFUSED = 2_000
"""Most labels whose confusion is counted."""


def evaluate(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    positive: Any = None,
    false_alarms: float | str | None = None,
    ordinary: str | None = None,
    threads: int = 1,
    dask: Any = None,
    **reading: Any,
) -> dict[str, Any]:
    """Measure how good a model is on labelled rows, as ``ooc-fw evaluate`` does.

    Parameters
    ----------
    model : Model, estimator or path
        A trained model, a fitted estimator, or the path of a model file.
    X
        Rows that the model has not learned: anything that `Model.predict` takes, or LIBSVM text.
    y
        Labels or targets, as for `open_dataset`; None takes the ones in `X`. Rows without a label
        are left out, and labels that the model does not know count as wrong.
    positive : label, optional
        The class of two to which precision, recall and ROC belong; by default the larger one, or
        novel rows.
    false_alarms : float or text such as "1%", optional
        Find the threshold at which at most this share of the other rows is called positive.
    ordinary : str, optional
        For novelty models: the label of ordinary rows; all others are novel.
    threads, dask
        As for `Model.decision_function`.
    **reading
        How `X` is read: ``label``, ``x_name``, ``fill_missing``, ``zero_based`` and ``names``, as
        the options of ``ooc-fw evaluate``.

    Returns
    -------
    dict
        What ``ooc-fw evaluate --json`` prints: accuracy, balanced_accuracy, classes, macro,
        confusion and n_rows; with two classes roc_auc and average_precision; with probabilities
        brier_score. A regression has r2, rmse, mae and n_rows.

    Raises
    ------
    InputError
        If `X` does not fit the model, or if the model knows none of its labels.

    Examples
    --------
    >>> import numpy as np
    >>> from ooc_fw import FrankWolfeSVC
    >>> X = np.arange(8.0)[:, None]
    >>> model = FrankWolfeSVC(C=10).fit(X, X[:, 0] > 3)
    >>> evaluate(model, X, X[:, 0] > 3)["accuracy"]
    1.0
    """
    model = getattr(model, "model_", model)
    name = "the model"
    if isinstance(model, str | os.PathLike):
        name = os.fspath(model)
        model = load_model(name)
    if ordinary is not None and model.task != "novelty":
        raise InputError("ordinary goes with novelty models only; leave it out")
    if ordinary is not None:
        model = replace(model, origin={**model.origin, "ordinary": ordinary})
    if false_alarms is not None:
        false_alarms = Option(None, **SHARE).check("false_alarms", false_alarms)
    new = NewRows.of(X, y, threads=threads, dask=dask, like=name, **reading)
    return judge(model, new, positive=positive, false_alarms=false_alarms)[0]


class Judged(NamedTuple):
    """Labels and predictions of all rows; the last three need a model of two classes."""

    given: AnyArray  # place of each row's label in the list of names, or targets of a regression
    found: AnyArray  # place of the predicted label, or predictions
    positive: npt.NDArray[np.bool_] | None = None  # whether the label is the positive class
    scores: Float64Array | None = None  # decision values, larger for the positive class
    chances: Float64Array | None = None  # probability of the positive class, if it is known


def judge(
    model: Model, new: NewRows, *, positive: Any = None, false_alarms: Any = None
) -> tuple[dict[str, Any], Judged]:
    """What `evaluate` returns, and the rows for its figures."""
    if model.task == "regression":
        return _judge_numbers(model, new)
    return _judge_classes(model, new, positive, false_alarms)


def _judge_numbers(model: Model, new: NewRows) -> tuple[dict[str, Any], Judged]:
    """Measures of a regression, its targets and its predictions."""
    parts = []
    for block in apply_model(model, new, with_labels=True):
        if block.labels.dtype.kind not in "biuf":
            raise InputError(
                f"the model predicts numbers, but the labels of {new.name} are words; name others"
            )
        if without_value(block.values).any():
            raise InputError(f"{new.name} has rows without a prediction; leave these rows out")
        parts.append(np.stack([block.labels.astype(float), block.values]))
    both = np.concatenate(parts, axis=1)
    measures = {
        "r2": metrics.r2_score(*both) if np.ptp(both[0]) > 0 else None,
        "rmse": metrics.root_mean_squared_error(*both),
        "mae": metrics.mean_absolute_error(*both),
        "n_rows": both.shape[1],
    }
    return measures, Judged(*both)


def _judge_classes(
    model: Model, new: NewRows, positive: Any, false_alarms: float | None
) -> tuple[dict[str, Any], Judged]:
    """Measures of a classifier or a novelty model, and the labels and predictions of all rows."""
    classes = Classes(model.classes)
    known = classes.names
    place = 0 if model.task == "novelty" else len(known) - 1
    if len(known) > 2 and (positive, false_alarms) != (None, None):
        raise InputError("positive and false_alarms are for two classes or novelty; leave them out")
    if positive is not None:
        place = classes.place(positive)
    if place < 0:
        like = new.options.like
        raise InputError(f"--positive {positive}: {like} knows {' and '.join(known)}")
    seen, names, brier = _read(model, new, place)
    n_unknown = int(np.count_nonzero(seen.given >= len(known)))
    found = sorted(names[len(known) :], key=format_label)
    if n_unknown == len(seen.given):
        way = "name another column with --label"
        if model.task == "novelty":
            way = "name the label of ordinary rows: --ordinary LABEL"
        raise unknown_labels(classes, found, new.name, way)
    if n_unknown > 0:
        sentence = "%d of %d rows in %s have labels unknown to the model (%s); they count as wrong"
        sentence += ": rename them (convert --labels-as), or delete these rows from the input"
        logger.warning(sentence, n_unknown, len(seen.given), new.name, format_words(found))
    chosen: dict[str, Any] = {}
    if false_alarms is not None:
        seen, chosen = _at_rate(model, new.name, seen, place, false_alarms)
    _warn_of_labels(model, new.name, {format_label(names[k]) for k in {*seen.given.tolist()}})
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


def _read(model: Model, new: NewRows, place: int) -> tuple[Judged, list[Any], float]:
    """All rows, the labels (classes, then those that the model does not know), the Brier score."""
    classes = Classes(model.classes)
    of_two = len(classes) == 2
    labels_only = not of_two and not model.calibrated
    others: dict[Any, int] = {}  # codes of labels that the model does not know
    parts = []
    squares = 0.0
    for block in apply_model(model, new, labels_only=labels_only, with_labels=True):
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
    model: Model, name: str, seen: Judged, place: int, rate: float
) -> tuple[Judged, dict[str, Any]]:
    """Predictions with the threshold for a rate of false alarms, and what is said of it.

    The threshold lies between two decision values. The positive class has this `place`.
    """
    assert seen.scores is not None
    assert seen.positive is not None
    others = np.sort(seen.scores[~seen.positive])[::-1]
    if not 0 < len(others) < len(seen.scores):
        raise InputError(f"--false-alarms needs rows of both classes, and {name} has one only")
    least = float(others[int(rate * len(others))])
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
    if len(names) <= MOST_CONFUSED:
        counts = metrics.confusion_matrix(given, found, labels=order).tolist()
    return {
        "accuracy": metrics.accuracy_score(given, found),
        "balanced_accuracy": report["macro avg"]["recall"],
        "classes": {names[place]: report[str(place)] for place in order},
        "macro": report["macro avg"],
        "confusion": counts,
    }
