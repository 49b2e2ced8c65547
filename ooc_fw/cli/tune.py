"""``ooc-fw tune``: from a data file to the best C and gamma, and a model trained with them."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common
from ooc_fw.options import KernelOptions, Option, TrainOptions, option_fields
from ooc_fw.report.progress import Progress, to_json
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs, write_output

if TYPE_CHECKING:
    from ooc_fw.training.tuning import Point, TuneResult

logger = logging.getLogger(__name__)

_MOST_VALUES = 1000
"""Most values of a range such as 2^-5..2^15."""


def add_commands(commands: common.Commands) -> None:
    """Declare the command."""
    parser = commands.add("tune", run)
    common.add_data(parser)
    common.add_model_output(parser)
    grid = parser.add_argument_group("grid")
    grid.add_argument(
        "--preset",
        metavar="{large,small}",
        default="large",
        help="large (default): C in 2^0..2^12, gamma auto, one validation part; small: C in "
        "2^-5..2^15, sigma^2 in 2^-15..2^5, 10 folds; the options below replace parts of it",
    )
    positive = option_fields(TrainOptions)["C"][1]
    _add_values(grid, "--C", positive, "values of C")
    width = grid.add_mutually_exclusive_group()
    gamma = option_fields(KernelOptions)["gamma"][1]
    _add_values(width, "--gamma", gamma, "values of gamma, such as auto and scale")
    sigma2 = "values of sigma^2 of the rbf kernel, gamma = 1/(2 sigma^2)"
    _add_values(width, "--sigma2", positive, sigma2)
    common.add_options(grid, KernelOptions, ["kernel", "degree", "coef0"])
    check = parser.add_argument_group("validation")
    part = "share of the rows in the validation part"
    share = Option(part, metavar="SHARE", low=0, above=True, high=1)
    common.add_option(check, "validation", share, 0.3)
    folds = Option("cross-validate with K folds instead", metavar="K", low=2, whole=True)
    common.add_option(check, "folds", folds)
    check.add_argument(
        "--metric",
        metavar="{accuracy,balanced_accuracy,auc}",
        default="accuracy",
        help="what to choose by: accuracy (default), balanced_accuracy (the mean recall of the "
        "classes), or auc (the ROC AUC of two classes)",
    )
    common.add_options(check, TrainOptions, ["seed"])
    training = parser.add_argument_group("training")
    common.add_options(
        training, TrainOptions, ["method", "tol", "memory_limit", "max_support", "landmarks"]
    )
    common.add_work(parser, dask=False)
    results = parser.add_argument_group("results")
    results.add_argument(
        "--no-refit", dest="refit", action="store_false", help="search only, train no model"
    )
    results.add_argument("--points", metavar="FILE.json", help="write all points as JSON")
    results.add_argument(
        "--figure", metavar="FILE", help="draw errors against C (.png, .svg, .pdf; matplotlib)"
    )
    common.add_results(parser)


def _add_values(group: argparse._ActionsContainer, name: str, declared: Option, text: str) -> None:
    read = common.argument_type(partial(value_list, declared=declared))
    group.add_argument(name, type=read, metavar="VALUES", help=text)


def run(args: argparse.Namespace) -> int:
    """Find the best C and gamma, and train with them.

    Try values of C, and of gamma if asked, on one part of the rows, validate on the rest, and
    train on all rows with the best. Each point is warm-started from the one before, and hopeless
    points are abandoned. VALUES are numbers (0.5,1,10) or powers of a number (2^0..2^12;
    2^-5..2^15:2 for every second one). The test file has no part in it.
    """
    place = common.ModelPlace(_check_outputs(args))
    from ooc_fw.solver.state import Status
    from ooc_fw.training.tuning import draw, tune

    with (
        common.open_data(args) as source,
        Progress(quiet=args.quiet, verbose=args.verbose, bar=False) as progress,
    ):
        result = tune(
            source,
            kernel=args.kernel,
            degree=args.degree,
            coef0=args.coef0,
            Cs=args.C,
            gammas=args.gamma,
            sigma2s=args.sigma2,
            folds=args.folds,
            validation_share=args.validation,
            preset=args.preset,
            metric=args.metric,
            options=common.record_from(TrainOptions, args, C=TrainOptions.C),
            refit=args.refit,
            callbacks=progress.callbacks,
            on_point=None if args.quiet else partial(_show, args.metric),
        )
    values = {"data": args.data, **result.to_dict(), "model": None}
    status = None if result.model is None else result.model.status
    if result.model is not None:
        path = place.of(status == Status.INTERRUPTED)
        result.model.save(path)
        values["model"] = str(path)
    if args.points:
        write_output(args.points, (to_json(values) + "\n").encode())
    if args.figure:
        draw(result, args.figure)
    common.print_result(args, values, _lines(result, values["model"]))
    if status is not None and not Status(status).reached:
        why = Status(status).explain("relative", args.tol)
        logger.warning(
            "the last training: %s; the model is valid but less exact%s", why, place.note(path)
        )
    interrupted = result.interrupted or status == Status.INTERRUPTED
    return 128 + (result.signal or signal.SIGINT) if interrupted else common.DONE


def _lines(result: TuneResult, model: str | None) -> list[str]:
    """Sum the search up for people."""
    from ooc_fw.model.metrics import METRICS

    best = result.best
    assert best.error is not None
    assert best.standard_error is not None
    lines = [
        *result.table().splitlines(),
        f"best: C {best.C:g}, gamma {best.gamma:.6g}, validation {METRICS[result.metric]} "
        f"{100 * best.error:.3f} % (+- {100 * best.standard_error:.3f}) on {best.n_validated} rows",
        f"{result.seconds:.1f} s, {result.kernel_evaluations / 1e6:,.0f} million kernel values",
    ]
    advice, refit = result.advice(), result.refit()
    if advice is not None:
        lines.append(advice)
    if refit is not None:
        vectors = f"{refit['n_support']} support vectors"
        if refit["gap_scope"] == "span":
            vectors = f"within the span of the {refit['n_support']} landmarks"
        lines.append(
            f"trained on all {result.n_rows} rows: {refit['status']}, certified gap "
            f"{common.format_gap(refit['certified_gap'])}, {vectors}, {refit['seconds']:.1f} s"
        )
    return lines if model is None else [*lines, model]


def _show(metric: str, point: Point) -> None:
    from ooc_fw.model.metrics import METRICS

    error = 100 * (point.error or 0.0)
    print(
        f"C {point.C:g}, gamma {point.gamma:.4g}: {METRICS[metric]} {error:.3f} % of "
        f"{point.n_validated} rows, {point.n_support} support vectors, {point.seconds:.1f} s",
        file=sys.stderr,
        flush=True,
    )


def _check_outputs(args: argparse.Namespace) -> Path:
    """Path of the model; InputError if an output cannot be written."""
    if args.output and not args.refit:
        raise InputError("-o MODEL is written by the refit; leave out one of -o and --no-refit")
    model = Path(args.output) if args.output else common.output_beside(args.data, ".model.h5")
    outputs = [Output("model", model)] if args.refit else []
    for what, path in (("points", args.points), ("figure", args.figure)):
        if path:
            outputs.append(Output(what, path, streamed=True))
    check_outputs(outputs, [args.data, args.labels])
    if args.figure:
        from ooc_fw.report.figures import check_figure

        check_figure(args.figure)
    return model


# -- lists of values -----------------------------------------------------------------------------


def value_list(text: str, declared: Option) -> list[Any]:
    """Values of an option: numbers, or powers of a number, such as 0.5,1,10 or 2^-5..2^15:2.

    Raises
    ------
    InputError
        The list is malformed, or a value is outside the limits of the option.
    """
    try:
        return [value for part in text.split(",") for value in _values(part, declared)]
    except InputError:
        raise
    except (ValueError, ArithmeticError):
        raise InputError(
            f"must be a list of values such as 0.5,1,10 or 2^-5..2^15:2, not {text!r}"
        ) from None


def _values(part: str, declared: Option) -> list[Any]:
    if "^" not in part:
        return [declared.parse(part)]
    ends, _, step = part.partition(":")
    bases, exponents = zip(*(end.split("^") for end in ends.split("..")), strict=True)
    base, first, last, by = float(bases[0]), int(exponents[0]), int(exponents[-1]), int(step or 1)
    powers = range(first, last + 1, by)
    if len(bases) > 2 or base != float(bases[-1]) or by < 1 or not 0 < len(powers) <= _MOST_VALUES:
        raise ValueError
    return [declared.parse(repr(base**power)) for power in powers]
