"""``ooc-fw train``: trains a model on a data file."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.cli import common, runs
from ooc_fw.cli.commands import DONE
from ooc_fw.data.labels import is_label_number
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.parallel import Workers
from ooc_fw.data.sources import RowSource
from ooc_fw.data.views import SubsetSource
from ooc_fw.options import NOVELTY_C, TrainOptions
from ooc_fw.problem import row_penalties
from ooc_fw.report.progress import Waiting
from ooc_fw.solver.plan import Plan, Session, warn_of_gamma
from ooc_fw.solver.state import Status
from ooc_fw.solver.surroundings import Checkpoint, Deadline
from ooc_fw.system.errors import DeferredInterrupt, InputError, OutOfTimeError, signal_of
from ooc_fw.system.memory import format_bytes
from ooc_fw.training.checkpoint import EVERY_S, load_resumed
from ooc_fw.training.choice import check_options, plan_model
from ooc_fw.training.fit import (
    FIELDS,
    Fit,
    before_calibration,
    calibrated,
    describe,
    fit,
    make_problem,
    read_answers,
)
from ooc_fw.training.tasks import ordinary_rows

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """Train a model."""
    options = _options(args)
    labels = args.ordinary is not None or args.task != "novelty"
    with (
        common.open_data(args, labels=labels) as opened,
        common.open_workers(args) as workers,
    ):
        place = runs.ModelPlace(args)
        resumed = None if args.resume is None else load_resumed(args.resume)
        if resumed is not None:
            options = resumed.options(options)
        source = whole = without_offsets(opened, args.kernel)
        rows = some = None  # the rows to learn, None for all
        if args.ordinary is not None:
            _, is_ordinary, words = ordinary_rows(whole, args.ordinary)
            common.say(args, words)
            rows = np.flatnonzero(is_ordinary)
            some = (rows, whole.n_rows)
            source = SubsetSource(whole, rows)
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
        common.say(args, plan.kind)
        facts = {"n_rows": source.n_rows, "n_features": source.n_features, "task": args.task}
        log = runs.open_log(args, options, **facts, kernel=problem.kernel.to_dict())
        with runs.run_progress(args, log) as progress, DeferredInterrupt() as interrupt:
            session = replace(session, callbacks=progress.callbacks, interrupt=interrupt)
            if resumed is not None:
                resumed = replace(resumed, rows=rows)
            fitted = fit(problem, within, session, resumed, plan)
            progress.stop()  # since calibration has a display of its own
            if rows is not None:
                fitted = fitted.renumbered(rows, whole.n_rows)
            result, number = _save(args, fitted, options, session, place, interrupt)
            progress.end(result)
    runs.warn_inexact(fitted.why_inexact(), result, place.note(Path(result["model"])))
    common.print_result(args, result, [result["model"]], runs.summary(result))
    return place.status(number)


def _options(args: argparse.Namespace) -> TrainOptions:
    """Options of training from the arguments; InputError if arguments contradict each other."""
    if args.C is None:
        args.C = NOVELTY_C if args.task == "novelty" else TrainOptions.C
    needs = {"zero_based": "--stream", "keep": "--stream"}
    if args.checkpoint is None:
        needs["checkpoint_every"] = "--checkpoint FILE"
    fields = {"contamination": "novelty", "ordinary": "novelty", "epsilon": "regression"}
    needs |= {name: f"--task {task}" for name, task in fields.items() if args.task != task}
    for name, other in needs.items():
        common.refuse_given(args, [name], f"goes with {other} only; add that, or leave it out")
    if args.task != "classification":
        useless = ["class_weight", "probability"]
        useless += ["labels"] * (args.task == "novelty" and args.ordinary is None)
        common.refuse_given(args, useless, f"has no meaning for --task {args.task}; leave it out")
    if args.data == "-":
        raise InputError("text on standard input goes with --stream only; add that, or convert it")
    options = common.record_from(TrainOptions, args)
    check_options(args.task, options)
    return options


def _read_problem(
    args: argparse.Namespace, source: RowSource, options: TrainOptions, workers: Workers | None
) -> Any:
    """Make the problem: reads the labels, and the rows if gamma depends on them."""
    weights = args.class_weight
    answers, threads = read_answers(args.task, source, options, weighted=weights is not None)
    penalties = None
    if weights is not None:
        labels = answers["class_labels"]
        if isinstance(weights, dict) and labels.dtype.kind in "biuf":
            weights = {float(k) if is_label_number(k) else k: w for k, w in weights.items()}
        penalties = row_penalties(args.C, labels, answers["codes"], weights)
    given = {name: vars(args)[name] for name in FIELDS[args.task] if vars(args)[name] is not None}
    kernel = runs.kernel_from(args, source, threads, workers)
    size = f"{source.n_rows} rows, {source.n_features} features"
    logger.info("%s: %s, %s", source.name, size, kernel.to_dict())
    warn_of_gamma(source, kernel)
    how = {"source": source, "kernel": kernel, "penalties": penalties}
    return make_problem(args.task, **answers, **given, **how)


def _save(
    args: argparse.Namespace,
    fitted: Fit,
    options: TrainOptions,
    session: Session,
    place: runs.ModelPlace,
    interrupt: DeferredInterrupt,
) -> tuple[dict[str, Any], int | None]:
    """Calibrate and save the model; returns its description, and the signal that ended the run."""
    result = describe(fitted)
    model = fitted.model
    number = fitted.signal
    complete = model.status != Status.INTERRUPTED
    missing = "" if number is None else "interrupted"
    if args.probability and not missing:
        common.say(args, "calibrating on held-out rows")
        try:
            # Without a log, which describes the training run only.
            with interrupt.raising(), runs.run_progress(args) as progress:
                own = replace(session, callbacks=progress.callbacks, interrupt=None)
                model = calibrated(fitted, options, own)
        except OutOfTimeError:
            missing = "no time left"
        except KeyboardInterrupt as error:
            missing = "interrupted"
            number = signal_of(error)
        except (InputError, OSError, MemoryError):
            place.save(model, complete=False)
            raise
    if args.probability:
        result["calibrated"] = not missing
        complete = missing != "interrupted"
    output = place.save(model, complete=complete)
    if args.probability and missing:
        logger.warning("%s: the model gives no probabilities%s", missing, place.note(output))
    return result | runs.costs(args) | {"model": str(output)}, number


def _print_plan(args: argparse.Namespace, plan: Plan) -> int:
    """Print the kind of model and the division of the memory, for ``--dry-run``."""
    room = plan.memory
    sizes = {"kernel values": room.kernel_values, "rows kept in memory": room.row_cache}
    sizes["all else"] = room.planned - sum(sizes.values())
    kind = "exact" if plan.landmarks is None else "landmarks"
    result: dict[str, Any] = {"choice": plan.kind, "kind": kind, "landmarks": plan.landmarks}
    result |= {"memory_limit": room.limit, "memory": sizes}
    rows = [[name, format_bytes(size)] for name, size in sizes.items()]
    common.print_result(args, result, [*common.wrapped([plan.kind], 2), *common.table(rows)])
    return DONE
