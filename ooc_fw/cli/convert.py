"""``ooc-fw convert`` and ``split``: LIBSVM text and tables to HDF5, and one file to two."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.convert.convert import ConversionReport, convert
from ooc_fw.convert.writer import read_test_rows, split
from ooc_fw.data.labels import are_targets
from ooc_fw.data.opening import draw_test_rows
from ooc_fw.options import ConvertOptions
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs, reserved

SHOWN_CLASSES = 10


def run(args: argparse.Namespace) -> int:
    """Convert LIBSVM text, CSV, Parquet and arrays to HDF5, shuffled and scaled."""
    inputs, output = args.files, args.output
    if output is None:
        *inputs, output = inputs
    if not inputs:
        raise InputError("convert needs IN and OUT.h5; see ooc-fw convert --help")
    is_own = None if args.output else common.is_converted
    check_outputs([Output("output", output, is_own=is_own)], inputs)
    options = common.record_from(ConvertOptions, args)
    with RowProgress("convert", unit="B", quiet=args.quiet) as progress:
        report = convert(inputs, output, options, progress=progress)
    scaling = report.scaling
    result = _with_classes(vars(report)) | {"scaling": scaling.kind, "log1p": scaling.log1p}
    _print(args, result, _lines(report))
    return DONE


def run_split(args: argparse.Namespace) -> int:
    """Split a data file into a training and a test file."""
    paths = common.named_outputs(args, "split", "TRAIN.h5 TEST.h5")
    is_own = None if args.output else common.is_converted
    names = zip(("training file", "test file"), paths, strict=True)
    outputs = [Output(what, path, is_own=is_own) for what, path in names]
    with reserved(outputs, common.inputs_of(args)), common.open_data(args) as source:
        if args.rows is not None:
            ranges = read_test_rows(args.rows, source)
        else:
            stratify = source.has_labels and not (args.no_stratify or are_targets(source))
            ranges = draw_test_rows(source, args.test_share, args.seed, stratify=stratify)
        how = {"compression": args.compression}
        with RowProgress("split", source.n_rows, quiet=args.quiet) as progress:
            reports = split(source, ranges, paths, **how, on_rows=progress)
    lines = [
        f"{report.output}: {report.n_rows} rows; classes: {_classes(report.class_counts)}"
        for report in reports
    ]
    _print(args, {"parts": [_with_classes(asdict(report)) for report in reports]}, lines)
    return DONE


def _print(args: argparse.Namespace, result: Mapping[str, Any], lines: list[str]) -> None:
    common.print_result(args, result, [])
    if not (args.json or args.quiet):
        common.print_lines(lines)


def _with_classes(report: Mapping[str, Any]) -> dict[str, Any]:
    counts = report["class_counts"]
    others = {name: value for name, value in report.items() if name != "class_counts"}
    return others | {"classes": {common.format_label(label): n for label, n in counts.items()}}


def _classes(counts: Mapping[Any, int]) -> str:
    words = [f"{common.format_label(label)} ({n})" for label, n in counts.items()] or ["none"]
    if len(words) > SHOWN_CLASSES:
        words[SHOWN_CLASSES:] = [f"and {len(words) - SHOWN_CLASSES} more"]
    return ", ".join(words)


def _lines(report: ConversionReport) -> list[str]:
    of_targets = ": labels are targets of a regression" * report.targets
    lines = [
        f"{report.output}: {report.n_rows} rows, {report.n_features} features, "
        f"{'sparse' if report.sparse else 'dense'} (density {report.density:.3g}), "
        + (f"shuffled with seed {report.seed}" if report.seed is not None else "not shuffled"),
        f"classes: {_classes(report.class_counts)}{of_targets}",
    ]
    kind = report.scaling.kind
    steps = ["log1p"] * report.scaling.log1p + [kind] * (kind != "none")
    if steps:
        lines.append("scaling: " + ", then ".join(steps))
    lines += [f"note: {note}" for note in report.notes]
    if report.dropped_features:
        n_features, n_values = report.n_features, report.dropped_values
        lines.append(common.dropped(report.dropped_features, n_features, n_values))
    if report.unseen_labels:
        labels = common.format_labels(report.unseen_labels)
        lines.append(f"labels the training file does not have: {labels}; their rows are kept")
    if report.n_skipped:
        lines.append(f"skipped: {report.n_skipped} lines, beginning with")
        lines += [f"  {message}" for message in report.skipped]
    lines.append(
        f"{report.text_bytes / 1e6:.1f} MB of input in {report.seconds:.1f} s "
        f"({report.text_bytes / 1e6 / report.seconds:.3g} MB/s)"
    )
    return lines
