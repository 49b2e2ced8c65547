"""``ooc-fw demo`` and ``warm-up``: the other commands on small data sets."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import lzma
import shlex
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np

from ooc_fw._core.loading import Compilation
from ooc_fw._core.steps import weigh_rows
from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.main import main
from ooc_fw.report.progress import Waiting
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import scratch_directory, write_atomic

DEMO = """
convert a1a.xz train.h5
info train.h5
train train.h5 -o model.h5 --C 1
certify model.h5 train.h5
convert a1a.t.xz test.h5 --like train.h5
evaluate model.h5 test.h5
predict model.h5 a1a.t.xz -o predictions.txt
"""
"""Commands of the demo. The package includes a1a: 1605 rows of the UCI Adult data."""


def run(args: argparse.Namespace) -> int:
    """Convert, train, certify and evaluate on a small data set."""
    with _sample(args.output) as directory:
        print(f"$ cd {shlex.quote(str(directory))}")
        return run_commands(DEMO)


def run_commands(commands: str) -> int:
    """Print and run commands, one per line; returns the first status that is not `DONE`."""
    for command in commands.strip().splitlines():
        print(f"\n$ ooc-fw {command}", flush=True)
        status = main(shlex.split(command))
        if status != DONE:
            return status
        sys.stderr.flush()
    return DONE


def warm_up(args: argparse.Namespace) -> int:
    """Compile what the other commands need, once for each installation."""
    lines = Path(__file__).with_name("warm_up.txt").read_text(encoding="ascii").splitlines()
    work = [line for line in lines if line and not line.startswith("#")]
    with (
        _sample(),
        Waiting("warm-up", len(work), quiet=args.quiet, unit="commands") as done,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.ExitStack() as stack,
    ):
        _write_classes()
        logging.disable(logging.WARNING)  # hides warnings of runs that end after a few steps
        stack.callback(logging.disable, logging.NOTSET)
        for place, command in enumerate(work):
            done(place)
            status = main(shlex.split(command))
            if status != DONE:
                return status
    result = {
        "compiled": Compilation.begun,
        "seconds": time.perf_counter() - args.started,
        "directory": weigh_rows.stats.cache_path,
    }
    common.print_result(args, result, [] if args.quiet else None)
    return DONE


@contextlib.contextmanager
def _sample(directory: str | None = None) -> Iterator[Path]:
    """Work in a directory with the a1a files; the default one is temporary."""
    with contextlib.ExitStack() as stack:
        folder = Path(directory) if directory else stack.enter_context(scratch_directory())
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise InputError(f"{folder} is not empty; give the name of a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("a1a.xz", "a1a.t.xz"):
            write_atomic(folder / name, (files("ooc_fw.data") / "samples" / name).read_bytes())
        stack.enter_context(contextlib.chdir(folder))
        yield folder


def _write_classes() -> None:
    rows = lzma.decompress(Path("a1a.xz").read_bytes()).splitlines()[:300]
    for name, n_classes in (("classes.txt", 3), ("many.txt", 30)):
        lines = [b"%d %s" % (k % n_classes, row.partition(b" ")[2]) for k, row in enumerate(rows)]
        Path(name).write_bytes(b"\n".join(lines) + b"\n")
    cells = "\n".join(f'"{k % 7}","{k % 3}.5","{"ab"[k % 2]}"' for k in range(300))
    Path("rows.csv").write_text(f"a,b,y\n{cells}\n")
    np.save("bytes.npy", (np.arange(300) % 7).astype(np.uint8)[:, None])
    np.save("labels.npy", np.arange(300) % 2)
