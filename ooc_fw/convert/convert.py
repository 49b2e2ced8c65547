"""LIBSVM text and tables to one HDF5 file: the two passes.

The first pass parses, gathers column ranges and class counts, and sets rows aside on disk (in
random buckets, when shuffling). Then scaling, width and storage are known. The second pass reads
the rows back, scales them and writes the file. Memory does not depend on the number of rows.

Owns the order of these things and what is refused before they begin. Parsing, tables, shuffling,
scaling and layout have modules of their own.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import h5py
import numpy as np

from ooc_fw._core.libsvm import drop_zeros, write_dense_rows
from ooc_fw.convert.columns import MAX_FEATURES, WIDE, ColumnMoments, count_labels
from ooc_fw.convert.libsvm import (
    EXAMPLES,
    NO_LIMIT,
    ParsedBlock,
    ParseOptions,
    no_rows_error,
    parser,
)
from ooc_fw.convert.logs import LogTable
from ooc_fw.convert.pipeline import default_threads, ordered_map, prefetch
from ooc_fw.convert.readers import TableReader
from ooc_fw.convert.spool import BUCKET_BYTES, RowBlock, ShuffleSpool, Spool, shuffle_bits
from ooc_fw.convert.tables import (
    MAX_CLASSES,
    EncodingOptions,
    TableOptions,
    TableRecord,
    Tables,
    fit_record,
    needs_scouting,
    open_tables,
    positional_record,
    table_format,
)
from ooc_fw.convert.text import STANDARD_INPUT, TextInput
from ooc_fw.convert.writer import (
    DatasetWriter,
    chunk_rows,
    create_file,
    filter_options,
    output_bytes,
)
from ooc_fw.data.attributes import LABEL_NAMES, get_texts
from ooc_fw.data.ranges import FEW_STEPS, ColumnRanges
from ooc_fw.data.rows import CSRRows, Float64Array, Rows, as_float32
from ooc_fw.data.scaling import KINDS, Scaling
from ooc_fw.data.sources.checksums import CONTENT, content_crc32, read_checksums
from ooc_fw.data.sources.opening import H5PY_ERRORS, find_node, open_file
from ooc_fw.data.sources.storage import check_plain_tree
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import DamageError, InputError
from ooc_fw.system.files import Output, atomic_path, check_outputs

Input: TypeAlias = TextInput | TableReader
Parse: TypeAlias = Callable[[Any], ParsedBlock]
Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with (bytes done, bytes in all or None); each byte of input counts once per pass."""

DENSE_FROM_DENSITY = 0.25
"""Stored dense from this share of nonzeros on: dense products are then the faster ones, and a
sparse row, with an index beside each value, would hardly be smaller."""
PIECE_BYTES = 2 << 20
"""Rows scaled and written at once."""

_SPOOL_BYTES_PER_TEXT_BYTE = 1.5
_EXACT_SPOOL_BYTES_PER_TEXT_BYTE = 2.5  # with values of float64
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
    """What a conversion did.

    Parameters
    ----------
    output : str
        The file written.
    n_rows, n_features : int
        Its size.
    class_counts : dict
        Rows of each label value, a number or a word, sorted by label.
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
        Lines or rows left out because of an error.
    skipped : tuple of str
        What was wrong with the first few of them.
    unseen_labels : tuple of float or str
        Labels that the `like` file does not have; their rows are kept.
    notes : tuple of str
        Choices a user may not expect, a sentence each.
    text_bytes : int
        Size of the input as read, decompressed.
    seconds : float
        Wall time.
    """

    output: str
    n_rows: int
    n_features: int
    class_counts: dict[Any, int]
    sparse: bool
    density: float
    scaling: Scaling
    seed: int | None
    dropped_features: int
    dropped_values: int
    n_skipped: int
    skipped: tuple[str, ...]
    unseen_labels: tuple[Any, ...]
    notes: tuple[str, ...]
    text_bytes: int
    seconds: float

    @property
    def megabytes_per_second(self) -> float:
        """Input converted per second of wall time."""
        return self.text_bytes / 1e6 / self.seconds


