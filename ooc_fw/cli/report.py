"""``ooc-fw report`` and ``ooc-fw plot``: logs of training runs as a page of HTML or a figure."""

from __future__ import annotations

import argparse
from pathlib import Path

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.report.figures import AXES, PANELS, check_figure, draw_runs, save
from ooc_fw.report.progress import Waiting
from ooc_fw.report.runlog import page, read_runs
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs, write_output


def run_report(args: argparse.Namespace) -> int:
    """Make a page of figures and tables from logs of training runs."""
    output = _output(args, ".html")
    with Waiting("the page"):
        runs = read_runs(args.logs)
        write_output(output, page(runs).encode("utf-8"))
    common.print_result(args, {"output": str(output), "runs": len(runs)}, [output])
    return DONE


def run_plot(args: argparse.Namespace) -> int:
    """Draw logs of training runs."""
    output = _output(args, ".png")
    check_figure(output)
    panels = tuple(dict.fromkeys(name.strip() for name in args.panels.split(",")))
    for name in panels:
        if name not in PANELS:
            raise InputError(f"--panels knows {', '.join(PANELS)}, not {name!r}")
    runs = read_runs(args.logs)
    if all(run.n_events == 0 for run in runs):
        raise InputError(
            f"{args.logs[0]}: no progress to draw, the run ended before its first iteration; "
            f"give the log of a longer one"
        )
    against = AXES if args.against == "both" else (args.against,)
    save(draw_runs(runs, panels, against), output)
    common.print_result(args, {"output": str(output), "runs": len(runs)}, [output])
    return DONE


def _output(args: argparse.Namespace, suffix: str) -> Path:
    output = common.output_of(args, args.logs[0], suffix)
    check_outputs([Output("figure", output, streamed=True)], args.logs)
    return output
