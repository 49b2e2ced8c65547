"""``ooc-fw importance``: which columns matter to a model."""

from __future__ import annotations

import argparse

import numpy as np

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.rows import open_model
from ooc_fw.model.importance import Importance
from ooc_fw.report.figures import check_figure, draw_importance, save
from ooc_fw.report.progress import RowProgress
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
        with RowProgress("importance", total, quiet=args.quiet) as progress:
            options = {"threads": args.threads, "dask": workers, "on_rows": progress}
            found = model.importance(source, rows=rows, by=args.by, **options)
    common.print_result(args, found.to_dict(), _lines(found, args.top))
    if args.figure is not None:
        of_class = 20 if len(found.classes) == 1 else 5
        save(draw_importance(found, args.top or of_class), args.figure)
    return DONE


def _lines(found: Importance, top: int | None) -> list[str]:
    """The most important columns, and with their effects those of each class."""
    whole = [[found.names[k], f"{found.values[k]:.4g}"] for k in found.order[: top or 20]]
    whole = [["column", "importance"], *whole]
    if found.permuted:
        title = f"{found.what} where a column is shuffled, {found.n_rows} rows"
        return [title, *common.table(whole)]
    several = len(found.classes) > 1
    rows = [["class", "column", "importance", "effect"]]
    for name, values, effects in zip(found.classes, found.by_class, found.effects, strict=True):
        for k in np.argsort(-values, kind="stable")[: top or (5 if several else 20)]:
            numbers = ("" if np.isnan(x) else f"{x:.4g}" for x in (values[k], effects[k]))
            rows.append([name, found.names[k], *numbers])
    lines = [
        f"change of {found.what} by one standard deviation, {found.n_rows} rows",
        f"an effect above 0: more of the column raises {found.what.replace('each', 'the')}",
    ]
    if several:
        return [*lines, *common.table(whole), "", "of each class", *common.table(rows, 2)]
    return [*lines, *common.table([row[1:] for row in rows])]
