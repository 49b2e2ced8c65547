"""``ooc-fw train``: from a data file to a model file.

Owns the training options, the report and where the model goes. The algorithm is
`ooc_fw.solve.loop.solve`.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common, stream
from ooc_fw.solve.deadline import Deadline
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.system.files import Output, check_outputs
from ooc_fw.system.memory import format_bytes, peak_rss_bytes
from ooc_fw.system.scratch import remove_abandoned

if TYPE_CHECKING:
    import numpy.typing as npt

    from ooc_fw.data.parallel import Workers
    from ooc_fw.data.rows import Float64Array, Int64Array
    from ooc_fw.data.sources import RowSource
    from ooc_fw.kernels.functions import Kernel
    from ooc_fw.model.pairs import PairSolution
    from ooc_fw.model.record import Model
    from ooc_fw.options import TrainOptions
    from ooc_fw.problem import Problem
    from ooc_fw.report.progress import EventLog, Progress
    from ooc_fw.solve.checkpoint import CheckpointPlan
    from ooc_fw.solve.session import Session

logger = logging.getLogger(__name__)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "train",
        help="train a model",
        description="Train a kernel support vector machine (squared hinge loss) on a file of any "
        "size and write the model. More than two classes have a machine for each pair of them. The "
        "duality gap is exact: unless --no-certify is given, a sweep over all rows certifies it.",
    )
    common.add_data_arguments(parser, text=False)
    parser.add_argument(
        "-o",
        "--output",
        metavar="MODEL",
        help="model file (default: DATA with .model.h5 in place of its suffix)",
    )
    add_training_arguments(parser)
    parser.add_argument(
        "--probability",
        action="store_true",
        help="let the model give probabilities: sigmoids fitted to rows held out from machines "
        "that are trained for that alone, most often in less time than the training takes; "
        "--max-time and Ctrl-C cover it too",
    )
    parser.add_argument(
        "--log",
        metavar="FILE",
        help="write one JSON object per event, for ooc-fw report and plot; --resume appends",
    )
    common.add_verbosity_arguments(parser)
    common.add_json_argument(parser)
    stream.add_arguments(parser)


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what decides how a run goes; `plan` has the same options."""
    _add_problem_arguments(parser)
    _add_method_arguments(parser)
    _add_stopping_arguments(parser)
    common.add_threads_argument(parser)
    common.add_dask_argument(parser)
    parser.add_argument(
        "--memory",
        type=common.byte_size,
        dest="memory_limit",
        metavar="SIZE",
        help="limit on the peak resident memory of the process, such as 1GiB (default: none)",
    )
    parser.add_argument(
        "--max-support",
        type=common.COUNT,
        metavar="N",
        help="support vectors at most: on noisy data a model of random rows and violators, soon "
        "(default: as many as memory affords; 10000 for --stream)",
    )


_MUCH_MEMORY = 1 << 30  # bytes of kernel values that are worth a sentence


# Names of kernels, step rules and so on are checked where they are defined: declaring them as
# choices would import numba for `ooc-fw --help`.


def _add_problem_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("problem")
    group.add_argument("--kernel", default="rbf", help="rbf (default), linear, poly or laplacian")
    group.add_argument(
        "--gamma",
        type=_gamma,
        default="auto",
        help="auto (default: from the average squared distance of two rows) or a number",
    )
    group.add_argument("--degree", type=common.DEGREE, default=2, help="of poly (default: 2)")
    group.add_argument("--coef0", type=common.COEF0, default=0.0, help="of poly (default: 0)")
    group.add_argument(
        "--C",
        type=common.POSITIVE,
        default=1.0,
        help="penalty of a unit squared slack (default: 1)",
    )
    group.add_argument(
        "--class-weight",
        type=_class_weight,
        metavar="balanced|LABEL=W,...",
        help="factors of C for rows of some classes, such as --class-weight=-1=1,1=9 (1 for those "
        "left out), or balanced: in inverse proportion to the rows of each",
    )


def _add_method_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("method")
    group.add_argument(
        "--method",
        default="auto",
        help="auto (default), fw, mfw, swap, swap2, partan, cvm or corrective",
    )
    group.add_argument("--lmo", default="auto", help="oracle: auto (default), full or sampled")
    group.add_argument(
        "--sample-size",
        type=common.COUNT,
        default=194,
        help="rows a sampled step looks at (default: 194)",
    )
    group.add_argument("--start", default="random", help="random (default) or farthest")
    group.add_argument(
        "--tol", type=common.POSITIVE, default=1e-3, help="target gap (default: 0.001)"
    )
    group.add_argument(
        "--stopping",
        default="relative",
        help="what is compared with --tol: relative (default), absolute or meb",
    )
    group.add_argument(
        "--max-iter", type=common.ITERATIONS, metavar="N", help="stop after N iterations"
    )
    group.add_argument(
        "--seed", type=common.SEED, default=0, help="of every random draw (default: 0)"
    )
    group.add_argument(
        "--no-certify",
        dest="certify",
        action="store_false",
        help="leave out the sweep over all rows: the gap is that of the rows drawn last, no bound "
        "on that of all rows, and the status is sampled, not converged",
    )


