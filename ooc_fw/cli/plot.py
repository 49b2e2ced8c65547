"""``ooc-fw plot``: logs of training runs as a figure."""

from __future__ import annotations

import argparse
from pathlib import Path

from ooc_fw.cli import arguments, common
from ooc_fw.report.figures import PANELS, check_figure, draw_runs, save
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "plot",
        help="draw logs of training runs",
        description="Draw what runs have written with ooc-fw train --log: several of them in the "
        "same axes. Needs matplotlib: pip install 'ooc-fw[plot]'.",
    )
    add_log_arguments(parser, "FIGURE", ".png; .svg and .pdf are possible too")
    parser.add_argument(
        "--panels",
        metavar="NAMES",
        default=",".join(PANELS),
        help=f"some of {', '.join(PANELS)}, with commas between them (default: all)",
    )
    parser.add_argument(
        "--against",
        default="both",
        help="time, iteration or both (default); speeds and memory are drawn against time only",
    )


def add_log_arguments(parser: argparse.ArgumentParser, output: str, suffix: str) -> None:
    """Declare the logs and the output."""
    parser.add_argument(
        "logs", metavar="LOG", nargs="+", help="written by ooc-fw train --log; it may still grow"
    )
    parser.add_argument(
        "-o", "--output", metavar=output, help=f"default: the first LOG with suffix {suffix}"
    )
    arguments.add_results(parser, progress=False)


def output_path(args: argparse.Namespace, suffix: str) -> Path:
    """Place of the output; InputError when nothing can be written there."""
    output = Path(args.output) if args.output else common.output_beside(args.logs[0], suffix)
    check_outputs([Output("figure", output, streamed=True)], args.logs)
    return output


def run(args: argparse.Namespace) -> int:
    """Read, draw, save."""
    from ooc_fw.report.runlog import read_runs

    output = output_path(args, ".png")
    check_figure(output)
    panels = _choice("--panels", args.panels, tuple(PANELS))
    both = ("time", "iteration")
    against = both if args.against == "both" else _choice("--against", args.against, both)
    runs = read_runs([Path(log) for log in args.logs])
    if all(run.n_events == 0 for run in runs):
        raise InputError(
            f"{args.logs[0]}: no progress to draw, the run ended before its first iteration; "
            f"give the log of a longer one"
        )
    save(draw_runs(runs, panels, against), output)
    common.print_result(args, {"output": str(output), "runs": len(runs)}, [output])
    return common.DONE


def _choice(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Names in `text`, without repeats."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise InputError(f"{option} knows {', '.join(known)}, not {name!r}")
    return names
