"""LIBSVM text and tables to one HDF5 file: the inputs, the plan between the passes, the report."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ooc_fw.convert import passes
from ooc_fw.convert.arrays import ArrayEncoder, ArrayInput
from ooc_fw.convert.features import TableEncoder
from ooc_fw.convert.passes import Job, Spool, shuffle_bits
from ooc_fw.convert.readers import Encoder, LabelNumbers, ParseOptions, Progress, Reader
from ooc_fw.convert.tables import Table, TrainingFile, choose_columns, read_like
from ooc_fw.convert.text import STANDARD_INPUT, LineEncoder, TextInput
from ooc_fw.convert.writer import Layout, OutputFile, filter_options
from ooc_fw.data.formats import TABLES, detect_format
from ooc_fw.data.labels import label_map
from ooc_fw.data.rows import Int64Array
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.statistics import ColumnRanges
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, atomic_path, check_outputs

PathLike: TypeAlias = str | os.PathLike[str]

DENSE_FROM_DENSITY = 0.25
"""Share of nonzeros from which rows are stored dense: dense products are then faster, and sparse
rows, with an index for each value, would hardly be smaller."""
SPOOL_BYTES = 4  # in the spool for a byte of an input, about
_DISK_ERRORS = {
    getattr(errno, name) for name in "ENOSPC EDQUOT EFBIG EIO EROFS EPERM EACCES".split()
}


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion did."""

    output: str  # the file written
    n_rows: int  # its size
    n_features: int
    class_counts: dict[Any, int]  # rows of each label, a number or a word, sorted by label
    sparse: bool  # whether rows are stored as CSR
    density: float  # nonzeros / (rows x features), as they are stored
    scaling: Scaling  # what was done to the values
    seed: int | None  # seed of the shuffle; None when rows keep the order of the input
    dropped_features: int  # columns beyond the width asked for, and the values written in them
    dropped_values: int
    n_skipped: int  # lines or rows left out because of an error
    skipped: tuple[str, ...]  # what was wrong with the first few of them
    unseen_labels: tuple[Any, ...]  # labels that the `like` file does not have; their rows are kept
    notes: tuple[str, ...]  # what a user may not expect, one sentence each
    text_bytes: int  # size of the input, decompressed
    seconds: float  # wall time
    targets: bool = False  # whether labels are targets of a regression


