"""``ooc-fw predict``: labels, decision values or probabilities of rows, in the user's order."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from ooc_fw.cli import common
from ooc_fw.cli.arguments import (
    add_data_arguments,
    add_model_argument,
    add_result_arguments,
    add_work_arguments,
)
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, atomic_path, check_outputs, is_stream, open_output

if TYPE_CHECKING:
    from ooc_fw.data.rows import Float64Array
    from ooc_fw.model.record import Model

HDF5_SUFFIXES = (".h5", ".hdf5")

_CHUNK_ROWS = 1 << 14
"""Rows of a chunk of HDF5 output."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "predict",
        help="apply a model to rows",
        description="Print the predicted label of each row, one a line, in the order of the rows "
        "before any shuffling. Text is scaled like the training data. Memory does not grow with "
        "the number of rows; many results of a shuffled file wait on disk.",
    )
    add_model_argument(parser)
    add_data_arguments(parser, text=True, labels=False)
    parser.add_argument(
        "-o",
        "--output",
        default="-",
        metavar="FILE",
        help="FILE.csv: a table with a header, row and label and what is asked for below; FILE.h5: "
        "data sets of these names; any other name: lines as on standard output (default)",
    )
    parser.add_argument(
        "--decision",
        action="store_true",
        help="decision values (margin at -1 and 1, positive for the larger label); for more than "
        "two classes one for each pair, (first, second), (first, third), ...",
    )
    parser.add_argument(
        "--probability",
        action="store_true",
        help="the probability of each class, in increasing order of labels; for models of "
        "ooc-fw train --probability",
    )
    add_work_arguments(parser)
    add_result_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Write the results of each row."""
    from ooc_fw.cli.applying import apply_model, in_order
    from ooc_fw.model.record import load_model

    started = time.perf_counter()
    output = None if args.output == "-" else Path(args.output)
    if output is not None:
        streamed = output.suffix.lower() not in HDF5_SUFFIXES
        check_outputs([Output("output", output, streamed)], [args.model, args.data])
    elif args.json:
        raise InputError("--json needs -o FILE, where the predictions go")
    model = load_model(args.model)
    if args.probability and not model.calibrated:
        raise InputError(
            f"the model {args.model} gives no probabilities; train it with ooc-fw train "
            f"--probability"
        )
    blocks = apply_model(model, args, labels_only=not (args.decision or args.probability))
    folder = None if output is None or is_stream(output) else output.resolve().parent
    n_rows = 0
    with _writer(output, _Wanted(model, args.decision, args.probability)) as writer:
        for values in in_order(blocks, args.data, folder):
            writer.write(values, n_rows)
            n_rows += len(values)
    if args.json:
        seconds = time.perf_counter() - started
        common.print_result(args, {"output": str(output), "n_rows": n_rows, "seconds": seconds})
    return common.DONE


@dataclass(frozen=True)
class _Wanted:
    """What is written of each row."""

    model: Model
    decision: bool
    probability: bool

    @property
    def names(self) -> list[str]:
        """Labels of the classes."""
        return [common.format_label(value) for value in self.model.classes.tolist()]

    def labels(self, values: Float64Array) -> Iterator[str]:
        """Predicted label of each row."""
        names = self.names
        return (names[place] for place in self.model.class_places(values).tolist())


class _Writer(Protocol):
    """A form of output."""

    def write(self, values: Float64Array, start: int) -> None:
        """Write the results of consecutive rows, from row `start` on, by their decision values."""


@contextmanager
def _writer(output: Path | None, wanted: _Wanted) -> Iterator[_Writer]:
    """The form of output that the name asks for; a file appears when it is complete."""
    suffix = "" if output is None else output.suffix.lower()
    if suffix not in (".csv", *HDF5_SUFFIXES) and wanted.decision and wanted.probability:
        raise InputError(
            "lines hold decision values or probabilities, not both; leave one out, or give -o "
            "FILE.csv or FILE.h5"
        )
    if output is None:
        yield _Lines(sys.stdout, wanted)
    elif suffix in HDF5_SUFFIXES:
        from ooc_fw.convert.writer import OutputFile

        with atomic_path(output) as path, OutputFile(path) as file:
            yield _Datasets(file, wanted)
    else:
        with open_output(output, encoding="utf-8", newline="") as text:
            form = _Table if suffix == ".csv" else _Lines
            yield form(text, wanted)


class _Lines:
    """A line for each row: the label, or the numbers asked for."""

    def __init__(self, file: IO[str], wanted: _Wanted) -> None:
        self._file, self._wanted = file, wanted

    def write(self, values: Float64Array, start: int) -> None:
        lines = self._wanted.labels(values)
        if self._wanted.decision or self._wanted.probability:
            shown = values if self._wanted.decision else self._wanted.model.probabilities(values)
            table = shown.reshape(len(shown), -1).tolist()
            lines = (" ".join([f"{value:.17g}" for value in row]) for row in table)
        self._file.writelines(f"{line}\n" for line in lines)


class _Table:
    """CSV with a header: row, label, decision values, probabilities."""

    def __init__(self, file: IO[str], wanted: _Wanted) -> None:
        self._writer, self._wanted = csv.writer(file, lineterminator="\n"), wanted
        header = ["row", "label"]
        machines = wanted.model.classifiers
        if wanted.decision and len(machines) == 1:
            header.append("decision")
        elif wanted.decision:
            pairs = [
                map(common.format_label, (machine.negative, machine.positive))
                for machine in machines
            ]
            header += [f"decision_{negative}_{positive}" for negative, positive in pairs]
        if wanted.probability:
            header += [f"p_{name}" for name in wanted.names]
        self._writer.writerow(header)

    def write(self, values: Float64Array, start: int) -> None:
        columns: list[Any] = [range(start, start + len(values)), self._wanted.labels(values)]
        if self._wanted.decision:
            columns += values.reshape(len(values), -1).T.tolist()
        if self._wanted.probability:
            columns += self._wanted.model.probabilities(values).T.tolist()
        self._writer.writerows(zip(*columns, strict=True))


class _Datasets:
    """HDF5: data sets row, label, decision, probability, and the classes as an attribute."""

    def __init__(self, file: Any, wanted: _Wanted) -> None:
        import h5py
        import numpy as np

        self._file, self._wanted = file, wanted
        self._labels = labels = wanted.model.classes
        if labels.dtype.kind == "U":
            encoded = np.char.encode(labels, "utf-8")
            kind = h5py.string_dtype("utf-8", encoded.dtype.itemsize)
            self._labels = encoded.astype(kind)
        file.attrs["classes"] = self._labels
        self._add("row", np.int64)
        self._add("label", self._labels.dtype)
        n_pairs = len(wanted.model.classifiers)
        if wanted.decision:
            self._add("decision", np.float64, *(() if n_pairs == 1 else (n_pairs,)))
        if wanted.probability:
            self._add("probability", np.float64, len(labels))

    def _add(self, name: str, dtype: Any, *tail: int) -> None:
        self._file.create_dataset(
            name,
            shape=(0, *tail),
            maxshape=(None, *tail),
            chunks=(_CHUNK_ROWS, *tail),
            dtype=dtype,
        )

    def write(self, values: Float64Array, start: int) -> None:
        import numpy as np

        model, stop = self._wanted.model, start + len(values)
        found = {"row": np.arange(start, stop), "label": self._labels[model.class_places(values)]}
        if self._wanted.decision:
            found["decision"] = values
        if self._wanted.probability:
            found["probability"] = model.probabilities(values)
        for name, part in found.items():
            self._file[name].resize(stop, axis=0)
            self._file[name][start:stop] = part
        self._file.check()
