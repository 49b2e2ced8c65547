"""``ooc-fw predict`` and ``export``: results of rows in the user's order, and an ONNX graph."""

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
from typing import IO, Any, NamedTuple, TypeAlias

import h5py
import numpy as np

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.convert.text import iter_libsvm
from ooc_fw.convert.writer import OutputFile
from ooc_fw.data.formats import TABLES, detect_format
from ooc_fw.data.labels import LabelMap, feature_places, iter_labels, label_word
from ooc_fw.data.opening import conversion, open_source
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array, Rows
from ooc_fw.model.onnx import OPSET, to_onnx
from ooc_fw.model.pairs import class_pairs
from ooc_fw.model.prediction import Wanted, decide, iter_decisions, like_training
from ooc_fw.model.record import Model, load_model
from ooc_fw.model.tables import Table, rows_of_table, words_of_column
from ooc_fw.options import ConvertOptions
from ooc_fw.report.progress import RowProgress
from ooc_fw.system import files
from ooc_fw.system.errors import InputError

Columns: TypeAlias = dict[str, AnyArray]
"""Results of a block of rows by their names."""

HDF5_SUFFIXES = (".h5", ".hdf5")
_OTHER_SUFFIXES = ".parquet .arrow .feather .npy .npz .zarr .json .xlsx .gz .bz2 .xz .zip".split()
"""Of names that promise what is not written; text with such a name would mislead its readers."""
_CHUNK_ROWS = 1 << 14  # rows of a chunk of HDF5 output
_ONNX_HEAD = 64  # bytes at the beginning of an ONNX file that name its maker


def run(args: argparse.Namespace) -> int:
    """Apply a model to rows."""
    output = None if args.output == "-" else Path(args.output)
    suffix = "" if output is None else output.suffix.lower()
    outputs = []
    if output is not None:
        if suffix in _OTHER_SUFFIXES:
            raise InputError(
                f"predictions are written as CSV, HDF5 or lines of text, not as {output}; give a "
                f"name that ends in .csv, .h5 or .txt"
            )
        outputs.append(files.Output("output", args.output, suffix not in HDF5_SUFFIXES))
        files.check_outputs(outputs, common.inputs_of(args))
    model = load_model(args.model)
    common.warn_of_checkpoint(args.model, model)
    _check(args, model, suffix not in (".csv", *HDF5_SUFFIXES))
    labels = model.classes
    if suffix not in HDF5_SUFFIXES:
        labels = np.array(_names(model), object)
    elif labels.dtype.kind == "U":  # HDF5 stores words as UTF-8
        words = np.char.encode(labels, "utf-8")
        labels = words.astype(h5py.string_dtype("utf-8", words.dtype.itemsize))
    threshold = args.threshold or 0.0
    wanted = Wanted(not (args.decision or args.probability), threshold)
    blocks = apply_model(model, args, wanted)
    folder = None if output is None or files.is_stream(output) else output.resolve().parent
    n_rows = n_unknown = 0
    names = None
    with files.reserved(outputs, ()), ExitStack() as stack:
        if suffix in (".csv", *HDF5_SUFFIXES):
            with suppress(InputError):  # all but AnnData have none
                name = {"x_name": args.x_name, "label": "obs/_index"}
                named = stack.enter_context(open_source(common.data_of(args), **name))
                names = named if named.has_labels else None
        write = stack.enter_context(_open(output, suffix, model, labels))
        numbered = in_order(blocks, args.data, folder)
        if args.order == "stored":
            numbered = ((block.row_ids, block.values) for block in blocks)
        for row_ids, values in numbered:
            columns: Columns = {"row": row_ids}
            if names is not None:
                columns["name"] = names.labels(n_rows, n_rows + len(values))
            if model.task == "regression":
                columns["prediction"] = values
            else:
                columns["label"] = _labels_of(model, labels, values, threshold)
            if args.decision:
                columns["decision"] = values
            if args.probability:
                columns["probability"] = model.probabilities(values)
            write(columns)
            n_rows += len(values)
            n_unknown += int(np.isnan(values.reshape(len(values), -1)[:, 0]).sum())
    if args.json:
        seconds = time.perf_counter() - args.started
        result = {"output": str(output), "n_rows": n_rows, "n_unknown": n_unknown}
        common.print_result(args, result | {"seconds": seconds})
    return NO if n_unknown else DONE


