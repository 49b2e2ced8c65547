"""``ooc-fw train --stream``: a new model, or the update of one, from rows that are read once."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from ooc_fw.cli import common, runs
from ooc_fw.cli.commands import COMMANDS
from ooc_fw.cli.models import new_rows
from ooc_fw.conversion.text import iter_libsvm
from ooc_fw.data.formats import detect_format
from ooc_fw.data.labels import Classes, read_classes
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.rows import concat_rows
from ooc_fw.data.sources import RowSource, iter_blocks, rows_source
from ooc_fw.model.applying import parsed_rows
from ooc_fw.model.prediction import like_training, suited
from ooc_fw.model.record import Model, load_model
from ooc_fw.options import KernelOptions, ModelOptions, option_fields
from ooc_fw.report.progress import Waiting
from ooc_fw.solver.plan import Session
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import DeferredInterrupt, format_gap, signal_of
from ooc_fw.training.prepare import kernel_for
from ooc_fw.training.streams import Stream, check_unweighted, chunk_bytes

logger = logging.getLogger(__name__)

_TAKEN = (
    "data label labels missing_labels x_name zero_based fill_missing output log json quiet verbose "
    "stream resume keep kernel gamma degree coef0 C tol stopping threads certify max_time "
    "memory_limit landmarks"
)


class Chunks(NamedTuple):
    """DATA in chunks."""

    rows: Iterator[tuple[Any, Any]]  # labels and rows of each chunk
    classes: Classes | None = None  # None until they are read from the first chunk
    like: RowSource | Model | None = None  # has the scaling and the column names of the model


def run(args: argparse.Namespace) -> int:
    """Train while reading once, save and report; a signal ends the run after its last chunk."""
    unused = {*COMMANDS["train"].names} - {*_TAKEN.split()}
    why = "has no part in --stream; leave one of them out"
    common.refuse_given(args, sorted(unused), why)
    if args.resume is None:
        common.refuse_given(args, ["fill_missing"], "goes with --resume MODEL only; add that")
    before = None if args.resume is None else _model_before(args)
    known = {} if before is None else {"C": before.C}
    options = common.record_from(ModelOptions, args, certify=False, **known)
    if options.landmarks is not None or (before is not None and before.kind == "landmarks"):
        why = "is for models with support vectors; the number of landmarks is --landmarks N"
        common.refuse_given(args, ["keep"], why)
    place = runs.ModelPlace(args)
    with (
        _open(args, before) as chunks,
        runs.run_progress(args, runs.open_log(args, options)) as progress,
        DeferredInterrupt() as interrupt,
    ):
        stream = None if before is None else Stream.after(before, options, args.keep)
        session = Session(progress.callbacks, started=args.started, interrupt=interrupt)
        model, n_rows, number = _learn(args, options, chunks, stream, session)
        output = place.save(model, complete=number is None)
        result = {
            "status": model.status,
            "n_rows": n_rows,
            "n_features": model.n_features,
            "n_support": len(model.support_vectors),
            "sampled_gap": model.sampled_gap,
            "certified_gap": None,
            **runs.costs(args),
            "model": str(output),
        }
        progress.end(result)
    if before is not None and before.calibrated:
        logger.warning("the updated model gives no probabilities, though %s does", args.resume)
    if model.threshold is not None:
        words = "the updated model keeps the threshold %g: see if it is right, with ooc-fw evaluate"
        logger.warning(words, model.threshold)
    if number is not None:
        words = "interrupted: the model is that of the first %d rows%s"
        logger.warning(words, n_rows, place.note(output))
    elif model.status == Status.TIME_LIMIT:
        logger.warning("the time limit: the model is that of the first %d rows", n_rows)
    vectors = "support vectors" if model.kind == "exact" else "landmarks"
    report = (
        f"{model.status}: relative gap {format_gap(model.sampled_gap)}, over the rows read "
        f"last, not certified; {result['n_support']} {vectors}; {n_rows} rows read once"
    )
    common.print_result(args, result, [output], [report])
    return place.status(number)


def _learn(
    args: argparse.Namespace,
    options: ModelOptions,
    chunks: Chunks,
    stream: Stream | None,
    session: Session,
) -> tuple[Model, int, int | None]:
    """Model of all rows up to the end, a limit or a signal; their number; number of the signal.

    The chunk in which the signal arrives is not learned and not counted. OutOfTimeError if the time
    is over before the first chunk.
    """
    name = "standard input" if args.data == "-" else args.data
    classes = chunks.classes
    n_rows = 0
    number = status = None
    deadline = session.deadline(options)
    interrupt = session.interrupt
    assert interrupt is not None
    interrupt.defer()
    try:
        while True:
            with interrupt.raising():
                chunk = next(chunks.rows, None)
            if chunk is None:
                break
            if n_rows == 0:
                deadline.check()
            elif deadline.left() <= 0:
                status = Status.TIME_LIMIT
                break
            labels, rows = chunk
            source = rows_source(rows, name, labels)
            if classes is None:
                classes = read_classes(source, least=2)
            if stream is None:
                without_offsets(source)  # warns if different values are equal in float32
                with Waiting("statistics", source.n_rows, quiet=args.quiet) as tell:
                    kernel = kernel_for(source, options, on_rows=tell)
                stream = Stream.new(kernel, len(classes), options, args.keep)
            stream = stream.learn(source, classes.codes(labels, name, n_rows), session)
            n_rows += len(rows)
    except KeyboardInterrupt as error:
        if n_rows == 0:
            raise
        number = signal_of(error)
        status = Status.INTERRUPTED
    assert stream is not None  # readers refuse data without rows
    assert classes is not None
    model = stream.model(classes.values, chunks.like)
    if status is not None:
        model = replace(model, status=str(status))
    return model, n_rows, number


def _model_before(args: argparse.Namespace) -> Model:
    """Load the model that the new rows update."""
    model = load_model(args.resume)
    why = f"cannot change: --resume takes it from {args.resume}; leave it out"
    common.refuse_given(args, ("C", *option_fields(KernelOptions)), why)
    faults = {
        f"is for {model.task}": model.task != "classification",
        "has weights of columns": model.kind == "linear",
        "is exact and has no landmarks": model.kind == "exact" and args.landmarks is not None,
        "has weights of rows or classes": model.penalties is not None,
    }
    only = "; a stream cannot update that: train on all rows"
    common.refuse({f"{args.resume} {fault}{only}": holds for fault, holds in faults.items()})
    return model


@contextmanager
def _open(args: argparse.Namespace, before: Model | None) -> Iterator[Chunks]:
    """Open DATA as chunks; for an update they are converted like the data of the model before."""
    blocks = None
    if before is not None:
        blocks = parsed_rows(before, new_rows(args, args.resume), with_labels=True)
    if before is not None and blocks is not None:
        like = ((block[0], like_training(before, [block])) for block in blocks)
        rows_like = ((labels, concat_rows([rows for _, rows in parts])) for labels, parts in like)
        yield Chunks(rows_like, Classes(before.classes), before)
    elif before is None and detect_format(args.data) == "libsvm":
        why = "has no part in --stream of LIBSVM text; leave it out"
        common.refuse_given(args, ("label", "labels", "missing_labels", "x_name"), why)
        yield Chunks(iter_libsvm(args.data, zero_based=args.zero_based))
    else:
        with common.open_data(args, {} if before is None else before.origin) as source:
            rows = (
                without_offsets(source, args.kernel) if before is None else suited(before, source)
            )
            check_unweighted(rows)
            parts = iter_blocks(rows, 0, rows.n_rows, chunk_bytes(args.memory_limit))
            labelled = ((rows.labels(start, start + len(part)), part) for start, part in parts)
            classes = read_classes(rows, least=2) if before is None else Classes(before.classes)
            yield Chunks(labelled, classes, before or rows)