def _add_stopping_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("stopping and going on (durations: 90, 90s, 30m, 2h)")
    group.add_argument(
        "--max-time",
        type=_duration,
        metavar="TIME",
        help="end after this time with the model found so far, certified if there is time for it",
    )
    group.add_argument(
        "--checkpoint", metavar="FILE", help="write the state of the run there now and then"
    )
    group.add_argument(
        "--checkpoint-every",
        type=_duration,
        metavar="TIME",
        help="time between checkpoints (default: 60s)",
    )
    group.add_argument(
        "--resume",
        metavar="FILE",
        help="go on from a checkpoint of the same data and options; only --max-iter, --max-time "
        "and --threads may differ",
    )


def run(args: argparse.Namespace) -> int:
    """Train, save, report."""
    if args.stream:
        return stream.run(args)
    stream.check_absent(args)
    started = time.perf_counter()  # imports count: they are part of what the user waits for
    remove_abandoned()

    from ooc_fw.data.labels import encode_labels
    from ooc_fw.problem import Problem
    from ooc_fw.solve.loop import plan_run, warn_of_gamma
    from ooc_fw.solve.session import Session
    from ooc_fw.solve.state import Status
    from ooc_fw.training.fit import fit
    from ooc_fw.training.held_out import check_can_hold_out, with_time_for_sigmoids
    from ooc_fw.training.one_versus_one import describe_choice

    options = options_from(args)
    checkpoint = _checkpoint_plan(args)
    own = options if args.probability is False else with_time_for_sigmoids(options)
    interrupted = False  # while it was calibrated
    with common.open_data(args) as source, common.open_workers(args) as workers:
        place = common.ModelPlace(_output_path(args))
        with source.limited(Deadline(options.max_time, started).check):
            classes, codes = encode_labels(source)
            penalties = penalties_from(args, classes, codes)
            if args.probability:
                check_can_hold_out(classes, codes)
            plan = plan_run(source, options)
            if plan.limit is None and plan.kernel_rows > _MUCH_MEMORY and not args.quiet:
                size = format_bytes(plan.kernel_rows)
                print(f"without --memory, kernel values may take up to {size}", file=sys.stderr)
            kernel = kernel_from(args, source, min(options.threads, plan.max_threads), workers)
        logger.info(
            "%s: %d rows, %d features, %s as held in memory; kernel %s",
            source.name,
            source.n_rows,
            source.n_features,
            format_bytes(source.decoded_bytes),
            ", ".join(f"{name} {common.format_value(v)}" for name, v in kernel.to_dict().items()),
        )
        warn_of_gamma(source, kernel)
        log = _open_log(args, source, kernel, options)
        with _progress(args, options, log, started) as progress:
            problem = Problem(source, codes, kernel, penalties, classes)
            session = Session(progress.callbacks, workers, started, checkpoint, args.resume)
            fitted = fit(problem, own, session)
            model, pairs = fitted.model, fitted.pairs
            stopped = model.status == Status.INTERRUPTED
            output = place.of(stopped or args.probability)  # until it gives probabilities
            model.save(output)
            trained = time.perf_counter()
            if args.probability and not stopped:
                try:
                    sigmoids = _sigmoids(args, problem, options, session)
                    interrupted = sigmoids is None
                except OutOfTimeError:
                    sigmoids = None
                if sigmoids is not None:
                    model = model.with_sigmoids(sigmoids)
                if not interrupted:
                    model.save(place.output)
                    if output != place.output:
                        output.unlink()
                        output = place.output
            seconds = time.perf_counter() - started
            result = report(model, pairs, source, kernel, options, seconds, output)
            if args.probability:
                result["calibrated"] = model.calibrated
                result["calibration_seconds"] = time.perf_counter() - trained
            if log is not None:
                log.write("end", result)
    if not args.quiet:
        choice = describe_choice(pairs, options, source.n_rows)
        print(summary(choice, result), file=sys.stderr)
    if not Status(model.status).reached:
        print(_warning(model.status, options) + place.note(output), file=sys.stderr)
    if args.probability and not model.calibrated:
        print(
            f"ooc-fw: warning: {'interrupted' if interrupted or stopped else 'no time left'}: the "
            f"model gives no probabilities{place.note(output)}",
            file=sys.stderr,
        )
    if args.json:
        common.print_result(result, as_json=True)
    else:
        print(output)
    if interrupted:
        return 128 + signal.SIGINT
    if model.status != "interrupted":
        return 0
    signals = [pair.solution.signal for pair in pairs if pair.solution.signal is not None]
    return 128 + (signals[0] if signals else signal.SIGINT)