def convert(
    inputs: Sequence[PathLike],
    output: PathLike,
    options: ConvertOptions | None = None,
    like: TrainingFile | None = None,
    *,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert LIBSVM text or tables to an HDF5 file, in memory that does not depend on their size.

    The inputs are of one format and read one after the other; "-" is standard input (text or CSV).
    The output is replaced as a whole when all is well, otherwise left as it was: InputError says
    which option, input, column, line or row cannot be used, OSError that the disk is full or fails.
    `like` is what is known of the training rows if the option of this name gives a model.
    `progress` is called now and then with (bytes done, bytes in all or None).
    """
    started = time.perf_counter()
    options = options or ConvertOptions()
    filter_options(options.compression)  # the plugin must be installed
    target = Path(output)
    names = [os.fspath(path) for path in inputs]
    if like is None and options.like is not None:
        like = read_like(os.fspath(options.like))
    if like is not None and like.targets:
        options = replace(options, task="regression")
    notes: list[str] = []
    with ExitStack() as stack:
        job = _prepare(names, target, options, like, progress or (lambda *_: None), stack)
        with _naming(target, "rows were set aside in temporary files beside it"):
            passes.parse_inputs(job)
        layout = _plan(job, like, notes)
        with (
            _naming(target, "it was being written"),
            atomic_path(target) as temporary,
            OutputFile(temporary) as file,
        ):
            writer = passes.write_rows(job, file, layout)
    found = writer.class_counts
    if not job.encoder.labelled:
        notes.append("there are no labels: the file is for prediction only (else give --label)")
    known = found if like is None or like.classes is None else like.classes
    return ConversionReport(
        output=os.fspath(output),
        n_rows=layout.n_rows,
        n_features=layout.n_features,
        class_counts=found,
        sparse=layout.sparse,
        density=writer.n_nonzero / (layout.n_rows * layout.n_features),
        scaling=layout.scaling,
        seed=layout.seed,
        dropped_features=max(0, job.width - layout.n_features),
        dropped_values=job.n_dropped,
        n_skipped=job.n_skipped,
        skipped=tuple(job.skipped),
        unseen_labels=tuple(name for name in found if name not in known),
        notes=(*job.encoder.notes(), *notes),
        text_bytes=sum(reader.text_bytes for reader in job.inputs),
        seconds=time.perf_counter() - started,
        targets=layout.targets,
    )


def open_table(path: str, kind: str, options: ConvertOptions) -> Table:
    """Open a table of a known format; InputError if it cannot be read."""
    if kind == "csv":
        from ooc_fw.convert.csv_table import CSVTable  # pyarrow is slow to import

        return CSVTable(path, options)
    if path == STANDARD_INPUT:
        raise InputError(f"{kind} cannot be read from standard input; name a file")
    if options.labels is not None:
        raise InputError(f"{path} has named columns: name the one of the labels with --label")
    from ooc_fw.convert.arrow import ArrowTable

    return ArrowTable(path, kind)


def _choose_format(names: Sequence[str], options: ConvertOptions, like: TrainingFile | None) -> str:
    """Format that all inputs have; InputError if there is none, or options are for another one."""
    if not names:
        raise InputError("no input given; name a file, or - for standard input")
    if names.count(STANDARD_INPUT) > 1:
        raise InputError("standard input (-) can be read only once; give - once")
    is_table = options.for_tables or (like is not None and like.table is not None)
    kinds = [options.format] * len(names)
    if options.format == "auto":
        kinds = [detect_format(name, is_table=is_table) for name in names]
    kind = kinds[0]
    if len(set(kinds)) > 1:
        found = ", ".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True))
        raise InputError(f"the inputs are of several formats ({found}); convert one at a time")
    if kind not in ("libsvm", *TABLES) and options.of_columns:
        raise InputError(
            f"{names[0]} is an array, all columns of which are features; leave --one-hot, "
            f"--target-encode, --dates, --drop and --impute out"
        )
    if kind == "libsvm" and (options.for_tables or options.labels is not None):
        raise InputError(
            "--label, --one-hot, --target-encode, --dates, --drop, --impute, --missing-labels, "
            "--header, --labels, --no-header and --delimiter are for tables, not LIBSVM text; or "
            "name the --format"
        )
    if kind != "libsvm" and (options.zero_based or options.n_features is not None):
        raise InputError(
            "--zero-based and --n-features are for LIBSVM text; leave them out, or name --format"
        )
    has_map = options.labels_as is not None or (like is not None and like.labels_as is not None)
    if like is not None and kind == "libsvm" and like.words and not has_map:
        raise InputError(
            f"the labels of {like.name} are words ({', '.join(like.words[:3])}), and those of "
            f"LIBSVM text are numbers; convert a table"
        )
    return kind


def _prepare(
    names: Sequence[str],
    target: Path,
    options: ConvertOptions,
    like: TrainingFile | None,
    progress: Progress,
    stack: ExitStack,
) -> Job:
    """Open the inputs, choose the features, and begin the spool."""
    kind = _choose_format(names, options, like)
    scaling = Scaling("none", options.log1p) if like is None else like.scaling
    width = options.n_features if like is None else like.n_features
    parsing = ParseOptions(options.zero_based, width, scaling.log1p, options.on_error == "skip")
    given = options.labels_as
    if given is None and like is not None:
        given = like.labels_as
    new = None if given is None else label_map(given)
    labels = LabelNumbers(() if like is None else like.words, new)
    inputs: Sequence[Reader]
    encoder: Encoder
    if kind == "libsvm":
        inputs = [stack.enter_context(TextInput(name)) for name in names]
        encoder = LineEncoder(parsing, new)
    elif kind in TABLES:
        record = None if like is None else like.record
        if record is not None and not record.header:
            options = replace(options, header=bool(options.header))
        inputs = tables = [stack.enter_context(open_table(one, kind, options)) for one in names]
        if like is not None and record is None:
            raise InputError(
                f"{like.name} does not say how the columns of a table became its features; give "
                f"the converted file of a table with --like"
            )
        record = record or choose_columns(tables[0], options)
        encoder = TableEncoder(tables, record, options, parsing, like, labels)
    else:
        inputs = arrays = [stack.enter_context(ArrayInput(one, options)) for one in names]
        encoder = ArrayEncoder(arrays, options, parsing, like, labels)
    read = [*names, options.like, options.labels]
    check_outputs([Output("output", target)], read)
    sizes = [one.size for one in inputs if one.size is not None]
    n_bytes = sum(sizes) if len(sizes) == len(inputs) else None
    seed = options.seed if options.shuffle and like is None else None
    spool = Spool(target.absolute().parent, seed, shuffle_bits(n_bytes and SPOOL_BYTES * n_bytes))
    stack.callback(spool.close)
    # A spread far below the size of the values would be lost by rounding them before scaling.
    is_exact = options.scale != "none" or not scaling.is_identity
    dtype = np.float64 if is_exact else np.float32
    ranges = ColumnRanges(options.scale)
    return Job(options, inputs, n_bytes, encoder, scaling, dtype, spool, progress, ranges)


@contextmanager
def _naming(target: Path, moment: str) -> Iterator[None]:
    """Add to an error of the disk which output it stopped, and when."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise OSError(
            error.errno, f"{error.strerror}, while {moment}; it is left as it was", str(target)
        ) from error


