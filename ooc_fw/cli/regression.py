"""``ooc-fw train --task regression``: from a data file with targets to a model."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from typing import Any

from ooc_fw.cli import common, runs
from ooc_fw.cli.commands import DONE
from ooc_fw.data.labels import read_targets
from ooc_fw.options import TaskOptions, TrainOptions
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import warn_of_gamma
from ooc_fw.solver.shell import Deadline
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import peak_rss_bytes
from ooc_fw.training.regression import check_regression, fit_regression, plan_regression

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """Train, save, report."""
    for option, given in (
        ("--class-weight", args.class_weight is not None),
        ("--probability", args.probability),
    ):
        if given:
            raise InputError(f"--task regression has no classes; leave out {option}")
    options = common.record_from(TrainOptions, args)
    check_regression(options)
    checkpoint = runs.checkpoint_plan(args)
    epsilon = TaskOptions.epsilon if args.epsilon is None else args.epsilon
    with common.open_data(args) as source, common.open_workers(args) as workers:
        place = runs.model_place(args)
        with source.limited(Deadline(options.max_time, args.started).check):
            threads = plan_regression(source, options).max_threads
            targets = read_targets(source)
            kernel = runs.kernel_from(args, source, threads, workers)
        warn_of_gamma(source, kernel)
        facts = {"n_rows": source.n_rows, "n_features": source.n_features}
        log = runs.open_log(args, options, **facts, kernel=kernel.to_dict(), task=args.task)
        with runs.run_progress(args, options, args.started, log) as progress:
            session = Session(progress.callbacks, workers, args.started, checkpoint, args.resume)
            fitted = fit_regression(source, targets, kernel, options, session, epsilon=epsilon)
            model, solution = fitted.model, fitted.solution
            output = place.of(model.status == Status.INTERRUPTED)
            model.save(output)
            (own,) = model.classifiers
            result: dict[str, Any] = {
                "task": args.task,
                "status": model.status,
                "kind": model.kind,
                "gap_scope": fitted.gap_scope,
                "kernel": kernel.name,
                "gamma": kernel.gamma,
                "C": options.C,
                "epsilon": epsilon,
                "tol": options.tol,
                **facts,
                "n_support": len(model.support_vectors),
                "sampled_gap": own.sampled_gap,
                "certified_gap": own.certified_gap,
                "iterations": solution.iterations,
                "kernel_evaluations": solution.kernel_evaluations,
                "rows_read": solution.rows_read,
                "bytes_read": solution.bytes_read,
                "passes": solution.passes,
                "choice": fitted.choice,
                "seconds": time.perf_counter() - args.started,
                "peak_rss_bytes": peak_rss_bytes(),
                "model": str(output),
            }
            if log is not None:
                log.write("end", result)
    if not args.quiet:
        gap = common.format_gap(result["certified_gap"])
        scope = "to the optimum" if fitted.gap_scope == "all" else "within the span of landmarks"
        print(
            f"{result['status']}: relative gap {gap}, {scope}",
            f"{fitted.choice}, {kernel.name} kernel, gamma {common.format_value(kernel.gamma)}, "
            f"C {common.format_value(options.C)}, epsilon {common.format_value(epsilon)}",
            f"{result['iterations']} iterations, {result['passes']:.1f} passes, "
            f"{result['seconds']:.1f} s, {result['peak_rss_bytes'] / 1e6:.0f} MB at the peak",
            sep="\n",
            file=sys.stderr,
        )
    status = Status(model.status)
    if not status.reached:
        why = status.explain("relative", options.tol)
        logger.warning("%s; the model is valid but less exact%s", why, place.note(output))
    common.print_result(args, result, [output])
    interrupted = status == Status.INTERRUPTED
    return 128 + (solution.signal or signal.SIGINT) if interrupted else DONE