@dataclass(frozen=True)
class _Like:
    """What a test file takes over from its training file."""

    n_features: int
    sparse: bool
    scaling: Scaling
    class_names: tuple[Any, ...] | None
    """Label values, or the words they stand for."""
    record: TableRecord | None
    """How a table became its features."""
    is_model: bool = False
    """Whether it is a model, which knows of no table."""

    @property
    def words(self) -> tuple[str, ...]:
        """Labels that are words."""
        return tuple(name for name in self.class_names or () if isinstance(name, str))


@dataclass(frozen=True)
class _Settings:
    """What both ways to convert have in common; see `convert_libsvm`."""

    dense: bool | None
    scale: str
    log1p: bool
    like: str | os.PathLike[str] | None
    shuffle: bool
    seed: int
    on_error: str
    compression: str
    n_features: int | None
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class _Summed:
    """A block of rows with all that can be summed up without its neighbours."""

    parsed: ParsedBlock
    ranges: ColumnRanges | None  # None: too wide to be merged, to be added
    looked_at: ColumnRanges | None  # those before rounding, where that may matter
    class_counts: dict[float, int]


@dataclass
class _FirstPass:
    """What is known of the input, growing block by block."""

    ranges: ColumnRanges
    looked_at: ColumnRanges | None = None
    """Ranges, before rounding, of rows of text that was read as float32."""
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
        self.looked_at = self.looked_at or summed.looked_at
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
    settings = _Settings(
        dense, scale, log1p, like, shuffle, seed, on_error, compression, n_features, progress
    )
    return _convert(inputs, output, settings, _Lines(inputs, zero_based))