def _plan(job: Job, like: TrainingFile | None, notes: list[str]) -> Layout:
    """Layout of the output; InputError if rows cannot be stored as they should."""
    options = job.options
    encoder = job.encoder
    width = options.n_features if like is None else like.n_features
    widths = encoder.end_learning(job.ranges, job.scaling, width or job.width)
    n_columns = len(widths)
    n_features = int(widths.sum()) if like is None else like.n_features
    if not n_features:
        raise InputError(f"{job.name} holds labels only, no features; nothing to learn")
    if like is None:
        fitted = Scaling.fit(job.ranges, options.log1p, n_columns, kept=encoder.kept(n_columns))
        scaling = _scaling_at(fitted, np.repeat(np.arange(n_columns), widths))
    else:
        scaling = like.scaling
        fitted = _scaling_at(scaling, np.minimum(np.cumsum(widths) - widths, n_features - 1))
    notes += passes.lost_columns(job, fitted, n_columns)
    _, words = encoder.labels.values()
    return Layout(
        n_rows=job.n_rows,
        n_features=n_features,
        n_stored=job.ranges.n_stored,
        sparse=not _is_dense(job, scaling, n_features, like, notes),
        source=job.name,
        scaling=scaling,
        compression=options.compression,
        labelled=encoder.labelled,
        shuffled=job.spool.seed is not None,
        seed=job.spool.seed,
        label_names=words,
        targets=options.targets,
        columns=encoder.columns,
        table=encoder.table,
        labels_as=encoder.labels.new,
        n_encoded=encoder.n_encoded,
    )


def _is_dense(
    job: Job, scaling: Scaling, n_features: int, like: TrainingFile | None, notes: list[str]
) -> bool:
    """Whether rows are stored dense: as asked for, else as those of `like`, else by density."""
    dense = job.options.dense
    if dense is None and like is not None:
        dense = not like.sparse
    if dense is None:
        dense = job.ranges.n_stored >= DENSE_FROM_DENSITY * job.n_rows * n_features
    if dense or not scaling.moves_zero:
        return dense
    if job.options.dense is False:
        raise InputError(
            f"scaling {scaling.kind!r} turns zeros into other numbers here, so rows cannot stay "
            f"sparse; use --scale maxabs, or leave out --sparse"
        )
    notes.append(f"scaling {scaling.kind!r} turns zeros into other numbers: rows are stored dense")
    return True


def _scaling_at(scaling: Scaling, places: Int64Array) -> Scaling:
    """Scaling of the columns at some places."""
    if scaling.offset is None or scaling.factor is None:
        return scaling
    return replace(scaling, offset=scaling.offset[places], factor=scaling.factor[places])
