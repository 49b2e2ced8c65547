"""``ooc-fw help``: guides, and the help of commands."""

from __future__ import annotations

import argparse
from importlib.resources import files

from ooc_fw.cli.commands import COMMANDS, DONE
from ooc_fw.cli.main import main
from ooc_fw.system.errors import InputError


def run(args: argparse.Namespace) -> int:
    """Print a guide on memory, streams, tables, ..., or the help of a command."""
    folder = files("ooc_fw") / "guides"
    guides = sorted(path.name[:-3] for path in folder.iterdir() if path.name.endswith(".md"))
    topic = args.topic or "index"
    if topic in guides:
        text = (folder / f"{topic}.md").read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if not line.startswith(("<!--", "!["))]
        print(*lines, sep="\n")
    elif topic not in COMMANDS:
        raise InputError(
            f"there is no guide {topic!r}; the topics are {', '.join(guides)}, and "
            f"the commands {', '.join(COMMANDS)}"
        )
    if topic in COMMANDS:
        main([topic, "--help"])
    return DONE
