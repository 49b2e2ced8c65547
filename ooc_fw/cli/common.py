"""What commands share: opening data, where a model goes, exit statuses, printing results."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_fw.report.progress import EventLog, Progress, RowProgress, to_json
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs

if TYPE_CHECKING:
    from ooc_fw.data.parallel import Workers
    from ooc_fw.data.sources import RowSource
    from ooc_fw.kernels.functions import Kernel
    from ooc_fw.options import TrainOptions

DONE, NO, USAGE, FAILED = 0, 1, 2, 3
"""Exit statuses: done; the answer is no, such as a gap above the tolerance or a damaged file; wrong
input or usage; a failure such as a full disk. After a signal the status is 128 plus its number."""


@contextmanager
def open_workers(args: argparse.Namespace) -> Iterator[Workers | None]:
    """Workers that ``--dask`` names; without it None, and Dask is not imported."""
    if args.dask is None:
        yield None
        return
    from ooc_fw.data.parallel import borrow_workers

    with borrow_workers(args.dask, args.threads) as workers:
        yield workers


def open_data(args: argparse.Namespace) -> RowSource:
    """Open the source that DATA names."""
    from ooc_fw.data.sources import open_source

    given = vars(args)
    return open_source(
        args.data,
        given.get("labels"),
        x_name=args.x_name,
        y_name=given.get("y_name", "y"),
    )


def kernel_from(
    args: argparse.Namespace, source: RowSource, threads: int, workers: Workers | None
) -> Kernel:
    """Kernel of the arguments; gamma auto follows from statistics of the rows of `source`."""
    from ooc_fw.data.statistics import sigma2
    from ooc_fw.kernels.functions import make_kernel, resolve_gamma

    def average_distance() -> float:
        with RowProgress("statistics", source.n_rows, quiet=args.quiet) as progress:
            return sigma2(source, threads, dask=workers, on_rows=progress)

    gamma = resolve_gamma(args.kernel, args.gamma, average_distance, source.n_features)
    return make_kernel(args.kernel, gamma=gamma, degree=args.degree, coef0=args.coef0)


# -- where results go ----------------------------------------------------------------------------


def output_beside(data: str, suffix: str) -> Path:
    """Default name of an output: the name of the input with another suffix."""
    if os.path.exists(data) and not os.path.isfile(data) and not os.path.isdir(data):
        raise InputError(f"{data} is no regular file, so the output has no default name; give -o")
    return Path(data).with_suffix(suffix)


class ModelPlace:
    """Where a model is written: to its output, or beside it after an interrupt.

    A file that stood at the output when the run began is not replaced by the model of a run that
    was interrupted.

    Parameters
    ----------
    output : Path
        File that the user named.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self._beside = _free_name_beside(output) if output.is_file() else output

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
    log = EventLog(args.log, append=args.resume is not None)
    begin = {"time": datetime.now(UTC).isoformat(timespec="seconds")}
    begin |= {name: getattr(args, name) for name in ("resume", "data", "class_weight")}
    log.write("start", {**begin, **facts, "options": asdict(options)})
    return log


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


def _free_name_beside(output: Path) -> Path:
    """First free name: m.interrupted.h5, m.interrupted2.h5, ... for m.h5."""
    for number in count(1):
        word = "interrupted" if number == 1 else f"interrupted{number}"
        path = output.with_name(f"{output.stem}.{word}{output.suffix}")
        if not os.path.lexists(path):
            return path
    raise AssertionError


# -- printing ------------------------------------------------------------------------------------


def print_result(
    args: argparse.Namespace, result: Mapping[str, Any], lines: Iterable[object] | None = None
) -> None:
    """Write a result on standard output: one JSON object, or lines for people.

    Parameters
    ----------
    args : Namespace
        Says whether ``--json`` was given.
    result : mapping
        Names and values.
    lines : iterable, optional
        Text for people; by default names and values, aligned.
    """
    if args.json:
        print(to_json(result))
    else:
        print(*(aligned(result) if lines is None else lines), sep="\n")


def aligned(result: Mapping[str, Any]) -> list[str]:
    """A line for each name and value."""
    width = max(len(name) for name in result)
    return [f"{name:<{width}}  {format_value(value)}" for name, value in result.items()]


def gap_lines(classifiers: Sequence[Mapping[str, Any]], most: int | None = None) -> list[str]:
    """Certified gap of the binary classifier of each pair of classes, or of the first `most`."""
    lines = [
        f"{format_label(own['negative'])} against {format_label(own['positive'])}  "
        f"{format_gap(own['certified_gap'])}"
        for own in classifiers[:most]
    ]
    if most is not None and len(classifiers) > most:
        lines.append(f"and {len(classifiers) - most} more pairs of classes, which --json lists")
    return lines


def summary(result: dict[str, Any]) -> list[str]:
    """Sum the run up in a few lines for people."""
    gap, read = result["certified_gap"], ""
    if "lmo" not in result:
        kind, read = "over the rows read last, not certified", " read once"
    elif gap is None:
        kind = "over the rows drawn last, not certified"
    else:
        kind = "certified over all rows"
    gap = result["sampled_gap"] if gap is None else gap
    if "machines" in result:
        kind += f", the worst of {len(result['machines'])} pairs of classes"
    return [
        f"{result['status']}: relative gap {format_gap(gap)}, {kind}",
        f"{result['n_support']} support vectors of {result['n_rows']} rows{read}, "
        f"{result['kernel']} kernel, gamma {format_value(result['gamma'])}, "
        f"C {format_value(result['C'])}",
        f"{result['iterations']} iterations, {result['passes']:.1f} passes, "
        f"{result['seconds']:.1f} s, {result['peak_rss_bytes'] / 1e6:.0f} MB at the peak",
    ]


def format_label(value: Any) -> str:
    """Label as people write it: integers without a decimal point."""
    return value if isinstance(value, str) else repr(float(value)).removesuffix(".0")


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
        return ", ".join(format_value(item) for item in value)
    return str(value)
