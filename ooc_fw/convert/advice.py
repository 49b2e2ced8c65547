"""Advice before training, in plain sentences: what would spoil a model or waste a run."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ooc_fw.convert.preflight import FOREIGN, SWAMPED, Findings, Labels, TableColumn
from ooc_fw.data.rows import Int64Array

RAW_SQUARE = 100.0
"""Squared distance of two rows, per column, above which there is advice on gamma."""

UNRELATED = 1e-6
"""Kernel values below which two rows have nothing in common."""

MANY_CLASSES = 100
"""Number of classes, or of words in a column of labels, above which they are no classes."""

FEW_ROWS = 20
"""With fewer rows than these, categories cannot be told from names."""

LABEL_NAMES = ("label", "labels", "class", "classes", "target", "y", "category", "outcome")
"""Frequent names of columns of labels."""

_SHOWN = 5


@dataclass(frozen=True)
class Circumstances:
    """What else is known about the data."""

    n_rows: int
    storage: str  # "dense", "csr" or "text"
    names: Sequence[str] | None = None  # of the columns
    shuffled: bool | None = None  # None where it is unknown
    filter: str | None = None  # compression
    has_checksums: bool = False
    chunk_bytes: int = 0  # size of a chunk of rows


def advice(found: Findings, labels: Labels | None, data: Circumstances) -> Iterator[str]:
    """Sentences of advice, the most serious first."""
    whole = found.n_looked >= data.n_rows
    where = f"all {found.n_looked} rows" if whole else f"a sample of {found.n_looked} rows"
    if found.n_bad:
        yield (
            f"{found.n_bad} of {where} hold values that are missing or not finite "
            f"({found.bad_example}): training refuses them; replace them, or convert with --impute "
            f"mean"
        )
    yield from _advice_on_labels(labels, data)
    yield from _advice_on_columns(found, where, data)
    if found.n_repeated >= 0.1 * max(1, found.n_looked):
        yield (
            f"{found.n_repeated} of {where} repeat an earlier one: this costs little in training, "
            f"but copies of training rows in a test set make a model look better than it is"
        )
    yield from _advice_on_storage(found, labels, data)


def _advice_on_labels(labels: Labels | None, data: Circumstances) -> Iterator[str]:
    if labels is None:
        if data.storage != "text":
            yield "there are no labels: name them with --y-name or --labels before training"
        return
    if labels.n_missing:
        yield f"{labels.n_missing} labels are missing: training refuses them; leave the rows out"
    n_classes = len(labels.counts)
    total = sum(labels.counts.values())
    if n_classes == 1:
        yield "all rows have the same label: training needs rows of at least two classes"
    elif n_classes > MANY_CLASSES:
        yield (
            f"there are {n_classes} different labels: if they are amounts and not classes, this is "
            f"regression, which ooc-fw does not do"
        )
    elif n_classes > 1:
        rare, count = min(labels.counts.items(), key=lambda item: item[1])
        if count < 0.02 * total:
            yield (
                f"class {_word(rare)} has {count} of {total} rows ({100 * count / total:.2g} %): "
                f"accuracy says little about it; look at the balanced accuracy"
            )


def _advice_on_columns(found: Findings, where: str, data: Circumstances) -> Iterator[str]:
    constant = found.constant
    if len(constant):
        yield (
            f"{len(constant)} of {len(found.low)} columns have one value in {where} "
            f"({_names(constant, data.names)}): they carry no information and can be left out"
        )
    heavy, n_small = found.swamping()
    if n_small:
        j = int(heavy[0])
        some = _names(heavy, data.names)
        again = " again from its source" if data.storage != "text" else ""
        yield (
            f"the columns are not scaled alike: {some} "
            f"({_range(found, j)}) {'outweighs' if len(heavy) == 1 else 'outweigh'} {n_small} "
            f"others, which hardly count in the distances of an RBF kernel; convert{again} with "
            f"--scale minmax or --scale standard"
        )
    square = 2 * float(np.square(found.deviation).sum())
    if square > RAW_SQUARE * max(1, len(found.low)):
        yield (
            f"two rows are {np.sqrt(square):.3g} apart on average: with an RBF kernel and a gamma "
            f"above {-np.log(UNRELATED) / square:.1g} they have nothing in common; scale the "
            f"columns (--scale standard) or take --gamma auto, here about {0.5 / square:.1g}"
        )


def _advice_on_storage(
    found: Findings, labels: Labels | None, data: Circumstances
) -> Iterator[str]:
    if data.storage == "text":
        yield (
            "this is text: ooc-fw convert makes a file that training reads, with shuffled rows "
            "and, if you like, scaled columns (--scale)"
        )
        return
    if not data.shuffled:
        order = (
            "are sorted by class"
            if labels is not None and labels.sorted
            else (
                "keep the order of their input" if data.shuffled is False else "may be in any order"
            )
        )
        yield (
            f"the rows {order}: training then samples from all over the file, which is slower; "
            f"ooc-fw convert shuffles once (a test file needs no shuffling)"
        )
    if data.storage == "dense" and found.density < 0.1 and len(found.low) > 10:
        yield (
            f"{100 * (1 - found.density):.0f} % of the values are zeros: ooc-fw convert --sparse "
            f"would store a fraction of the bytes"
        )
    if data.storage == "csr" and found.density > 0.5:
        yield (
            f"only {100 * (1 - found.density):.0f} % of the values are zeros: ooc-fw convert "
            f"--dense takes less room and computes faster"
        )
    if data.filter not in (None, "none"):
        if data.chunk_bytes > 32 << 20:
            yield (
                f"a compressed chunk holds {data.chunk_bytes >> 20} MiB of rows, and each read "
                f"unpacks a whole one; ooc-fw convert writes chunks of 2 MiB"
            )
        elif data.filter == "gzip":
            yield (
                "gzip is slow to unpack in every pass over the data: --compression lz4 or none is "
                "faster"
            )
    if not data.has_checksums:
        yield "the file has no checksums, so damage may go unnoticed; ooc-fw convert adds them"


def _names(columns: Int64Array, names: Sequence[str] | None) -> str:
    """Word some columns, by name or by number."""
    shown = [names[j] if names is not None else str(j) for j in columns[:_SHOWN].tolist()]
    more = [f"and {len(columns) - _SHOWN} more"] if len(columns) > _SHOWN else []
    return ("columns " if len(columns) > 1 else "column ") + ", ".join(shown + more)


def _range(found: Findings, j: int) -> str:
    return f"from {found.low[j]:g} to {found.high[j]:g}"


def _word(label: object) -> str:
    return f"{label:g}" if isinstance(label, float) else str(label)


def advice_on_table(
    columns: Sequence[TableColumn], n_looked: int, label: str | None, command: Sequence[str]
) -> Iterator[str]:
    """How to convert a table of which `n_looked` rows were read: `command`, with options added."""
    if label is None and (label := _likely_label(columns)) is not None:
        yield f"no column is named as the labels, and {label!r} may hold them; else give --label"
    features = [column for column in columns if column.name != label]
    too_many = min(MANY_CLASSES, max(FEW_ROWS, n_looked // 2))
    words = [c.name for c in features if c.kind == "words" and c.n_different <= too_many]
    many = [c.name for c in features if c.kind == "words" and c.n_different > too_many]
    other = [c.name for c in features if c.kind not in ("words", "numbers", FOREIGN)]
    foreign = [c.name for c in features if c.kind == FOREIGN]
    constant = [c.name for c in features if c.kind == "numbers" and c.low == c.high]
    numbers = [c for c in features if c.kind == "numbers" and c.name not in constant]
    missing = [c.name for c in numbers if c.n_missing]
    options = ["--label", label or "COLUMN"]
    if words:
        options += ["--one-hot", _joined(words)]
        yield f"words, which become features of 0 and 1 with --one-hot: {', '.join(words)}"
    if foreign:
        yield (
            f"numbers with decimal commas or separators of thousands in {', '.join(foreign)}: "
            f"write them with decimal points first"
        )
    if many or other:
        options += ["--drop", _joined([*many, *other])]
    if many:
        yield (
            f"more than {too_many} different words in {', '.join(many)}, many for categories: they "
            f"may be names, to be left out with --drop"
        )
    if other:
        yield f"neither numbers nor words: {', '.join(other)}; leave them out with --drop"
    if constant:
        listed = ", ".join(constant)
        yield f"one value only in the {n_looked} rows read: {listed}; drop them if so in all"
    if missing:
        options += ["--impute", "mean"]
        yield f"missing numbers in {', '.join(missing)}: --impute mean fills them"
    ranges = [c.high - c.low for c in numbers]
    if ranges and min(ranges) < SWAMPED * max(ranges):
        options += ["--scale", "standard"]
        yield (
            f"the ranges of the columns go from {min(ranges):g} to {max(ranges):g}: scale them, or "
            f"the large ones swamp the others in an RBF kernel"
        )
    line = shlex.join([*command, *options])
    yield f"convert it: {line}"


def _likely_label(columns: Sequence[TableColumn]) -> str | None:
    """Column with a usual name of labels, or the last one, if it holds a few words."""
    for column in columns:
        if column.name.lower() in LABEL_NAMES:
            return column.name
    for column in columns[-1:]:
        if column.kind == "words" and column.n_different <= MANY_CLASSES:
            return column.name
    return None


def _joined(names: Sequence[str]) -> str:
    """Names as an option expects them: with commas between, and quotes around names with commas."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()
