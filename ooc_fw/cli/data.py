"""``ooc-fw convert`` and ``split``: commands that write data files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ooc_fw import datafiles
from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.conversion.convert import ConversionReport
from ooc_fw.options import ConvertOptions
from ooc_fw.report.progress import Waiting
from ooc_fw.system.errors import InputError, format_label, format_value


def convert(args: argparse.Namespace) -> int:
    """Convert LIBSVM text, CSV, Parquet and arrays to HDF5, shuffled and scaled."""
    *inputs, output = args.files
    if not inputs:
        raise InputError("convert needs IN and OUT.h5; see ooc-fw convert --help")
    options = common.given_options(ConvertOptions, args)
    with Waiting("convert", unit="B", quiet=args.quiet) as progress:
        report = datafiles.convert(inputs, output, progress=progress, **options)
    result = _with_classes(vars(report)) | report.scaling.facts
    labels = _labels_of(result)
    common.print_result(args, result, (), _lines(report, labels))
    return DONE


def _with_classes(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report with the number of rows of each class, by its name."""
    result = dict(report)
    counts = result.pop("class_counts").items()
    return result | {"classes": {format_label(label): n for label, n in counts}}


def _labels_of(result: Mapping[str, Any]) -> str:
    """A line that describes the labels."""
    if result["targets"]:
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
    names = ("test_share", "seed", "groups", "compression")
    how = {name: vars(args)[name] for name in names} | common.opening_of(args)
    with Waiting("writing two files", quiet=args.quiet):
        parts = [*map(_with_classes, datafiles.split(args.data, args.train, args.test, **how))]
    lines = [f"{part['output']}: {part['n_rows']} rows; {_labels_of(part)}" for part in parts]
    if args.groups is not None:
        for part in parts:
            part["groups"] = [*map(format_label, part["groups"])]
        share = parts[1]["n_rows"] / sum(part["n_rows"] for part in parts)
        counts = " and ".join(str(len(part["groups"])) for part in parts)
        lines.append(f"{counts} groups; the share of test rows is {share:.3f}")
        lines.append(f"test groups: {format_value(parts[1]['groups'], 20)}")
    common.print_result(args, {"parts": parts}, (), lines)
    return DONE
