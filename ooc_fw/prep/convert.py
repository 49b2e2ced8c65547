"""LIBSVM text to one HDF5 file: the two passes.

The first pass parses, gathers column ranges and class counts, and sets rows aside on disk (in
random buckets, when shuffling). Then scaling, width and storage are known. The second pass reads
the rows back, scales them and writes the file. Memory does not depend on the number of rows.

Owns the order of these things and what is refused before they begin. Parsing, shuffling, scaling
and layout have modules of their own.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import h5py
import numpy as np

from ooc_fw._core.libsvm import drop_zeros, write_dense_rows
from ooc_fw.errors import InputError
from ooc_fw.files import atomic_path
from ooc_fw.prep.columns import MAX_FEATURES, ColumnMoments, ColumnRanges, count_labels
from ooc_fw.prep.libsvm import (
    EXAMPLES,
    NO_LIMIT,
    ParsedBlock,
    ParseOptions,
    no_rows_error,
    parser,
)
from ooc_fw.prep.logs import LogTable
from ooc_fw.prep.pipeline import default_threads, ordered_map, prefetch
from ooc_fw.prep.spool import BUCKET_BYTES, RowBlock, ShuffleSpool, Spool, shuffle_bits
from ooc_fw.prep.text import STANDARD_INPUT, TextBlock, TextInput
from ooc_fw.prep.writer import DatasetWriter, chunk_rows, create_file, filter_options, output_bytes
from ooc_fw.rows import CSRRows, Rows
from ooc_fw.scaling import KINDS, Scaling
from ooc_fw.sources.checksums import read_checksums
from ooc_fw.sources.hdf5 import H5PY_ERRORS

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with (bytes done, bytes in all or None); each byte of input counts once per pass."""

DENSE_FROM_DENSITY = 0.25
"""Stored dense from this share of nonzeros on: dense products are then the faster ones, and a
sparse row, with an index beside each value, would hardly be smaller."""
MAX_CLASSES = 4096
"""More different labels are taken for targets of a regression."""
PIECE_BYTES = 2 << 20
"""Rows scaled and written at once."""

_SPOOL_BYTES_PER_TEXT_BYTE = 1.5
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
    """What `convert_libsvm` did.

    Parameters
    ----------
    output : str
        The file written.
    n_rows, n_features : int
        Its size.
    class_counts : dict
        Rows of each label value, sorted by label.
    sparse : bool
        Whether rows are stored as CSR.
    density : float
        Nonzeros parsed / (rows x features), before scaling.
    scaling : Scaling
        What was done to the values.
    seed : int or None
        Seed of the shuffle, None when rows keep the order of the input.
    dropped_features, dropped_values : int
        Columns beyond the width asked for, and the nonzeros and zeros written in them.
    n_skipped : int
        Lines left out because of an error.
    skipped : tuple of str
        What was wrong with the first few of them.
    unseen_labels : tuple of float
        Labels that the `like` file does not have; their rows are kept.
    notes : tuple of str
        Choices a user may not expect, a sentence each.
    text_bytes : int
        Size of the input, decompressed.
    seconds : float
        Wall time.
    """

    output: str
    n_rows: int
    n_features: int
    class_counts: dict[float, int]
    sparse: bool
    density: float
    scaling: Scaling
    seed: int | None
    dropped_features: int
    dropped_values: int
    n_skipped: int
    skipped: tuple[str, ...]
    unseen_labels: tuple[float, ...]
    notes: tuple[str, ...]
    text_bytes: int
    seconds: float

    @property
    def megabytes_per_second(self) -> float:
        """Text converted per second of wall time."""
        return self.text_bytes / 1e6 / self.seconds


@dataclass(frozen=True)
class _Like:
    """What a test file takes over from its training file."""

    n_features: int
    sparse: bool
    scaling: Scaling
    class_names: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class _Summed:
    """A block of rows with all that can be summed up without its neighbours."""

    parsed: ParsedBlock
    ranges: ColumnRanges | None  # None: to be added in the order of the input
    class_counts: dict[float, int]


