"""Open inputs of any format."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from ooc_fw.convert.arrays import ArrayReader
from ooc_fw.convert.delimited import CSVReader
from ooc_fw.convert.like import TrainingFile
from ooc_fw.convert.parquet import ParquetReader
from ooc_fw.convert.readers import Reader, TableReader
from ooc_fw.convert.text import STANDARD_INPUT, TextInput
from ooc_fw.data.formats import detect_format, open_bytes
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError


def choose_format(names: Sequence[str], options: ConvertOptions, like: TrainingFile | None) -> str:
    """Format that all inputs have; InputError if there is none, or options are for another one."""
    if not names:
        raise InputError("no input given; name a file, or - for standard input")
    if names.count(STANDARD_INPUT) > 1:
        raise InputError("standard input (-) can be read only once; give - once")
    is_table = options.for_tables or (like is not None and like.record is not None)
    kinds = [options.format] * len(names)
    if options.format == "auto":
        kinds = [detect_format(name, is_table=is_table) for name in names]
    kind = kinds[0]
    if len(set(kinds)) > 1:
        found = ", ".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True))
        raise InputError(f"the inputs are of several formats ({found}); convert one at a time")
    if kind == "libsvm" and (options.for_tables or options.labels is not None):
        raise InputError(
            "--label, --one-hot, --drop, --impute, --missing-labels, --header, --labels, "
            "--no-header and --delimiter are for tables, and this is LIBSVM text; leave them out, "
            "or name the --format"
        )
    if kind != "libsvm" and (options.zero_based or options.n_features is not None):
        raise InputError(
            "--zero-based and --n-features are for LIBSVM text; leave them out, or name --format"
        )
    if kind != "libsvm" and options.labels is not None and len(names) > 1:
        raise InputError("--labels is for one input; convert them one at a time")
    if kind in ("csv", "parquet") and like is not None and like.is_model:
        raise InputError(
            f"{like.name} is a model, which does not say how the columns of a table became its "
            f"features; give the converted training file with --like"
        )
    return kind


def open_inputs(
    names: Sequence[str], kind: str, options: ConvertOptions, stack: ExitStack
) -> list[Reader]:
    """Open all inputs; `stack` closes them."""
    if kind == "libsvm":
        return [stack.enter_context(TextInput(name)) for name in names]
    return [stack.enter_context(open_table(name, kind, options)) for name in names]


def open_table(path: str, kind: str, options: ConvertOptions) -> TableReader:
    """Open a table of a known format; InputError if it, or a package for it, is missing."""
    if kind == "csv":
        return CSVReader(path, options)
    if path == STANDARD_INPUT:
        raise InputError(f"{kind} cannot be read from standard input; name a file")
    if options.labels is not None and kind == "parquet":
        raise InputError(f"{path} has named columns: name the one of the labels with --label")
    open_bytes(path).close()
    return ParquetReader(path) if kind == "parquet" else ArrayReader(path, kind, options)