def _sigmoids(
    args: argparse.Namespace, problem: Problem, options: TrainOptions, session: Session
) -> list[tuple[float, float]] | None:
    """Sigmoids of all machines; their runs are shown but not logged, being other runs."""
    from ooc_fw.training.held_out import held_out_sigmoids

    if not args.quiet:
        print("calibrating on rows held out", file=sys.stderr)
    with _progress(args, options, None, session.started) as progress:
        own = dataclasses.replace(session, callbacks=progress.callbacks)
        return held_out_sigmoids(problem, options, own)


def report(
    model: Model,
    pairs: Sequence[PairSolution],
    source: RowSource,
    kernel: Kernel,
    options: TrainOptions,
    seconds: float,
    output: Path,
) -> dict[str, Any]:
    """Gather what ``--json`` prints; relative gaps, None for what is not known.

    Of several machines, counts are of all and gaps those of the worst; ``machines`` has each.
    """
    from ooc_fw.model.pairs import worst_gap

    solutions = [pair.solution for pair in pairs]
    first = solutions[0]
    several = len(solutions) > 1
    n_support = len(model.support_vectors)
    result: dict[str, Any] = {
        "status": model.status,
        "method": first.method,
        "lmo": first.lmo,
        "kernel": kernel.name,
        "gamma": kernel.gamma,
        "C": options.C,
        "tol": options.tol,
        "stopping": options.stopping,
        "n_rows": source.n_rows,
        "n_features": source.n_features,
        "n_classes": len(model.classes),
        "n_support": n_support,
        "objective": None if several else first.objective,
        "rho": None if several else first.rho,
        "sampled_gap": worst_gap(solution.sampled_gap for solution in solutions),
        "certified_gap": model.certified_gap,
        "pair_gap": worst_gap(solution.pair_gap for solution in solutions),
        "iterations": sum(solution.iterations for solution in solutions),
        "steps": {
            str(kind): sum(solution.steps[kind] for solution in solutions) for kind in first.steps
        },
        "kernel_evaluations": sum(solution.kernel_evaluations for solution in solutions),
        "passes": sum(solution.kernel_evaluations for solution in solutions)
        / (source.n_rows * n_support),
        "rows_read": source.rows_read if several else first.rows_read,
        "bytes_read": source.bytes_read if several else first.bytes_read,
        "seconds": seconds,
        "sweep_seconds": None if several else first.sweep_seconds,
        "peak_rss_bytes": peak_rss_bytes(),
        "model": str(output),
    }
    if several:
        result["machines"] = [
            {
                "negative": model.classes[pair.negative].item(),
                "positive": model.classes[pair.positive].item(),
                "status": str(pair.solution.status),
                "n_support": len(pair.solution.alpha),
                "certified_gap": pair.solution.certified_gap,
                "sampled_gap": pair.solution.sampled_gap,
                "objective": pair.solution.objective,
                "iterations": pair.solution.iterations,
                "seconds": pair.solution.seconds,
            }
            for pair in pairs
        ]
    return result


def summary(choice: str, result: dict[str, Any]) -> str:
    """Sum the run up in a few lines for people."""
    certified = result["certified_gap"] is not None
    gap = result["certified_gap"] if certified else result["sampled_gap"]
    kind = "certified over all rows" if certified else "over the rows drawn last, not certified"
    machines = result.get("machines", ())
    if machines:
        kind += f", the worst of {len(machines)} machines for pairs of classes"
    peak_mb = result["peak_rss_bytes"] / 1e6
    return (
        f"{choice}\n"
        f"{result['status']}: relative gap {common.format_gap(gap)}, {kind}\n"
        f"{result['n_support']} support vectors of {result['n_rows']} rows, "
        f"{result['kernel']} kernel, gamma {common.format_value(result['gamma'])}, "
        f"C {common.format_value(result['C'])}\n"
        f"{result['iterations']} iterations, {result['passes']:.1f} passes, "
        f"{result['seconds']:.1f} s, {peak_mb:.0f} MB at the peak"
    )


def _warning(status: str, options: TrainOptions) -> str:
    from ooc_fw.solve.state import why_not_converged

    why = why_not_converged(status, options.stopping, options.tol)
    return f"ooc-fw: warning: {why}; the model is valid but less exact"