@dataclass
class _FirstPass:
    """What is known of the input, growing block by block."""

    ranges: ColumnRanges
    class_counts: dict[float, int] = field(default_factory=dict)
    n_rows: int = 0
    width: int = 0
    dropped_values: int = 0
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
        for label, count in summed.class_counts.items():
            self.class_counts[label] = self.class_counts.get(label, 0) + count
        if len(self.class_counts) > MAX_CLASSES:
            raise InputError(
                f"{name} brings the number of different labels above {MAX_CLASSES}; these are "
                "targets of a regression, not classes"
            )
        self.n_rows += len(block.rows)
        self.width = max(self.width, block.width)
        self.dropped_values += block.dropped_values
        self.n_skipped += block.n_skipped
        self.skipped += block.skipped[: EXAMPLES - len(self.skipped)]


def convert_libsvm(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    dense: bool | None = None,
    scale: str = "none",
    log1p: bool = False,
    like: str | os.PathLike[str] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    zero_based: bool = False,
    on_error: str = "raise",
    compression: str = "none",
    n_features: int | None = None,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert LIBSVM text to an HDF5 file, in memory that does not depend on its size.

    Parameters
    ----------
    inputs : sequence of str or PathLike
        Files (plain or compressed) or "-" for standard input, taken one after the other.
    output : str or PathLike
        HDF5 file; replaced as a whole when all is well, otherwise left as it was.
    dense : bool or None
        How rows are stored. None chooses by density; with `like`, as in that file.
    scale : {"none", "minmax", "maxabs", "standard"}
        Per-column scaling, from the ranges of these rows.
    log1p : bool
        Take log(1 + x) of every value first.
    like : str, PathLike or None
        Take width, scaling and log1p from this converted file and keep the order of the rows.
    shuffle : bool
        Store rows in random order, a function of the number of rows and `seed` alone.
    seed : int
        Seed of the shuffle.
    zero_based : bool
        Whether the first feature is called 0.
    on_error : {"raise", "skip"}
        What to do with a line that cannot be taken.
    compression : {"none", "gzip", "lz4", "zstd"}
        Filter of the large data sets.
    n_features : int or None
        Width of the file. Wider features are dropped and counted, missing ones are 0. None takes
        the widest row.
    progress : callable or None
        Called now and then with (bytes done, bytes in all or None).

    Returns
    -------
    ConversionReport

    Raises
    ------
    InputError
        For an option, input or line that cannot be used.
    OSError
        When the disk is full or fails; `output` is then as it was.

    Notes
    -----
    Free space is compared with what is needed before rows are set aside, and again before the
    output is begun, when its size is known.
    """
    started = time.perf_counter()
    _check_options(scale, compression, like, log1p, n_features, seed)
    target = Path(output)
    with ExitStack() as stack:
        texts = _open_inputs(inputs, stack)
        _check_output(target, [*inputs, *([] if like is None else [like])])
        pattern = None if like is None else _read_like(Path(like))
        if pattern is not None:
            scaling, n_features, shuffle = pattern.scaling, pattern.n_features, False
        else:
            scaling = Scaling("none", log1p)  # the rest follows from the first pass
        text_size = _check_room(target, texts)
        with _naming(target, "a temporary file was begun beside it"):
            spool = _open_spool(target.absolute().parent, shuffle, seed, text_size)
        stack.callback(spool.close)
        options = ParseOptions(
            zero_based, NO_LIMIT if n_features is None else n_features, scaling.log1p, on_error
        )
        meter = _Meter(progress, texts)
        with _naming(target, "rows were set aside in temporary files beside it"):
            columns = ColumnRanges(scale == "standard")
            first = _parse(texts, options, scaling, columns, spool, meter)

        n_features = first.width if n_features is None else n_features
        if not n_features:
            raise InputError(f"{_names(texts)} holds labels only, no features; nothing to learn")
        if pattern is None:
            scaling = first.ranges.fit(scale, log1p, n_features)
        density = first.ranges.n_stored / (first.n_rows * n_features)
        sparse, notes = _choose_storage(dense, pattern, scaling, density)
        if compression == "none":
            size = output_bytes(first.n_rows, n_features, first.ranges.n_stored, sparse=sparse)
            _require_room(target, size - _given_back(spool), "the output")

        with (
            _naming(target, "it was being written"),
            atomic_path(target) as temporary,
            create_file(temporary) as file,
        ):
            writer = DatasetWriter(
                file,
                first.n_rows,
                n_features,
                first.ranges.n_stored,
                sparse=sparse,
                compression=compression,
            )
            moments = _write(spool, writer, scaling, n_features, sparse, meter)
            writer.finish(
                class_counts=first.class_counts,
                seed=seed if shuffle else None,
                source=_names(texts),
                scaling=scaling,
                mean=moments.mean,
                mean_square_norm=moments.mean_square_norm,
            )
    known = None if pattern is None else pattern.class_names
    return ConversionReport(
        output=os.fspath(output),
        n_rows=first.n_rows,
        n_features=n_features,
        class_counts=dict(sorted(first.class_counts.items())),
        sparse=sparse,
        density=density,
        scaling=scaling,
        seed=seed if shuffle else None,
        dropped_features=max(0, first.width - n_features),
        dropped_values=first.dropped_values,
        n_skipped=first.n_skipped,
        skipped=tuple(first.skipped),
        unseen_labels=()
        if known is None
        else tuple(sorted(label for label in first.class_counts if label not in known)),
        notes=notes,
        text_bytes=sum(text.text_bytes for text in texts),
        seconds=time.perf_counter() - started,
    )


# --- before the first pass -----------------------------------------------------------------------


def _check_options(
    scale: str,
    compression: str,
    like: str | os.PathLike[str] | None,
    log1p: bool,
    n_features: int | None,
    seed: int,
) -> None:
    if scale not in KINDS:
        raise InputError(f"scale must be one of {', '.join(KINDS)}, not {scale!r}")
    if seed < 0:
        raise InputError(f"seed must not be negative, not {seed}")
    if n_features is not None and n_features < 1:
        raise InputError(f"n_features must be at least 1, not {n_features}")
    if like is not None and (scale != "none" or log1p or n_features is not None):
        raise InputError(
            f"scaling, log1p and width come from {like} here; leave out --scale, --log1p and "
            "--n-features, or leave out --like"
        )
    filter_options(compression)


def _open_inputs(inputs: Sequence[str | os.PathLike[str]], stack: ExitStack) -> list[TextInput]:
    if not inputs:
        raise InputError("no input given; name a file, or - for standard input")
    if [os.fspath(path) for path in inputs].count(STANDARD_INPUT) > 1:
        raise InputError("standard input (-) can be read only once; give - once")
    return [stack.enter_context(TextInput(path)) for path in inputs]


def _check_output(target: Path, read: Sequence[str | os.PathLike[str]]) -> None:
    """Refuse an output that cannot be replaced, or that is being read."""
    directory = target.resolve().parent
    if target.is_dir():
        raise InputError(f"{target} is a directory; give the output a file name in it")
    if target.exists() and not target.is_file():
        raise InputError(f"{target} is not a regular file; give the output another name")
    if not directory.is_dir():
        raise InputError(f"{directory} does not exist; create the output's directory first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(f"{directory} cannot be written to; put the output elsewhere")
    for path in read:
        if os.fspath(path) != STANDARD_INPUT and target.exists() and target.samefile(path):
            raise InputError(f"{target} is read and written at once; give the output another name")


def _read_like(path: Path) -> _Like:
    try:
        with h5py.File(path, "r") as file:
            if "format_version" in file.attrs and file.attrs.get("complete") != 1:
                raise InputError(f"{path} is an unfinished conversion; convert it again")
            if "X" not in file:
                raise InputError(f"{path} has no /X; --like takes a file made by ooc-fw convert")
            read_checksums(file)  # scaling and width are only as good as they are
            sparse = isinstance(file["X"], h5py.Group)
            shape = file["X"].attrs["shape"] if sparse else file["X"].shape
            names = file.attrs.get("class_names")
            return _Like(
                int(shape[1]),
                sparse,
                Scaling.read(file) or Scaling(),
                None if names is None else tuple(float(name) for name in names),
            )
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; --like takes a converted file") from None
    except InputError:
        raise
    except (*H5PY_ERRORS, IndexError):
        raise InputError(
            f"{path} is not a converted file; --like takes one made by ooc-fw convert"
        ) from None


def _check_room(target: Path, texts: Sequence[TextInput]) -> int | None:
    """Refuse when the rows set aside will not fit the disk; returns bytes of text, if known."""
    sizes = [
        None
        if text.size is None
        else text.size * (_TEXT_BYTES_PER_COMPRESSED_BYTE**text.compressed)
        for text in texts
    ]
    known = [size for size in sizes if size is not None]
    _require_room(target, sum(known), "temporary files")
    return sum(known) if len(known) == len(sizes) else None


def _require_room(target: Path, n_bytes: int, purpose: str) -> None:
    directory = target.absolute().parent
    free = shutil.disk_usage(directory).free
    if n_bytes > free:
        raise InputError(
            f"{directory} has {free} bytes free, and {purpose} will take about {n_bytes} more; "
            f"free some space or put the output elsewhere"
        )


def _given_back(spool: Spool | ShuffleSpool) -> int:
    """Bytes of temporary files that are free again before the last byte of output is written."""
    if isinstance(spool, Spool):
        return 0
    # Buckets go one by one; the last ones, and what one is split into, are still there.
    return max(0, spool.n_bytes - max(4 * BUCKET_BYTES, spool.n_bytes // 8))


@contextmanager
def _naming(target: Path, moment: str) -> Iterator[None]:
    """Say of an error of the disk which output it stopped, and when."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise OSError(
            error.errno, f"{error.strerror}, while {moment}; it is left as it was", str(target)
        ) from error


