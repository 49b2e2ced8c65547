"""``ooc-fw predict``: labels, decision values and probabilities in the order of the user's rows."""

from __future__ import annotations

import argparse
import csv
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeAlias

import h5py
import numpy as np

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.cli.rows import AppliedRows, apply_model, open_model
from ooc_fw.convert.writer import OutputFile
from ooc_fw.data.opening import open_source
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.model.machines import class_pairs
from ooc_fw.model.prediction import Wanted
from ooc_fw.model.record import Model
from ooc_fw.system import files
from ooc_fw.system.errors import InputError, format_label, printable

Columns: TypeAlias = dict[str, AnyArray]
"""Results of a block of rows by their names."""

_FORMS = {".csv": "csv", ".h5": "hdf5", ".hdf5": "hdf5"}
_OTHER_FORMATS = (".parquet", ".npy", ".npz", ".json", ".gz", ".xz")
_BLOCK_ROWS = 1 << 14  # rows of a chunk of HDF5 output, and of results that have waited


def run(args: argparse.Namespace) -> int:
    """Apply a model to rows."""
    output = None if args.output == "-" else Path(args.output)
    suffix = "" if output is None else output.suffix.lower()
    form = _FORMS.get(suffix, "lines")
    outputs = [] if output is None else [files.Output("output", output, form != "hdf5")]
    files.check_outputs(outputs, args.inputs)
    model = open_model(args)
    _check(args, model, form == "lines")
    labels_only = not (args.decision or args.probability) and model.task != "regression"
    wanted = Wanted(labels_only, args.threshold or 0.0)
    blocks = apply_model(model, args, wanted)
    if labels_only:
        blocks = (block._replace(values=_places(model, block.values, wanted)) for block in blocks)
    n_rows = 0
    n_unknown = 0
    with ExitStack() as stack:
        names = None if form == "lines" else _row_names(args, stack)
        labels = _labels_for(model, form)
        write = stack.enter_context(_open(output, form, model, labels))
        streams = output is None or files.is_stream(output)
        folder = None if streams or output is None else output.resolve().parent
        for row_ids, results in in_order(blocks, args.data, folder):
            columns: Columns = {"row": row_ids}
            if names is not None:
                columns["name"] = names.labels(n_rows, n_rows + len(results))
            columns |= _columns(args, model, labels, results)
            write(columns)
            n_rows += len(results)
            first = results.reshape(len(results), -1)[:, 0]
            n_unknown += int(np.count_nonzero(first < 0 if labels_only else np.isnan(first)))
    if args.json:
        seconds = time.perf_counter() - args.started
        result = {"output": str(output), "n_rows": n_rows, "n_unknown": n_unknown}
        common.print_result(args, result | {"seconds": seconds})
    return NO if n_unknown else DONE


def _row_names(args: argparse.Namespace, stack: ExitStack) -> RowSource | None:
    """Source whose labels are the names of the rows, which AnnData alone has."""
    with suppress(InputError):
        how = {"x_name": args.x_name, "label": "obs/_index"}
        source = stack.enter_context(open_source(common.data_of(args), **how))
        return source if source.has_labels else None
    return None


def _check(args: argparse.Namespace, model: Model, in_lines: bool) -> None:
    labels_in_lines = in_lines and not (args.decision or args.probability)
    broken = labels_in_lines and any(re.search("[\r\n]", name) for name in _names(model))
    reasons = {
        f"predictions are written as CSV, HDF5 or lines of text, not as {args.output}; give a name "
        f"that ends in .csv, .h5 or .txt": args.output.lower().endswith(_OTHER_FORMATS),
        "--json needs -o FILE, where the predictions go": args.json and args.output == "-",
        "lines hold decision values or probabilities, not both; leave one out, or give -o FILE.csv "
        "or FILE.h5": in_lines and args.decision and args.probability,
        f"labels of {args.model} have line breaks, which lines cannot hold; give -o FILE.csv or "
        f"FILE.h5": broken,
        f"the model {args.model} gives no probabilities; train it with ooc-fw train "
        f"--probability": args.probability and not model.calibrated,
        f"the model {args.model} is one of regression, which has predictions only; leave out "
        f"--decision": args.decision and model.task == "regression",
        f"--threshold is for two classes or novelty, which {args.model} has not; leave it out": (
            args.threshold is not None and (len(model.classes) != 2 or model.task == "regression")
        ),
    }
    common.refuse(reasons)


def _names(model: Model) -> list[str]:
    return [format_label(value) for value in model.classes.tolist()]


def _places(model: Model, values: Float64Array, wanted: Wanted) -> Any:
    """Place of the class of each row, -1 for rows without a decision value."""
    known = ~np.isnan(values.reshape(len(values), -1)[:, 0])
    places = np.full(len(values), -1, dtype=np.int32)
    places[known] = model.class_places(values[known], wanted.threshold)
    return places


def _labels_for(model: Model, form: str) -> AnyArray:
    """Labels of the classes, and at the end that of rows without a decision value."""
    if form != "hdf5":
        return np.array([*_names(model), ""], object)
    if model.classes.dtype.kind == "f":
        return np.append(model.classes, np.nan)
    words = np.char.encode(np.append(model.classes, ""), "utf-8")  # as HDF5 stores them
    return np.asarray(words, h5py.string_dtype("utf-8", words.dtype.itemsize))