def convert_tables(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    table: TableOptions,
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
    """Convert CSV, Parquet, `.npy`, `.npz` or HDF5 tables, or LIBSVM text, by their kind.

    The output is that of `convert_libsvm` for the same rows and labels as text, and says how the
    columns became features: `like` gives a test table the same ones, whatever their order in it.

    Parameters
    ----------
    inputs : sequence of str or PathLike
        Files of one format, with the same columns, taken one after the other; "-" is standard
        input (LIBSVM text or CSV).
    output : str or PathLike
        HDF5 file; replaced as a whole when all is well, otherwise left as it was.
    table : TableOptions
        Which columns are what.
    zero_based, n_features
        For LIBSVM text only.
    dense, scale, log1p, like, shuffle, seed, on_error, compression, progress
        As for `convert_libsvm`.

    Returns
    -------
    ConversionReport

    Raises
    ------
    InputError
        For an option, input, column or row that cannot be used.
    OSError
        When the disk is full or fails; `output` is then as it was.

    Notes
    -----
    Categories and means are found in a pass of its own before the two of every conversion. Memory
    does not depend on the number of rows; it holds the different categories and labels.
    """
    pattern = None if like is None else _read_like(Path(like))
    record = None if pattern is None else pattern.record
    format_name = table_format(inputs, table, record)
    if format_name == "csv" and table.header is None and record is not None and not record.header:
        table = replace(table, header=False)
    if pattern is not None and pattern.is_model and format_name in ("csv", "parquet"):
        raise InputError(
            f"{like} is a model, which does not say how the columns of a table became its "
            f"features; give the converted training file with --like"
        )
    settings = _Settings(
        dense, scale, log1p, like, shuffle, seed, on_error, compression, n_features, progress
    )
    if format_name == "libsvm":
        return _convert(inputs, output, settings, _Lines(inputs, zero_based))
    if zero_based or n_features is not None:
        raise InputError(
            "--zero-based and --n-features are for LIBSVM text; leave them out, or name --format"
        )
    if like is not None and (table.one_hot or table.impute):
        raise InputError(
            f"categories and means come from {like} here; leave out --one-hot and --impute, or "
            f"leave out --like"
        )
    return _convert(inputs, output, settings, _Columns(inputs, format_name, table))


def convert(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    *,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert LIBSVM text or tables to an HDF5 file; see `convert_tables`."""
    values = vars(options or ConvertOptions())
    names = {field.name for field in fields(TableOptions)}
    table = TableOptions(**{name: values[name] for name in names})
    others = {name: value for name, value in values.items() if name not in names}
    return convert_tables(inputs, output, table, progress=progress, **others)


class _Reading(Protocol):
    """How inputs of one kind are opened and parsed."""

    n_passes: int

    def open(self, stack: ExitStack) -> Sequence[Input]:
        """Open all inputs; they are closed by `stack`."""

    def prepare(
        self, like: _Like | None, options: EncodingOptions, meter: _Meter, like_name: str
    ) -> None:
        """Find out what is needed to parse."""

    def parser(self, text: Input) -> Parse:
        """Parser of the blocks of one input, for any thread."""

    @property
    def closer_parser(self) -> Parse | None:
        """Parser that does not round, where `parser` does."""

    def feature_name(self, column: int) -> str:
        """What a user calls a feature."""

    def no_rows_error(self, names: str) -> InputError:
        """Build the error for inputs without any row."""

    def labels(self) -> tuple[Float64Array | None, tuple[str, ...] | None]:
        """Value of each label code, None where labels are values; names of the values, if any."""

    @property
    def record(self) -> TableRecord | None:
        """How columns became features, where they have names."""

    @property
    def labelled(self) -> bool:
        """Whether rows have labels."""

    def notes(self) -> Iterator[str]:
        """What a user may not expect, a sentence each."""


class _Lines:
    """LIBSVM text."""

    n_passes = _COUNTED_PASSES
    record = None
    labelled = True

    def __init__(self, inputs: Sequence[str | os.PathLike[str]], zero_based: bool) -> None:
        self._inputs = inputs
        self._zero_based = zero_based
        self._options = ParseOptions()

    def open(self, stack: ExitStack) -> Sequence[Input]:
        return _open_inputs(self._inputs, stack)

    def prepare(
        self, like: _Like | None, options: EncodingOptions, meter: _Meter, like_name: str
    ) -> None:
        if like is not None and like.words:
            raise InputError(
                f"the labels of {like_name} are words ({', '.join(like.words[:3])}), and those of "
                f"LIBSVM text are numbers; convert a table"
            )
        limit = NO_LIMIT if options.n_features is None else options.n_features
        self._options = ParseOptions(
            self._zero_based, limit, options.log1p, options.on_error, options.exact
        )

    def parser(self, text: Input) -> Parse:
        return parser(self._options)

    @property
    def closer_parser(self) -> Parse | None:
        return None if self._options.exact else parser(replace(self._options, exact=True))

    def feature_name(self, column: int) -> str:
        return f"feature {column + (not self._zero_based)}"

    def no_rows_error(self, names: str) -> InputError:
        return no_rows_error(names)

    def labels(self) -> tuple[None, None]:
        return None, None

    def notes(self) -> Iterator[str]:
        return iter(())


class _Columns:
    """Tables."""

    def __init__(
        self,
        inputs: Sequence[str | os.PathLike[str]],
        format_name: str,
        table: TableOptions,
    ) -> None:
        self._inputs = inputs
        self._format = format_name
        self._table = table
        self._readers: list[TableReader] = []
        self._options = EncodingOptions()
        self._tables: Tables | None = None
        self.n_passes = _COUNTED_PASSES + needs_scouting(table)

    def open(self, stack: ExitStack) -> Sequence[Input]:
        self._readers = open_tables(self._inputs, self._format, self._table, stack)
        return self._readers

    def prepare(
        self, like: _Like | None, options: EncodingOptions, meter: _Meter, like_name: str
    ) -> None:
        first = self._readers[0]
        self._options = options
        if like is None:
            record = fit_record(
                self._inputs,
                self._format,
                first,
                self._table,
                meter.scouting,
                skip=options.skip,
            )
        elif like.record is not None or first.sparse:
            record = None if first.sparse else like.record
        else:
            record = positional_record(first, self._table, like.n_features)
        self._tables = Tables(
            self._readers,
            record,
            self._table.label,
            known_labels=() if like is None else like.words,
            like=like_name or None,
            drop_unlabelled=self._table.missing_labels == "drop",
        )

    @property
    def record(self) -> TableRecord | None:
        return None if self._tables is None else self._tables.record

    @property
    def labelled(self) -> bool:
        assert self._tables is not None
        return self._tables.labelled

    def parser(self, text: Input) -> Parse:
        assert self._tables is not None
        assert isinstance(text, TableReader)
        return self._tables.parser(text, self._options)

    @property
    def closer_parser(self) -> None:
        return None

    def feature_name(self, column: int) -> str:
        return f"column {column if self.record is None else repr(self.record.features[column])}"

    def no_rows_error(self, names: str) -> InputError:
        return InputError(f"{names} holds no rows; give a table with rows in it")

    def labels(self) -> tuple[Float64Array | None, tuple[str, ...] | None]:
        assert self._tables is not None
        return (None, None) if self._tables.codes is None else self._tables.codes.finish()

    def notes(self) -> Iterator[str]:
        assert self._tables is not None
        return self._tables.notes()


def _convert(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    settings: _Settings,
    reading: _Reading,
) -> ConversionReport:
    """Convert inputs of any kind."""
    started = time.perf_counter()
    scale, like, seed = settings.scale, settings.like, settings.seed
    shuffle, n_features = settings.shuffle, settings.n_features
    _check_options(scale, settings.compression, like, settings.log1p, n_features, seed)
    target = Path(output)
    with ExitStack() as stack:
        texts = reading.open(stack)
        check_outputs([Output("output", output)], [*inputs, like])
        pattern = None if like is None else _read_like(Path(like))
        if pattern is not None:
            scaling, n_features, shuffle = pattern.scaling, pattern.n_features, False
        else:
            scaling = Scaling("none", settings.log1p)  # the rest follows from the first pass
        text_size = _check_room(target, texts)
        meter = _Meter(settings.progress, texts, reading.n_passes)
        # A spread far below the values is lost by rounding them, so that scaling comes first.
        exact = scale != "none" or not scaling.is_identity
        options = EncodingOptions(scaling.log1p, settings.on_error, n_features, exact)
        reading.prepare(pattern, options, meter, os.fspath(like or ""))
        with _naming(target, "a temporary file was begun beside it"):
            spool = _open_spool(target.absolute().parent, shuffle, seed, text_size, exact)
        stack.callback(spool.close)
        with _naming(target, "rows were set aside in temporary files beside it"):
            first = _parse(texts, reading, scaling, ColumnRanges(scale), spool, meter)

        n_features = first.width if n_features is None else n_features
        if not n_features:
            raise InputError(f"{_names(texts)} holds labels only, no features; nothing to learn")
        if pattern is None:
            scaling = first.ranges.fit(settings.log1p, n_features)
        density = first.ranges.n_stored / (first.n_rows * n_features)
        sparse, notes = _choose_storage(settings.dense, pattern, scaling, density)
        if settings.compression == "none":
            size = output_bytes(first.n_rows, n_features, first.ranges.n_stored, sparse=sparse)
            _require_room(target, size - _given_back(spool), "the output")
        label_values, label_names = reading.labels()
        class_counts = _count_classes(first.class_counts, label_values) if reading.labelled else {}

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
                compression=settings.compression,
                labelled=reading.labelled,
            )
            moments = _write(spool, writer, scaling, n_features, sparse, label_values, meter)
            if reading.record is not None:
                reading.record.write(file.attrs)
            writer.finish(
                class_counts=class_counts,
                label_names=label_names,
                seed=seed if shuffle else None,
                source=_names(texts),
                scaling=scaling,
                mean=moments.mean,
                mean_square_norm=moments.mean_square_norm,
            )
    found: dict[Any, int] = class_counts
    if label_names is not None:
        found = {label_names[int(code)]: count for code, count in class_counts.items()}
    known = None if pattern is None else pattern.class_names
    return ConversionReport(
        output=os.fspath(output),
        n_rows=first.n_rows,
        n_features=n_features,
        class_counts=found,
        sparse=sparse,
        density=density,
        scaling=scaling,
        seed=seed if shuffle else None,
        dropped_features=max(0, first.width - n_features),
        dropped_values=first.dropped_values,
        n_skipped=first.n_skipped,
        skipped=tuple(first.skipped),
        unseen_labels=() if known is None else tuple(name for name in found if name not in known),
        notes=(*reading.notes(), *notes, *_lost_columns(first, scaling, reading, n_features)),
        text_bytes=sum(text.text_bytes for text in texts),
        seconds=time.perf_counter() - started,
    )


def _count_classes(counts: dict[float, int], values: Float64Array | None) -> dict[float, int]:
    """Rows of each label value, sorted; given those of codes where codes stand for values."""
    total: dict[float, int] = {}
    for label, count in counts.items():
        value = label if values is None else float(values[int(label)])
        total[value] = total.get(value, 0) + count
    return dict(sorted(total.items()))


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


def _read_like(path: Path) -> _Like:
    if not path.exists():
        raise InputError(f"{path} does not exist; --like takes a converted file")
    strange = InputError(f"{path} is not a converted file; --like takes one made by ooc-fw convert")
    try:
        opened = open_file(str(path))
    except DamageError:
        raise strange from None
    try:
        with opened as file:
            if "support_vectors" in set(file) and "kernel" in file.attrs:
                check_plain_tree(file)
                return _read_model(file)
            if "format_version" in file.attrs and file.attrs.get("complete") != 1:
                raise InputError(f"{path} is an unfinished conversion; convert it again")
            rows, labels = find_node(file, "X"), find_node(file, "y")
            if rows is None:
                raise InputError(f"{path} has no /X; --like takes a file made by ooc-fw convert")
            read_checksums(file)  # scaling and width are only as good as they are
            sparse, n_features = _kind_and_width(rows)
            words = None if labels is None else get_texts(labels.attrs, LABEL_NAMES)
            names = words or file.attrs.get("class_names")
            return _Like(
                n_features,
                sparse,
                Scaling.read(file) or Scaling(),
                _class_names(names),
                TableRecord.read(file.attrs),
            )
    except InputError:
        raise
    except H5PY_ERRORS:
        raise strange from None


def _read_model(file: h5py.File) -> _Like:
    """What a model, which must be whole, says of its training data."""
    if CONTENT in file.attrs and content_crc32(file) != int(file.attrs[CONTENT]):
        raise InputError(
            f"{file.filename} is damaged: it does not match its checksum; restore a copy"
        )
    scaling = Scaling.read(file)
    if scaling is None:
        raise InputError(
            f"{file.filename} is a model that does not know how its training data were scaled; "
            f"give the converted training file with --like"
        )
    sparse, n_features = _kind_and_width(file["support_vectors"])
    names = _class_names(file.attrs["class_names"])
    return _Like(n_features, sparse, scaling, names, None, is_model=True)


def _kind_and_width(rows: Any) -> tuple[bool, int]:
    """Whether rows in a file are sparse, and their number of columns."""
    sparse = isinstance(rows, h5py.Group)
    return sparse, int((rows.attrs["shape"] if sparse else rows.shape)[1])


def _class_names(names: Any) -> tuple[Any, ...] | None:
    """Label values as stored: numbers, or words."""
    if names is None:
        return None
    return tuple(
        name.decode("utf-8")
        if isinstance(name, bytes)
        else name
        if isinstance(name, str)
        else (float(name))
        for name in names
    )


def _check_room(target: Path, texts: Sequence[Input]) -> int | None:
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
    directory: Path, shuffle: bool, seed: int, text_size: int | None, exact: bool
) -> Spool | ShuffleSpool:
    dtype = np.float64 if exact else np.float32
    if not shuffle:
        return Spool(directory, dtype)
    ratio = _EXACT_SPOOL_BYTES_PER_TEXT_BYTE if exact else _SPOOL_BYTES_PER_TEXT_BYTE
    n_bytes = None if text_size is None else int(text_size * ratio)
    return ShuffleSpool(directory, seed, shuffle_bits(n_bytes), dtype=dtype)


class _Meter:
    """Turns bytes read and rows written into calls of a progress function."""

    def __init__(self, progress: Progress | None, texts: Sequence[Input], n_passes: int) -> None:
        self._progress = progress
        self._texts = texts
        sizes = [text.size for text in texts if text.size is not None]
        self._total = sum(sizes) if len(sizes) == len(texts) else None
        self._n_passes = n_passes
        self._begun = (self._total or 0) * (n_passes - _COUNTED_PASSES)

    def scouting(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self._total and self._total * self._n_passes)

    def reading(self) -> None:
        self.scouting(self._begun + sum(text.bytes_read for text in self._texts))

    def writing(self, fraction: float) -> None:
        if self._total is not None:
            self.scouting(self._begun + self._total + round(fraction * self._total))


# --- the first pass ------------------------------------------------------------------------------


def _parse(
    texts: Sequence[Input],
    reading: _Reading,
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
    logs = LogTable(scaling) if scaling.log1p else None
    closer = reading.closer_parser
    threads = default_threads()

    def work(parse: Parse, block: Any) -> _Summed:
        parsed = parse(block)
        rows = parsed.rows
        if logs is not None:
            logs.apply(rows.data)
        found = ranges.of(rows) if rows.n_features <= WIDE else None
        looked_at = None
        if closer is not None and found is not None and block.first_line == 1 and _narrow(found):
            looked_at = ranges.of(closer(block).rows)
        if spool.dtype == np.float32:
            parsed = replace(parsed, rows=replace(rows, data=as_float32(rows.data)))
        return _Summed(parsed, found, looked_at, count_labels(parsed.labels))

    def numbered() -> Iterator[RowBlock]:
        for text in texts:
            step = functools.partial(work, reading.parser(text))
            for block in ordered_map(step, text.blocks(), threads=threads):
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
        raise reading.no_rows_error(_names(texts))
    return first


def _narrow(ranges: ColumnRanges) -> bool:
    """Whether the values of a column are nearly one, so that they may have differed in the text."""
    n_features = ranges.n_features
    low, high = (ends.astype(np.float32) for ends in ranges.range(n_features))
    size = np.maximum(np.abs(low), np.abs(high))
    return bool(np.any((size > 0) & (high - low < FEW_STEPS * np.spacing(size))))


def _lost_columns(
    first: _FirstPass, scaling: Scaling, reading: _Reading, n_features: int
) -> Iterator[str]:
    """Sentences on columns whose values rounding to float32 makes one."""
    found = first.looked_at or first.ranges
    low, high = found.range(n_features)
    for column in found.lost(scaling, n_features)[:EXAMPLES].tolist():
        done = "" if scaling.kind == "none" else f" after --scale {scaling.kind}"
        yield (
            f"{reading.feature_name(column)}: its values, from {low[column]:.17g} to "
            f"{high[column]:.17g}, cannot be told apart in float32{done}; give --scale standard, "
            f"which takes their mean off before they are rounded"
        )


def _names(texts: Sequence[Input]) -> str:
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
    label_values: Float64Array | None,
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
        labels = piece.labels
        if label_values is not None:
            labels = label_values[labels.astype(np.int64)]
        writer.append(rows, labels, piece.row_ids)
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
