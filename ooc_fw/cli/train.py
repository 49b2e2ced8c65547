"""``ooc-fw train``: from a data file to a model file."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.cli import common, runs
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.runs import ModelPlace, model_place
from ooc_fw.data.labels import is_label_number
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.parallel import Workers
from ooc_fw.data.rows import AnyArray, Float64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.data.views import SubsetSource, ranges_of
from ooc_fw.model.record import Model
from ooc_fw.options import KEEP, NOVELTY_C, TrainOptions
from ooc_fw.problem import row_penalties
from ooc_fw.report.progress import Waiting
from ooc_fw.solver.plan import Plan, Session, warn_of_gamma
from ooc_fw.solver.state import Status
from ooc_fw.solver.surroundings import Checkpoint, Deadline
from ooc_fw.system import memory
from ooc_fw.system.errors import (
    DeferredInterrupt,
    InputError,
    OutOfTimeError,
    format_value,
    signal_of,
)
from ooc_fw.training.checkpoint import EVERY_S, load_resumed
from ooc_fw.training.choice import check_options, plan_model
from ooc_fw.training.fit import (
    FIELDS,
    Fit,
    describe,
    fit,
    make_problem,
    read_answers,
)
from ooc_fw.training.held_out import before_calibration, calibrated
from ooc_fw.training.pairs import describe_method
from ooc_fw.training.tasks import ordinary_rows

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """Train a model."""
    if args.C is None:
        args.C = NOVELTY_C if args.task == "novelty" else TrainOptions.C
    options = _check(args)
    labels = args.ordinary is not None or args.task != "novelty"
    with (
        common.open_data(args, labels=labels) as opened,
        common.open_workers(args) as workers,
    ):
        place = model_place(args)
        resumed = None if args.resume is None else load_resumed(args.resume)
        if resumed is not None:
            options = resumed.options(options)
        source = whole = without_offsets(opened, args.kernel)
        rows = some = None  # those that are learned, if they are not all
        if args.ordinary is not None:
            _, is_ordinary, words = ordinary_rows(whole, args.ordinary)
            common.print_lines([] if args.quiet else [words])
            rows = np.flatnonzero(is_ordinary)
            some = (rows, whole.n_rows)
            source = SubsetSource(whole, ranges_of(rows))
        with source.limited(Deadline(options.max_time, args.started).check):
            problem = _read_problem(args, source, options, workers)
        within = before_calibration(problem, options) if args.probability else options
        checkpoint = None
        if args.checkpoint is not None:
            checkpoint = Checkpoint(args.checkpoint, args.checkpoint_every or EVERY_S, some)
        session = Session((), workers, args.started, checkpoint)
        with Waiting("the choice of the model", quiet=args.quiet):
            plan = plan_model(problem, within, session)
        if args.dry_run:
            return _print_plan(args, plan)
        common.print_lines([] if args.quiet or not plan.kind else [plan.kind])
        facts = {"n_rows": source.n_rows, "n_features": source.n_features, "task": args.task}
        log = runs.open_log(args, options, **facts, kernel=problem.kernel.to_dict())
        with runs.run_progress(args, log) as progress, DeferredInterrupt() as interrupt:
            session = replace(session, callbacks=progress.callbacks)
            if resumed is not None:
                resumed = replace(resumed, rows=rows)
            fitted = fit(problem, within, session, resumed, plan)
            interrupt.defer()  # the model is not lost any more
            progress.stop()  # calibration has a display of its own
            if rows is not None:
                fitted = fitted.renumbered(rows, whole.n_rows)
            result, number = _save(args, fitted, options, session, place, interrupt)
            progress.end(result)
    method = [describe_method(fitted.pairs, fitted.plan)] if fitted.landmarks is None else []
    method += [fitted.plan.kind] * (fitted.plan.landmarks != plan.landmarks)
    runs.warn_inexact(fitted.why_inexact(), result, place.note(Path(result["model"])))
    common.print_result(args, result, [result["model"]], [*method, *runs.summary(result)])
    return place.status(number)


def _check(args: argparse.Namespace) -> TrainOptions:
    """Options of the arguments, which have to go together."""
    every = args.checkpoint is None and args.checkpoint_every is not None
    reasons = {
        "text on standard input goes with --stream only; add that, or convert it": args.data == "-",
        "--zero-based goes with --stream only; leave it out": args.zero_based,
        "--keep goes with --stream only; leave it out": args.keep != KEEP.default,
        "--checkpoint-every needs --checkpoint FILE": every,
    }
    for name, task in (
        ("contamination", "novelty"),
        ("ordinary", "novelty"),
        ("epsilon", "regression"),
    ):
        wrong = getattr(args, name) is not None and args.task != task
        reasons[f"--{name} goes with --task {task}; add that, or leave it out"] = wrong
    if args.task != "classification":
        looks_at_none = args.task == "novelty" and args.ordinary is None
        why = "has no classes" if args.task == "regression" else "looks at no labels"
        for name in ("class_weight", "probability", *["labels"] * looks_at_none):
            option = name.replace("_", "-")
            reasons[f"--task {args.task} {why}; leave out --{option}"] = bool(getattr(args, name))
    common.refuse(reasons)
    options = common.record_from(TrainOptions, args)
    check_options(args.task, options)
    return options


def _read_problem(
    args: argparse.Namespace, source: RowSource, options: TrainOptions, workers: Workers | None
) -> Any:
    """Problem of the arguments, after passes over labels and for statistics."""
    weighted = args.class_weight is not None
    answers, threads = read_answers(args.task, source, options, weighted=weighted)
    penalties = None if args.class_weight is None else _penalties(args, **answers)
    given = {name: vars(args)[name] for name in FIELDS[args.task] if vars(args)[name] is not None}
    kernel = runs.kernel_from(args, source, threads, workers)
    size = f"{source.n_rows} rows, {source.n_features} features"
    logger.info("%s: %s, %s", source.name, size, format_value(kernel.to_dict()))
    warn_of_gamma(source, kernel)
    how = {"source": source, "kernel": kernel, "penalties": penalties}
    return make_problem(args.task, **answers, **given, **how)


def _penalties(
    args: argparse.Namespace, codes: AnyArray, class_labels: AnyArray
) -> Float64Array | None:
    weights = args.class_weight
    if isinstance(weights, dict) and class_labels.dtype.kind in "biuf":
        weights = {float(k) if is_label_number(k) else k: weight for k, weight in weights.items()}
    return row_penalties(args.C, class_labels, codes, weights)


def _save(
    args: argparse.Namespace,
    fitted: Fit,
    options: TrainOptions,
    session: Session,
    place: ModelPlace,
    interrupt: DeferredInterrupt,
) -> tuple[dict[str, Any], int | None]:
    """Calibrate and save the model; its description, and a signal that ended the run."""
    model = fitted.model
    number = fitted.signal
    interrupted = model.status == Status.INTERRUPTED  # else only a larger model was
    if interrupted and number is None:
        number = signal.SIGINT
    result = describe(fitted)
    missing = ""
    if args.probability:
        started = time.perf_counter()
        missing = "interrupted" if number else ""
        try:
            if not missing:
                with interrupt.raising():
                    model = _calibrated(args, fitted, options, session)
        except OutOfTimeError:
            missing = "no time left"
        except KeyboardInterrupt as error:
            missing = "interrupted"
            number = signal_of(error)
        except (InputError, OSError, MemoryError):
            place.save(model, complete=False)
            raise
        result["calibrated"] = not missing
        result["calibration_seconds"] = time.perf_counter() - started
    output = place.save(model, complete=not interrupted and missing != "interrupted")
    if missing:
        note = place.note(output)
        logger.warning("%s: the model gives no probabilities%s", missing, note)
    result["seconds"] = time.perf_counter() - args.started
    result["peak_rss_bytes"] = memory.peak_rss_bytes()
    return result | {"model": str(output)}, number


def _calibrated(
    args: argparse.Namespace, fitted: Fit, options: TrainOptions, session: Session
) -> Model:
    if not args.quiet:
        print("calibrating on held-out rows", file=sys.stderr)
    # The log describes the training run only.
    with runs.run_progress(args) as progress:
        return calibrated(fitted, options, replace(session, callbacks=progress.callbacks))


def _print_plan(args: argparse.Namespace, plan: Plan) -> int:
    """Print what ``--dry-run`` asks for: the kind of model, and how the memory is divided."""
    room = plan.memory
    sizes = {"kernel values": room.kernel_values, "rows kept in memory": room.row_cache}
    sizes["all else"] = room.planned - sum(sizes.values())
    result = {
        "choice": plan.kind,
        "kind": "exact" if plan.landmarks is None else "landmarks",
        "landmarks": plan.landmarks,
        "memory_limit": room.limit,
        "memory": sizes,
    }
    named = sizes | {"in all": room.planned, "limit": room.limit}
    rows = [[name, memory.format_bytes(size)] for name, size in named.items() if size is not None]
    common.print_result(args, result, [*common.wrapped([plan.kind], 2), *common.table(rows)])
    return DONE
