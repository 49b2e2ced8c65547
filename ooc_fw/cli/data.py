"""``ooc-fw convert`` and ``split``: commands that write data files."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.conversion.convert import ConversionReport
from ooc_fw.conversion.convert import convert as convert_files
from ooc_fw.conversion.tables import TrainingFile
from ooc_fw.conversion.writer import split as split_source
from ooc_fw.data.opening import draw_test_rows, read_groups
from ooc_fw.data.structure import is_data, is_model
from ooc_fw.options import ConvertOptions
from ooc_fw.report.progress import Waiting
from ooc_fw.system.errors import InputError, format_label, format_value
from ooc_fw.system.files import Output, check_outputs

logger = logging.getLogger(__name__)


def convert(args: argparse.Namespace) -> int:
    """Convert LIBSVM text, CSV, Parquet and arrays to HDF5, shuffled and scaled."""
    *inputs, output = args.files
    if not inputs:
        raise InputError("convert needs IN and OUT.h5; see ooc-fw convert --help")
    options = common.record_from(ConvertOptions, args)
    is_like_model = options.like is not None and is_model(Path(options.like))
    like = _like_model(os.fspath(options.like or "")) if is_like_model else None
    with Waiting("convert", unit="B", quiet=args.quiet) as progress:
        report = convert_files(inputs, output, options, like, progress=progress)
    result = _with_classes(vars(report)) | report.scaling.facts
    labels = _labels_of(result, report.targets)
    common.print_result(args, result, (), _lines(report, labels))
    return DONE


def _like_model(name: str) -> TrainingFile:
    """What the model in the file `name` knows of its training data."""
    from ooc_fw.model.prediction import training_file  # takes 0.05 s, and few runs need it
    from ooc_fw.model.record import load_model

    return training_file(load_model(name), name)


def _with_classes(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report with the number of rows of each class, by its name."""
    result = dict(report)
    counts = result.pop("class_counts").items()
    return result | {"classes": {format_label(label): n for label, n in counts}}


def _labels_of(result: Mapping[str, Any], targets: bool | None) -> str:
    """A line that describes the labels."""
    if targets:
        return "labels: targets of a regression"
    return f"classes: {format_value(result['classes'], 10)}"


def _lines(report: ConversionReport, labels: str) -> list[str]:
    storage = "sparse" if report.sparse else "dense"
    order = "not shuffled" if report.seed is None else f"shuffled with seed {report.seed}"
    lines = [
        f"{report.output}: {report.n_rows} rows, {report.n_features} features, {storage}, {order}",
        labels,
    ]
    if not report.scaling.is_identity:
        lines.append(f"scaling: {report.scaling}")
    lines += [f"note: {note}" for note in report.notes]
    return lines


def split(args: argparse.Namespace) -> int:
    """Split a data file into a training and a test file."""
    paths = [args.train, args.test]
    names = zip(("training file", "test file"), paths, strict=True)
    outputs = [Output(what, path, is_data) for what, path in names]
    check_outputs(outputs, common.inputs_of(args))
    with common.open_data(args) as source:
        stratify = source.has_labels and not source.targets
        known, groups = read_groups(source, common.groups_of(args, source))
        how = (args.test_share, args.seed)
        rows = draw_test_rows(source, *how, stratify=stratify, groups=groups)
        with Waiting("writing two files", quiet=args.quiet):
            reports = split_source(source, rows, paths, args.compression)
    parts = [_with_classes(report) for report in reports]
    lines = [
        f"{part['output']}: {part['n_rows']} rows; {_labels_of(part, source.targets)}"
        for part in parts
    ]
    if groups is not None:
        of_parts = [np.delete(groups, rows), groups[rows]]
        for part, own in zip(parts, of_parts, strict=True):
            part["groups"] = [format_label(name) for name in known[np.unique(own)].tolist()]
        share = len(rows) / len(groups)
        counts = " and ".join(str(len(part["groups"])) for part in parts)
        lines.append(f"{counts} groups; the share of test rows is {share:.3f}")
        lines.append(f"test groups: {format_value(parts[1]['groups'], 20)}")
    common.print_result(args, {"parts": parts}, (), lines)
    return DONE
