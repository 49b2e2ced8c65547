"""LIBSVM text and tables to one HDF5 file, in two passes and constant memory.

The first pass parses, collects column ranges and class counts, and spools the rows to disk (in
random buckets, when shuffling). Scaling, width and storage follow. The second pass reads the rows
back, scales them and writes the file.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ooc_fw._core.rows import drop_zeros, write_dense_rows
from ooc_fw.convert.columns import ColumnMoments, LogTable, count_labels
from ooc_fw.convert.inputs import choose_format, open_inputs, open_table
from ooc_fw.convert.libsvm import LineEncoder
from ooc_fw.convert.like import TrainingFile, read_like
from ooc_fw.convert.pipeline import Meter, Progress, default_threads, ordered_map, prefetch
from ooc_fw.convert.readers import EXAMPLES, Parse, ParsedBlock, ParseOptions, Reader, TableReader
from ooc_fw.convert.record import TableRecord, choose_by_position, choose_columns, fit_record
from ooc_fw.convert.spool import RowBlock, Spool, shuffle_bits
from ooc_fw.convert.tables import MAX_CLASSES, TableEncoder, too_many_classes
from ooc_fw.convert.writer import (
    DatasetWriter,
    Layout,
    OutputFile,
    Summary,
    chunk_rows,
    filter_options,
)
from ooc_fw.data.ranges import FEW_STEPS, ColumnRanges
from ooc_fw.data.rows import CSRRows, Float64Array, Rows, as_float32
from ooc_fw.data.scaling import Scaling
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, atomic_path, check_outputs

Encoder: TypeAlias = LineEncoder | TableEncoder
PathLike: TypeAlias = str | os.PathLike[str]

DENSE_FROM_DENSITY = 0.25
"""Share of nonzeros from which rows are stored dense: dense products are then faster, and sparse
rows, with an index for each value, would hardly be smaller."""

PIECE_BYTES = 2 << 20
"""Bytes of rows that are scaled and written at once."""

MAX_FEATURES = 1 << 26
"""Widest file. Statistics take up to 64 bytes per column, and one stray index must not exhaust
memory."""

WIDE = 1 << 14
"""Number of columns above which ranges are not merged block by block: merging would take longer."""

_SPOOL_BYTES_PER_TEXT_BYTE = 1.5
_EXACT_SPOOL_BYTES_PER_TEXT_BYTE = 2.5  # values of float64
_TEXT_BYTES_PER_COMPRESSED_BYTE = 4
_COUNTED_PASSES = 2

_DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.EPERM,
    errno.EACCES,
)


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion did."""

    output: str  # the file written
    n_rows: int  # its size
    n_features: int
    class_counts: dict[Any, int]  # rows of each label, a number or a word, sorted by label
    sparse: bool  # whether rows are stored as CSR
    density: float  # nonzeros / (rows x features), before scaling
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

    @property
    def megabytes_per_second(self) -> float:
        """Input converted per second of wall time."""
        return self.text_bytes / 1e6 / self.seconds


@dataclass(frozen=True)
class _Job:
    """What both passes need; `scaling` is complete with `like`, else it tells log1p alone."""

    options: ConvertOptions
    target: Path
    like: TrainingFile | None
    n_features: int | None
    readers: Sequence[Reader]
    encoder: Encoder
    scaling: Scaling
    spool: Spool
    meter: Meter

    @property
    def name(self) -> str:
        """The inputs, for messages."""
        return ", ".join(reader.name for reader in self.readers)


