"""What ``ooc-fw info`` says of the columns of a table, from its first rows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from ooc_fw.cli import common
from ooc_fw.cli.arguments import joined
from ooc_fw.convert import tables
from ooc_fw.convert.convert import open_table
from ooc_fw.convert.readers import Words
from ooc_fw.data.formats import files_of
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

Advice: TypeAlias = tuple[str, ...]  # a sentence, perhaps empty, and options for the next command


def describe_table(args: argparse.Namespace, kind: str) -> tuple[dict[str, Any], list[Advice]]:
    """Facts about a table, from its first rows, and how to convert it."""
    options = common.record_from(ConvertOptions, args, label=None)
    first, *_ = files_of(args.data, kind)
    with open_table(first, kind, options) as table:
        if args.label:
            tables.check_columns(table, [args.label], "--label")
        readable = (tables.NUMBERS, tables.WORDS, tables.TEXT)
        usable = [name for name, holds in table.kinds.items() if holds in readable]
        table.choose(dict.fromkeys(usable, "words"))
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
        yield from on_labels(*counts, are_numbers=columns[label]["holds"] == "numbers")
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


def on_labels(n_classes: int, n_missing: int, *, are_numbers: bool) -> Iterator[Advice]:
    """Advice on missing labels, and on labels so many that they are probably amounts."""
    if n_missing:
        way = "training refuses them; --missing-labels drop leaves these rows out"
        yield f"{n_missing} labels are missing: {way}", "--missing-labels", "drop"
    if n_classes > 100:
        options = ("--task", "regression") if are_numbers else ()
        yield f"there are {n_classes} different labels; amounts need --task regression", *options
