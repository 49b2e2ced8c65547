"""``ooc-fw train --stream``: from LIBSVM text that goes by once to a model file.

Owns the passage from text to chunks, how such a run ends, and its report. The training is
`ooc_fw.solve.stream.Stream`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs
from ooc_fw.system.interrupt import signal_of
from ooc_fw.system.memory import peak_rss_bytes

if TYPE_CHECKING:
    from ooc_fw.data.rows import CSRRows
    from ooc_fw.kernels.functions import Kernel
    from ooc_fw.options import TrainOptions
    from ooc_fw.report.progress import EventLog
    from ooc_fw.solve.state import Callback, Solution
    from ooc_fw.solve.stream import Stream, TwoLabels

_NO_PART = {
    "class_weight": None,
    "method": "auto",
    "lmo": "auto",
    "sample_size": 194,
    "start": "random",
    "max_iter": None,
    "labels": None,
    "x_name": "X",
    "y_name": "y",
    "max_time": None,
    "checkpoint": None,
    "checkpoint_every": None,
    "resume": None,
    "memory": None,
    "dask": None,
    "probability": False,
}
"""Options of ``train`` that a stream has no use for, and their defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what only a stream takes."""
    group = parser.add_argument_group(
        "stream",
        "One pass over LIBSVM text in bounded memory. Only rows that support the model are kept: "
        "it depends on the order of the rows, and its gap is known for the rows read last only. "
        "gamma auto takes the first 4 MiB of text. A feature that appears late was 0 before. "
        "For a certified gap convert the text and train on the file.",
    )
    group.add_argument(
        "--stream",
        action="store_true",
        help="DATA is LIBSVM text, also compressed, or - for text on standard input",
    )
    group.add_argument("--zero-based", action="store_true", help="the text counts features from 0")


def run(args: argparse.Namespace) -> int:
    """Train on one pass, save, report.

    Returns
    -------
    int
        0 at the end of the text. After SIGINT, SIGTERM or SIGHUP, 128 plus its number: the model is
        that of the blocks of text before.
    """
    started = time.perf_counter()
    _check(args)

    from ooc_fw.options import TrainOptions
    from ooc_fw.report.progress import Progress
    from ooc_fw.solve.stream import TwoLabels

    options = TrainOptions(
        C=args.C,
        tol=args.tol,
        stopping=args.stopping,
        certify=False,
        max_support=args.max_support,
        threads=common.thread_count(args),
    )
    place = common.ModelPlace(_output_path(args))
    labels = TwoLabels("standard input" if args.data == "-" else args.data)
    tol = options.tol if options.stopping == "relative" else None
    log = _open_log(args, options)
    with Progress(quiet=args.quiet, verbose=args.verbose, tol=tol, log=log) as progress:
        stream, number = _learn(args, options, labels, progress.callbacks)
        output = place.of(number != 0)
        solution = _save(stream, number, labels, output)
        result = report(solution, stream, time.perf_counter() - started, output)
        if log is not None:
            log.write("end", result)
    if not args.quiet:
        print(summary(result), file=sys.stderr)
    if number:
        print(
            f"ooc-fw: warning: interrupted: the model is that of the first {stream.n_rows} rows"
            f"{place.note(output)}",
            file=sys.stderr,
        )
    if args.json:
        common.print_result(result, as_json=True)
    else:
        print(output)
    return 128 + number if number else 0


def _save(stream: Stream, number: int, labels: TwoLabels, output: Path) -> Solution:
    """Write the model, with the larger label as the positive one."""
    from ooc_fw.data.scaling import Scaling
    from ooc_fw.model.record import Model
    from ooc_fw.solve.state import Status

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


def _open_log(args: argparse.Namespace, options: TrainOptions) -> EventLog | None:
    from ooc_fw.report.progress import EventLog

    if args.log is None:
        return None
    log = EventLog(args.log)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    log.write("start", {"time": now, "data": args.data, "options": asdict(options)})
    return log


def _check(args: argparse.Namespace) -> None:
    """Raise InputError for options that do not go with a stream."""
    for name, default in _NO_PART.items():
        if getattr(args, name, default) != default:
            option = name.replace("_", "-")
            raise InputError(f"--{option} has no part in --stream; leave one of them out")


def check_absent(args: argparse.Namespace) -> None:
    """Raise InputError for options, and data, that only a stream takes."""
    for given, option in (
        (args.data == "-", "text on standard input"),
        (args.zero_based, "--zero-based"),
    ):
        if given:
            raise InputError(f"{option} goes with --stream only; add that, or convert the text")


def _output_path(args: argparse.Namespace) -> Path:
    if args.output is None and args.data == "-":
        raise InputError("a model trained on standard input needs a name; give one with -o")
    output = Path(args.output) if args.output else common.output_beside(args.data, ".model.h5")
    outputs = [Output("model", output)]
    if args.log is not None:
        outputs.append(Output("log", args.log, streamed=True))
    check_outputs(outputs, [args.data])
    return output


def _learn(
    args: argparse.Namespace,
    options: TrainOptions,
    labels: TwoLabels,
    callbacks: Sequence[Callback],
) -> tuple[Stream, int]:
    """Read to the end, or to a signal, of which the number is returned, else 0.

    A block in which the signal arrives counts as not read.
    """
    from ooc_fw.convert.libsvm import iter_libsvm
    from ooc_fw.solve.stream import MAX_SUPPORT, Stream

    stream: Stream | None = None
    n_rows = 0
    try:
        for values, rows, line in iter_libsvm(args.data, zero_based=args.zero_based):
            place = f", counted from 0 without blank lines (line {line} or later),"
            signs = labels.encode(values, n_rows, place)
            if stream is None:
                support = MAX_SUPPORT if options.max_support is None else options.max_support
                stream = Stream(_kernel(args, rows, options), options, support)
            stream.learn([(rows, signs)], callbacks)
            n_rows = stream.n_rows
    except KeyboardInterrupt as interrupt:
        if stream is None or stream.solution is None or len(labels.known) < 2:
            raise
        return stream, signal_of(interrupt)
    assert stream is not None  # text without rows is an error of the reader's
    return stream, 0


def _kernel(args: argparse.Namespace, rows: CSRRows, options: TrainOptions) -> Kernel:
    """Kernel with gamma as given, or from the first block of text."""
    from ooc_fw.data.sources import CSRSource
    from ooc_fw.data.statistics import sigma2
    from ooc_fw.kernels.functions import make_kernel, resolve_gamma

    name = "the first block of text"
    gamma = resolve_gamma(
        args.kernel,
        args.gamma,
        lambda: sigma2(CSRSource(rows, name=name), options.threads),
        rows.n_features,
    )
    return make_kernel(args.kernel, gamma=gamma, degree=args.degree, coef0=args.coef0)


def report(solution: Solution, stream: Stream, seconds: float, output: Path) -> dict[str, Any]:
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
        "seconds": seconds,
        "peak_rss_bytes": peak_rss_bytes(),
        "model": str(output),
    }


def summary(result: dict[str, Any]) -> str:
    """Sum the run up in a few lines for people."""
    return (
        f"{result['status']}: relative gap {common.format_gap(result['sampled_gap'])} over the "
        f"rows read last, not certified\n"
        f"{result['n_support']} support vectors of {result['n_rows']} rows read once, "
        f"{result['kernel']} kernel, gamma {common.format_value(result['gamma'])}, "
        f"C {common.format_value(result['C'])}\n"
        f"{result['iterations']} iterations, {result['passes']:.1f} passes, "
        f"{result['seconds']:.1f} s, {result['peak_rss_bytes'] / 1e6:.0f} MB at the peak"
    )