def _columns(args: argparse.Namespace, model: Model, labels: AnyArray, results: Any) -> Columns:
    """What is written for rows, of which `results` are places of classes or decision values."""
    if model.task == "regression":
        return {"prediction": results}
    if results.dtype.kind == "i":
        return {"label": labels[results]}
    wanted = Wanted(False, args.threshold or 0.0)
    columns = {"label": labels[_places(model, results, wanted)]}
    if args.decision:
        columns["decision"] = results
    if args.probability:
        columns["probability"] = model.probabilities(results)
    return columns


def in_order(
    blocks: Iterable[AppliedRows], name: str, folder: Path | None = None
) -> Iterator[tuple[Int64Array, AnyArray]]:
    """Numbers and results in the order of the user's rows, block by block.

    Rows that arrive in order pass through. From the first other block on, all results wait in a
    file in `folder`, or that of temporary files. InputError, which names the input, unless the row
    numbers are 0 to n_rows - 1, each of them once.
    """
    folder = folder or Path(tempfile.gettempdir())
    n_passed = 0
    held = None
    with ExitStack() as stack:
        for block in blocks:
            ids = block.row_ids
            if held is None and np.array_equal(ids, np.arange(n_passed, n_passed + len(ids))):
                yield ids, block.values
                n_passed += len(ids)
                continue
            if held is None:
                assert block.n_rows is not None
                shape = (block.n_rows, *block.values.shape[1:])
                kind = block.values.dtype
                with files.naming(folder):
                    file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                    # A disk that is full later would end the process.
                    os.posix_fallocate(file.fileno(), 0, kind.itemsize * math.prod(shape))
                held = np.memmap(file, kind, "r+", shape=shape)
                missing = np.ones(len(held), dtype=bool)
                missing[:n_passed] = False
                first = n_passed
            n_passed += len(ids)
            if not ((ids >= 0) & (ids < len(held))).all() or not missing[ids].all():
                break
            missing[ids] = False
            held[ids] = block.values
        if held is None:
            return
        if missing.any() or n_passed != len(held):
            raise InputError(
                f"the row numbers stored in {name} do not name each of its rows once; write it "
                f"again with ooc-fw convert"
            )
        for start in range(first, len(held), _BLOCK_ROWS):
            part = np.array(held[start : start + _BLOCK_ROWS])
            yield np.arange(start, start + len(part)), part


@contextmanager
def _open(
    output: Path | None, form: str, model: Model, labels: AnyArray
) -> Iterator[Callable[[Columns], None]]:
    """Function that writes blocks of results; a file appears when it is complete."""
    if output is None:
        # A program reads what was predicted to the byte; a terminal would obey it.
        shown = printable if sys.stdout.isatty() else str
        yield partial(_write_lines, sys.stdout, shown=shown)
    elif form == "hdf5":
        with files.atomic_path(output) as path, OutputFile(path) as file:
            file.attrs["classes"] = labels[:-1]
            yield partial(_write_datasets, file)
    else:
        write = partial(_write_table, model) if form == "csv" else _write_lines
        how: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
        with files.open_output(output, **how) as text:
            yield partial(write, text)


def _write_lines(file: IO[str], columns: Columns, shown: Callable[[str], str] = str) -> None:
    name, last = list(columns.items())[-1]
    lines = last.tolist()
    if name != "label":
        rows = last.reshape(len(last), -1).tolist()
        lines = [" ".join([f"{value:.17g}" for value in row]) for row in rows]
    file.write("".join([f"{shown(line)}\n" for line in lines]))


def _write_table(model: Model, file: IO[str], columns: Columns) -> None:
    """Write CSV: row, name, label, decision values, probabilities, and a header at first."""
    table = csv.writer(file, lineterminator="\n")
    if len(columns["row"]) and columns["row"][0] == 0:
        names = _names(model)
        titles = {name: [name] for name in columns} | {"probability": [f"p_{n}" for n in names]}
        if model.decision == "ovr":
            titles["decision"] = [f"decision_{name}" for name in names]
        elif len(names) > 2:
            pairs = class_pairs(len(names))
            titles["decision"] = [f"decision_{names[j]}_{names[i]}" for j, i in pairs]
        table.writerow([title for name in columns for title in titles[name]])
    parts = [column.reshape(len(column), -1).T.tolist() for column in columns.values()]
    table.writerows(zip(*chain(*parts), strict=True))


def _write_datasets(file: Any, columns: Columns) -> None:
    for name, column in columns.items():
        if name == "name":
            column = column.astype(h5py.string_dtype())
        tail = column.shape[1:]
        if name not in file:
            shape = {"shape": (0, *tail), "maxshape": (None, *tail), "chunks": (_BLOCK_ROWS, *tail)}
            file.create_dataset(name, dtype=column.dtype, **shape)
        stop = len(file[name]) + len(column)
        file[name].resize(stop, axis=0)
        file[name][stop - len(column) :] = column
    file.check()
