"""What several commands share: data arguments, opening data, applying a model, printing results.

Owns the meaning of DATA on the command line. Knows no command.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ooc_fw.report.progress import RowProgress, to_json
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import parse_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from ooc_fw.data.parallel import Workers
    from ooc_fw.data.rows import Float64Array, Int64Array, Rows
    from ooc_fw.data.sources import RowSource
    from ooc_fw.model.record import Model

NPY_MAGIC = b"\x93NUMPY"


def add_data_arguments(parser: argparse.ArgumentParser, *, text: bool, labels: bool = True) -> None:
    """Declare DATA and how to find rows and labels in it.

    Parameters
    ----------
    parser : ArgumentParser
        Of one command.
    text : bool
        Whether the command takes LIBSVM text as well.
    labels : bool
        Whether the command looks at labels.
    """
    kinds = "an HDF5 file (ooc-fw convert writes one) or a .npy array"
    if text:
        kinds += ", LIBSVM text, also compressed, or - for text on standard input"
    parser.add_argument("data", metavar="DATA", help=kinds)
    parser.add_argument("--x-name", default="X", help="rows in an HDF5 file (default: X)")
    if labels:
        parser.add_argument("--y-name", default="y", help="labels in an HDF5 file (default: y)")
        parser.add_argument("--labels", metavar="FILE", help="labels of a .npy array, also .npy")
    if text:
        parser.add_argument(
            "--zero-based", action="store_true", help="the text counts features from 0"
        )


def add_threads_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--threads``."""
    parser.add_argument("--threads", type=THREADS, metavar="N", help="threads (default: all CPUs)")


def add_dask_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--dask``."""
    parser.add_argument(
        "--dask",
        metavar="WHERE",
        help="go through the file with Dask: on threads, on processes (as many as --threads), or "
        "on the cluster at an address, tcp://HOST:PORT (default: without Dask); the numbers are "
        "the same",
    )


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_verbosity_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--quiet`` and ``--verbose``."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--quiet", action="store_true", help="no progress and no summary")
    group.add_argument(
        "--verbose",
        action="store_true",
        help="more lines: sizes, choices, the memory plan, phases, a line of progress a second",
    )


def thread_count(args: argparse.Namespace) -> int:
    """``--threads``, or the CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if args.threads is None else int(args.threads)


@contextmanager
def open_workers(args: argparse.Namespace) -> Iterator[Workers | None]:
    """Workers that ``--dask`` names; None without it, which imports no Dask."""
    if args.dask is None:
        yield None
        return
    from ooc_fw.data.parallel import borrow_workers

    with borrow_workers(args.dask, thread_count(args)) as workers:
        yield workers


def open_data(args: argparse.Namespace) -> RowSource:
    """Open the source that DATA names."""
    from ooc_fw.data.sources import open_source

    return open_source(
        args.data,
        getattr(args, "labels", None),
        x_name=args.x_name,
        y_name=getattr(args, "y_name", "y"),
    )


def output_beside(data: str, suffix: str) -> Path:
    """Default name of an output: that of the input with another suffix."""
    if os.path.exists(data) and not os.path.isfile(data) and not os.path.isdir(data):
        raise InputError(f"{data} is no regular file, which a result could go beside; give -o")
    return Path(data).with_suffix(suffix)


