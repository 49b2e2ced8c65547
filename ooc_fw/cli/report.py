"""``ooc-fw report``: logs of training runs as one page of HTML."""

from __future__ import annotations

import argparse
from pathlib import Path

from ooc_fw.cli import common
from ooc_fw.cli.plot import add_log_arguments, output_path


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "report",
        help="make a page of figures and tables from logs of training runs",
        description="Make one HTML file of what runs have written with ooc-fw train --log: "
        "figures, options and results, several runs side by side. The file needs no network and "
        "no scripts. Making it needs matplotlib: pip install 'ooc-fw[plot]'.",
    )
    add_log_arguments(parser, "REPORT", ".html")


def run(args: argparse.Namespace) -> int:
    """Read, draw, write."""
    from ooc_fw.report.page import page
    from ooc_fw.report.runlog import read_runs
    from ooc_fw.system.files import write_output

    output = output_path(args, ".html")
    runs = read_runs([Path(log) for log in args.logs])
    write_output(output, page(runs).encode("utf-8"))
    common.print_result(args, {"output": str(output), "runs": len(runs)}, [output])
    return common.DONE
