"""``ooc-fw train``: from a data file to a model file."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common, novelty, regression, stream
from ooc_fw.options import DURATION, KernelOptions, Option, TrainOptions
from ooc_fw.report.progress import Waiting
from ooc_fw.solver.deadline import Deadline
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.system.interrupt import signal_of
from ooc_fw.system.memory import format_bytes, peak_rss_bytes
from ooc_fw.system.scratch import remove_abandoned

if TYPE_CHECKING:
    import numpy.typing as npt

    from ooc_fw.data.parallel import Workers
    from ooc_fw.data.rows import Float64Array, Int64Array
    from ooc_fw.data.sources import RowSource
    from ooc_fw.model.record import Model
    from ooc_fw.problem import Problem
    from ooc_fw.solver.session import Session
    from ooc_fw.system.memory import LandmarkPlan, MemoryPlan
    from ooc_fw.training.fit import Fit

logger = logging.getLogger(__name__)

_MUCH_MEMORY = 1 << 30
"""Bytes of kernel values from which a run without ``--memory`` says what it may take."""


def add_commands(commands: common.Commands) -> None:
    """Declare the command."""
    parser = commands.add("train", run)
    common.add_data(parser, "; with --stream LIBSVM text, or - for text on standard input")
    common.add_model_output(parser)
    add_training_arguments(parser)
    parser.add_argument(
        "--probability",
        action="store_true",
        help="let the model give probabilities, by sigmoids that are fitted to held-out rows. The "
        "classifiers that this needs are trained in less time than the model as a rule; --max-time "
        "and Ctrl-C cover it, too",
    )
    parser.add_argument(
        "--log",
        metavar="FILE",
        help="write one JSON object per event, for ooc-fw report and plot; --resume appends",
    )
    novelty.add_arguments(parser)
    regression.add_arguments(parser)
    common.add_results(parser)
    stream.add_arguments(parser)


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what decides how a run goes; `plan` has the same options."""
    group = parser.add_argument_group("problem")
    common.add_options(group, KernelOptions)
    common.add_options(group, TrainOptions, ["C"])
    group.add_argument(
        "--class-weight",
        type=common.argument_type(_class_weight),
        metavar="balanced|LABEL=W,...",
        help="factors of C for rows of some classes, such as --class-weight=-1=1,1=9 (1 for those "
        "left out), or balanced: inversely proportional to the rows of each class",
    )
    names = ("method", "lmo", "sample_size", "start", "tol", "stopping", "max_iter", "seed")
    common.add_options(parser.add_argument_group("method"), TrainOptions, (*names, "certify"))
    group = parser.add_argument_group("stopping and resuming (durations: 90, 90s, 30m, 2h)")
    common.add_options(group, TrainOptions, ["max_time"])
    group.add_argument(
        "--checkpoint", metavar="FILE", help="write the state of the run there now and then"
    )
    every = Option("time between checkpoints", default_help="60s", **DURATION)
    common.add_option(group, "checkpoint_every", every)
    group.add_argument(
        "--resume",
        metavar="FILE",
        help="resume from a checkpoint of the same data and options; only --max-iter, --max-time "
        "and --threads may differ",
    )
    common.add_work(parser)
    common.add_options(parser, TrainOptions, ["memory_limit", "max_support", "landmarks", "exact"])


