"""``ooc-fw importance``: which columns matter to a model."""

from __future__ import annotations

import argparse

import numpy as np

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.model.importance import Importance
from ooc_fw.model.record import load_model
from ooc_fw.report.figures import check_figure, draw_importance, save
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.files import Output, check_outputs


def run(args: argparse.Namespace) -> int:
    """Which columns matter to a model."""
    if args.figure is not None:
        check_outputs([Output("figure", args.figure, streamed=True)], common.inputs_of(args))
        check_figure(args.figure)
    model = load_model(args.model)
    common.warn_of_checkpoint(args.model, model)
    rows = None if args.rows == "all" else args.rows
    with common.open_data(args, labels=False) as source, common.open_workers(args) as workers:
        total = min(source.n_rows, rows or source.n_rows)
        with RowProgress("importance", total, quiet=args.quiet) as progress:
            options = {"threads": args.threads, "dask": workers, "on_rows": progress}
            found = model.importance(source, rows=rows, by=args.by, **options)
    of_class = args.top or (20 if len(found.classes) == 1 else 5)
    common.print_result(args, found.to_dict(), _lines(found, args.top or 20, of_class))
    if args.figure is not None:
        save(draw_importance(found, of_class), args.figure)
    return DONE


def _lines(found: Importance, top: int, of_class: int) -> list[str]:
    """The most important columns, and with their effects those of each class."""
    if found.permuted:
        shown = [[found.names[k], f"{found.values[k]:.4g}"] for k in found.order[:top]]
        title = f"{found.what} where a column is shuffled, {found.n_rows} rows"
        return [title, *common.table([["column", "importance"], *shown])]
    rows = [["class", "column", "importance", "effect"]]
    for name, values, effects in zip(found.classes, found.by_class, found.effects, strict=True):
        for k in np.argsort(-values, kind="stable")[:of_class]:
            numbers = ("" if np.isnan(x) else f"{x:.4g}" for x in (values[k], effects[k]))
            rows.append([name, found.names[k], *numbers])
    lines = [
        f"change of {found.what} by one standard deviation, {found.n_rows} rows",
        f"an effect above 0: more of the column raises {found.what.replace('each', 'the')}",
    ]
    if len(found.classes) == 1:
        return [*lines, *common.table([row[1:] for row in rows])]
    whole = [[found.names[k], f"{found.values[k]:.4g}"] for k in found.order[:top]]
    lines += common.table([["column", "importance"], *whole])
    return [*lines, "", "of each class", *common.table(rows, 2)]
