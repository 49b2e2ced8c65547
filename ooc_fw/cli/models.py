"""``ooc-fw certify``, ``importance`` and ``export``: what a model is worth, and its graph."""

from __future__ import annotations

import argparse
from pathlib import Path

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.cli.predict import open_model
from ooc_fw.landmarks import relative_target
from ooc_fw.model.onnx import OPSET, to_onnx
from ooc_fw.report.figures import check_figure, draw_importance, save
from ooc_fw.report.progress import Waiting
from ooc_fw.system.files import Output, check_outputs, write_atomic


def certify(args: argparse.Namespace) -> int:
    """Measure the duality gap of a model over its training data."""
    model = open_model(args)
    exact = model.kind == "exact"
    with (
        common.open_data(args) as source,
        Waiting("certify", source.n_rows, quiet=args.quiet) as tell,
    ):
        found = model.certify(source, threads=args.threads, dask=args.dask, on_rows=tell)
    gap = found.certified_gap
    result = {"certified_gap": gap, "gap_scope": found.gap_scope, **found.worst}
    if model.n_weighted is not None:
        result["n_weighted"] = model.n_weighted
    if not exact:
        result["n_support"] = len(model.support_vectors)
    lines = common.aligned(common.with_scope(result))
    if len(found.classifiers) > 1:
        result["classifiers"] = [
            {"negative": classifier.negative, "positive": classifier.positive, **fields}
            for classifier, fields in zip(model.classifiers, found.classifiers, strict=True)
        ]
        lines += common.gap_lines(result["classifiers"])
    # The gap of landmarks is a share of the objective: that which the tolerance allows bounds it.
    tol = args.tol if exact else relative_target(args.tol)
    result |= {"tol": tol, "reached": found.worst["certified_gap"] <= tol}
    common.print_result(args, result, lines)
    return DONE if result["reached"] else NO


def importance(args: argparse.Namespace) -> int:
    """Which columns matter to a model."""
    if args.figure is not None:
        check_outputs([Output("figure", args.figure)], common.inputs_of(args))
        check_figure(args.figure)
    model = open_model(args)
    rows = None if args.rows == "all" else args.rows
    with common.open_data(args, labels=False) as source, common.open_workers(args) as workers:
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
    check_outputs([Output("output", args.output, is_own=_is_own)], common.inputs_of(args))
    model = open_model(args)
    content = to_onnx(model)
    write_atomic(args.output, content)
    result = {
        "output": args.output,
        "opset": OPSET,
        "n_features": model.n_features,
        "n_support": len(model.support_vectors),
        "probabilities": model.calibrated,
        "bytes": len(content),
    }
    common.print_result(args, result, [args.output], common.aligned(result))
    return DONE


def _is_own(path: Path) -> bool:
    """Whether a file looks like one of ``ooc-fw export``, by the name of its maker."""
    with path.open("rb") as file:
        return b"ooc-fw" in file.read(64)
