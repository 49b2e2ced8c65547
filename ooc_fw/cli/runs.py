"""What commands that train share: the kernel, where models go, the log, progress and summary."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from ooc_fw.cli.common import format_gap, format_value, output_beside
from ooc_fw.data.parallel import Workers
from ooc_fw.data.sources import RowSource
from ooc_fw.data.statistics import sigma2, variance
from ooc_fw.kernels.functions import Kernel, make_kernel, resolve_gamma
from ooc_fw.options import TrainOptions
from ooc_fw.report.progress import EventLog, Progress, RowProgress
from ooc_fw.solver.shell import CheckpointPlan
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs


def kernel_from(
    args: argparse.Namespace, source: RowSource, threads: int, workers: Workers | None
) -> Kernel:
    """Kernel of the arguments; gamma auto follows from statistics of the rows of `source`."""

    def found(statistic: Callable[..., float]) -> float:
        with RowProgress("statistics", source.n_rows, quiet=args.quiet) as progress:
            return statistic(source, threads, dask=workers, on_rows=progress)

    average, spread = partial(found, sigma2), partial(found, variance)
    gamma = resolve_gamma(args.kernel, args.gamma, average, source.n_features, spread)
    return make_kernel(args.kernel, gamma=gamma, degree=args.degree, coef0=args.coef0)


def checkpoint_plan(args: argparse.Namespace) -> CheckpointPlan | None:
    """Where ``--checkpoint`` writes the state of a run, and how often."""
    if args.checkpoint is not None:
        return CheckpointPlan(args.checkpoint, args.checkpoint_every or CheckpointPlan.every_s)
    if args.checkpoint_every is not None:
        raise InputError("--checkpoint-every needs --checkpoint FILE")
    return None


class ModelPlace:
    """Where a model is written: to its output, or beside it after an interrupt.

    A file that stood at the output when the run began is not replaced by the model of a run that
    was interrupted: that goes to m.interrupted.h5, m.interrupted2.h5, ... beside m.h5.
    """

    def __init__(self, output: Path) -> None:
        self.output = self._beside = output
        numbers = count(1)
        while os.path.lexists(self._beside) and output.is_file():
            number = next(numbers)
            word = "interrupted" if number == 1 else f"interrupted{number}"
            self._beside = output.with_name(f"{output.stem}.{word}{output.suffix}")

    def of(self, interrupted: bool) -> Path:
        """File for the model of a run that was interrupted or not."""
        return self._beside if interrupted else self.output

    def note(self, path: Path) -> str:
        """End of a sentence about a model that was written beside the output."""
        return "" if path == self.output else f"; it is in {path}, and {self.output} is unchanged"


def model_place(args: argparse.Namespace) -> ModelPlace:
    """Place of the model of ``train``, after a check of all outputs that are named."""
    if args.output is None and args.data == "-":
        raise InputError("a model trained on standard input needs a name; give one with -o")
    output = Path(args.output) if args.output else output_beside(args.data, ".model.h5")
    outputs = [Output("model", output)]
    if args.log is not None:
        outputs.append(Output("log", args.log, streamed=True))
    check_outputs(outputs, [args.resume])  # the checkpoint may replace what it resumes from
    if args.checkpoint is not None:
        outputs.append(Output("checkpoint", args.checkpoint))
    check_outputs(outputs, [args.data, args.labels])
    return ModelPlace(output)


def open_log(args: argparse.Namespace, options: TrainOptions, **facts: Any) -> EventLog | None:
    """Log of a run, which begins with its arguments and `facts`; None without ``--log``."""
    if args.log is None:
        return None
    begin = {name: getattr(args, name) for name in ("resume", "data", "class_weight")}
    return EventLog.begin(args.log, **begin, **facts, options=asdict(options))


def run_progress(
    args: argparse.Namespace, options: TrainOptions, started: float, log: EventLog | None = None
) -> Progress:
    """Display of a run that began at `started`, a reading of `time.perf_counter`."""
    return Progress(
        quiet=args.quiet,
        verbose=args.verbose,
        tol=options.tol if options.stopping == "relative" else None,
        ends_at=None if options.max_time is None else started + options.max_time,
        log=log,
    )


def summary(result: dict[str, Any]) -> list[str]:
    """Sum a run of ``train`` up in a few lines for people."""
    gap, kind = result["certified_gap"], "certified over all rows"
    read, vectors = "", "support vectors"
    if gap is None:
        gap, kind = result["sampled_gap"], "over the rows drawn last, not certified"
    if "kind" not in result:
        kind, read = "over the rows read last, not certified", " read once"
    elif result["kind"] == "landmarks":
        vectors = "landmarks"
        kind = f"within the span of the {result['n_support']} landmarks, " + (
            "not certified" if result["certified_gap"] is None else "certified over all rows"
        )
    if "machines" in result:
        of = "classes" if vectors == "landmarks" else "pairs of classes"
        kind += f", the worst of {len(result['machines'])} {of}"
    return [
        f"{result['status']}: relative gap {format_gap(gap)}, {kind}",
        f"{result['n_support']} {vectors} of {result['n_rows']} rows{read}, "
        f"{result['kernel']} kernel, gamma {format_value(result['gamma'])}, "
        f"C {format_value(result['C'])}",
        f"{result['iterations']} iterations, {result['passes']:.1f} passes, "
        f"{result['seconds']:.1f} s, {result['peak_rss_bytes'] / 1e6:.0f} MB at the peak",
    ]
