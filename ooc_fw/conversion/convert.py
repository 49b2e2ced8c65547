"""Convert LIBSVM text, tables or arrays to an HDF5 file, in two readings with a spool between."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.conversion import readers
from ooc_fw.conversion.arrays import ArrayEncoder, ArrayInput
from ooc_fw.conversion.features import TableEncoder
from ooc_fw.conversion.readers import ParsedBlock, Progress, ordered_map
from ooc_fw.conversion.spool import RowBlock, Spool, shuffle_keys
from ooc_fw.conversion.tables import (
    Table,
    TableRecord,
    TrainingFile,
    check_columns,
    choose_columns,
    read_like,
)
from ooc_fw.conversion.text import STANDARD_INPUT, LineEncoder, TextInput
from ooc_fw.conversion.writer import DatasetWriter, Layout
from ooc_fw.data.formats import TABLES, detect_format, files_of
from ooc_fw.data.opening import input_files, open_dataset, read_groups
from ooc_fw.data.rows import FLOAT32, AnyArray, CSRRows, Int64Array, as_float32, keep_stored
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource
from ooc_fw.data.statistics import ColumnRanges, are_constant
from ooc_fw.data.structure import is_data
from ooc_fw.options import MAX_FEATURES, ConvertOptions
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, StrPath, atomic_path, check_outputs, naming


@dataclass(frozen=True)
class ConversionReport:
    """Results of a conversion."""

    output: str  # the file written
    n_rows: int
    n_features: int
    class_counts: dict[Any, int]  # number of rows with each label, sorted by label
    targets: bool  # whether labels are targets of a regression
    sparse: bool  # whether rows are stored as CSR
    scaling: Scaling  # the scaling of the values
    seed: int | None  # seed of the shuffle; None if rows keep the order of the input
    notes: tuple[str, ...]  # facts that a user may not expect, one sentence each
    text_bytes: int  # bytes that were read, after decompression


def convert_files(
    inputs: Sequence[StrPath],
    output: StrPath,
    options: ConvertOptions,
    like: TrainingFile | None = None,
    *,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert the inputs, see `ooc_fw.convert`; `like` is what a model knows of training rows."""
    progress = progress or (lambda *_: None)
    names = [file for path in inputs for file in files_of(os.fspath(path), options.format)]
    if like is None and options.like is not None:
        like = read_like(os.fspath(options.like))
    if like is not None and like.targets:
        options = replace(options, task="regression")
    read = input_files([*names, options.like, options.labels])
    check_outputs([Output("output", output, is_data)], read)
    with ExitStack() as stack:
        job = _Conversion(names, Path(output).absolute().parent, options, like, stack)
        with naming(output):
            job.learn(progress)
        layout = job.layout()
        with atomic_path(output) as temporary, DatasetWriter(temporary, layout) as writer:
            job.write(writer, layout, progress)
    if writer.n_zeros:
        job.notes.append(f"{writer.n_zeros} rows hold only zeros; --normalize leaves them so")
    return ConversionReport(
        output=os.fspath(output),
        n_rows=layout.n_rows,
        n_features=layout.n_features,
        class_counts=writer.class_counts,
        targets=layout.targets,
        sparse=layout.sparse,
        scaling=layout.scaling,
        seed=layout.seed,
        notes=tuple(job.notes),
        text_bytes=sum(reader.text_bytes for reader in job.inputs),
    )


def open_table(path: Any, kind: str, options: ConvertOptions, *, live: bool = False) -> Table:
    """Open a table of a known format, or a frame as "arrow"; InputError if it cannot be read.

    CSV can be `live`, see `TextInput`.
    """
    from ooc_fw.conversion.arrow import ArrowTable, CSVTable  # pyarrow is slow to import

    if options.labels is not None:
        raise InputError(f"{path} has its labels in a column: name it with --label")
    if kind == "csv":
        return CSVTable(path, options, live=live)
    if isinstance(path, str) and path == STANDARD_INPUT:
        raise InputError(f"{kind} cannot be read from standard input; name a file")
    return ArrowTable(path, kind)


def read_grouping(source: RowSource, groups: Any) -> tuple[AnyArray, Int64Array | None]:
    """Groups as `read_groups` gives them; text such as "visits.csv:user" names a column of a file.

    The file is the input from which `source` was converted.
    """
    path, _, column = groups.rpartition(":") if isinstance(groups, str) else ("", "", "")
    if os.path.exists(path):
        groups = _read_column(path, column, source)
    return read_groups(source, groups)