def _open_spool(
    directory: Path, shuffle: bool, seed: int, text_size: int | None
) -> Spool | ShuffleSpool:
    if not shuffle:
        return Spool(directory)
    n_bytes = None if text_size is None else int(text_size * _SPOOL_BYTES_PER_TEXT_BYTE)
    return ShuffleSpool(directory, seed, shuffle_bits(n_bytes))


class _Meter:
    """Turns bytes read and rows written into calls of a progress function."""

    def __init__(self, progress: Progress | None, texts: Sequence[TextInput]) -> None:
        self._progress = progress
        self._texts = texts
        sizes = [text.size for text in texts if text.size is not None]
        self._total = sum(sizes) if len(sizes) == len(texts) else None

    def reading(self) -> None:
        done = sum(text.bytes_read for text in self._texts)
        if self._progress is not None:
            self._progress(done, self._total and self._total * _COUNTED_PASSES)

    def writing(self, fraction: float) -> None:
        if self._progress is not None and self._total is not None:
            done = self._total + round(fraction * self._total)
            self._progress(done, self._total * _COUNTED_PASSES)


# --- the first pass ------------------------------------------------------------------------------


def _parse(
    texts: Sequence[TextInput],
    options: ParseOptions,
    scaling: Scaling,
    ranges: ColumnRanges,
    spool: Spool | ShuffleSpool,
    meter: _Meter,
) -> _FirstPass:
    """Parse all inputs into the spool.

    Blocks are parsed by several threads and come back in the order of the input, which numbers
    their rows; then several threads set them aside.
    """
    first = _FirstPass(ranges)
    parse = parser(options)
    logs = LogTable(scaling) if scaling.log1p else None
    threads = default_threads()

    def work(block: TextBlock) -> _Summed:
        parsed = parse(block)
        if logs is not None:
            logs.apply(parsed.rows.data)
        return _Summed(parsed, first.ranges.part(parsed.rows), count_labels(parsed.labels))

    def numbered() -> Iterator[RowBlock]:
        for text in texts:
            for block in ordered_map(work, text.blocks(), threads=threads):
                row_ids = np.arange(first.n_rows, first.n_rows + len(block.parsed.rows))
                first.add(block, text.name)
                meter.reading()
                yield RowBlock(block.parsed.rows, block.parsed.labels, row_ids)

    if spool.any_order:
        for _ in ordered_map(spool.add, numbered(), threads=threads):
            pass
    else:
        for block in numbered():
            spool.add(block)
    if not first.n_rows:
        raise no_rows_error(_names(texts))
    return first


