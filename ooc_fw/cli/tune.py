"""``ooc-fw tune``: from a data file to the best C and gamma, and a model trained with them.

Owns the options, the words for lists of values and where results go. The search is
`ooc_fw.training.tuning.tune`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs, write_output

if TYPE_CHECKING:
    from ooc_fw.training.tuning import Point, TuneResult


_MOST_VALUES = 1000  # of a range such as 2^-5..2^15


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "tune",
        help="find the best C and gamma, and train with them",
        description="Try values of C, and of gamma where asked, on one part of the rows, validate "
        "on the rest, and train on all rows with the best. Machines start from the one before and "
        "points without hope are given up. VALUES are numbers (0.5,1,10) or powers of a number "
        "(2^0..2^12; 2^-5..2^15:2 for every second one). The test file has no part in it.",
    )
    common.add_data_arguments(parser, text=False)
    grid = parser.add_argument_group("what is tried")
    grid.add_argument(
        "--preset",
        default="large",
        help="large (default): C in 2^0..2^12, gamma auto, one validation part; small: C in "
        "2^-5..2^15, sigma^2 in 2^-15..2^5, 10 folds; the options below replace parts of it",
    )
    grid.add_argument("--Cs", type=_values, metavar="VALUES", help="values of C")
    width = grid.add_mutually_exclusive_group()
    width.add_argument(
        "--gammas", type=_gammas, metavar="VALUES", help="values of gamma; auto is one too"
    )
    width.add_argument(
        "--sigma2s",
        type=_values,
        metavar="VALUES",
        help="values of sigma^2 for the rbf kernel, gamma = 1 / (2 sigma^2)",
    )
    grid.add_argument("--kernel", default="rbf", help="rbf (default), linear, poly or laplacian")
    grid.add_argument("--degree", type=common.DEGREE, default=2, help="of poly (default: 2)")
    grid.add_argument("--coef0", type=common.COEF0, default=0.0, help="of poly (default: 0)")
    check = parser.add_argument_group("how it is validated")
    check.add_argument(
        "--validation",
        type=common.Number(0, 1, above=True),
        default=0.3,
        metavar="SHARE",
        help="share of the rows in the validation part (default: 0.3)",
    )
    check.add_argument(
        "--folds",
        type=common.Number(2, common.LARGEST, whole=True),
        metavar="K",
        help="cross-validate with K folds instead",
    )
    check.add_argument(
        "--seed", type=common.SEED, default=0, help="of every random draw (default: 0)"
    )
    training = parser.add_argument_group("training")
    training.add_argument("--method", default="auto", help="as for train (default: auto)")
    training.add_argument(
        "--tol",
        type=common.POSITIVE,
        default=1e-3,
        help="relative gap of the final model (default: 0.001); points are compared at 0.01",
    )
    training.add_argument(
        "--max-support",
        type=common.COUNT,
        metavar="N",
        help="support vectors at most (default: no limit)",
    )
    training.add_argument(
        "--memory",
        type=common.byte_size,
        dest="memory_limit",
        metavar="SIZE",
        help="limit on the peak resident memory of the process, such as 1GiB (default: none)",
    )
    common.add_threads_argument(parser)
    results = parser.add_argument_group("results")
    results.add_argument(
        "--model", metavar="FILE", help="model file (default: DATA with .model.h5 as its suffix)"
    )
    results.add_argument(
        "--no-refit", dest="refit", action="store_false", help="search only, train no model"
    )
    results.add_argument("-o", "--output", metavar="FILE.json", help="write all points as JSON")
    results.add_argument(
        "--figure", metavar="FILE", help="draw errors against C (.png, .svg, .pdf; matplotlib)"
    )
    results.add_argument("--quiet", action="store_true", help="no progress")
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Search, train, report."""
    place = common.ModelPlace(_check_outputs(args))
    from ooc_fw.options import TrainOptions
    from ooc_fw.report.progress import Progress, to_json
    from ooc_fw.solve.state import Status, why_not_converged
    from ooc_fw.training.tuning import draw, tune

    options = TrainOptions(
        method=args.method,
        tol=args.tol,
        seed=args.seed,
        threads=common.thread_count(args),
        memory_limit=args.memory_limit,
        max_support=args.max_support,
    )
    with common.open_data(args) as source, Progress(quiet=args.quiet, bar=False) as progress:
        result = tune(
            source,
            kernel=args.kernel,
            degree=args.degree,
            coef0=args.coef0,
            Cs=args.Cs,
            gammas=args.gammas,
            sigma2s=args.sigma2s,
            folds=args.folds,
            validation_share=args.validation,
            preset=args.preset,
            options=options,
            refit=args.refit,
            callbacks=progress.callbacks,
            on_point=None if args.quiet else _show,
        )
    values = {"data": args.data, **result.to_dict(), "model": None}
    if result.model is not None:
        model_path = place.of(result.model.status == Status.INTERRUPTED)
        result.model.save(model_path)
        values["model"] = str(model_path)
    if args.output:
        write_output(args.output, (to_json(values) + "\n").encode())
    if args.figure:
        draw(result, args.figure)
    print(to_json(values) if args.json else _report(result, values["model"]))
    status = None if result.model is None else result.model.status
    if status is not None and not Status(status).reached:
        why = why_not_converged(status, "relative", args.tol)
        print(
            f"ooc-fw: warning: the last training: {why}; the model is valid but less exact"
            f"{place.note(model_path)}",
            file=sys.stderr,
        )
    return 128 + signal.SIGINT if result.interrupted or status == "interrupted" else 0


