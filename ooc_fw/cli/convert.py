"""``ooc-fw convert``: LIBSVM text, tables and arrays to HDF5."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.convert.convert import ConversionReport, convert
from ooc_fw.options import ConvertOptions
from ooc_fw.report.progress import Waiting
from ooc_fw.system.errors import InputError, format_label, format_labels
from ooc_fw.system.files import Output, check_outputs

SHOWN_CLASSES = 10


def run(args: argparse.Namespace) -> int:
    """Convert LIBSVM text, CSV, Parquet and arrays to HDF5, shuffled and scaled."""
    *inputs, output = args.files
    if not inputs:
        raise InputError("convert needs IN and OUT.h5; see ooc-fw convert --help")
    check_outputs([Output("output", output, is_own=common.is_own)], inputs)
    options = common.record_from(ConvertOptions, args)
    like = None
    if options.like is not None and common.is_model(Path(options.like)):
        from ooc_fw.model.prediction import training_file  # takes 0.05 s, and few are like a model
        from ooc_fw.model.record import load_model

        model = load_model(options.like)
        like = training_file(model, os.fspath(options.like))
        if model.scaling is None:
            raise InputError(
                f"{like.name} is a model that does not know how its training data were scaled; "
                f"give the converted training file with --like"
            )
    with Waiting("convert", unit="B", quiet=args.quiet) as progress:
        report = convert(inputs, output, options, like, progress=progress)
    scaling = {"scaling": report.scaling.kind, "log1p": report.scaling.log1p}
    common.print_result(args, with_classes(vars(report)) | scaling, (), _lines(report))
    return DONE


def with_classes(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report with counts of classes by their names."""
    others = {name: value for name, value in report.items() if name != "class_counts"}
    counts = report["class_counts"].items()
    return others | {"classes": {format_label(label): n for label, n in counts}}


def classes_of(counts: Mapping[Any, int]) -> str:
    """Classes and their numbers of rows."""
    words = [f"{format_label(label)} ({n})" for label, n in counts.items()] or ["none"]
    if len(words) > SHOWN_CLASSES:
        words[SHOWN_CLASSES:] = [f"and {len(words) - SHOWN_CLASSES} more"]
    return ", ".join(words)


def _lines(report: ConversionReport) -> list[str]:
    storage = "sparse" if report.sparse else "dense"
    order = "not shuffled" if report.seed is None else f"shuffled with seed {report.seed}"
    lines = [
        f"{report.output}: {report.n_rows} rows, {report.n_features} features, {storage}, {order}",
        f"classes: {classes_of(report.class_counts)}",
    ]
    if not report.scaling.is_identity:
        lines.append("scaling: " + "log1p, then " * report.scaling.log1p + report.scaling.kind)
    lines += [f"note: {note}" for note in report.notes]
    if report.unseen_labels:
        labels = format_labels(report.unseen_labels)
        lines.append(f"labels the training file does not have: {labels}; their rows are kept")
    if report.n_skipped:
        lines.append(f"skipped: {report.n_skipped} lines, beginning with")
        lines += [f"  {message}" for message in report.skipped]
    return lines
