"""``ooc-fw convert``: LIBSVM text and tables to HDF5."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import arguments
from ooc_fw.cli.common import DONE, format_label, print_result
from ooc_fw.options import ConvertOptions, option_fields
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    from ooc_fw.convert.convert import ConversionReport

SHOWN_CLASSES = 10

_OF_TABLES = (
    *("label", "one_hot", "drop", "impute", "missing_labels", "format", "header", "delimiter"),
    *("labels", "x_name", "y_name"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "convert",
        help="convert LIBSVM text, CSV, Parquet and arrays to HDF5, shuffled and scaled",
        description="Convert LIBSVM text or a table (CSV, Parquet, .npy, .npz, HDF5 of other "
        "tools) to one HDF5 file in constant memory. Rows are shuffled, so that training may read "
        "any contiguous part as a random sample.",
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="IN [IN ...] OUT.h5, or only inputs with -o: LIBSVM text or CSV, plain or compressed "
        "by gzip, bzip2 or xz, Parquet, .npy, .npz or HDF5; - is standard input; several are read "
        "one after the other",
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT.h5", help="HDF5 file to write (default: the last FILE)"
    )
    others = [name for name in option_fields(ConvertOptions) if name not in _OF_TABLES]
    arguments.add_options(parser, ConvertOptions, others)
    arguments.add_options(parser.add_argument_group("tables"), ConvertOptions, _OF_TABLES)
    arguments.add_results(parser)


def run(args: argparse.Namespace) -> int:
    """Convert, print the report."""
    from ooc_fw.convert.convert import convert

    inputs, output = args.files, args.output
    if output is None:
        *inputs, output = inputs
    if not inputs:
        raise InputError("convert needs IN and OUT.h5; see ooc-fw convert --help")
    options = arguments.record_from(ConvertOptions, args)
    with RowProgress("convert", unit="B", quiet=args.quiet) as progress:
        report = convert(inputs, output, options, progress=progress)
    if args.json:
        print_result(args, describe(report))
    elif not args.quiet:
        print("\n".join(report_lines(report)), file=sys.stderr)
    return DONE


def describe(report: ConversionReport) -> dict[str, Any]:
    """Gather what ``--json`` prints."""
    values = dict(vars(report))
    counts = {format_label(label): count for label, count in values.pop("class_counts").items()}
    scaling = values.pop("scaling")
    return values | {"classes": counts, "scaling": scaling.kind, "log1p": scaling.log1p}


def report_lines(report: ConversionReport) -> list[str]:
    """Say what was converted and how, a line for each fact."""
    rows = f"{report.n_rows} rows, {report.n_features} features"
    kind = "sparse" if report.sparse else "dense"
    lines = [
        f"{report.output}: {rows}, {kind} (density {report.density:.3g}), "
        + (f"shuffled with seed {report.seed}" if report.seed is not None else "not shuffled"),
        "classes: " + _class_words(report.class_counts),
    ]
    steps = ["log1p"] * report.scaling.log1p + [report.scaling.kind] * (
        report.scaling.kind != "none"
    )
    if steps:
        lines.append("scaling: " + ", then ".join(steps))
    lines += [f"note: {note}" for note in report.notes]
    if report.dropped_features:
        lines.append(
            f"dropped: {report.dropped_features} features beyond {report.n_features}, "
            f"{report.dropped_values} values in them"
        )
    if report.unseen_labels:
        labels = ", ".join(map(format_label, report.unseen_labels))
        lines.append(f"labels the training file does not have: {labels}; their rows are kept")
    if report.n_skipped:
        lines.append(f"skipped: {report.n_skipped} lines, beginning with")
        lines += [f"  {message}" for message in report.skipped]
    lines.append(
        f"{report.text_bytes / 1e6:.1f} MB of input in {report.seconds:.1f} s "
        f"({report.megabytes_per_second:.0f} MB/s)"
    )
    return lines


def _class_words(class_counts: dict[Any, int]) -> str:
    if not class_counts:
        return "none"
    words = [f"{format_label(label)} ({count})" for label, count in class_counts.items()]
    if len(words) > SHOWN_CLASSES:
        words[SHOWN_CLASSES:] = [f"and {len(words) - SHOWN_CLASSES} more"]
    return ", ".join(words)
