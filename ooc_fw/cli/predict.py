"""``ooc-fw predict``, and what other commands share that apply a model to DATA.

DATA are a data file, text, or a table with the columns of that of training. What is printed is in
the order of the user's rows.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import h5py
import numpy as np

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.convert.text import iter_libsvm
from ooc_fw.convert.writer import OutputFile
from ooc_fw.data.formats import TABLES, detect_format
from ooc_fw.data.labels import feature_places
from ooc_fw.data.opening import conversion
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array, Rows
from ooc_fw.data.sources import RowSource
from ooc_fw.model.machines import class_pairs
from ooc_fw.model.prediction import (
    Table,
    Wanted,
    decide,
    like_training,
    rows_of_table,
    without_value,
)
from ooc_fw.model.record import Model, load_model
from ooc_fw.options import ConvertOptions
from ooc_fw.report.progress import Waiting
from ooc_fw.system import files
from ooc_fw.system.errors import InputError, format_label, printable

logger = logging.getLogger(__name__)

Columns: TypeAlias = dict[str, AnyArray]
"""Results of a block of rows by their names."""


def run(args: argparse.Namespace) -> int:
    """Apply a model to rows."""
    output = None if args.output == "-" else Path(args.output)
    suffix = "" if output is None else output.suffix.lower()
    form = {".csv": "csv", ".h5": "hdf5", ".hdf5": "hdf5"}.get(suffix, "lines")
    outputs = [] if output is None else [files.Output("output", output)]
    files.check_outputs(outputs, common.inputs_of(args))
    model = open_model(args)
    _check(args, model, form == "lines")
    wanted = Wanted(not (args.decision or args.probability), args.threshold or 0.0)
    folder = Path(tempfile.gettempdir()) if output is None else output.resolve().parent
    n_rows = 0
    n_unknown = 0
    blocks = apply_model(model, args, wanted)
    if wanted.labels_only and model.task != "regression":  # places of classes take less room
        blocks = (block._replace(values=_places(args, model, block.values)) for block in blocks)
    with _open(output, form, args, model) as write:
        for row_ids, results in in_order(blocks, args.data, folder):
            n_rows += len(results)
            unknown = results < 0 if results.dtype.kind == "i" else without_value(results)
            n_unknown += int(np.count_nonzero(unknown))
            write({"row": row_ids} | _columns(args, model, results, form))
    if args.json:
        seconds = time.perf_counter() - args.started
        result = {"output": str(output), "n_rows": n_rows, "n_unknown": n_unknown}
        common.print_result(args, result | {"seconds": seconds})
    return NO if n_unknown else DONE


def _check(args: argparse.Namespace, model: Model, in_lines: bool) -> None:
    labels_in_lines = in_lines and not (args.decision or args.probability)
    of_numbers = model.task == "regression"
    reasons = {
        "--json needs -o FILE, where the predictions go": args.json and args.output == "-",
        "lines hold decision values or probabilities, not both; leave one out, or give -o FILE.csv "
        "or FILE.h5": in_lines and args.decision and args.probability,
        f"labels of {args.model} have line breaks, which lines cannot hold; give -o FILE.csv or "
        f"FILE.h5": labels_in_lines and not {"\r", "\n"}.isdisjoint("".join(_names(model))),
        f"the model {args.model} gives no probabilities; train it with ooc-fw train "
        f"--probability": args.probability and not model.calibrated,
        f"the model {args.model} is one of regression, which has predictions only; leave out "
        f"--decision": args.decision and of_numbers,
        f"--threshold is for two classes or novelty, which {args.model} has not; leave it out": (
            args.threshold is not None and (len(model.classes) != 2 or of_numbers)
        ),
    }
    common.refuse(reasons)


def _names(model: Model) -> list[str]:
    return [format_label(value) for value in model.classes.tolist()]


def _places(args: argparse.Namespace, model: Model, values: AnyArray) -> Any:
    """Place of the class of each row, -1 for rows without a decision value."""
    known = ~without_value(values)
    places = np.full(len(values), -1, dtype=np.int32)
    places[known] = model.class_places(values[known], args.threshold or 0.0)
    return places


def _columns(args: argparse.Namespace, model: Model, results: AnyArray, form: str) -> Columns:
    """What is written for rows, of which `results` are places of classes or decision values."""
    if model.task == "regression":
        return {"prediction": results}
    places = results if results.dtype.kind == "i" else _places(args, model, results)
    columns = {"label": _labels(model, form)[places]}
    if args.decision:
        columns["decision"] = results
    if args.probability:
        columns["probability"] = model.probabilities(results)
    return columns


def _labels(model: Model, form: str) -> AnyArray:
    """Labels of the classes, and at the end that of rows without a decision value."""
    if form != "hdf5":
        return np.array([*_names(model), ""], object)
    if model.classes.dtype.kind == "f":
        return np.append(model.classes, np.nan)
    words = np.char.encode(np.append(model.classes, ""), "utf-8")  # as HDF5 stores them
    return np.asarray(words, h5py.string_dtype("utf-8", words.dtype.itemsize))


def in_order(
    blocks: Iterable[AppliedRows], name: str, folder: Path
) -> Iterator[tuple[Int64Array, AnyArray]]:
    """Numbers and results in the order of the user's rows, block by block.

    Those of a source that numbers its rows wait in a file in `folder`. InputError, which names
    the input, unless the row numbers are 0 to n_rows - 1, each of them once.
    """
    wrong = f"the row numbers stored in {name} do not name each of its rows once; write it again "
    wrong += "with ooc-fw convert"
    held: AnyArray = np.empty(0)
    missing = np.ones(0, bool)
    with ExitStack() as stack:
        for block in blocks:
            if block.n_rows is None:
                yield block.row_ids, block.values
                continue
            if len(held) == 0:
                shape = (block.n_rows, *block.values.shape[1:])
                held = stack.enter_context(_array_in_file(shape, block.values.dtype, folder))
                missing = np.ones(block.n_rows, bool)
            if block.row_ids.min() < 0 or block.row_ids.max() >= block.n_rows:
                raise InputError(wrong)
            missing[block.row_ids] = False
            held[block.row_ids] = block.values
        if missing.any():
            raise InputError(wrong)
        step = 1 << 14
        for start in range(0, len(held), step):
            part = np.array(held[start : start + step])
            yield np.arange(start, start + len(part)), part


@contextmanager
def _array_in_file(shape: tuple[int, ...], kind: Any, folder: Path) -> Iterator[AnyArray]:
    """An array in a file without a name."""
    with files.naming(folder):
        file = tempfile.TemporaryFile(dir=folder)
        # A disk that is full later would end the process.
        os.posix_fallocate(file.fileno(), 0, kind.itemsize * math.prod(shape))
    with file:
        yield np.memmap(file, kind, "r+", shape=shape)


@contextmanager
def _open(
    output: Path | None, form: str, args: argparse.Namespace, model: Model
) -> Iterator[Callable[[Columns], None]]:
    """Function that writes blocks of results; a file appears when it is complete."""
    if output is None:
        # A program reads what was predicted to the byte; a terminal would obey it.
        shown = printable if sys.stdout.isatty() else str
        yield partial(_write_lines, sys.stdout, shown=shown)
    elif form == "hdf5":
        with files.atomic_path(output) as path, OutputFile(path) as file:
            file.attrs["classes"] = _labels(model, form)[:-1]
            yield partial(_write_datasets, file)
    else:
        how: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
        with files.atomic_path(output) as path, open(path, "w", **how) as text:
            table = csv.writer(text, lineterminator="\n")
            if form == "csv":
                table.writerow(_titles(args, model))
            yield partial(_write_table, table) if form == "csv" else partial(_write_lines, text)


def _write_lines(file: IO[str], columns: Columns, shown: Callable[[str], str] = str) -> None:
    name, last = list(columns.items())[-1]
    lines = last.tolist()
    if name != "label":
        rows = last.reshape(len(last), -1).tolist()
        lines = [" ".join([f"{value:.17g}" for value in row]) for row in rows]
    file.write("".join([f"{shown(line)}\n" for line in lines]))


def _titles(args: argparse.Namespace, model: Model) -> list[str]:
    """Names of the columns of a table."""
    if model.task == "regression":
        return ["row", "prediction"]
    names = _names(model)
    titles = ["row", "label"]
    if args.decision and model.decision == "ovr":
        titles += [f"decision_{name}" for name in names]
    elif args.decision and len(names) > 2:
        titles += [f"decision_{names[j]}_{names[i]}" for j, i in class_pairs(len(names))]
    elif args.decision:
        titles.append("decision")
    return titles + [f"p_{name}" for name in names if args.probability]


def _write_table(table: Any, columns: Columns) -> None:
    parts = [column.reshape(len(column), -1).T.tolist() for column in columns.values()]
    table.writerows(zip(*chain(*parts), strict=True))


def _write_datasets(file: OutputFile, columns: Columns) -> None:
    for name, column in columns.items():
        tail = column.shape[1:]
        if name not in file:
            shape = {"shape": (0, *tail), "maxshape": (None, *tail), "chunks": (1 << 14, *tail)}
            file.create_dataset(name, dtype=column.dtype, **shape)
        stop = len(file[name]) + len(column)
        file[name].resize(stop, axis=0)
        file[name][stop - len(column) :] = column
    file.check()


def open_model(args: argparse.Namespace) -> Model:
    """The model that is asked for; a word about one whose run was not over."""
    model = load_model(args.model)
    if model.run is not None:
        sentence = "%s is a checkpoint: its run was not over; see ooc-fw info %s"
        logger.warning(sentence, args.model, args.model)
    return model


def check_labelled(source: RowSource) -> None:
    """Raise InputError for a source without labels."""
    if not source.has_labels:
        raise InputError(f"{source.name} has no labels; name them with --label or --labels")


class AppliedRows(NamedTuple):
    """Decision values of a block of rows."""

    values: Float64Array  # (n,) or (n, n_classifiers)
    row_ids: Int64Array  # (n,), positions in the user's input, from 0
    labels: Any  # (n,), if they were asked for, else None
    n_rows: int | None  # of the whole input; None if the rows arrive in the user's order


def apply_model(
    model: Model, args: argparse.Namespace, wanted: Wanted, *, with_labels: bool = False
) -> Iterator[AppliedRows]:
    """Decision values of DATA block by block, as exact as is `wanted`, in the order of the file."""
    parsed = parsed_rows(model, args, with_labels=with_labels)
    waiting: list[AnyArray] = []  # labels of parsed rows whose decision values come next

    def rows_like_training() -> Iterator[Rows]:
        for labels, block in parsed or ():
            start = 0
            for rows in like_training(model, [block]):
                waiting.append(labels[start : start + len(rows)])
                yield rows
                start += len(rows)

    with ExitStack() as stack:
        how: dict[str, Any] = {"threads": args.threads, "name": args.data}
        rows: Any = rows_like_training()
        n_rows = n_numbered = None
        if parsed is None:
            rows = stack.enter_context(common.open_data(args, labels=with_labels))
            if with_labels:
                check_labelled(rows)
            how["dask"] = stack.enter_context(common.open_workers(args))
            n_rows = rows.n_rows
            n_numbered = None if rows.ids is None else n_rows
        progress = stack.enter_context(Waiting("predict", n_rows, quiet=args.quiet))
        start = 0
        for values in decide(model, rows, wanted, **how):
            stop = start + len(values)
            if parsed is not None:
                labels: Any = waiting.pop(0)
                yield AppliedRows(values, np.arange(start, stop), labels, None)
            else:
                labels = rows.labels(start, stop) if with_labels else None
                yield AppliedRows(values, rows.row_ids(start, stop), labels, n_numbered)
            progress(stop)
            start = stop


def parsed_rows(
    model: Model, args: argparse.Namespace, *, with_labels: bool
) -> Iterator[tuple[AnyArray, Rows]] | None:
    """Labels and raw rows of DATA block by block, if it is text or a table; else None.

    What was left out is said in the end.
    """
    kind = detect_format(args.data, is_table=model.table is not None)
    is_table = kind in TABLES
    if not is_table and kind != "libsvm":
        return None
    what = "a table" if is_table else "text"
    if args.dask is not None:
        raise InputError(
            f"{args.data} is {what}, which is read by one process; convert it (ooc-fw convert), or "
            f"leave out --dask"
        )
    if is_table and model.table is None:
        raise InputError(
            f"{args.data} is a table, and the model does not know how columns became features; "
            f"convert it like the training data: {conversion(args.data)} --like TRAIN.h5"
        )
    notes: list[str] = []
    if is_table:
        like = vars(args).get("model") or args.resume
        options = common.record_from(ConvertOptions, args, like=like)
        table = Table(args.data, kind, args.data)
        blocks = rows_of_table(model, table, notes, options, with_labels=with_labels)
    else:
        blocks = _rows_of_text(model, args, notes)
    return _with_notes(blocks, notes, args.quiet)


def _with_notes(
    blocks: Iterator[tuple[AnyArray, Rows]], notes: list[str], quiet: bool
) -> Iterator[tuple[AnyArray, Rows]]:
    yield from blocks
    common.print_lines([] if quiet else notes)


def _rows_of_text(
    model: Model, args: argparse.Namespace, notes: list[str]
) -> Iterator[tuple[AnyArray, Rows]]:
    feature_places(None, model.columns, args.data)  # text names no features
    width = 0
    exact = model.scaling is not None and not model.scaling.is_identity
    for labels, rows, _ in iter_libsvm(args.data, zero_based=args.zero_based, exact=exact):
        width = rows.n_features
        yield labels, rows
    if width > model.n_features:
        notes.append(f"dropped: {width - model.n_features} features beyond {model.n_features}")
