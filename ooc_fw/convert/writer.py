"""The HDF5 layout of a training file, written front to back, and one file cut into two of them."""

from __future__ import annotations

import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import h5py
import numpy as np

from ooc_fw.convert.readers import THREADS_NAME
from ooc_fw.data import converted
from ooc_fw.data.arrays import open_npy
from ooc_fw.data.encoded import hold_out
from ooc_fw.data.formats import COLUMNS, LABEL_NAMES, RECORD, TARGETS, is_hdf5, put_text, put_texts
from ooc_fw.data.hdf5 import structure_errors
from ooc_fw.data.labels import are_targets, encode_labels, read_targets
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float64Array,
    Int32Array,
    Int64Array,
    Rows,
    values_of,
)
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.data.statistics import ColumnSums
from ooc_fw.data.views import SubsetSource, ranges_of
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import atomic_path, flush_to_disk

FORMAT_VERSION = 1

_PART_ROWS = 1 << 20  # rows whose labels and numbers are looked at together
CHUNK_BYTES = 2 << 20  # size of a chunk of any array
# A data set is written front to back and needs only the chunk at hand in its cache; the default of
# HDF5 is larger and fills up over the first million rows.
CHUNK_CACHE_BYTES = 2 * CHUNK_BYTES


@dataclass(frozen=True)
class Layout:
    """What a file holds, which is known before it is begun."""

    n_rows: int
    n_features: int
    n_stored: int  # upper limit of the stored values; used for sparse rows only
    sparse: bool  # whether /X is a CSR group
    class_counts: Mapping[float, int]  # rows of each label value, sorted
    source: str  # names of the inputs
    scaling: Scaling
    compression: str = "none"  # filter of the large data sets
    labelled: bool = True  # whether there are labels; new rows may have none yet
    seed: int | None = None  # of the shuffle; None for the order of the input
    # Words that the label values 0, 1, ... stand for; None where labels are numbers.
    label_names: Sequence[str] | None = None
    targets: bool = False  # whether labels are targets of a regression
    columns: Sequence[str] | None = None  # names of the features
    table: str | None = None  # how the columns of a table became the features, as JSON
    labels_as: Sequence[str] = ()  # maps that made the labels
    n_encoded: int = 0  # columns of categories that became features by the labels of these rows

    @property
    def n_bytes(self) -> int:
        """Size of the file without compression and statistics."""
        sparse_bytes = 8 * self.n_stored + 8 * self.n_rows
        values = sparse_bytes if self.sparse else 4 * self.n_rows * self.n_features
        return values + (16 + 4 * self.n_encoded) * self.n_rows


