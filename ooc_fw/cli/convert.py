"""``ooc-fw convert``: LIBSVM text and tables to HDF5.

Owns the command's options, its progress bar and the report on standard error. The work is done by
`ooc_fw.convert.convert`, imported late so that help and usage errors come at once.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ooc_fw.cli.common import SEED, Number
from ooc_fw.convert.missing import MISSING

if TYPE_CHECKING:
    from ooc_fw.convert.convert import ConversionReport, Progress

SHOWN_CLASSES = 10


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of ``ooc-fw``."""
    parser = subparsers.add_parser(
        "convert",
        help="convert LIBSVM text, CSV, Parquet and arrays to HDF5, shuffled and scaled",
        description="Convert LIBSVM text or a table (CSV, Parquet, .npy, .npz, HDF5 of other "
        "tools) to one HDF5 file in constant memory. Rows are shuffled, so that training may read "
        "any contiguous part as a random sample.",
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="IN",
        help="LIBSVM text or CSV, plain or compressed by gzip, bzip2 or xz, Parquet, .npy, .npz or "
        "HDF5; - is standard input; several are taken one after the other",
    )
    parser.add_argument("output", metavar="OUT.h5", help="HDF5 file to write")
    storage = parser.add_mutually_exclusive_group()
    storage.add_argument(
        "--dense",
        dest="dense",
        action="store_true",
        default=None,
        help="store rows dense (default: chosen by density)",
    )
    storage.add_argument(
        "--sparse", dest="dense", action="store_false", default=None, help="store rows as CSR"
    )
    parser.add_argument(
        "--scale",
        choices=("none", "minmax", "maxabs", "standard"),
        default="none",
        help="scale each column by its range or moments in these rows (default: none)",
    )
    parser.add_argument("--log1p", action="store_true", help="take log(1 + x) before scaling")
    parser.add_argument(
        "--like",
        metavar="TRAIN.h5",
        help="take features and scaling from a converted training file and keep the row order; a "
        "model will do where rows are no table with named columns",
    )
    parser.add_argument(
        "--no-shuffle", dest="shuffle", action="store_false", help="keep the order of the rows"
    )
    parser.add_argument(
        "--seed", type=SEED, default=0, metavar="N", help="seed of the shuffle (default: 0)"
    )
    parser.add_argument(
        "--zero-based", action="store_true", help="the first feature is called 0, not 1"
    )
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="stop at a bad line, or leave it out and count it (default: raise)",
    )
    parser.add_argument(
        "--n-features",
        type=Number(1, 2**31 - 1, whole=True),
        metavar="N",
        help="width of the file; wider features are dropped (default: the widest row)",
    )
    parser.add_argument(
        "--compression",
        choices=("none", "gzip", "lz4", "zstd"),
        default="none",
        help="compress the data (default: none; lz4 and zstd need ooc-fw[compression])",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no report")
    _add_table_arguments(parser.add_argument_group("tables"))


def _add_table_arguments(group: Any) -> None:
    """Declare the options that only tables have."""
    group.add_argument(
        "--label",
        metavar="COLUMN",
        help="column of the labels, by name or by number (from 0; -1 is the last)",
    )
    group.add_argument(
        "--one-hot",
        action="append",
        default=[],
        metavar="COLUMNS",
        help="columns of categories, with commas between: a feature of 0 and 1 for each category",
    )
    group.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="COLUMNS",
        help="columns to leave out, with commas between",
    )
    group.add_argument(
        "--impute",
        choices=("mean",),
        help="put the mean of its column in place of a missing number (default: an error); missing "
        f"is an empty cell, and {', '.join(word for word in MISSING if word)}",
    )
    group.add_argument(
        "--missing-labels",
        choices=("refuse", "drop"),
        default="refuse",
        help="what to do with rows whose label is missing: an error, or leave them out (default: "
        "refuse)",
    )
    group.add_argument(
        "--format",
        choices=("auto", "libsvm", "csv", "parquet", "npy", "npz", "hdf5"),
        default="auto",
        help="format of the input (default: told by its content and name)",
    )
    header = group.add_mutually_exclusive_group()
    header.add_argument(
        "--no-header",
        dest="header",
        action="store_false",
        default=None,
        help="the first line of CSV is a row; columns are called 0, 1, ... (default: it names the "
        "columns, and numbers in it are refused; with --like, as in that table)",
    )
    header.add_argument(
        "--header",
        dest="header",
        action="store_true",
        help="the first line of CSV names the columns, even if by numbers",
    )
    group.add_argument(
        "--delimiter",
        metavar="C",
        help="character between the cells of CSV (default: comma, tab, semicolon or bar, "
        "whichever the first line has most of)",
    )
    group.add_argument("--labels", metavar="FILE", help="labels of arrays without them, .npy")
    group.add_argument("--x-name", default="X", help="rows in .npz or HDF5 (default: X)")
    group.add_argument("--y-name", default="y", help="labels in .npz or HDF5 (default: y)")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from ooc_fw.convert.convert import convert_tables
    from ooc_fw.convert.tables import TableOptions

    table = TableOptions(
        label=args.label,
        one_hot=_split_names(args.one_hot),
        drop=_split_names(args.drop),
        impute=args.impute,
        format=args.format,
        header=args.header,
        delimiter="\t" if args.delimiter in ("\\t", "tab") else args.delimiter,
        labels=args.labels,
        x_name=args.x_name,
        y_name=args.y_name,
        missing_labels=args.missing_labels,
    )
    with _progress_bar(sys.stderr.isatty() and not args.quiet) as progress:
        report = convert_tables(
            args.inputs,
            args.output,
            table,
            dense=args.dense,
            scale=args.scale,
            log1p=args.log1p,
            like=args.like,
            shuffle=args.shuffle,
            seed=args.seed,
            zero_based=args.zero_based,
            on_error=args.on_error,
            compression=args.compression,
            n_features=args.n_features,
            progress=progress,
        )
    if not args.quiet:
        print("\n".join(report_lines(report)), file=sys.stderr)
    return 0


