"""``ooc-fw tune``: finds the best kernel, C and gamma for a data file, and trains with them."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from ooc_fw.cli import common, runs
from ooc_fw.cli.arguments import given_arguments
from ooc_fw.options import ModelOptions, option_fields
from ooc_fw.report.progress import Progress
from ooc_fw.system.errors import DeferredInterrupt
from ooc_fw.training.fit import describe
from ooc_fw.training.tuning import Point, TuneResult, tune


def run(args: argparse.Namespace) -> int:
    """Find the best kernel, C and gamma, and train with them."""
    names = {"task", "ordinary", "metric", *option_fields(ModelOptions)} - {"C", "gamma"}
    wanted = {name: vars(args)[name] for name in names if vars(args).get(name) is not None}
    if args.kernel is not None:
        wanted["kernel"] = [name.strip() for name in args.kernel.split(",")]
    place = runs.ModelPlace(args)
    with (
        common.open_data(args) as source,
        Progress(quiet=args.quiet, in_place=False) as progress,
        DeferredInterrupt() as interrupt,
    ):
        result = tune(
            source,
            groups=args.groups,
            callbacks=progress.callbacks,
            say=partial(common.say, args),
            Cs=args.C,
            gammas=args.gamma,
            **wanted,
        )
        interrupt.defer()  # from here on a signal cannot lose the model
        path = place.save(result.model, complete=result.fitted.complete)
    described = describe(result.fitted)
    facts = ("status", "certified_gap", "gap_scope", "n_rows", "n_support")
    values = {
        "metric": result.metric,
        "n_rows": result.n_rows,
        "best": _numbers(result.best),
        "linear": result.linear and dataclasses.asdict(result.linear),
        "points": [*map(_numbers, result.points)],
        "refit": {name: described[name] for name in facts},
        **runs.costs(args),
        "next": [_command(args, result, place.output)],
        "model": str(path),
    }
    common.print_result(args, values, _lines(result, described | values))
    runs.warn_of_faults(result.fitted, place.note(path))
    return place.status(result.signal)


def _numbers(point: Point) -> dict[str, Any]:
    """The fields of a candidate; gamma is None if the kernel does not use it."""
    return vars(point) | ({} if point.uses_gamma else {"gamma": None})


def _command(args: argparse.Namespace, result: TuneResult, model: Path) -> str:
    """The command that trains the best candidate on all rows without a time limit."""
    best = result.best
    words = ["ooc-fw", "train", args.data, f"--kernel={best.kernel}"]
    words += [f"--C={best.C}", *[f"--gamma={best.gamma}"] * best.uses_gamma]
    if args.task == "classification":
        words += ["--class-weight=balanced"] * (result.metric == "balanced_accuracy")
        plan = result.fitted.plan
        words += [] if plan.linear else [f"--landmarks={plan.landmarks or 'none'}"]
    names = "label labels x_name missing_labels task ordinary contamination epsilon degree coef0 "
    names += "tol seed memory_limit threads"
    words += given_arguments(args, names.split())
    return shlex.join([*words, "-o", str(model)])


def _lines(result: TuneResult, values: dict[str, Any]) -> list[str]:
    best = result.best
    rows = [["", "kernel", "C", "gamma", f"1 - {result.metric} %", "rows", "SVs", "s"]]
    for point in result.points:
        if point.error is not None:
            gamma = f"{point.gamma:.4g}" * point.uses_gamma
            numbers = [f"{point.C:.4g}", gamma, f"{100 * point.error:.3f}"]
            numbers += [str(point.n_rows), str(point.n_support), f"{point.seconds:.1f}"]
            rows.append(["*" * (point is best), point.kernel, *numbers])
    lines = [
        f"best: {best}, validation error {100 * (best.error or 0.0):.3f} % on {best.n_validated} "
        f"rows",
        *[str(result.linear)] * (result.linear is not None),
        f"trained on {values['refit']['n_rows']} of {result.n_rows} rows",
        *runs.summary(values | values["refit"]),
    ]
    lines = common.table(rows, 2) + common.wrapped(lines, 4)
    return [*lines, *common.next_lines(values["next"]), values["model"]]
