"""``ooc-fw help TOPIC``: prints a guide."""

from __future__ import annotations

import argparse
from importlib.resources import files

from ooc_fw.cli.common import DONE
from ooc_fw.system.errors import InputError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "help",
        help="print a guide on memory, streams, tables, ...",
        description="Print a guide. Without TOPIC, list the topics.",
    )
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="name of a guide")


def run(args: argparse.Namespace) -> int:
    """Print one guide, or the title of each."""
    folder = files("ooc_fw") / "guides"
    guides = {
        path.name.removesuffix(".md"): path.read_text(encoding="utf-8")
        for path in sorted(folder.iterdir(), key=lambda path: path.name)
        if path.name.endswith(".md")
    }
    if args.topic is None:
        for topic, text in guides.items():
            print(f"{topic:<14} {text.partition(chr(10))[0].lstrip('# ')}")
    elif args.topic in guides:
        print(guides[args.topic], end="")
    else:
        raise InputError(f"there is no guide {args.topic!r}; the topics are {', '.join(guides)}")
    return DONE