class ModelPlace:
    """Where a model goes: to its output; beside it after an interrupt, if a file stood there.

    A model that was trained to its end is not replaced by one of a run that was not.

    Parameters
    ----------
    output : Path
        As the user gave it; looked at now, before the run.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.beside = _free_name_beside(output) if output.is_file() else output

    def of(self, interrupted: bool) -> Path:
        """File for a model of a run that was interrupted, or was not."""
        return self.beside if interrupted else self.output

    def note(self, path: Path) -> str:
        """What to say of a model that went to `path`; nothing for the output itself."""
        return "" if path == self.output else f"; it is in {path}, and {self.output} is as it was"


def _free_name_beside(output: Path) -> Path:
    """First free name: m.interrupted.h5, m.interrupted2.h5, ... for m.h5."""
    for number in count(1):
        word = "interrupted" if number == 1 else f"interrupted{number}"
        path = output.with_name(f"{output.stem}.{word}{output.suffix}")
        if not os.path.lexists(path):
            return path
    raise AssertionError


def is_text(path: str) -> bool:
    """Whether DATA is to be read as LIBSVM text: it is neither HDF5 nor a .npy array."""
    import h5py

    if path == "-" or (os.path.exists(path) and not os.path.isfile(path)):
        return not os.path.isdir(path)  # of a pipe, the first bytes come only once
    if h5py.is_hdf5(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(NPY_MAGIC)) != NPY_MAGIC
    except OSError:  # the text reader says what is wrong with it
        return True


class AppliedRows(NamedTuple):
    """What a model says of a block of rows.

    Parameters
    ----------
    values : ndarray of float64, shape (n,) or (n, n_machines)
        Decision values.
    row_ids : ndarray of int64, shape (n,)
        Where the rows are in the user's own input, from 0.
    labels : ndarray of shape (n,) or None
        Labels found beside them, where they were asked for.
    n_rows : int or None
        Rows in all; None where only the end of the input tells.
    """

    values: Float64Array
    row_ids: Int64Array
    labels: npt.NDArray[Any] | None
    n_rows: int | None


def apply_model(
    model: Model,
    args: argparse.Namespace,
    *,
    with_labels: bool = False,
    labels_only: bool = False,
) -> Iterator[AppliedRows]:
    """Decision values for DATA block by block, in the order in which it is stored.

    Memory does not grow with the number of rows. With `labels_only` the values are only as exact as
    predicted labels need.
    """
    apply = _apply_to_text if is_text(args.data) else _apply_to_source
    return apply(model, args, with_labels, labels_only)


def _apply_to_text(
    model: Model, args: argparse.Namespace, with_labels: bool, labels_only: bool
) -> Iterator[AppliedRows]:
    import numpy as np

    from ooc_fw.convert.libsvm import iter_libsvm

    if args.dask is not None:
        raise InputError(
            f"{args.data} is text, which one process parses; leave --dask out, or convert it first "
            f"(ooc-fw convert)"
        )
    waiting: list[npt.NDArray[Any]] = []  # labels of rows that were read and not yet decided

    def blocks() -> Iterator[Rows]:
        exact = model.scaling is not None and not model.scaling.is_identity
        for block_labels, rows, _ in iter_libsvm(
            args.data, zero_based=args.zero_based, exact=exact
        ):
            waiting.append(block_labels)
            yield rows

    start = 0
    scaled = model.scale(blocks())
    for values in model.decide(scaled, threads=thread_count(args), labels_only=labels_only):
        stop = start + len(values)
        labels = np.concatenate(waiting)
        waiting[:] = [labels[len(values) :]]
        own = labels[: len(values)] if with_labels else None
        yield AppliedRows(values, np.arange(start, stop), own, None)
        start = stop


def _apply_to_source(
    model: Model, args: argparse.Namespace, with_labels: bool, labels_only: bool
) -> Iterator[AppliedRows]:
    with open_data(args) as source:
        if with_labels and not source.has_labels:
            raise InputError(f"{source.name} has no labels; name them with --labels or --y-name")
        with open_workers(args) as workers, RowProgress("predict", source.n_rows) as progress:
            for start, values in model.iter_decisions(
                source, threads=thread_count(args), dask=workers, labels_only=labels_only
            ):
                stop = start + len(values)
                labels = source.labels(start, stop) if with_labels else None
                yield AppliedRows(values, source.row_ids(start, stop), labels, source.n_rows)
                progress(stop)


def format_label(value: Any) -> str:
    """Label value as people write it: shortest form, integers without a decimal point."""
    return value if isinstance(value, str) else repr(float(value)).removesuffix(".0")


def format_gap(gap: float | None) -> str:
    """Write a gap with three digits, or a word for an unknown one."""
    return "unknown" if gap is None else f"{gap:.2e}"


def print_result(result: Mapping[str, Any], *, as_json: bool) -> None:
    """Write a result on standard output: one JSON object, or aligned lines."""
    if as_json:
        print(to_json(result))
        return
    width = max(len(name) for name in result)
    for name, value in result.items():
        print(f"{name:<{width}}  {format_value(value)}")


def print_machines(machines: Sequence[Mapping[str, Any]], most: int | None = None) -> None:
    """Write the certified gap of each machine, or of the first few, by the pair of its classes."""
    for machine in machines[:most]:
        names = (format_label(machine[side]) for side in ("negative", "positive"))
        print(" against ".join(names), format_gap(machine["certified_gap"]), sep="  ")
    if most is not None and len(machines) > most:
        print(f"and {len(machines) - most} more machines, which --json lists")


def format_value(value: object) -> str:
    """Write a value for people."""
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} ({format_value(item)})" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(format_value(item) for item in value)
    return str(value)


@dataclass(frozen=True)
class Number:
    """Argument type of a number within limits.

    Parameters
    ----------
    low, high : float
        Least and largest value.
    whole : bool
        Whether it has to be a whole number.
    above : bool
        Whether `low` itself is too small.
    """

    low: float
    high: float
    whole: bool = False
    above: bool = False

    def __call__(self, text: str) -> float:
        """Read a number; ArgumentTypeError, which argparse shows, where it is none of these."""
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            value = math.nan
        if self.low <= value <= self.high and not (self.above and value == self.low):
            return value
        kind = "a whole number" if self.whole else "a number"
        low = f"above {self.low:g}" if self.above else f"of at least {self.low:g}"
        bounded = self.high != LARGEST or value > self.high
        high = f" and at most {self.high:g}" if bounded else ""
        raise argparse.ArgumentTypeError(f"must be {kind} {low}{high}, not {text!r}")


LARGEST = 2**63 - 1
POSITIVE = Number(0, 1e100, above=True)
"""A penalty, a tolerance or the like."""

COUNT = Number(1, LARGEST, whole=True)
ITERATIONS = SEED = Number(0, LARGEST, whole=True)
THREADS = Number(1, 4096, whole=True)
DEGREE = Number(1, 2**31 - 1, whole=True)
COEF0 = Number(0, 1e100)


def byte_size(text: str) -> int:
    """Argument type of a size in bytes."""
    return parse_bytes(text)
