"""``ooc-fw demo``: from text to predictions on a small real data set.

The data, a1a (1605 rows of the UCI Adult set) and rows of its test part, come with the package.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from importlib.resources import files
from pathlib import Path

from ooc_fw.cli.common import DONE
from ooc_fw.system.files import write_atomic
from ooc_fw.system.scratch import scratch_directory

COMMANDS = (
    "convert a1a.xz train.h5",
    "info train.h5",
    "train train.h5 -o model.h5 --C 1",
    "certify model.h5 train.h5",
    "convert a1a.t.xz test.h5 --like train.h5",
    "evaluate model.h5 test.h5",
    "predict model.h5 a1a.t.xz -o predictions.txt",
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "demo",
        help="convert, train, certify and evaluate on a small data set",
        description="Run the other commands on a1a, a small real data set that comes with the "
        "program, and show each of them with its result.",
    )
    parser.add_argument(
        "directory", nargs="?", metavar="DIR", help="keep the files here (default: nowhere)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the commands one after the other, up to the first that fails."""
    from ooc_fw.cli.main import main

    with contextlib.ExitStack() as stack:
        if args.directory is None:
            directory = stack.enter_context(scratch_directory())
        else:
            directory = Path(args.directory)
            directory.mkdir(parents=True, exist_ok=True)
        for name in ("a1a.xz", "a1a.t.xz"):
            write_atomic(directory / name, (files("ooc_fw.data") / "samples" / name).read_bytes())
        print(f"$ cd {shlex.quote(str(directory))}")
        stack.enter_context(contextlib.chdir(directory))
        for command in COMMANDS:
            print(f"\n$ ooc-fw {command}", flush=True)
            status = main(command.split())
            if status != DONE:
                return status
            sys.stderr.flush()
        lines = Path("predictions.txt").read_text(encoding="ascii").splitlines()
    print("\n$ head -3 predictions.txt", *lines[:3], sep="\n")
    return DONE
