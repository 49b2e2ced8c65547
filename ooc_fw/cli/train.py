"""``ooc-fw train``: from a data file to a model file."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import math
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.cli import common
from ooc_fw.cli.arguments import arguments_of
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.model_place import ModelPlace, model_place
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.parallel import Workers
from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.data.statistics import sigma2, variance
from ooc_fw.data.views import SubsetSource, ranges_of
from ooc_fw.kernels.functions import Kernel, make_kernel, resolve_gamma
from ooc_fw.landmarks import relative_target
from ooc_fw.model.record import Model
from ooc_fw.options import (
    KEEP,
    NOVELTY_C,
    TASKS,
    KernelOptions,
    TaskOptions,
    TrainOptions,
    option_fields,
)
from ooc_fw.problem import Problem, row_penalties
from ooc_fw.report.progress import EventLog, Progress, RowProgress, Waiting
from ooc_fw.solver.plan import Plan, Session, warn_of_gamma
from ooc_fw.solver.shell import Checkpoint, Deadline
from ooc_fw.solver.state import Status
from ooc_fw.system import memory
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.system.files import remove_abandoned
from ooc_fw.system.interrupt import DeferredInterrupt, check_interrupt, signal_of
from ooc_fw.training.checkpoint import EVERY_S, load_resumed
from ooc_fw.training.fit import Fit, Task, describe, fit, make_plan, task_of
from ooc_fw.training.held_out import before_calibration, calibrated
from ooc_fw.training.novelty import ordinary_rows
from ooc_fw.training.pairs import describe_method

logger = logging.getLogger(__name__)

_MUCH_MEMORY = 1 << 30
"""Bytes of kernel values from which a run without ``--memory`` says what it may take."""

_BOUNDS_LITTLE = 0.3  # gap of landmarks; of an exact model, half of the objective


def run(args: argparse.Namespace) -> int:
    """Train a model."""
    if args.stream:
        from ooc_fw.cli import stream

        return stream.run(args)
    if args.C is None:
        args.C = NOVELTY_C if args.task == "novelty" else TrainOptions.C
    task, options = _check(args)
    remove_abandoned()
    labels = args.ordinary is not None or "labels" not in task.without[1]
    with (
        common.open_data(args, labels=labels) as opened,
        common.open_workers(args) as workers,
        model_place(args) as place,
    ):
        resumed = None
        if args.resume is not None:
            resumed = load_resumed(args.resume)
            options = resumed.options(options)
        whole = without_offsets(opened, args.kernel)
        source, ordinary = _learned(args, whole)
        with source.limited(Deadline(options.max_time, args.started).check):
            problem = read_problem(args, task, source, options, workers)
        within = before_calibration(problem, options) if args.probability else options
        _describe_data(problem)
        some = None if ordinary is None else (ordinary, whole.n_rows)
        checkpoint = None
        if args.checkpoint is not None:
            checkpoint = Checkpoint(args.checkpoint, args.checkpoint_every or EVERY_S, some)
        session = Session((), workers, args.started, checkpoint)
        with Waiting("the choice of the model", quiet=args.quiet):
            plan = make_plan(problem, within, session)
        if args.dry_run:
            return _print_plan(args, plan)
        if not args.quiet and args.task != "regression":
            _announce(plan)
        facts = {"n_rows": source.n_rows, "n_features": source.n_features}
        facts |= {} if args.task == "classification" else {"task": args.task}
        log = open_log(args, options, **facts, kernel=problem.kernel.to_dict())
        with (
            run_progress(args, log) as progress,
            DeferredInterrupt(checked=True) as interrupt,
        ):
            session = dataclasses.replace(session, callbacks=progress.callbacks)
            if resumed is not None:
                resumed = dataclasses.replace(resumed, rows=ordinary)
            fitted = fit(problem, within, session, resumed, plan)
            interrupt.defer()  # the model is not lost any more
            progress.stop()  # calibration has a display of its own
            if ordinary is not None:
                fitted = fitted.renumbered(ordinary, whole.n_rows)
            result, output, number = _save(args, fitted, options, session, place)
            progress.end(result)
    if not args.quiet:
        exact = fitted.landmarks is None
        method = [describe_method(fitted.pairs, fitted.plan)] if exact else []
        method += [fitted.plan.kind] * (fitted.plan.landmarks != plan.landmarks)
        common.print_lines([*method, *summary(result)])
    why = fitted.why_inexact()
    if why is not None or (result["certified_gap"] or 0.0) > _BOUNDS_LITTLE:
        why = why or f"{result['status']} within {options.tol:g} by the {options.stopping} test"
        warn_inexact(why, result["certified_gap"], place.note(output))
    common.print_result(args, result, [output])
    return place.status(number)


def _check(args: argparse.Namespace) -> tuple[Task, TrainOptions]:
    if args.data == "-" or args.zero_based:
        option = "--zero-based" if args.zero_based else "text on standard input"
        raise InputError(f"{option} goes with --stream only; add that, or convert the text")
    if args.keep != KEEP.default:
        raise InputError("--keep goes with --stream only; --landmarks N bounds other models")
    if args.checkpoint is None and args.checkpoint_every is not None:
        raise InputError("--checkpoint-every needs --checkpoint FILE")
    task = task_of(args.task)
    for name in option_fields(TaskOptions):
        if getattr(args, name) is not None and name not in task.fields:
            owner = next(other for other in TASKS if name in task_of(other).fields)
            raise InputError(f"--{name} goes with --task {owner}; add that, or leave it out")
    why, names = task.without
    if args.ordinary is not None:
        if args.task != "novelty":
            raise InputError("--ordinary goes with --task novelty; add that, or leave it out")
        names = tuple(name for name in names if name != "labels")
    for name in names:
        if getattr(args, name):
            option = name.replace("_", "-")
            raise InputError(f"--task {args.task} {why}; leave out --{option}")
    options = common.record_from(TrainOptions, args)
    task.check(options)
    return task, options


def _learned(args: argparse.Namespace, source: RowSource) -> tuple[RowSource, Int64Array | None]:
    """Rows that are learned, and their numbers if these are some alone."""
    if args.ordinary is None:
        return source, None
    _, is_ordinary, words = ordinary_rows(source, args.ordinary)
    if not args.quiet:
        common.print_lines([words])
    rows = np.flatnonzero(is_ordinary)
    return SubsetSource(source, ranges_of(rows)), rows


def read_problem(
    args: argparse.Namespace,
    task: Task,
    source: RowSource,
    options: TrainOptions,
    workers: Workers | None,
) -> Any:
    """Problem of the arguments, after passes over labels and for statistics."""
    answers, threads = task.read(source, options, weighted=args.class_weight is not None)
    penalties = None if args.class_weight is None else _penalties(args, **answers)
    given = {name: getattr(args, name) for name in task.fields}
    given = {name: value for name, value in given.items() if value is not None}
    kernel = kernel_from(args, source, threads, workers)
    return task.problem(source=source, kernel=kernel, penalties=penalties, **answers, **given)


def _penalties(
    args: argparse.Namespace, codes: npt.NDArray[Any], class_labels: npt.NDArray[Any]
) -> Float64Array | None:
    weights = args.class_weight
    if isinstance(weights, dict) and class_labels.dtype.kind in "biuf":
        try:
            weights = {float(label): weight for label, weight in weights.items()}
        except ValueError:
            raise InputError(
                f"--class-weight {','.join(weights)} must name labels of {args.data}: "
                f"{common.format_labels(class_labels.tolist())}"
            ) from None
    return row_penalties(args.C, class_labels, codes, weights)


def kernel_from(
    args: argparse.Namespace, source: RowSource, threads: int, workers: Workers | None
) -> Kernel:
    """Kernel of the arguments; gamma auto follows from statistics of the rows of `source`."""

    def value_of(statistic: Callable[..., float]) -> float:
        with RowProgress("statistics", source.n_rows, quiet=args.quiet) as progress:
            return statistic(source, threads, dask=workers, on_rows=progress)

    average, spread = partial(value_of, sigma2), partial(value_of, variance)
    gamma = resolve_gamma(args.kernel, args.gamma, average, source.n_features, spread, args.task)
    return make_kernel(args.kernel, gamma=gamma, degree=args.degree, coef0=args.coef0)


def _describe_data(problem: Problem) -> None:
    """Log what the problem is, and warn of a gamma that does not fit the rows."""
    source, kernel = problem.source, problem.kernel
    words = [f"{name} {common.format_value(v)}" for name, v in kernel.to_dict().items()]
    sizes = source.n_rows, source.n_features, memory.format_bytes(source.decoded_bytes)
    line = "%s: %d rows, %d features, %s as held in memory; kernel %s"
    logger.info(line, source.name, *sizes, ", ".join(words))
    warn_of_gamma(source, kernel)


def _announce(plan: Plan) -> None:
    """Say what will be trained before it takes its time, and what memory it may take."""
    lines = [plan.kind] if plan.kind else []
    whose = "landmarks" if plan.landmarks else "an exact model"
    n_bytes = plan.memory.kernel_values
    if plan.memory.limit is None and n_bytes > _MUCH_MEMORY:
        size = memory.format_bytes(n_bytes)
        lines += [f"without --memory, the kernel values of {whose} may take up to {size}"]
    common.print_lines(lines)


def _save(
    args: argparse.Namespace,
    fitted: Fit,
    options: TrainOptions,
    session: Session,
    place: ModelPlace,
) -> tuple[dict[str, Any], Path, int | None]:
    """Save the model, calibrate it; its description, its file, and a signal that ended the run."""
    model, trained, number = fitted.model, time.perf_counter(), fitted.signal
    interrupted = model.status == Status.INTERRUPTED  # else only a larger model was
    if interrupted and number is None:
        number = signal.SIGINT
    # Until it gives probabilities, the model does not replace one that may give them.
    output = place.save(model, complete=not (args.probability or interrupted))
    more = {}
    if args.probability:
        missing = "interrupted"
        if number is None:
            model, missing, number = _calibrate(args, fitted, options, session)
        if number is None:
            first, output = output, place.save(model)
            if output != first:
                first.unlink()
        if missing:
            note = place.note(output)
            logger.warning("%s: the model gives no probabilities%s", missing, note)
        seconds = time.perf_counter() - trained
        more = {"calibrated": model.calibrated, "calibration_seconds": seconds}
    result = {
        **describe(fitted),
        "seconds": time.perf_counter() - args.started,
        "peak_rss_bytes": memory.peak_rss_bytes(),
        "model": str(output),
    }
    return result | more, output, number


def _calibrate(
    args: argparse.Namespace, fitted: Fit, options: TrainOptions, session: Session
) -> tuple[Model, str, int | None]:
    """The model with sigmoids; or without, the reason, and the signal that is the reason."""
    if not args.quiet:
        print("calibrating on held-out rows", file=sys.stderr)
    try:
        # The log describes the training run only.
        with run_progress(args, what="calibration") as progress:
            session = dataclasses.replace(session, callbacks=progress.callbacks)
            model = calibrated(fitted, options, session)
            check_interrupt()
            return model, "", None
    except OutOfTimeError:
        return fitted.model, "no time left", None
    except KeyboardInterrupt as interrupt:
        return fitted.model, "interrupted", signal_of(interrupt)


def open_log(args: argparse.Namespace, options: TrainOptions, **facts: Any) -> EventLog | None:
    """Log of a run, which begins with its arguments and `facts`; None without ``--log``."""
    if args.log is None:
        return None
    begin = {name: getattr(args, name) for name in ("resume", "class_weight")}
    data = ", ".join(common.data_of(args))
    return EventLog(args.log, data=data, **begin, **facts, options=options.to_dict())


def run_progress(args: argparse.Namespace, log: EventLog | None = None, what: str = "") -> Progress:
    """Display of a run."""
    return Progress(quiet=args.quiet, verbose=args.verbose, log=log, what=what)


def warn_inexact(why: str, gap: float | None, note: str) -> None:
    """Warn that the certified gap is above the tolerance; `note` says where the model is."""
    words = "valid but less exact"
    if gap is None:
        words = "valid, but nothing bounds how far it is from the optimum; see ooc-fw certify"
    if gap is not None and gap > _BOUNDS_LITTLE:
        words = f"far from the optimum: gap {float(common.format_gap(gap)):g}"
        words += ", which bounds next to nothing; judge it by ooc-fw evaluate"
    logger.warning("%s; the model is %s%s", why, words, note)


def summary(result: dict[str, Any]) -> list[str]:
    """Sum a run of ``train`` up in a few lines for people."""
    gap, kind = result["certified_gap"], "certified over all rows"
    certified, read, vectors, epsilon = gap is not None, "", "support vectors", ""
    if not certified:
        gap, kind = result["sampled_gap"], "over the rows drawn last, not certified"
    if "kind" not in result:
        kind, read = "over the rows read last, not certified", " read once"
    elif result["kind"] == "landmarks":
        vectors, kind = "landmarks", "to the optimum"
        if result["gap_scope"] == "span":
            kind = common.span_of(result)
        kind += ", certified over all rows" if certified else ", not certified"
    if "classifiers" in result:
        each, of_one = result["classifiers"], vectors == "landmarks"
        name = "certified_gap" if certified else "sampled_gap"
        worst = max(each, key=lambda one: math.inf if one[name] is None else one[name])
        kind += f", the worst of {len(each)} {'classes' if of_one else 'pairs of classes'}: "
        kind += common.sides_of(worst, of_one=of_one)
        if result.get("stopping") == "relative" and not Status(result["status"]).reached:
            target = relative_target(result["tol"]) if of_one else result["tol"]
            gaps = [one["certified_gap"] for one in each]
            n_reached = sum(gap is not None and gap <= target for gap in gaps)
            kind += f"; {n_reached} of {len(each)} are certified within {target:.3g}"
    words = common.gap_in_words(gap, result.get("kind"), result.get("gap_scope"), certified)
    size = f"{result['n_support']} {vectors} of {result['n_rows']} rows{read}"
    if "epsilon" in result:
        size, epsilon = result["choice"], f", epsilon {common.format_value(result['epsilon'])}"
    return [
        f"{result['status']}: relative gap {common.format_gap(gap)}, {kind}",
        *words,
        f"{size}, {result['kernel']} kernel, gamma {common.format_value(result['gamma'])}, "
        f"C {common.format_value(result['C'])}{epsilon}",
        f"{result['iterations']} iterations, {result['passes']:.1f} passes, "
        f"{result['seconds']:.1f} s, {result['peak_rss_bytes'] / 1e6:.0f} MB at the peak",
    ]


def given_of(args: argparse.Namespace) -> list[str]:
    """Options of the problem and of the run that are not the defaults."""
    given = common.data_arguments(args)
    for record in (KernelOptions, TrainOptions):
        given += arguments_of(record, vars(args))
    weights = args.class_weight
    if isinstance(weights, dict):
        weights = ",".join(f"{label}={weight!r}" for label, weight in weights.items())
    return given + [f"--class-weight={weights}"] * (weights is not None)


def _print_plan(args: argparse.Namespace, plan: Plan) -> int:
    """Print what ``--dry-run`` asks for: the kind of model, and how the memory is divided."""
    room, terms = plan.memory, plan.memory.terms()
    result = {
        "choice": plan.kind,
        "kind": "exact" if plan.landmarks is None else "landmarks",
        "landmarks": plan.landmarks,
        "memory_limit": room.limit,
        "memory": terms,
        "max_vertices": room.max_vertices,
        "max_threads": room.max_threads,
    }
    limit = "no limit given"
    if room.limit is not None:
        limit = f"limit {memory.format_bytes(room.limit)}"
    lines = [
        plan.kind,
        "",
        *(f"{name:<38}{memory.format_bytes(size):>10}" for name, size in terms.items()),
        f"{'in all':<38}{memory.format_bytes(sum(terms.values())):>10}  ({limit})",
    ]
    common.print_result(args, result, common.wrapped(lines, 2))
    return DONE