def _split_names(lists: list[str]) -> tuple[str, ...]:
    """Names in lists with commas between; a name with a comma in it is quoted."""
    return tuple(name.strip() for line in csv.reader(lists) for name in line)


@contextmanager
def _progress_bar(shown: bool) -> Iterator[Progress | None]:
    """Give a progress function that draws a bar, or None."""
    if not shown:
        yield None
        return
    from tqdm import tqdm

    with tqdm(desc="convert", unit="B", unit_scale=True, leave=False) as bar:

        def update(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update


def report_lines(report: ConversionReport) -> list[str]:
    """Word the report of a conversion, a line each."""
    rows = f"{report.n_rows} rows, {report.n_features} features"
    kind = "sparse" if report.sparse else "dense"
    lines = [
        f"{report.output}: {rows}, {kind} (density {report.density:.3g}), "
        + (f"shuffled with seed {report.seed}" if report.seed is not None else "not shuffled"),
        "classes: " + _word_classes(report.class_counts),
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
        labels = ", ".join(map(_word_label, report.unseen_labels))
        lines.append(f"labels the training file does not have: {labels}; their rows are kept")
    if report.n_skipped:
        lines.append(f"skipped: {report.n_skipped} lines, beginning with")
        lines += [f"  {message}" for message in report.skipped]
    lines.append(
        f"{report.text_bytes / 1e6:.1f} MB of input in {report.seconds:.1f} s "
        f"({report.megabytes_per_second:.0f} MB/s)"
    )
    return lines


def _word_label(label: float | str) -> str:
    return label if isinstance(label, str) else f"{label:g}"


def _word_classes(class_counts: dict[float | str, int]) -> str:
    if not class_counts:
        return "none"
    words = [f"{_word_label(label)} ({count})" for label, count in class_counts.items()]
    if len(words) > SHOWN_CLASSES:
        words[SHOWN_CLASSES:] = [f"and {len(words) - SHOWN_CLASSES} more"]
    return ", ".join(words)
