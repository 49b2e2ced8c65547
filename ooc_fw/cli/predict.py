"""``ooc-fw predict``: writes labels, decision values and probabilities in the order of the rows."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.cli.models import new_rows, open_model
from ooc_fw.data.labels import Classes, label_number
from ooc_fw.data.rows import AnyArray, Float64Array
from ooc_fw.model.applying import AppliedRows, apply_model
from ooc_fw.model.machines import class_pairs
from ooc_fw.model.prediction import without_value
from ooc_fw.model.record import Model
from ooc_fw.system import files
from ooc_fw.system.errors import InputError, printable

_ROWS = 1 << 14  # rows that are printed together
_SPANS = 16  # spans of row numbers; sorting one takes memory in proportion to its rows
# Suffixes of files that are not text.
_NO_TEXT = (".h5", ".hdf5", ".h5ad", ".zarr", ".npy", ".npz", ".parquet", ".arrow", ".onnx")


def run(args: argparse.Namespace) -> int:
    """Apply a model to rows."""
    output = None if args.output == "-" else Path(args.output)
    model = open_model(args)
    names = Classes(model.classes).names
    predictions = files.Output("predictions", output, partial(_is_own, names))
    files.check_outputs([predictions], common.inputs_of(args))
    of_numbers = model.task == "regression"
    is_table = output is not None and output.suffix.lower() == ".csv"
    _check(args, model, names, is_table=is_table)
    labels_only = not (args.decision or args.probability or args.unassigned)
    blocks = (
        block._replace(values=_results(args, model, block.values))
        for block in apply_model(model, new_rows(args, args.model), labels_only=labels_only)
    )
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
    words = [*names, "unassigned", ""]  # place -1 is the last one, for rows without a label
    n_rows = 0
    n_unknown = 0
    n_unassigned = 0
    with ExitStack() as stack:
        file: Any = sys.stdout
        if output is not None:
            path = stack.enter_context(files.atomic_path(output))
            file = stack.enter_context(open(path, "w", **how))
        # Files and pipes get labels byte by byte; on a terminal, control characters are escaped.
        shown = printable if file.isatty() else str
        # Others take a carriage return without quotes for a line break.
        quoting: Any = csv.QUOTE_NONNUMERIC if "\r" in "".join(names) else csv.QUOTE_MINIMAL
        table = csv.writer(file, lineterminator="\n", quoting=quoting)
        if is_table:
            csv.writer(file, lineterminator="\n").writerow(_titles(args, model, names))
        for ids, results in in_order(blocks, args.data):
            first = results[:, 0]
            unknown = without_value(results) if of_numbers else first < 0
            n_unknown += int(np.count_nonzero(unknown))
            n_unassigned += int(np.count_nonzero(first == len(names))) if args.unassigned else 0
            n_rows += len(results)
            classes = [] if of_numbers else first.astype(np.int64).tolist()
            labels = [] if of_numbers else [[words[place] for place in classes]]
            numbers = results[:, len(labels) :].T.tolist()
            if is_table:
                table.writerows(zip(ids, *labels, *numbers, strict=True))
            elif numbers:
                rows = zip(*numbers, strict=True)
                lines = [" ".join([f"{number:.17g}" for number in row]) for row in rows]
                file.write("\n".join([*lines, ""]))
            else:
                file.write("\n".join([*map(shown, labels[0]), ""]))
            file.flush()
    if args.unassigned is not None:
        common.say(args, f"note: {n_unassigned} of {n_rows} rows are unassigned")
    if args.json:
        result = {"output": str(output), "n_rows": n_rows, "n_unknown": n_unknown}
        common.print_result(args, result | {"n_unassigned": n_unassigned})
    return NO if n_unknown else DONE


def _is_own(names: list[str], path: Path) -> bool:
    """Whether a file begins like predictions: with titles, a class of `names`, or numbers."""
    with path.open("rb") as file:
        line = file.readline(1 << 16).decode("utf-8", "surrogateescape").rstrip("\n")
    is_titled = line.startswith(("row,label", "row,prediction"))
    are_numbers = None not in map(label_number, line.split(" "))
    return is_titled or line in (*names, "") or are_numbers


def _check(args: argparse.Namespace, model: Model, names: list[str], *, is_table: bool) -> None:
    is_plain = not (is_table or args.decision or args.probability)
    reasons = {
        f"{args.output}: predictions are text; give -o FILE.csv, or another name for lines": (
            args.output.lower().endswith(_NO_TEXT)
        ),
        "--json needs -o FILE, where the predictions go": args.json and args.output == "-",
        f"labels of {args.model} have line breaks, which lines cannot hold; give -o FILE.csv": (
            is_plain and not {"\r", "\n"}.isdisjoint("".join(names))
        ),
        f"the model {args.model} gives no probabilities; train it with ooc-fw train "
        f"--probability": (args.probability or args.unassigned) and not model.calibrated,
        f"{args.model} has a class that is called unassigned; leave out --unassigned": (
            args.unassigned is not None and "unassigned" in names
        ),
    }
    common.refuse(reasons)


def _titles(args: argparse.Namespace, model: Model, names: list[str]) -> list[str]:
    """Names of the columns of a CSV file."""
    if model.task == "regression":
        return ["row", "prediction"]
    titles = ["row", "label"]
    if args.decision and model.decision == "ovr":
        titles += [f"decision_{name}" for name in names]
    elif args.decision and len(names) > 2:
        titles += [f"decision_{names[j]}_{names[i]}" for j, i in class_pairs(len(names))]
    elif args.decision:
        titles.append("decision")
    return titles + [f"p_{name}" for name in names if args.probability]


def _results(args: argparse.Namespace, model: Model, values: Float64Array) -> AnyArray:
    """Row by row, the place of the class (-1: none) and numbers to print; or the prediction."""
    if model.task == "regression":
        return values[:, None]
    known = ~without_value(values)
    places = np.full(len(values), -1, dtype=np.int16)
    places[known] = model.class_places(values[known])
    if args.unassigned is not None:
        chances = model.probabilities(values)[np.arange(len(values)), places]
        places[known & (chances < args.unassigned)] = len(model.classes)
    columns: list[AnyArray] = [places]
    columns += [values] if args.decision else []
    columns += [model.probabilities(values)] if args.probability else []
    return np.column_stack(columns)


def in_order(blocks: Iterable[AppliedRows], name: str) -> Iterator[tuple[list[int], Float64Array]]:
    """Yield the rows' numbers in the user's input, and values, by these numbers.

    Shuffled rows wait in RAM until all are known; then spans of their numbers are sorted one by
    one. InputError, which names the file, unless each of them has a number of its own.
    """
    held = np.empty((0, 1))
    numbers = np.empty(0, np.int64)
    done = 0
    for values, _, row_ids, n_rows in blocks:
        stop = done + len(values)
        if row_ids is None:
            yield [*range(done, stop)], values
        elif done == 0:
            held = np.empty((n_rows, values.shape[1]), values.dtype)
            numbers = np.full(n_rows, -1)
        if row_ids is not None:
            held[done:stop] = values
            numbers[done:stop] = row_ids
        done = stop
    if numbers.min(initial=0) < 0:
        raise _wrong_numbers(name)
    width = 1 + int(numbers.max(initial=0)) // _SPANS
    for least in range(0, _SPANS * width, width):
        rows = np.flatnonzero((numbers >= least) & (numbers < least + width))
        rows = rows[np.argsort(numbers[rows])]
        if np.diff(numbers[rows]).min(initial=1) < 1:
            raise _wrong_numbers(name)
        for part in np.split(rows, range(_ROWS, len(rows), _ROWS)):
            yield numbers[part].tolist(), held[part]


def _wrong_numbers(name: str) -> InputError:
    return InputError(
        f"the row numbers stored in {name} do not name each of its rows once; write it again with "
        f"ooc-fw convert"
    )
