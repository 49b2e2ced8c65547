"""What commands share: their arguments, opening data, where results go, and printing them.

A command is a function from parsed arguments to an exit status; its docstring is its help text.
Arguments that are fields of a record in `ooc_fw.options` are derived from it.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ooc_fw.options import ConvertOptions, Option, TrainOptions, option_fields
from ooc_fw.report.progress import EventLog, Progress, RowProgress, to_json
from ooc_fw.system.errors import InputError, printable
from ooc_fw.system.errors import format_label as format_label
from ooc_fw.system.errors import format_labels as format_labels
from ooc_fw.system.files import Output, check_outputs
from ooc_fw.system.groups import cpu_count

if TYPE_CHECKING:
    from ooc_fw.data.parallel import Workers
    from ooc_fw.data.sources import RowSource
    from ooc_fw.kernels.functions import Kernel
    from ooc_fw.solver.checkpoint import CheckpointPlan

DONE, NO, USAGE, FAILED = 0, 1, 2, 3
"""Exit statuses: done; the answer is no, such as a gap above the tolerance or a damaged file; wrong
input or usage; a failure such as a full disk, no time for a model, or an error of the program
itself. After a signal the status is 128 plus its number."""

Record = TypeVar("Record")

# -- arguments -----------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one sentence, like all others.

    Names of options are written in full: a new option would change what an abbreviation means.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise the usage error as a user's mistake."""
        raise InputError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, or fail as all other output does; argparse ignores that it cannot."""
        print(message, end="", file=file)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown arguments here, where the command is known whose help lists the others."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            start = unknown[0].partition("=")[0]
            names = [name for name in self._option_string_actions if name.startswith(start)]
            full = f"; names are written in full: {', '.join(names)}" if names else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{full}")
        return parsed, unknown


class Commands:
    """The commands of a parser."""

    def __init__(self, parser: Parser) -> None:
        self._parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(self, name: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        """Declare a command, described by the docstring of `run`; the parser needs arguments."""
        summary, _, description = (inspect.getdoc(run) or "").partition("\n")
        help = summary[:1].lower() + summary[1:].removesuffix(".")
        parser = self._parsers.add_parser(name, help=help, description=description or summary)
        parser.set_defaults(run=run)
        return parser


def add_options(
    parser: argparse._ActionsContainer, record: type, names: Iterable[str] | None = None
) -> None:
    """Declare the fields of a record of options, all of them by default."""
    fields = option_fields(record)
    for name in fields if names is None else names:
        own, declared = fields[name]
        add_option(parser, name, declared, own.default)


def add_option(
    parser: argparse._ActionsContainer, name: str, declared: Option, default: Any = None
) -> None:
    """Declare one option; its help text ends with the default."""
    if declared.flags:
        group = parser.add_mutually_exclusive_group()
        for flag, (value, text) in declared.flags.items():
            group.add_argument(
                flag, dest=name, action="store_const", const=value, default=default, help=text
            )
        return
    metavar = declared.metavar
    if declared.choices and declared.low is None:
        metavar = f"{{{','.join(declared.choices)}}}"
    shown = declared.default_help or default
    parser.add_argument(
        _flag_of(name, declared),
        dest=name,
        metavar=metavar,
        type=argument_type(declared.parse) if declared.parses else str,
        action="extend" if declared.many else "store",
        default=list(default) if declared.many else default,
        help=declared.help + (f" (default: {shown})" if shown not in (None, ()) else ""),
    )


def _flag_of(name: str, declared: Option) -> str:
    return declared.name or "--" + name.replace("_", "-")


def argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Argument type whose errors are those of `parse`, which raises InputError."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def record_from(record: type[Record], args: argparse.Namespace, **values: Any) -> Record:
    """Record of the options given; `values` take precedence."""
    given = {name: vars(args)[name] for name in option_fields(record) if name in vars(args)}
    return record(**given | values)


def arguments_of(record: type, values: Mapping[str, Any]) -> list[str]:
    """Arguments that give a record of options these values; defaults are left out."""
    arguments = []
    for name, (own, declared) in option_fields(record).items():
        value = values.get(name, own.default)
        if value == own.default:
            continue
        flags = [flag for flag, (set_to, _) in declared.flags.items() if set_to == value]
        arguments += flags or [_flag_of(name, declared), str(value)]
    return arguments


def add_data(parser: argparse.ArgumentParser, also: str = "", *, labels: bool = True) -> None:
    """Declare DATA, which may `also` be something else than arrays, and what to find in it."""
    kinds = (
        "an HDF5 file (ooc-fw convert writes one), an AnnData file, a zarr store or a .npy array"
    )
    parser.add_argument("data", metavar="DATA", help=kinds + also)
    add_options(parser, ConvertOptions, ["x_name"])
    if labels:
        add_options(parser, ConvertOptions, ["y_name", "label", "labels", "missing_labels"])


def add_data_or_text(parser: argparse.ArgumentParser, *, labels: bool = True) -> None:
    """Declare DATA of a command that reads LIBSVM text, too."""
    also = ", LIBSVM text or a table (CSV, Parquet, Arrow), or - for standard input"
    add_data(parser, also, labels=labels)
    add_options(parser, ConvertOptions, ["zero_based"])


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare MODEL."""
    parser.add_argument("model", metavar="MODEL", help="file written by ooc-fw train or tune")


