"""``ooc-fw predict``: labels, decision values or probabilities for rows, in the user's order.

Owns the forms of the output. Reading rows and applying the model are `common.apply_model`, the
order is `ooc_fw.cli.placing`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from ooc_fw.cli import common
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, atomic_path, check_outputs, is_stream, open_output

if TYPE_CHECKING:
    from ooc_fw.data.rows import Float64Array, Int64Array
    from ooc_fw.model.record import Model

HDF5_SUFFIXES = (".h5", ".hdf5")
_CHUNK_ROWS = 1 << 14  # of HDF5 output


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "predict",
        help="apply a model to rows",
        description="Print the predicted label of each row, one a line, in the order of the rows "
        "before any shuffling. Text is scaled like the training data. Memory does not grow with "
        "the number of rows; results of shuffled files wait on disk where they are many.",
    )
    parser.add_argument("model", metavar="MODEL", help="file written by ooc-fw train")
    common.add_data_arguments(parser, text=True, labels=False)
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
        help="decision values (margin at -1 and 1, positive for the larger label); of more than "
        "two classes one for each pair, (first, second), (first, third), ...",
    )
    parser.add_argument(
        "--probability",
        action="store_true",
        help="the probability of each class, in increasing order of labels; for models of "
        "ooc-fw train --probability",
    )
    common.add_threads_argument(parser)
    common.add_dask_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Write the results of each row."""
    from ooc_fw.cli.placing import in_order
    from ooc_fw.model.record import load_model

    output = None if args.output == "-" else Path(args.output)
    if output is not None:
        streamed = output.suffix.lower() not in HDF5_SUFFIXES
        check_outputs([Output("output", output, streamed)], [args.model, args.data])
    model = load_model(args.model)
    if args.probability and not model.calibrated:
        raise InputError(
            f"the model {args.model} gives no probabilities; train it with ooc-fw train "
            f"--probability"
        )
    blocks = common.apply_model(model, args, labels_only=not (args.decision or args.probability))
    folder = None if output is None or is_stream(output) else output.resolve().parent
    with _writer(output, model, args.decision, args.probability) as writer:
        for values in in_order(blocks, args.data, folder):
            writer.write(values)
    return 0


class _Writer(Protocol):
    """Something that takes the decision values of consecutive rows."""

    def write(self, values: Float64Array) -> None: ...


@contextmanager
def _writer(
    output: Path | None, model: Model, decision: bool, probability: bool
) -> Iterator[_Writer]:
    """The form of output that the name asks for; a file appears when it is whole."""
    suffix = "" if output is None else output.suffix.lower()
    if suffix not in (".csv", *HDF5_SUFFIXES) and decision and probability:
        raise InputError(
            "lines hold decision values or probabilities, not both; leave one out, or give -o "
            "FILE.csv or FILE.h5"
        )
    if output is None:
        yield _Lines(sys.stdout, model, decision, probability)
        return
    if suffix in HDF5_SUFFIXES:
        from ooc_fw.convert.writer import create_file

        with atomic_path(output) as path, create_file(path) as file:
            yield _Datasets(file, model, decision, probability)
        return
    with open_output(output, encoding="utf-8", newline="") as text:
        form = _Table if suffix == ".csv" else _Lines
        yield form(text, model, decision, probability)


class _Lines:
    """One line a row: the label, or the numbers asked for."""

    def __init__(self, file: IO[str], model: Model, decision: bool, probability: bool) -> None:
        self._file = file
        self._model = model
        self._decision, self._probability = decision, probability
        self._names = [common.format_label(value) for value in model.classes.tolist()]

    def write(self, values: Float64Array) -> None:
        """Write lines for consecutive rows."""
        if self._decision or self._probability:
            shown = values if self._decision else self._model.probabilities(values)
            table = shown.reshape(len(shown), -1).tolist()
            lines = (" ".join([f"{value:.17g}" for value in row]) for row in table)
        else:
            lines = (self._names[place] for place in self._model.class_places(values).tolist())
        self._file.writelines(f"{line}\n" for line in lines)


class _Table:
    """CSV with a header: row, label, decision values, probabilities."""

    def __init__(self, file: IO[str], model: Model, decision: bool, probability: bool) -> None:
        self._writer = csv.writer(file, lineterminator="\n")
        self._model = model
        self._decision, self._probability = decision, probability
        self._names = [common.format_label(value) for value in model.classes.tolist()]
        self._row = 0
        header = ["row", "label"]
        if decision and len(model.machines) == 1:
            header.append("decision")
        elif decision:
            header += [
                f"decision_{common.format_label(machine.negative)}_"
                f"{common.format_label(machine.positive)}"
                for machine in model.machines
            ]
        if probability:
            header += [f"p_{name}" for name in self._names]
        self._writer.writerow(header)

    def write(self, values: Float64Array) -> None:
        """Write lines for consecutive rows."""
        stop = self._row + len(values)
        places = self._model.class_places(values).tolist()
        columns: list[Any] = [range(self._row, stop), [self._names[place] for place in places]]
        if self._decision:
            columns += values.reshape(len(values), -1).T.tolist()
        if self._probability:
            columns += self._model.probabilities(values).T.tolist()
        self._writer.writerows(zip(*columns, strict=True))
        self._row = stop


class _Datasets:
    """HDF5: data sets row, label, decision, probability, and the classes as an attribute."""

    def __init__(self, file: Any, model: Model, decision: bool, probability: bool) -> None:
        import numpy as np

        self._file = file
        self._model = model
        self._labels = model.classes
        if model.classes.dtype.kind == "U":
            encoded = np.char.encode(model.classes, "utf-8")
            self._labels = encoded.astype(_utf8(encoded.dtype.itemsize))
        file.attrs["classes"] = self._labels
        self._add("row", np.int64)
        self._add("label", self._labels.dtype)
        n_machines = len(model.machines)
        if decision:
            self._add("decision", np.float64, *(() if n_machines == 1 else (n_machines,)))
        if probability:
            self._add("probability", np.float64, len(model.classes))

    def _add(self, name: str, dtype: Any, *tail: int) -> None:
        self._file.create_dataset(
            name,
            shape=(0, *tail),
            maxshape=(None, *tail),
            chunks=(_CHUNK_ROWS, *tail),
            dtype=dtype,
        )

    def write(self, values: Float64Array) -> None:
        """Append the results of consecutive rows."""
        import numpy as np

        places: Int64Array = self._model.class_places(values)
        start = len(self._file["row"])
        stop = start + len(values)
        found = {"row": np.arange(start, stop), "label": self._labels[places]}
        if "decision" in self._file:
            found["decision"] = values
        if "probability" in self._file:
            found["probability"] = self._model.probabilities(values)
        for name, part in found.items():
            self._file[name].resize(stop, axis=0)
            self._file[name][start:stop] = part
        self._file.check()


def _utf8(length: int) -> Any:
    """HDF5 type of words of at most `length` bytes."""
    import h5py

    return h5py.string_dtype("utf-8", length)
