"""What commands that train share: place of the model, display, log, summary of a run."""

from __future__ import annotations

import argparse
import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from ooc_fw.cli import common, gaps
from ooc_fw.cli.arguments import arguments_of, data_arguments
from ooc_fw.cli.commands import DONE, FAILED
from ooc_fw.data.parallel import Workers
from ooc_fw.data.sources import RowSource
from ooc_fw.data.statistics import sigma2, variance
from ooc_fw.kernels.functions import Kernel, make_kernel, resolve_gamma
from ooc_fw.model.record import Model, load_model
from ooc_fw.options import KernelOptions, TrainOptions
from ooc_fw.report.progress import EventLog, Progress, Waiting
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError, format_value
from ooc_fw.system.files import Output, check_outputs

logger = logging.getLogger(__name__)

_BOUNDS_LITTLE = 0.3  # gap of landmarks; of an exact model, half of the objective


class ModelPlace:
    """The output of a run, and the places that a model takes instead.

    A file that stood at the output m.h5 when the run began is not replaced by the model of a run
    that was cut off, nor a model there by a worse one: these go to m.unfinished.h5,
    m.unfinished2.h5, ... beside it, until a later one of the run takes its place. If the folder is
    gone or full at the end, the model goes to the current folder, or that of temporary files, and
    the run has `failed`.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.failed = False
        self.saved: Path | None = None
        self._stood = output.is_file()

    def save(self, model: Model, *, complete: bool = True) -> Path:
        """Write a model that is `complete`, or of a run that was cut off; returns its file."""
        path = self.output
        if self._stood and not (complete and self._is_best(model)):
            path = _free(path.with_name(f"{path.stem}.unfinished{path.suffix}"))
        try:
            model.save(path)
        except (OSError, InputError) as error:
            for folder in (os.getcwd, tempfile.gettempdir):
                with suppress(OSError):
                    other = _free(Path(folder(), path.name))
                    model.save(other)
                    self.failed = True
                    reason = getattr(error, "strerror", None) or error
                    words = "%s cannot be written (%s); the model is in %s"
                    logger.error(words, path, reason, other)
                    return other
            raise
        if self.saved not in (None, path):
            self.saved.unlink()
        self.saved = path
        return path

    def status(self, number: int | None) -> int:
        """Exit status of a run that the signal of this number ended, if one did."""
        return 128 + number if number else FAILED if self.failed else DONE

    def note(self, path: Path) -> str:
        """End of a sentence about a model that was written somewhere else."""
        return "" if path == self.output else f"; it is in {path}, and {self.output} is unchanged"

    def _is_best(self, model: Model) -> bool:
        """Whether `model` met its target, or there is none of a smaller gap at the output."""
        if Status(model.status).reached or model.status == Status.STREAMED:
            return True
        try:
            there = load_model(self.output)
        except (InputError, OSError):
            return True
        if there.certified_gap is None:
            return not Status(there.status).reached
        # A resumed run ends with the same gap, but for rounding.
        gap = model.certified_gap
        return gap is not None and 0.999 * gap <= there.certified_gap


def _free(path: Path) -> Path:
    """The path itself, or with the least number at the end of its stem that no file has."""
    others = (path.with_name(f"{path.stem}{number}{path.suffix}") for number in count(2))
    return next(name for name in chain([path], others) if not os.path.lexists(name))


def model_place(args: argparse.Namespace, *others: Output) -> ModelPlace:
    """Place of a model, after a check of all outputs.

    A default name replaces an older model only.
    """
    given = vars(args)
    if args.output is None and args.data == "-":
        raise InputError("a model trained on standard input needs a name; give one with -o")
    model = common.output_of(args, args.data, ".model.h5")
    is_own = None if args.output else common.is_model
    outputs = [Output("model", model, is_own=is_own), *others]
    if given.get("log") is not None:
        outputs.append(Output("log", args.log, streamed=True))
    resume = given.get("resume")
    check_outputs(outputs, [resume])  # the checkpoint may replace what it resumes from
    if given.get("checkpoint") is not None:
        outputs.append(Output("checkpoint", args.checkpoint))
    check_outputs(outputs, [name for name in args.inputs if name != resume])
    return ModelPlace(model)


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
    data = ", ".join(common.data_of(args))
    return EventLog(args.log, data=data, **begin, **facts, options=options.to_dict())


def run_progress(args: argparse.Namespace, log: EventLog | None = None) -> Progress:
    """Display of a run; other lines of a verbose one would break a line in place."""
    return Progress(quiet=args.quiet, in_place=not args.verbose, log=log)


def warn_inexact(why: str | None, result: Mapping[str, Any], note: str = "") -> None:
    """Warn that a gap is above the tolerance, or bounds little; `note` says where the model is."""
    gap = result["certified_gap"]
    words = "valid but less exact"
    if gap is None:
        words = "valid, but nothing bounds how far it is from the optimum; see ooc-fw certify"
    elif gap > _BOUNDS_LITTLE:
        words = f"far from the optimum: gap {float(gaps.format_gap(gap)):g}"
        words += ", which bounds next to nothing; judge it by ooc-fw evaluate"
        why = why or f"{result['status']} by a test that allows it"
    if why is not None:
        logger.warning("%s; the model is %s%s", why, words, note)


def summary(result: Mapping[str, Any]) -> list[str]:
    """Sum a run of ``train`` up in a few lines for people."""
    certified = result["certified_gap"] is not None
    name = "certified_gap" if certified else "sampled_gap"
    landmarks = result["kind"] == "landmarks"
    kind = "certified over all rows" if certified else "over the rows drawn last, not certified"
    if result["gap_scope"] == "span":
        kind = f"{gaps.span_of(result)}, {kind}"
    if "classifiers" in result:
        each = result["classifiers"]
        worst = max(each, key=lambda one: math.inf if one[name] is None else one[name])
        sides = gaps.sides_of(worst, of_one=landmarks)
        kind += f", the worst of {len(each)} classifiers: {sides}"
    what = "landmarks" if landmarks else "support vectors"
    size = f"{result['n_support']} {what} of {result['n_rows']} rows"
    epsilon = ""
    if "epsilon" in result:
        size = result["choice"]
        epsilon = f", epsilon {format_value(result['epsilon'])}"
    return [
        f"{result['status']}: relative gap {gaps.format_gap(result[name])}, {kind}",
        f"{size}, {result['kernel']} kernel, gamma {format_value(result['gamma'])}, "
        f"C {format_value(result['C'])}{epsilon}",
        f"{result['iterations']} iterations, {result['passes']:.1f} passes, "
        f"{result['seconds']:.1f} s, {result['peak_rss_bytes'] / 1e6:.0f} MB at the peak",
    ]


def given_of(args: argparse.Namespace) -> list[str]:
    """Options of the problem and of the run that are not the defaults."""
    given = data_arguments(args)
    for record in (KernelOptions, TrainOptions):
        given += arguments_of(record, vars(args))
    weights = args.class_weight
    if isinstance(weights, dict):
        weights = ",".join(f"{label}={weight!r}" for label, weight in weights.items())
    return given + [f"--class-weight={weights}"] * (weights is not None)
