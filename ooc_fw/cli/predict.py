"""``ooc-fw predict``: labels, decision values or probabilities of rows, in the user's order."""

from __future__ import annotations

import argparse
import csv
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.cli import common
from ooc_fw.cli.applying import apply_model, in_order
from ooc_fw.cli.commands import DONE
from ooc_fw.convert.writer import OutputFile
from ooc_fw.model.pairs import class_pairs
from ooc_fw.model.record import Model, load_model
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, atomic_path, check_outputs, exact, is_stream, open_output

HDF5_SUFFIXES = (".h5", ".hdf5")

_CHUNK_ROWS = 1 << 14
"""Rows of a chunk of HDF5 output."""


def run(args: argparse.Namespace) -> int:
    """Apply a model to rows."""
    started = time.perf_counter()
    output = None if args.output == "-" else Path(args.output)
    suffix = "" if output is None else output.suffix.lower()
    if output is not None:
        streamed = suffix not in HDF5_SUFFIXES
        check_outputs([Output("output", output, streamed)], [args.model, args.data])
    elif args.json:
        raise InputError("--json needs -o FILE, where the predictions go")
    if suffix not in (".csv", *HDF5_SUFFIXES) and args.decision and args.probability:
        raise InputError(
            "lines hold decision values or probabilities, not both; leave one out, or give -o "
            "FILE.csv or FILE.h5"
        )
    model = load_model(args.model)
    in_lines = suffix not in (".csv", *HDF5_SUFFIXES) and not (args.decision or args.probability)
    if in_lines and any(re.search("[\r\n]", name) for name in _names(model)):
        raise InputError(
            f"labels of {args.model} have line breaks, which lines cannot hold; give -o FILE.csv "
            f"or FILE.h5"
        )
    if args.probability and not model.calibrated:
        raise InputError(
            f"the model {args.model} gives no probabilities; train it with ooc-fw train "
            f"--probability"
        )
    if model.task == "regression" and args.decision:
        raise InputError(
            f"the model {args.model} is one of regression, which has predictions only; leave out "
            f"--decision"
        )
    blocks = apply_model(model, args, labels_only=not (args.decision or args.probability))
    folder = None if output is None or is_stream(output) else output.resolve().parent
    n_rows = 0
    with _open(output, suffix, model) as write:
        for values in in_order(blocks, args.data, folder):
            columns: dict[str, npt.NDArray[Any]] = {"row": np.arange(n_rows, n_rows + len(values))}
            if model.task == "regression":
                columns["prediction"] = values
            else:
                columns["label"] = model.class_places(values)
            if args.decision:
                columns["decision"] = values
            if args.probability:
                columns["probability"] = model.probabilities(values)
            write(columns)
            n_rows += len(values)
    if args.json:
        seconds = time.perf_counter() - started
        common.print_result(args, {"output": str(output), "n_rows": n_rows, "seconds": seconds})
    return DONE


@contextmanager
def _open(
    output: Path | None, suffix: str, model: Model
) -> Iterator[Callable[[dict[str, npt.NDArray[Any]]], None]]:
    """Function that writes blocks of results; a file appears when it is complete."""
    if output is None:
        # A program reads what was predicted to the byte; a terminal would obey it.
        file = sys.stdout if sys.stdout.isatty() else exact(sys.stdout)
        yield partial(_write_lines, file, model)
    elif suffix in HDF5_SUFFIXES:
        with atomic_path(output) as path, OutputFile(path) as file:
            labels = _encoded(model.classes)
            file.attrs["classes"] = labels
            yield partial(_write_datasets, file, labels)
    else:
        write = _write_table if suffix == ".csv" else _write_lines
        with open_output(output, encoding="utf-8", newline="") as text:
            yield partial(write, text, model)


def _names(model: Model) -> list[str]:
    return [common.format_label(value) for value in model.classes.tolist()]


def _write_lines(file: IO[str], model: Model, columns: dict[str, npt.NDArray[Any]]) -> None:
    """A line for each row: the label, or the numbers asked for."""
    names = _names(model)
    name, last = list(columns.items())[-1]
    if name == "label":
        file.write("".join([f"{names[place]}\n" for place in last.tolist()]))
    else:
        rows = last.reshape(len(last), -1).tolist()
        lines = [" ".join([f"{value:.17g}" for value in row]) + "\n" for row in rows]
        file.write("".join(lines))


def _write_table(file: IO[str], model: Model, columns: dict[str, npt.NDArray[Any]]) -> None:
    """CSV with a header: row, label, decision values, probabilities."""
    names = _names(model)
    writer = csv.writer(file, lineterminator="\n")
    if columns["row"][:1] == 0:
        header = {name: [name] for name in ("row", "label", "prediction", "decision")}
        if model.decision == "ovr":
            header["decision"] = [f"decision_{name}" for name in names]
        elif len(names) > 2:
            pairs = class_pairs(len(names))
            header["decision"] = [f"decision_{names[j]}_{names[i]}" for j, i in pairs]
        header["probability"] = [f"p_{name}" for name in names]
        writer.writerow([title for name in columns for title in header[name]])
    cells: list[Any] = []
    for name, column in columns.items():
        if name == "label":
            cells.append([names[k] for k in column.tolist()])
        else:
            cells += column.reshape(len(column), -1).T.tolist()
    writer.writerows(zip(*cells, strict=True))


def _write_datasets(
    file: Any, labels: npt.NDArray[Any], columns: dict[str, npt.NDArray[Any]]
) -> None:
    """HDF5: a data set for each column."""
    for name, column in columns.items():
        part = labels[column] if name == "label" else column
        if name not in file:
            tail = part.shape[1:]
            shape = {"shape": (0, *tail), "maxshape": (None, *tail), "chunks": (_CHUNK_ROWS, *tail)}
            file.create_dataset(name, dtype=part.dtype, **shape)
        stop = len(file[name]) + len(part)
        file[name].resize(stop, axis=0)
        file[name][stop - len(part) :] = part
    file.check()


def _encoded(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Labels as HDF5 stores them: words as UTF-8."""
    if labels.dtype.kind != "U":
        return labels
    words = np.char.encode(labels, "utf-8")
    return words.astype(h5py.string_dtype("utf-8", words.dtype.itemsize))
