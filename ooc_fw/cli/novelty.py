"""``ooc-fw train --task novelty``: from a data file to a model of one class."""

from __future__ import annotations

import argparse
import logging
import signal
import time
from typing import Any

from ooc_fw.cli import common, runs
from ooc_fw.cli.commands import DONE
from ooc_fw.options import TrainOptions
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import plan_run, warn_of_gamma
from ooc_fw.solver.shell import Deadline
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import peak_rss_bytes
from ooc_fw.training.novelty import check_novelty, fit_novelty

logger = logging.getLogger(__name__)


_OF_SOLUTION = (
    *("method", "lmo", "rho", "objective", "sampled_gap", "certified_gap", "pair_gap"),
    *("iterations", "kernel_evaluations", "rows_read", "bytes_read"),
)


def run(args: argparse.Namespace) -> int:
    """Train, save, report."""
    for option, given in (
        ("--class-weight", args.class_weight is not None),
        ("--probability", args.probability),
        ("--labels", args.labels is not None),
    ):
        if given:
            raise InputError(f"--task novelty looks at no labels; leave out {option}")
    options = common.record_from(TrainOptions, args)
    check_novelty(options, args.contamination)
    checkpoint = runs.checkpoint_plan(args)
    with common.open_data(args, labels=False) as source, common.open_workers(args) as workers:
        place = runs.model_place(args)
        with source.limited(Deadline(options.max_time, args.started).check):
            threads = min(options.threads, plan_run(source, options).max_threads)
            kernel = runs.kernel_from(args, source, threads, workers)
        warn_of_gamma(source, kernel)
        facts = {"n_rows": source.n_rows, "n_features": source.n_features}
        log = runs.open_log(args, options, **facts, kernel=kernel.to_dict(), task=args.task)
        with runs.run_progress(args, options, args.started, log) as progress:
            session = Session(progress.callbacks, workers, args.started, checkpoint, args.resume)
            fitted = fit_novelty(source, kernel, options, session, contamination=args.contamination)
            model, solution = fitted.model, fitted.solution
            output = place.of(model.status == Status.INTERRUPTED)
            model.save(output)
            result: dict[str, Any] = {
                "task": args.task,
                "status": model.status,
                "kind": model.kind,
                "gap_scope": model.gap_scope,
                "kernel": kernel.name,
                "gamma": kernel.gamma,
                "C": options.C,
                "tol": options.tol,
                "stopping": options.stopping,
                **facts,
                "n_support": len(model.support_vectors),
                "offset": model.offset,
                **{name: getattr(solution, name) for name in _OF_SOLUTION},
                "passes": solution.passes,
                "seconds": time.perf_counter() - args.started,
                "peak_rss_bytes": peak_rss_bytes(),
                "model": str(output),
            }
            if log is not None:
                log.write("end", result)
    if not args.quiet:
        common.print_lines(runs.summary(result))
    status = Status(model.status)
    if not status.reached:
        why = status.explain(options.stopping, options.tol)
        logger.warning("%s; the model is valid but less exact%s", why, place.note(output))
    common.print_result(args, result, [output])
    interrupted = status == Status.INTERRUPTED
    return 128 + (solution.signal or signal.SIGINT) if interrupted else DONE