class OutputFile(h5py.File):  # type: ignore[misc]  # h5py carries no type hints
    """A new HDF5 file that raises errors of the disk when HDF5 can survive them.

    HDF5 tries to write the same data again when the file is closed and when the interpreter ends,
    and crashes there. So it is told that all writes succeed, and `check` and the end of the
    ``with`` statement raise the error.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._sink = _Sink(path)
        super().__init__(
            self._sink, "w", rdcc_nbytes=CHUNK_CACHE_BYTES, libver=converted.LIBRARY_VERSIONS
        )

    def check(self) -> None:
        """Raise the first error of the disk, if there was one."""
        if self._sink.failure is not None:
            raise self._sink.failure

    def close(self) -> None:
        """Write what is left and close the file; a second time does nothing."""
        super().close()
        self._sink.close()

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self.close()
        if kind is None:
            self.check()


class _Sink(io.FileIO):
    """The file object that HDF5 writes to; it remembers its first failure and continues."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "w+b")
        self._path = os.fspath(path)
        self.failure: OSError | None = None

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, with zeros where nothing was written, as any HDF5 driver does."""
        view = memoryview(buffer).cast("B")
        view[:] = os.pread(self.fileno(), len(view), self.tell()).ljust(len(view), b"\0")
        return len(view)

    def write(self, data: Any) -> int:
        """Write all of `data` at the position, which HDF5 sets before every write."""
        view = memoryview(data).cast("B")
        n_bytes, offset = view.nbytes, self.tell()
        with self._remembering():
            while view and self.failure is None:
                count = os.pwrite(self.fileno(), view, offset)
                view, offset = view[count:], offset + count
        return n_bytes

    def truncate(self, size: int | None = None) -> int:
        with self._remembering():
            if self.failure is None:
                super().truncate(size)
        return size or 0

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = OSError(error.errno, error.strerror, self._path)


def filter_options(compression: str) -> dict[str, Any]:
    """Arguments of `create_dataset` for a compression; InputError if its plugin is missing."""
    if compression == "none":
        return {}
    if compression == "gzip":
        return {"compression": "gzip", "shuffle": True}
    try:
        import hdf5plugin
    except ModuleNotFoundError:
        raise InputError(
            f"compression {compression!r} needs a plugin: pip install 'ooc-fw[compression]', or "
            f"choose gzip"
        ) from None
    chosen = hdf5plugin.LZ4() if compression == "lz4" else hdf5plugin.Zstd()
    return {**chosen, "shuffle": True}


class _Appender:
    """Appends to a data set chunk by chunk, without HDF5's own buffers if there is no filter.

    Checksums of a chunk are computed in `pool` while it is written.
    """

    def __init__(self, dataset: h5py.Dataset, direct: bool, pool: ThreadPoolExecutor) -> None:
        self._dataset = dataset
        self._direct = direct
        self._pool = pool
        self._chunk = np.zeros(dataset.chunks, dtype=dataset.dtype)
        self._length = converted.stretch_length(self._chunk[0].nbytes)
        self._sums = [np.empty(0, dtype=np.uint32)]
        self._start = 0  # of the chunk being filled
        self._filled = 0

    def append(self, block: AnyArray) -> None:
        """Write elements below those written so far."""
        while len(block) > 0:
            taken = min(len(self._chunk) - self._filled, len(block))
            self._chunk[self._filled : self._filled + taken] = block[:taken]
            self._filled += taken
            if self._filled == len(self._chunk):
                self.flush()
            block = block[taken:]

    def flush(self) -> None:
        """Write the chunk being filled, in the shape of a whole one; it need not be full."""
        if not self._filled:
            return
        written = self._chunk[: self._filled]
        summing = self._pool.submit(converted.crc32s, written, self._length)
        if self._direct:
            corner = (self._start,) + (0,) * (written.ndim - 1)
            self._dataset.id.write_direct_chunk(corner, self._chunk)
        else:
            self._dataset[self._start : self._start + len(written)] = written
        self._sums.append(summing.result())
        self._start += len(written)
        self._filled = 0

    def checksums(self) -> converted.Checksums:
        return converted.Checksums(np.concatenate(self._sums), self._length)


class DatasetWriter:
    """Append rows to an open, empty HDF5 file; `finish` marks it complete."""

    def __init__(self, file: OutputFile, layout: Layout) -> None:
        self._file = file
        self._layout = layout
        self._filter = filter_options(layout.compression)
        self._stored = 0
        self.n_nonzero = 0  # values that were written
        self._sums = ColumnSums(layout.n_features)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=THREADS_NAME)
        self._parts: dict[str, _Appender] = {}
        n_rows, n_features = layout.n_rows, layout.n_features
        if layout.labelled:
            self._create("y", np.float64, n_rows)
        self._create("row", np.int64, n_rows)
        if layout.n_encoded:
            self._create("categories", np.int32, n_rows, layout.n_encoded)
        if not layout.sparse:
            self._create("X", np.float32, n_rows, n_features)
            return
        self._create("X/data", np.float32, layout.n_stored)
        self._create("X/indices", np.int32, layout.n_stored)
        self._create("X/indptr", np.int64, n_rows + 1)
        self._parts["X/indptr"].append(np.zeros(1, dtype=np.int64))
        # AnnData's encoding of a CSR matrix. Other tools that read it expect text of variable
        # length, which is never read here.
        file["X"].attrs["shape"] = np.array([n_rows, n_features], dtype=np.int64)
        file["X"].attrs["encoding-type"] = "csr_matrix"
        file["X"].attrs["encoding-version"] = "0.1.0"

    def _create(self, name: str, dtype: type, length: int, *width: int) -> None:
        row_bytes = max(1, np.dtype(dtype).itemsize * math.prod(width))
        stretch = converted.stretch_length(row_bytes)
        # About CHUNK_BYTES, a whole number of stretches.
        chunk = max(1, CHUNK_BYTES // (stretch * row_bytes)) * stretch
        dataset = self._file.create_dataset(
            name,
            (length, *width),
            dtype,
            maxshape=None if width else (None,),
            chunks=(min(chunk, max(1, length)), *width),
            **self._filter,
        )
        self._parts[name] = _Appender(dataset, not self._filter, self._pool)

    def append(
        self,
        rows: Rows,
        labels: Float64Array,
        row_ids: Int64Array,
        stored: Rows | None = None,
        cells: Int32Array | None = None,
    ) -> None:
        """Write rows below those written so far; OSError if the disk is full or failing.

        `stored` are the same rows in a form whose values are summed faster, and `cells` tell their
        categories (`ooc_fw.data.encoded`).
        """
        summed = rows if stored is None else stored
        self._sums.add(summed)
        self.n_nonzero += int(np.count_nonzero(values_of(summed)))
        parts = self._parts
        if "y" in parts:
            parts["y"].append(labels)
        parts["row"].append(row_ids)
        if cells is not None and "categories" in parts:
            parts["categories"].append(cells)
        if isinstance(rows, CSRRows):
            parts["X/data"].append(rows.data)
            parts["X/indices"].append(rows.indices)
            parts["X/indptr"].append(rows.indptr[1:] + self._stored)
            self._stored += len(rows.data)
        else:
            parts["X"].append(rows)
        self._file.check()

    def finish(self) -> None:
        """Write attributes, statistics and checksums; the file is complete after this."""
        for part in self._parts.values():
            part.flush()
        layout, attributes = self._layout, self._file.attrs
        if layout.sparse:
            # Fewer values than expected: scaling may have turned some into zeros.
            self._file["X/data"].resize((self._stored,))
            self._file["X/indices"].resize((self._stored,))
        attributes["format_version"] = FORMAT_VERSION
        attributes["n_rows"] = layout.n_rows
        attributes["n_features"] = layout.n_features
        attributes["n_classes"] = len(layout.class_counts)
        attributes["class_names"] = np.array([*layout.class_counts], np.float64)
        attributes["class_counts"] = np.array([*layout.class_counts.values()], np.int64)
        if layout.targets:
            attributes[TARGETS] = True
        attributes["shuffled"] = layout.seed is not None
        if layout.seed is not None:
            attributes["shuffle_seed"] = layout.seed
        put_text(attributes, "source", layout.source)
        put_text(attributes, "compression", layout.compression)
        if layout.columns is not None:
            put_texts(attributes, COLUMNS, layout.columns)
        if layout.table is not None:
            put_text(attributes, RECORD, layout.table)
        if layout.label_names is not None:
            put_texts(self._file["y"].attrs, LABEL_NAMES, layout.label_names)
        if layout.labels_as and layout.labelled:
            put_texts(self._file["y"].attrs, converted.LABELS_AS, layout.labels_as)
        attributes["mean_square_norm"] = self._sums.statistics.mean_square_norm
        self._file["mean"] = self._sums.statistics.mean
        layout.scaling.write(self._file)
        attributes["complete"] = 1
        converted.write_checksums(
            self._file, {name: part.checksums() for name, part in self._parts.items()}
        )
        self._pool.shutdown()
        self._file.check()


def count_labels(labels: AnyArray) -> dict[Any, int]:
    """Rows of each label, sorted by label."""
    names, numbers = np.unique(labels, return_counts=True)
    return dict(zip(names.tolist(), numbers.tolist(), strict=True))


@dataclass(frozen=True)
class PartReport:
    """What one of the parts holds: rows of each label, in all, and where."""

    output: str
    n_rows: int
    class_counts: dict[Any, int]


@dataclass(frozen=True)
class _Labels:
    """Labels of all rows in few bytes: targets, or the code of each class and what is stored."""

    codes: AnyArray  # targets where there are no values
    values: Float64Array | None = None  # stored for each code
    words: list[str] | None = None  # that the values stand for

    @classmethod
    def of(cls, source: RowSource) -> _Labels:
        """InputError is raised if some are missing; without any labels they are zeros."""
        if not source.has_labels:
            return cls(np.zeros(source.n_rows, dtype=np.int8), np.zeros(1))
        if are_targets(source):
            return cls(read_targets(source))
        classes, codes = encode_labels(source)
        if classes.dtype.kind in "biuf":
            return cls(codes, classes.astype(np.float64))
        return cls(codes, np.arange(len(classes), dtype=np.float64), classes.tolist())

    def stored(self, rows: Int64Array) -> Float64Array:
        """Labels of some rows as they are stored."""
        found = self.codes[rows]
        return found if self.values is None else self.values[found]

    def counts(self, part: SubsetSource) -> dict[Any, int]:
        """Rows of each stored label in a part."""
        total: Counter[Any] = Counter()
        for start in range(0, part.n_rows, _PART_ROWS):
            rows = part.rows_at(np.arange(start, min(part.n_rows, start + _PART_ROWS)))
            total.update(count_labels(self.stored(rows)))
        return dict(sorted(total.items()))


def _new_numbers(part: RowSource) -> AnyArray:
    """For each position in the user's input, how many rows of the part come up to there."""
    last, ends = 0, [*range(_PART_ROWS, part.n_rows, _PART_ROWS), part.n_rows]
    for start, stop in pairwise([0, *ends]):
        last = max(last, int(part.row_ids(start, stop).max()))
    there = np.zeros(last + 1, dtype=bool)
    for start, stop in pairwise([0, *ends]):
        there[part.row_ids(start, stop)] = True
    return np.cumsum(there, dtype=np.int32 if last < 2**31 - 1 else np.int64)


