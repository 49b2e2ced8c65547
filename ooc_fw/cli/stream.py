"""``ooc-fw train --stream``: a model from rows that are read once, alone or after another model."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ooc_fw.cli import common, train
from ooc_fw.cli.commands import OF_STREAM
from ooc_fw.cli.model_place import model_place
from ooc_fw.cli.predict import parsed
from ooc_fw.convert.text import iter_libsvm
from ooc_fw.data.formats import detect_format
from ooc_fw.data.labels import label_values, like_classes, one_class
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array, Rows, concat_rows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource, iter_blocks, rows_source
from ooc_fw.model.prediction import like_training, suited
from ooc_fw.model.record import Model, load_model
from ooc_fw.options import KernelOptions, TrainOptions, option_fields
from ooc_fw.solver.state import Callback, Status
from ooc_fw.system.errors import InputError, format_label, format_labels
from ooc_fw.system.interrupt import DeferredInterrupt, signal_of
from ooc_fw.system.memory import peak_rss_bytes
from ooc_fw.training.streams import POOL_BYTES, PairStreams, factors_of_classes, union_of_vectors

logger = logging.getLogger(__name__)


class _Given(NamedTuple):
    """What a stream learns from."""

    chunks: Iterator[tuple[AnyArray, Rows]]  # labels and rows
    like: RowSource | Model | None  # whose scaling, table and names of columns the model has
    labels: StreamLabels
    factors: Float64Array  # of C, for each class


def run(args: argparse.Namespace) -> int:
    """Train on one pass, save, report; after a signal the model is that of the chunks before."""
    unused = [name for name in args.declared if name not in OF_STREAM]
    _refuse(args, unused, "has no part in --stream; leave one of them out")
    before = None if args.resume is None else _model_before(args)
    if args.C is None:
        args.C = TrainOptions.C if before is None else before.C
    options = common.record_from(TrainOptions, args, certify=False)
    streams = None
    if before is not None:
        streams = PairStreams.after(before, options, args.keep)
    n_before = 0 if streams is None else streams.n_rows
    with (
        model_place(args) as place,
        _open(args, before) as given,
        train.run_progress(args, train.open_log(args, options)) as progress,
        DeferredInterrupt() as interrupt,
    ):
        interrupt.defer()
        streams, number = _learn(args, options, given, streams, progress.callbacks, interrupt)
        model = _model_of(streams, given, options)
        if number:
            model = replace(model, status=Status.INTERRUPTED)
        output = place.save(model, complete=not number)
        result = _describe(args, options, streams, model) | {
            "n_rows": streams.n_rows - n_before,
            "seconds": time.perf_counter() - args.started,
            "peak_rss_bytes": peak_rss_bytes(),
            "model": str(output),
        }
        progress.end(result)
    if not args.quiet:
        common.print_lines(train.summary(result))
    if before is not None and before.calibrated:
        logger.warning("the updated model gives no probabilities, though %s does", args.resume)
    if number:
        words = "interrupted: the model is that of the first %d rows%s"
        logger.warning(words, result["n_rows"], place.note(output))
    elif output != place.output:
        logger.warning("%s%s", model.status, place.note(output))
    common.print_result(args, result, [output])
    return place.status(number)


def _refuse(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """InputError for the first of these arguments that was given: it is not the default."""
    for name in names:
        action = args.declared[name]
        value = getattr(args, name, action.default)
        if isinstance(value, np.ndarray) or value != action.default:
            raise InputError(f"{action.option_strings[0]} {why}")


def _model_before(args: argparse.Namespace) -> Model:
    """The model that new rows update."""
    model = load_model(args.resume)
    why = f"is that of {args.resume}, which --resume goes on from; leave it out"
    _refuse(args, ("C", *option_fields(KernelOptions)), why)
    if model.task != "classification" or model.kind != "exact":
        kind = f"a model of {model.task}"
        if model.task == "classification":
            kind = "a landmark model"
        raise InputError(
            f"{args.resume} is {kind}, and a stream updates exact models of classes only; train "
            f"on the old and the new rows together (ooc-fw train OLD.h5 NEW.h5)"
        )
    return model


@contextmanager
def _open(args: argparse.Namespace, before: Model | None) -> Iterator[_Given]:
    """Chunks of DATA, whose rows are made like those of the model before."""
    name = "standard input" if args.data == "-" else args.data
    factors = np.ones(2)
    if before is not None:
        labels = StreamLabels(name, before.classes)
        factors = factors_of_classes(before)
        applied = argparse.Namespace(**vars(args), model=args.resume)
        blocks = parsed(before, applied, with_labels=True)
        if blocks is not None:
            yield _Given(_scaled(before, blocks), before, labels, factors)
            return
    elif detect_format(args.data) == "libsvm":
        common.refuse_several(args, "text")
        of_arrays = "label", "labels", "x_name"
        _refuse(args, of_arrays, "has no part in --stream of LIBSVM text; leave it out")
        text = iter_libsvm(args.data, zero_based=args.zero_based, exact=True)
        chunks = ((values, rows) for values, rows, _ in text)
        yield _Given(chunks, None, StreamLabels(name), factors)
        return
    with common.open_data(args, model=before) as source:
        if not source.has_labels:
            raise InputError(f"{source.name} has no labels; name them with --label or --labels")
        if before is None:
            labels = StreamLabels(name, label_values(source))
            factors = np.ones(labels.n_classes)
            source = without_offsets(source, args.kernel)
        else:
            source = suited(before, source)
        yield _Given(_stored(source), before or source, labels, factors)


def _scaled(
    model: Model, blocks: Iterable[tuple[AnyArray, Rows]]
) -> Iterator[tuple[AnyArray, Rows]]:
    for labels, rows in blocks:
        yield labels, concat_rows([*like_training(model, [rows])])


def _stored(source: RowSource) -> Iterator[tuple[AnyArray, Rows]]:
    for start, rows in iter_blocks(source, 0, source.n_rows, POOL_BYTES):
        yield source.labels(start, start + len(rows)), rows


def _learn(
    args: argparse.Namespace,
    options: TrainOptions,
    given: _Given,
    streams: PairStreams | None,
    callbacks: Sequence[Callback],
    interrupt: DeferredInterrupt,
) -> tuple[PairStreams, int]:
    """Read to the end, or to a signal; returns the number of the signal, else 0.

    The chunk in which the signal arrives counts as not read.
    """
    n_read = 0
    try:
        while (chunk := _next_chunk(given, interrupt)) is not None:
            values, rows = chunk
            source = rows_source(rows, "the first chunk")
            if streams is None:
                without_offsets(source)  # text: a warning if float32 makes several values one
                kernel = train.kernel_from(args, source, options.threads, None)
                streams = PairStreams(given.labels.n_classes, kernel, options, args.keep)
            codes = given.labels.encode(values, n_read)
            streams.learn(source, codes, given.factors[codes], callbacks)
            n_read += len(rows)
    except KeyboardInterrupt as error:
        if streams is None or n_read == 0 or not given.labels.complete:
            raise
        return streams, signal_of(error)
    assert streams is not None  # readers refuse what has no rows
    return streams, 0


def _next_chunk(given: _Given, interrupt: DeferredInterrupt) -> tuple[AnyArray, Rows] | None:
    """The next chunk, None at the end; a signal raises while it is waited for."""
    with interrupt.waiting():
        return next(given.chunks, None)


def _model_of(streams: PairStreams, given: _Given, options: TrainOptions) -> Model:
    """The model so far; InputError unless there are two classes."""
    classes, pairs = given.labels.classes, streams.solutions()
    if given.labels.reversed:
        (pair,) = pairs
        pairs = [replace(pair, solution=replace(pair.solution, labels=-pair.solution.labels))]
    vectors, kernel = union_of_vectors(pairs), streams.kernel
    model = Model.of(
        pairs, given.like, classes=classes, vectors=vectors, kernel=kernel, C=options.C
    )
    return model if given.like is not None else replace(model, scaling=Scaling())


def _describe(
    args: argparse.Namespace, options: TrainOptions, streams: PairStreams, model: Model
) -> dict[str, Any]:
    """What ``--json`` and the log say of a stream; of several pairs there is no one objective."""
    solutions = [pair.solution for pair in streams.solutions()]
    first, alone = solutions[0], len(solutions) == 1
    return {
        "status": model.status,
        "kernel": model.kernel.name,
        "gamma": model.kernel.gamma,
        **{name: getattr(options, name) for name in ("C", "tol", "stopping")},
        "keep": args.keep,
        "n_features": model.n_features,
        "n_support": len(model.support_vectors),
        "method": first.method,
        "objective": first.objective if alone else None,
        "rho": first.rho if alone else None,
        "sampled_gap": model.sampled_gap,
        "certified_gap": model.certified_gap,
        **{
            name: sum(getattr(each, name) for each in solutions)
            for name in ("iterations", "kernel_evaluations", "passes")
        },
    }


class StreamLabels:
    """The labels of a stream as codes: places in `classes`, or, if these are unknown, 0 and 1.

    Of unknown classes the one that comes first is 0, even if it turns out to be the larger one:
    then labels are `reversed` and may be exchanged at the end, since the problem is the same.
    """

    def __init__(self, name: str, classes: AnyArray | None = None) -> None:
        self.name = name
        self.known: list[Any] = [] if classes is None else classes.tolist()
        self.n_classes = max(2, len(self.known))

    @property
    def complete(self) -> bool:
        """Whether all classes are known."""
        return len(self.known) == self.n_classes

    @property
    def reversed(self) -> bool:
        """Whether the larger of two labels has come first."""
        return bool(self.known[0] > self.known[1])

    @property
    def classes(self) -> AnyArray:
        """All values in increasing order; InputError if there is one only."""
        if not self.complete:
            raise one_class(self.name, self.known[0])
        return np.array(sorted(self.known))

    def encode(self, labels: AnyArray, first_row: int = 0) -> Int64Array:
        """Code of each label; InputError for one too many, which changes nothing.

        It names the row, counted from `first_row`.
        """
        labels = like_classes(labels, np.array(self.known))
        values, first, places = np.unique(labels, return_index=True, return_inverse=True)
        known = [*dict.fromkeys([*self.known, *values[np.argsort(first)].tolist()])]
        for more in known[self.n_classes :]:
            row = first_row + first[values.tolist().index(more)]
            raise InputError(
                f"row {row} of {self.name}, counted from 0 without blank lines, has the label "
                f"{format_label(more)}, but the classes are "
                f"{format_labels(known[: self.n_classes])}; leave such rows out"
            )
        self.known = known
        return np.array([known.index(value) for value in values.tolist()])[places]
