"""``ooc-fw split``: one data file to a training and a test file."""

from __future__ import annotations

import argparse

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.convert import classes_of, with_classes
from ooc_fw.convert.writer import read_test_rows, split
from ooc_fw.data.opening import draw_test_rows
from ooc_fw.report.progress import Waiting
from ooc_fw.system.files import Output, check_outputs


def run(args: argparse.Namespace) -> int:
    """Split a data file into a training and a test file."""
    paths = [args.train, args.test]
    names = zip(("training file", "test file"), paths, strict=True)
    outputs = [Output(what, path, is_own=common.is_own) for what, path in names]
    check_outputs(outputs, common.inputs_of(args, args.rows))
    with common.open_data(args) as source:
        if args.rows is not None:
            ranges = read_test_rows(args.rows, source)
        else:
            stratify = source.has_labels and not source.targets
            ranges = draw_test_rows(source, args.test_share, args.seed, stratify=stratify)
        with Waiting("writing two files", quiet=args.quiet):
            reports = split(source, ranges, paths, args.compression)
    lines = [
        f"{part['output']}: {part['n_rows']} rows; classes: {classes_of(part['class_counts'])}"
        for part in reports
    ]
    common.print_result(args, {"parts": [*map(with_classes, reports)]}, (), lines)
    return DONE
