"""``ooc-fw train``: from a data file to a model file."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import signal
import sys
import time
from typing import Any

import numpy.typing as npt

from ooc_fw.cli import common, runs
from ooc_fw.cli.commands import DONE
from ooc_fw.data.parallel import Workers
from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import ClassificationProblem
from ooc_fw.report.progress import Waiting
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import warn_of_gamma
from ooc_fw.solver.shell import Deadline
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.system.files import remove_abandoned
from ooc_fw.system.interrupt import signal_of
from ooc_fw.system.memory import LandmarkPlan, MemoryPlan, format_bytes, peak_rss_bytes
from ooc_fw.training.choice import choose, read_classes
from ooc_fw.training.fit import Fit, fit
from ooc_fw.training.held_out import check_can_hold_out, held_out_sigmoids, with_time_for_sigmoids
from ooc_fw.training.pairs import describe_method
from ooc_fw.training.penalties import row_penalties
from ooc_fw.training.result import describe

logger = logging.getLogger(__name__)

_MUCH_MEMORY = 1 << 30
"""Bytes of kernel values from which a run without ``--memory`` says what it may take."""


def run(args: argparse.Namespace) -> int:
    """Train a model."""
    if args.stream:
        from ooc_fw.cli import stream

        return stream.run(args)
    _check_options(args)
    remove_abandoned()
    if args.task == "novelty":
        from ooc_fw.cli import novelty

        return novelty.run(args)
    if args.task == "regression":
        from ooc_fw.cli import regression

        return regression.run(args)

    options = common.record_from(TrainOptions, args)
    checkpoint = runs.checkpoint_plan(args)
    missing = ""  # reason why the model gives no probabilities
    number: int | None = None  # of the signal that ended the run
    with common.open_data(args) as source, common.open_workers(args) as workers:
        place = runs.model_place(args)
        with source.limited(Deadline(options.max_time, args.started).check):
            problem, plan = read_problem(args, source, options, workers)
        if args.probability:
            check_can_hold_out(problem.classes, problem.codes)
        _announce(problem, plan, args.quiet)
        own = with_time_for_sigmoids(options) if args.probability else options
        session = Session((), workers, args.started, checkpoint, args.resume)
        deadline = session.deadline(own)
        with source.limited(deadline.check), Waiting("the choice of the model", quiet=args.quiet):
            choice = choose(problem, own, session)
        if not args.quiet:
            print(choice.reason, file=sys.stderr, flush=True)  # before it takes its time
        facts = {"n_rows": source.n_rows, "n_features": source.n_features}
        log = runs.open_log(args, options, **facts, kernel=problem.kernel.to_dict())
        own, options = choice.settle(own), choice.settle(options)
        with runs.run_progress(args, options, args.started, log) as progress:
            session = dataclasses.replace(session, callbacks=progress.callbacks)
            fitted = fit(problem, own, session)
            model = fitted.model
            # Until it gives probabilities, the model does not replace one that may give them.
            output = place.of(args.probability or model.status == Status.INTERRUPTED)
            model.save(output)
            trained = time.perf_counter()
            if args.probability:
                model, missing, number = _calibrate(args, fitted, problem, options, session)
                if number is None:
                    model.save(place.output)
                    if output != place.output:
                        output.unlink()
                        output = place.output
            result = {
                **describe(fitted, problem, options),
                "choice": choice.reason,
                "seconds": time.perf_counter() - args.started,
                "peak_rss_bytes": peak_rss_bytes(),
                "model": str(output),
            }
            if args.probability:
                seconds = time.perf_counter() - trained
                result |= {"calibrated": model.calibrated, "calibration_seconds": seconds}
            if log is not None:
                log.write("end", result)
    if not args.quiet:
        common.print_lines(_summary(fitted, options, result))
    if not Status(model.status).reached:
        why = fitted.explain(options)
        logger.warning("%s; the model is valid but less exact%s", why, place.note(output))
    if missing:
        logger.warning("%s: the model gives no probabilities%s", missing, place.note(output))
    common.print_result(args, result, [output])
    if number is None and model.status == Status.INTERRUPTED:
        number = fitted.signal or signal.SIGINT
    return DONE if number is None else 128 + number


def _check_options(args: argparse.Namespace) -> None:
    """Refuse what belongs to streams, or to another task."""
    if args.data == "-" or args.zero_based:
        option = "--zero-based" if args.zero_based else "text on standard input"
        raise InputError(f"{option} goes with --stream only; add that, or convert the text")
    if args.epsilon is not None and args.task != "regression":
        raise InputError("--epsilon goes with --task regression; add that, or leave it out")
    if args.contamination is not None and args.task != "novelty":
        raise InputError("--contamination goes with --task novelty; add that, or leave it out")


def read_problem(
    args: argparse.Namespace, source: RowSource, options: TrainOptions, workers: Workers | None
) -> tuple[ClassificationProblem, MemoryPlan | LandmarkPlan]:
    """Problem of the arguments, after passes over labels and for statistics, and its memory."""
    weighted = args.class_weight is not None
    classes, codes, plan = read_classes(source, options, weighted=weighted)
    penalties = _penalties(args, classes, codes)
    threads = min(options.threads, plan.max_threads)
    kernel = runs.kernel_from(args, source, threads, workers)
    return ClassificationProblem(source, codes, kernel, penalties, classes), plan


def _announce(problem: ClassificationProblem, plan: MemoryPlan | LandmarkPlan, quiet: bool) -> None:
    """Say what the problem is, and warn of a gamma that does not fit the rows."""
    kernel_rows = getattr(plan, "kernel_rows", 0)
    if plan.limit is None and kernel_rows > _MUCH_MEMORY and not quiet:
        size = format_bytes(kernel_rows)
        print(
            f"without --memory, the kernel values of an exact model may take up to {size}",
            file=sys.stderr,
        )
    source, kernel = problem.source, problem.kernel
    logger.info(
        "%s: %d rows, %d features, %s as held in memory; kernel %s",
        source.name,
        source.n_rows,
        source.n_features,
        format_bytes(source.decoded_bytes),
        ", ".join(f"{name} {common.format_value(v)}" for name, v in kernel.to_dict().items()),
    )
    warn_of_gamma(source, kernel)


def _calibrate(
    args: argparse.Namespace,
    fitted: Fit,
    problem: ClassificationProblem,
    options: TrainOptions,
    session: Session,
) -> tuple[Model, str, int | None]:
    """The model with probabilities; or without, the reason, and the signal that is the reason."""
    model = fitted.model
    if model.status == Status.INTERRUPTED:
        return model, "interrupted", fitted.signal or signal.SIGINT
    if not args.quiet:
        print("calibrating on held-out rows", file=sys.stderr)
    try:
        # The log describes the training run only.
        with runs.run_progress(args, options, session.started) as progress:
            own = dataclasses.replace(session, callbacks=progress.callbacks)
            sigmoids = held_out_sigmoids(problem, options, own)
    except OutOfTimeError:
        return model, "no time left", None
    except KeyboardInterrupt as interrupt:
        return model, "interrupted", signal_of(interrupt)
    return model.with_sigmoids(sigmoids), "", None


def _summary(fitted: Fit, options: TrainOptions, result: dict[str, Any]) -> list[str]:
    """What is said of a run at its end."""
    lines = runs.summary(result)
    if options.landmarks is not None:
        return lines
    return [describe_method(fitted.pairs, options, result["n_rows"]), *lines]


def _penalties(
    args: argparse.Namespace, classes: npt.NDArray[Any], codes: Int64Array
) -> Float64Array | None:
    """Penalty of each row; None without class weights."""
    weights = args.class_weight
    if isinstance(weights, dict) and classes.dtype.kind in "biuf":
        try:
            weights = {float(label): weight for label, weight in weights.items()}
        except ValueError:
            raise InputError(
                f"--class-weight {','.join(weights)} must name labels of {args.data}: "
                f"{common.format_labels(classes.tolist())}"
            ) from None
    return row_penalties(args.C, classes, codes, weights)