def _report(result: TuneResult, model: str | None) -> str:
    """Sum the search up for people."""
    best = result.best
    assert best.error is not None
    assert best.standard_error is not None
    lines = [
        result.table(),
        f"best: C {best.C:g}, gamma {best.gamma:.6g}, validation error {100 * best.error:.3f} % "
        f"(+- {100 * best.standard_error:.3f}) on {best.n_validated} rows",
        f"{result.seconds:.1f} s, {result.kernel_evaluations / 1e6:,.0f} million kernel values",
    ]
    advice = result.advice()
    if advice is not None:
        lines.append(advice)
    refit = result.refit()
    if refit is not None:
        lines.append(
            f"trained on all {result.n_rows} rows: {refit['status']}, certified gap "
            f"{common.format_gap(refit['certified_gap'])}, {refit['n_support']} support vectors, "
            f"{refit['seconds']:.1f} s"
        )
    if model is not None:
        lines.append(model)
    return "\n".join(lines)


def _show(point: Point) -> None:
    error = 100 * (point.error or 0.0)
    print(
        f"C {point.C:g}, gamma {point.gamma:.4g}: error {error:.3f} % of {point.n_validated} rows, "
        f"{point.n_support} support vectors, {point.seconds:.1f} s",
        file=sys.stderr,
        flush=True,
    )


def _check_outputs(args: argparse.Namespace) -> Path:
    """Path of the model; InputError, before any work is done, for a place nothing can go to."""
    if args.model and not args.refit:
        raise InputError("--model is written by the refit; leave out one of --model and --no-refit")
    if args.output and not args.output.endswith(".json"):
        raise InputError(
            f"-o {args.output} is for the results, which are JSON: give a name that ends in .json, "
            f"and the place of the model with --model"
        )
    model = Path(args.model) if args.model else common.output_beside(args.data, ".model.h5")
    outputs = [Output("model", model)] if args.refit else []
    for what, path in (("results", args.output), ("figure", args.figure)):
        if path:
            outputs.append(Output(what, path, streamed=True))
    check_outputs(outputs, [args.data, args.labels])
    if args.figure:
        from ooc_fw.report.figures import check_figure

        check_figure(args.figure)
    return model


def _values(text: str) -> list[float]:
    """Numbers, or powers of a number: 0.5,1,10 or 2^-5..2^15:2."""
    values: list[float] = []
    for part in text.split(","):
        if ".." not in part:
            values.append(_number(part))
            continue
        ends, _, step = part.partition(":")
        (base, first), (other, last) = (_power(end) for end in ends.split(".."))
        if base != other or last < first or int(step or 1) < 1:
            raise ValueError
        exponents = range(first, last + 1, int(step or 1))
        if len(exponents) > _MOST_VALUES:
            raise ValueError
        values += [_raised(base, exponent) for exponent in exponents]
    return [common.POSITIVE(repr(value)) for value in values]


_values.__name__ = "list of values"  # argparse names the type


def _number(text: str) -> float:
    if "^" not in text:
        return float(text)
    return _raised(*_power(text))


def _raised(base: float, exponent: int) -> float:
    try:
        return base**exponent
    except ArithmeticError:  # larger than any float, or a power of 0
        raise ValueError from None


def _power(text: str) -> tuple[float, int]:
    base, exponent = text.split("^")
    return float(base), int(exponent)


def _gammas(text: str) -> list[float | str]:
    found: list[Any] = []
    for part in text.split(","):
        found += ["auto"] if part == "auto" else _values(part)
    return found


_gammas.__name__ = "list of values"
