"""Commands about a model: ``ooc-fw certify``, ``importance``, ``export`` and ``info MODEL``."""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.data.labels import Classes
from ooc_fw.model.applying import NewRows
from ooc_fw.model.onnx import to_onnx
from ooc_fw.model.record import Model, load_model
from ooc_fw.options import ConvertOptions
from ooc_fw.report.figures import check_figure, draw_importance, is_figure, save
from ooc_fw.report.progress import Waiting
from ooc_fw.solver.state import Status
from ooc_fw.system.files import Output, check_outputs, write_atomic

logger = logging.getLogger(__name__)

_ROUGH = 1e-2  # relative gap above which labels may differ from those of the optimum


def open_model(args: argparse.Namespace) -> Model:
    """Load the model of the arguments, with a warning if its run was not over.

    ``--threshold`` replaces that of the model. InputError for options that need two classes, if the
    model has more or is a regression.
    """
    model = load_model(args.model)
    of_two = len(model.classes) == 2 and model.task != "regression"
    if not of_two:
        why = f"is for two classes or novelty, and {args.model} has neither; leave it out"
        common.refuse_given(args, ("threshold", "positive", "false_alarms", "save"), why)
    if vars(args).get("threshold") is not None:
        model = replace(model, threshold=args.threshold)
    gap = model.objective_gap
    if gap is None:
        gap = model.sampled_gap if model.certified_gap is None else model.certified_gap
    is_rough = (gap is None or gap > _ROUGH) and not Status(model.status).reached
    is_checkpoint = model.status == Status.RUNNING
    if is_checkpoint or is_rough:
        what = "a checkpoint" if is_checkpoint else "a model of low accuracy"
        sentence = "%s is %s: its run was not over (%s); see ooc-fw info %s"
        logger.warning(sentence, args.model, what, model.status, args.model)
    return model


def new_rows(args: argparse.Namespace, model: str, **reading: Any) -> NewRows:
    """DATA, to which the model in the file `model` is applied."""
    options = common.record_from(ConvertOptions, args, like=model, labels=None, **reading)
    how = {"threads": args.threads, "dask": args.dask, "say": partial(common.say, args)}
    progress = partial(Waiting, "predict", quiet=args.quiet)
    return NewRows(args.data, options, vars(args).get("labels"), progress=progress, **how)


def certify(args: argparse.Namespace) -> int:
    """Measure the duality gap of a model over its training data."""
    model = open_model(args)
    with (
        common.open_data(args, model.origin) as source,
        Waiting("certify", source.n_rows, quiet=args.quiet) as tell,
    ):
        found = model.certify(source, threads=args.threads, dask=args.dask, on_rows=tell)
    result = {"certified_gap": found.certified_gap, "gap_scope": found.gap_scope, **found.worst}
    if model.n_weighted is not None:
        result["n_weighted"] = model.n_weighted
    if model.kind == "landmarks":
        result["n_support"] = len(model.support_vectors)
    lines = common.aligned(common.with_scope(result))
    if len(found.classifiers) > 1:
        result["classifiers"] = [
            sides | known for sides, known in zip(model.named_sides, found.classifiers, strict=True)
        ]
    result |= {"tol": args.tol, "reached": found.reached(args.tol)}
    common.print_result(args, result, lines)
    return DONE if result["reached"] else NO


def importance(args: argparse.Namespace) -> int:
    """Measure how much each column matters to a model."""
    check_outputs([Output("figure", args.figure, is_figure)], common.inputs_of(args))
    check_figure(args.figure)
    model = open_model(args)
    rows = None if args.rows == "all" else args.rows
    with (
        common.open_data(args, model.origin, labels=False) as source,
        common.open_workers(args) as workers,
    ):
        total = min(source.n_rows, rows or source.n_rows)
        with Waiting("importance", total, quiet=args.quiet) as progress:
            options = {"threads": args.threads, "dask": workers, "on_rows": progress}
            found = model.importance(source, rows=rows, **options)
    lines = [f"change of {found.what} by one standard deviation, {found.n_rows} rows"]
    values = [[found.names[k], f"{found.values[k]:.4g}"] for k in found.order[: args.top]]
    lines += common.table([["column", "importance"], *values])
    common.print_result(args, found.to_dict(), lines)
    if args.figure is not None:
        save(draw_importance(found, args.top), args.figure)
    return DONE


def export(args: argparse.Namespace) -> int:
    """Write a model as an ONNX graph."""
    check_outputs([Output("output", args.output, _is_own)], common.inputs_of(args))
    model = open_model(args)
    write_atomic(args.output, to_onnx(model))
    result = {"output": args.output, "probabilities": model.calibrated}
    common.print_result(args, result, [args.output])
    return DONE


def _is_own(path: Path) -> bool:
    """Whether a file looks like one of ``ooc-fw export``: it begins with the producer's name."""
    with path.open("rb") as file:
        return b"ooc-fw" in file.read(64)


def describe_model(model: Model, name: str) -> dict[str, Any]:
    """Describe the model in the file `name`; gaps are those of the worst classifier."""
    scope = None
    if model.certified_gap is not None:
        scope = "all" if model.n_weighted is None else "weighted"
    if model.status in (Status.STREAMED, Status.UNSETTLED):
        scope = "chunk"  # the rows that the stream keeps, and the last chunk
    elif model.kind == "landmarks":
        scope = "span"
    origin: dict[str, Any] = dict.fromkeys(("x_name", "label", "labels_as", "ordinary", "linear"))
    if model.table is not None:
        origin["label"] = json.loads(model.table)["label"]
    origin |= model.origin
    kernel = model.kernel.to_dict()
    if model.kernel.name != "poly":
        kernel |= {"degree": None, "coef0": None}
    if not model.kernel.uses_gamma:
        kernel["gamma"] = None
    same = (
        "C",
        "threshold",
        "n_features",
        "objective_gap",
        "certified_gap",
        "n_weighted",
        "status",
        "task",
    )
    advice = f"resume the run with the command that began it and --resume {name}"
    return {
        "kind": "model",
        "kernel": kernel.pop("name"),
        **kernel,
        **{each: getattr(model, each) for each in same},
        "model_kind": model.kind,
        "weights": None if model.penalties is None else "by class or row",
        "n_support": model.size,
        "sampled_gap": model.sampled_gap if model.certified_gap is None else None,
        "gap_scope": scope,
        "classes": [] if model.task == "regression" else Classes(model.classes).names,
        **model.scaling.facts,
        **origin,
        "advice": [advice] if model.run is not None else [],
        "next": [f"ooc-fw evaluate {name} DATA"],
    }