def _read_column(path: str, name: str, converted: RowSource) -> AnyArray:
    """The values in a column of a file from which a source was `converted`."""
    record = converted.table
    kind = detect_format(path, is_table=record is not None)
    if kind not in TABLES:
        with open_dataset(path, name) as source:
            return source.labels(0, source.n_rows)
    options = ConvertOptions()
    if record is not None:
        options = TableRecord.from_json(record).options_of(options)
    with open_table(path, kind, options) as table:
        check_columns(table, [name], f"{path}:{name}")
        table.wanted = {name: "words"}
        columns: Any = [table.cells(block)[0][name] for block in table.blocks()]
    return np.concatenate([np.array([*words.values, ""])[words.codes] for words in columns])


def _choose_format(names: Sequence[str], options: ConvertOptions, like: TrainingFile | None) -> str:
    """Common format of all inputs; InputError if formats differ, or options do not fit it."""
    if not names:
        raise InputError("no input given; name a file, or - for standard input")
    is_table = options.for_tables or (like is not None and like.table is not None)
    kinds = [options.format] * len(names)
    if options.format == "auto":
        kinds = [detect_format(name, is_table=is_table) for name in names]
    kind = kinds[0]
    shares = names.count(STANDARD_INPUT) > 1 or (options.labels is not None and len(names) > 1)
    if len({*kinds}) > 1 or shares:
        raise InputError(
            f"the inputs are of several formats ({', '.join(kinds)}), or several take standard "
            f"input (-) or one file of labels; convert one at a time"
        )
    strange = "--names" if options.names and kind != "csv" else ""
    of_columns = "--one-hot, --target-encode, --dates, --drop, --impute and --weight"
    if kind == "libsvm" and (options.for_tables or options.labels is not None):
        others = "--label, --labels, --missing-labels, --header, --no-header, --delimiter"
        strange = f"{others}, {of_columns}"
    elif kind != "libsvm" and (options.zero_based or options.n_features is not None):
        strange = "--zero-based and --n-features"
    elif kind not in ("libsvm", *TABLES) and options.of_columns:
        strange = of_columns
    elif kind in ("libsvm", *TABLES) and (options.fill_missing, options.x_name) != (None, None):
        strange = "--fill-missing and --x-name"
    if strange:
        raise InputError(
            f"{names[0]} is {kind}, and {strange} are for other formats; leave them out, or name "
            f"the --format"
        )
    return kind


