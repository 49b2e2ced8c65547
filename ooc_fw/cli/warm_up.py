"""``ooc-fw warm-up``: compile ahead of time what the other commands need."""

from __future__ import annotations

import argparse
import compileall
import contextlib
import io
import logging
import lzma
import shlex
import sys
import time
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ooc_fw._core.loading import noting_compilation
from ooc_fw._core.steps import move
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.main import main
from ooc_fw.kernels.products import is_in_order
from ooc_fw.report.progress import to_json
from ooc_fw.system.files import exact, write_atomic
from ooc_fw.system.scratch import scratch_directory

OPTIONS = ("", "--memory 1GiB", "--C 1e6", "--kernel poly --degree 3", "--landmarks 50")
"""Options of training: kernel values of 32, 16 and 64 bits, another kernel, landmarks."""

RULES = (
    *(f"--method {name}" for name in ("fw", "mfw", "swap", "swap2", "partan", "cvm")),
    *("--method bpcg --lmo lazy", "--method qc", "--method fw --lmo random --no-certify"),
    "--kernel linear",
)
"""Step rules, oracles that propose one vertex at a time, and a kernel without a map."""

WORK = (
    "convert a1a.xz sparse.h5 --quiet",
    "convert a1a.xz dense.h5 --dense --scale standard --quiet",
    "convert classes.txt classes.h5 --quiet",
    "info sparse.h5 --json",
    "info dense.h5 --json",
    *(
        f"train {data} -o {data}.model --quiet {options}"
        for data in ("sparse.h5", "dense.h5")
        for options in OPTIONS
    ),
    "train classes.h5 -o classes.model --quiet",
    "convert classes.txt dense-classes.h5 --dense --quiet",
    *(
        f"train dense-classes.h5 -o classes.dense.model --quiet {options}"
        for options in (*OPTIONS, "--kernel linear", "--probability")
    ),
    *(f"train dense.h5 -o steps.model --quiet --max-iter 20 {rule}" for rule in RULES),
    "train sparse.h5 -o other.model --quiet --kernel laplacian --gamma 0.1",
    *(
        f"{command} {data}.model {data} --quiet"
        for data in ("sparse.h5", "dense.h5")
        for command in ("evaluate", "certify")
    ),
    "predict classes.model classes.h5 -o predictions.txt --quiet",
    "train dense.h5 -o novelty.model --quiet --task novelty",
    "train dense.h5 -o regression.model --quiet --task regression --landmarks 50",
)
"""Commands that use all that is compiled for the usual kernels, storages and precisions."""

WORK_ON_TABLES = (
    "convert rows.csv rows.h5 --label y --log1p --scale standard --quiet",
    "info rows.csv --json",
)
"""Commands that need pyarrow."""


def run(args: argparse.Namespace) -> int:
    """Compile what the other commands need, once for each installation."""
    compiled: list[float] = []
    started = time.perf_counter()
    compileall.compile_dir(str(files("ooc_fw")), quiet=2)  # fails in silence where it cannot write
    with contextlib.ExitStack() as stack:
        stack.enter_context(noting_compilation(lambda: compiled.append(time.perf_counter())))
        directory = stack.enter_context(scratch_directory())
        sample = (files("ooc_fw.data") / "samples" / "a1a.xz").read_bytes()
        write_atomic(directory / "a1a.xz", sample)
        _write_classes(directory / "classes.txt", lzma.decompress(sample))
        _write_table(directory / "rows.csv")
        stack.enter_context(contextlib.chdir(directory))
        work = WORK if find_spec("pyarrow") is None else (*WORK, *WORK_ON_TABLES)
        stack.callback(logging.disable, logging.NOTSET)
        logging.disable(logging.WARNING)  # runs that end after a few steps say so
        for command in tqdm(
            work, "warm-up", unit="command", disable=args.quiet, leave=False, file=exact(sys.stderr)
        ):
            with contextlib.redirect_stdout(io.StringIO()):
                status = main(shlex.split(command))
            if status != DONE:
                return status
        for dtype in (np.float32, np.float64):  # products of few rows and few features
            is_in_order(dtype, 4)
    seconds, kept = time.perf_counter() - started, move.stats.cache_path
    if args.json:
        print(to_json({"compiled": bool(compiled), "seconds": seconds, "directory": kept}))
    elif not args.quiet:
        what = f"compiled in {seconds:.0f} s" if compiled else "all was compiled before"
        print(f"{what}; the code is kept in {kept}")
    return DONE


def _write_classes(path: Path, text: bytes) -> None:
    """Write labelled rows with three classes in turn in place of their own."""
    rows = text.splitlines()[:300]
    lines = [b"%d %s" % (k % 3, row.partition(b" ")[2]) for k, row in enumerate(rows)]
    path.write_bytes(b"\n".join(lines) + b"\n")


def _write_table(path: Path) -> None:
    """Write a table of quoted cells."""
    rows = "\n".join(f'"{k % 7}","{k % 3}.5","{"ab"[k % 2]}"' for k in range(300))
    path.write_text(f"a,b,y\n{rows}\n")
