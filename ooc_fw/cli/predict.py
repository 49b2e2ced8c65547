"""``ooc-fw predict``: labels or decision values for rows, in the order the user has them.

Owns the form of the output. Reading rows and applying the model are `common.apply_model`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from ooc_fw.cli import common


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "predict",
        help="apply a model to rows",
        description="Print the predicted label of each row, one a line, in the order of the rows "
        "before any shuffling. Text is scaled like the training data.",
    )
    parser.add_argument("model", metavar="MODEL", help="file written by ooc-fw train")
    common.add_data_arguments(parser, text=True, labels=False)
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="default: stdout")
    parser.add_argument(
        "--decision",
        action="store_true",
        help="print decision values (margin at -1 and 1, positive for the larger label); of more "
        "than two classes one for each pair, (first, second), (first, third), ...",
    )
    common.add_threads_argument(parser)
    common.add_dask_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Write one line for each row."""
    from ooc_fw.files import atomic_path
    from ooc_fw.model import load_model

    output = None if args.output == "-" else Path(args.output)
    if output is not None:
        common.check_output(output, args.model, args.data)
    model = load_model(args.model)
    values, _ = common.apply_model(model, args)
    results = values if args.decision else model.label_values(values)
    form = _format_values if args.decision else common.format_label
    if output is None:
        _write(results.tolist(), form, sys.stdout)
    else:
        with atomic_path(output) as path, open(path, "w", encoding="utf-8") as file:
            _write(results.tolist(), form, file)
    return 0


def _format_values(values: float | list[float]) -> str:
    """Decision values of a row, exactly."""
    several = values if isinstance(values, list) else [values]
    return " ".join(f"{value:.17g}" for value in several)


def _write(results: Iterable[Any], form: Callable[[Any], str], file: TextIO) -> None:
    file.writelines(f"{form(result)}\n" for result in results)
