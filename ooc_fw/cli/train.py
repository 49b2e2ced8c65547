"""``ooc-fw train``: from a data file to a model file; and what other training commands share."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, FAILED
from ooc_fw.data.labels import is_label_number
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.parallel import Workers
from ooc_fw.data.rows import AnyArray, Float64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.data.statistics import sigma2, variance
from ooc_fw.data.views import SubsetSource, ranges_of
from ooc_fw.kernels.functions import Kernel, make_kernel, resolve_gamma
from ooc_fw.model.record import Model
from ooc_fw.options import KEEP, NOVELTY_C, TrainOptions
from ooc_fw.problem import row_penalties
from ooc_fw.report.progress import EventLog, Progress, Waiting
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
from ooc_fw.system.files import Output, check_outputs
from ooc_fw.training.checkpoint import EVERY_S, load_resumed
from ooc_fw.training.choice import check_options, plan_model
from ooc_fw.training.fit import FIELDS, Fit, describe, fit, make_problem, read_answers
from ooc_fw.training.held_out import before_calibration, calibrated
from ooc_fw.training.tasks import ordinary_rows

logger = logging.getLogger(__name__)


class ModelPlace:
    """Where the model of a run goes: to its output, or beside it.

    The model of a run that was cut off does not replace a file that stood at the output m.h5 when
    the run began: it goes to m.unfinished.h5. If it cannot be written at the end, it goes to the
    folder of temporary files, and the run has `failed`.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.unfinished = output
        self.failed = False
        if os.path.isfile(output):
            self.unfinished = output.with_name(f"{output.stem}.unfinished{output.suffix}")

    def save(self, model: Model, *, complete: bool = True) -> Path:
        """Write a model that is `complete`, or of a run that was cut off; returns its file."""
        path = self.output if complete else self.unfinished
        try:
            model.save(path)
        except (OSError, InputError) as error:
            self.failed = True
            other = Path(tempfile.mkdtemp(prefix="ooc-fw-model-"), path.name)
            try:
                model.save(other)
            except OSError:
                other.parent.rmdir()
                raise error from None
            reason = getattr(error, "strerror", None) or error
            logger.error("%s cannot be written (%s); the model is in %s", path, reason, other)
            return other
        return path

    def status(self, number: int | None) -> int:
        """Exit status of a run that the signal of this number ended, if one did."""
        return 128 + number if number else FAILED if self.failed else DONE

    def note(self, path: Path) -> str:
        """End of a sentence about a model that was written somewhere else."""
        return "" if path == self.output else f"; it is in {path}, and {self.output} is unchanged"


def model_place(args: argparse.Namespace, *others: Output) -> ModelPlace:
    """Place of a model, after a check of all outputs.

    A default name replaces an older model only.
    """
    given = vars(args)
    place = ModelPlace(common.output_of(args, args.data, ".model.h5"))
    is_own = None if args.output else common.is_model
    outputs = [Output("model", place.output, is_own=is_own), *others]
    if place.unfinished != place.output:
        outputs.append(Output("unfinished model", place.unfinished, is_own=common.is_model))
    if given.get("log") is not None:
        outputs.append(Output("log", args.log, streamed=True))
    check_outputs(outputs, [given.get("resume")])
    if given.get("checkpoint") is not None:  # which may replace what the run resumes from
        outputs.append(Output("checkpoint", args.checkpoint))
    check_outputs(outputs, common.inputs_of(args))
    return place


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
        log = open_log(args, options, **facts, kernel=problem.kernel.to_dict())
        with run_progress(args, log) as progress, DeferredInterrupt() as interrupt:
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
    method = [fitted.plan.method] if fitted.landmarks is None else []
    method += [fitted.plan.kind] * (fitted.plan.landmarks != plan.landmarks)
    warn_inexact(fitted.why_inexact(), result, place.note(Path(result["model"])))
    common.print_result(args, result, [result["model"]], [*method, *summary(result)])
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
    kernel = kernel_from(args, source, threads, workers)
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
                common.print_lines([] if args.quiet else ["calibrating on held-out rows"])
                # The log describes the training run only.
                with interrupt.raising(), run_progress(args) as progress:
                    callbacks = progress.callbacks
                    model = calibrated(fitted, options, replace(session, callbacks=callbacks))
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


def kernel_from(
    args: argparse.Namespace, source: RowSource, threads: int, workers: Workers | None
) -> Kernel:
    """Kernel of the arguments; gamma auto follows from statistics of the rows of `source`."""

    def value_of(statistic: Callable[..., float]) -> float:
        with Waiting("statistics", source.n_rows, quiet=args.quiet) as progress:
            return statistic(source, threads, dask=workers, on_rows=progress)

    average = partial(value_of, sigma2)
    spread = partial(value_of, variance)
    gamma = resolve_gamma(args.kernel, args.gamma, average, source.n_features, spread, args.task)
    return make_kernel(args.kernel, gamma=gamma, degree=args.degree, coef0=args.coef0)


def open_log(args: argparse.Namespace, options: TrainOptions, **facts: Any) -> EventLog | None:
    """Log of a run, which begins with its arguments and `facts`; None without ``--log``."""
    if args.log is None:
        return None
    begin = {name: getattr(args, name) for name in ("resume", "class_weight")}
    return EventLog(args.log, data=args.data, **begin, **facts, options=options.to_dict())


def run_progress(args: argparse.Namespace, log: EventLog | None = None) -> Progress:
    """Display of a run; other lines of a verbose one would break a line in place."""
    return Progress(quiet=args.quiet, in_place=not args.verbose, log=log)


def warn_inexact(why: str | None, result: Mapping[str, Any], note: str = "") -> None:
    """Warn why a gap is above the tolerance, if it is; `note` says where the model is."""
    words = "valid but less exact"
    if result["certified_gap"] is None:
        words = "valid, but nothing bounds how far it is from the optimum; see ooc-fw certify"
    if why is not None:
        logger.warning("%s; the model is %s%s", why, words, note)


def summary(result: Mapping[str, Any]) -> list[str]:
    """Sum a run of ``train`` up in a few lines for people."""
    certified = result["certified_gap"] is not None
    gap = common.format_gap(result["certified_gap" if certified else "sampled_gap"])
    kind = "certified over all rows" if certified else "over the rows drawn last, not certified"
    if result["gap_scope"] == "span":
        kind = f"{common.span_of(result)}, {kind}"
    if "classifiers" in result:
        kind += f", the worst of {len(result['classifiers'])} classifiers"
    what = "landmarks" if result["kind"] == "landmarks" else "support vectors"
    names = ("gamma", "C", "epsilon")
    numbers = [f"{name} {format_value(result[name])}" for name in names if name in result]
    return [
        f"{result['status']}: relative gap {gap}, {kind}",
        f"{result['n_support']} {what} of {result['n_rows']} rows, {result['kernel']} kernel, "
        f"{', '.join(numbers)}",
        f"{result['iterations']} iterations, {result['passes']:.1f} passes, "
        f"{result['seconds']:.1f} s, {result['peak_rss_bytes'] / 1e6:.0f} MB at the peak",
    ]