def read_test_rows(path: str, source: RowSource) -> Int64Array:
    """Ranges of the rows that a file lists, counted from 0: text with a number a line, or .npy."""
    try:
        if path.endswith(".npy"):
            numbers = _read_npy(path)
        else:
            with warnings.catch_warnings(action="ignore"):  # of a file without numbers
                numbers = np.loadtxt(path, dtype=np.int64, ndmin=1)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} does not list row numbers ({error}); write one a line, counted from 0"
        ) from None
    rows, n_rows = np.unique(numbers), source.n_rows
    usable = numbers.ndim == 1 and numbers.dtype.kind in "iu" and 0 < len(rows) < n_rows
    if not usable or len(rows) < len(numbers) or rows[0] < 0 or rows[-1] >= n_rows:
        raise InputError(
            f"{path} must list some of the row numbers 0 to {n_rows - 1} of {source.name}, each "
            f"once, and not all of them"
        )
    return ranges_of(rows.astype(np.int64))


def _read_npy(path: str) -> AnyArray:
    stored = open_npy(path)
    if len(stored.shape) != 1:
        raise InputError(f"{path} has to be one list of numbers, not of shape {stored.shape}")
    with closing(stored) as array:
        return np.asarray(array[:])


def split(
    source: RowSource,
    test_ranges: Int64Array,
    outputs: Sequence[str | os.PathLike[str]],
    *,
    compression: str = "none",
    on_rows: Callable[[int], None] | None = None,
) -> list[PartReport]:
    """Write the rows outside `test_ranges` to the first of two files, those inside to the second.

    Rows keep their order, are numbered anew, and take along what is known of them. The files appear
    when both are written. `on_rows` is told the number of rows written.
    """
    labels = _Labels.of(source)
    words, targets = labels.words, labels.values is None
    layout = Layout(
        source.n_rows,
        source.n_features,
        source.decoded_bytes // 8,  # no fewer than are stored
        source.sparse,
        {},
        os.path.basename(source.name),
        source.scaling or Scaling(),
        compression,
        source.has_labels,
        _shuffle_seed(source.name) if source.shuffled else None,
        words,
        targets,
        source.columns,
        None,
        source.labels_as,
    )
    reports: list[PartReport] = []
    done = 0
    with ExitStack() as stack:
        paths = [stack.enter_context(atomic_path(output)) for output in outputs]
        for part, path, output in zip(hold_out(source, test_ranges), paths, outputs, strict=True):
            with part, OutputFile(path) as file:
                numbers = _new_numbers(part)
                counts = labels.counts(part) if source.has_labels and not targets else {}
                own = replace(layout, n_rows=part.n_rows, class_counts=counts, table=part.table)
                # Features of the second part are not made of its own labels.
                cells = part.categories.cells if part.categories and not reports else None
                if cells is not None:
                    own = replace(own, n_encoded=cells.shape[1])
                writer = DatasetWriter(file, own)
                for start, rows in iter_blocks(part, 0, part.n_rows):
                    stop = start + len(rows)
                    known = None if cells is None else cells[start:stop]
                    own_labels = labels.stored(part.rows_at(np.arange(start, stop)))
                    ids = numbers[part.row_ids(start, stop)].astype(np.int64) - 1
                    writer.append(rows, own_labels, ids, None, known)
                    done += len(rows)
                    if on_rows is not None:
                        on_rows(done)
                writer.finish()
            named = {k if words is None else words[int(k)]: n for k, n in counts.items()}
            reports.append(PartReport(os.fspath(output), part.n_rows, named))
        for path in paths:
            flush_to_disk(path)  # all of them before one is renamed
    return reports


def _shuffle_seed(path: str) -> int:
    """Seed of the shuffle of a converted file."""
    if not (os.path.isfile(path) and is_hdf5(path)):
        return 0
    with structure_errors(path), h5py.File(path, "r") as file:
        return int(file.attrs.get("shuffle_seed", 0))