def run(args: argparse.Namespace) -> int:
    """Train a model.

    Train a kernel support vector machine (squared hinge loss) on a file of any size and write the
    model. For more than two classes, a binary classifier is trained for each pair of them. The
    duality gap is exact: unless --no-certify is given, a pass over all rows certifies it. Where the
    optimum is out of reach, the model has landmarks: see `ooc-fw help noisy`.
    """
    if args.stream:
        return stream.run(args)
    started = time.perf_counter()  # imports count: the user waits for them
    _check_options(args)
    remove_abandoned()
    if args.task == "novelty":
        return novelty.run(args, started)
    if args.task == "regression":
        return regression.run(args, started)

    from ooc_fw.solver.session import Session
    from ooc_fw.solver.state import Status
    from ooc_fw.training.choice import choose
    from ooc_fw.training.fit import fit
    from ooc_fw.training.held_out import check_can_hold_out, with_time_for_sigmoids
    from ooc_fw.training.result import describe

    options = common.record_from(TrainOptions, args)
    checkpoint = common.checkpoint_plan(args)
    missing = ""  # reason why the model gives no probabilities
    number: int | None = None  # of the signal that ended the run
    with common.open_data(args) as source, common.open_workers(args) as workers:
        place = common.model_place(args)
        with source.limited(Deadline(options.max_time, started).check):
            problem, plan = read_problem(args, source, options, workers)
        if args.probability:
            check_can_hold_out(problem.classes, problem.codes)
        _announce(problem, plan, args.quiet)
        own = with_time_for_sigmoids(options) if args.probability else options
        session = Session((), workers, started, checkpoint, args.resume)
        deadline = session.deadline(own)
        with source.limited(deadline.check), Waiting("the choice of the model", quiet=args.quiet):
            choice = choose(problem, own, session)
        if not args.quiet:
            print(choice.reason, file=sys.stderr, flush=True)  # before it takes its time
        facts = {"n_rows": source.n_rows, "n_features": source.n_features}
        log = common.open_log(args, options, **facts, kernel=problem.kernel.to_dict())
        own, options = choice.settle(own), choice.settle(options)
        with common.run_progress(args, options, started, log) as progress:
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
                "seconds": time.perf_counter() - started,
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
    return common.DONE if number is None else 128 + number


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
) -> tuple[Problem, MemoryPlan | LandmarkPlan]:
    """Problem of the arguments, after passes over labels and for statistics, and its memory."""
    from ooc_fw.problem import Problem
    from ooc_fw.training.choice import read_classes

    weighted = args.class_weight is not None
    classes, codes, plan = read_classes(source, options, weighted=weighted)
    penalties = _penalties(args, classes, codes)
    threads = min(options.threads, plan.max_threads)
    kernel = common.kernel_from(args, source, threads, workers)
    return Problem(source, codes, kernel, penalties, classes), plan


def _announce(problem: Problem, plan: MemoryPlan | LandmarkPlan, quiet: bool) -> None:
    """Say what the problem is, and warn of a gamma that does not fit the rows."""
    from ooc_fw.solver.setup import warn_of_gamma

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
    problem: Problem,
    options: TrainOptions,
    session: Session,
) -> tuple[Model, str, int | None]:
    """The model with probabilities; or without, the reason, and the signal that is the reason."""
    from ooc_fw.solver.state import Status
    from ooc_fw.training.held_out import held_out_sigmoids

    model = fitted.model
    if model.status == Status.INTERRUPTED:
        return model, "interrupted", fitted.signal or signal.SIGINT
    if not args.quiet:
        print("calibrating on held-out rows", file=sys.stderr)
    try:
        # The log describes the training run only.
        with common.run_progress(args, options, session.started) as progress:
            own = dataclasses.replace(session, callbacks=progress.callbacks)
            sigmoids = held_out_sigmoids(problem, options, own)
    except OutOfTimeError:
        return model, "no time left", None
    except KeyboardInterrupt as interrupt:
        return model, "interrupted", signal_of(interrupt)
    return model.with_sigmoids(sigmoids), "", None


def _summary(fitted: Fit, options: TrainOptions, result: dict[str, Any]) -> list[str]:
    """What is said of a run at its end."""
    from ooc_fw.training.pairs import describe_method

    lines = stream.summary(result)
    if options.landmarks is not None:
        return lines
    return [describe_method(fitted.pairs, options, result["n_rows"]), *lines]


def _penalties(
    args: argparse.Namespace, classes: npt.NDArray[Any], codes: Int64Array
) -> Float64Array | None:
    """Penalty of each row; None without class weights."""
    from ooc_fw.training.penalties import row_penalties

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


def _class_weight(text: str) -> dict[str, float] | str:
    """Weight of each class by its label, or "balanced"."""
    if text == "balanced":
        return text
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        weights = {label: float(weight) for label, _, weight in parts}
    except ValueError:
        weights = {}
    if not weights or "" in weights:
        raise InputError(f"must be class weights LABEL=W,... or balanced, not {text!r}")
    return weights
