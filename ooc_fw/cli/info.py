"""``ooc-fw info``: describes data or a model, warns of faults, and suggests the next command.

It reads all labels of large files (8 bytes each) and a sample of their rows. Of text and tables it
reads the first block.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ooc_fw.cli import common
from ooc_fw.cli.arguments import given_arguments, joined
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.models import describe_model
from ooc_fw.conversion import tables
from ooc_fw.conversion.convert import open_table
from ooc_fw.conversion.readers import Words
from ooc_fw.conversion.text import iter_libsvm
from ooc_fw.conversion.writer import count_labels
from ooc_fw.data import formats
from ooc_fw.data.labels import are_missing, iter_labels
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.opening import conversion
from ooc_fw.data.rows import CSRRows, concat_rows, values_of
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import CSRSource, RowSource, block_slices
from ooc_fw.data.structure import is_model
from ooc_fw.model.record import load_model
from ooc_fw.options import ConvertOptions
from ooc_fw.report.progress import Waiting
from ooc_fw.system.errors import InputError, format_label, format_words

Advice: TypeAlias = tuple[str, ...]  # a sentence, perhaps empty, and options for the next command

_MOST_CLASSES = 100  # more different labels are probably amounts


def run(args: argparse.Namespace) -> int:
    """Describe data or a model, and suggest the next command."""
    is_table = args.label is not None or args.header is not None or bool(args.names)
    kind = formats.detect_format(args.data, is_table=is_table)
    if kind == "hdf5" and is_model(Path(args.data)):
        result = describe_model(load_model(args.data), shlex.quote(args.data))
    elif kind in formats.TABLES:
        result, advice = describe_table(args, kind)
        result |= _advised(args, advice, "info" if args.label is None else "convert")
    elif kind == "libsvm":
        result = describe_text(args)
    else:
        with Waiting("a look at a sample of the rows"), common.open_data(args) as source:
            result = describe_source(args, source)
    apart = "advice", "next"
    shown = {k: value for k, value in result.items() if k not in apart and value is not None}
    if result["kind"] == "table":
        facts = shown.pop("columns").items()
        shown |= {name: ", ".join(f"{k} {v}" for k, v in held.items()) for name, held in facts}
    indent = max(map(len, shown)) + 2
    # People see twelve classes or columns; --json lists all.
    lines = common.wrapped(common.aligned(common.with_scope(shown), 12), indent)
    lines += common.wrapped([f"- {sentence}" for sentence in result["advice"]], 2)
    common.print_result(args, result, [*lines, *common.next_lines(result["next"])])
    return DONE


def describe_source(args: argparse.Namespace, source: RowSource) -> dict[str, Any]:
    """Describe a source, from all labels and a sample of the rows."""
    average = source.statistics and source.statistics.average_squared_distance
    blocks = block_slices(source, 0, source.n_rows, 1 << 20)
    chosen = blocks[:: max(1, len(blocks) // 16)]  # up to 31 MiB of rows, from all over the file
    rows = concat_rows([source.read(*block, checked=False) for block in chosen])
    bad = np.flatnonzero(~np.isfinite(values_of(rows)))
    bad = rows.row_numbers()[bad] if isinstance(rows, CSRRows) else bad // source.n_features
    n_bad = len(np.unique(bad))
    counts = Counter[Any]()
    for _, labels in iter_labels(source) if source.has_labels else ():
        counts.update(count_labels(labels[~are_missing(labels)]))
    classes = {format_label(label): counts[label] for label in sorted(counts)}
    n_missing = source.n_rows - counts.total()
    are_numbers = not any(isinstance(label, str) for label in counts)
    advice = [*_on_source(source, n_bad, len(classes), n_missing, are_numbers=are_numbers)]
    if len(classes) == 1 and not source.targets:
        sentence = f"all labels are {format_words(counts)}: a model can tell what is unlike them"
        advice.append((sentence, "--task", "novelty"))
    if not source.targets and len(classes) <= _MOST_CLASSES:
        advice += [(sentence,) for sentence in common.imbalance(classes)]
    may_shift = source.scaling is None and not source.sparse and n_bad == 0
    if may_shift and without_offsets(source) is not source:
        sentence = "different values of a column are equal in float32, until its mean is subtracted"
        advice.append((sentence, "--scale", "standard"))
    return {
        "kind": "data",
        "n_rows": source.n_rows,
        "n_features": source.n_features,
        "columns": None if source.columns is None else list(source.columns),
        **(source.scaling.facts if source.scaling else dict.fromkeys(Scaling().facts)),
        "shuffled": source.shuffled,
        "holds": list(source.choices) or None,
        "sigma2": average,
        "gamma_auto": 1 / (2 * average) if average else None,  # for the RBF kernel
        "storage": "csr" if source.sparse else "dense",
        "classes": classes if source.has_labels and not source.targets else None,
        "bad_rows": n_bad,
        **_advised(args, advice, "convert" if source.scaling is None else "train"),
        **({"next": []} if n_bad else {}),  # every command refuses such rows
    }


def _on_source(
    source: RowSource, n_bad: int, n_classes: int, n_missing: int, *, are_numbers: bool
) -> Iterator[Advice]:
    """Advice on faults of the data, the most serious first."""
    if n_bad:
        yield (
            f"{n_bad} of the rows that were read hold values that are missing or not finite: "
            f"training refuses them; replace these values, or leave the rows out",
        )
    if not source.has_labels:
        option = ("--label", "NAME") if source.choices else ("--labels", "FILE")
        yield "there are no labels: name them (--label) or their file (--labels)", *option
    elif source.targets:
        yield "", "--task", "regression"
    else:
        yield from _on_labels(n_classes, n_missing, are_numbers=are_numbers)


def _advised(args: argparse.Namespace, advice: list[Advice], step: str) -> dict[str, list[str]]:
    """The sentences of advice, and the next command, which is this `step`, with their options."""
    of_labels = ("--label",), ("--labels",), ("--task",)
    options = [
        word
        for _, *more in advice
        if step == "convert" or (*more[:1],) in of_labels
        for word in more
    ]
    words = ["ooc-fw", step, args.data]
    if step == "convert":
        words = shlex.split(conversion(args.data))
    names = [n for n in ("label", "labels", "x_name", "header", "names") if f"--{n}" not in options]
    command = [*words, *given_arguments(args, names), *options]
    said = [sentence for sentence, *_ in advice if sentence]
    return {"advice": said, "next": [shlex.join(command)]}


def describe_text(args: argparse.Namespace) -> dict[str, Any]:
    """Describe LIBSVM text, from its first block."""
    stream: Any = iter_libsvm(args.data, zero_based=args.zero_based)
    with contextlib.closing(stream):
        labels, rows = next(stream)
        is_whole = next(stream, None) is None
    result = describe_source(args, CSRSource(rows, labels)) | {"kind": "text"}
    return result if is_whole else result | {"n_rows": None, "n_features": None}


def describe_table(args: argparse.Namespace, kind: str) -> tuple[dict[str, Any], list[Advice]]:
    """Facts about a table, from its first rows, and how to convert it."""
    options = common.record_from(ConvertOptions, args, label=None)
    first, *_ = formats.files_of(args.data, kind)
    with open_table(first, kind, options) as table:
        if args.label is not None:
            tables.check_columns(table, [args.label], "--label")
        readable = (tables.NUMBERS, tables.WORDS, tables.TEXT)
        usable = [name for name, holds in table.kinds.items() if holds in readable]
        table.wanted = dict.fromkeys(usable, "words")
        block = next(iter(table.blocks()), None)
        if block is None:
            raise InputError(f"{table.name} holds no rows; give a table with rows in it")
        read, _ = table.cells(block)
    columns: dict[str, Any] = {name: {"holds": holds} for name, holds in table.kinds.items()}
    columns |= {name: _facts(words) for name, words in read.items() if isinstance(words, Words)}
    result = {"kind": "table", "format": kind, "n_columns": len(columns), "columns": columns}
    return result, [*_on_table(columns, args.label, max(map(len, read.values()), default=0))]


def _facts(column: Words) -> dict[str, Any]:
    """What a column holds, and how many cells are missing and how many values differ."""
    values = {word: tables.parse_number(word) for word in column.values}
    known = [k for k, value in enumerate(values.values()) if value == value]  # not NaN
    strange = [word for word, value in values.items() if value is None]
    holds = "words" if strange else "numbers"
    if strange and all(np.isfinite(tables.seconds_in(word)) for word in strange):
        holds = "dates"
    missing = int(np.count_nonzero(~np.isin(column.codes, known)))
    return {"holds": holds, "missing": missing, "different": len(known)}


def _on_table(columns: dict[str, Any], label: str | None, n_rows: int) -> Iterator[Advice]:
    """Advice on labels, on each column that does not hold numbers, and on scaling."""
    if label is None:
        yield "no column is named as the labels: name one with --label", "--label", "COLUMN"
    else:
        counts = columns[label].get("different", 0), columns[label].get("missing", 0)
        yield from _on_labels(*counts, are_numbers=columns[label]["holds"] == "numbers")
    names = [name for name in columns if name != label]
    uses = {name: _option(columns[name], n_rows) for name in names}
    for option in ("--one-hot", "--target-encode", "--dates", "--drop"):
        chosen = [name for name in names if uses[name] == option]
        if chosen:
            yield "", option, joined(chosen)
    plain = [columns[name] for name in names if uses[name] in ("", "--one-hot", "--dates")]
    if any(facts.get("missing", 0) for facts in plain):
        yield "", "--impute", "mean"
    # If most features are 0 or 1 from words, keep the rows sparse: maxabs leaves zeros unchanged.
    n_words = sum(columns[name]["different"] for name in names if uses[name] == "--one-hot")
    is_thin = n_words > 3 * len(plain) and "--dates" not in uses.values()
    yield "", "--scale", "maxabs" if is_thin else "standard"


def _option(facts: dict[str, Any], n_rows: int) -> str:
    """The option for a column, "" for numbers; words that differ in every row teach nothing."""
    if facts["holds"] == "dates":
        return "--dates"
    different = facts.get("different", 0)
    if facts["holds"] == "numbers" and different > 0:
        return ""
    if 0 < different <= 30:
        return "--one-hot"
    return "--drop" if different in (0, n_rows - facts.get("missing", 0)) else "--target-encode"


def _on_labels(n_classes: int, n_missing: int, *, are_numbers: bool) -> Iterator[Advice]:
    """Advice on missing labels, and on labels so many that they are probably amounts."""
    if n_missing:
        way = "training refuses them; --missing-labels drop leaves these rows out"
        yield f"{n_missing} labels are missing: {way}", "--missing-labels", "drop"
    if n_classes > _MOST_CLASSES:
        options = ("--task", "regression") if are_numbers else ()
        yield f"there are {n_classes} different labels; amounts need --task regression", *options
