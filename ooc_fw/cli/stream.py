"""``ooc-fw train --stream``: from LIBSVM text that is read once to a model file."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_fw.cli import common, train
from ooc_fw.cli.model_place import model_place
from ooc_fw.convert.text import iter_libsvm
from ooc_fw.data.labels import one_class
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Int64Array
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import CSRSource
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.solver.state import Callback, Status
from ooc_fw.system.errors import InputError, format_label, format_labels
from ooc_fw.system.interrupt import DeferredInterrupt, signal_of
from ooc_fw.system.memory import peak_rss_bytes
from ooc_fw.training.streams import PairStreams

logger = logging.getLogger(__name__)

Block = tuple[Float64Array, CSRRows, int]
"""Labels and rows of a block of text, and the number of its first line."""

_OF_SOLUTION = (
    *("method", "objective", "rho", "sampled_gap", "certified_gap"),
    *("iterations", "kernel_evaluations", "passes"),
)


def run(args: argparse.Namespace) -> int:
    """Train on one pass, save, report.

    After a signal the model is that of the blocks of text before, with the larger label as the
    positive one as always.
    """
    common.refuse_several(args, "text")
    for action in args.unused_by_stream:
        value = getattr(args, action.dest, action.default)
        if isinstance(value, np.ndarray) or value != action.default:
            option = action.option_strings[0]
            raise InputError(f"{option} has no part in --stream; leave one of them out")

    options = common.record_from(TrainOptions, args, certify=False)
    labels = TwoLabels("standard input" if args.data == "-" else args.data)
    with (
        model_place(args) as place,
        train.run_progress(args, options, args.started, train.open_log(args, options)) as progress,
        DeferredInterrupt() as interrupt,
    ):
        interrupt.defer()
        stream, number = _learn(args, options, labels, progress.callbacks, interrupt)
        classes = labels.classes  # InputError unless there are two
        kernel = stream.kernel
        solution = stream.solutions()[0].solution
        if number:
            solution = replace(solution, status=Status.INTERRUPTED)
        if labels.known[0] > labels.known[1]:
            solution = replace(solution, labels=-solution.labels)
        model = Model.of(
            solution, None, classes=classes, kernel=kernel, C=options.C, scaling=Scaling()
        )
        output = place.save(model, complete=not number)
        result = {
            "status": str(solution.status),
            "kernel": kernel.name,
            "gamma": kernel.gamma,
            **{name: getattr(options, name) for name in ("C", "tol", "stopping")},
            "keep": args.keep,
            "n_rows": stream.n_rows,
            "n_features": stream.n_features,
            "n_support": len(solution.alpha),
            **{name: getattr(solution, name) for name in _OF_SOLUTION},
            "seconds": time.perf_counter() - args.started,
            "peak_rss_bytes": peak_rss_bytes(),
            "model": str(output),
        }
        progress.end(result)
    if not args.quiet:
        common.print_lines(train.summary(result))
    if number:
        words = "interrupted: the model is that of the first %d rows%s"
        logger.warning(words, stream.n_rows, place.note(output))
    elif output != place.output:
        logger.warning("%s%s", solution.status, place.note(output))
    common.print_result(args, result, [output])
    return place.status(number)


def _learn(
    args: argparse.Namespace,
    options: TrainOptions,
    labels: TwoLabels,
    callbacks: Sequence[Callback],
    interrupt: DeferredInterrupt,
) -> tuple[PairStreams, int]:
    """Read to the end, or to a signal; returns the number of the signal, else 0.

    The block of text in which the signal arrives counts as not read.
    """
    stream: PairStreams | None = None
    blocks = iter_libsvm(args.data, zero_based=args.zero_based)
    try:
        while (block := _next_block(blocks, interrupt)) is not None:
            values, rows, line = block
            source = CSRSource(rows, name="the first block of text")
            if stream is None:
                kernel = train.kernel_from(args, source, options.threads, None)
                stream = PairStreams(2, kernel, options, args.keep)
            codes = labels.encode(values, stream.n_rows, line)
            stream.learn(source, codes, callbacks=callbacks)
    except KeyboardInterrupt as error:
        if stream is None or stream.n_rows == 0 or len(labels.known) < 2:
            raise
        return stream, signal_of(error)
    assert stream is not None  # the reader refuses text without rows
    return stream, 0


def _next_block(blocks: Iterator[Block], interrupt: DeferredInterrupt) -> Block | None:
    """The next block of text, None at the end; a signal raises while it is waited for."""
    with interrupt.waiting():
        return next(blocks, None)


class TwoLabels:
    """The labels of a stream as the codes 0 and 1.

    The value that comes first is 0, even if it turns out to be the larger one. Labels may be
    exchanged at the end: the problem is the same.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.known: list[Any] = []  # values of 0 and 1, as far as they are known

    @property
    def classes(self) -> AnyArray:
        """Both values in increasing order; InputError if fewer than two are known."""
        if len(self.known) < 2:
            raise one_class(self.name, self.known[0])
        return np.sort(np.array(self.known))

    def encode(self, labels: AnyArray, first_row: int = 0, line: int = 1) -> Int64Array:
        """Give 0 or 1 for each label; InputError for a third one, which changes nothing.

        It names the row, counted from `first_row`, and the `line` from which on it is.
        """
        values = labels.tolist()
        known = [*dict.fromkeys([*self.known, *values])]
        if len(known) > 2:
            raise InputError(
                f"row {first_row + values.index(known[2])} of {self.name}, counted from 0 without "
                f"blank lines (line {line} or later), has the label {format_label(known[2])}, but "
                f"the two classes are {format_labels(known[:2])}; leave such rows out"
            )
        self.known = known
        return np.where(labels == known[0], 0, 1)
