"""``ooc-fw train --stream``: from LIBSVM text that is read once to a model file."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import arguments, common
from ooc_fw.options import TrainOptions, option_fields
from ooc_fw.system.errors import InputError
from ooc_fw.system.interrupt import signal_of
from ooc_fw.system.memory import peak_rss_bytes

if TYPE_CHECKING:
    from ooc_fw.data.labels import TwoLabels
    from ooc_fw.solver.state import Callback, Solution
    from ooc_fw.solver.stream import Stream

logger = logging.getLogger(__name__)

_OPTIONS = ("C", "tol", "stopping", "max_support", "threads", "certify")

_UNUSED = {
    **{
        name: (own.default, declared.name or f"--{name.replace('_', '-')}")
        for name, (own, declared) in option_fields(TrainOptions).items()
        if name not in _OPTIONS
    },
    **{
        name: (None, f"--{name.replace('_', '-')}")
        for name in ("class_weight", "labels", "checkpoint", "checkpoint_every", "resume", "dask")
    },
    "x_name": ("X", "--x-name"),
    "y_name": ("y", "--y-name"),
    "probability": (False, "--probability"),
}
"""Arguments of ``train`` that a stream has no use for: default, and name of the option."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what only a stream takes."""
    group = parser.add_argument_group(
        "stream",
        "One pass over LIBSVM text in bounded memory. Only rows that support the model are kept: "
        "it depends on the order of the rows, and its gap is known for the rows read last only. "
        "gamma auto follows from the first 4 MiB of text. A feature that appears late was 0 "
        "before. For a certified gap convert the text and train on the file.",
    )
    group.add_argument(
        "--stream",
        action="store_true",
        help="DATA is LIBSVM text, also compressed, or - for text on standard input",
    )
    group.add_argument(
        "--zero-based", action="store_true", help="the first feature of the text is called 0"
    )


def check_absent(args: argparse.Namespace) -> None:
    """Raise InputError for options and data that only a stream takes."""
    for given, option in (
        (args.data == "-", "text on standard input"),
        (args.zero_based, "--zero-based"),
    ):
        if given:
            raise InputError(f"{option} goes with --stream only; add that, or convert the text")


def run(args: argparse.Namespace) -> int:
    """Train on one pass, save, report.

    Returns
    -------
    int
        0 at the end of the text. After SIGINT, SIGTERM or SIGHUP, 128 plus its number: the model is
        that of the blocks of text before.
    """
    started = time.perf_counter()
    for name, (default, option) in _UNUSED.items():
        if getattr(args, name) != default:
            raise InputError(f"{option} has no part in --stream; leave one of them out")

    from ooc_fw.data.labels import TwoLabels

    options = replace(arguments.record_from(TrainOptions, args), certify=False)
    place = common.model_place(args)
    labels = TwoLabels("standard input" if args.data == "-" else args.data)
    log = common.open_log(args, options)
    with common.run_progress(args, options, started, log) as progress:
        stream, number = _learn(args, options, labels, progress.callbacks)
        output = place.of(number != 0)
        solution = _save(stream, number, labels, output)
        result = report(solution, stream, started, output)
        if log is not None:
            log.write("end", result)
    if not args.quiet:
        print(*common.summary(result), sep="\n", file=sys.stderr)
    if number:
        logger.warning(
            "interrupted: the model is that of the first %d rows%s",
            stream.n_rows,
            place.note(output),
        )
    common.print_result(args, result, [output])
    return 128 + number if number else common.DONE


def _save(stream: Stream, number: int, labels: TwoLabels, output: Path) -> Solution:
    """Write the model, with the larger label as the positive one."""
    from ooc_fw.data.scaling import Scaling
    from ooc_fw.model.record import Model
    from ooc_fw.solver.state import Status

    assert stream.solution is not None
    solution, classes = stream.solution, labels.classes
    if number:
        solution = replace(solution, status=Status.INTERRUPTED)
    if labels.swapped:
        solution = replace(solution, labels=-solution.labels)
    Model.from_solution(
        solution,
        kernel=stream.kernel,
        C=stream.options.C,
        classes=classes,
        scaling=Scaling(),
    ).save(output)
    return solution


def _learn(
    args: argparse.Namespace,
    options: TrainOptions,
    labels: TwoLabels,
    callbacks: Sequence[Callback],
) -> tuple[Stream, int]:
    """Read to the end, or to a signal; returns the number of the signal, else 0.

    The block of text in which the signal arrives counts as not read.
    """
    from ooc_fw.convert.libsvm import iter_libsvm
    from ooc_fw.data.sources import CSRSource
    from ooc_fw.solver.stream import MAX_SUPPORT, Stream

    stream: Stream | None = None
    n_rows = 0
    try:
        for values, rows, line in iter_libsvm(args.data, zero_based=args.zero_based):
            place = f", counted from 0 without blank lines (line {line} or later),"
            signs = labels.encode(values, n_rows, place)
            if stream is None:
                first = CSRSource(rows, name="the first block of text")
                kernel = common.kernel_from(args, first, options.threads, None)
                support = MAX_SUPPORT if options.max_support is None else options.max_support
                stream = Stream(kernel, options, support)
            stream.learn([(rows, signs)], callbacks)
            n_rows = stream.n_rows
    except KeyboardInterrupt as interrupt:
        if stream is None or stream.solution is None or len(labels.known) < 2:
            raise
        return stream, signal_of(interrupt)
    assert stream is not None  # the reader refuses text without rows
    return stream, 0


def report(solution: Solution, stream: Stream, started: float, output: Path) -> dict[str, Any]:
    """Gather what ``--json`` prints."""
    options = stream.options
    return {
        "status": str(solution.status),
        "method": solution.method,
        "kernel": stream.kernel.name,
        "gamma": stream.kernel.gamma,
        "C": options.C,
        "tol": options.tol,
        "stopping": options.stopping,
        "max_support": stream.max_support,
        "n_rows": stream.n_rows,
        "n_features": stream.n_features,
        "n_support": len(solution.alpha),
        "objective": solution.objective,
        "rho": solution.rho,
        "sampled_gap": solution.sampled_gap,
        "certified_gap": None,
        "iterations": solution.iterations,
        "kernel_evaluations": solution.kernel_evaluations,
        "passes": solution.passes,
        "seconds": time.perf_counter() - started,
        "peak_rss_bytes": peak_rss_bytes(),
        "model": str(output),
    }
