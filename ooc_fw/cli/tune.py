"""``ooc-fw tune``: from a data file to the best kernel, C and gamma, and a model with them."""

from __future__ import annotations

import argparse
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ooc_fw.cli import common, train
from ooc_fw.cli.model_place import ModelPlace
from ooc_fw.model.metrics import METRICS
from ooc_fw.options import TrainOptions
from ooc_fw.report.progress import Progress, to_json
from ooc_fw.solver.state import Status
from ooc_fw.system import memory
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, reserved, write_output
from ooc_fw.system.interrupt import DeferredInterrupt
from ooc_fw.training.tuning import Point, TuneResult, tune

_SEARCH = (
    *("task", "ordinary", "contamination", "epsilon", "kernel", "degree", "coef0"),
    *("validation_share", "metric", "refit", "probability"),
)
"""Arguments that are fields of `TuneOptions`."""


def run(args: argparse.Namespace) -> int:
    """Find the best kernel, C and gamma, and train with them."""
    wanted = {name: getattr(args, name) for name in _SEARCH if getattr(args, name) is not None}

    with (
        common.open_data(args) as source,
        _place(args) as place,
        Progress(quiet=args.quiet, verbose=args.verbose, in_place=False) as progress,
        DeferredInterrupt(checked=True) as interrupt,
    ):
        interrupt.defer()
        result = tune(
            source,
            options=common.record_from(TrainOptions, args, C=TrainOptions.C),
            callbacks=progress.callbacks,
            on_point=None if args.quiet else _show,
            on_stage=None if args.quiet else _say,
            Cs=args.C,
            gammas=args.gamma,
            sigma2s=args.sigma2,
            **wanted,
        )
    values = {"data": ", ".join(common.data_of(args)), **result.to_dict(), "model": None}
    values["peak_rss_bytes"] = memory.peak_rss_bytes()
    values["next"] = [_command(args, result, place.output)]
    status = None if result.model is None else Status(result.model.status)
    if result.model is not None:
        path = place.save(result.model, complete=status != Status.INTERRUPTED)
        values["model"] = str(path)
    common.print_result(args, values, _lines(result, values))
    if status is not None and not status.reached:
        why = f"the last training: {status.explain('relative', args.tol)}"
        train.warn_inexact(why, values["refit"]["certified_gap"], place.note(path))
    if args.points:
        write_output(args.points, (to_json(values) + "\n").encode())
    interrupted = result.interrupted or status == Status.INTERRUPTED
    return place.status((result.signal or signal.SIGINT) if interrupted else None)


def _command(args: argparse.Namespace, result: TuneResult, model: Path) -> str:
    """Command that trains the best candidate on all rows, without a time limit."""
    given = {k: value for k, value in vars(args).items() if value is not None and k != "max_time"}
    given |= {name: getattr(result.best, name) for name in ("kernel", "C", "gamma", "class_weight")}
    if result.fitted is not None and result.task == "classification":
        given["landmarks"] = result.fitted.plan.landmarks
        given["exact"] = given["landmarks"] is None
    command = [*common.data_of(args), *train.given_of(argparse.Namespace(**given))]
    if result.task != "classification":
        names = "task", "ordinary", "contamination", "epsilon"
        given["ordinary"] = result.ordinary
        command += ["--C=1"] * (result.best.C == TrainOptions.C)  # which has another default
        command += [f"--{name}={given[name]}" for name in names if given.get(name) is not None]
    command += ["--probability"] * args.probability
    return shlex.join(["ooc-fw", "train", *command, "-o", str(model)])


def _lines(result: TuneResult, values: dict[str, Any]) -> list[str]:
    best = result.best
    lines = [
        *result.table().splitlines(),
        f"best: {best}, validation {METRICS[result.metric]} {100 * (best.error or 0.0):.3f} % on "
        f"{best.n_validated} rows",
        f"{result.seconds:.1f} s, {result.kernel_evaluations / 1e6:,.0f} million kernel values; "
        f"candidates: {result.ended}",
    ]
    refit = result.refit()
    if refit is not None:
        vectors, gap = f"{refit['n_support']} support vectors", refit["certified_gap"]
        part = refit["n_rows"] < result.n_learned
        rows = f"{refit['n_rows']} of {result.n_learned}" if part else f"all {result.n_learned}"
        if refit["gap_scope"] == "span":
            vectors = common.span_of(refit)
        lines.append(
            f"trained on {rows} rows: {refit['status']}, certified gap {common.format_gap(gap)}"
            f"{' over these rows alone' * part}, {vectors}, {refit['seconds']:.1f} s"
        )
    lines.append(f"{values['peak_rss_bytes'] / 1e6:.0f} MB at the peak")
    lines = common.wrapped(lines, 4) + common.next_lines(values["next"])
    return lines if values["model"] is None else [*lines, values["model"]]


def _say(sentence: str) -> None:
    common.print_lines(common.wrapped([sentence], 2))


def _show(point: Point) -> None:
    error, vectors = 100 * (point.error or 0.0), point.n_support
    _say(f"{point}: error {error:.3f} %, {vectors} vectors, {point.seconds:.1f} s")


@contextmanager
def _place(args: argparse.Namespace) -> Iterator[ModelPlace]:
    """Place of the model, after a check of all outputs."""
    if args.output and not args.refit:
        raise InputError("-o MODEL is written by the refit; leave out one of -o and --no-refit")
    model = common.model_output(args)
    outputs = [model] if args.refit else []
    if args.points:
        outputs.append(Output("points", args.points, streamed=True))
    with reserved(outputs, common.inputs_of(args)):
        yield ModelPlace(Path(model.path))
