"""``ooc-fw train --stream``: from LIBSVM text that is read once to a model file."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common
from ooc_fw.options import ConvertOptions, TrainOptions
from ooc_fw.system.errors import InputError
from ooc_fw.system.interrupt import signal_of
from ooc_fw.system.memory import peak_rss_bytes

if TYPE_CHECKING:
    from ooc_fw.data.labels import TwoLabels
    from ooc_fw.solver.state import Callback
    from ooc_fw.solver.stream import Stream

logger = logging.getLogger(__name__)

_USED = {
    *("data", "output", "log", "json", "quiet", "verbose", "stream", "zero_based", "kernel"),
    *("gamma", "degree", "coef0", "C", "tol", "stopping", "max_support", "threads", "certify"),
}
"""Arguments of ``train`` that a stream takes, too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what only a stream takes, after all other arguments."""
    group = parser.add_argument_group(
        "stream",
        "One pass over LIBSVM text in bounded memory. Only rows that support the model are kept, "
        "at most 10000 unless --max-support says otherwise: it depends on the order of the rows, "
        "and its gap is known for the rows read last only. gamma auto follows from the first 4 MiB "
        "of text. A feature that appears late was 0 before. For a certified gap convert the text "
        "and train on the file.",
    )
    group.add_argument(
        "--stream",
        action="store_true",
        help="DATA is LIBSVM text, also compressed, or - for text on standard input",
    )
    common.add_options(group, ConvertOptions, ["zero_based"])
    parser.set_defaults(
        unused_by_stream=[action for action in parser._actions if action.dest not in _USED]
    )


def run(args: argparse.Namespace) -> int:
    """Train on one pass, save, report.

    After a signal the model is that of the blocks of text before, with the larger label as the
    positive one as always.
    """
    started = time.perf_counter()
    for action in args.unused_by_stream:
        if getattr(args, action.dest, action.default) != action.default:
            option = action.option_strings[0]
            raise InputError(f"{option} has no part in --stream; leave one of them out")

    from ooc_fw.data.labels import TwoLabels
    from ooc_fw.data.scaling import Scaling
    from ooc_fw.model.record import Model
    from ooc_fw.solver.state import Status

    options = common.record_from(TrainOptions, args, certify=False)
    place = common.model_place(args)
    labels = TwoLabels("standard input" if args.data == "-" else args.data)
    log = common.open_log(args, options)
    with common.run_progress(args, options, started, log) as progress:
        stream, number = _learn(args, options, labels, progress.callbacks)
        classes = labels.classes  # InputError unless there are two
        output, solution, kernel = place.of(number != 0), stream.solution, stream.kernel
        assert solution is not None
        if number:
            solution = replace(solution, status=Status.INTERRUPTED)
        signs = -solution.labels if labels.swapped else solution.labels
        Model.from_solution(
            replace(solution, labels=signs),
            kernel=kernel,
            C=options.C,
            classes=classes,
            scaling=Scaling(),
        ).save(output)
        same = ("method", "objective", "rho", "sampled_gap", "certified_gap", "iterations")
        result = {
            "status": str(solution.status),
            "kernel": kernel.name,
            "gamma": kernel.gamma,
            "C": options.C,
            "tol": options.tol,
            "stopping": options.stopping,
            "max_support": stream.max_support,
            "n_rows": stream.n_rows,
            "n_features": stream.n_features,
            "n_support": len(solution.alpha),
            **{name: getattr(solution, name) for name in same},
            "kernel_evaluations": solution.kernel_evaluations,
            "passes": solution.passes,
            "seconds": time.perf_counter() - started,
            "peak_rss_bytes": peak_rss_bytes(),
            "model": str(output),
        }
        if log is not None:
            log.write("end", result)
    if not args.quiet:
        common.print_lines(summary(result))
    if number:
        logger.warning(
            "interrupted: the model is that of the first %d rows%s",
            stream.n_rows,
            place.note(output),
        )
    common.print_result(args, result, [output])
    return 128 + number if number else common.DONE


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


def summary(result: dict[str, Any]) -> list[str]:
    """Sum a run of ``train`` up in a few lines for people."""
    gap, kind = result["certified_gap"], "certified over all rows"
    read, vectors = "", "support vectors"
    if gap is None:
        gap, kind = result["sampled_gap"], "over the rows drawn last, not certified"
    if "kind" not in result:
        kind, read = "over the rows read last, not certified", " read once"
    elif result["kind"] == "landmarks":
        vectors = "landmarks"
        kind = f"within the span of the {result['n_support']} landmarks, " + (
            "not certified" if result["certified_gap"] is None else "certified over all rows"
        )
    if "machines" in result:
        of = "classes" if vectors == "landmarks" else "pairs of classes"
        kind += f", the worst of {len(result['machines'])} {of}"
    return [
        f"{result['status']}: relative gap {common.format_gap(gap)}, {kind}",
        f"{result['n_support']} {vectors} of {result['n_rows']} rows{read}, "
        f"{result['kernel']} kernel, gamma {common.format_value(result['gamma'])}, "
        f"C {common.format_value(result['C'])}",
        f"{result['iterations']} iterations, {result['passes']:.1f} passes, "
        f"{result['seconds']:.1f} s, {result['peak_rss_bytes'] / 1e6:.0f} MB at the peak",
    ]
