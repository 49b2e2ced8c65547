"""``ooc-fw convert``: LIBSVM text to HDF5.

Owns the command's options, its progress bar and the report on standard error. The work is done by
`ooc_fw.prep.convert`, imported late so that help and usage errors come at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ooc_fw.prep.convert import ConversionReport, Progress

SHOWN_CLASSES = 10


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of ``ooc-fw``."""
    parser = subparsers.add_parser(
        "convert",
        help="convert LIBSVM text to HDF5, shuffled and scaled",
        description="Convert LIBSVM text to one HDF5 file in constant memory. Rows are shuffled, "
        "so that training may read any contiguous part as a random sample.",
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="IN",
        help="LIBSVM text, plain or compressed by gzip, bzip2 or xz; - is standard input; "
        "several are taken one after the other",
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
        help="take features and scaling from a converted training file and keep the row order",
    )
    parser.add_argument(
        "--no-shuffle", dest="shuffle", action="store_false", help="keep the order of the rows"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the shuffle (default: 0)"
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
        type=int,
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


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from ooc_fw.prep.convert import convert_libsvm

    with _progress_bar(sys.stderr.isatty() and not args.quiet) as progress:
        report = convert_libsvm(
            args.inputs,
            args.output,
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
        labels = ", ".join(f"{label:g}" for label in report.unseen_labels)
        lines.append(f"labels the training file does not have: {labels}; their rows are kept")
    if report.n_skipped:
        lines.append(f"skipped: {report.n_skipped} lines, beginning with")
        lines += [f"  {message}" for message in report.skipped]
    lines.append(
        f"{report.text_bytes / 1e6:.1f} MB of text in {report.seconds:.1f} s "
        f"({report.megabytes_per_second:.0f} MB/s)"
    )
    return lines


def _word_classes(class_counts: dict[float, int]) -> str:
    words = [f"{label:g} ({count})" for label, count in class_counts.items()]
    if len(words) > SHOWN_CLASSES:
        words[SHOWN_CLASSES:] = [f"and {len(words) - SHOWN_CLASSES} more"]
    return ", ".join(words)
