"""``ooc-fw info``: what data or a model hold, what would spoil a model, and the command to go on.

Of large files a sample of the rows is read, and all labels (8 bytes each); of text and tables, the
first block.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.cli import common
from ooc_fw.cli.arguments import given_arguments
from ooc_fw.cli.commands import DONE
from ooc_fw.convert import tables
from ooc_fw.convert.convert import open_table
from ooc_fw.convert.tables import Table, check_columns, listed
from ooc_fw.convert.text import iter_libsvm
from ooc_fw.convert.writer import count_labels
from ooc_fw.data import formats
from ooc_fw.data.labels import MISSING_LABELS, iter_labels
from ooc_fw.data.offsets import merges
from ooc_fw.data.opening import conversion
from ooc_fw.data.rows import AnyArray, CSRRows, Rows, concat_rows, take_rows, values_of
from ooc_fw.data.sources import CSRSource, RowSource, block_slices
from ooc_fw.data.statistics import ColumnRanges
from ooc_fw.model.record import Model, load_model
from ooc_fw.options import ConvertOptions
from ooc_fw.report.progress import Waiting
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError, format_label

SHOWN = 12  # classes, columns and the like that are listed for people; --json lists all
SAMPLE_BYTES = 32 << 20  # bytes of rows, in RAM, that are sampled, from so many
STRETCHES = 16  # parts of a large file
MANY_CLASSES = 100  # labels above which they are no classes

Advice = Iterator[tuple[str, ...]]
"""Sentences, which may be empty, each with the options of a conversion that follow from it."""


def run(args: argparse.Namespace) -> int:
    """What data or a model hold, and what to do before training."""
    if args.data != "-" and not Path(args.data).is_dir():
        formats.check_regular(args.data)  # it is opened several times
    kind = _kind(args)
    if kind == "model":
        result = describe_model(load_model(args.data), shlex.quote(args.data))
    elif kind == "text":
        result = describe_text(args)
    elif kind == "data":
        with Waiting("a look at a sample of the rows"), common.open_data(args) as source:
            result = describe_source(args, source)
    else:
        result = describe_table(args, kind)
    apart = "advice", "classifiers", "next"
    shown = {k: value for k, value in result.items() if k not in apart and value is not None}
    if shown.get("certified_gap") is not None:
        shown.pop("sampled_gap", None)
    if kind in formats.TABLES:
        facts = shown.pop("columns").items()
        shown |= {name: ", ".join(f"{k} {v}" for k, v in held.items()) for name, held in facts}
    indent = max(map(len, shown)) + 2
    lines = common.wrapped(common.aligned(common.with_scope(shown), SHOWN), indent)
    lines += common.gap_lines(result.get("classifiers", ()), SHOWN)
    lines += common.wrapped([f"- {sentence}" for sentence in result["advice"]], 2)
    common.print_result(args, result, [*lines, *common.next_lines(result["next"])])
    return DONE


def _kind(args: argparse.Namespace) -> str:
    """What DATA is: "model", "data" that training reads, "text", or the format of a table.

    A file that cannot be opened is called data: `open_data` says what is wrong with it.
    """
    if formats.is_store(args.data):
        return "data"
    is_table = args.label is not None or args.header is not None
    form = formats.detect_format(args.data, is_table=is_table)
    if form == "hdf5" and common.is_model(Path(args.data)):
        return "model"
    if form in ("hdf5", "npy"):
        return "data"
    return "text" if form == "libsvm" else form


def describe_model(model: Model, name: str) -> dict[str, Any]:
    """Content of the model in the file `name`, None for what is not known.

    Of several binary classifiers, gaps are those of the worst; ``classifiers`` has each.
    """
    gaps = ("certified_gap", "sampled_gap")
    of_one = ("primal", "dual") if model.kind == "landmarks" else ("rho", "objective")
    scope = None if model.certified_gap is None else "all"
    if model.status in (Status.STREAMED, Status.UNSETTLED):
        scope = "chunk"  # the rows that are kept, and those that came last
    elif model.kind != "exact":
        scope = "span"
    kernel = model.kernel.to_dict()
    if model.kernel.name != "poly":
        kernel |= {"degree": None, "coef0": None}
    advice = f"resume the run with the command that began it and --resume {name}"
    classes = () if model.task == "regression" else model.classes
    result: dict[str, Any] = {
        "kind": "model",
        "kernel": kernel.pop("name"),
        **kernel,
        "C": model.C,
        "n_features": model.n_features,
        "model_kind": model.kind,
        "n_support": len(model.support_vectors),
        **{each: getattr(model, each) for each in (*gaps, "n_weighted", "status", "task")},
        "gap_scope": scope,
        "classes": [format_label(value) for value in classes],
        "scaling": model.scaling and model.scaling.kind,
        "log1p": model.scaling and model.scaling.log1p,
        "advice": [advice] if model.status == Status.RUNNING else [],
        "next": [f"ooc-fw evaluate {name} DATA"],
    }
    if len(model.classifiers) == 1:
        return result | {each: getattr(model.classifiers[0], each) for each in of_one}
    of_each = ("negative", "positive", *of_one, *gaps)
    result["classifiers"] = [
        {each: getattr(one, each) for each in of_each} | {"n_support": len(one.sv)}
        for one in model.classifiers
    ]
    return result


def describe_source(args: argparse.Namespace, source: RowSource) -> dict[str, Any]:
    """Content of a source, of which all labels and a sample of the rows are read."""
    average = source.statistics and source.statistics.average_squared_distance
    pieces = [piece for part in sample_slices(source) for piece in block_slices(source, *part)]
    looked_at = concat_rows([source.read(*piece, checked=False) for piece in pieces])
    values = values_of(looked_at)
    bad = np.flatnonzero(~np.isfinite(values))
    bad_rows = bad // source.n_features
    if isinstance(looked_at, CSRRows):
        bad_rows = looked_at.row_numbers()[bad]
    bad_rows = np.unique(bad_rows)
    rows = take_rows(looked_at, np.delete(np.arange(len(looked_at)), bad_rows))
    counts = Counter[Any]()
    for _, labels in iter_labels(source) if source.has_labels else ():
        counts.update(count_labels(labels))
    known = {label: n for label, n in counts.items() if label == label}  # not NaN
    classes = {format_label(label): known[label] for label in sorted(known)}
    is_ready = source.scaling is not None
    advice = _on_source(source, rows, len(bad_rows), counts)
    return {
        "kind": "data",
        "n_rows": source.n_rows,
        "n_features": source.n_features,
        "columns": None if source.columns is None else list(source.columns),
        "scaling": source.scaling and source.scaling.kind,
        "log1p": source.scaling and source.scaling.log1p,
        "shuffled": source.shuffled,
        "sigma2": average,
        "gamma_auto": 1 / (2 * average) if average else None,  # of the RBF kernel
        "storage": "csr" if source.sparse else "dense",
        "classes": classes if source.has_labels and not source.targets else None,
        "n_looked_at": len(looked_at),
        "density": np.count_nonzero(values_of(rows)) / max(1, len(rows) * source.n_features),
        "bad_rows": len(bad_rows),
        **_advised(args, advice, is_ready=is_ready),
    }


def sample_slices(source: RowSource) -> list[tuple[int, int]]:
    """Rows to read: all of them, or stretches that are spaced evenly over the file."""
    n_rows = source.n_rows
    length = max(1, SAMPLE_BYTES * n_rows // max(1, source.decoded_bytes) // STRETCHES)
    if length * STRETCHES >= n_rows:
        return [(0, n_rows)]
    starts = np.linspace(0, n_rows - length, STRETCHES).astype(np.int64)
    return [(start, start + length) for start in starts.tolist()]


def describe_text(args: argparse.Namespace) -> dict[str, Any]:
    """Content of the beginning of LIBSVM text."""
    stream: Any = iter_libsvm(args.data, zero_based=args.zero_based)
    with contextlib.closing(stream):
        labels, rows, _ = next(stream)
        is_whole = next(stream, None) is None
    result = describe_source(args, CSRSource(rows, labels)) | {"kind": "text"}
    return result if is_whole else result | {"n_rows": None, "n_features": None}


def _advised(
    args: argparse.Namespace, advice: Iterable[tuple[str, ...]], *, is_ready: bool = False
) -> dict[str, list[str]]:
    """Five sentences, and the command that converts with the options beside them, or trains."""
    said: list[str] = []
    options: list[str] = []
    for sentence, *more in advice:
        said += [sentence] if sentence else []
        # Of rows that are ready for training, labels may still be elsewhere.
        options += more if not is_ready or more[:1] in (["--label"], ["--task"]) else []
    words = ["ooc-fw", "train", args.data] if is_ready else shlex.split(conversion(args.data))
    names = [n for n in ("label", "labels", "x_name", "header") if f"--{n}" not in options]
    command = [*words, *given_arguments(args, names), *options]
    return {"advice": said[:5], "next": [shlex.join(command)]}


def _on_source(source: RowSource, rows: Rows, n_bad: int, counts: Mapping[Any, int]) -> Advice:
    """What would spoil a model or slow a run, the most serious first."""
    if n_bad:
        yield (
            f"{n_bad} of the rows that were read hold values that are missing or not finite: "
            f"training refuses them; replace them, or leave their rows out with --on-error skip",
            *("--on-error", "skip"),
        )
    if not source.has_labels:
        yield ("there are no labels: name them (--label), or give a file of them (--labels)",)
    elif source.targets:
        yield "", "--task", "regression"
    else:
        n_missing = sum(n for label, n in counts.items() if label != label)  # NaN
        n_different = len(counts) - (n_missing > 0)
        yield from _on_labels(n_different, n_missing, are_amounts=n_different > MANY_CLASSES)
    is_narrow = source.n_features <= 1 << 16
    if is_narrow and source.scaling is None and merges(source):
        yield "", "--scale", "standard"
    elif is_narrow and (source.scaling is None or source.scaling.is_identity):
        low, high = ColumnRanges().add(rows).range(source.n_features)
        is_thin = np.count_nonzero(values_of(rows)) < 0.5 * len(rows) * source.n_features
        columns = source.columns or [str(j) for j in range(source.n_features)]
        yield from _on_scales(columns, low, high, "maxabs" if is_thin else "standard")
    if not source.shuffled:
        yield (
            "the rows may be in any order: training then samples from all over the file, which is "
            "slower; ooc-fw convert shuffles once (a test file needs no shuffling)",
        )


def _on_scales(names: Sequence[str], low: AnyArray, high: AnyArray, kind: str) -> Advice:
    """A column hardly counts below a tenth of the widest range."""
    spread = high - low
    is_small = (spread > 0) & (spread < 0.1 * spread.max(initial=0))
    if not is_small.any():
        return
    heavy = np.flatnonzero(~is_small & (spread > 0))
    heavy = heavy[np.argsort(-spread[heavy], kind="stable")]
    yield (
        f"the columns are not scaled alike: next to {listed([names[j] for j in heavy.tolist()])} "
        f"(from {low[heavy[0]]:g} to {high[heavy[0]]:g}) {np.count_nonzero(is_small)} others "
        f"hardly count in distances and RBF kernels; convert with --scale {kind}",
        *("--scale", kind),
    )


def _on_labels(n_different: int, n_missing: int, *, are_amounts: bool) -> Advice:
    if n_missing:
        way = "training refuses them; --missing-labels drop leaves out their rows"
        yield f"{n_missing} labels are missing: {way}", "--missing-labels", "drop"
    if n_different == 1:
        yield ("all labels that were read are the same: training needs two classes or more",)
    if are_amounts:
        said = f"there are {n_different} different labels: if they are amounts, --task regression"
        yield f"{said} makes them targets", "--task", "regression"


def describe_table(args: argparse.Namespace, format_name: str) -> dict[str, Any]:
    """Content of the beginning of a table, and the command to convert it."""
    options = common.record_from(ConvertOptions, args, label=None)
    with open_table(args.data, format_name, options) as reader:
        if args.label:
            check_columns(reader, [args.label], "--label")
        n_looked, columns = inspect_table(reader)
    return {
        "kind": "table",
        "format": format_name,
        "n_columns": len(columns),
        "n_looked_at": n_looked,
        "columns": columns,
        **_advised(args, _on_table(columns, n_looked, args.label)),
    }


def inspect_table(table: Table) -> tuple[int, dict[str, dict[str, Any]]]:
    """Number of rows of the first block, and its columns."""
    kinds = table.kinds
    numbers = [name for name, kind in kinds.items() if kind == tables.NUMBERS]
    words = [name for name, kind in kinds.items() if kind in (tables.WORDS, tables.TEXT)]
    table.choose(dict.fromkeys(numbers, "numbers") | dict.fromkeys(words, "words"))
    block = next(iter(table.blocks()), None)
    if block is None:
        raise InputError(f"{table.name} holds no rows; give a table with rows in it")
    cells = table.cells(block)
    columns: dict[str, dict[str, Any]] = {
        name: {"holds": kind, "missing": 0} for name, kind in kinds.items()
    }
    for name, values in zip(numbers, np.asarray(cells.numbers).T, strict=True):
        columns[name] = _of_numbers(values)
    for name, column in zip(words, cells.words, strict=True):
        parsed = {word: tables.parse_number(word) for word in column.values}
        strange = [word for word, number in parsed.items() if number is None]
        known = [k for k, word in enumerate(column.values) if word not in MISSING_LABELS]
        missing = int(np.count_nonzero(~np.isin(column.codes, known)))
        if kinds[name] == tables.TEXT and not strange:
            values = np.array([*parsed.values(), np.nan], dtype=np.float64)
            columns[name] = _of_numbers(values[column.codes])
        elif strange and all(np.isfinite(tables.seconds_in(word)) for word in strange):
            columns[name] = {"holds": "dates", "missing": missing}
        else:
            columns[name] = {"holds": "words", "missing": missing, "different": len(known)}
    return len(cells.labels), columns


def _of_numbers(column: AnyArray) -> dict[str, Any]:
    there = column[~np.isnan(column)]
    ends = {"low": float(there.min()), "high": float(there.max())} if len(there) else {}
    different = len(np.unique(there))
    missing = len(column) - len(there)
    return {"holds": "numbers", "missing": missing, "different": different, **ends}


def _on_table(columns: Mapping[str, dict[str, Any]], n_looked: int, label: str | None) -> Advice:
    """How to convert a table whose first rows were looked at."""
    if label is None:
        yield "no column is named as the labels: name one with --label", "--label", "COLUMN"
    of_label = columns.get(label or "", {"holds": "", "missing": 0})
    n_classes = of_label.get("different", 0)
    are_amounts = of_label["holds"] == "numbers" and n_classes > MANY_CLASSES
    yield from _on_labels(n_classes, of_label["missing"], are_amounts=are_amounts)
    options = "", "--one-hot", "--target-encode", "--dates", "--drop"
    uses: dict[str, list[str]] = {option: [] for option in options}
    for name, facts in columns.items():
        if name != label:  # one class has no share to encode words by
            most = 0.9 * (n_looked - facts["missing"]) * (n_classes != 1)
            uses[_option(facts, most)].append(name)
    plain = [*uses.pop(""), *uses["--one-hot"], *uses["--dates"]]
    said = (
        "--drop leaves out what is empty, names the rows, or is neither numbers, dates nor "
        f"categories: {listed(uses['--drop'])}"
    )
    for option, chosen in uses.items():
        if chosen:
            names = io.StringIO()  # with quotes around those that hold a comma
            csv.writer(names, lineterminator="").writerow(chosen)
            yield said * (option == "--drop"), option, names.getvalue()
    if any(columns[name]["missing"] for name in plain):
        yield "", "--impute", "mean"
    # Rows that are mostly zeros stay sparse if the scaling leaves zeros what they are.
    n_words = sum(columns[name]["different"] for name in uses["--one-hot"])
    is_thin = 3 * len(plain) < n_words and not uses["--dates"]
    low = np.array([columns[name].get("low", 0.0) for name in plain])
    high = np.array([columns[name].get("high", 1.0) for name in plain])
    high[[name in uses["--dates"] for name in plain]] = 3e7  # seconds of a year
    yield from _on_scales(plain, low, high, "maxabs" if is_thin else "standard")


def _option(facts: Mapping[str, Any], most_words: float) -> str:
    """Option for a column, "" for numbers; where most rows have a word of their own, it is none."""
    if facts["holds"] == "dates":
        return "--dates"
    if facts.get("different", 0) == 0:
        return "--drop"
    if facts["holds"] == "numbers":
        return ""
    if facts["different"] <= 30:
        return "--one-hot"
    return "--target-encode" if facts["different"] <= most_words else "--drop"
