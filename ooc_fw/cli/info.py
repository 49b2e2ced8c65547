"""``ooc-fw info``: what data or a model hold, and what to do before training."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Iterable
from typing import Any

import numpy as np

from ooc_fw.cli import common, gaps
from ooc_fw.cli.arguments import data_arguments
from ooc_fw.cli.commands import DONE
from ooc_fw.convert import preflight
from ooc_fw.convert.convert import open_table
from ooc_fw.convert.record import find_column
from ooc_fw.convert.text import iter_libsvm
from ooc_fw.data import formats
from ooc_fw.data.hdf5 import H5PY_ERRORS, open_file
from ooc_fw.data.opening import conversion
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import CSRSource, RowSource
from ooc_fw.model.record import Model, load_model
from ooc_fw.options import ConvertOptions
from ooc_fw.report.progress import Waiting
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError, format_label

MOST_ADVICE = 5  # sentences
SHOWN = 12  # classes, columns and the like that are listed for people; --json lists all


def run(args: argparse.Namespace) -> int:
    """What data or a model hold, and what to do before training."""
    if args.data != "-" and not formats.is_url(args.data) and not formats.is_folder(args.data):
        formats.check_regular(args.data)  # it is opened several times
    kind = _kind(args)
    if kind != "data":
        common.refuse_several(args, "a model" if kind == "model" else "text")
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
    if result["kind"] == "table":
        shown["columns"] = {name: _in_words(**column) for name, column in shown["columns"].items()}
    indent = max(map(len, shown)) + 2
    lines = common.wrapped(common.aligned(gaps.with_scope(shown), SHOWN), indent)
    lines += gaps.gap_lines(result.get("classifiers", ()), SHOWN)
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
    if form == "hdf5":
        with contextlib.suppress(InputError, *H5PY_ERRORS), open_file(args.data) as file:
            return "model" if "kernel" in file.attrs else "data"
        return "data"
    if form == "npy" and not is_table:
        return "data"
    return "text" if form == "libsvm" else form


def _advised(
    args: argparse.Namespace, advice: Iterable[tuple[str, ...]], *, is_ready: bool = False
) -> dict[str, list[str]]:
    """Sentences, and the command that converts with the options beside them, or trains."""
    said, options = [], []
    for sentence, *more in advice:
        said += [sentence] * bool(sentence)
        # Of rows that are ready for training, labels may still be elsewhere.
        options += more if not is_ready or more[:1] in (["--label"], ["--task"]) else []
    if args.label is not None and "--label" in options:
        options[options.index("--label") + 1] = args.label  # which may be a number
    data = common.data_of(args)
    words = ["ooc-fw", "train", *data] if is_ready else shlex.split(conversion(*data))
    command = [*words, *data_arguments(args, options), *options]
    return {"advice": said[:MOST_ADVICE], "next": [shlex.join(command)]}


def _in_words(holds: str, missing: int, **more: float) -> str:
    ways = {"numbers": "{low:g} to {high:g}", "words": "{different} different words"}
    words = ways[holds].format(**more) if holds in ways else holds
    return words + f", {missing} missing" * bool(missing)


def describe_model(model: Model, name: str) -> dict[str, Any]:
    """Content of the model in the file `name`, None for what is not known.

    Of several binary classifiers, gaps are those of the worst; ``classifiers`` has each.
    """
    objectives = ("primal", "dual") if model.kind == "landmarks" else ("rho", "objective")
    gaps = ("certified_gap", "sampled_gap")
    scope: str | None = "all" if model.kind == "exact" else "span"
    if model.status in (Status.STREAMED, Status.UNSETTLED):
        scope = "chunk"  # the rows that are kept, and those that came last
    elif model.certified_gap is None and scope == "all":
        scope = None
    kernel = model.kernel.to_dict()
    if model.kernel.name != "poly":
        kernel |= {"degree": None, "coef0": None}
    of_model = (*gaps, "n_weighted", "status", "task", "offset", "spread")
    result: dict[str, Any] = {
        "kind": "model",
        "kernel": kernel.pop("name"),
        **kernel,
        "C": model.C,
        "n_features": model.n_features,
        "model_kind": model.kind,
        "n_support": len(model.support_vectors),
        **{each: getattr(model, each) for each in of_model},
        "gap_scope": scope,
        "classes": [format_label(value) for value in model.classes],
        **_scaling(model.scaling),
        "advice": [],
        "next": [f"ooc-fw evaluate {name} DATA"],
    }
    if model.task == "regression":
        result["classes"] = []
    if model.status == Status.RUNNING:
        way = f"resume the run with the command that began it and --resume {name}"
        result["advice"] = [way]
    if len(model.classifiers) == 1:
        return result | {each: getattr(model.classifiers[0], each) for each in objectives}
    result["classifiers"] = [
        {each: getattr(one, each) for each in ("negative", "positive", *objectives, *gaps)}
        | {"n_support": len(one.sv)}
        for one in model.classifiers
    ]
    return result


def describe_source(args: argparse.Namespace, source: RowSource) -> dict[str, Any]:
    """Content of a source, of which all labels and a sample of the rows are read."""
    average = source.statistics and source.statistics.average_squared_distance
    found = preflight.inspect_source(source)
    counts = None
    if found.counts is not None and not source.targets:
        counts = {format_label(value): count for value, count in found.counts.items()}
    columns = source.columns
    names = range(source.n_features) if columns is None else columns
    constant = np.flatnonzero(found.low == found.high).tolist()
    heavy = preflight.outweighing(found.low, found.high)[0].tolist()
    is_measured = len(found.low) == source.n_features
    return {
        "kind": "data",
        "n_rows": source.n_rows,
        "n_features": source.n_features,
        "columns": None if columns is None else list(columns),
        **_scaling(source.scaling),
        "shuffled": source.shuffled,
        "sigma2": average,
        "gamma_auto": 1 / (2 * average) if average else None,  # of the RBF kernel
        "storage": "csr" if source.sparse else "dense",
        "classes": counts,
        "n_looked_at": found.n_looked,
        "density": found.density,
        "constant_columns": [names[j] for j in constant] if is_measured else None,
        "outweighing_columns": [names[j] for j in heavy] if is_measured else None,
        "bad_rows": found.n_bad,
        "repeated_rows": found.n_repeated,
        **_advised(args, preflight.advice(found, source), is_ready=source.scaling is not None),
    }


def describe_text(args: argparse.Namespace) -> dict[str, Any]:
    """Content of the beginning of LIBSVM text."""
    stream: Any = iter_libsvm(args.data, zero_based=args.zero_based)
    with contextlib.closing(stream):
        labels, rows, _ = next(stream)
        whole = next(stream, None) is None
    result = describe_source(args, CSRSource(rows, labels)) | {"kind": "text"}
    if not whole:
        result |= {"n_rows": None, "n_features": None}
    if args.data == "-":
        result["next"] = []
    return result


def describe_table(args: argparse.Namespace, format_name: str) -> dict[str, Any]:
    """Content of the beginning of a table, and the command to convert it."""
    options = common.record_from(ConvertOptions, args, label=None, on_error="skip")
    with open_table(args.data, format_name, options) as reader:
        label = reader.own_label
        if args.label is not None:
            label = find_column(reader, args.label, "--label")
        n_looked, columns, bad = preflight.inspect_table(reader)
    return {
        "kind": "table",
        "format": format_name,
        "n_columns": len(columns),
        "n_looked_at": n_looked,
        "bad_rows": len(bad),
        "columns": {column.name: column.facts() for column in columns},
        **_advised(args, preflight.advice_on_table(columns, n_looked, label, bad)),
    }


def _scaling(scaling: Scaling | None) -> dict[str, Any]:
    return {"scaling": scaling and scaling.kind, "log1p": scaling and scaling.log1p}