def convert(
    inputs: Sequence[PathLike],
    output: PathLike,
    options: ConvertOptions | None = None,
    *,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert LIBSVM text or tables to an HDF5 file, in memory that does not depend on their size.

    Parameters
    ----------
    inputs : sequence of str or PathLike
        Files of one format, read one after the other. "-" is standard input (text or CSV).
    output : str or PathLike
        HDF5 file; replaced as a whole when all is well, otherwise left as it was.
    options : ConvertOptions or None
        What becomes of rows and columns.
    progress : callable or None
        Called now and then with (bytes done, bytes in all or None).

    Returns
    -------
    ConversionReport

    Raises
    ------
    InputError
        An option, input, column, line or row cannot be used.
    OSError
        The disk is full or fails; `output` is then as it was.

    Notes
    -----
    Categories and means of tables are found in a pass of their own before the other two. Free space
    is compared with what is needed before rows are spooled, and again before the output is begun.
    """
    started = time.perf_counter()
    options = options or ConvertOptions()
    filter_options(options.compression)  # the plugin must be installed
    names, target = [os.fspath(path) for path in inputs], Path(output)
    like = None if options.like is None else read_like(Path(options.like))
    with ExitStack() as stack:
        job = _prepare(names, target, options, like, progress, stack)
        first = _parse(job)
        layout, scaling, notes = _plan(job, first)
        label_values, label_names = job.encoder.labels()
        counts = _count_classes(first.class_counts, label_values) if layout.labelled else {}
        with (
            _naming(target, "it was being written"),
            atomic_path(target) as temporary,
            OutputFile(temporary) as file,
        ):
            writer = DatasetWriter(file, layout)
            moments = _write(job, writer, layout, scaling, label_values)
            if job.encoder.record is not None:
                job.encoder.record.write(file.attrs)
            seed = job.spool.seed
            mean, norm = moments.mean, moments.mean_square_norm
            writer.finish(Summary(counts, job.name, scaling, mean, norm, seed, label_names))
    found: dict[Any, int] = dict(counts)
    if label_names is not None:
        found = {label_names[int(code)]: count for code, count in counts.items()}
    known = found if like is None or like.classes is None else like.classes
    return ConversionReport(
        output=os.fspath(output),
        n_rows=layout.n_rows,
        n_features=layout.n_features,
        class_counts=found,
        sparse=layout.sparse,
        density=layout.n_stored / (layout.n_rows * layout.n_features),
        scaling=scaling,
        seed=seed,
        dropped_features=max(0, first.width - layout.n_features),
        dropped_values=first.n_dropped,
        n_skipped=first.n_skipped,
        skipped=tuple(first.skipped),
        unseen_labels=tuple(name for name in found if name not in known),
        notes=(*job.encoder.notes(), *notes, *_lost_columns(job, first, scaling, layout)),
        text_bytes=sum(reader.text_bytes for reader in job.readers),
        seconds=time.perf_counter() - started,
    )


def convert_libsvm(
    inputs: Sequence[PathLike],
    output: PathLike,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> ConversionReport:
    """Convert LIBSVM text; `options` are fields of `ConvertOptions`."""
    return convert(inputs, output, ConvertOptions(format="libsvm", **options), progress=progress)


# --- before the first pass -----------------------------------------------------------------------


def _prepare(
    names: Sequence[str],
    target: Path,
    options: ConvertOptions,
    like: TrainingFile | None,
    progress: Progress | None,
    stack: ExitStack,
) -> _Job:
    """Open the inputs, find the features, check the space, and begin the spool."""
    kind = choose_format(names, options, like)
    if like is not None and like.record is not None and not like.record.header:
        header = False if options.header is None else options.header
        options = replace(options, header=header)
    readers = open_inputs(names, kind, options, stack)
    check_outputs([Output("output", target)], [*names, options.like])
    text_bytes = _check_room(target, readers)
    sizes = [reader.size for reader in readers if reader.size is not None]
    pass_bytes = sum(sizes) if len(sizes) == len(readers) else None
    scout = bool(options.one_hot or options.impute)
    meter = Meter(progress, pass_bytes, _COUNTED_PASSES + scout)
    scaling = Scaling("none", options.log1p) if like is None else like.scaling
    # A spread far below the size of the values would be lost by rounding them before scaling.
    exact = options.scale != "none" or not scaling.is_identity
    n_features = options.n_features if like is None else like.n_features
    skip = options.on_error == "skip"
    parsing = ParseOptions(options.zero_based, n_features, scaling.log1p, skip, exact)
    tables = [reader for reader in readers if isinstance(reader, TableReader)]
    if not tables and like is not None and like.words:
        raise InputError(
            f"the labels of {like.name} are words ({', '.join(like.words[:3])}), and those of "
            f"LIBSVM text are numbers; convert a table"
        )
    encoder: Encoder = LineEncoder(parsing)
    if tables:
        record = _choose_features(names, tables[0], kind, options, like, meter)
        encoder = TableEncoder(
            tables,
            record,
            options.label,
            parsing,
            like=like,
            drop_unlabelled=options.missing_labels == "drop",
        )
    if scout:
        meter.next_pass()
    ratio = _EXACT_SPOOL_BYTES_PER_TEXT_BYTE if exact else _SPOOL_BYTES_PER_TEXT_BYTE
    bits = shuffle_bits(None if text_bytes is None else int(text_bytes * ratio))
    dtype = np.float64 if exact else np.float32
    seed = options.seed if options.shuffle and like is None else None
    spool = Spool(target.absolute().parent, seed, bits, dtype=dtype)
    stack.callback(spool.close)
    return _Job(options, target, like, n_features, readers, encoder, scaling, spool, meter)


def _choose_features(
    names: Sequence[str],
    first: TableReader,
    kind: str,
    options: ConvertOptions,
    like: TrainingFile | None,
    meter: Meter,
) -> TableRecord | None:
    """Features of tables; None for sparse rows, whose columns have no names."""
    if first.sparse and like is None and (options.one_hot or options.drop or options.impute):
        raise InputError(
            f"{first.name} holds sparse rows, which have no columns to name; leave --one-hot, "
            f"--drop and --impute out"
        )
    if first.sparse:
        return None
    if like is not None:
        return like.record or choose_by_position(first, options, like.n_features)
    record = choose_columns(first, options)
    if not (options.one_hot or options.impute):
        return record
    return fit_record(
        names, lambda path: open_table(path, kind, options), record, options, meter.at
    )


def _check_room(target: Path, readers: Sequence[Reader]) -> int | None:
    """Refuse if the spool will not fit on the disk; returns bytes of text, if known."""
    sizes = [
        reader.size * (_TEXT_BYTES_PER_COMPRESSED_BYTE if reader.compressed else 1)
        for reader in readers
        if reader.size is not None
    ]
    _require_room(target, sum(sizes), "temporary files")
    return sum(sizes) if len(sizes) == len(readers) else None


def _require_room(target: Path, n_bytes: int, purpose: str) -> None:
    directory = target.absolute().parent
    free = shutil.disk_usage(directory).free
    if n_bytes > free:
        raise InputError(
            f"{directory} has {free} bytes free, and {purpose} will take about {n_bytes} more; "
            f"free some space or put the output elsewhere"
        )


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


# --- the first pass ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Summed:
    """A block and what is computed from it alone.

    `ranges` is None for blocks that are too wide to be merged. `exact_ranges` are those before
    rounding, where the difference may matter.
    """

    parsed: ParsedBlock
    ranges: ColumnRanges | None
    exact_ranges: ColumnRanges | None
    class_counts: dict[float, int]


@dataclass
class _FirstPass:
    """What is known of the input, block by block."""

    ranges: ColumnRanges
    exact_ranges: ColumnRanges | None = None
    class_counts: Counter[float] = field(default_factory=Counter)
    n_rows: int = 0
    width: int = 0
    n_dropped: int = 0
    n_skipped: int = 0
    skipped: list[str] = field(default_factory=list)

    def add(self, summed: _Summed, name: str) -> None:
        block = summed.parsed
        if block.rows.n_features > MAX_FEATURES:
            raise InputError(
                f"{name} has a feature index of {block.rows.n_features}, and the limit is "
                f"{MAX_FEATURES}; if it is a stray one, leave wide features out with --n-features"
            )
        if summed.ranges is None:
            self.ranges.add(block.rows)
        else:
            self.ranges.merge(summed.ranges)
        self.exact_ranges = self.exact_ranges or summed.exact_ranges
        self.class_counts.update(summed.class_counts)
        if len(self.class_counts) > MAX_CLASSES:
            raise too_many_classes(name)
        self.n_rows += len(block.rows)
        self.width = max(self.width, block.width)
        self.n_dropped += block.n_dropped
        self.n_skipped += block.n_skipped
        self.skipped += block.skipped[: EXAMPLES - len(self.skipped)]


def _parse(job: _Job) -> _FirstPass:
    """Parse all inputs into the spool.

    Blocks are parsed by several threads and come back in the order of the input, which numbers
    their rows; then several threads spool them.
    """
    first = _FirstPass(ColumnRanges(job.options.scale))
    summing = _Summing(job)

    def numbered() -> Iterator[RowBlock]:
        for reader in job.readers:
            step = partial(summing, job.encoder.parser(reader))
            blocks = enumerate(reader.blocks())
            for block in ordered_map(step, blocks, threads=default_threads()):
                row_ids = np.arange(first.n_rows, first.n_rows + len(block.parsed.rows))
                first.add(block, reader.name)
                job.meter.at(sum(reader.bytes_read for reader in job.readers))
                yield RowBlock(block.parsed.rows, block.parsed.labels, row_ids)

    with _naming(job.target, "rows were set aside in temporary files beside it"):
        if job.spool.seed is not None:
            for _ in ordered_map(job.spool.add, numbered(), threads=default_threads()):
                pass
        else:
            for block in numbered():
                job.spool.add(block)
    job.meter.next_pass()
    if not first.n_rows:
        raise InputError(f"{job.name} holds no rows; {job.encoder.hint}")
    return first


class _Summing:
    """Parses a block and sums up what needs no other block; for any thread."""

    def __init__(self, job: _Job) -> None:
        self._ranges = ColumnRanges(job.options.scale)
        self._logs = LogTable(job.scaling) if job.scaling.log1p else None
        self._exact_parser = job.encoder.exact_parser
        self._rounds = job.spool.dtype == np.float32

    def __call__(self, parse: Parse, numbered: tuple[int, Any]) -> _Summed:
        number, block = numbered
        parsed = parse(block)
        rows = parsed.rows
        if self._logs is not None:
            self._logs.apply(rows.data)
        ranges = self._ranges.of(rows) if rows.n_features <= WIDE else None
        exact = None
        if (
            self._exact_parser is not None
            and number == 0
            and ranges is not None
            and _narrow(ranges)
        ):
            exact = self._ranges.of(self._exact_parser(block).rows)
        if self._rounds:
            parsed = replace(parsed, rows=replace(rows, data=as_float32(rows.data)))
        return _Summed(parsed, ranges, exact, count_labels(parsed.labels))


def _narrow(ranges: ColumnRanges) -> bool:
    """Whether some column is nearly constant, so that rounding may have merged its values."""
    low, high = (ends.astype(np.float32) for ends in ranges.range(ranges.n_features))
    size = np.maximum(np.abs(low), np.abs(high))
    return bool(np.any((size > 0) & (high - low < FEW_STEPS * np.spacing(size))))


def _lost_columns(job: _Job, first: _FirstPass, scaling: Scaling, layout: Layout) -> Iterator[str]:
    """Sentences on columns whose values float32 cannot tell apart."""
    found = first.exact_ranges or first.ranges
    low, high = found.range(layout.n_features)
    for column in found.lost(scaling, layout.n_features)[:EXAMPLES].tolist():
        done = "" if scaling.kind == "none" else f" after --scale {scaling.kind}"
        yield (
            f"{job.encoder.feature_name(column)}: its values, from {low[column]:.17g} to "
            f"{high[column]:.17g}, cannot be told apart in float32{done}; give --scale standard, "
            f"which takes their mean off before they are rounded"
        )


# --- the second pass -----------------------------------------------------------------------------


def _plan(job: _Job, first: _FirstPass) -> tuple[Layout, Scaling, tuple[str, ...]]:
    """Size, storage and scaling of the output, and notes on them; InputError if it will not fit."""
    n_features = job.n_features or first.width
    if not n_features:
        raise InputError(f"{job.name} holds labels only, no features; nothing to learn")
    n_stored, scaling = first.ranges.n_stored, job.scaling
    if job.like is None:
        scaling = first.ranges.fit(scaling.log1p, n_features)
    density = n_stored / (first.n_rows * n_features)
    sparse, notes = _choose_storage(job, scaling, density)
    layout = Layout(
        first.n_rows, n_features, n_stored, sparse, job.options.compression, job.encoder.labelled
    )
    if layout.compression == "none":
        _require_room(job.target, layout.n_bytes - job.spool.freed_bytes, "the output")
    return layout, scaling, notes


def _choose_storage(job: _Job, scaling: Scaling, density: float) -> tuple[bool, tuple[str, ...]]:
    """Whether to store sparse rows, and notes on this choice."""
    dense = job.options.dense
    by_default = density < DENSE_FROM_DENSITY if job.like is None else job.like.sparse
    sparse = by_default if dense is None else not dense
    if not (sparse and scaling.moves_zero):
        return sparse, ()
    if dense is False:
        raise InputError(
            f"scaling {scaling.kind!r} turns zeros into other numbers here, so rows cannot stay "
            f"sparse; use --scale maxabs, or leave out --sparse"
        )
    note = f"scaling {scaling.kind!r} turns zeros into other numbers: rows are stored dense"
    return False, (note,)


def _count_classes(counts: Counter[float], values: Float64Array | None) -> dict[float, int]:
    """Rows of each label value, sorted, where labels may be codes of values."""
    total: Counter[float] = Counter()
    for label, count in counts.items():
        total[label if values is None else float(values[int(label)])] += count
    return dict(sorted(total.items()))


def _write(
    job: _Job,
    writer: DatasetWriter,
    layout: Layout,
    scaling: Scaling,
    label_values: Float64Array | None,
) -> ColumnMoments:
    """Read the spool back, scale its rows and write them; returns moments of what was written."""
    moments = ColumnMoments(layout.n_features)
    finish = _finisher(layout, scaling)
    pieces = _pieces(prefetch(job.spool.blocks(layout.n_features)), layout)
    for rows, summed, piece in ordered_map(finish, pieces, threads=default_threads()):
        moments.add(summed)
        labels = piece.labels
        if label_values is not None:
            labels = label_values[labels.astype(np.int64)]
        writer.append(rows, labels, piece.row_ids)
        if job.meter.pass_bytes is not None:
            job.meter.at(round(writer.fraction_written * job.meter.pass_bytes))
    return moments


def _finisher(
    layout: Layout, scaling: Scaling
) -> Callable[[RowBlock], tuple[Rows, Rows, RowBlock]]:
    """Function that returns the rows of a piece as they are stored, and rows of equal moments."""
    zero_row = scaling.zero_row(layout.n_features)
    # Zeros add nothing to the moments, and most values of a dense row may be zeros.
    sparse_moments = not zero_row.any()

    def finish(piece: RowBlock) -> tuple[Rows, Rows, RowBlock]:
        data, indices, indptr = piece.rows.data, piece.rows.indices, piece.rows.indptr
        data = scaling.scale_values(data, indices)
        if layout.sparse:  # constant columns have become zeros
            kept = drop_zeros(data, indices, indptr)
            rows = CSRRows(data[:kept], indices[:kept], indptr, layout.n_features)
            return rows, rows, piece
        dense = np.empty(piece.rows.shape, dtype=np.float32)
        write_dense_rows(data, indices, indptr, zero_row, dense)
        return dense, replace(piece.rows, data=data) if sparse_moments else dense, piece

    return finish


def _pieces(blocks: Iterator[RowBlock], layout: Layout) -> Iterator[RowBlock]:
    """Blocks cut into pieces of about PIECE_BYTES, dense ones at the borders of chunks.

    Small pieces stay in the processor's cache. A dense piece that is a whole chunk is written
    without a copy.
    """
    row = 0
    for block in blocks:
        size = chunk_rows(layout.n_features)
        if layout.sparse:
            row_bytes = 8 * (len(block.rows.data) // max(1, len(block)) + 1)
            size = max(1, PIECE_BYTES // row_bytes)
        start = 0
        while start < len(block):
            stop = start + size - (0 if layout.sparse else row % size)
            piece = block[start:stop]
            yield piece
            start += len(piece)
            row += len(piece)
