"""``ooc-fw plot``: draws logs of training runs."""

from __future__ import annotations

import argparse

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.report.figures import PANELS, draw_runs, figure_output, save
from ooc_fw.report.runlog import read_runs
from ooc_fw.system.files import check_outputs


def run(args: argparse.Namespace) -> int:
    """Draw logs of training runs."""
    output = common.output_of(args, args.logs[0], ".png")
    check_outputs([figure_output(output)], args.logs)
    panels = tuple(dict.fromkeys(name.strip() for name in args.panels.split(",")))
    runs = read_runs(args.logs)
    common.refuse(
        {
            f"--panels knows {', '.join(PANELS)}, not {args.panels}": not {*panels} <= {*PANELS},
            f"{args.logs[0]}: no progress to draw, the run ended before its first iteration; give "
            f"the log of a longer run": all(run.n_events == 0 for run in runs),
        }
    )
    save(draw_runs(runs, panels), output)
    common.print_result(args, {"output": str(output), "runs": len(runs)}, [output])
    return DONE
