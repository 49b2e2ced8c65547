"""``ooc-fw importance``: which columns matter to a model."""

from __future__ import annotations

import argparse
import shutil

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
    rows = None if args.rows == "all" else args.rows
    with common.open_data(args, labels=False) as source, common.open_workers(args) as workers:
        total = min(source.n_rows, rows or source.n_rows)
        with RowProgress("importance", total, quiet=args.quiet) as progress:
            options = {"threads": args.threads, "dask": workers, "on_rows": progress}
            found = model.importance(source, rows=rows, **options)
    if args.figure is not None:
        save(draw_importance(found, args.top), args.figure)
    common.print_result(args, found.to_dict(), _lines(found, args.top))
    return DONE


def _lines(found: Importance, top: int) -> list[str]:
    """The most important columns: with effects, or with each of several classes if they fit."""
    several = len(found.classes) > 1
    names = ["column", "importance", *(found.classes if several else ["effect"])]
    numbers = np.vstack([found.values, found.by_class if several else found.effects])
    rows = [names] + [
        [found.names[k], *("" if np.isnan(x) else f"{x:.4g}" for x in numbers[:, k])]
        for k in found.order[:top]
    ]
    lines = common.table(rows)
    if several and len(lines[0]) > shutil.get_terminal_size().columns:
        lines = [*common.table([row[:2] for row in rows]), "--json has those of each class"]
    return [f"change of {found.what} by one standard deviation, {found.n_rows} rows", *lines]
