"""``ooc-fw split``: one data file into a training and a test file."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.convert.split import read_test_rows, split
from ooc_fw.data.labels import are_targets
from ooc_fw.data.sources.dispatch import draw_test_rows
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.files import Output, check_outputs


def run(args: argparse.Namespace) -> int:
    """Split a data file into a training and a test file."""
    outputs = [args.train, args.test]
    check_outputs(
        [Output("training file", args.train), Output("test file", args.test)],
        [args.data, args.labels, args.rows],
    )
    with common.open_data(args) as source:
        if args.rows is not None:
            ranges = read_test_rows(args.rows, source)
        else:
            stratify = source.has_labels and not (args.no_stratify or are_targets(source))
            ranges = draw_test_rows(source, args.test_share, args.seed, stratify=stratify)
        with RowProgress("split", source.n_rows, quiet=args.quiet) as progress:
            reports = split(source, ranges, outputs, compression=args.compression, on_rows=progress)
    if args.json:
        common.print_result(args, {"parts": [_plain(asdict(report)) for report in reports]})
    elif not args.quiet:
        for report in reports:
            counts = report.class_counts.items()
            words = [f"{common.format_label(label)} ({n})" for label, n in counts] or ["none"]
            line = f"{report.output}: {report.n_rows} rows; classes: {', '.join(words)}"
            common.print_lines([line])
    return DONE


def _plain(report: dict[str, object]) -> dict[str, object]:
    """A report with labels as text, as JSON needs them."""
    counts = report.pop("class_counts")
    assert isinstance(counts, dict)
    return report | {"classes": {common.format_label(label): n for label, n in counts.items()}}
