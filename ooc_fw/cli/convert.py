"""``ooc-fw convert``: LIBSVM text and tables to HDF5."""

from __future__ import annotations

import argparse

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.convert.convert import ConversionReport, convert
from ooc_fw.options import ConvertOptions
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.errors import InputError

SHOWN_CLASSES = 10


def run(args: argparse.Namespace) -> int:
    """Convert LIBSVM text, CSV, Parquet and arrays to HDF5, shuffled and scaled."""
    inputs, output = args.files, args.output
    if output is None:
        *inputs, output = inputs
    if not inputs:
        raise InputError("convert needs IN and OUT.h5; see ooc-fw convert --help")
    options = common.record_from(ConvertOptions, args)
    with RowProgress("convert", unit="B", quiet=args.quiet) as progress:
        report = convert(inputs, output, options, progress=progress)
    if args.json:
        result = dict(vars(report))
        scaling, counts = result.pop("scaling"), result.pop("class_counts")
        classes = {common.format_label(label): count for label, count in counts.items()}
        result |= {"classes": classes, "scaling": scaling.kind, "log1p": scaling.log1p}
        common.print_result(args, result)
    elif not args.quiet:
        common.print_lines(_lines(report))
    return DONE


def _lines(report: ConversionReport) -> list[str]:
    """What was converted and how, a line for each fact."""
    counts = report.class_counts.items()
    words = [f"{common.format_label(label)} ({count})" for label, count in counts]
    words = words or ["none: labels are targets of a regression" if report.targets else "none"]
    if len(words) > SHOWN_CLASSES:
        words[SHOWN_CLASSES:] = [f"and {len(words) - SHOWN_CLASSES} more"]
    lines = [
        f"{report.output}: {report.n_rows} rows, {report.n_features} features, "
        f"{'sparse' if report.sparse else 'dense'} (density {report.density:.3g}), "
        + (f"shuffled with seed {report.seed}" if report.seed is not None else "not shuffled"),
        f"classes: {', '.join(words)}",
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
        f"({report.megabytes_per_second:.3g} MB/s)"
    )
    return lines