def add_model_output(parser: argparse.ArgumentParser) -> None:
    """Declare where the model goes."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="MODEL",
        help="model file (default: DATA with .model.h5 in place of its suffix)",
    )


def add_work(parser: argparse.ArgumentParser, *, dask: bool = True) -> None:
    """Declare ``--threads``, of which the default is the number of processors, and ``--dask``."""
    add_options(parser, TrainOptions, ["threads"])
    parser.set_defaults(threads=cpu_count())
    if dask:
        parser.add_argument(
            "--dask",
            metavar="WHERE",
            help="pass over the file with Dask: on threads, on processes (as many as --threads), "
            "or on the cluster at the address tcp://HOST:PORT (default: without Dask); the numbers "
            "are the same",
        )


def add_results(parser: argparse.ArgumentParser, *, progress: bool = True) -> None:
    """Declare ``--json``, and ``--quiet`` and ``--verbose`` of commands that take time."""
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    if progress:
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--quiet", action="store_true", help="no progress and no summary")
        group.add_argument(
            "--verbose",
            action="store_true",
            help="more messages: sizes, choices, the memory plan, phases; a line of progress a "
            "second",
        )


# -- data ----------------------------------------------------------------------------------------


def open_data(args: argparse.Namespace, *, labels: bool = True) -> RowSource:
    """Open the source that DATA names; without `labels`, rows that lack one are kept."""
    from ooc_fw.data.sources import open_source

    names = ("labels", "x_name", "y_name", "missing_labels")
    given = {name: vars(args)[name] for name in names if name in vars(args)}
    if vars(args).get("label") is not None:
        given["y_name"] = args.label
    if not labels:
        given = {"x_name": args.x_name}
    return open_source(args.data, **given)


@contextmanager
def open_workers(args: argparse.Namespace) -> Iterator[Workers | None]:
    """Workers that ``--dask`` names; without it None, and Dask is not imported."""
    if args.dask is None:
        yield None
        return
    from ooc_fw.data.parallel import borrow_workers

    with borrow_workers(args.dask, args.threads) as workers:
        yield workers


def kernel_from(
    args: argparse.Namespace, source: RowSource, threads: int, workers: Workers | None
) -> Kernel:
    """Kernel of the arguments; gamma auto follows from statistics of the rows of `source`."""
    from ooc_fw.data.statistics import sigma2, variance
    from ooc_fw.kernels.functions import make_kernel, resolve_gamma

    def found(statistic: Callable[..., float]) -> float:
        with RowProgress("statistics", source.n_rows, quiet=args.quiet) as progress:
            return statistic(source, threads, dask=workers, on_rows=progress)

    average, spread = partial(found, sigma2), partial(found, variance)
    gamma = resolve_gamma(args.kernel, args.gamma, average, source.n_features, spread)
    return make_kernel(args.kernel, gamma=gamma, degree=args.degree, coef0=args.coef0)


def checkpoint_plan(args: argparse.Namespace) -> CheckpointPlan | None:
    """Where ``--checkpoint`` writes the state of a run, and how often."""
    from ooc_fw.solver.checkpoint import CheckpointPlan

    if args.checkpoint is not None:
        return CheckpointPlan(args.checkpoint, args.checkpoint_every or CheckpointPlan.every_s)
    if args.checkpoint_every is not None:
        raise InputError("--checkpoint-every needs --checkpoint FILE")
    return None


# -- where results go ----------------------------------------------------------------------------


def output_beside(data: str, suffix: str) -> Path:
    """Default name of an output: the name of the input with another suffix."""
    if "://" in data:
        raise InputError(f"{data} is remote, so the output has no default name; give -o")
    if os.path.exists(data) and not os.path.isfile(data) and not os.path.isdir(data):
        raise InputError(f"{data} is no regular file, so the output has no default name; give -o")
    return Path(data).with_suffix(suffix)


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


# -- printing ------------------------------------------------------------------------------------


def print_result(
    args: argparse.Namespace, result: Mapping[str, Any], lines: Iterable[object] | None = None
) -> None:
    """Print one JSON object with ``--json``, else lines for people: by default names and values."""
    if args.json:
        print(to_json(result))
    else:
        print_lines(aligned(result) if lines is None else lines, sys.stdout)


def print_lines(lines: Iterable[object], file: Any = None) -> None:
    """Print lines for people, on standard error by default; text from data cannot end one."""
    for line in lines:
        print(printable(str(line)), file=file or sys.stderr)


def aligned(result: Mapping[str, Any]) -> list[str]:
    """A line for each name and value."""
    width = max(len(name) for name in result)
    return [f"{name:<{width}}  {format_value(value)}" for name, value in result.items()]


def gap_lines(classifiers: Sequence[Mapping[str, Any]], most: int | None = None) -> list[str]:
    """Certified gap of each binary classifier, or of the first `most`."""
    lines = []
    for own in classifiers[:most]:
        sides = format_label(own["negative"]), format_label(own["positive"])
        if "primal" in own:  # of landmarks, whose classifiers are of one class each
            sides = sides[1], "the rest"
        lines.append(f"{sides[0]} against {sides[1]}  {format_gap(own['certified_gap'])}")
    if most is not None and len(classifiers) > most:
        lines.append(f"and {len(classifiers) - most} more binary classifiers, which --json lists")
    return lines


def with_scope(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result for people, who are told which gaps are within the span of landmarks only."""
    words = {}
    if result.get("gap_scope") == "span":
        scope = f"(within the span of the {result['n_support']} landmarks)"
        found = {name: result.get(name) for name in ("certified_gap", "sampled_gap")}
        words = {k: f"{format_value(gap)} {scope}" for k, gap in found.items() if gap is not None}
    return {**result, **words}


def dropped(n_dropped: int, n_features: int, n_values: int) -> str:
    """Columns that a file has beyond those of the training data, and the values in them."""
    return f"dropped: {n_dropped} features beyond {n_features}, {n_values} values in them"


def format_gap(gap: float | None) -> str:
    """Gap with three digits."""
    return "unknown" if gap is None else f"{gap:.2e}"


def format_value(value: object) -> str:
    """Value of a result for people."""
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} ({format_value(item)})" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(format_value, value))
    return str(value)
