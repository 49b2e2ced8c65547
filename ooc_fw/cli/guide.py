"""``ooc-fw help`` and ``ooc-fw demo``: guides, and the other commands on a small data set."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from importlib.resources import files
from pathlib import Path

from ooc_fw.cli.commands import DONE
from ooc_fw.cli.main import main
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import write_atomic
from ooc_fw.system.scratch import scratch_directory

DEMO = (
    "convert a1a.xz train.h5",
    "info train.h5",
    "train train.h5 -o model.h5 --C 1",
    "certify model.h5 train.h5",
    "convert a1a.t.xz test.h5 --like train.h5",
    "evaluate model.h5 test.h5",
    "predict model.h5 a1a.t.xz -o predictions.txt",
)
"""Commands of the demo on a1a (1605 rows of the UCI Adult set), which comes with the package."""


def run_help(args: argparse.Namespace) -> int:
    """Print a guide on memory, streams, tables, ...."""
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


def run_demo(args: argparse.Namespace) -> int:
    """Convert, train, certify and evaluate on a small data set."""
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
        for command in DEMO:
            print(f"\n$ ooc-fw {command}", flush=True)
            status = main(command.split())
            if status != DONE:
                return status
            sys.stderr.flush()
        lines = Path("predictions.txt").read_text(encoding="ascii").splitlines()
    print("\n$ head -3 predictions.txt", *lines[:3], sep="\n")
    return DONE