def _names(texts: Sequence[TextInput]) -> str:
    return ", ".join(text.name for text in texts)


# --- the second pass -----------------------------------------------------------------------------


def _choose_storage(
    dense: bool | None, pattern: _Like | None, scaling: Scaling, density: float
) -> tuple[bool, tuple[str, ...]]:
    """Whether to store sparse rows, and what to tell the user about it."""
    if scaling.moves_zero:
        if dense is False:
            raise InputError(
                f"scaling {scaling.kind!r} turns zeros into other numbers here, so rows cannot "
                "stay sparse; use --scale maxabs, or leave out --sparse"
            )
        wanted_sparse = dense is None and (
            density < DENSE_FROM_DENSITY if pattern is None else pattern.sparse
        )
        note = f"scaling {scaling.kind!r} turns zeros into other numbers: rows are stored dense"
        return False, (note,) if wanted_sparse else ()
    if dense is not None:
        return not dense, ()
    return density < DENSE_FROM_DENSITY if pattern is None else pattern.sparse, ()


def _write(
    spool: Spool | ShuffleSpool,
    writer: DatasetWriter,
    scaling: Scaling,
    n_features: int,
    sparse: bool,
    meter: _Meter,
) -> ColumnMoments:
    """Read the spool back, scale its rows and write them; returns moments of what was written."""
    moments = ColumnMoments(n_features)
    zero_row = scaling.zero_row(n_features)
    # Zeros add nothing to the moments, and most of a dense row may be zeros.
    few = not zero_row.any()

    def finish(piece: RowBlock) -> tuple[Rows, Rows, RowBlock]:
        rows = replace(piece.rows, data=scaling.scale_values(piece.rows.data, piece.rows.indices))
        if sparse:
            rows = _without_zeros(rows)
            return rows, rows, piece
        dense = np.empty(rows.shape, dtype=np.float32)
        write_dense_rows(rows.data, rows.indices, rows.indptr, zero_row, dense)
        return dense, rows if few else dense, piece

    pieces = _pieces(prefetch(spool.blocks(n_features)), n_features, sparse)
    for rows, summed, piece in ordered_map(finish, pieces, threads=default_threads()):
        moments.add(summed)
        writer.append(rows, piece.labels, piece.row_ids)
        meter.writing(writer.fraction_written)
    return moments


def _pieces(blocks: Iterator[RowBlock], n_features: int, sparse: bool) -> Iterator[RowBlock]:
    """Blocks cut into pieces of about PIECE_BYTES, dense ones at the borders of chunks.

    Small pieces stay in the processor's cache, and only a few of them are in flight. A piece that
    is a whole chunk need not be copied into one.
    """
    row = 0
    for block in blocks:
        size = chunk_rows(n_features)
        if sparse:
            row_bytes = 8 * (len(block.rows.data) // max(1, len(block)) + 1)
            size = max(1, PIECE_BYTES // row_bytes)
        start = 0
        while start < len(block):
            stop = start + size - (0 if sparse else row % size)
            piece = block[start:stop]
            yield piece
            start += len(piece)
            row += len(piece)


def _without_zeros(rows: CSRRows) -> CSRRows:
    """Rows without stored zeros (of constant columns, after scaling), in the same memory."""
    kept = drop_zeros(rows.data, rows.indices, rows.indptr)
    return CSRRows(rows.data[:kept], rows.indices[:kept], rows.indptr, rows.n_features)