class _Conversion:
    """The open inputs, the facts that the first reading learns, and the spool of its rows."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        options: ConvertOptions,
        like: TrainingFile | None,
        stack: ExitStack,
    ) -> None:
        kind = _choose_format(names, options, like)
        self.like = like
        self.scaling = Scaling(log1p=options.log1p, normalize=options.normalize)
        if like is not None:
            self.scaling = like.scaling
        self.width = options.n_features if like is None else like.n_features  # None: as in rows
        self.inputs: Sequence[readers.Reader]
        self.encoder: readers.Encoder
        new = options.labels_as
        if new is None and like is not None:
            new = like.origin.get("labels_as")
        are_words = like is not None and like.are_words
        labels = readers.LabelNumbers(new, ", ".join(names), are_words=are_words)
        if kind == "libsvm":
            self.inputs = [stack.enter_context(TextInput(name)) for name in names]
            how = {"n_features": self.width, "log1p": self.scaling.log1p}
            self.encoder = LineEncoder(labels, zero_based=options.zero_based, **how)
        elif kind in TABLES:
            record = None if like is None else like.record
            if record is not None:
                options = record.options_of(options)
            tables = [stack.enter_context(open_table(one, kind, options)) for one in names]
            if like is not None and record is None:
                raise InputError(
                    f"{like.name} does not say how the columns of a table became its features; "
                    f"give the converted file of a table with --like"
                )
            record = record or choose_columns(tables[0], options)
            self.inputs = tables
            self.encoder = TableEncoder(tables, record, options, like, labels)
        else:
            origin = {} if like is None else like.origin
            arrays = [stack.enter_context(ArrayInput(one, options, origin)) for one in names]
            self.inputs = arrays
            self.encoder = ArrayEncoder(arrays, options, like, labels)
        self.options = options
        sizes = [one.size for one in self.inputs if one.size is not None]
        self.n_bytes = sum(sizes) if len(sizes) == len(names) else None  # None: unknown
        seed = options.seed if options.shuffle and like is None else None
        # One byte of an input becomes about four bytes in the spool.
        n_bytes = None if self.n_bytes is None else 4 * self.n_bytes
        self.spool = Spool(folder, seed, n_bytes)
        stack.callback(self.spool.close)
        self.name = ", ".join(reader.name for reader in self.inputs)
        self.ranges = ColumnRanges(options.scale)  # ranges of the columns of parsed rows
        self.n_rows = 0
        self.n_columns = 0  # number of columns of the widest row
        self.notes: list[str] = []

    def learn(self, progress: Progress) -> None:
        """First reading: parse all inputs into the spool, and number the rows in their order."""

        def numbered() -> Iterator[RowBlock]:
            for reader in self.inputs:
                for parsed, known in ordered_map(partial(self._parse, reader), reader.blocks()):
                    block = self._count(reader.name, parsed, known)
                    done = sum(reader.bytes_read for reader in self.inputs)
                    progress(done, None if self.n_bytes is None else 2 * self.n_bytes)
                    yield block

        spooled = map if self.spool.seed is None else ordered_map  # the shuffle needs no order
        for _ in spooled(self.spool.add, numbered()):
            pass
        if not self.n_rows:
            what = "row with a label" if self.encoder.n_unlabelled else "rows"
            raise InputError(f"{self.name} holds no {what}; give other data, or another --label")

    def _parse(self, reader: readers.Reader, block: Any) -> tuple[ParsedBlock, CSRRows]:
        """Parsed block with logarithms, and rows without missing values; for any thread."""
        parsed = self.encoder.parse(reader, block)
        rows, known = self.encoder.measured(parsed.rows, self.scaling)
        # Scaling takes float64: rounding before it would merge large values that differ little.
        is_last = self.options.scale == "none" and self.scaling.is_identity
        if is_last or self.encoder.dtype != FLOAT32:  # float32 holds all narrower values
            rows = replace(rows, data=as_float32(rows.data))
        return replace(parsed, rows=rows), known

    def _count(self, name: str, block: ParsedBlock, known: CSRRows) -> RowBlock:
        """Learn from a block of an input; return its rows with their numbers."""
        if block.rows.n_features > MAX_FEATURES:
            raise InputError(
                f"{name} has a feature index of {block.rows.n_features}, and the limit is "
                f"{MAX_FEATURES}; if it is a stray one, leave wide features out with --n-features"
            )
        self.ranges.add(known)
        kept = np.arange(len(block.rows)) if block.kept is None else block.kept
        row_ids = self.n_rows + self.encoder.n_unlabelled + kept
        keys = None
        if self.encoder.n_encoded:
            labelled = np.arange(self.n_rows, self.n_rows + len(block.rows))
            keys = shuffle_keys(labelled, self.options.seed)
        codes = self.encoder.learn(block, keys)
        self.n_rows += len(block.rows)
        self.n_columns = max(self.n_columns, block.width)
        labels = block.labels if self.encoder.labelled else None
        beside = {"y": labels, "row": row_ids, "categories": codes, "weight": block.weights}
        there = {name: values for name, values in beside.items() if values is not None}
        return RowBlock(block.rows, there)

    def layout(self) -> Layout:
        """End the first reading, and choose the layout; InputError if the rows do not fit it."""
        like = self.like
        encoder = self.encoder
        widths = encoder.end_learning(self.ranges, self.scaling, self.width or self.n_columns)
        n_columns = len(widths)
        n_features = int(widths.sum()) if like is None else like.n_features
        if not n_features:
            raise InputError(f"{self.name} holds labels only, no features; nothing to learn")
        if like is None:
            kept = encoder.kept(n_columns)
            fitted = self.ranges.scaling(self.scaling, n_columns, kept)
            self.scaling = fitted.at(np.repeat(np.arange(n_columns), widths))
        else:
            fitted = self.scaling.at(np.minimum(np.cumsum(widths) - widths, n_features - 1))
        self.notes += encoder.notes()
        self.notes += self._lost_columns(fitted, n_columns)
        if not encoder.labelled:
            said = "there are no labels: the file is for prediction only (else give --label)"
            self.notes.append(said)
        if self.n_columns > n_features:
            n_more = self.n_columns - n_features
            self.notes.append(f"{n_more} features beyond {n_features} are left out")
        partly = self.options.labels_as is not None  # later rows may lack some labels of training
        unused = encoder.labels.unused(partly=partly) if encoder.labelled else ""
        if unused and partly:
            raise InputError(f"{unused}: correct this name, or leave it out")
        self.notes += filter(None, [unused])
        origin = dict(encoder.origin)
        if encoder.labels.labels_as is not None and encoder.labelled:
            origin["labels_as"] = encoder.labels.labels_as
        return Layout(
            n_rows=self.n_rows,
            n_input=self.n_rows + encoder.n_unlabelled,
            n_features=n_features,
            n_stored=self.ranges.n_stored,
            sparse=self._is_sparse(n_features),
            source=self.name,
            scaling=self.scaling,
            dtype=self.encoder.dtype,
            compression=self.options.compression,
            shuffled=self.spool.seed is not None,
            seed=self.spool.seed,
            label_names=encoder.labels.values()[1] if encoder.labelled else None,
            targets=self.options.targets and encoder.labelled,
            columns=encoder.columns,
            table=encoder.table,
            origin=origin,
        )

    def _is_sparse(self, n_features: int) -> bool:
        """Whether rows are stored sparse: by the option, or as in `like`, or by their density.

        Sparse rows, with an index for each value, must be less than half as large as dense ones:
        else dense products are faster. In float32, fewer than a quarter of the values are nonzero.
        """
        dense = self.options.dense
        if dense is None:
            size = self.encoder.dtype.itemsize
            sparse_bytes = (size + 4) * self.ranges.n_stored
            is_filled = 2 * sparse_bytes >= size * self.n_rows * n_features
            dense = is_filled if self.like is None else not self.like.sparse
        if dense or not self.scaling.moves_zero:
            return not dense
        said = f"scaling {self.scaling.kind!r} turns zeros into other numbers"
        if self.options.dense is False:
            raise InputError(
                f"{said}: rows cannot stay sparse; use --scale maxabs, or leave out --sparse"
            )
        self.notes.append(f"{said}: rows are stored dense")
        return False

    def _lost_columns(self, scaling: Scaling, n_columns: int) -> Iterator[str]:
        """Yield sentences about columns whose different values become nearly equal in float32.

        The check compares the ends of their ranges, after logarithms and the scaling.
        """
        low, high = self.ranges.range(n_columns)
        ends = np.stack([low, high])
        if scaling.offset is not None and scaling.factor is not None:
            ends = (ends - scaling.offset) * scaling.factor
        with np.errstate(over="ignore"):
            rounded = ends.astype(np.float32)
            steps = np.abs(rounded[1] - rounded[0]) / np.spacing(np.abs(rounded).max(axis=0))
        is_exact = (rounded == ends).all(axis=0)  # true for whole numbers below 2**24
        is_lost = (low < high) & (are_constant(low, high) | ((steps < 64) & ~is_exact))
        for column in np.flatnonzero(is_lost)[:3].tolist():
            yield (
                f"{self.encoder.column_name(column)}: its values, from {low[column]:.17g} to "
                f"{high[column]:.17g}, cannot be told apart in float32 with --scale "
                f"{scaling.kind}; give --scale standard, unless they differ by rounding only"
            )

    def write(self, writer: DatasetWriter, layout: Layout, progress: Progress) -> None:
        """Second reading: make features from the rows in the spool, and scale and write them."""
        label_values, _ = self.encoder.labels.values()
        n_written = 0
        for block in ordered_map(partial(self._finish, layout), self._pieces(layout)):
            if label_values is not None and "y" in block.beside:
                labels = label_values[block.beside["y"].astype(np.int64)]
                block = replace(block, beside={**block.beside, "y": labels})
            writer.append(block)
            n_written += len(block)
            if self.n_bytes is not None:
                done = self.n_bytes + round(n_written / layout.n_rows * self.n_bytes)
                progress(done, 2 * self.n_bytes)
        writer.finish()

    def _pieces(self, layout: Layout) -> Iterator[RowBlock]:
        """Yield rows in pieces of about 2 MiB, which fit the processor's cache."""
        for block in self.spool.blocks(layout.n_features):
            row_bytes = 4 * layout.n_features
            if layout.sparse:
                row_bytes = 8 * (len(block.rows.data) // max(1, len(block)) + 1)
            size = max(1, (2 << 20) // row_bytes)
            for start in range(0, len(block), size):
                yield block[start : start + size]

    def _finish(self, layout: Layout, piece: RowBlock) -> RowBlock:
        """Rows of a piece as they are stored; for any thread."""
        beside = {**piece.beside}
        rows = self.encoder.features(piece.rows, beside.get("categories"), layout.scaling)
        if not self.encoder.n_encoded:  # no later row changes the features of these rows
            beside.pop("categories", None)
        found = rows if layout.sparse else rows.toarray()
        if not layout.scaled_later:
            found = layout.scaling.scale(found)
        if isinstance(found, CSRRows):  # constant columns have become zeros
            found = keep_stored(found, found.data != 0, layout.n_features)
        return RowBlock(found, beside)