def _labels_of(model: Model, labels: AnyArray, values: Float64Array, threshold: float) -> AnyArray:
    """Labels of rows; an empty word, or NaN in HDF5, for rows without a decision value."""
    unknown = np.isnan(values.reshape(len(values), -1)[:, 0])
    if not unknown.any():
        return np.asarray(labels[model.class_places(values, threshold)])
    found: AnyArray = np.empty(len(values), dtype=labels.dtype)
    found[~unknown] = labels[model.class_places(values[~unknown], threshold)]
    found[unknown] = np.nan if labels.dtype.kind == "f" else {"S": b"", "O": ""}[labels.dtype.kind]
    return found


def _check(args: argparse.Namespace, model: Model, in_lines: bool) -> None:
    labels_in_lines = in_lines and not (args.decision or args.probability)
    broken = labels_in_lines and any(re.search("[\r\n]", name) for name in _names(model))
    reasons = {
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
    for reason, holds in reasons.items():
        if holds:
            raise InputError(reason)


def run_export(args: argparse.Namespace) -> int:
    """Write a model as an ONNX graph."""
    (output,) = common.named_outputs(args, "export", "OUT.onnx")
    is_own = None if args.output else _is_onnx
    files.check_outputs([files.Output("output", output, is_own=is_own)], common.inputs_of(args))
    model = load_model(args.model)
    common.warn_of_checkpoint(args.model, model)
    if args.no_probabilities:
        model = model.with_sigmoids(None)
    content = to_onnx(model, double_input=not args.float32_input)
    files.write_atomic(Path(output), content)
    result = {
        "output": output,
        "opset": OPSET,
        "n_features": model.n_features,
        "n_support": len(model.support_vectors),
        "probabilities": model.calibrated,
        "bytes": len(content),
    }
    if not args.json:
        common.print_lines(common.aligned(result))
    common.print_result(args, result, [output])
    return DONE


def _is_onnx(path: Path) -> bool:
    """Whether a file looks like one of ``ooc-fw export``, by the name of its maker."""
    with path.open("rb") as file:
        return b"ooc-fw" in file.read(_ONNX_HEAD)


@contextmanager
def _open(
    output: Path | None, suffix: str, model: Model, labels: AnyArray
) -> Iterator[Callable[[Columns], None]]:
    """Function that writes blocks of results; a file appears when it is complete."""
    if output is None:
        # A program reads what was predicted to the byte; a terminal would obey it.
        yield partial(_write_lines, sys.stdout if sys.stdout.isatty() else files.exact(sys.stdout))
    elif suffix in HDF5_SUFFIXES:
        with files.atomic_path(output) as path, OutputFile(path) as file:
            file.attrs["classes"] = labels
            yield partial(_write_datasets, file)
    else:
        with files.open_output(
            output, encoding="utf-8", errors="surrogateescape", newline=""
        ) as text:
            if suffix == ".csv":
                yield _TableWriter(text, model)
            else:
                yield partial(_write_lines, text)


def _names(model: Model) -> list[str]:
    return [common.format_label(value) for value in model.classes.tolist()]


def _write_lines(file: IO[str], columns: Columns) -> None:
    name, last = list(columns.items())[-1]
    lines = last.tolist()
    if name != "label":
        rows = last.reshape(len(last), -1).tolist()
        lines = [" ".join([f"{value:.17g}" for value in row]) for row in rows]
    file.write("".join([f"{line}\n" for line in lines]))


class _TableWriter:
    """CSV with a header: row, name, label, decision values, probabilities."""

    def __init__(self, file: IO[str], model: Model) -> None:
        self._writer, self._model = csv.writer(file, lineterminator="\n"), model
        self._begun = False

    def __call__(self, columns: Columns) -> None:
        if not self._begun:
            self._writer.writerow(self._header(columns))
        self._begun = True
        parts = [column.reshape(len(column), -1).T.tolist() for column in columns.values()]
        self._writer.writerows(zip(*chain(*parts), strict=True))

    def _header(self, columns: Columns) -> list[str]:
        names = _names(self._model)
        header = {name: [name] for name in columns} | {"probability": [f"p_{n}" for n in names]}
        if self._model.decision == "ovr":
            header["decision"] = [f"decision_{name}" for name in names]
        elif len(names) > 2:
            pairs = class_pairs(len(names))
            header["decision"] = [f"decision_{names[j]}_{names[i]}" for j, i in pairs]
        return [title for name in columns for title in header[name]]


def _write_datasets(file: Any, columns: Columns) -> None:
    for name, column in columns.items():
        if name == "name":
            column = column.astype(h5py.string_dtype())
        tail = column.shape[1:]
        if name not in file:
            shape = {"shape": (0, *tail), "maxshape": (None, *tail), "chunks": (_CHUNK_ROWS, *tail)}
            file.create_dataset(name, dtype=column.dtype, **shape)
        stop = len(file[name]) + len(column)
        file[name].resize(stop, axis=0)
        file[name][stop - len(column) :] = column
    file.check()


class AppliedRows(NamedTuple):
    """Decision values of a block of rows."""

    values: Float64Array  # (n,) or (n, n_pairs)
    row_ids: Int64Array  # (n,), positions in the user's input, from 0
    labels: Any  # (n,), if they were asked for, else None
    n_rows: int | None  # of the whole input; None if only its end tells


def apply_model(
    model: Model, args: argparse.Namespace, wanted: Wanted, *, with_labels: bool = False
) -> Iterator[AppliedRows]:
    """Decision values of DATA block by block, in the order in which the rows are stored.

    The values are as exact as is `wanted`.
    """
    blocks = parsed(model, args, with_labels=with_labels)
    if blocks is None:
        yield from _apply_to_source(model, args, wanted, with_labels)
        return
    waiting: list[AnyArray] = []  # labels of rows without decision values

    def rows() -> Iterator[Rows]:
        for labels, block in blocks:
            waiting.append(labels)
            yield block

    start = 0
    with RowProgress("predict", quiet=args.quiet) as progress:
        scaled, name = like_training(model, rows()), str(args.data)
        for values in decide(model, scaled, wanted, threads=args.threads, name=name):
            stop = start + len(values)
            labels = np.concatenate(waiting)
            waiting[:] = [labels[len(values) :]]
            shown = labels[: len(values)] if with_labels else None
            yield AppliedRows(values, np.arange(start, stop), shown, None)
            progress(stop)
            start = stop


def parsed(
    model: Model, args: argparse.Namespace, *, with_labels: bool
) -> Iterator[tuple[AnyArray, Rows]] | None:
    """Labels and raw rows of DATA block by block, if it is text or a table; else None."""
    kind = detect_format(args.data, is_table=model.table is not None)
    is_table = kind in TABLES
    if is_table and model.table is None:
        raise InputError(
            f"{args.data} is a table, and the model does not know how columns became features; "
            f"convert it like the training data: {conversion(args.data)} --like TRAIN.h5"
        )
    if not is_table and kind != "libsvm":
        return None
    kind_of_input = "a table" if is_table else "text"
    common.refuse_several(args, kind_of_input)
    if args.dask is not None:
        raise InputError(
            f"{args.data} is {kind_of_input}, which one process parses; leave --dask out, or "
            f"convert it first (ooc-fw convert)"
        )
    notes: list[str] = []
    if is_table:
        table = Table(args.data, kind, args.data)
        options = common.record_from(ConvertOptions, args, like=args.model)
        blocks = rows_of_table(model, table, notes, options, with_labels=with_labels)
    else:
        blocks = _rows_of_text(model, args, notes)
    return _mapped(model, args, blocks, notes, with_labels)


def column_words(model: Model, args: argparse.Namespace, name: str) -> Iterator[str]:
    """Words of a column of DATA that need not be a feature, in the order of `apply_model`."""
    kind = detect_format(args.data, is_table=model.table is not None)
    if args.data == "-":
        raise InputError("--by reads the rows twice, and standard input only once; give a file")
    if kind in TABLES and model.table is not None:
        return words_of_column(model, Table(args.data, kind, args.data), name)
    if kind == "libsvm":
        raise InputError(f"{args.data} has no columns for --by; give a table (CSV, Parquet, Arrow)")
    if name != "y" and common.is_converted(Path(args.data)):
        raise InputError(
            f"{args.data} is a converted file, which keeps no column {name!r}; for --by give the "
            f"table itself"
        )
    return _stored_words(args, name)


def _stored_words(args: argparse.Namespace, name: str) -> Iterator[str]:
    with open_source(common.data_of(args), label=name, x_name=args.x_name) as source:
        if source.labels_as:
            raise InputError(
                f"the labels of {source.name} are those of --labels-as, and the old ones are not "
                f"kept; give the table itself"
            )
        for _, labels in iter_labels(source):
            yield from map(label_word, labels.tolist())


def _mapped(
    model: Model,
    args: argparse.Namespace,
    blocks: Iterator[tuple[AnyArray, Rows]],
    notes: list[str],
    with_labels: bool,
) -> Iterator[tuple[AnyArray, Rows]]:
    """Blocks with labels as those of the model; `notes` are printed in the end."""
    label_map = LabelMap(model.labels_as) if with_labels and model.labels_as else None
    for labels, rows in blocks:
        yield labels if label_map is None else label_map(labels, lambda _: args.data), rows
    if label_map is not None:
        common.say_labels(args, label_map)
    if not args.quiet:
        common.print_lines(notes)


def _rows_of_text(
    model: Model, args: argparse.Namespace, notes: list[str]
) -> Iterator[tuple[AnyArray, Rows]]:
    feature_places(None, model.columns, args.data)  # text names no features
    width = n_dropped = 0
    exact = model.scaling is not None and not model.scaling.is_identity
    for labels, rows, _ in iter_libsvm(args.data, zero_based=args.zero_based, exact=exact):
        width = rows.n_features
        if width > model.n_features:
            n_dropped += int(np.count_nonzero(rows.indices >= model.n_features))
        yield labels, rows
    missing = model.n_features - width
    if missing > 0:
        words = f"zero: {missing} of {model.n_features} features, which no row of the text has"
        notes.append(words)
    elif missing:
        notes.append(common.dropped(-missing, model.n_features, n_dropped))


def _apply_to_source(
    model: Model, args: argparse.Namespace, wanted: Wanted, with_labels: bool
) -> Iterator[AppliedRows]:
    with common.open_data(args, labels=with_labels, model=model) as source:
        if with_labels and not source.has_labels:
            raise InputError(f"{source.name} has no labels; name them with --label or --labels")
        with (
            common.open_workers(args) as workers,
            RowProgress("predict", source.n_rows, quiet=args.quiet) as progress,
        ):
            for start, values in iter_decisions(
                model, source, wanted, threads=args.threads, dask=workers
            ):
                stop = start + len(values)
                labels = source.labels(start, stop) if with_labels else None
                yield AppliedRows(values, source.row_ids(start, stop), labels, source.n_rows)
                progress(stop)


def in_order(
    blocks: Iterable[AppliedRows], name: str, folder: Path | None = None
) -> Iterator[tuple[Int64Array, Float64Array]]:
    """Numbers and decision values in the order of the user's rows, block by block.

    Rows that arrive in order pass through. From the first other block on, all results wait in a
    file in `folder`, or that of temporary files: 8 bytes for each of their values. InputError,
    which names the input, unless the row numbers are 0 to n_rows - 1, each of them once.
    """
    folder = Path(tempfile.gettempdir()) if folder is None else folder
    n_passed = 0
    waiting = None
    with ExitStack() as stack:
        for block in blocks:
            ids, n = block.row_ids, len(block.row_ids)
            if waiting is None and np.array_equal(ids, np.arange(n_passed, n_passed + n)):
                yield ids, block.values
                n_passed += n
                continue
            if waiting is None:
                assert block.n_rows is not None
                shape = block.n_rows, *block.values.shape[1:]
                with files.naming(folder):
                    file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                    # A disk that is full later would end the process.
                    os.posix_fallocate(file.fileno(), 0, 8 * math.prod(shape))
                waiting = np.memmap(file, np.float64, "r+", shape=shape)
                first = n_passed
                seen = np.zeros(block.n_rows, dtype=bool)
                seen[:first] = True
            known = (ids >= 0) & (ids < len(seen))
            if not known.all() or seen[ids].any():
                raise _wrong_numbers(name)
            seen[ids] = True
            waiting[ids] = block.values
            n_passed += n
        if waiting is None:
            return
        if not seen.all() or n_passed != len(seen):
            raise _wrong_numbers(name)
        for start in range(first, len(seen), _CHUNK_ROWS):
            part = np.array(waiting[start : start + _CHUNK_ROWS])
            yield np.arange(start, start + len(part)), part


def _wrong_numbers(name: str) -> InputError:
    return InputError(
        f"the row numbers stored in {name} do not name each of its rows once; write it again with "
        f"ooc-fw convert"
    )