def options_from(args: argparse.Namespace) -> TrainOptions:
    """Training options of the arguments."""
    from ooc_fw.options import TrainOptions

    names = {field.name for field in dataclasses.fields(TrainOptions)} - {"threads"}
    return TrainOptions(
        **{name: getattr(args, name) for name in names}, threads=common.thread_count(args)
    )


def kernel_from(
    args: argparse.Namespace, source: RowSource, threads: int, workers: Workers | None
) -> Kernel:
    """Kernel of the arguments; an automatic gamma takes the source's statistics."""
    from ooc_fw.data.statistics import sigma2
    from ooc_fw.kernels.functions import make_kernel, resolve_gamma
    from ooc_fw.report.progress import RowProgress

    def average_distance() -> float:
        with RowProgress("statistics", source.n_rows, quiet=args.quiet) as progress:
            return sigma2(source, threads, dask=workers, on_rows=progress)

    gamma = resolve_gamma(args.kernel, args.gamma, average_distance, source.n_features)
    return make_kernel(args.kernel, gamma=gamma, degree=args.degree, coef0=args.coef0)


def penalties_from(
    args: argparse.Namespace, classes: npt.NDArray[Any], codes: Int64Array
) -> Float64Array | None:
    """Penalty of each row, None without class weights."""
    from ooc_fw.training.penalties import row_penalties

    weights = args.class_weight
    if isinstance(weights, dict) and classes.dtype.kind in "biuf":
        try:
            weights = {float(label): weight for label, weight in weights.items()}
        except ValueError:
            raise InputError(
                f"--class-weight {','.join(weights)} must name labels of {args.data}: "
                f"{', '.join(common.format_label(label) for label in classes.tolist())}"
            ) from None
    return row_penalties(args.C, classes, codes, weights)


def _output_path(args: argparse.Namespace) -> Path:
    output = Path(args.output) if args.output else common.output_beside(args.data, ".model.h5")
    outputs = [Output("model", output)]
    if args.log is not None:
        outputs.append(Output("log", args.log, streamed=True))
    check_outputs(outputs, [args.resume])  # which the checkpoint may replace
    if args.checkpoint is not None:
        outputs.append(Output("checkpoint", args.checkpoint))
    check_outputs(outputs, [args.data, args.labels])
    return output


def _checkpoint_plan(args: argparse.Namespace) -> CheckpointPlan | None:
    from ooc_fw.solve.checkpoint import CheckpointPlan

    if args.checkpoint is None:
        if args.checkpoint_every is not None:
            raise InputError("--checkpoint-every needs --checkpoint FILE, where they go")
        return None
    if args.checkpoint_every is None:
        return CheckpointPlan(args.checkpoint)
    return CheckpointPlan(args.checkpoint, args.checkpoint_every)


def _open_log(
    args: argparse.Namespace, source: RowSource, kernel: Kernel, options: TrainOptions
) -> EventLog | None:
    from ooc_fw.report.progress import EventLog

    if args.log is None:
        return None
    log = EventLog(args.log, append=args.resume is not None)
    log.write(
        "start",
        {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "resume": args.resume,
            "data": args.data,
            "n_rows": source.n_rows,
            "n_features": source.n_features,
            "kernel": kernel.to_dict(),
            "options": dataclasses.asdict(options),
            "class_weight": args.class_weight,
        },
    )
    return log


def _progress(
    args: argparse.Namespace, options: TrainOptions, log: EventLog | None, started: float
) -> Progress:
    from ooc_fw.report.progress import Progress

    return Progress(
        quiet=args.quiet,
        verbose=args.verbose,
        tol=options.tol if options.stopping == "relative" else None,
        ends_at=None if options.max_time is None else started + options.max_time,
        log=log,
    )


def _duration(text: str) -> float:
    """Seconds of a duration: a number, or one with the unit s, m or h."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    unit = units.get(text[-1:], 0.0)
    seconds = float(text[:-1]) * unit if unit else float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError
    return seconds


_duration.__name__ = "duration"  # argparse names the type: invalid duration value: 'x'


def _class_weight(text: str) -> dict[str, float] | str:
    """Weight of each class by its label, or "balanced"."""
    if text == "balanced":
        return text
    parts = [part.rpartition("=") for part in text.split(",")]
    if not all(label for label, _, _ in parts):
        raise ValueError
    return {label: float(weight) for label, _, weight in parts}


_class_weight.__name__ = "class weight"


def _gamma(text: str) -> float | str:
    return text if text == "auto" else common.POSITIVE(text)
