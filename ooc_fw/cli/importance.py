"""``ooc-fw importance``: which columns matter to a model."""

from __future__ import annotations

import argparse

import numpy as np

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.rows import open_model
from ooc_fw.model.importance import Importance
from ooc_fw.report.figures import check_figure, draw_importance, save
from ooc_fw.report.progress import Waiting
from ooc_fw.system.files import Output, check_outputs


def run(args: argparse.Namespace) -> int:
    """Which columns matter to a model."""
    if args.figure is not None:
        check_outputs([Output("figure", args.figure, streamed=True)], args.inputs)
        check_figure(args.figure)
    model = open_model(args)
    rows = None if args.rows == "all" else args.rows
    with common.open_data(args, labels=False) as source, common.open_workers(args) as workers:
        total = min(source.n_rows, rows or source.n_rows)
        with Waiting("importance", total, quiet=args.quiet) as progress:
            options = {"threads": args.threads, "dask": workers, "on_rows": progress}
            found = model.importance(source, rows=rows, **options)
    common.print_result(args, found.to_dict(), _lines(found, args.top))
    if args.figure is not None:
        save(draw_importance(found, args.top), args.figure)
    return DONE


def _lines(found: Importance, top: int) -> list[str]:
    """The most important columns, of two classes with their effects."""
    most = found.order[:top]
    rows = [[found.names[k], f"{found.values[k]:.4g}"] for k in most]
    lines = [f"change of {found.what} by one standard deviation, {found.n_rows} rows"]
    if len(found.classes) > 1:
        lines.append("--json has the effects on each class")
        return [*lines, *common.table([["column", "importance"], *rows])]
    lines.append(f"an effect above 0: more of the column raises {found.what}")
    effects = ["" if np.isnan(found.effects[0][k]) else f"{found.effects[0][k]:.4g}" for k in most]
    rows = [[*row, effect] for row, effect in zip(rows, effects, strict=True)]
    return [*lines, *common.table([["column", "importance", "effect"], *rows])]
